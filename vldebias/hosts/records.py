"""Keep what the calls of an attached pipeline were given: the value of each image, and why some
have none."""

from __future__ import annotations

import asyncio
import json
import threading
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from weakref import WeakKeyDictionary, ref

from vldebias.errors import InvalidInputError

KEPT = 1000
"""Records that an attachment keeps."""
NEXT = " | "
"""Separates the texts of an image in a record."""


def joined(columns: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return one text for each image: its different texts, joined by `NEXT`."""
    texts = []
    for row in zip(*columns.values(), strict=True):
        texts.append(NEXT.join(dict.fromkeys(row)))
    return tuple(texts)


People = Sequence[tuple[str, object]]
"""The persons of an image who got a value, as (noun, value)."""


@dataclass(frozen=True)
class CallRecord:
    """Hold the prompts and dealt values of one call of a pipeline; all tuples have one entry for
    each image.

    Attributes:
        prompts: the text as the call gave it; where an image has several (`prompt_2`), joined by
            " | ".
        written: the same as the model read it.
        values: the value of each image, None where it was left alone. For several sets, tuples of
            values.
        reasons: why an image was left alone ("stated", "no person", ...), None where it was not.
        people: the persons of each image who were given a value, see `BalancedPrompts`.
        seed: of the attachment, `Attachment.seed`.
        index: of each image, see `Balancer.at`, where the values follow the seeds of generators;
            None where they follow the calls before.
        is_encoding: the call was one of `encode_prompt` alone. Where its embeddings come back in a
            call of the same pipeline, that call has a record with the same values.
        originals: what the user wrote for each image, where the call was made inside of
            `Attachment.originals`; else None.
        id: of the call, different for each. time: when the values were dealt, in UTC (ISO 8601).
    """

    prompts: tuple[str, ...]
    written: tuple[str, ...]
    values: tuple[object, ...]
    reasons: tuple[object, ...]
    people: tuple[People, ...] = ()
    seed: int | None = None
    index: tuple[int, ...] | None = None
    is_encoding: bool = False
    originals: tuple[str, ...] | None = None
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    time: str = field(default_factory=lambda: datetime.now(UTC).isoformat())

    def to_json(self) -> str:
        """Return the record as one line of JSON."""
        return json.dumps(asdict(self), ensure_ascii=False)


class CallLog:
    """Keep the records of an attachment, the last of each thread or task apart.

    on_call: is given the record of each call once its values are dealt. What it raises is kept
    until `raise_failures`, so that the call itself is finished. follow_seeds: see `debias`.
    """

    def __init__(
        self,
        on_call: Callable[[CallRecord], object] | None = None,
        follow_seeds: bool = True,
    ) -> None:
        if on_call is not None and not callable(on_call):
            raise InvalidInputError(
                f"on_call: got {on_call!r}; expected a function of one record, or None"
            )
        self.on_call = on_call
        self.follow_seeds = follow_seeds
        self._records: deque[CallRecord] = deque(maxlen=KEPT)

    @property
    def records(self) -> list[CallRecord]:
        """Return the records of the last calls of all threads and tasks, the latest at the end."""
        return list(self._records)

    @property
    def last(self) -> CallRecord | None:
        """Return the record of the last call in this thread or task; None without one."""
        place = _PLACE.get()
        if place is None or not place.is_here():
            return None
        return place.records.get(self)

    @property
    def is_known(self) -> bool:
        """Tell whether this thread or task has made a call, or nobody has."""
        place = _PLACE.get()
        is_here = place is not None and place.is_here() and self in place.records
        return is_here or not self._records

    def begin(self) -> None:
        """Forget the last call of this thread or task, so that a call that fails shows no values
        of the one before it."""
        self._set_last(None)

    def add(self, record: CallRecord) -> None:
        """Keep the record of a call, and give it to `on_call`."""
        self._records.append(record)
        self._set_last(record)
        if self.on_call is None:
            return
        try:
            self.on_call(record)
        except Exception as error:  # the user's function may raise anything
            _FAILURES.set((*_FAILURES.get(), error))

    def _set_last(self, record: CallRecord | None) -> None:
        before = _PLACE.get()
        place = _Place(before)
        place.records[self] = record
        if place.awaiting is not None:
            place.awaiting.tell(self, record)
        _PLACE.set(place)


_FAILURES: ContextVar[tuple[Exception, ...]] = ContextVar("vldebias_failures", default=())
"""What `on_call` raised in the call that runs in this thread or task."""


def raise_failures() -> None:
    """Raise what `on_call` raised since this was called last, in this thread or task."""
    failures = _FAILURES.get()
    if not failures:
        return
    _FAILURES.set(())
    if len(failures) > 1:
        raise ExceptionGroup("on_call failed for several calls", failures)
    raise failures[0]


class _Place:
    """Hold the last record of each log in one thread or task.

    A task starts with a copy of the context of whoever made it, and so does `asyncio.to_thread`:
    the place remembers where it was made, so that no task reads the record of another one's call.

    Attributes:
        records: log -> record of its last call here.
        awaiting: of a thread by `asyncio.to_thread`, the place of the task that waits for it.
    """

    def __init__(self, before: _Place | None) -> None:
        self.records: WeakKeyDictionary[CallLog, CallRecord | None] = WeakKeyDictionary()
        self.awaiting: _Place | None = None
        if before is not None:
            self.records.update(before.records)
            self.awaiting = before.awaiting if before.is_here() else before
        self._thread = threading.get_ident()
        task = _current_task()
        self._in_task = task is not None
        self._task = None if task is None else ref(task)

    def is_here(self) -> bool:
        """Tell whether the code runs in the thread and the task of this place.

        The place of a task that has ended belongs to the tasks that got its context: a notebook
        runs each cell in a task.
        """
        if threading.get_ident() != self._thread:
            return False
        if not self._in_task:
            return _current_task() is None
        task = self._living_task()
        return task is None or task is _current_task()

    def tell(self, log: CallLog, record: CallRecord | None) -> None:
        """Keep the record of a call that the task of this place makes by `asyncio.to_thread`.

        The thread has a copy of the context of its task, so the task would read an older record.
        """
        if not self._in_task or _current_task() is not None:
            return
        if self._living_task() is not None:
            self.records[log] = record
        else:
            # The task has ended, and which of its child tasks asks is unknown: better no record
            # than a wrong one.
            self.records.pop(log, None)

    def _living_task(self) -> asyncio.Task[object] | None:
        """Return the task of this place, None after its end."""
        task = None if self._task is None else self._task()
        return None if task is None or task.done() else task


_PLACE: ContextVar[_Place | None] = ContextVar("vldebias_place", default=None)


def _current_task() -> asyncio.Task[object] | None:
    """Return the task that runs in this thread, None outside of an event loop."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
