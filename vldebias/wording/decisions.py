"""Ask a function of the user, such as a language model, which values the facts allow."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from vldebias.errors import InvalidInputError

Decide = Callable[..., Any]
_UNASKED = object()


class UserDecisions:
    """Ask `decide` once for each distinct prompt, and remember its answers.

    Args:
        decide: (prompt, values) -> the values that the facts of the prompt allow, or None to let
            the word lists decide. A function whose first argument is named `prompts` receives a
            list of prompts and returns a list of such answers.
        values: the values of the set.
        capacity: number of answers to remember.
    """

    def __init__(self, decide: Decide, values: Iterable[str], capacity: int) -> None:
        self._decide = decide
        self._values = tuple(values)
        self._capacity = capacity
        try:
            names = list(inspect.signature(decide).parameters)
        except (TypeError, ValueError):  # some built-in functions do not say
            names = []
        self._takes_list = names[:1] == ["prompts"]
        self._answers: dict[str, Any] = {}  # prompt -> values, or None

    def allowed(self, prompt: str) -> tuple[str, ...] | None:
        """Return the values that are allowed for a prompt, or None to let the word lists decide."""
        return self.ask([prompt])[prompt]

    def ask(self, prompts: Sequence[str]) -> dict[str, tuple[str, ...] | None]:
        """Ask about those prompts that have no answer yet, and return the answers of all.

        Other threads may remember and forget answers meanwhile.
        """
        answers: dict[str, tuple[str, ...] | None] = {}
        new: list[str] = []
        for prompt in dict.fromkeys(prompts):
            answer = self._answers.get(prompt, _UNASKED)
            if answer is _UNASKED:
                new.append(prompt)
            else:
                answers[prompt] = answer
        if not new:
            return answers
        if self._takes_list:
            received = list(self._decide(new, self._values))
        else:
            received = [self._decide(prompt, self._values) for prompt in new]
        if len(received) != len(new):
            raise InvalidInputError(
                f"decide: got {len(received)} answers for {len(new)} prompts; expected one for"
                " each, in their order"
            )
        # Check all answers before remembering one, so that a wrong answer changes nothing.
        checked = [self._check(*pair) for pair in zip(new, received, strict=True)]
        # Drop the oldest answers to make room.
        surplus = len(self._answers) + len(new) - self._capacity
        for prompt in list(self._answers)[: max(0, surplus)]:
            self._answers.pop(prompt, None)
        new_answers = dict(zip(new, checked, strict=True))
        self._answers.update(new_answers)
        return answers | new_answers

    def _check(self, prompt: str, answer: Any) -> tuple[str, ...] | None:
        if answer is None:
            return None
        is_list = isinstance(answer, Collection) and not isinstance(answer, str | bytes | Mapping)
        if not is_list or not set(answer) <= set(self._values):
            raise InvalidInputError(
                f"decide: got {answer!r} for {prompt!r}; expected a list of values of"
                f" {list(self._values)}, or None"
            )
        # In the order of the set, so that an answer in another order gives the same prompts.
        return tuple(value for value in self._values if value in answer)
