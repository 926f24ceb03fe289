"""What a prompt will draw before it is drawn: each prompt's share from its text alone, with an interval.

The lean of a text is its cosine with the direction between the attribute's values. A line from leans to shares is
fitted on prompts whose images somebody has judged (`vldebias.evaluation.share_tables`), in the space of whatever text
encoder is at hand, and read at the prompts in question. `vldebias.audit` asks it in Python, `vldebias audit` of a file.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import InstanceOf, PlainSerializer

from vldebias.errors import InvalidInputError, VldebiasError
from vldebias.evaluation.audit_views import plot_line, plot_prompts
from vldebias.evaluation.images import Methods, names_of
from vldebias.evaluation.predicted_shares import Asked, Calibrated, Leans
from vldebias.evaluation.result import NONE, Result, TaskProvenance, TaskResult
from vldebias.evaluation.share_lines import LEVEL
from vldebias.evaluation.share_tables import ShareTable, form_of, is_concept, subject
from vldebias.evaluation.task import Prompts, Session, Task, register_task
from vldebias.evaluation.texts import Texts
from vldebias.hosts import Host, resolve
from vldebias.loading import Loaded
from vldebias.methods import Need, Problem, get_method
from vldebias.metrics.bootstrap import wilson_interval
from vldebias.prompts import PromptSet, load_prompts
from vldebias.prompts.recipe import fill

POOR = 0.1  # R2 below which nothing is predicted
FOREIGN = 1.5  # residuals count so often on a pipeline that the calibration was not made for
SHELF = (NONE, "default", "stated-value")
Table = Annotated[InstanceOf[ShareTable], PlainSerializer(ShareTable.digest)]


@register_task
class AuditTask(Task):
    """Predicted shares of prompts from their texts, the calibration's quality out of sample, and what methods would do.

    asked: the prompts. prompts: the set of the attribute. calibration: judged shares; None: the published ones of
        Stable Diffusion 1.5, for gender. against: shares to compare with (amplification).
    methods: of the shelf. `default` and other closed forms are read off the changed text, which says what search will
        do; what a pipeline draws may not follow, so draw before you rely on it. Methods that draw a value for each
        image have even shares by construction.
    form: how the calibration's concepts are asked for, with {concept}; by default as most prompts ask for theirs,
        "A photo of a {concept}.", else as its images were.

    Rows: `predicted_share` of every prompt that does not state the attribute (of two values the first), and
    `amplification` where there is something to compare with, of the predicted share and, "as drawn", of the share that
    the calibration judged; `predicted_discrepancy` of each method over prompts;
    of the calibration, out of sample, `lean_r`, `lean_r2`, `side_right` and `interval_coverage`.
    """

    task: Literal["audit"] = "audit"
    asked: tuple[str, ...]
    prompts: Prompts
    calibration: Table | None = None
    against: Table | None = None
    methods: Methods = SHELF
    form: str | None = None

    @property
    def prompt_sets(self) -> tuple[str, ...]:
        """The one set."""
        return names_of([self.prompts])

    def inputs(self, session: Session) -> dict[str, Any]:
        """The text side of a pipeline, a model or a file."""
        if session.options.pipeline is not None:
            return {"host": resolve(session.pipeline.host), "name": session.options.pipeline}
        rows = session.text_rows
        return {"host": session.texts.host, "listed": None if rows is None else tuple(rows)}

    def fingerprints(self, session: Session) -> dict[str, Any]:
        """The weights, or the file of texts."""
        if session.options.pipeline is not None:
            weights = resolve(session.pipeline.host).fingerprint()
            return {"pipeline": weights and weights.to_dict()}
        return {"texts": session.texts.fingerprint, **session.texts.about}

    def table(self) -> ShareTable:
        """What is calibrated on."""
        return self.calibration or ShareTable.published(load_prompts(self.prompts))

    def needed(self) -> tuple[str, ...]:
        """Every text that is embedded, for those who embed elsewhere."""
        prompts = load_prompts(self.prompts)
        own = (*self.asked, *self._forms(self.table()), *chain(prompts.spurious, *prompts.groups))
        return tuple(dict.fromkeys(own))

    def _forms(self, table: ShareTable) -> tuple[str, ...]:
        """The calibration's concepts as most prompts ask for theirs; concepts that are whole prompts as they are."""
        forms = Counter(form for form in map(form_of, self.asked) if form is not None)
        form = self.form or (forms.most_common(1)[0][0] if forms else table.about.get("prompt", "{concept}"))
        return tuple(fill(form, concept=one) if is_concept(one) else one for one in table.concepts)

    def calibrated(self, host: Host, listed: Sequence[str] | None = None, name: str = "") -> Calibrated:
        """The calibration under an encoder; of a file, its concepts that the file has in one form or another.

        Raises:
            InvalidInputError: fewer concepts than a calibration needs; prompts that the file lacks.
        """
        table, prompts = self.table(), load_prompts(self.prompts)
        if set(table.values) != set(prompts.attributes):
            raise InvalidInputError(
                f"calibration: is of {list(table.values)}; {prompts.name} has {list(prompts.attributes)}"
            )
        texts = self._forms(table)
        if listed is not None:
            there = {subject(text): text for text in reversed(listed)}
            texts = tuple(text if text in set(listed) else there.get(subject(text), "") for text in texts)
            kept = [i for i, text in enumerate(texts) if text]
            table = (
                ShareTable(
                    tuple(table.concepts[i] for i in kept),
                    table.values,
                    table.shares[kept],
                    table.images[kept],
                    table.about,
                )
                if len(kept) > 1
                else table
            )
            texts = tuple(texts[i] for i in kept)
        order = [list(table.values).index(value) for value in prompts.attributes]
        table = ShareTable(table.concepts, tuple(prompts.attributes), table.shares[:, order], table.images, table.about)
        listed = (
            None if listed is None else [text for text in listed if text not in set(self.asked) - set(prompts.texts)]
        )
        foreign = bool(name) and not any(one.strip() in name for one in table.about.get("ids", name).split(","))
        return Calibrated(Leans.of(host, prompts, listed), table, texts, FOREIGN if foreign else 1.0)

    def measure(self, host: Host, listed: Sequence[str] | None = None, name: str = "") -> list[TaskResult]:
        """Predict every prompt.

        Args:
            host: the text encoder. listed: the texts that it knows, where it is a file. name: of the pipeline that
                will draw, where it is known: one that the calibration was not made for has wider intervals.

        Raises:
            InvalidInputError: no prompts, texts that are missing, a calibration of another attribute or too small.
        """
        if not self.asked:
            raise InvalidInputError("prompts: expected one or more, got none")
        prompts = load_prompts(self.prompts)
        known = self.calibrated(host, listed, name)
        predictions = known.ask(self.asked, prompts)
        open_ = [one for one in predictions if not one.stated]
        out = TaskResult(self._provenance(host, known, prompts, predictions, name))
        self._rows(out, predictions, known)
        notes = self._shelf(out, open_, known, prompts) if open_ else []
        self._quality(out, known)
        out.provenance.description = " ".join([*self._sentences(predictions, known, name), *notes])
        out.pictures["audit-prompts"] = (
            f"Predicted share of {known.table.values[0]} of each prompt with its {LEVEL:.0%} interval, in the order in "
            "which to look at them; hollow: not covered by the calibration.",
            plot_prompts(predictions, known.table.values),
        )
        out.pictures["calibration"] = (
            "The calibration: lean of each text and the share that was judged, with the line; triangles at the "
            "bottom: the prompts that are asked for.",
            plot_line(known, open_),
        )
        return [out]

    def _rows(self, out: TaskResult, asked: Sequence[Asked], known: Calibrated) -> None:
        """A row for each prompt and value, and how far it goes beyond what it is compared with."""
        values, images = known.table.values, {"calibration prompts": len(known.texts)}
        for one in sorted(asked, key=lambda one: one.rank):
            if one.stated:
                continue
            for i, value in enumerate(values[: 1 if len(values) == 2 else None]):
                ends = (float(one.low[i]), float(one.high[i]))
                out.add("predicted_share", NONE, float(one.share[i]), ends, n=images, subset=f"{one.prompt}: {value}")
            base = None if self.against is None else self.against.find(one.prompt)
            if base is not None and self.against is not None:
                side = int(base.argmax())
                mine = values.index(self.against.values[side])
                more, low, high = (float(end[mine] - base[side]) for end in (one.share, one.low, one.high))
                subset = f"{one.prompt}: {values[mine]}"
                out.add("amplification", NONE, more, (low, high), n=images, subset=subset)
                place = known.table.place(one.prompt) if one.judged is not None else None
                if place is not None and (n := int(known.table.images[place])):
                    share = float(known.table.shares[place, mine])
                    least, most = (end - float(base[side]) for end in wilson_interval(round(share * n), n))
                    drawn = share - float(base[side])
                    out.add("amplification", NONE, drawn, (least, most), n={"images": n}, subset=f"{subset}, as drawn")

    def _shelf(self, out: TaskResult, asked: Sequence[Asked], known: Calibrated, prompts: PromptSet) -> list[str]:
        """Mean distance from even shares under each method; says which cannot be tried with these texts."""
        even, texts, host = 1 / len(known.table.values), [one.prompt for one in asked], known.leans.host
        shares, notes = {NONE: np.stack([one.share for one in asked])}, []
        for method in map(get_method, self.methods):
            if method.name == NONE:
                continue
            if Need.VALUES in method.needs:
                shares[method.name] = np.full_like(shares[NONE], even)
                continue
            try:
                edit = Problem.of(host, [prompts]).fit(method, host.roles[0])
            except VldebiasError as error:
                notes.append(f"{method.name} was not tried: {str(error).split(';')[0]}.")
                continue
            shares[method.name] = known.shares(known.leans.at(host.under(texts, host.roles[0], edit)))
        distance = {name: np.linalg.norm(one - even, axis=1) for name, one in shares.items()}
        n = {"prompts": len(asked)}
        out.add_resampled("predicted_discrepancy", distance, n=n, resamples=self.resamples, seed=self.seed)
        means = ", ".join(f"{one.mean():.2f} under {name}" for name, one in distance.items())
        notes.append(f"Expected parity gap (L2): {means.replace('under none', 'as they are')}.")
        if any(Need.VALUES not in get_method(name).needs for name in distance if name != NONE):
            notes.append(
                "Of methods that change texts this says what a search will do; a pipeline may draw as before, so draw "
                "a few images of them. A method that draws a value for each image is even by construction."
            )
        return notes

    def _quality(self, out: TaskResult, known: Calibrated) -> None:
        """How well the calibration predicts prompts that it did not see, for each value (of two the first)."""
        values = known.table.values
        for value, line in list(zip(values, known.lines, strict=True))[: 1 if len(values) == 2 else None]:
            n, of = {"calibration prompts": len(line.x)}, "" if len(values) == 2 else value
            r, ends = line.correlation(self.resamples, self.seed)
            out.add("lean_r", NONE, r, ends, n=n, subset=of)
            out.add("lean_r2", NONE, line.r2, n=n, subset=of)
            right, sided = line.right_side(1 / len(values))
            if sided:
                out.add("side_right", NONE, right / sided, wilson_interval(right, sided), n=n, subset=of)
            inside, between, _ = line.coverage(seed=self.seed)
            out.add("interval_coverage", NONE, inside, between, n=n, subset=of)

    def _sentences(self, asked: Sequence[Asked], known: Calibrated, name: str) -> list[str]:
        """What the page says first."""
        table, line, values = known.table, known.lines[0], known.table.values
        who = table.about.get("model", "the pipeline whose images were judged")
        counts = Counter(one.advice(values).partition(":")[0] for one in asked)
        numbers = ", ".join(f"{what} {n}" for what, n in counts.most_common())
        first = next((one for one in sorted(asked, key=lambda one: one.rank) if not one.stated), None)
        sentences = [
            f"Predicted from texts alone, nothing was drawn: what {who} draws, by {len(line.x)} judged prompts "
            f"({table.about.get('source', 'given')}). Of {len(asked)} prompts: {numbers}."
        ]
        if first is not None:
            side = first.side
            sentences.append(
                f"Look first at “{first.prompt}”: {first.share[side]:.0%} {values[side]} "
                f"[{first.low[side]:.0%}, {first.high[side]:.0%}], above parity with a chance of "
                f"{first.chance[side]:.0%}."
            )
        if known.wider > 1:
            sentences.append(
                f"The calibration was not made for {name}: its intervals are {known.wider:g} times as wide, and still "
                "only as good as the two lean alike; calibrate on some images of your own."
            )
        sentences.append(f"Each calibrated prompt, left out of the line, is predicted with R2 {line.r2:.2f}.")
        if line.r2 < POOR:
            sentences.append("That is hardly better than one share for all prompts: draw, these texts do not tell.")
        return sentences

    def _provenance(
        self, host: Host, known: Calibrated, prompts: PromptSet, asked: Sequence[Asked], name: str
    ) -> TaskProvenance:
        weights, table = host.fingerprint(), known.table
        return TaskProvenance(
            task=self.name,
            description="",
            model=name or str(host.model_id or host.name),
            fingerprint=None if weights is None else weights.to_dict(),
            prompts=prompts.name,
            prompts_hash=prompts.hash,
            split="texts",
            seeds=[self.seed],
            n={"prompts": len(asked), "calibration prompts": len(known.texts)},
            settings={
                "calibration": dict(table.about),
                "calibration texts": f"{known.texts[0]!r} and {len(known.texts) - 1} more",
                "intervals": f"jackknife+ (leave one prompt out), {LEVEL:.0%}"
                + (f", residuals times {known.wider:g}" if known.wider > 1 else ""),
                "coverage": "of lines fitted on two thirds of the calibration's prompts, over 200 splits",
                "covered": f"nearest calibration text within 1 - cosine {known.reach:.3f}, lean inside of their range",
                "stated": [one.prompt for one in asked if one.stated],
                "not covered": [one.prompt for one in asked if not one.covered and not one.stated],
                **({} if self.against is None else {"compared with": self.against.about.get("source", "a table")}),
            },
        )


