"""Record an attached pipeline's calls: each image's value, or why it has none."""

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
"""Maximum number of call records that an attachment stores."""
NEXT = " | "
"""Separator between an image's texts in a record."""


def joined(columns: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return one text per image: its distinct texts, joined by `NEXT`."""
    return tuple(NEXT.join(dict.fromkeys(row)) for row in zip(*columns.values(), strict=True))


People = Sequence[tuple[str, object]]
"""The people in an image who were assigned a value, as (noun, value)."""


@dataclass(frozen=True)
class CallRecord:
    """Store the prompts and sampled values of one call. Tuples have one entry per image.

    Attributes:
        prompts: the text that was passed. If there are several for an image (`prompt_2`), they are
            joined by `NEXT`.
        written: the text that the model received.
        values: each image's value, or None if it was left unchanged. For several sets, tuples of
            values.
        reasons: why an image was left unchanged ("stated", "no person", ...), otherwise None.
        people: the people in each image who were assigned a value, as in `BalancedPrompts`.
        seed: the attachment's seed.
        index: each image's index in the sequence of values (see `Balancer.at`) if values follow
            generator seeds, or None if they depend on previous calls.
        is_encoding: whether only `encode_prompt` was called. If the embeddings that it returned are
            passed to a call of the same pipeline, that call's record has the same values.
        id: unique identifier of the call.
        time: when the values were sampled, in UTC (ISO 8601).

    >>> import vldebias
    >>> from vldebias.miniature import load_pipeline
    >>> pipe = load_pipeline()
    >>> method = vldebias.methods.Balanced(seed=0)
    >>> with vldebias.debias(pipe, "gender", method=method) as attachment:
    ...     prompts = attachment.rewrite(["A photo of a CEO", "A photo of a tree"])
    >>> record = attachment.last_call
    >>> record.values, record.reasons
    (('female', None), (None, 'no person'))
    """

    prompts: tuple[str, ...]
    written: tuple[str, ...]
    values: tuple[object, ...]
    reasons: tuple[object, ...]
    people: tuple[People, ...] = ()
    seed: int | None = None
    index: tuple[int, ...] | None = None
    is_encoding: bool = False
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    time: str = field(default_factory=lambda: datetime.now(UTC).isoformat())

    def to_json(self) -> str:
        """Return the record as one line of JSON."""
        return json.dumps(asdict(self), ensure_ascii=False)


class CallLog:
    """Store an attachment's call records, and the latest record of each thread or task.

    Args:
        on_call: a function that receives the record of each call once its values are sampled. Its
            exceptions are deferred until `raise_failures`, so that the call itself can finish.
        follow_seeds: whether the seeds of a call's generators select the values.
    """

    def __init__(
        self,
        on_call: Callable[[CallRecord], object] | None = None,
        follow_seeds: bool = True,
    ) -> None:
        if on_call is not None and not callable(on_call):
            raise InvalidInputError(
                f"on_call: got {on_call!r}; expected a function that takes one record, or None"
            )
        self.on_call = on_call
        self.follow_seeds = follow_seeds
        self._records: deque[CallRecord] = deque(maxlen=KEPT)

    @property
    def records(self) -> list[CallRecord]:
        """Return the most recent records from all threads and tasks, oldest first."""
        return list(self._records)

    @property
    def last(self) -> CallRecord | None:
        """Return the record of the last call in this thread or task, or None if there was none."""
        place = _PLACE.get()
        return place.records.get(self) if place is not None and place.is_here() else None

    @property
    def is_known(self) -> bool:
        """Return False if calls were made, but none in this thread or task; otherwise True."""
        place = _PLACE.get()
        is_here = place is not None and place.is_here() and self in place.records
        return is_here or not self._records

    def begin(self) -> None:
        """Discard the last record of this thread or task when a new call begins.

        Otherwise a failed call would show the values of the previous one.
        """
        self._set_last(None)

    def add(self, record: CallRecord) -> None:
        """Store the record of a call, and pass it to `on_call`."""
        self._records.append(record)
        self._set_last(record)
        if self.on_call is None:
            return
        try:
            self.on_call(record)
        except Exception as error:  # the user's function may raise any exception
            _FAILURES.set((*_FAILURES.get(), error))

    def _set_last(self, record: CallRecord | None) -> None:
        before = _PLACE.get()
        place = _Place(before)
        place.records[self] = record
        if place.awaiting is not None:
            place.awaiting.update(self, record)
        _PLACE.set(place)


_FAILURES: ContextVar[tuple[Exception, ...]] = ContextVar("vldebias_failures", default=())
"""Exceptions raised by `on_call` during the current call in this thread or task."""


def raise_failures() -> None:
    """Raise the exceptions deferred from `on_call` in this thread or task."""
    failures = _FAILURES.get()
    if not failures:
        return
    _FAILURES.set(())
    if len(failures) > 1:
        raise ExceptionGroup("on_call failed for several calls", failures)
    raise failures[0]


class _Place:
    """Store each log's last record for one thread or task.

    A new task copies its creator's context, and so does `asyncio.to_thread`. A `_Place` therefore
    stores which thread and task created it, so that no task sees the record of another task's call.

    Attributes:
        records: for each log, the record of the last call in this thread or task.
        awaiting: for a thread started by `asyncio.to_thread`, the place of the task that awaits it.
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
        """Return whether this object belongs to the current thread and task.

        After a task has ended, its `_Place` belongs to the tasks that inherited its context;
        notebooks, for example, run each cell in a task.
        """
        if threading.get_ident() != self._thread:
            return False
        if not self._in_task:
            return _current_task() is None
        task = self._living_task()
        return task is None or task is _current_task()

    def update(self, log: CallLog, record: CallRecord | None) -> None:
        """Store the record of a call that the owning task made through `asyncio.to_thread`.

        The thread has a copy of its task's context, so the task would otherwise see an older
        record.
        """
        if not self._in_task or _current_task() is not None:
            return
        if self._living_task() is not None:
            self.records[log] = record
        else:
            # The task has ended, and the next caller may be any of its child tasks. Finding no
            # record is better than finding the wrong one.
            self.records.pop(log, None)

    def _living_task(self) -> asyncio.Task[object] | None:
        """Return the task that created this object, or None after that task has ended."""
        task = None if self._task is None else self._task()
        return None if task is None or task.done() else task


_PLACE: ContextVar[_Place | None] = ContextVar("vldebias_place", default=None)


def _current_task() -> asyncio.Task[object] | None:
    """Return the task running in this thread, or None outside an event loop."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
