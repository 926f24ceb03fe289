"""Generate rows of images from the same noise, and say in one line what changed."""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
from PIL import Image

from vldebias.prompts import Balancer, fill, load_prompts

from .engine import MINIATURE, Engine
from .request import ATTRIBUTES, Request

PLAIN, BALANCED, PROJECTED = "original", "balanced prompts", "projection (cali)"
SURE = 0.8  # an answer of the judge with less probability counts as unknown
ALPHA, LEAST = 0.05, 12  # level of the test; pairs without which there is none
LOST = 0.75  # of the recognised subjects: when fewer are left, the line turns red
AT_ONCE = {
    True: 8,
    False: 1,
}  # images of a call, by whether the miniature generates: of others nobody knows the memory
NO_PERSON = ("a photo without a person", "a photo of an object", "an empty scene")
MINIATURE_NAMES = {"gender": "gender", "age": "age", "skin tone": "tone"}
WHY = {
    "stated": "the prompt states the attribute itself",
    "named": "the prompt names a person",
    "no person": "no person is asked for",
}
PLURALS = {"female": "women", "male": "men"}


@dataclass(frozen=True)
class Row:
    """The images of one method, and the values that the judge reads.

    codes: number of the value that each shows, -1 for unknown. recognised: whether each shows the
    subject, or a person where the judge does not know the subject. dealt: the value that was
    written into each prompt, None where none was.
    """

    name: str
    images: tuple[Image.Image, ...] = ()
    codes: tuple[int, ...] = ()
    recognised: tuple[bool, ...] = ()
    dealt: tuple[str | None, ...] = ()

    def count(self, code: int) -> int:
        """Return how many images show a value."""
        return self.codes.count(code)


@dataclass(frozen=True)
class Result:
    """The rows of one request, complete or in progress.

    reason: why the prompt was left alone, "" where it was balanced.
    """

    request: Request
    values: tuple[str, ...]
    rows: tuple[Row, ...] = ()
    reason: str = ""
    share: float = 0.0
    notes: tuple[str, ...] = field(default=())

    @property
    def whole(self) -> bool:
        """Return whether every row has all its images."""
        return bool(self.rows) and all(len(row.images) == self.request.number for row in self.rows)

    def sentences(self) -> list[tuple[str, bool]]:
        """Return a line for each method, and whether it is a warning."""
        if self.reason:
            why = WHY.get(self.reason, self.reason)
            lines = [(f"Left alone: {why}. Balanced prompts changed nothing.", True)]
        else:
            lines = []
        plain, *others = self.rows
        first = int(np.argmax([plain.count(code) for code in range(len(self.values))]))
        for row in others:
            if row.name == BALANCED and self.reason:
                continue
            moved = (
                f"{self._shown(plain, first)} of {self.request.number} → {row.count(first)} of"
                f" {self.request.number}"
            )
            seen = f"recognised {sum(plain.recognised)} → {sum(row.recognised)}"
            lost = sum(row.recognised) < LOST * sum(plain.recognised)
            told = self._dealt(row) if any(row.dealt) else _tested(plain, row, first)
            warning = " The subject is lost." if lost else ""
            lines.append((f"{row.name.capitalize()}: {moved}; {told}; {seen}.{warning}", lost))
        return lines

    def _shown(self, row: Row, code: int) -> str:
        value = self.values[code]
        return f"{row.count(code)} {PLURALS.get(value, value)}"

    def _dealt(self, row: Row) -> str:
        dealt = [str(sum(one == value for one in row.dealt)) for value in self.values]
        return (
            f"dealt {' / '.join(dealt)}, seen"
            f" {' / '.join(str(row.count(i)) for i in range(len(self.values)))}"
        )


def _tested(before: Row, after: Row, code: int) -> str:
    """Return the verdict of the exact test over pairs of the same noise that lost or gained a
    value."""
    from scipy.stats import binomtest

    pairs = [(a, b) for a, b in zip(before.codes, after.codes, strict=True) if a >= 0 and b >= 0]
    if len(pairs) < LEAST:
        return f"too few images can be read ({len(pairs)} pairs)"
    lost = sum(a == code != b for a, b in pairs)
    gained = sum(b == code != a for a, b in pairs)
    if not lost + gained:
        return "no image changed its value"
    p = float(binomtest(lost, lost + gained).pvalue)
    return f"{'a clear change' if p <= ALPHA else 'no clear change'} (p = {p:.2g})"


class Stopped(Exception):  # noqa: N818  (a visitor stopped the work or left)
    """Signal that generation was stopped."""


def generate(engine: Engine, request: Request, stop: threading.Event) -> Iterator[Result]:
    """Yield the result as it grows, after each batch of images.

    Closing the iterator, or setting `stop`, ends the work at its next denoising step.
    """
    key = ("rows", request)
    if (known := engine.known(key)) is not None:
        yield known
        return
    said: SimpleQueue[Result | BaseException | None] = SimpleQueue()

    def work() -> None:
        try:
            _generate(engine, request, stop, said.put)
            said.put(None)
        except Stopped:
            said.put(None)
        except BaseException as error:  # raised where the result is waited for
            said.put(error)

    threading.Thread(target=work, name="generate", daemon=True).start()
    try:
        while (one := said.get()) is not None:
            if isinstance(one, BaseException):
                raise one
            if one.whole:
                engine.keep(key, one)
            yield one
    finally:
        stop.set()  # not joined: whoever closes this must not wait for the step that is under way


