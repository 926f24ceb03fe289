"""Draws the same noise without and with a mitigation, all in one batch, and reads what the pictures show."""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from queue import SimpleQueue
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from vldebias.evaluation.judges import Judge, decide, predict
from vldebias.metrics import mcnemar
from vldebias.metrics.bootstrap import wilson_interval
from vldebias.metrics.discrepancy import discrepancies, shares_radius

from .engine import MINIATURE, SURE, Engine
from .settings import Drawing, Mitigation

BEFORE, AFTER = "none", "mitigated"
STRENGTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
STRIP_ROWS = 2
AT_ONCE = 4  # pairs of a batch of the miniature; of others, whose memory nobody knows, one
UNKNOWN_NAME = "cannot tell"
RESAMPLES, SEED = 1000, 0
LEAST, ALPHA = 8, 0.05  # pairs that can be told, without which there is no verdict; how often it may be a false alarm
SUBJECT = "profession"  # what a judge calls whom a prompt asks for

Codes = NDArray[np.int64]
Said = TypeVar("Said")

# ---- what was read in the pictures -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Share:
    """How many of the pictures show a value, and the 95 % interval (Wilson) of its share."""

    value: str
    count: int
    share: float
    low: float
    high: float


@dataclass(frozen=True)
class Attribute:
    """One attribute of n pictures.

    shares: of all pictures, every value and "cannot tell", which sum to one. codes: (n,) the value that each picture
    shows, -1 for none. discrepancy: eq. 7.2 over the pictures that can be told, with an interval of 95 %; None where
    none of them can.
    """

    name: str
    n: int
    shares: tuple[Share, ...]
    codes: tuple[int, ...]
    discrepancy: tuple[float, float, float] | None

    def change_to(self, other: Attribute) -> Change | None:
        """What became of the value that most pictures of both sides show; None where no pair can be told.

        Picture i of both is drawn from the same noise. The value is that of both sides together, which stays when a
        pair is turned round: to choose the largest of one side would make its fall likely without any cause.
        """
        codes = np.array([self.codes, other.codes])
        codes = codes[:, (codes >= 0).all(axis=0)]
        if not codes.size:
            return None
        counts = np.equal.outer(codes, np.arange(len(self.shares) - 1)).sum(axis=1)
        first = int(counts.sum(axis=0).argmax())
        shown = codes == first
        return Change(
            value=self.shares[first].value,
            pairs=codes.shape[1],
            before=int(shown[0].sum()),
            after=int(shown[1].sum()),
            lost=int((shown[0] & ~shown[1]).sum()),
            gained=int((~shown[0] & shown[1]).sum()),
            moved=int((codes[0] != codes[1]).sum()),
            discrepancy=(float(discrepancies(counts[0])), float(discrepancies(counts[1]))),
        )


@dataclass(frozen=True)
class Change:
    """One value in the pairs of pictures that can be told on both sides.

    value: what most of their pictures show. before, after: how many of the `pairs` show it. lost, gained: pairs that
    show it before alone, after alone. moved: pairs that show another value after. discrepancy: eq. 7.2 before, after.
    """

    value: str
    pairs: int
    before: int
    after: int
    lost: int
    gained: int
    moved: int
    discrepancy: tuple[float, float]

    @property
    def p(self) -> float:
        """Of the exact test over the pairs that lost or gained the value, see `vldebias.metrics.mcnemar`."""
        return mcnemar(self.lost, self.gained)

    @property
    def verdict(self) -> str:
        """ "too few", "the same", "no clear change", "fewer" or "more" that show the value."""
        if self.pairs < LEAST:
            return "too few"
        if not self.moved:
            return "the same"
        if self.p > ALPHA:
            return "no clear change"
        return "fewer" if self.lost > self.gained else "more"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self) | {"p": self.p, "verdict": self.verdict}


def measure(name: str, values: Sequence[str], codes: Codes) -> Attribute:
    """Shares and discrepancy of codes (n,), 0 .. len(values) - 1 or -1 for unknown; n > 0."""
    n = len(codes)
    counts = np.equal.outer(codes, np.arange(len(values))).sum(axis=0)
    rows = zip((*values, UNKNOWN_NAME), (*counts.tolist(), int(n - counts.sum())), strict=True)
    shares = tuple(Share(value, count, count / n, *wilson_interval(count, n)) for value, count in rows)
    found = None
    if counts.any():
        value = float(discrepancies(counts))
        radius = float(shares_radius(counts[None], resamples=RESAMPLES, seed=SEED)[0])
        found = (value, max(value - radius, 0.0), min(value + radius, float(np.sqrt(1 - 1 / len(values)))))
    return Attribute(name, n, shares, tuple(codes.tolist()), found)


