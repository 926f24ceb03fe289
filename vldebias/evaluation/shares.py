"""Shares and discrepancy of a table that somebody else made: a row per image, with its prompt and what it shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from vldebias.data import UNKNOWN, Labels
from vldebias.data.tables import as_labels, as_texts, column_of, read_table
from vldebias.errors import InvalidInputError, SuspectInputWarning, need, warn
from vldebias.evaluation.confused import confused_block
from vldebias.evaluation.corrected import JudgedImages, corrected_block
from vldebias.evaluation.drawing import drawn_result
from vldebias.evaluation.result import NONE, TaskResult
from vldebias.evaluation.task import Name, Session, Task, register_task
from vldebias.files import digest
from vldebias.metrics.bootstrap import wilson_interval
from vldebias.metrics.corrected import rated
from vldebias.metrics.discrepancy import discrepancies, shares_radius
from vldebias.metrics.metric import computed

Floats = NDArray[np.float64]
NOTHING = {"nan", "none", "null", "n/a", "na", "<na>"}  # as programs write that there is nothing
ABOUT = (
    "Images, and what each shows, as a table gives them. Discrepancy is the distance of the shares of a prompt from "
    "uniform (eq. 7.2), averaged over prompts and resampled over prompts with all their images; few images per prompt "
    "bias it upwards, discrepancy_squared is corrected for that. Images without a value count as unknown."
)


@register_task
class SharesTask(Task):
    """Shares and discrepancy from a table with a row per image: no folder, no plan.

    table: .csv, .tsv, .parquet or .jsonl. prompt, value, method, weight, people: names of its columns; the last three
        may be left out. weight: what an image counts, above 0. people: what people say where they were asked, empty
        elsewhere: `value` is then corrected by it (`vldebias.metrics.corrected`), and the weights are those of the
        sample, one over the probability of being asked.
    values: which there are; by default those that occur.
    same: text of the table -> the value that it means.
    unknown: texts that mean that it cannot be told.
    judge_confusion: a table of how often `value` is wrong: a first column "true", then one for each value, in counts.
        The shares are solved for (`vldebias.metrics.confusion`), in a block of their own.
    baseline: the method from which the changes of the others are; "none" by default, where there is one.
    """

    task: Literal["shares"] = "shares"
    name: Name = "shares"
    title: str = "Shares of a table"
    table: Path
    prompt: str
    value: str
    method: str | None = None
    weight: str | None = None
    people: str | None = None
    judge_confusion: Path | None = None
    values: tuple[str, ...] = ()
    same: dict[str, str] = Field(default_factory=dict)
    unknown: tuple[str, ...] = ("unknown",)
    baseline: str = NONE

    def fingerprints(self, session: Session) -> dict[str, Any]:
        """The file."""
        files = {"table": self.table, "confusion": self.judge_confusion}
        there = {name: path for name, path in files.items() if path is not None}
        for name, path in there.items():
            if not path.is_file():
                raise InvalidInputError(
                    f"{name}: expected a file (.csv, .tsv, .parquet, .jsonl), there is none: {path}"
                )
        return {name: digest(path) for name, path in there.items()}

    def inputs(self, session: Session) -> dict[str, Any]:
        """The file that the task names."""
        return {"table": self.table}

    def measure(self, table: Path | str | Mapping[str, Sequence[Any]]) -> list[TaskResult]:
        """Measure a file, or columns by name such as those of a data frame.

        Raises:
            InvalidInputError: a column that is not there, a row without a prompt, a weight that is not above 0, fewer
                than two values, no prompt that every method has.
        """
        images = _Images.read(self, table)
        prompts = list(images.prompts.names)
        n = {"prompts": len(prompts), "images": len(images.prompts.codes)}
        result = drawn_result(
            None,
            images.methods,
            prompts,
            (),
            task=self.name,
            description=ABOUT,
            split="table",
            data={Path(table).name: digest(Path(table))} if isinstance(table, (str, Path)) else {},
            n=n,
            settings={
                "columns": {key: getattr(self, key) for key in ("prompt", "value", "method", "weight", "people")},
                "values": list(images.names),
                "counts as unknown": ["", *self.unknown],
                "prompts left out (not there under every method)": images.left_out,
                "resampled": "prompts with all their images" if len(prompts) > 1 else "images of the one prompt",
                "resamples": self.resamples,
                "seed": self.seed,
            },
        )
        self._add(result, {method: images.counts(method) for method in images.methods}, prompts)
        results = [result]
        if self.judge_confusion is not None:
            counts = {method: images.counts(method).sum(0)[:-1] for method in images.methods}
            results.append(confused_block(result, images.names, self.judge_confusion, {"": counts}, seed=self.seed))
        if images.people is None:
            return results
        by = {method: images.judged(method) for method in images.methods}
        mended = corrected_block(result, images.names, {"": by}, resamples=self.resamples, seed=self.seed)
        if mended is None:
            raise InvalidInputError(f"{self.people}: expected what people say of some images, got no text in any row")
        return [*results, mended]

    def _add(self, result: TaskResult, counts: Mapping[str, Floats], prompts: Sequence[str]) -> None:
        """Means over prompts, then each prompt; counts (p, values + 1) of each method, of unknown ones last."""
        known = {method: of[:, :-1] for method, of in counts.items()}
        names = result.provenance.settings["values"]
        boot: dict[str, Any] = {"resamples": self.resamples, "seed": self.seed}
        n = {"prompts": len(prompts), "images": result.provenance.n["images"]}
        if len(prompts) > 1:
            for metric, of in computed("shares"):
                result.add_resampled(metric, {m: of(one) for m, one in known.items()}, n=n, **boot)
            shares = {m: one / one.sum(1, keepdims=True) for m, one in counts.items()}
            result.add_resampled("unknown", {m: one[:, -1] for m, one in shares.items()}, n=n, **boot)
            for code, value in enumerate(names):
                each = {m: one[:, code] for m, one in shares.items()}
                result.add_resampled("share", each, n=n, subset=f"mean over prompts: {value}", **boot)
        own = {m: discrepancies(one) for m, one in known.items()}
        radius = {m: shares_radius(one, **boot) for m, one in known.items()}
        most = float(np.sqrt(1 - 1 / len(names)))
        for i, prompt in enumerate(prompts):
            subset = prompt if len(prompts) > 1 else ""
            here, by = ({m: float(of[i]) for m, of in table.items()} for table in (own, radius))
            for method in here:
                total = {"images": round(float(counts[method][i].sum()))}
                one = {m: here[m] for m in dict.fromkeys((NONE, method)) if m in here}
                alone = TaskResult(result.provenance)
                alone.add_within("discrepancy", one, by, most=most, n=total, subset=subset)
                result.rows += [row for row in alone.rows if row.method == method]
                for code, value in enumerate(names[: 1 if len(names) == 2 else None]):
                    hits = counts[method][i, code]
                    size = max(1, total["images"])
                    interval = wilson_interval(min(size, round(float(hits))), size)
                    share = float(hits / counts[method][i].sum())
                    interval = min(share, interval[0]), max(share, interval[1])
                    result.add("share", method, share, interval, n=total, subset=f"{prompt}: {value}")


@dataclass(frozen=True, eq=False)
class _Images:
    """The columns of a table, of prompts that every method has."""

    prompts: Labels
    values: Labels
    of_method: Labels
    weights: Floats
    people: NDArray[np.int64] | None
    left_out: int

    @classmethod
    def read(cls, task: SharesTask, table: Path | str | Mapping[str, Sequence[Any]]) -> _Images:
        where: str | Path = table if isinstance(table, (str, Path)) else "table"
        if isinstance(table, (str, Path)):
            columns = read_table(Path(table))
        else:
            columns = need("pyarrow").table({name: list(column) for name, column in dict(table).items()})

        def column(name: str) -> Any:
            return column_of(columns, name, where)

        if not columns.num_rows:
            raise InvalidInputError(f"{where}: expected a row for each image, got none")
        texts = as_texts(column(task.prompt), f"{where}: {task.prompt}")
        blank = [i for i, text in enumerate(texts) if not text.strip()]
        if blank:
            raise InvalidInputError(f"{where}: {len(blank)} rows have no {task.prompt!r}, such as row {blank[0] + 1}")
        values, people = _labels(task, column(task.value), f"{where}: {task.value}"), None
        if task.people is not None:
            # An empty cell was not asked; a text that means unknown was an answer.
            asked = np.array([bool(text.strip()) for text in as_texts(column(task.people), f"{where}: {task.people}")])
            said = _labels(task, column(task.people), f"{where}: {task.people}")
            _doubt_names(values.names, said.names, f"{where}: {task.people}")
            names = task.values or tuple(sorted({*values.names, *said.names}))
            values, said = _under(values, names), _under(said, names)
            people = np.where(asked, np.where(said.codes == UNKNOWN, len(names), said.codes), -1)
        if len(values.names) < 2:
            raise InvalidInputError(
                f"{where}: {task.value!r} has the values {list(values.names)}; expected two or more: say values= where "
                "some do not occur"
            )
        methods = [NONE] * len(texts)
        if task.method is not None:
            methods = [text.strip() for text in as_texts(column(task.method), f"{where}: {task.method}")]
            if task.baseline != NONE and task.baseline not in methods:
                there = sorted(set(methods))
                raise InvalidInputError(f"baseline: expected one of {there}, got {task.baseline!r}")
            methods = [NONE if one in (task.baseline, NONE) else one or "not said" for one in methods]
        weights = _numbers(column(task.weight), f"{where}: {task.weight}") if task.weight else np.ones(len(texts))
        pairs: dict[str, set[str]] = {}
        for prompt, method in zip(texts, methods, strict=True):
            pairs.setdefault(prompt, set()).add(method)
        every = set(methods)
        shared = [prompt for prompt, there in pairs.items() if there == every]
        if not shared:
            raise InvalidInputError(f"{where}: no prompt is there under every method, {sorted(every)}")
        code = {prompt: i for i, prompt in enumerate(shared)}
        rows = np.array([prompt in code for prompt in texts])
        order = tuple(sorted(every, key=lambda name: (name != NONE, methods.index(name))))
        return cls(
            Labels(np.array([code[prompt] for prompt in texts if prompt in code]), tuple(shared)),
            Labels(values.codes[rows], values.names),
            Labels(np.array([order.index(m) for m, kept in zip(methods, rows, strict=True) if kept]), order),
            weights[rows],
            None if people is None else people[rows],
            len(pairs) - len(shared),
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The values."""
        return self.values.names

    @property
    def methods(self) -> tuple[str, ...]:
        """In the order of the table, "none" first."""
        return self.of_method.names

    def _of(self, method: str) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """The rows of a method, and the codes of all values, one beyond them for unknown."""
        codes = np.where(self.values.codes == UNKNOWN, len(self.names), self.values.codes)
        return self.of_method.codes == self.methods.index(method), codes

    def counts(self, method: str) -> Floats:
        """(p, values + 1): how many images each value has, unknown last; with weights as many as they are worth."""
        rows, codes = self._of(method)
        weights = np.ones(len(rows)) if self.people is not None else self.weights
        total, squares = np.zeros((len(self.prompts.names), len(self.names) + 1)), np.zeros(len(self.prompts.names))
        np.add.at(total, (self.prompts.codes[rows], codes[rows]), weights[rows])
        np.add.at(squares, self.prompts.codes[rows], weights[rows] ** 2)
        return total * (total.sum(1) / squares)[:, None]

    def judged(self, method: str) -> JudgedImages:
        """For the corrected figures."""
        rows, codes = self._of(method)
        assert self.people is not None
        people = rated(self.people[rows], len(self.names) + 1)
        return JudgedImages(self.prompts.codes[rows], codes[rows], people, self.weights[rows])


