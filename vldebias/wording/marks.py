"""Ask a user-supplied function, such as a chat model, where a prompt mentions people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from numbers import Integral
from typing import Any

from vldebias.errors import InvalidInputError, warn
from vldebias.utils.phrases import quantity
from vldebias.wording.english.people import is_markable
from vldebias.wording.reasons import NO_ANSWER

Find = Callable[[str], int | Sequence[int] | None]
"""Function (prompt) -> the offset of the noun for a person whose value is open, a list of offsets,
or None if there is nobody. If it has a method `find_all(prompts, attribute)`, that method is called
instead, and returns a list with an answer or an exception for each prompt."""


class UserMarks:
    """Ask the user's `find` once for each distinct text, and remember its answers.

    Args:
        find: See `Find`.
        capacity: The number of answers to remember between calls.
    """

    def __init__(self, find: Find, capacity: int) -> None:
        self._find = find
        self._find_all: Callable[[list[str], str], Any] | None = getattr(find, "find_all", None)
        self._capacity = capacity
        self._answers: dict[tuple[str, str], tuple[int, ...] | str] = {}

    def ask(self, texts: Iterable[str], attribute: str) -> None:
        """Ask about all texts that were not answered before, and about those that failed.

        Args:
            texts: The texts.
            attribute: What is balanced, such as "gender" or "skin tone".
        """
        keys = list(dict.fromkeys(self._key(text, attribute) for text in texts))
        new = [key for key in keys if not isinstance(self._answers.get(key), tuple)]
        if not new:
            return
        asked = [text for text, _ in new]
        if self._find_all is None:
            answers = [result_or_error(self._find, text) for text in asked]
        else:
            answers = self._find_all(asked, attribute)
        if not isinstance(answers, Sequence) or len(answers) != len(new):
            raise InvalidInputError(
                f"find_all: got {answers!r} for {len(new)} prompts; expected a list with one"
                " answer per prompt, in the same order"
            )
        # Check all answers before storing any, so that nothing changes if one is invalid.
        offsets = list(map(_checked, asked, answers))
        for key, marks in zip(new, offsets, strict=True):
            self._answers.pop(key, None)
            self._answers[key] = marks
        # Drop the oldest answers, but none of this call.
        surplus = len(self._answers) - max(self._capacity, len(keys))
        for key in list(self._answers)[: max(0, surplus)]:
            self._answers.pop(key, None)
        reasons = Counter(reason for reason in offsets if isinstance(reason, str))
        for reason, _ in reasons.most_common(1):
            warn(
                f"{reason} (no answer for {reasons.total():,} of {quantity(len(new), 'prompt')},"
                " for this or other reasons; the word lists decide about them)"
            )

    def known(self, text: str, attribute: str) -> tuple[int, ...] | str:
        """Return the offsets in a text, or why there is no answer, and ask if none is stored."""
        key = self._key(text, attribute)
        if key not in self._answers:
            self.ask([text], attribute)
        return self._answers[key]

    def _key(self, text: str, attribute: str) -> tuple[str, str]:
        # A function of the prompt alone gives the same answer for every attribute.
        return text, "" if self._find_all is None else attribute


def result_or_error(function: Callable[..., Any], *arguments: object) -> Any:
    """Return the result of a user-supplied function, or the exception that it raises."""
    try:
        return function(*arguments)
    except Exception as error:
        return error


def _checked(text: str, answer: Any) -> tuple[int, ...] | str:
    """Return the offsets in an answer in text order, or the reason why there is none.

    Raises:
        InvalidInputError: If the answer is anything else than the offsets of nouns.
    """
    if answer is None:
        return ()
    if isinstance(answer, Exception):
        message = " ".join(str(answer).split())[:100]
        return f"{NO_ANSWER}{type(answer).__name__}{message and f': {message}'}"
    is_list = isinstance(answer, Sequence) and not isinstance(answer, str)
    offsets = list(answer) if is_list else [answer]
    for offset in offsets:
        is_number = isinstance(offset, Integral) and not isinstance(offset, bool)
        if not is_number or not is_markable(text, int(offset)):
            raise InvalidInputError(
                f"find: got {answer!r} for {text!r}; expected the offset of the first letter of a"
                " noun for a person, a list of such offsets (one for each person), or None"
            )
    return tuple(sorted(set(map(int, offsets))))