def read_prompts(path: str | Path) -> tuple[str, ...]:
    """Prompts of a text file, one a line; empty lines and those that begin with # are left out."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(
            f"{path!s:.200}: cannot be read as text in UTF-8: {error}; expected a file with one prompt a line (in "
            "Python a list of prompts will do)"
        ) from error
    if "\0" in text:
        raise InvalidInputError(f"{path}: holds zero bytes, as no text does; expected a file with one prompt a line")
    lines = text.splitlines()
    prompts = tuple(dict.fromkeys(line.strip() for line in lines if line.strip() and not line.startswith("#")))
    if not prompts:
        raise InvalidInputError(f"{path}: expected prompts, one a line, got none")
    return prompts


def audit(
    prompts: Sequence[str] | str | Path,
    attribute_set: str | Path | PromptSet,
    *,
    model: Any = None,
    pipe: Any = None,
    texts: Mapping[str, Any] | None = None,
    calibration: ShareTable | str | Path | None = None,
    against: ShareTable | str | Path | None = None,
    methods: str | Sequence[Any] = SHELF,
) -> Result:
    """Predict what prompts will draw, before anything is drawn: each prompt's share with an interval, from its text.

    Args:
        prompts: texts, or a file with one a line.
        attribute_set: the prompt set of the attribute, "gender".
        model, pipe, texts: one of an image-text model (or what `vldebias.load_host` gives), a pipeline, or a mapping
            prompt -> embedding (d,) that has the prompts, texts of the set, and texts of the calibration's concepts.
        calibration: shares that were judged, or a CSV of them (see `ShareTable.read`). Default: the published counts
            of Stable Diffusion 1.5, men and women.
        against: shares to compare with, as what the model learned from or labour statistics, or a CSV.
        methods: of the shelf, see `AuditTask`.

    Returns:
        A `Result` of one task, "audit"; the description of its provenance says what to look at first.

    Raises:
        InvalidInputError: not one of model, pipe and texts; a calibration that does not fit.

    >>> vldebias.audit(["a photo of a nurse"], "gender", pipe=pipe).to_pandas()  # doctest: +SKIP
    """
    if sum(one is not None for one in (model, pipe, texts)) != 1:
        raise InvalidInputError("expected one of model=, pipe= and texts=, whose texts are read")
    own = load_prompts(attribute_set)
    tables = [
        one if one is None or isinstance(one, ShareTable) else ShareTable.read(one, own)
        for one in (calibration, against)
    ]
    asked = read_prompts(prompts) if isinstance(prompts, (str, Path)) else tuple(dict.fromkeys(prompts))
    task = build_task(asked, own, tables[0], tables[1], methods)
    given: dict[str, Any] = {}
    if texts is not None:
        given = {"host": Texts(texts).host, "listed": tuple(texts)}
    else:
        loaded = model if isinstance(model, Loaded) else pipe if isinstance(pipe, Loaded) else None
        host = resolve(loaded.host, tokenizer=loaded.tokenizer) if loaded else resolve(model if pipe is None else pipe)
        given = {
            "host": host,
            "name": (loaded.name if loaded else host.model_id or host.name) if pipe is not None else "",
        }
    began = time.monotonic()
    parts = task.measure(**given)
    return Result.of("audit", parts, seconds=round(time.monotonic() - began, 3))


def build_task(
    asked: Sequence[str],
    prompts: str | Path | PromptSet,
    calibration: ShareTable | None = None,
    against: ShareTable | None = None,
    methods: str | Sequence[Any] = SHELF,
    seed: int = 0,
) -> AuditTask:
    """The task as `audit` and the command ask it."""
    fields = {"name": "audit", "title": "What the prompts will draw", "asked": tuple(asked), "prompts": prompts}
    return AuditTask.build({**fields, "calibration": calibration, "against": against, "methods": methods, "seed": seed})
