"""Generate rows of images from the same noise and describe the differences in one line."""

from __future__ import annotations

import inspect
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import Any

import numpy as np
from PIL import Image

from vldebias.prompts import fill, load_prompts
from vldebias.utils.phrases import asked_for, in_words, largest_first
from vldebias.wording import Balancer
from vldebias.wording.reasons import NO_PERSON, reason_in_words

from .engine import MINIATURE, Engine
from .request import ATTRIBUTES, SEED_OF_VALUES, THIRD_ROWS, Request

PLAIN = "as generated"
BALANCED = "balanced prompts"
SET_INSIDE = "cross-attention"
SURE = 0.8  # judge answers with a lower probability count as unknown
ALPHA, LEAST = 0.05, 12  # significance level, and minimum number of pairs
LOST = 0.75  # minimum share of subjects that must still be recognised; below it, the line turns red
# Images per call for the miniature, and for other pipelines, whose memory use is unknown.
AT_ONCE = {True: 8, False: 1}
EMPTY_SCENES = ("a photo without a person", "a photo of an object", "an empty scene")
MINIATURE_NAMES = {"gender": "gender", "age": "age", "skin tone": "tone"}


@dataclass(frozen=True)
class Row:
    """Store one method's images and the judge's answers.

    `codes` contains the index of each image's value, or -1 if it is unknown. `recognised` states
    for each image whether it shows the subject, or a person if the judge does not know the subject.
    `assigned` contains the value inserted into each prompt, the number of people with each value if
    there are several, or None.
    """

    name: str
    images: tuple[Image.Image, ...] = ()
    codes: tuple[int, ...] = ()
    recognised: tuple[bool, ...] = ()
    assigned: tuple[str | Mapping[str, int | None] | None, ...] = ()

    def count(self, code: int) -> int:
        """Return how many images show a value."""
        return self.codes.count(code)


@dataclass(frozen=True)
class Result:
    """Store the rows of one request, complete or in progress.

    `reason` explains why the prompt was left unchanged; it is "" if the prompt was balanced.
    `share` is the completed share of the work. `seconds` is the elapsed time, or None for saved
    results.
    `generated` is the number of images that the pipeline generated. All other images are reused
    from the first row. `is_judged` is False if there is no model that labels the images. `subject`
    is the profession in the prompt, or "" if the judge knows none of its words.
    """

    request: Request
    values: tuple[str, ...]
    rows: tuple[Row, ...] = ()
    reason: str = ""
    share: float = 0.0
    seconds: float | None = None
    generated: int = 0
    is_judged: bool = True
    subject: str = ""

    @property
    def asks_for_nobody(self) -> bool:
        """Return whether the prompt was left unchanged because it mentions no person."""
        return self.reason.startswith(NO_PERSON)

    @property
    def asks_for_several(self) -> bool:
        """Return whether an image should show several people, of whom the judge looks at one."""
        values = [value for row in self.rows for value in row.assigned]
        return any(isinstance(value, Mapping) for value in values)

    @property
    def is_counted(self) -> bool:
        """Return whether the judge's answers count: it looks at one person in each image."""
        return self.is_judged and not (self.asks_for_nobody or self.asks_for_several)

    @property
    def whole(self) -> bool:
        """Return whether all rows are complete."""
        return bool(self.rows) and all(len(row.images) == self.request.number for row in self.rows)

    @property
    def images(self) -> int:
        """Return the number of images."""
        return sum(len(row.images) for row in self.rows)

    def seen(self, row: Row) -> dict[str, int]:
        """Count the images in one row that show each value."""
        counts = {value: row.count(code) for code, value in enumerate(self.values)}
        return largest_first(counts)

    def sentences(self) -> list[tuple[str, bool]]:
        """Return one line per method, and whether the line is a warning."""
        plain, *further_rows = self.rows
        lines = []
        for row in further_rows:
            if row.name == SET_INSIDE and self.reason:
                continue  # part of the second row's line
            if row.name == BALANCED and self.reason:
                why = reason_in_words(self.reason)
                lines.append((f"Left unchanged: {why}. Both rows are the same.", False))
            else:
                lines.append(self._sentence(plain, row))
        return lines

    def _sentence(self, plain: Row, row: Row) -> tuple[str, bool]:
        """Describe a method's effect, and whether the subject was lost."""
        requested = [value for value in row.assigned if value]
        if not self.is_judged:
            words = f"{asked_for(requested, self.values, {}, judged=False)}; " if requested else ""
            return f"{row.name.capitalize()}: {words}labelled by nobody (--model labels)", False
        if requested:
            # For balanced prompts, report whether the images show the requested values.
            found = asked_for(requested, self.values, self.seen(row), judged=True)
            shown = {value: count for value, count in self.seen(plain).items() if count}
            if shown and not self.asks_for_several:
                found += f" (before: {in_words(shown)})"
        elif self.asks_for_several:
            found = "the judge only looks at one person per image"
        else:
            first = int(np.argmax([plain.count(code) for code in range(len(self.values))]))
            found = f"{in_words(self.seen(row))}; {_tested(plain, row, first)}"
        before = sum(plain.recognised)
        after = sum(row.recognised)
        is_lost = after < LOST * before
        warning = f" The {'subject' if self.subject else 'person'} is lost." if is_lost else ""
        what = "subject recognised" if self.subject else "a person is seen"
        recognised = f"{what} in {after} of {self.request.number} (before: {before})"
        return f"{row.name.capitalize()}: {found}; {recognised}.{warning}", is_lost


