"""Run a labelling study: decide what each annotator sees next and store the answers."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain
from shlex import quote
from statistics import median

from vldebias.errors import InvalidInputError
from vldebias.judge.plan import PlannedImage

from ..shares.answers import NO_PERSON, AnnotationLog
from .study import ImageFolder, Question, annotator_name

SLOW = 3600.0  # maximum recorded seconds per answer, because annotators may take a break
SHARED = 20  # images that every annotator sees first, so that agreement can be measured early
EVALUATED = {"gender", "race"}  # attributes of `vldebias eval human`
PACE = 5  # minimum number of answers before the remaining time is estimated


@dataclass(frozen=True)
class Place:
    """Store an annotator's position in the study.

    Attributes:
        annotator: the annotator's name.
        step: index of the question in the annotator's order, or None if all are answered.
        since: time when the question was shown, as returned by `time.monotonic`.
    """

    annotator: str
    step: int | None
    since: float = 0.0


@dataclass(frozen=True)
class View:
    """Describe what an annotator sees.

    Attributes:
        annotator: the annotator's name.
        step: index of the question, or None if all are answered.
        image: one-based number of the image in the annotator's order.
        images: total number of images.
        done: number of images for which all questions are answered.
        png: the image as PNG, or None at the end or if the file is damaged.
        question: the question, or None at the end.
        answer: the annotator's earlier answer, if any.
        position: number of this question about the image, and the number of questions per image.
        minutes: estimated remaining time in minutes, or None if unknown.
        can_go_back: whether there is a previous question.
        can_go_on: whether the question is already answered, so that it can be skipped.
    """

    annotator: str
    step: int | None
    image: int
    images: int
    done: int
    png: bytes | None = None
    question: Question | None = None
    answer: str | None = None
    position: tuple[int, int] = (0, 0)
    minutes: int | None = None
    can_go_back: bool = True
    can_go_on: bool = False


@dataclass
class Unanswered:
    """Track what an annotator still has to answer, so that no click has to check every image.

    Attributes:
        steps: indices of the unanswered questions.
        images: indices of the images with unanswered questions.
    """

    steps: set[int]
    images: set[int]


class Labelling:
    """Manage a study's images, questions and answers for several simultaneous annotators.

    All annotators see the same 20 images before the others. The order depends only on the seed and
    the annotator's name, so it does not change if the server is restarted or more images are
    generated.

    Args:
        folder: the images.
        questions: the questions about each image.
        log: the answer file, which may already contain answers.
        annotators: names of the people who may take part. If empty, anyone may.
        seed: seed for the order of the images.

    Raises:
        InvalidInputError: If an annotator's name is invalid, the log cannot be read, or an answer
            in it is not among the choices.
    """

    def __init__(
        self,
        folder: ImageFolder,
        questions: Sequence[Question],
        log: AnnotationLog,
        *,
        annotators: Sequence[str] = (),
        seed: int = 0,
    ) -> None:
        self.folder = folder
        self.questions = tuple(questions)
        self.log = log
        self.seed = seed
        self.annotators = tuple(dict.fromkeys(annotator_name(name) for name in annotators))
        self._lock = threading.Lock()
        # Cache the order, which is needed on every click.
        self._order = lru_cache(maxsize=256)(self._shuffled)
        self._answer_of_key: dict[tuple[str, str, str], str] = {}
        self._unanswered_of_annotator: dict[str, Unanswered] = {}
        self._seconds: dict[str, list[float]] = defaultdict(list)
        self._read()
        for question in self.questions:
            values = set()
            for (_, _, attribute), value in self._answer_of_key.items():
                if attribute == question.attribute:
                    values.add(value)
            # Earlier answers may say that there is no person, for classes that are not people.
            unknown = sorted(values - {*question.choices, NO_PERSON})
            if unknown:
                raise InvalidInputError(
                    f"{self.log.path}: the file contains the answer {unknown[0]!r} about"
                    f" {question.attribute}; expected one of {', '.join(question.choices)}. Use the"
                    " same --choices as before, or a different --out"
                )
        # Enlarging the sample decreases the weights of earlier answers, so append these answers
        # again with their new weights.
        for answer in self.log.answers().values():
            weight = self.folder.weights.get(answer.image, answer.weight)
            if (
                weight is not None
                and answer.weight is not None
                and abs(weight - answer.weight) > 1e-9 * weight
            ):
                key = answer.image, answer.annotator, answer.attribute, answer.value
                self.log.append(*key, seconds=answer.seconds, weight=weight)

    def start(self, name: str) -> Place:
        """Return the position of an annotator's first unanswered question.

        Raises:
            InvalidInputError: If the name is invalid.
        """
        self._read()  # another server may have appended answers
        # "ada" continues as "Ada" if there are answers by Ada.
        known = {annotator for annotator, _, _ in self._answer_of_key}
        annotator = annotator_name(name, known, self.annotators)
        return self._at(annotator, self._next_open(annotator, 0))

    def answer(self, place: Place, choice: int, shown: int | None = None) -> Place:
        """Store an answer and go to the next unanswered question.

        "no person" answers all questions about the image.

        Args:
            place: the annotator's position.
            choice: index of the choice.
            shown: the step on the screen. A key pressed while the previous answer is being saved
                refers to the previous image, and corrects the answer about it.

        Raises:
            InvalidInputError: If there is no such choice.
            OSError: If the answer could not be written. The position then does not change.
        """
        step = place.step if shown is None else shown
        latest = self._steps - 1 if place.step is None else place.step
        if step is None or not 0 <= step <= latest:
            return place
        record, question = self._asked(place.annotator, step)
        if not 0 <= choice < len(question.choices):
            raise InvalidInputError(
                f"choice: expected 0 to {len(question.choices) - 1}, got {choice}"
            )
        value = question.choices[choice]
        is_earlier = step != place.step
        if (
            is_earlier
            and self._answer_of_key.get((place.annotator, record.path, question.attribute)) == value
        ):
            return place  # the same key was pressed twice
        attributes = [question.attribute]
        if value == NO_PERSON:  # this choice answers all questions about the image
            attributes = [question.attribute for question in self.questions]
        seconds = min(max(time.monotonic() - place.since, 0.0), SLOW)
        weight = self.folder.weights.get(record.path)
        with self._lock:
            for attribute in attributes:
                self.log.append(
                    record.path,
                    place.annotator,
                    attribute,
                    value,
                    seconds=round(seconds, 3),
                    weight=weight,
                )
                self._answer_of_key[place.annotator, record.path, attribute] = value
            unanswered = self._unanswered_of_annotator.get(place.annotator)
            if unanswered is not None:
                self._update(unanswered, place.annotator, step // len(self.questions))
        if is_earlier:
            return place
        self._seconds[place.annotator].append(seconds)
        return self._at(place.annotator, self._next_open(place.annotator, step + 1))

    def back(self, place: Place) -> Place:
        """Go back to the previous question."""
        step = self._steps if place.step is None else place.step
        return self._at(place.annotator, self._first_of(place.annotator, max(step - 1, 0)))

    def forward(self, place: Place) -> Place:
        """Go to the next question, provided that this one is answered."""
        if place.step is None or self._is_open(place.annotator, place.step):
            return place
        following = place.step + 1
        while following < self._steps and self._first_of(place.annotator, following) != following:
            following += 1
        return self._at(
            place.annotator,
            following if following < self._steps else self._next_open(place.annotator, 0),
        )

    def view(self, place: Place) -> View:
        """Return what the annotator sees, without revealing the variant, prompt or file name."""
        images = len(self.folder.records)
        done = self._done(place.annotator)
        if place.step is None:
            return View(place.annotator, None, image=images, images=images, done=done)
        record, question = self._asked(place.annotator, place.step)
        minutes = None
        seconds = self._seconds[place.annotator]
        if len(seconds) >= PACE:
            unanswered = len(self._unanswered(place.annotator).steps)
            # The median is not affected by breaks.
            minutes = max(1, round(median(seconds) * unanswered / 60))
        return View(
            annotator=place.annotator,
            step=place.step,
            png=self._png(record),
            image=place.step // len(self.questions) + 1,
            images=images,
            done=done,
            question=question,
            answer=self._answer_of_key.get((place.annotator, record.path, question.attribute)),
            position=(place.step % len(self.questions) + 1, len(self.questions)),
            minutes=minutes,
            can_go_back=place.step > 0,
            can_go_on=not self._is_open(place.annotator, place.step),
        )

    def finish(self) -> None:
        """Wait until the current answer has been written, and block all others."""
        # The lock is not released, because the process is about to end.
        self._lock.acquire(timeout=1)

    def progress(self) -> dict[str, int]:
        """Return, by annotator, the number of images for which all questions are answered."""
        self._read()
        names = {annotator for annotator, _, _ in self._answer_of_key} | {*self.annotators}
        return {name: self._done(name) for name in sorted(names)}

    def _png(self, record: PlannedImage) -> bytes | None:
        try:
            return self.folder.png(record)
        except OSError:
            # The page reports the problem without the file name, which could reveal the variant.
            return None

    @property
    def _steps(self) -> int:
        return len(self.folder.records) * len(self.questions)

    def _at(self, annotator: str, step: int | None) -> Place:
        return Place(annotator, step, time.monotonic())

    def _shuffled(self, annotator: str) -> tuple[PlannedImage, ...]:
        def key(record: PlannedImage) -> tuple[bool, bytes]:
            # False sorts before True, so the shared images come first.
            return record.path not in self._first, _hash(self.seed, annotator, record.path)

        return tuple(sorted(self.folder.records, key=key))

    @cached_property
    def _first(self) -> frozenset[str]:
        """Return the images that every annotator sees first."""
        paths = [record.path for record in self.folder.records]
        shuffled = sorted(paths, key=lambda path: _hash(self.seed, path))
        return frozenset(shuffled[:SHARED])

    def examples(self) -> list[bytes]:
        """Return two example images, which are not among the shared images if possible."""
        later = [record for record in self.folder.records if record.path not in self._first]
        records = later or list(self.folder.records)
        shown = sorted(records, key=lambda record: _hash(self.seed, record.path))[:2]
        return [png for png in map(self._png, shown) if png is not None]

    def next_command(self) -> str:
        """Return the commands that use the answers, one per line."""
        folder = quote(str(self.folder.root))
        file = quote(str(self.log.path))
        weight = " --weight-column weight" if self.folder.weights else ""
        commands = []
        for question in self.questions:
            attribute = quote(question.attribute)
            groups = quote(",".join(question.values))
            command = (
                f"eval shares {file} --prompt-column prompt --value-column {attribute}"
                f" --groups {groups}{weight} --out shares-{attribute}"
            )
            if question.prompt_set:
                # The command finds the answers in the folder.
                prompt_set = quote(question.prompt_set)
                command = f"debias {prompt_set} --reference {folder} --model NAME --out edit"
            elif self.folder.is_generated and question.attribute in EVALUATED:
                command = f"eval human --label-file {file} --image-dir {folder}"
            commands.append(f"vldebias {command}")
        return "\n".join(dict.fromkeys(commands))

    def _asked(self, annotator: str, step: int) -> tuple[PlannedImage, Question]:
        image, question = divmod(step, len(self.questions))
        return self._order(annotator)[image], self.questions[question]

    def _answers(self, annotator: str, image: str) -> list[str | None]:
        return [
            self._answer_of_key.get((annotator, image, question.attribute))
            for question in self.questions
        ]

    def _is_open(self, annotator: str, step: int) -> bool:
        """Return whether a question is unanswered or its answer contradicts another one.

        "no person" contradicts any value in a different answer about the same image.
        """
        record, question = self._asked(annotator, step)
        answers = self._answers(annotator, record.path)
        answer = answers[self.questions.index(question)]
        if answer is None:
            return True
        # If one answer is "no person" and another is "female", at least one must be wrong.
        values = set(answers) - {None, NO_PERSON}
        return answer == NO_PERSON and bool(values)

    def _next_open(self, annotator: str, start: int) -> int | None:
        steps = self._unanswered(annotator).steps
        if not steps:
            return None
        # Return to skipped questions at the end.
        order = chain(range(start, self._steps), range(start))
        return next(step for step in order if step in steps)

    def _first_of(self, annotator: str, step: int) -> int:
        """Return the image's first step if "no person" answered all questions, else `step`."""
        record, _ = self._asked(annotator, step)
        if set(self._answers(annotator, record.path)) == {NO_PERSON}:
            return step - step % len(self.questions)
        return step

    def _done(self, annotator: str) -> int:
        return len(self.folder.records) - len(self._unanswered(annotator).images)

    def _unanswered(self, annotator: str) -> Unanswered:
        """Return the questions that an annotator still has to answer."""
        unanswered = self._unanswered_of_annotator.get(annotator)
        if unanswered is None:
            unanswered = Unanswered(set(), set())
            for image in range(len(self.folder.records)):
                self._update(unanswered, annotator, image)
            self._unanswered_of_annotator[annotator] = unanswered
        return unanswered

    def _update(self, unanswered: Unanswered, annotator: str, image: int) -> None:
        """Check again which questions about an image are unanswered."""
        first = image * len(self.questions)
        steps = range(first, first + len(self.questions))
        open_steps = {step for step in steps if self._is_open(annotator, step)}
        unanswered.steps.difference_update(steps)
        unanswered.steps |= open_steps
        unanswered.images.discard(image)
        if open_steps:
            unanswered.images.add(image)

    def _read(self) -> None:
        """Reload all answers, because another server may have appended some."""
        with self._lock:
            self._answer_of_key = {key: answer.value for key, answer in self.log.answers().items()}
            self._unanswered_of_annotator.clear()


def _hash(*parts: object) -> bytes:
    return hashlib.sha256("\0".join(map(str, parts)).encode()).digest()
