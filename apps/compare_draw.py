"""Draws the same noise without and with the projection, picture by picture, and reads what the pictures show."""

from __future__ import annotations

import inspect
import io
import json
import threading
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image, PngImagePlugin

from vldebias.evaluation.drawing.drawn import KEY
from vldebias.evaluation.judging.judges import Judge, decide, predict

from .compare_engine import Engine
from .compare_judges import SURE
from .compare_settings import Drawing, Mitigation
from .compare_shares import Attribute, measure
from .compare_worker import Stopped, followed

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["AFTER", "BEFORE", "STRENGTHS", "Comparison", "compare", "pack", "png", "strip"]

BEFORE, AFTER = "none", "mitigated"
STRENGTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
STRIP_ROWS = 2


@dataclass(frozen=True)
class Comparison:
    """How far a comparison is.

    pictures: side -> pictures so far. measured: side -> what was read in them. share: of the work, in [0, 1].
    stated: the words by which the prompt states an attribute, so that it is left alone. notes: warnings of the fit.
    method, lam: those of the projection, presets filled in.
    """

    drawing: Drawing
    mitigation: Mitigation
    pictures: dict[str, tuple[Image.Image, ...]] = field(default_factory=lambda: {BEFORE: (), AFTER: ()})
    measured: dict[str, tuple[Attribute, ...]] = field(default_factory=dict)
    share: float = 0.0
    stated: tuple[str, ...] = ()
    judge: str = ""
    notes: tuple[str, ...] = ()
    pipeline: str = ""
    method: str = ""
    lam: tuple[float, ...] = ()

    @property
    def pairs(self) -> int:
        """Pictures that are there on both sides."""
        return min(map(len, self.pictures.values()))

    @property
    def whole(self) -> bool:
        """Is everything drawn?"""
        return self.pairs == self.drawing.number


def compare(engine: Engine, drawing: Drawing, mitigation: Mitigation, stop: threading.Event) -> Iterator[Comparison]:
    """The comparison after every denoising step, until all pictures are drawn or `stop` is set.

    Each pair of pictures starts from the same noise; one pipeline call at a time holds the engine, so visitors take
    turns. Closing the iterator stops the work at its next step.
    """

    def work(say: Callable[[Comparison], None]) -> None:
        judge, read = engine.judge(mitigation)
        fitted = engine.fit("pipeline", mitigation)
        now = Comparison(drawing, mitigation, stated=mitigation.stated(drawing.prompt), judge=judge.name)
        now = replace(now, notes=fitted.notes, pipeline=engine.pipeline_name, method=fitted.method, lam=fitted.lam)
        say(now)
        codes: dict[str, list[NDArray[np.int64]]] = {BEFORE: [], AFTER: []}
        for done in range(2 * drawing.number):
            side, index = (BEFORE, AFTER)[done % 2], done // 2

            def tell(part: float, now: Comparison = now, done: int = done) -> None:
                say(replace(now, share=(done + part) / (2 * drawing.number)))

            given = None if side == BEFORE else mitigation
            picture = _draw(engine, drawing, drawing.seed + index, given, mitigation.strength, stop, tell)
            codes[side].append(_read(judge, read, picture))
            now = replace(
                now,
                pictures=now.pictures | {side: (*now.pictures[side], picture)},
                measured=now.measured | {side: _measure(judge, read, mitigation, np.stack(codes[side], axis=1))},
                share=(done + 1) / (2 * drawing.number),
            )
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
                rows[-1].append(_draw(engine, drawing, drawing.seed + index, given, strength, stop, lambda _: None))
                say([list(row) for row in rows])

    yield from followed(work, stop, name="strip")