def _labels(task: SharesTask, column: Any, where: str) -> Labels:
    """Labels of a column, with what means the same under one name."""
    if task.values:
        known = {**{value: value for value in task.values}, **task.same}
    else:
        there = {text.strip() for text in as_texts(column, where)} - {"", *task.unknown}
        known = dict(sorted(((text, task.same.get(text, text)) for text in there), key=lambda pair: pair[::-1]))
    labels = as_labels(column, known, where, task.unknown)
    small = Counter(name.casefold() for name in labels.names)
    twice = sorted((name for name in labels.names if small[name.casefold()] > 1), key=str.casefold)
    nothing = [name for name in labels.names if name.casefold() in NOTHING]
    if nothing:
        warn(
            f"{where}: {nothing} count as values; where they mean none say --unknown {nothing[0]}", SuspectInputWarning
        )
    if twice:
        warn(f"{where}: {twice} differ in capitals alone; say --same {twice[0]}={twice[1]}", SuspectInputWarning)
    return labels


def _doubt_names(judge: Sequence[str], people: Sequence[str], where: str) -> None:
    """Warn where each has values that the other never says: they may mean the same."""
    strange, other = ([name for name in one if name not in two] for one, two in ((people, judge), (judge, people)))
    if strange and other:
        warn(
            f"{where}: has {strange}, which the judge never says, and never {other}, which it says; where they mean "
            f"the same say --same {strange[0]}={other[0]}",
            SuspectInputWarning,
        )


def _under(labels: Labels, names: Sequence[str]) -> Labels:
    """The same labels with codes of other names, which hold their own."""
    place = np.array([*(names.index(name) for name in labels.names), UNKNOWN])
    return Labels(place[labels.codes], tuple(names))


def _numbers(column: Any, where: str) -> Floats:
    texts = as_texts(column, where)
    try:
        numbers = np.array([float(text or "nan") for text in texts])
    except ValueError as error:
        raise InvalidInputError(f"{where}: expected a number in every row; {error}") from None
    bad = np.flatnonzero(~np.isfinite(numbers) | (numbers <= 0))
    if len(bad):
        raise InvalidInputError(f"{where}: expected numbers above 0, got {texts[bad[0]]!r} in row {bad[0] + 1}")
    return numbers
