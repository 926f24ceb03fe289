"""Ask a chat model where a prompt mentions people."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from itertools import islice, repeat
from pathlib import Path
from typing import Any, Protocol

from vldebias.errors import InvalidInputError, VldebiasError
from vldebias.wording.english.people import is_markable
from vldebias.wording.marks import result_or_error

INSTRUCTION = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
_REMEMBERED = 10_000  # answers
_LONGEST_PROMPT = 4000  # characters
_LONGEST_ANSWER = 20_000  # characters
_MOST_PEOPLE = 20
_MOST_STARTS = 10  # number of brackets in an answer at which JSON may begin
_MOST_FAILURES = 8  # in a row, after which the service is not asked for a while
_PAUSE = 60.0  # seconds


class NoAnswerError(VldebiasError):
    """A chat model gave no answer that can be used."""


class ChatClient(Protocol):
    """A client of the `openai` package, or one with the same interface."""

    @property
    def chat(self) -> Any:
        """Return an object with `completions.create`."""


class ChatFinder:
    """Find people with a chat model, as the `find` of `balance_prompts` or `debias`.

    The model is asked about prompts in which the word lists find nobody for sure, and which contain
    a word for a person. The texts of these prompts are sent to the service, and nothing else. The
    model only says which nouns are people whose value is open. If an answer is late, broken or
    names a noun that is not in the prompt, the word lists decide about that prompt. After 8
    failures in a row, the service is not asked for a minute.

    See also docs/how-to/balance-prompts.md.

    Args:
        client: A client with the interface of the `openai` package, such as `openai.OpenAI()`, or
            `openai.OpenAI(base_url=...)` for another service or a local server.
        model: The name of the model.
        workers: How many prompts are asked about at the same time.
        report: A function that is called with (number of answers, number of prompts) before a
            list of prompts is sent, and after each answer.
        options: Further arguments of `client.chat.completions.create`, such as `temperature=0`.
            Default: a timeout of 20 seconds.

    Raises:
        InvalidInputError: If the client has no `chat.completions.create`, or `workers` is less
            than 1.

    >>> finder = ChatFinder(openai.OpenAI(), "gpt-4o-mini")  # doctest: +SKIP
    >>> balance_prompts(prompts, "gender", find=finder)  # doctest: +SKIP
    """

    def __init__(
        self,
        client: ChatClient,
        model: str,
        *,
        workers: int = 8,
        report: Callable[[int, int], object] | None = None,
        **options: Any,
    ) -> None:
        if not hasattr(getattr(getattr(client, "chat", None), "completions", None), "create"):
            raise InvalidInputError(
                f"client: got {client!r}; expected a client of the openai package, such as"
                " openai.OpenAI()"
            )
        if not isinstance(workers, int) or workers < 1:
            raise InvalidInputError(f"workers: got {workers!r}; expected a whole number >= 1")
        self._client = client
        self._options = {"model": model, "timeout": 20.0} | options
        self._workers = workers
        self._report = report
        self._failures = 0
        self._resume_at = 0.0
        self._remembered = lru_cache(_REMEMBERED)(self._ask)  # does not store exceptions

    def __call__(self, prompt: str, attribute: str = "gender") -> tuple[int, ...]:
        """Return the offset of the noun for each person.

        Args:
            prompt: The prompt.
            attribute: What is balanced, such as "gender" or "skin tone".

        Raises:
            NoAnswerError: If the answer cannot be used, or the service has failed too often.
            Exception: Any error of the client.
        """
        if self._failures >= _MOST_FAILURES and time.monotonic() < self._resume_at:
            raise NoAnswerError("not asked, because the service failed several times in a row")
        try:
            offsets = self._remembered(prompt, attribute)
        except NoAnswerError:
            raise
        except Exception:
            self._failures += 1
            self._resume_at = time.monotonic() + _PAUSE
            raise
        self._failures = 0
        return offsets

    def find_all(self, prompts: list[str], attribute: str) -> list[tuple[int, ...] | Exception]:
        """Return the offsets for each prompt, or the error that prevented an answer.

        Args:
            prompts: The prompts.
            attribute: What is balanced, such as "gender" or "skin tone".
        """
        report = self._report or (lambda done, total: None)
        report(0, len(prompts))
        answers: list[tuple[int, ...] | Exception] = []
        pool = ThreadPoolExecutor(self._workers)
        try:
            ask = partial(result_or_error, self)
            for answer in pool.map(ask, prompts, repeat(attribute)):
                answers.append(answer)
                report(len(answers), len(prompts))
        finally:
            # Ctrl-C does not wait for the prompts that were not asked about yet.
            pool.shutdown(wait=False, cancel_futures=True)
        return answers

    def _ask(self, prompt: str, attribute: str) -> tuple[int, ...]:
        if len(prompt) > _LONGEST_PROMPT:
            raise NoAnswerError(f"not asked about a prompt of over {_LONGEST_PROMPT} characters")
        answer = self._client.chat.completions.create(
            messages=messages(prompt, attribute), **self._options
        )
        choices = getattr(answer, "choices", None)
        if not choices:
            raise TypeError(f"got a {type(answer).__name__}; expected a chat completion")
        return offsets_of(prompt, choices[0].message.content or "")


def messages(prompt: str, attribute: str) -> list[dict[str, str]]:
    """Return the messages with which a model is asked about a prompt."""
    return [
        {"role": "system", "content": INSTRUCTION.replace("{attribute}", attribute)},
        {"role": "user", "content": prompt},
    ]


def offsets_of(prompt: str, answer: str) -> tuple[int, ...]:
    """Return the offset of the last word of each noun that an answer lists.

    Args:
        prompt: The prompt.
        answer: The model's answer, in which JSON may stand between other words.

    Raises:
        NoAnswerError: If the answer has no list of nouns that all stand in the prompt.
    """
    people = _people_of(answer)
    if len(people) > _MOST_PEOPLE:
        raise NoAnswerError("the answer lists too many people")
    offsets: list[int] = []
    for person in people:
        entry = person if isinstance(person, dict) else {"noun": person}
        noun, occurrence = entry.get("noun"), entry.get("occurrence", 1)
        is_number = isinstance(occurrence, int) and not isinstance(occurrence, bool)
        if not isinstance(noun, str) or not noun.strip() or not is_number:
            raise NoAnswerError("the answer is not a list of nouns")
        pattern = rf"(?<!\w){re.escape(noun.strip())}(?!\w)"
        places = [match.span() for match in re.finditer(pattern, prompt, re.IGNORECASE)]
        if len(places) == 1:
            occurrence = 1  # models often count wrong
        if not 1 <= occurrence <= len(places):
            raise NoAnswerError("the answer has a noun that is not in the prompt")
        start, end = places[occurrence - 1]
        # The last word of "police officer".
        *_, last = re.finditer(r"(?<![\w'\u2019-])\w", prompt[:end])
        offset = max(start, last.start())
        if not is_markable(prompt, offset):
            raise NoAnswerError("the answer has a word that is not a noun")
        offsets.append(offset)
    return tuple(offsets)


def _people_of(answer: str) -> list[Any]:
    """Return the list of people in the first JSON value of an answer."""
    answer = answer[:_LONGEST_ANSWER]
    for match in islice(re.finditer(r"[{\[]", answer), _MOST_STARTS):
        try:
            value, _ = json.JSONDecoder().raw_decode(answer, match.start())
        except (ValueError, RecursionError):
            continue
        people = value.get("people") if isinstance(value, dict) else value
        if isinstance(people, list):
            return people
    raise NoAnswerError("the answer is not JSON with a list of people")
