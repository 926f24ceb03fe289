"""Ask a function of the user, such as a language model, which values the facts allow."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from vldebias.errors import InvalidInputError

Decide = Callable[..., Any]


class Decider:
    """Ask `decide` once for each distinct prompt, and remember its answers.

    decide: (prompt, values) -> the values that the facts of the prompt allow, or None to let the
    word lists decide. A function whose first argument is named `prompts` gets a list of prompts and
    returns a list of such answers. values: those of the set. capacity: answers that are remembered.
    """

    def __init__(self, decide: Decide, values: Iterable[str], capacity: int) -> None:
        self._decide = decide
        self._values = tuple(values)
        self._capacity = capacity
        self._takes_list = takes_list(decide)
        self._answers: dict[str, tuple[str, ...] | None] = {}

    def allowed(self, prompt: str) -> tuple[str, ...] | None:
        """Return the values that are allowed for a prompt, or None to let the word lists decide."""
        if prompt not in self._answers:
            self.ask([prompt])
        return self._answers[prompt]

    def ask(self, prompts: Sequence[str]) -> None:
        """Ask about those prompts that have no answer yet."""
        new: list[str] = []
        for prompt in dict.fromkeys(prompts):
            if prompt not in self._answers:
                new.append(prompt)
        if not new:
            return
        if self._takes_list:
            answers = list(self._decide(new, self._values))
        else:
            answers = [self._decide(prompt, self._values) for prompt in new]
        if len(answers) != len(new):
            raise InvalidInputError(
                f"decide: got {len(answers)} answers for {len(new)} prompts; expected one for"
                " each, in their order"
            )
        # All are checked before one is remembered: a wrong answer leaves nothing half done.
        checked = [self._check(*pair) for pair in zip(new, answers, strict=True)]
        # The oldest answers make room.
        surplus = len(self._answers) + len(new) - self._capacity
        for prompt in list(self._answers)[: max(0, surplus)]:
            del self._answers[prompt]
        self._answers.update(zip(new, checked, strict=True))

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


def takes_list(decide: Decide) -> bool:
    """Return whether a function takes a list: its first argument is named `prompts`."""
    try:
        names = list(inspect.signature(decide).parameters)
    except (TypeError, ValueError):  # some built-in functions do not say
        return False
    return names[:1] == ["prompts"]