def _draw(
    engine: Engine,
    drawing: Drawing,
    seed: int,
    mitigation: Mitigation | None,
    strength: float,
    stop: threading.Event,
    tell: Callable[[float], None],
) -> Image.Image:
    """One picture; raises `Stopped` at the next step after `stop` is set."""

    def at_step(pipe: Any, step: int, timestep: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        if stop.is_set():
            raise Stopped
        tell((step + 1) / (drawing.steps + 1))
        return kwargs

    if stop.is_set():
        raise Stopped
    with engine.drawing(mitigation, strength) as pipe, torch.inference_mode():
        options: dict[str, Any] = {"num_inference_steps": drawing.steps, "guidance_scale": drawing.guidance}
        if "callback_on_step_end" in inspect.signature(type(pipe).__call__).parameters:
            options["callback_on_step_end"] = at_step
        done = pipe([drawing.prompt], generator=[torch.Generator("cpu").manual_seed(seed)], **options)
    return done.images[0].convert("RGB")


def _read(judge: Judge, read: Sequence[str], picture: Image.Image) -> NDArray[np.int64]:
    """(attributes,) codes of a picture, -1 where the judge is not sure."""
    found = predict(judge, [picture])
    return np.concatenate([decide(found[name], judge.names[name], SURE).codes for name in read])


def _measure(
    judge: Judge, read: Sequence[str], mitigation: Mitigation, codes: NDArray[np.int64]
) -> tuple[Attribute, ...]:
    """From codes (attributes, pictures)."""
    rows = zip(mitigation.names, read, codes, strict=True)
    return tuple(measure(name, judge.names[asked], row) for name, asked, row in rows)


def about(comparison: Comparison, side: str, index: int) -> dict[str, Any]:
    """How a picture was made, as plain JSON; kept inside its PNG, so that it says itself that a prompt was changed."""
    drawing, mitigation = comparison.drawing, comparison.mitigation
    how: dict[str, Any] = {"method": "none"}
    if side == AFTER:
        how = {
            "method": comparison.method,
            "lam": list(comparison.lam),
            "strength": mitigation.strength,
            "keep_stated": mitigation.keep_stated,
            "sets": {one.name: one.hash for one in mitigation.sets},
            "left_alone": bool(comparison.stated),
        }
    return {
        "prompt": drawing.prompt,
        "seed": drawing.seed + index,
        "variant": side,
        **how,
        "steps": drawing.steps,
        "guidance": drawing.guidance,
        "pipeline": comparison.pipeline,
        "version": version("vldebias"),
    }


def png(picture: Image.Image, told: dict[str, Any]) -> bytes:
    """A PNG with `told` inside, under the key that `vldebias eval generation` uses."""
    info, buffer = PngImagePlugin.PngInfo(), io.BytesIO()
    info.add_itxt(KEY, json.dumps(told, ensure_ascii=False))
    picture.save(buffer, format="png", pnginfo=info)
    return buffer.getvalue()


def pack(comparison: Comparison) -> bytes:
    """A zip: none/<seed>.png and mitigated/<seed>.png with how they were made inside, and metadata.json."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as packed:  # PNG does not compress again
        for side, pictures in comparison.pictures.items():
            for i, picture in enumerate(pictures):
                told = about(comparison, side, i)
                packed.writestr(f"{side}/{told['seed']:010d}.png", png(picture, told))
        packed.writestr("metadata.json", json.dumps(summary(comparison), indent=1, ensure_ascii=False))
    return buffer.getvalue()


def summary(comparison: Comparison) -> dict[str, Any]:
    """Settings and measures as plain JSON."""
    return {
        "drawing": asdict(comparison.drawing),
        "mitigation": asdict(comparison.mitigation),
        "method": comparison.method,
        "lam": list(comparison.lam),
        "pipeline": comparison.pipeline,
        "judge": {"name": comparison.judge, "sure": SURE},
        "stated": list(comparison.stated),
        "notes": list(comparison.notes),
        "measured": {side: [one.to_dict() for one in found] for side, found in comparison.measured.items()},
        "protocol": "shares: of all pictures, Wilson 95 %; discrepancy: eq. 7.2 over the pictures that can be told, "
        "with a 95 % radius of the shares; few pictures bias it upwards",
    }