def _tested(before: Row, after: Row, code: int) -> str:
    """Describe the result of an exact test on same-noise pairs that lost or gained a value."""
    from scipy.stats import binomtest

    # Pair images with the same noise, and ignore pairs in which a value is unknown.
    pairs = [(a, b) for a, b in zip(before.codes, after.codes, strict=True) if a >= 0 and b >= 0]
    if len(pairs) < LEAST:
        return f"too few images have a known value ({len(pairs)} pairs)"
    lost = sum(a == code != b for a, b in pairs)
    gained = sum(b == code != a for a, b in pairs)
    if not lost + gained:
        return "no image changed its value"
    # McNemar's exact test: under the null hypothesis, pairs change in either direction equally
    # often.
    p = float(binomtest(lost, lost + gained).pvalue)
    return f"{'a clear change' if p <= ALPHA else 'no clear change'} (p = {p:.2g})"


class Stopped(Exception):  # noqa: N818  (a visitor stopped the work or left)
    """Raised when generation was stopped."""


def generate(engine: Engine, request: Request, stop: threading.Event) -> Iterator[Result]:
    """Yield the growing result after each batch of images.

    Closing the iterator or setting `stop` ends the work at the next denoising step.
    """
    key = ("rows", request)
    known = engine.known(key)
    if known is not None:
        yield known
        return
    # Generate in a separate thread, so that it can stop between two steps when a visitor leaves.
    results: SimpleQueue[Result | BaseException | None] = SimpleQueue()

    def work() -> None:
        try:
            Work(engine, request, stop, results.put).run()
            results.put(None)
        except Stopped:
            results.put(None)
        except BaseException as error:  # re-raised in the waiting thread
            results.put(error)

    threading.Thread(target=work, name="generate", daemon=True).start()
    try:
        while True:
            result = results.get()
            if result is None:
                return
            if isinstance(result, BaseException):
                raise result
            if result.whole:
                engine.keep(key, result)
            yield result
    finally:
        stop.set()  # not joined, so that the caller does not wait for the current step


@dataclass(frozen=True)
class Plan:
    """Describe what to generate for a row: one prompt per image, with or without a method.

    `values` are set in the images without changing the prompt; None if the method sets no values.
    """

    name: str
    method: str | None
    prompts: list[str]
    values: list[str | None] | None = None


