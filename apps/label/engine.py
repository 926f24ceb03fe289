"""The labelling study without a page: what each annotator is shown next, and where the answers
go."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from statistics import median

from vldebias.errors import InvalidInputError
from vldebias.judge.answers import NO_PERSON, AnnotationLog
from vldebias.judge.plan import PlannedImage

from .study import ImageFolder, Question, annotator_name

SLOW = 3600.0  # s: an answer after an hour says when someone came back, not how long it took
SHARED = 20  # images that every annotator sees first, so that agreement can be measured early
PACE = 5  # answers of a visit from which the minutes that are left are told


@dataclass(frozen=True)
class Place:
    """The position of an annotator. step: number of the question in their own order; None when all
    are answered.

    since: when the question was shown, of a clock that only counts seconds.
    """

    annotator: str
    step: int | None
    since: float = 0.0


@dataclass(frozen=True)
class View:
    """What an annotator sees.

    Attributes:
        step: the step of the place; None when there is nothing left to answer.
        picture: PNG; None where there is nothing to show: at the end, or where the file is broken.
        image, images: which image this is in the annotator's order, from 1 on, and how many there
            are.
        done: images that are answered in full.
        question: None at the end. answer: what this annotator said before. position: number of the
            question about this image, and of how many.
        minutes: that are left at this annotator's pace; None where it is not known yet.
        can_go_back, can_go_on: whether there is an answer before this one, and one here that may
            stay.
    """

    annotator: str
    step: int | None
    picture: bytes | None
    image: int
    images: int
    done: int
    question: Question | None
    answer: str | None
    position: tuple[int, int]
    minutes: int | None
    can_go_back: bool
    can_go_on: bool


class Labelling:
    """Images, questions and answers of one study; several annotators may use it at the same time.

    Every annotator sees the same 20 images first, and each part in an order of their own, made from
    the seed and the name alone: it stays when the server is restarted, and images that are
    generated later do not move the others.
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
        """Read the answers that there are. annotators: the only names that may answer; none: any.

        Raises:
            InvalidInputError: an annotator's name that cannot be used; a log that cannot be read,
                or whose answers are not among the choices.
        """
        self.folder, self.questions, self.log, self.seed = folder, tuple(questions), log, seed
        self.annotators = tuple(dict.fromkeys(annotator_name(name) for name in annotators))
        self._lock = threading.Lock()
        # The order of an annotator is asked for with every click.
        self._order = lru_cache(maxsize=256)(self._shuffled)
        self._said: dict[tuple[str, str, str], str] = {}
        self._seconds: dict[str, list[float]] = defaultdict(list)
        self._read()
        for question in self.questions:
            values = set()
            for (_, _, attribute), value in self._said.items():
                if attribute == question.attribute:
                    values.add(value)
            strange = sorted(values - {*question.choices})
            if strange:
                raise InvalidInputError(
                    f"{self.log.path}: holds {strange[0]!r} about {question.attribute}; expected"
                    f" one of {', '.join(question.choices)}. Repeat its --choices, or choose"
                    " another --out"
                )
        # Where the sample was made larger each label of a stratum counts less: answers whose
        # weights changed are appended again.
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
        """Return the place where this annotator continues: the first question without an answer in
        the file.

        Raises:
            InvalidInputError: a name that cannot be used.
        """
        self._read()  # another server may have appended
        # "ada" goes on as "Ada", where an Ada has answered.
        known = {annotator for annotator, _, _ in self._said}
        annotator = annotator_name(name, known, self.annotators)
        return self._at(annotator, self._next_open(annotator, 0))

    def answer(self, place: Place, choice: int, shown: int | None = None) -> Place:
        """Write the choice of that number, and go to the next question without an answer.

        "no person" is about the image, so it answers all of its questions.

        Args:
            place: Where the annotator is.
            choice: Number of the choice.
            shown: The step that was on the screen. A key pressed while the previous answer was
                being saved belongs to the previous picture: it corrects that answer.

        Raises:
            InvalidInputError: no choice of that number.
            OSError: the answer could not be written; the annotator stays where they are.
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
            and self._said.get((place.annotator, record.path, question.attribute)) == value
        ):
            return place  # the same key was pressed twice
        attributes = [question.attribute]
        if value == NO_PERSON:  # answers every question about the image
            attributes = [question.attribute for question in self.questions]
        seconds = min(max(time.monotonic() - place.since, 0.0), SLOW)
        how = {"seconds": round(seconds, 3), "weight": self.folder.weights.get(record.path)}
        with self._lock:
            for attribute in attributes:
                self.log.append(record.path, place.annotator, attribute, value, **how)
                self._said[place.annotator, record.path, attribute] = value
        if is_earlier:
            return place
        # An answer that was not written is given again, and counts then.
        self._seconds[place.annotator].append(seconds)
        return self._at(place.annotator, self._next_open(place.annotator, step + 1))

    def back(self, place: Place) -> Place:
        """Go to the question before, to see or correct its answer."""
        step = self._steps if place.step is None else place.step
        return self._at(place.annotator, self._first_of(place.annotator, max(step - 1, 0)))

    def forward(self, place: Place) -> Place:
        """Go past a question that is answered; stay at one that is not."""
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
        """Return what to show; nothing in it says which variant, prompt or file it is."""
        images = len(self.folder.records)
        done = self._done(place.annotator)
        if place.step is None:
            return View(
                place.annotator,
                None,
                None,
                images,
                images,
                done,
                None,
                None,
                (0, 0),
                None,
                True,
                False,
            )
        record, question = self._asked(place.annotator, place.step)
        minutes = None
        seconds = self._seconds[place.annotator]
        if len(seconds) >= PACE:
            steps = range(self._steps)
            unanswered = sum(self._is_open(place.annotator, step) for step in steps)
            # The median, since somebody may go for a coffee.
            minutes = max(1, round(median(seconds) * unanswered / 60))
        return View(
            annotator=place.annotator,
            step=place.step,
            picture=self._picture(record),
            image=place.step // len(self.questions) + 1,
            images=images,
            done=done,
            question=question,
            answer=self._said.get((place.annotator, record.path, question.attribute)),
            position=(place.step % len(self.questions) + 1, len(self.questions)),
            minutes=minutes,
            can_go_back=place.step > 0,
            can_go_on=not self._is_open(place.annotator, place.step),
        )

    def finish(self) -> None:
        """Wait for an answer that is being written, and refuse further ones."""
        # Held for good: the process ends now, and no answer may be half written by then.
        self._lock.acquire(timeout=1)

    def progress(self) -> dict[str, int]:
        """Return how many images each annotator has answered in full, of those to label."""
        self._read()
        names = {annotator for annotator, _, _ in self._said} | {*self.annotators}
        return {name: self._done(name) for name in sorted(names)}

    def _picture(self, record: PlannedImage) -> bytes | None:
        try:
            return self.folder.picture(record)
        except OSError:  # the page says so; its name would give it away
            return None

    @property
    def _steps(self) -> int:
        return len(self.folder.records) * len(self.questions)

    def _at(self, annotator: str, step: int | None) -> Place:
        return Place(annotator, step, time.monotonic())

    def _shuffled(self, annotator: str) -> tuple[PlannedImage, ...]:
        def key(record: PlannedImage) -> tuple[bool, bytes]:
            # False sorts before True: the shared images come first.
            return record.path not in self._first, _hash(self.seed, annotator, record.path)

        return tuple(sorted(self.folder.records, key=key))

    @cached_property
    def _first(self) -> frozenset[str]:
        """Return the images that every annotator sees first."""
        paths = [record.path for record in self.folder.records]
        shuffled = sorted(paths, key=lambda path: _hash(self.seed, path))
        return frozenset(shuffled[:SHARED])

    def examples(self) -> list[bytes]:
        """Return two pictures of the study, if possible none of those that are asked about
        first."""
        later = [record for record in self.folder.records if record.path not in self._first]
        records = later or list(self.folder.records)
        shown = sorted(records, key=lambda record: _hash(self.seed, record.path))[:2]
        return [picture for picture in map(self._picture, shown) if picture is not None]

    def next_command(self) -> str:
        """Return the command that reads the answers."""
        return f"vldebias eval human --labels {self.log.path} --drawn {self.folder.root}"

    def _asked(self, annotator: str, step: int) -> tuple[PlannedImage, Question]:
        image, question = divmod(step, len(self.questions))
        return self._order(annotator)[image], self.questions[question]

    def _answers(self, annotator: str, image: str) -> list[str | None]:
        return [
            self._said.get((annotator, image, question.attribute)) for question in self.questions
        ]

    def _is_open(self, annotator: str, step: int) -> bool:
        """Tell whether a question has no answer, or a "no person" that another answer about the
        image contradicts."""
        record, question = self._asked(annotator, step)
        answers = self._answers(annotator, record.path)
        answer = answers[self.questions.index(question)]
        # No answer yet.
        if answer is None:
            return True
        # "no person" beside "female" of the same image:
        # one of the two is wrong, so it is asked again.
        values = set(answers) - {None, NO_PERSON}
        return answer == NO_PERSON and bool(values)

    def _next_open(self, annotator: str, start: int) -> int | None:
        # What was skipped before comes at the end.
        order = [*range(start, self._steps), *range(start)]
        return next((step for step in order if self._is_open(annotator, step)), None)

    def _first_of(self, annotator: str, step: int) -> int:
        """Return the first question of the image if "no person" answered them all, else the
        question itself."""
        record, _ = self._asked(annotator, step)
        if set(self._answers(annotator, record.path)) == {NO_PERSON}:
            return step - step % len(self.questions)
        return step

    def _done(self, annotator: str) -> int:
        k = len(self.questions)
        return sum(
            not any(self._is_open(annotator, step) for step in range(start, start + k))
            for start in range(0, self._steps, k)
        )

    def _read(self) -> None:
        """Read all answers; another server may have appended some."""
        with self._lock:
            self._said = {key: answer.value for key, answer in self.log.answers().items()}


def _hash(*parts: object) -> bytes:
    return hashlib.sha256("\0".join(map(str, parts)).encode()).digest()
