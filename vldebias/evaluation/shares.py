"""Measure shares of values among images and their distance from even, whatever the source of the labels.

Labels of a judge, majority labels of people and labels of a table are all one column of values. It is counted per
prompt, and `add_shares` makes rows of the counts; people's labels of some images correct those of a judge.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from vldebias.data import Labels, odd_values
from vldebias.data.tables import as_labels, as_texts, column_of, read_table
from vldebias.errors import InvalidInputError, SuspectInputWarning, need, warn
from vldebias.evaluation.answers import CANNOT_TELL, NO_MAJORITY, NO_PERSON, NOT_ANSWERED, Votes, read_answers
from vldebias.evaluation.drawing import DrawnSet
from vldebias.evaluation.judges import NO_VALUE, SURE, Kept
from vldebias.evaluation.result import CHANCE, NONE, TaskProvenance, TaskResult
from vldebias.evaluation.session import Session
from vldebias.evaluation.task import Name, Task, register_task
from vldebias.files import digest
from vldebias.metrics.bootstrap import Interval, percentile_interval, wilson_interval
from vldebias.metrics.metric import computed
from vldebias.metrics.shares import (
    LEAST,
    agreement,
    corrected_shares,
    corrected_squares,
    discrepancies,
    independent,
    log_skew,
    rated,
    shares_radius,
    squared_discrepancies,
)

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


def counted(prompts: Codes, codes: Codes, weights: Floats, n_prompts: int, values: int) -> Floats:
    """Return the number of images of each prompt with each value, (p, values + 1), unknown last.

    With unequal weights the counts of a prompt add up to its effective sample size.
    """
    total, squares = np.zeros((n_prompts, values + 1)), np.zeros(n_prompts)
    np.add.at(total, (prompts, codes), weights)
    np.add.at(squares, prompts, weights**2)
    return total * (total.sum(1) / squares)[:, None]


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
    own = {method: discrepancies(of) for method, of in known.items()}
    if subset or len(prompts) > 1:
        first = next(iter(counts.values()))
        about: dict[str, Any] = {"subset": subset, **boot}
        each = {"images each": round(float(first[0].sum()))}
        every = {"images": round(sum(float(one.sum()) for one in counts.values()))}
        about["n"] = {noun: len(prompts)} | (each if subset else every)
        images = first[:, :-1].sum(1).round().astype(np.int64)
        for metric, of in computed("shares"):
            result.add_resampled(metric, {m: of(one) for m, one in known.items()}, **about)
            if metric.name in BY_CHANCE and images.any():
                result.add(metric, CHANCE, *chance(of, images, values, **boot), n=about["n"], subset=subset)
        shares = {m: one / one.sum(1, keepdims=True) for m, one in counts.items()}
        result.add_resampled("unknown", {m: one[:, -1] for m, one in shares.items()}, **about)
        if recognised is not None:
            result.add_resampled("recognised", recognised, **about)
        if subset:
            worst = about | {
                "subset": f"{subset}, the worst",
                "n": {f"{noun}, the one with the widest gap of": len(prompts)},
            }
            result.add_resampled("discrepancy", own, statistic=lambda drawn: drawn.max(-1), **worst)
            worst["n"] = {f"{noun}, the least recognised of": len(prompts)}
            if recognised is not None:
                result.add_resampled("recognised", recognised, statistic=lambda drawn: drawn.min(-1), **worst)
        for code, value in enumerate(() if subset else names):
            mean = {m: one[:, code] for m, one in shares.items()}
            result.add_resampled("share", mean, **about | {"subset": f"mean over prompts: {value}"})
    radius = {m: shares_radius(one, **boot) for m, one in known.items()}
    most = float(np.sqrt(1 - 1 / values))
    for i, prompt in enumerate(prompts):
        for method, each_of in counts.items():
            gap, by, n = float(own[method][i]), float(radius[method][i]), {"images": round(float(each_of[i].sum()))}
            moved, around = (gap - own[NONE][i], by + radius[NONE][i]) if NONE in own else (0.0, 0.0)
            change = (moved, max(-most, moved - around), min(most, moved + around)) if NONE in own else None
            ends = (max(0.0, gap - by), min(most, gap + by))
            where = prompt if subset or len(prompts) > 1 else ""
            result.add("discrepancy", method, gap, ends, n=n, change=change, subset=where)
            for code, name in enumerate(() if " x " in result.provenance.task else names[: 1 if values == 2 else None]):
                share, size = float(each_of[i, code] / each_of[i].sum()), max(1, n["images"])
                low, high = wilson_interval(min(size, round(float(each_of[i, code]))), size)
                ends = (min(share, low), max(share, high))
                result.add("share", method, share, ends, n=n, subset=f"{prompt}: {name}")


def chance(
    of: Callable[[Floats], Floats], images: Codes, values: int, *, resamples: int, seed: int
) -> tuple[float, tuple[float, float]]:
    """Return the mean and middle 95 % of a measure under even shares, for these numbers of images per prompt (p,).

    of: from counts (..., values). Prompts without an image are left out.
    """
    rng, even = np.random.default_rng(seed), np.full(values, 1 / values)
    drawn = np.mean([of(rng.multinomial(int(n), even, resamples).astype(float)) for n in images[images > 0]], axis=0)
    return float(drawn.mean()), percentile_interval(drawn)


# ---- a judge, corrected by people ----------------------------------------------------------------------------


def as_judged(judged: Codes, values: int) -> list[Interval]:
    """Return shares, discrepancy and MaxSkew of codes (n,), taken as correct; a code beyond the values is unknown."""
    counts, n = np.bincount(judged, minlength=values + 1), len(judged)
    known = counts[None, :values]
    gap, reach = float(discrepancies(known)[0]), float(shares_radius(known)[0])
    found = [(counts[code] / n, *wilson_interval(int(counts[code]), n)) for code in range(values)]
    found.append((gap, max(0, gap - reach), min((1 - 1 / values) ** 0.5, gap + reach)))
    found.append(log_skew(float(known.max() / max(known.sum(), 1)), reach, values))
    return [Interval(*one, 0.95, n, 0) for one in found]


def corrected_block(
    raw: TaskResult, names: Sequence[str], images: Mapping[str, tuple[Codes, Codes, Floats, Floats]], **boot: Any
) -> list[TaskResult]:
    """Return the block of a judge's figures, corrected by people's labels, and by how much they differ.

    Labels of different methods are of different images, so the change of a corrected figure is that of independent
    estimates. Methods with fewer than 10 labels are left out with a warning; there is no block without another.

    images: method -> of n images the prompts (n,) 0 .. p - 1, codes of the judge (n,), one beyond the values for
        unknown, answers of people (n, c), the values first, zeros where nobody was asked, and weights (n,), one over
        the probability of being asked.
    """
    labels, k = {method: int((people.sum(1) > 0).sum()) for method, (_, _, people, _) in images.items()}, len(names)
    left = {method: n for method, n in labels.items() if n < LEAST}
    if any(left.values()):
        listed = ", ".join(f"{method} ({n})" for method, n in left.items())
        what = f"labels: fewer than {LEAST} images are labelled of {listed}, which are not corrected; label more"
        warn(what, SuspectInputWarning)
    if len(left) == len(images):
        return []
    found, squares, more = dict[str, tuple[list[Interval], ...]](), dict[str, Floats](), dict[str, Any]()
    for method in (one for one in images if one not in left):
        prompts, judged, people, weights = images[method]
        one = corrected_shares(judged, people, people.shape[1], weights=weights)
        found[method] = as_judged(judged, k), [*map(one.interval, range(k)), one.discrepancy(k), one.max_skew(k)]
        by_judge = squared_discrepancies(counted(prompts, judged, np.ones(len(judged)), prompts.max() + 1, k)[:, :k])
        mended = corrected_squares(prompts, judged, people, people.shape[1], k, weights=weights)
        squares[method], more[method] = np.stack([by_judge, mended], axis=1), one.more_labels()
    whole = np.all([np.isfinite(one).all(1) for one in squares.values()], axis=0)
    settings = {
        "labelled images": {method: labels[method] for method in found},
        "methods with fewer than 10 labels, left out": sorted(left),
        "prompts without two labels under every method, left out of the squared gap": int((~whole).sum()),
        "more labels, chosen likewise, that halve the interval": {
            method: "more than there are images" if n is None else n for method, n in more.items()
        },
    }
    fields = {
        "task": f"{raw.provenance.task} corrected",
        "title": "Corrected by people",
        "description": ABOUT_CORRECTED,
    }
    about = raw.provenance.model_copy(update={**fields, "settings": {**raw.provenance.settings, **settings}})
    result = TaskResult(about, details=raw.details)
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
            raise InvalidInputError(f"expected labels and the folder of drawn images; this suite needs {session.needs}")
        return {"labels": labels, "folder": folder, "plan": folder / "plan.json", "progress": session.progress}

    def measured(self, inputs: Mapping[str, Any]) -> list[TaskResult]:
        """Measure the table, or people's answers about generated images; without answers there is no block."""
        if "labels" not in inputs:
            return super().measured(inputs)
        results = self.labelled(DrawnSet.open(inputs["folder"]), inputs["labels"])
        if not results:
            inputs["progress"].say(f"{self.name}: nobody labelled {self.attribute}, so it is left out")
        return results

    def measure(
        self, table: Path | str | Mapping[str, Sequence[Any]], *, drawn: DrawnSet | None = None
    ) -> list[TaskResult]:
        """Measure a file, or columns by name such as those of a data frame; drawn: the folder of the images.

        Raises:
            InvalidInputError: a column that is not there, a row without a prompt, a weight that is not above 0, fewer
                than two values, no prompt that every method has.
        """
        where = str(table) if isinstance(table, (str, Path)) else "table"
        data = {}
        if isinstance(table, (str, Path)):
            columns, data = read_table(Path(table)), {Path(table).name: digest(table)}
        else:
            columns = need("pyarrow").table({name: list(column) for name, column in dict(table).items()})
        if not columns.num_rows:
            raise InvalidInputError(f"{where}: expected a row for each image, got none")

        def texts_of(name: str) -> list[str]:
            return as_texts(column_of(columns, name, where), f"{where}: {name}")

        texts = texts_of(self.prompt)
        if blank := [i for i, text in enumerate(texts) if not text.strip()]:
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
        methods = np.array(self._methods(None if self.method is None else texts_of(self.method), len(texts)))
        weights = np.ones(len(texts)) if self.weight is None else _numbers(texts_of(self.weight), where, self.weight)
        order = sorted(dict.fromkeys(methods.tolist()), key=lambda name: name != NONE)
        pd = need("pandas")
        every = pd.Series(methods).groupby(texts, sort=False).nunique()
        prompts = every.index[every == len(order)].tolist()
        if not prompts:
            raise InvalidInputError(f"{where}: no prompt is there under every method, {sorted(order)}")
        at = pd.Index(prompts).get_indexer(texts)
        rows = {method: (methods == method) & (at >= 0) for method in order}
        boot: dict[str, Any] = {"resamples": self.resamples, "seed": self.seed}
        result = self._result(
            drawn,
            order,
            prompts,
            data=data,
            n={"prompts": len(prompts), "images": int((at >= 0).sum())},
            settings={
                "columns": {key: getattr(self, key) for key in ("prompt", "value", "method", "weight", "people")},
                "values": list(names),
                "counts as unknown": ["", *self.unknown],
                "prompts left out (not there under every method)": len(every) - len(prompts),
                "resampled": "prompts with all their images" if len(prompts) > 1 else "images of the one prompt",
                **boot,
            },
        )
        k, said = len(names), codes[self.value]
        worth = weights if self.people is None else np.ones(len(texts))
        of = {m: counted(at[own], said[own], worth[own], len(prompts), k) for m, own in rows.items()}
        add_shares(result, names, of, prompts, **boot)
        if self.people is None:
            return [result]
        _doubt_names(read[self.value].names, read[self.people].names, f"{where}: {self.people}")
        # An empty cell was not asked; a text that means unknown was an answer.
        asked = np.array([bool(text.strip()) for text in texts_of(self.people)])
        people = rated(np.where(asked, codes[self.people], -1), k + 1)
        images = {m: (at[own], said[own], people[own], weights[own]) for m, own in rows.items()}
        mended = corrected_block(result, names, images, **boot)
        if not mended and drawn is None:
            raise InvalidInputError(f"{self.people}: expected what people say of {LEAST} images or more of a method")
        return [result, *mended]

    def _labels(self, column: Any, where: str, *, warns: bool) -> Labels:
        """Labels of a column, with what means the same under one name."""
        if self.values:
            known = {**{value: value for value in self.values}, **self.same}
        else:
            there = {text.strip() for text in as_texts(column, where)} - {"", *self.unknown}
            known = dict(sorted(((text, self.same.get(text, text)) for text in there), key=lambda pair: pair[::-1]))
        labels = as_labels(column, known, where, self.unknown)
        if warns and (problems := odd_values(labels, flags=True)):
            warn(f"{where}: {'; also '.join(problems)}", SuspectInputWarning)
        return labels

    def _methods(self, texts: Sequence[str] | None, rows: int) -> list[str]:
        """The method of each row; the baseline is "none"."""
        if texts is None:
            return [NONE] * rows
        methods = [text.strip() for text in texts]
        if self.baseline != NONE and self.baseline not in methods:
            raise InvalidInputError(f"baseline: expected one of {sorted(set(methods))}, got {self.baseline!r}")
        return [NONE if one in (self.baseline, NONE) else one or "not said" for one in methods]

    def _result(self, drawn: DrawnSet | None, methods: Sequence[str], prompts: Sequence[str], **of: Any) -> TaskResult:
        """An empty block about drawn images, or about those of a table, whose model nobody said."""
        about = {"task": self.name, "title": self.title, "description": ABOUT, **of}
        if drawn is not None:
            return drawn.result(split="generated, labelled by people", **about)
        hashed = hashlib.sha256("\0".join(prompts).encode()).hexdigest()
        about |= {"model": "not said", "fingerprint": None, "prompts_hash": hashed, "split": "table", "seeds": []}
        about |= {"prompts": f"the {len(prompts)} prompts of the images", "methods": {method: {} for method in methods}}
        return TaskResult(TaskProvenance(**about), details={method: {} for method in methods})

    # ---- people ----------------------------------------------------------------------------------------------

    def labelled(self, drawn: DrawnSet, files: Sequence[Path]) -> list[TaskResult]:
        """Measure majority labels of images whose prompts state no value, and correct the last judge by them.

        A part of the plan without labels, such as the concepts that a projection was fitted on, is not corrected: the
        labels of another part do not apply to it.
        """
        images = [image for image in drawn if image.stated is None]
        answers = [one for one in read_answers(files) if one.attribute == self.attribute]
        if not answers:
            return []
        votes = Votes.of(answers, self.values, [image.path for image in images])
        said = votes.majority
        if not any(said):
            raise InvalidInputError(
                f"labels: none of {len(images)} generated images was labelled; they are about {answers[0].image}, the "
                f"images are {images[0].path}: paths are below the folder of images"
            )
        judge = next(iter(Kept.all(drawn, self.attribute, self.values)[::-1]), None)
        seen = {} if judge is None else dict(zip(drawn, judge.said(self.attribute, self.values, SURE)[0], strict=True))
        table = {
            "prompt": [one.concept if one.part in ("train", "unseen") else one.prompt for one in images],
            "method": [one.variant for one in images],
            "people": said,
            "judge": [seen.get(one, "").removeprefix(NO_VALUE) for one in images],
            "weight": votes.weights.tolist(),
        }
        own = {"method": "method", "weight": "weight", "unknown": (CANNOT_TELL, NO_PERSON, NO_MAJORITY)}
        alone = self.model_copy(update={**own, "value": "people"})
        (result,) = alone.measure(_some(table, list(map(bool, said))), drawn=drawn)
        about = {"attribute": self.attribute, "annotators": votes.annotators}
        result.provenance.settings |= about | {"agreement": self._add_agreement(result, votes.codes)}
        if judge is None:
            return [result]
        result.provenance.settings["judge"] = judge.name
        parts = {image.part for image, one in zip(images, said, strict=True) if one}
        both = self.model_copy(update={**own, "value": "judge", "people": "people"})
        asked = _some(table, [image.part in parts for image in images])
        return [result, *both.measure(asked, drawn=drawn)[1:]]

    def _add_agreement(self, result: TaskResult, codes: Codes) -> str:
        """Add alpha and percent agreement of all images; return what they are of, or why there are none."""
        try:
            agreed = agreement(codes, missing=NOT_ANSWERED, resamples=self.resamples, seed=self.seed)
        except InvalidInputError as error:
            return f"not measured: {error}"
        n = {"images with two answers": agreed.alpha.n, "annotators": len(codes), "answers": agreed.answers}
        for metric, one in (("alpha", agreed.alpha), ("percent_agreement", agreed.percent)):
            result.add(metric, EVERYTHING, one.value, (one.low, one.high), n=n)
        return "nominal; 'cannot tell' and 'no person' are answers too; resampled over images"


def _some(table: Mapping[str, Sequence[Any]], rows: Sequence[bool]) -> dict[str, list[Any]]:
    return {name: [one for one, here in zip(column, rows, strict=True) if here] for name, column in table.items()}


def _doubt_names(judge: Sequence[str], people: Sequence[str], where: str) -> None:
    """Warn where each has values that the other never says: they may mean the same."""
    strange, other = ([name for name in one if name not in two] for one, two in ((people, judge), (judge, people)))
    if strange and other:
        warn(
            f"{where}: has {strange}, which the judge never says, and never {other}, which it says; where they mean "
            f"the same say --same {strange[0]}={other[0]}",
            SuspectInputWarning,
        )


def _numbers(texts: Sequence[str], where: str, column: str) -> Floats:
    try:
        numbers = np.array([float(text or "nan") for text in texts])
    except ValueError as error:
        raise InvalidInputError(f"{where}: {column}: expected a number in every row; {error}") from None
    bad = np.flatnonzero(~np.isfinite(numbers) | (numbers <= 0))
    if len(bad):
        raise InvalidInputError(
            f"{where}: {column}: expected numbers above 0, got {texts[bad[0]]!r} in row {bad[0] + 1}"
        )
    return numbers