class Work:
    """Generate all rows of one request in parallel, one batch at a time.

    Args:
        engine, request: the models and the request.
        stop: ends the work at the next denoising step.
        report: called with the growing result, first without images.
    """

    def __init__(
        self,
        engine: Engine,
        request: Request,
        stop: threading.Event,
        report: Callable[[Result], None],
    ) -> None:
        self.engine = engine
        self.request = request
        self.stop = stop
        self.report = report
        self.start = time.monotonic()
        self.attribute = ATTRIBUTES[request.attribute]
        # A seed must produce the same person here and in the code returned by `Request.code`.
        balancer = Balancer(self.attribute, seed=SEED_OF_VALUES, strength=request.strength)
        unchanged = [request.prompt] * request.number
        balanced = balancer.at(unchanged, request.seeds)
        reasons = [str(why) for why in balanced.reasons if why not in (None, "strength")]
        self.reason = reasons[0] if reasons else ""
        self.plans = [Plan(PLAIN, None, unchanged), Plan(BALANCED, None, balanced.prompts)]
        method = THIRD_ROWS[request.third_row]
        if request.third_row == SET_INSIDE:
            # At strength 1, use the second row's values. At lower strengths, set a value in every
            # image, but only partially.
            values = (
                Balancer(self.attribute, seed=SEED_OF_VALUES).at(unchanged, request.seeds).values
            )
            self.plans.append(Plan(SET_INSIDE, method, unchanged, list(values)))
        elif method is not None:
            self.plans.append(Plan(request.third_row, method, unchanged))
        self.rows = [Row(plan.name, assigned=tuple(plan.values or ())) for plan in self.plans]
        self.rows[1] = replace(self.rows[1], assigned=tuple(balanced.values))
        self.generated = 0
        self.is_judged = True
        self.subject = ""

    def run(self) -> None:
        """Generate all rows.

        Raises:
            Stopped: If `stop` was set.
        """
        values = tuple(load_prompts(self.attribute).attributes)
        # Show the empty boxes before a model is loaded.
        self._report(values)
        pipeline = self.request.pipeline
        # The packaged models only know the miniature's images.
        self.is_judged = self.engine.model_name != MINIATURE or self.engine.is_small(pipeline)
        read: Callable[..., tuple[list[int], list[bool]]] = _read_nothing
        if self.is_judged:
            reader = self.engine.once(
                f"judge {self.attribute} {pipeline}".strip(),
                lambda: Reader.for_attribute(self.engine, self.request.attribute, pipeline),
            )
            read, values = reader, reader.values
            self.subject = reader.subject(self.request.prompt)
        number = self.request.number
        size = AT_ONCE[self.engine.is_small(pipeline)]
        # Do not count the time to load the models, so that pipelines can be compared.
        self.engine.pipe(pipeline)
        self.start = time.monotonic()
        # Generate one batch for every row in turn, so that unfinished rows can be compared.
        for first in range(0, number, size):
            places = range(first, min(first + size, number))
            for row_number in range(len(self.plans)):
                plan = self.plans[row_number]
                row = self.rows[row_number]
                if row.assigned and not any(row.assigned[place] for place in places):
                    # The same noise and prompt give the same image, so reuse it.
                    images = list(self.rows[0].images[places.start :])
                else:
                    images = _images(self.engine, self.request, plan, places, self.stop)
                    self.generated += len(images)
                codes, recognised = read(images, self.request.prompt)
                self.rows[row_number] = replace(
                    row,
                    images=(*row.images, *images),
                    codes=(*row.codes, *codes),
                    recognised=(*row.recognised, *recognised),
                )
                self._report(values)

    def _report(self, values: tuple[str, ...]) -> None:
        rows = tuple(self.rows)
        seconds = time.monotonic() - self.start
        done = sum(len(row.images) for row in rows)
        share = done / (self.request.number * len(rows))
        result = Result(self.request, values, rows, self.reason, share, seconds, self.generated)
        self.report(replace(result, is_judged=self.is_judged, subject=self.subject))


