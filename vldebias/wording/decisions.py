"""Ask a user-supplied function, such as a language model, which values the facts allow."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from vldebias.errors import InvalidInputError
from vldebias.utils.registry import check_callable

Decide = Callable[[list[str], tuple[str, ...]], Sequence[Collection[str] | None]]
"""Function (prompts, values) -> one answer per prompt: the values that its facts allow, or None to
let the word lists decide."""
_UNASKED = object()


class UserDecisions:
    """Ask `decide` once for each distinct prompt, and remember its answers.

    Args:
        decide: See `Decide`.
        values: The values in the prompt set.
        capacity: The number of answers to remember.
    """

    def __init__(self, decide: Decide, values: Iterable[str], capacity: int) -> None:
        check_callable("decide", decide, ("prompts", "values"))
        self._decide = decide
        self._values = tuple(values)
        self._capacity = capacity
        self._answers: dict[str, Any] = {}  # prompt -> values, or None

    def ask(self, prompts: Sequence[str]) -> dict[str, tuple[str, ...] | None]:
        """Return the allowed values for all prompts, asking only about those not asked before.

        The value None lets the word lists decide. Other threads may add and remove answers in the
        meantime.
        """
        answers = {prompt: self._answers.get(prompt, _UNASKED) for prompt in prompts}
        new = [prompt for prompt, answer in answers.items() if answer is _UNASKED]
        if not new:
            return answers
        received = self._decide(list(new), self._values)
        if not _is_list(received) or len(received) != len(new):
            raise InvalidInputError(
                f"decide: got {received!r} for {len(new)} prompts; expected a list with one answer"
                " per prompt, in the same order"
            )
        # Check all answers before storing any, so that nothing changes if one is invalid.
        new_answers = dict(zip(new, map(self._check, new, received), strict=True))
        # Drop the oldest answers to make room for the new ones.
        surplus = len(self._answers) + len(new) - self._capacity
        for prompt in list(self._answers)[: max(0, surplus)]:
            self._answers.pop(prompt, None)
        self._answers.update(new_answers)
        return answers | new_answers

    def _check(self, prompt: str, answer: Any) -> tuple[str, ...] | None:
        if answer is None:
            return None
        if not _is_list(answer) or not set(answer) <= set(self._values):
            raise InvalidInputError(
                f"decide: got {answer!r} for {prompt!r}; expected a list of values from"
                f" {list(self._values)}, or None"
            )
        # Use the prompt set's order, so that the order of the values in an answer does not matter.
        return tuple(value for value in self._values if value in answer)


def _is_list(answer: Any) -> bool:
    """Return whether an answer is a collection of entries rather than a single one."""
    return isinstance(answer, Collection) and not isinstance(answer, str | bytes | Mapping)
