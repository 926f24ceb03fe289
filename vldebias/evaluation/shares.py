"""Measure shares of values among images and their distance from even, whatever the source of the labels.

Labels of a judge, majority labels of people and labels of a table are all one column of values. It is counted per
prompt, and `add_shares` makes rows of the counts; people's labels of some images correct those of a judge.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from vldebias.data import Labels, odd_values
from vldebias.data.tables import as_labels, as_texts, column_of, read_table
from vldebias.errors import InvalidInputError, SuspectInputWarning, need, warn
from vldebias.evaluation.answers import CANNOT_TELL, NO_MAJORITY, NO_PERSON, NOT_ANSWERED, Votes, read_answers
from vldebias.evaluation.judges import NO_VALUE, SURE, Judgements
from vldebias.evaluation.plan import GeneratedImages
from vldebias.evaluation.result import CHANCE, NONE, TaskProvenance, TaskResult
from vldebias.evaluation.session import Session
from vldebias.evaluation.task import Name, Task, register_task
from vldebias.files import digest
from vldebias.metrics.bootstrap import Interval, wilson_interval
from vldebias.metrics.classification import agreement
from vldebias.metrics.metric import computed
from vldebias.metrics.shares import (
    LEAST,
    NOT_LABELLED,
    as_judged,
    corrected_shares,
    corrected_squares,
    counted,
    discrepancies,
    even_shares,
    independent,
    shares_radius,
    squared_discrepancies,
)
from vldebias.progress import SILENT, Progress

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]
BY_CHANCE = ("discrepancy", "discrepancy_squared")  # measures beside which stands what even shares give
EVERYTHING = "all images"
ABOUT = (
    "Images, and what each shows, as a table or people say. Discrepancy is the distance of the shares of a prompt from "
    "uniform (eq. 7.2), averaged over prompts and resampled over prompts with all their images; few images per prompt "
    "bias it upwards, discrepancy_squared is corrected for that. Images without a value count as unknown."
)
ABOUT_CORRECTED = (
    "A judge answered about every image and people about some. Corrected figures are right whatever the judge does, if "
    "the labelled images were chosen at random (prediction-powered inference); the judge decides how wide they are. "
    "Shares are those of all images, unknown ones included. Parity gap and MaxSkew are of all images together, among "
    "those whose value can be told; the squared parity gap is the mean over prompts with two or more labels under "
    "every method. What the judge moves is its figure less the corrected one."
)


# ---- rows of counts ------------------------------------------------------------------------------------------


def add_shares(
    result: TaskResult, names: Sequence[str], counts: Mapping[str, NDArray[Any]], prompts: Sequence[str], *,
    subset: str = "", noun: str = "prompts", recognised: Mapping[str, Floats] | None = None,
    resamples: int = 2000, seed: int = 0,
) -> None:  # fmt: skip
    """Add the means over prompts of every metric of shares, then each prompt by itself.

    Means are resampled over prompts, each with all its images: the noise of few images is part of the spread between
    prompts, and resampling images as well would count it twice. The interval of one prompt is over its images, see
    `shares_radius`. Shares are of all images of a prompt, with Wilson's interval: of two values the first alone; of
    intersections none, they are many and thin.

    Args:
        names: the values. counts: method -> (p, values + 1), unknown last; the same prompts for all methods.
        prompts: what the rows of each are called. subset: what all of them are called: "" for the whole, which has the
            mean shares too, else a part, "unseen professions", of which the worst prompt is a row.
        recognised: method -> (p,) share of the images that show their concept.
    """
    values, boot = len(names), dict[str, Any](resamples=resamples, seed=seed)
    known = {method: of[:, :-1] for method, of in counts.items()}
    shares = {method: of / of.sum(1, keepdims=True) for method, of in counts.items()}
    gaps = {method: discrepancies(of) for method, of in known.items()}
    if subset or len(prompts) > 1:
        first = next(iter(counts.values()))
        every = first[:1] if subset else np.concatenate([*counts.values()])
        n = {noun: len(prompts), "images each" if subset else "images": round(float(every.sum()))}
        about: dict[str, Any] = {"n": n, "subset": subset, **boot}
        images = first[:, :-1].sum(1).round().astype(np.int64)
        for metric, of in computed("shares"):
            result.add_resampled(metric, {m: of(one) for m, one in known.items()}, **about)
            if metric.name in BY_CHANCE and images.any():
                result.add(metric, CHANCE, *even_shares(of, images, values, **boot), n=n, subset=subset)
        result.add_resampled("unknown", {m: one[:, -1] for m, one in shares.items()}, **about)
        if recognised is not None:
            result.add_resampled("recognised", recognised, **about)
        for name, each, pick, which in (
            ("discrepancy", gaps, np.max, "the one with the widest gap of"),
            ("recognised", recognised, np.min, "the least recognised of"),
        ):
            if subset and each is not None:
                worst: dict[str, Any] = {"statistic": partial(pick, axis=-1), "n": {f"{noun}, {which}": len(prompts)}}
                result.add_resampled(name, each, subset=f"{subset}, the worst", **worst, **boot)
        for code, value in enumerate(() if subset else names):
            about["subset"] = f"mean over prompts: {value}"
            result.add_resampled("share", {m: one[:, code] for m, one in shares.items()}, **about)
    radius, most = {m: shares_radius(one, **boot) for m, one in known.items()}, float(np.sqrt(1 - 1 / values))
    listed = () if " x " in result.provenance.task else names[: 1 if values == 2 else None]
    for i, prompt in enumerate(prompts):
        for method, of_prompts in counts.items():
            gap, by, n = float(gaps[method][i]), float(radius[method][i]), {"images": round(float(of_prompts[i].sum()))}
            change = None
            if NONE in gaps:
                moved, around = gap - gaps[NONE][i], by + radius[NONE][i]
                change = (moved, max(-most, moved - around), min(most, moved + around))
            where, ends = prompt if subset or len(prompts) > 1 else "", (max(0.0, gap - by), min(most, gap + by))
            result.add("discrepancy", method, gap, ends, n=n, change=change, subset=where)
            for code, name in enumerate(listed):
                share, size = float(shares[method][i, code]), max(1, n["images"])
                low, high = wilson_interval(min(size, round(float(of_prompts[i, code]))), size)
                ends = (min(share, low), max(share, high))
                result.add("share", method, share, ends, n=n, subset=f"{prompt}: {name}")


# ---- a judge, corrected by people ----------------------------------------------------------------------------


def _corrected_block(
    raw: TaskResult, names: Sequence[str], images: Mapping[str, tuple[Codes, Codes, Codes, Floats]], **boot: Any
) -> list[TaskResult]:
    """Return the block of a judge's figures, corrected by people's labels, and by how much they differ.

    Labels of different methods are of different images, so the change of a corrected figure is that of independent
    estimates. Methods with fewer than 10 labels are left out with a warning; there is no block without another.

    images: method -> of n images the prompts (n,) 0 .. p - 1, codes of the judge (n,), one beyond the values for
        unknown, codes of people (n,) or NOT_LABELLED, and weights (n,), one over the probability of being asked.
    """
    labels, k = {method: int((of[2] != NOT_LABELLED).sum()) for method, of in images.items()}, len(names)
    left = {method: n for method, n in labels.items() if n < LEAST}
    if any(left.values()):
        listed = ", ".join(f"{method} ({n})" for method, n in left.items())
        few = f"labels: fewer than {LEAST} images are labelled of {listed}; these methods are not corrected, label more"
        warn(few, SuspectInputWarning)
    if len(left) == len(images):
        return []
    found, squares, more = dict[str, tuple[list[Interval], ...]](), dict[str, Floats](), dict[str, Any]()
    for method in (one for one in images if one not in left):
        prompts, judged, people, weights = images[method]
        one = corrected_shares(judged, people, k + 1, weights=weights)
        found[method] = as_judged(judged, k), [*map(one.interval, range(k)), one.discrepancy(k), one.max_skew(k)]
        by_judge = squared_discrepancies(counted(prompts, judged, np.ones(len(judged)), prompts.max() + 1, k)[:, :k])
        mended = corrected_squares(prompts, judged, people, k + 1, k, weights=weights)
        squares[method] = np.stack([by_judge, mended], axis=1)
        more[method] = one.more_labels() or "more than there are images"
    whole = np.all([np.isfinite(one).all(1) for one in squares.values()], axis=0)
    settings = {
        "labelled images": {method: labels[method] for method in found},
        "methods with fewer than 10 labels, left out": sorted(left),
        "prompts without two labels under every method, left out of the squared gap": int((~whole).sum()),
        "more labels, sampled alike, that halve the interval": more,
    }
    fields = {
        "task": f"{raw.provenance.task} corrected",
        "title": "Corrected by people",
        "description": ABOUT_CORRECTED,
        "settings": {**raw.provenance.settings, **settings},
    }
    result = TaskResult(raw.provenance.model_copy(update=fields), details=raw.details)
    for i, (metric, where) in enumerate([*(("share", name) for name in names), ("discrepancy", ""), ("max_skew", "")]):
        for method, both in found.items():
            n = {"images": len(images[method][0]), "labels": labels[method]}
            for which, name in enumerate((metric, f"corrected_{metric}")):
                here = both[which][i]
                change = independent(here, found[NONE][which][i]) if NONE in found else None
                result.add(name, method, here.value, (here.low, here.high), n=n, change=change, subset=where)
            judge, own = both[0][i], both[1][i]
            ends = (judge.value - own.high, judge.value - own.low)
            result.add(f"judge_moves_{metric}", method, judge.value - own.value, ends, n=n, subset=where)
    if whole.sum() > 1:
        n = {"prompts": int(whole.sum()), "labels": sum(labels[method] for method in found)}
        for prefix, of in (("", [1, 0]), ("corrected_", [0, 1]), ("judge_moves_", [1, -1])):
            each = {method: one[whole] @ np.array(of, dtype=float) for method, one in squares.items()}
            result.add_resampled(f"{prefix}discrepancy_squared", each, n=n, **boot)
    return [result]


# ---- a table -------------------------------------------------------------------------------------------------


@register_task
class SharesTask(Task):
    """Measure shares and discrepancy from a table with a row per image, or from answers about generated images.

    table: .csv, .tsv, .parquet or .jsonl. Without one the answers come with --labels and the images with --drawn: what
        most annotators say is the value, `alpha` and `percent_agreement` say how far they agree, and the figures of the
        judge that read the images are corrected by them.
    prompt, value, method, weight, people: names of the table's columns; the last three may be left out. weight: what an
        image counts, above 0. people: what people say where they were asked, empty elsewhere: `value` is then
        corrected by it (`vldebias.metrics.corrected_shares`), and the weights are those of the sample, one over the
        probability of being asked.
    attribute: what people labelled. values: which there are; by default those that occur.
    same: text of the table -> the value that it means.
    unknown: texts that mean that it cannot be told.
    baseline: the method from which the changes of the others are; "none" by default, where there is one.
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

    def inputs(self, session: Session) -> dict[str, Any]:
        """Return the table, or people's answers and the folder of the generated images that they are about."""
        if self.table is not None:
            return {"table": self.table}
        labels, folder = session.options.labels, session.options.drawn
        if not labels or folder is None:
            raise InvalidInputError(
                f"expected labels and the folder of generated images; this suite needs {session.needs}"
            )
        return {"labels": labels, "folder": folder, "plan": folder / "plan.json", "progress": session.progress}

    def measure(
        self,
        table: Path | str | Mapping[str, Sequence[Any]] | None = None,
        *,
        labels: Sequence[Path] = (),
        folder: Path | None = None,
        drawn: GeneratedImages | None = None,
        progress: Progress = SILENT,
    ) -> list[TaskResult]:
        """Measure a table, or people's labels of the generated images in a folder; without labels there is no block.

        table: a file, or columns by name such as those of a data frame. drawn: the images of the table.
        """
        if table is None:
            results = self.labelled(GeneratedImages.open(folder or ""), labels)
            if not results:
                progress.say(f"{self.name}: nobody labelled {self.attribute}, so it is left out")
            return results
        pd, where, data = need("pandas"), "table", {}
        if isinstance(table, (str, Path)):
            where, data = str(table), {Path(table).name: digest(table)}
            columns = read_table(Path(table))
        else:
            columns = need("pyarrow").table({name: list(column) for name, column in dict(table).items()})
        if not columns.num_rows:
            raise InvalidInputError(f"{where}: expected a row for each image, got none")

        def texts_of(name: str) -> Any:
            return pd.Series(as_texts(column_of(columns, name, where), f"{where}: {name}")).str.strip()

        texts = pd.Series(as_texts(column_of(columns, self.prompt, where), f"{where}: {self.prompt}"))
        if (blank := np.flatnonzero(texts.str.strip() == "")).size:
            raise InvalidInputError(f"{where}: {len(blank)} rows have no {self.prompt!r}, such as row {blank[0] + 1}")
        read = {
            name: self._labels(column_of(columns, name, where), f"{where}: {name}", warns=drawn is None)
            for name in (self.value, self.people)
            if name is not None
        }
        names = self.values or tuple(sorted({name for labels in read.values() for name in labels.names}))
        if len(names) < 2:
            raise InvalidInputError(
                f"{where}: {self.value!r} has the values {list(names)}; expected two or more: say values= where some "
                "do not occur"
            )
        codes = {  # one beyond the names is unknown
            name: np.array([*map(names.index, labels.names), len(names)])[labels.codes] for name, labels in read.items()
        }
        methods = pd.Series([NONE] * len(texts)) if self.method is None else texts_of(self.method)
        if self.baseline not in (NONE, *methods):
            raise InvalidInputError(f"baseline: expected one of {sorted(set(methods))}, got {self.baseline!r}")
        methods = methods.replace({self.baseline: NONE, "": "not said"})
        weights = np.ones(len(texts))
        if self.weight is not None:
            weights = pd.to_numeric(texts_of(self.weight), errors="coerce").to_numpy(np.float64)
            if (bad := np.flatnonzero(~(np.isfinite(weights) & (weights > 0)))).size:
                came = f"got {texts_of(self.weight)[bad[0]]!r} in row {bad[0] + 1}"
                raise InvalidInputError(f"{where}: {self.weight}: expected numbers above 0, {came}")
        order = sorted(methods.unique(), key=lambda name: name != NONE)
        every = methods.groupby(texts, sort=False).nunique()
        prompts = every.index[every == len(order)]
        if prompts.empty:
            raise InvalidInputError(f"{where}: no prompt has images of every method, {sorted(order)}")
        at = prompts.get_indexer(texts)
        rows = {method: np.flatnonzero((methods == method) & (at >= 0)) for method in order}
        boot: dict[str, Any] = {"resamples": self.resamples, "seed": self.seed}
        fields: dict[str, Any] = {
            "task": self.name,
            "title": self.title,
            "description": ABOUT,
            "data": data,
            "n": {"prompts": len(prompts), "images": int((at >= 0).sum())},
            "settings": {
                "columns": {key: getattr(self, key) for key in ("prompt", "value", "method", "weight", "people")},
                "values": list(names),
                "counts as unknown": ["", *self.unknown],
                "prompts left out (not there under every method)": len(every) - len(prompts),
                "resampled": "prompts with all their images" if len(prompts) > 1 else "images of the one prompt",
                **boot,
            },
        }
        if drawn is not None:
            result = drawn.result(split="generated, labelled by people", **fields)
        else:  # whose model nobody said
            fields |= {"model": "not said", "split": "table", "prompts": f"the {len(prompts)} prompts of the images"}
            fields |= {"prompts_hash": hashlib.sha256("\0".join(prompts).encode()).hexdigest()}
            result = TaskResult(TaskProvenance(**fields, methods={method: {} for method in order}))
        k, said = len(names), codes[self.value]
        worth = weights if self.people is None else np.ones(len(texts))
        of = {m: counted(at[own], said[own], worth[own], len(prompts), k) for m, own in rows.items()}
        add_shares(result, names, of, prompts.tolist(), **boot)
        if self.people is None:
            return [result]
        judge, others = (read[name].names for name in (self.value, self.people))
        strange, never = [one for one in others if one not in judge], [one for one in judge if one not in others]
        if strange and never:
            warn(
                f"{where}: column {self.people!r} has {strange}, which the judge never says, and lacks {never}, which "
                f"it says; if two mean the same, give --same {strange[0]}={never[0]}",
                SuspectInputWarning,
            )
        # An empty cell was not asked; a text that means unknown was an answer.
        people = np.where(texts_of(self.people) != "", codes[self.people], NOT_LABELLED)
        images = {m: (at[own], said[own], people[own], weights[own]) for m, own in rows.items()}
        mended = _corrected_block(result, names, images, **boot)
        if not mended and drawn is None:
            raise InvalidInputError(
                f"{self.people}: expected labels of people for {LEAST} or more images of a method; label more"
            )
        return [result, *mended]

    def _labels(self, column: Any, where: str, *, warns: bool) -> Labels:
        """Return the labels of a column, with what means the same under one name."""
        if self.values:
            known = {**{value: value for value in self.values}, **self.same}
        else:
            there = {text.strip() for text in as_texts(column, where)} - {"", *self.unknown}
            known = dict(sorted(((text, self.same.get(text, text)) for text in there), key=lambda pair: pair[::-1]))
        labels = as_labels(column, known, where, self.unknown)
        if warns and (problems := odd_values(labels)):
            warn(f"{where}: {'; also '.join(problems)}", SuspectInputWarning)
        return labels

    def labelled(self, drawn: GeneratedImages, files: Sequence[Path]) -> list[TaskResult]:
        """Measure majority labels of images whose prompts state no value, and correct the last judge by them.

        A part of the plan without labels, such as the concepts that a projection was fitted on, is not corrected: the
        labels of another part do not apply to it.
        """
        images = [image for image in drawn if image.stated is None]
        answers = [one for one in read_answers(files) if one.attribute == self.attribute]
        if not answers:
            return []
        votes = Votes.of(answers, self.values, [image.path for image in images])
        if not any(votes.majority):
            raise InvalidInputError(
                f"labels: none of {len(images)} generated images is labelled; the labels name {answers[0].image}, the "
                f"folder has {images[0].path}. Give paths relative to the folder"
            )
        judge = Judgements.last(drawn, self.attribute, self.values)
        seen = {} if judge is None else dict(zip(drawn, judge.said(self.attribute, self.values, SURE)[0], strict=True))
        table = need("pandas").DataFrame(
            {
                "prompt": [one.concept if one.part in ("train", "unseen") else one.prompt for one in images],
                "part": [one.part for one in images],
                "method": [one.variant for one in images],
                "people": votes.majority,
                "judge": [seen.get(one, "").removeprefix(NO_VALUE) for one in images],
                "weight": votes.weights,
            }
        )
        own = {"method": "method", "weight": "weight", "unknown": (CANNOT_TELL, NO_PERSON, NO_MAJORITY)}
        told = table[table.people != ""]
        (result,) = self.model_copy(update={**own, "value": "people"}).measure(told, drawn=drawn)
        settings = {"attribute": self.attribute, "annotators": votes.annotators}
        try:
            agreed = agreement(votes.codes, missing=NOT_ANSWERED, resamples=self.resamples, seed=self.seed)
        except InvalidInputError as error:
            settings["agreement"] = f"not measured: {error}"
        else:
            settings["agreement"] = "nominal; 'cannot tell' and 'no person' are answers too; resampled over images"
            n = {"images with two answers": agreed.alpha.n, "annotators": len(votes.codes), "answers": agreed.answers}
            for metric, one in (("alpha", agreed.alpha), ("percent_agreement", agreed.percent)):
                result.add(metric, EVERYTHING, one.value, (one.low, one.high), n=n)
        result.provenance.settings |= settings
        if judge is None:
            return [result]
        result.provenance.settings["judge"] = judge.name
        both = self.model_copy(update={**own, "value": "judge", "people": "people"})
        return [result, *both.measure(table[table.part.isin(told.part)], drawn=drawn)[1:]]
