"""Measure shares of values among images and their distance from even, whatever the source of the
labels.

Labels of a judge, majority labels of people and labels of a table are all one column of values. It
is counted per prompt, and `add_shares` makes rows of the counts; people's labels of some images
correct those of a judge.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from vldebias.data import Labels, odd_values
from vldebias.data.tables import as_texts, column_of, misspelt, read_table
from vldebias.errors import InvalidInputError, SuspectInputWarning, need, warn
from vldebias.files import digest
from vldebias.judge.answers import CANNOT_TELL, NO_MAJORITY, NO_PERSON, read_answers
from vldebias.judge.judges import NO_VALUE
from vldebias.judge.plan import GeneratedImages
from vldebias.judge.scores import last_judgements
from vldebias.measure.classification import agreement
from vldebias.measure.metric import computed
from vldebias.measure.resampling import Interval, percentile_interval, wilson_interval
from vldebias.measure.result import CHANCE, DEALT, NONE, TaskProvenance, TaskResult
from vldebias.measure.shares import (
    LEAST,
    NOT_LABELLED,
    as_judged,
    corrected_shares,
    corrected_squares,
    discrepancies,
    independent,
    shares_radius,
    squared_discrepancies,
)
from vldebias.progress import SILENT, Progress
from vldebias.schema import Name
from vldebias.study.inputs import Inputs
from vldebias.study.task import Task, register_task

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]
ROLES = ("prompt", "value", "method", "weight", "people")  # of columns
ABOUT_GAP = (
    "Discrepancy is the distance of the shares from uniform (eq. 7.2), averaged over prompts and"
    " resampled over prompts with all their images; few images per prompt bias it upwards,"
    " discrepancy_squared is corrected for that."
)
ABOUT = f"Images, and what each shows, as a table or people say; none is unknown. {ABOUT_GAP}"
ABOUT_CORRECTED = (
    "A judge answered about every image and people about some. Corrected figures are right whatever"
    " the judge does, if the labelled images were chosen at random (prediction-powered inference)."
    " Shares are of all images, unknown ones included; the gap from even shares and MaxSkew of all"
    " images whose value can be told; its unbiased square is the mean over prompts with two or more"
    " labels under every method."
)


def add_shares(
    result: TaskResult,
    names: Sequence[str],
    counts: Mapping[str, NDArray[Any]],
    prompts: Sequence[str],
    *,
    subset: str = "",
    noun: str = "prompts",
    recognised: Mapping[str, Floats] | None = None,
    resamples: int = 2000,
    seed: int = 0,
) -> None:
    """Add the means over prompts of every metric of shares, then each prompt by itself.

    Means are resampled over prompts, each with all its images: the noise of few images is part of
    the spread between prompts, and resampling images as well would count it twice. The interval of
    one prompt is over its images.

    names: the values. counts: method -> (p, values + 1), unknown last. prompts: what the rows of
    each are called.
    subset: what all prompts are called: "" for the whole, which has the mean shares too, else a
    part, "unseen
        professions", of which the worst prompt is a row.
    recognised: method -> (p,) share of the images that show their concept.
    """
    values, boot = len(names), dict[str, Any](resamples=resamples, seed=seed)
    known = {method: of[:, :-1] for method, of in counts.items()}
    shares = {method: of / of.sum(1, keepdims=True) for method, of in counts.items()}
    gaps = {method: discrepancies(of) for method, of in known.items()}
    several = subset != "" or len(prompts) > 1
    if several:
        add: Any = partial(result.add_resampled, **boot)
        first = next(iter(counts.values()))
        every = first[:1] if subset else np.concatenate([*counts.values()])
        n = {noun: len(prompts), "images each" if subset else "images": round(float(every.sum()))}
        sizes = first[:, :-1].sum(1).round().astype(int)
        for metric, of in computed("shares"):
            add(metric, {m: of(one) for m, one in known.items()}, n=n, subset=subset)
            if (
                metric.name in ("discrepancy", "discrepancy_squared") and sizes.any()
            ):  # what even shares give
                rng, even = np.random.default_rng(seed), np.full(values, 1 / values)
                draws = [
                    of(rng.multinomial(size, even, resamples).astype(float))
                    for size in sizes[sizes > 0]
                ]
                mean = np.mean(draws, axis=0)
                result.add(
                    metric,
                    CHANCE,
                    float(mean.mean()),
                    percentile_interval(mean),
                    n=n,
                    subset=subset,
                )
        deals = [m for m in counts if result.provenance.methods.get(m, {}).get("deals")]
        if deals:
            mean = dealt_gaps(counts[deals[0]], resamples=resamples, seed=seed).mean(axis=1)
            ends = percentile_interval(mean)
            result.add("discrepancy", DEALT, float(mean.mean()), ends, n=n, subset=subset)
        add("unknown", {m: one[:, -1] for m, one in shares.items()}, n=n, subset=subset)
        if recognised is not None:
            add("recognised", recognised, n=n, subset=subset)
        if subset:
            n, worst = (
                {f"{noun}, the one with the widest gap of": len(prompts)},
                f"{subset}, the worst",
            )
            add("discrepancy", gaps, statistic=partial(np.max, axis=-1), n=n, subset=worst)
            if recognised is not None:
                n = {f"{noun}, the least recognised of": len(prompts)}
                add("recognised", recognised, statistic=partial(np.min, axis=-1), n=n, subset=worst)
        for code, value in enumerate(() if subset else names):
            add(
                "share",
                {m: one[:, code] for m, one in shares.items()},
                n=n,
                subset=f"mean over prompts: {value}",
            )
    radius, most = (
        {m: shares_radius(one, **boot) for m, one in known.items()},
        float(np.sqrt(1 - 1 / values)),
    )
    # Of two values the first share says all; shares of intersections are many and thin.
    listed = () if " x " in result.provenance.task else names[: 1 if values == 2 else None]
    for i, prompt in enumerate(prompts):
        for method, of_prompts in counts.items():
            size, gap, by = (
                round(float(of_prompts[i].sum())),
                float(gaps[method][i]),
                float(radius[method][i]),
            )
            change = None
            if NONE in gaps:
                moved, around = gap - gaps[NONE][i], by + radius[NONE][i]
                change = (moved, max(-most, moved - around), min(most, moved + around))
            where, ends = prompt if several else "", (max(0.0, gap - by), min(most, gap + by))
            result.add(
                "discrepancy", method, gap, ends, n={"images": size}, change=change, subset=where
            )
            for code, name in enumerate(listed):
                share, least = float(shares[method][i, code]), max(1, size)
                low, high = wilson_interval(min(least, round(float(of_prompts[i, code]))), least)
                ends = (min(share, low), max(share, high))
                result.add(
                    "share", method, share, ends, n={"images": size}, subset=f"{prompt}: {name}"
                )


def dealt_gaps(counts: Floats, *, resamples: int = 2000, seed: int = 0) -> Floats:
    """Return gaps from even shares (resamples, p) of values that are dealt evenly.

    The images that the judge cannot tell are left out at random, which makes even shares uneven.
    Where the deal has a remainder, the first values have one image more.

    counts: (p, values + 1) images of each prompt by what they show, unknown last.
    """
    rng = np.random.default_rng(seed)
    values = counts.shape[1] - 1
    gaps = np.zeros((resamples, len(counts)))
    for place, images in enumerate(counts.round().astype(int)):
        total = int(images.sum())
        dealt = np.full(values, total // values)
        dealt[: total % values] += 1
        known = rng.multivariate_hypergeometric(dealt, int(images[:-1].sum()), size=resamples)
        gaps[:, place] = discrepancies(known)
    return gaps


def _corrected_block(
    raw: TaskResult,
    names: Sequence[str],
    images: pd.DataFrame,
    counts: Mapping[str, Floats],
    **boot: Any,
) -> list[TaskResult]:
    """Return the block of a judge's figures, corrected by people's labels; none where no method has
    enough of them.

    Labels of different methods are of different images, so the change of a corrected figure is that
    of independent estimates. images: a row each with method, number of the prompt, value and people
    as codes, and weight.
    """
    k, kinds = (
        len(names),
        [*(("share", name) for name in names), ("discrepancy", ""), ("max_skew", "")],
    )
    metrics = [
        (f"{prefix}{metric}", where) for prefix in ("", "corrected_") for metric, where in kinds
    ]
    labels = {
        method: int((images[images.method == method].people != NOT_LABELLED).sum())
        for method in counts
    }
    if few := {method: n for method, n in labels.items() if n < LEAST}:
        warn(
            f"labels: expected {LEAST} or more of a method, got {few}, not corrected; label more",
            SuspectInputWarning,
        )
    about = {
        "task": f"{raw.provenance.task} corrected",
        "title": "Corrected by people",
        "description": ABOUT_CORRECTED,
    }
    result = TaskResult(raw.provenance.model_copy(update=about))
    before, more = dict[tuple[str, str], Interval](), dict[str, Any]()
    squares = {
        "discrepancy_squared": dict[str, Floats](),
        "corrected_discrepancy_squared": dict[str, Floats](),
    }
    for method in (one for one in counts if labels[one] >= LEAST):
        own = images[images.method == method]
        number, said, people, weights = (
            own[name].to_numpy() for name in ("number", "value", "people", "weight")
        )
        found = corrected_shares(said, people, k + 1, weights=weights)
        n = {"images": len(own), "labels": labels[method]}
        figures = dict(zip(metrics, [*as_judged(said, k), *found.figures(k)], strict=True))
        before = figures if method == NONE else before
        for (metric, where), one in figures.items():
            change = independent(one, before[metric, where]) if before else None
            result.add(
                metric, method, one.value, (one.low, one.high), n=n, change=change, subset=where
            )
        squares["discrepancy_squared"][method] = squared_discrepancies(counts[method][:, :k])
        squares["corrected_discrepancy_squared"][method] = corrected_squares(
            number, said, people, k, weights=weights
        )
        more[method] = found.more_labels() or "more than there are images"
    if not more:
        return []
    whole = np.all([np.isfinite(one) for of in squares.values() for one in of.values()], axis=0)
    if whole.sum() > 1:
        n = {"prompts": int(whole.sum()), "labels": sum(labels[method] for method in more)}
        for metric, of in squares.items():
            result.add_resampled(
                metric, {method: one[whole] for method, one in of.items()}, n=n, **boot
            )
    settings = {
        "labelled images": labels,
        "more labels, sampled alike, that halve the interval": more,
    }
    result.provenance.settings = {**raw.provenance.settings, **settings}
    return [result]


@register_task
class SharesTask(Task):
    """Measure shares and discrepancy from a table with a row per image, or from answers about
    generated images.

    table: .csv, .tsv, .parquet or .jsonl. Without one the answers come with --labels and the images
    with --drawn: what
        most annotators say is the value, and the figures of the judge that read the images are
        corrected by it.
    prompt, value, method, weight, people: names of the table's columns; the last three may be left
    out. weight: what an
        image counts, above 0. people: what people say where they were asked, empty elsewhere:
        `value` is then
        corrected by it, and the weights are one over the probability of being asked.
    attribute: what people labelled. values: which there are; by default those that occur.
    same: text of the table -> the value that it means. unknown: texts that mean that it cannot be
    told.
    baseline: the method from which the changes of the others are; "none" by default, where there is
    one.
    """

    task: Literal["shares"] = "shares"
    name: Name = "shares"
    title: str = "Shares of a table"
    table: Path | None = None
    prompt: str = "prompt"
    value: str = "value"
    method: str | None = None
    weight: str | None = None
    people: str | None = None
    attribute: str = ""
    values: tuple[str, ...] = ()
    same: dict[str, str] = Field(default_factory=dict)
    unknown: tuple[str, ...] = ("unknown",)
    baseline: str = NONE

    def prepare(self, inputs: Inputs) -> dict[str, Any]:
        """Return the table, or people's answers and the folder of the generated images that they
        are about."""
        if self.table is not None:
            return {"table": self.table}
        if "table" in inputs.sources:
            return {}
        labels = inputs.options.labels
        folder = inputs.options.drawn
        if not labels or folder is None:
            raise InvalidInputError(
                f"expected --labels and --drawn; this suite needs {inputs.needs}"
            )
        return {
            "labels": labels,
            "folder": folder,
            "plan": folder / "plan.json",
            "progress": inputs.progress,
        }

    def measure(
        self,
        table: Any = None,
        *,
        labels: Sequence[Path] = (),
        folder: Path | None = None,
        progress: Progress = SILENT,
    ) -> list[TaskResult]:
        """Measure a table (a file, or columns by name), or files of labels about the generated
        images of a folder."""
        if table is None and folder is not None:
            return self._labelled(GeneratedImages.open(folder), labels, progress)
        where, data = "table", {}
        if isinstance(table, (str, Path)):
            where, data = str(table), {Path(table).name: digest(table)}
            columns = read_table(Path(table))
        else:
            columns = need("pyarrow").table(
                {name: list(column) for name, column in dict(table).items()}
            )
        names = {role: name for role in ROLES if (name := getattr(self, role)) is not None}
        for (role, name), (other, same) in combinations(names.items(), 2):
            if name == same:
                raise InvalidInputError(
                    f"{where}: column {name!r} is given as {role} and as {other}; expected a column"
                    " of its own for each"
                )
        texts = {
            role: as_texts(column_of(columns, name, where), f"{where}: {name}")
            for role, name in names.items()
        }
        images = need("pandas").DataFrame(texts).apply(lambda column: column.str.strip())
        if (blank := np.flatnonzero(images.prompt == "")).size:
            raise InvalidInputError(
                f"{where}: {len(blank)} rows have no {self.prompt!r}, such as row {blank[0] + 1}"
            )
        empty = partial(TaskProvenance, model="not said", split="table", data=data)
        return self._blocks(images, where, lambda **fields: TaskResult(empty(**fields)))

    def _blocks(
        self, images: pd.DataFrame, where: str, empty: Callable[..., TaskResult]
    ) -> list[TaskResult]:
        """Return the block of a table with ROLES as columns and, if it has labels of people, that
        of the correction."""
        pd, boot, known = (
            need("pandas"),
            dict[str, Any](resamples=self.resamples, seed=self.seed),
            dict[str, Labels](),
        )
        for role in [role for role in ("value", "people") if role in images]:
            texts, column = (
                images[role].where(~images[role].isin(self.unknown), ""),
                f"{where}: {getattr(self, role)}",
            )
            known[role] = labels = Labels.of(texts.replace(self.same))
            if self.values and (strange := sorted({*labels.names} - {*self.values})):
                raise InvalidInputError(
                    f"{column}: got {strange[:8]}; expected values among {list(self.values)}"
                )
            if not self.attribute and (problems := odd_values(labels)):
                warn(f"{column}: {'; also '.join(problems)}", SuspectInputWarning)
        judge, people = (set(known.get(role, known["value"]).names) for role in ("value", "people"))
        strange, never = sorted(people - judge), sorted(judge - people)
        if not self.values and strange and never:
            warn(
                f"{where}: column {self.people!r} has {strange}, which the judge never says, and"
                f" lacks {never}, which it says; if two mean the same, give --same"
                f" {strange[0]}={never[0]}",
                SuspectInputWarning,
            )
        names = self.values or tuple(sorted(judge | people))
        if (k := len(names)) < 2:
            raise InvalidInputError(
                f"{where}: {self.value!r} has the values {list(names)}; expected two or more"
            )
        rows = pd.DataFrame({"method": NONE, "weight": 1.0, **images})
        if self.baseline not in (NONE, *rows.method):
            raise InvalidInputError(
                f"baseline: expected one of {sorted(set(rows.method))}, got {self.baseline!r}"
            )
        for name, other in misspelt(rows.method.value_counts().to_dict()):
            number = int((rows.method == name).sum())
            warn(
                f"{where}: method {name!r} ({number} of {len(rows)} rows) is spelt almost as"
                f" {other!r}; mend it if it is the same, since prompts that lack a method are left"
                " out",
                SuspectInputWarning,
            )
        weight = pd.to_numeric(rows.weight, errors="coerce")
        if (bad := rows.weight[~((weight > 0) & (weight < np.inf))]).size:
            came = f"got {bad.iloc[0]!r} in row {bad.index[0] + 1}"
            raise InvalidInputError(f"{where}: {self.weight}: expected numbers above 0, {came}")
        for role, one in known.items():  # one beyond the names is unknown
            rows[role] = np.array([*map(names.index, one.names), k])[one.codes]
        if (
            corrects := "people" in rows
        ):  # an empty cell was not asked; a text that means unknown was an answer
            rows["people"] = rows.people.where(images.people != "", NOT_LABELLED)
        rows["method"] = rows.method.replace({self.baseline: NONE, "": "not said"})
        rows["weight"], rows["counts"] = weight, 1.0 if corrects else weight
        methods = sorted(rows.method.unique(), key=lambda name: name != NONE)
        shown = rows.groupby("prompt", sort=False).method.nunique()
        prompts = shown.index[shown == len(methods)]
        if prompts.empty:
            raise InvalidInputError(
                f"{where}: no prompt has images of every method, {sorted(methods)}"
            )
        rows["number"] = prompts.get_indexer(rows.prompt)
        rows, counts = rows[rows.number >= 0], dict[str, Floats]()
        for method in (
            methods
        ):  # with unequal weights the counts of a prompt add up to its effective sample size
            own, total = rows[rows.method == method], np.zeros((len(prompts), k + 1))
            np.add.at(total, (own.number, own.value), own.counts)
            counts[method] = (
                total * (total.sum(1) / np.bincount(own.number, own.counts**2))[:, None]
            )
        left = {
            "values": list(names),
            "prompts of some methods alone, left out": len(shown) - len(prompts),
        }
        n = {"prompts": len(prompts), "images": len(rows)}
        result = empty(
            task=self.name, title=self.title, description=ABOUT, n=n, settings=self.settings(left)
        )
        add_shares(result, names, counts, prompts.tolist(), **boot)
        return [
            result,
            *(_corrected_block(result, names, rows, counts, **boot) if corrects else []),
        ]

    def _labelled(
        self, drawn: GeneratedImages, files: Sequence[Path], progress: Progress
    ) -> list[TaskResult]:
        """Measure majority labels of images whose prompts state no value, and correct the last
        judge by them."""
        pd, own = (
            need("pandas"),
            self.model_copy(update={"unknown": (NO_VALUE, CANNOT_TELL, NO_PERSON, NO_MAJORITY)}),
        )
        answers = pd.DataFrame(
            [dict(one) for one in read_answers(files) if one.attribute == self.attribute]
        )
        if answers.empty:
            progress.say(f"{self.name}: nobody labelled {self.attribute}, so it is left out")
            return []
        answers["code"] = Labels.of(answers.value, (*self.values, CANNOT_TELL, NO_PERSON)).codes
        said = answers.assign(weight=answers.weight.astype(float).fillna(1.0)).groupby("image")
        majority = said.value.agg(
            lambda values: NO_MAJORITY if len(most := values.mode()) > 1 else most[0]
        )
        images = pd.DataFrame(drawn.images).rename(columns={"variant": "method"})
        judge = last_judgements(drawn, self.attribute, self.values)
        images["value"] = "" if judge is None else judge[1]
        images["prompt"] = images.concept.where(
            images.part.isin(["train", "unseen"]), images.prompt
        )
        images["people"] = images.path.map(majority).fillna("")
        images["weight"] = images.path.map(said.weight.last()).fillna(1.0)
        images = images[images.stated.isna()]
        if (told := images[images.people != ""]).empty:
            raise InvalidInputError(
                f"labels: none of {len(images)} generated images is labelled; the labels name"
                f" {answers.image[0]}, the folder has {images.path.iloc[0]}. Give paths relative to"
                " the folder"
            )
        empty = partial(drawn.result, split="generated, labelled by people")
        (result,) = own._blocks(
            told.assign(value=told.people).drop(columns="people"), "labels", empty
        )
        votes = answers.pivot(index="annotator", columns="image", values="code").reindex(
            columns=images.path
        )
        result.provenance.settings |= {"annotators": list(votes.index), "judge": judge and judge[0]}
        with suppress(InvalidInputError):  # one annotator, or one value
            agreed = agreement(votes, resamples=self.resamples, seed=self.seed)
            n = {
                "images with two answers": agreed.units,
                "annotators": len(votes),
                "answers": agreed.answers,
            }
            for metric, one in (("alpha", agreed.alpha), ("percent_agreement", agreed.percent)):
                result.add(metric, "all images", one.value, (one.low, one.high), n=n)
        part = images[
            images.part.isin(told.part)
        ]  # labels of another part, such as unseen concepts, say nothing of it
        return [result, *(own._blocks(part, "labels", empty)[1:] if judge is not None else [])]