# ---- work that tells how far it is -----------------------------------------------------------------------------


class Stopped(Exception):  # noqa: N818  (no error: somebody pressed a button)
    """The work was told to stop."""


def followed(
    work: Callable[[Callable[[Said], None]], None], stop: threading.Event, *, name: str = "work"
) -> Iterator[Said]:
    """Run `work(say)` in a thread of its own and give what it says, as it says it; what it raises is raised here.

    Ends quietly where the work raises `Stopped`. Closing the iterator sets `stop`, which the work has to look at.
    """
    events: SimpleQueue[tuple[str, Any]] = SimpleQueue()

    def run() -> None:
        try:
            work(lambda what: events.put(("said", what)))
            events.put(("done", None))
        except Stopped:
            events.put(("done", None))
        except BaseException as error:  # handed to the one who listens
            events.put(("failed", error))

    threading.Thread(target=run, name=name, daemon=True).start()
    try:
        while (event := events.get())[0] == "said":
            yield event[1]
        if event[0] == "failed":
            raise event[1]
    finally:
        stop.set()  # not joined: whoever closes this must not wait for the step that is under way


# ---- drawing ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """How far a comparison is.

    A side is BEFORE, AFTER, or the name of a method that is drawn beside these (`sides`).

    pictures: side -> pictures so far. measured: side -> what was read in them. share: of the work, in [0, 1].
    stated: the words by which the prompt states an attribute, so that it is left alone. notes: warnings of the fits.
    method: that of AFTER, presets filled in. lams: side -> the weights of its pairs. subject: the profession that the
    prompt asks for, where the judge knows it. recognised: side -> whether each picture shows it.
    """

    drawing: Drawing
    mitigation: Mitigation
    pictures: dict[str, tuple[Image.Image, ...]] = field(default_factory=dict)
    measured: dict[str, tuple[Attribute, ...]] = field(default_factory=dict)
    share: float = 0.0
    stated: tuple[str, ...] = ()
    judge: str = ""
    notes: tuple[str, ...] = ()
    pipeline: str = ""
    method: str = ""
    lams: dict[str, tuple[float, ...]] = field(default_factory=dict)
    subject: str = ""
    recognised: dict[str, tuple[bool, ...]] = field(default_factory=dict)

    @property
    def sides(self) -> tuple[str, ...]:
        """BEFORE, AFTER, and what is drawn beside them."""
        return (BEFORE, AFTER, *self.drawing.beside)

    @property
    def pairs(self) -> int:
        """Pictures that are there on every side."""
        return min(len(self.pictures.get(side, ())) for side in self.sides)

    @property
    def changes(self) -> dict[str, Change]:
        """Attribute -> what became of it, once everything is drawn; {} for a kept prompt."""
        return self.changed(AFTER)

    def changed(self, side: str) -> dict[str, Change]:
        """`changes` under another method."""
        if not self.whole or self.stated:
            return {}
        sides = zip(self.measured[BEFORE], self.measured[side], strict=True)
        found = {before.name: before.change_to(after) for before, after in sides}
        return {name: change for name, change in found.items() if change is not None}

    @property
    def telling(self) -> int:
        """The first pair that shows another value of an attribute on the two sides; 0 where none does."""
        sides = (self.measured.get(side, ()) for side in (BEFORE, AFTER))
        apart = [
            before != after
            for one in zip(*sides, strict=True)
            for before, after in zip(*(a.codes for a in one), strict=True)
        ]
        return apart.index(True) % self.pairs if True in apart else 0

    @property
    def whole(self) -> bool:
        """Is everything drawn?"""
        return self.pairs == self.drawing.number


def compare(engine: Engine, drawing: Drawing, mitigation: Mitigation, stop: threading.Event) -> Iterator[Comparison]:
    """The comparison after every denoising step, until all pictures are drawn or `stop` is set.

    Picture i of every side starts from the same noise. The first of each is drawn alone, so that there is something to
    see, the others a few to a batch, in which all sides are. One pipeline call at a time holds the engine, so visitors
    take turns. Closing the iterator stops the work at its next step.
    """

    def work(say: Callable[[Comparison], None]) -> None:
        judge, read = engine.judge(mitigation)
        beside = [replace(mitigation, method=name, lam=None) for name in drawing.beside]
        fits = [engine.fit("pipeline", one) for one in (mitigation, *beside)]
        now = Comparison(drawing, mitigation, stated=mitigation.stated(drawing.prompt), judge=judge.name)
        now = replace(
            now, pipeline=engine.pipeline_name, method=fits[0].method, subject=_subject(judge, drawing.prompt)
        )
        lams = {side: fit.lam for side, fit in zip(now.sides[1:], fits, strict=True)}
        now = replace(now, lams=lams, notes=tuple(dict.fromkeys(note for fit in fits for note in fit.notes)))
        say(now)
        codes: dict[str, list[Codes]] = {side: [] for side in now.sides}
        size = AT_ONCE if engine.pipeline_name == MINIATURE else 1
        later = range(1, drawing.number, size)
        for places in ((0,), *(range(first, min(first + size, drawing.number)) for first in later)):

            def tell(part: float, now: Comparison = now, places: Sequence[int] = places) -> None:
                say(replace(now, share=(places[0] + part * len(places)) / drawing.number))

            pictures = _draw(engine, drawing, places, mitigation, mitigation.strength, stop, tell, beside=beside)
            for k, side in enumerate(now.sides):
                some = pictures[k * len(places) : (k + 1) * len(places)]
                said = predict(judge, some)
                codes[side].append(np.stack([_decided(judge, name, said) for name in read]))
                if now.subject:
                    wanted = judge.names[SUBJECT].index(now.subject)
                    shown = (*now.recognised.get(side, ()), *(_decided(judge, SUBJECT, said) == wanted).tolist())
                    now = replace(now, recognised=now.recognised | {side: shown})
                now = replace(
                    now,
                    pictures=now.pictures | {side: (*now.pictures.get(side, ()), *some)},
                    measured=now.measured | {side: _measure(judge, read, mitigation, np.concatenate(codes[side], 1))},
                )
            now = replace(now, share=(places[-1] + 1) / drawing.number)
            say(now)

    yield from followed(work, stop, name="compare")


def strip(
    engine: Engine, drawing: Drawing, mitigation: Mitigation, stop: threading.Event
) -> Iterator[list[list[Image.Image]]]:
    """Rows of the same noise at the strengths 0 .. 1, growing picture by picture; at most two rows."""

    def work(say: Callable[[list[list[Image.Image]]], None]) -> None:
        rows: list[list[Image.Image]] = []
        for index in range(min(drawing.number, STRIP_ROWS)):
            rows.append([])
            for strength in STRENGTHS:
                given = mitigation if strength else None
                rows[-1] += _draw(engine, drawing, [index], given, strength, stop, lambda _: None)
                say([list(row) for row in rows])

    yield from followed(work, stop, name="strip")


def _draw(
    engine: Engine,
    drawing: Drawing,
    places: Sequence[int],
    mitigation: Mitigation | None,
    strength: float,
    stop: threading.Event,
    tell: Callable[[float], None],
    *,
    beside: Sequence[Mitigation] | None = None,
) -> list[Image.Image]:
    """Some pictures of a run; with `beside` as many bare ones before, and of each of these after.

    Raises:
        Stopped: at the next step once `stop` is set.
    """

    def at_step(pipe: Any, step: int, timestep: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        if stop.is_set():
            raise Stopped
        tell((step + 1) / (drawing.steps + 1))
        return kwargs

    if stop.is_set():
        raise Stopped
    seeds = [drawing.seed + place for place in places] * (1 if beside is None else 2 + len(beside))
    dealt: dict[str, Any] = {"run": drawing.seed, "places": places, "of": drawing.number, "beside": beside}
    with engine.drawing(mitigation, strength, **dealt) as pipe, torch.inference_mode():
        options: dict[str, Any] = {"num_inference_steps": drawing.steps, "guidance_scale": drawing.guidance}
        if "callback_on_step_end" in inspect.signature(type(pipe).__call__).parameters:
            options["callback_on_step_end"] = at_step
        noise = [torch.Generator("cpu").manual_seed(seed) for seed in seeds]
        done = pipe([drawing.prompt] * len(seeds), generator=noise, **options)
    return [picture.convert("RGB") for picture in done.images]


def _subject(judge: Judge, prompt: str) -> str:
    """The profession that the prompt names, such as "web developer"; "" where the judge reads none."""
    words = f" {' '.join(re.findall(r'[a-z]+', prompt.lower()))} "
    return max((name for name in judge.names.get(SUBJECT, ()) if f" {name} " in words), key=len, default="")


def _decided(judge: Judge, name: str, said: Mapping[str, np.ndarray]) -> Codes:
    """(n,) the code of each picture, -1 where the judge is not sure."""
    return decide(said[name], judge.names[name], SURE).codes


def _measure(judge: Judge, read: Sequence[str], mitigation: Mitigation, codes: Codes) -> tuple[Attribute, ...]:
    """From codes (attributes, pictures)."""
    rows = zip(mitigation.names, read, codes, strict=True)
    return tuple(measure(name, judge.names[asked], row) for name, asked, row in rows)