def _images(
    engine: Engine,
    request: Request,
    plan: Plan,
    places: Sequence[int],
    stop: threading.Event,
) -> list[Image.Image]:
    """Generate a row's images at some positions, with its method attached."""
    # Imported here, because torch takes seconds to load and the page opens without it.
    import torch

    def at_step(pipe: Any, step: int, timestep: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        if stop.is_set():
            raise Stopped
        return kwargs

    if stop.is_set():
        raise Stopped
    values = None
    if plan.values is not None:
        values = [plan.values[place] for place in places]
    attribute = ATTRIBUTES[request.attribute]
    with (
        engine.generating(
            attribute, plan.method, request.strength, values, request.pipeline
        ) as pipe,
        torch.inference_mode(),
    ):
        options: dict[str, Any] = {
            "num_inference_steps": request.steps,
            "guidance_scale": request.guidance,
        }
        # Without this argument, a pipeline can only be stopped after the call.
        if "callback_on_step_end" in inspect.signature(type(pipe).__call__).parameters:
            options["callback_on_step_end"] = at_step
        # CPU generators produce the same noise for every device.
        noise = [torch.Generator("cpu").manual_seed(request.seeds[place]) for place in places]
        prompts = [plan.prompts[place] for place in places]
        return [image.convert("RGB") for image in pipe(prompts, generator=noise, **options).images]


def _read_nothing(images: Sequence[Image.Image], prompt: str) -> tuple[list[int], list[bool]]:
    """Return what `Reader` returns if nothing is known about the images."""
    return [-1] * len(images), [False] * len(images)


@dataclass(frozen=True)
class Reader:
    """Judge the attribute and the subject of images.

    Attributes:
        attribute: the judge's name for the attribute.
        values: attribute values, in prompt set order.
    """

    judge: Any
    attribute: str
    values: tuple[str, ...]

    @classmethod
    def for_attribute(cls, engine: Engine, attribute: str, pipeline: str = "") -> Reader:
        """Return a judge for an attribute.

        The judge is the miniature's classifier for its images if it knows the attribute, and
        otherwise the image-text model.

        Args:
            engine: the models.
            attribute: a key of ATTRIBUTES.
            pipeline: name of the pipeline, or "" for the first one.
        """
        from vldebias.judge.judges import ClipJudge, MiniatureJudge

        prompt_set = load_prompts(ATTRIBUTES[attribute])
        values = tuple(prompt_set.attributes)
        if attribute in MINIATURE_NAMES and engine.is_small(pipeline):
            packaged = MiniatureJudge().ready()
            name = MINIATURE_NAMES[attribute]
            # The judge's "light-skinned" corresponds to "light" in the prompt set.
            values = tuple(value.removesuffix("-skinned") for value in packaged.names[name])
            return cls(packaged, name, values)
        texts_of_value = {
            value: tuple(fill("a photo of a {value} person", value=word) for word in words)
            for value, words in prompt_set.attributes.items()
        }
        judge = ClipJudge(prompts={prompt_set.name: texts_of_value}, reject=EMPTY_SCENES)
        return cls(judge.on(engine.clip()), prompt_set.name, values)

    def subject(self, prompt: str) -> str:
        """Return the profession in a prompt, or "" if the judge knows none of its words."""
        subjects = self.judge.names.get("profession", ())
        # Surrounding spaces prevent "chef" from matching in "chefs".
        words = f" {' '.join(re.findall(r'[a-z]+', prompt.lower()))} "
        # Use the longest matching name, such as "pastry chef" instead of "chef".
        return max((name for name in subjects if f" {name} " in words), key=len, default="")

    def __call__(self, images: Sequence[Image.Image], prompt: str) -> tuple[list[int], list[bool]]:
        """Return each image's value, and whether it shows the subject, or else a person.

        Unknown values are -1.
        """
        answers = self.judge.predict(images)
        chances = np.asarray(answers[self.attribute])
        is_sure = chances.max(axis=1) >= SURE
        codes = np.where(is_sure, chances.argmax(axis=1), -1)
        subject = self.subject(prompt)
        if subject:
            professions = np.asarray(answers["profession"])
            is_subject = professions.argmax(axis=1) == self.judge.names["profession"].index(subject)
            recognised = is_subject & (professions.max(axis=1) >= SURE)
        else:  # the image shows a person if the values together outweigh "none of them"
            recognised = chances.sum(axis=1) >= 0.5
        return codes.tolist(), recognised.tolist()