def _generate(
    engine: Engine, request: Request, stop: threading.Event, say: Callable[[Result], None]
) -> None:
    name, n = ATTRIBUTES[request.attribute], request.number
    balanced = Balancer(name, seed=request.seed, strength=request.strength).next(
        [request.prompt] * n
    )
    reason = next((str(why) for why in balanced.reasons if why not in (None, "strength")), "")
    read = engine.once(f"judge {name}", lambda: Reader.of(engine, request.attribute))
    plans: list[tuple[str, str | None, list[str]]] = [(PLAIN, None, [request.prompt] * n)]
    plans.append((BALANCED, None, balanced.prompts))
    if request.projection:
        plans.append((PROJECTED, "cali", [request.prompt] * n))
    rows = [Row(one) for one, _, _ in plans]
    rows[1] = replace(rows[1], dealt=tuple(balanced.values))
    size = AT_ONCE[engine.pipeline_name == MINIATURE]
    done = 0
    say(Result(request, read.values, tuple(rows), reason))
    for start in range(0, n, size):  # all rows grow together
        places = range(start, min(start + size, n))
        for at, (_, method, prompts) in enumerate(plans):
            texts = [prompts[place] for place in places]
            if at == 1 and texts == [request.prompt] * len(places):
                images = list(rows[0].images[start:])  # the same noise and prompts: the same images
            else:
                images = _images(
                    engine, request, method, texts, [request.seed + place for place in places], stop
                )
            codes, recognised = read(images, request.prompt)
            new: dict[str, Any] = {"images": images, "codes": codes, "recognised": recognised}
            new = {name: (*getattr(rows[at], name), *of) for name, of in new.items()}
            rows[at] = replace(rows[at], **new)
            done += len(places)
            say(Result(request, read.values, tuple(rows), reason, done / (n * len(plans))))


def _images(
    engine: Engine,
    request: Request,
    method: str | None,
    prompts: Sequence[str],
    seeds: Sequence[int],
    stop: threading.Event,
) -> list[Image.Image]:
    def at_step(pipe: Any, step: int, timestep: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        if stop.is_set():
            raise Stopped
        return kwargs

    if stop.is_set():
        raise Stopped
    with (
        engine.generating(ATTRIBUTES[request.attribute], method, request.strength) as pipe,
        torch.inference_mode(),
    ):
        options: dict[str, Any] = {
            "num_inference_steps": request.steps,
            "guidance_scale": request.guidance,
        }
        if "callback_on_step_end" in inspect.signature(type(pipe).__call__).parameters:
            options["callback_on_step_end"] = at_step
        noise = [torch.Generator("cpu").manual_seed(seed) for seed in seeds]
        return [
            image.convert("RGB") for image in pipe(list(prompts), generator=noise, **options).images
        ]


@dataclass(frozen=True)
class Reader:
    """Reads the attribute and the subject of images with a judge.

    asked: what the judge calls the attribute. values: of the attribute, in the order of the prompt
    set.
    """

    judge: Any
    asked: str
    values: tuple[str, ...]

    @classmethod
    def of(cls, engine: Engine, attribute: str) -> Reader:
        """Return the classifier of the miniature where it knows the attribute, else the image-text
        model."""
        from vldebias.judge.judges import ClipJudge, MiniatureJudge

        prompts = load_prompts(ATTRIBUTES[attribute])
        values = tuple(prompts.attributes)
        if engine.pipeline_name == MINIATURE and attribute in MINIATURE_NAMES:
            own, name = MiniatureJudge().ready(), MINIATURE_NAMES[attribute]
            return cls(own, name, own.names[name])
        said = prompts.attributes.items()
        asked = {
            value: tuple(fill("a photo of a {value} person", value=one) for one in words)
            for value, words in said
        }
        judge = ClipJudge(prompts={prompts.name: asked}, reject=NO_PERSON).on(engine.clip())
        return cls(judge, prompts.name, values)

    def __call__(self, images: Sequence[Image.Image], prompt: str) -> tuple[list[int], list[bool]]:
        """Return the value of each image, -1 for unknown, and whether each shows the subject or a
        person."""
        said = self.judge.predict(images)
        chances = np.asarray(said[self.asked])
        codes = np.where(chances.max(axis=1) >= SURE, chances.argmax(axis=1), -1)
        subjects = self.judge.names.get("profession", ())
        words = f" {' '.join(re.findall(r'[a-z]+', prompt.lower()))} "
        subject = max((one for one in subjects if f" {one} " in words), key=len, default="")
        if subject:
            read = np.asarray(said["profession"])
            recognised = (read.argmax(axis=1) == subjects.index(subject)) & (
                read.max(axis=1) >= SURE
            )
        else:  # a person is there where the values together outweigh "none of them"
            recognised = chances.sum(axis=1) >= 0.5
        return codes.tolist(), recognised.tolist()
