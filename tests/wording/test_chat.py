"""Test `ChatFinder` against a server that gives right, wrong, late and broken answers."""

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import openai
import pytest

from tests.chat_server import Server, chat_server
from tests.refusals import refused
from vldebias.errors import VldebiasWarning
from vldebias.wording import balance_prompts
from vldebias.wording.chat import ChatFinder, NoAnswerError, offsets_of

PROMPT = "a Quorvian weaver and a Zorb baker"
BOTH = '{"people": [{"noun": "weaver", "occurrence": 1}, {"noun": "baker", "occurrence": 1}]}'


@pytest.fixture
def server() -> Iterator[Server]:
    with chat_server() as running:
        yield running


def finder_of(server: Server, **options: Any) -> ChatFinder:
    client = openai.OpenAI(base_url=server.url, api_key="none", max_retries=0)
    return ChatFinder(client, "a-model", **options)


@pytest.mark.parametrize(
    "answer",
    [
        BOTH,
        f"```json\n{BOTH}\n```",
        f"Sure! Here are [two] people: {BOTH} Anything else?",
        '["weaver", "baker"]',
        BOTH.replace('"occurrence": 1', '"occurrence": 3'),
        BOTH.replace("weaver", "Quorvian weaver").replace("baker", "BAKER"),
    ],
)
def test_usable_answers_mark_everybody(server: Server, answer: str) -> None:
    server.answers = [(200, answer)]
    out = balance_prompts([PROMPT] * 4, "gender", find=finder_of(server, temperature=0), seed=0)
    assert {tuple(value for _, value in people) for people in out.people} == {
        (first, second) for first in ("female", "male") for second in ("female", "male")
    }
    (body,) = server.bodies  # one request for four copies
    assert (body["model"], body["temperature"]) == ("a-model", 0)
    system, user = body["messages"]
    assert "whose gender is open" in " ".join(system["content"].split())
    assert user == {"role": "user", "content": PROMPT}


@pytest.mark.parametrize(
    ("status", "answer", "reason"),
    [
        (200, "I cannot help with that.", "not JSON"),
        (200, '{"people": [{"noun": "weaver"', "not JSON"),
        (200, '{"people": [{"noun": "nurse", "occurrence": 1}]}', "not in the prompt"),
        (200, '{"people": [{"noun": "weav", "occurrence": 1}]}', "not in the prompt"),
        (200, '{"people": [{"noun": "a", "occurrence": 3}]}', "not in the prompt"),
        (200, '{"people": [{"noun": "and", "occurrence": 1}]}', "not a noun"),
        (200, '{"people": [{"noun": "weaver", "occurrence": "1"}]}', "list of nouns"),
        (200, '{"people": [null]}', "list of nouns"),
        (200, json.dumps({"people": ["weaver"] * 30}), "too many people"),
        (200, "[" * 5000, "not JSON"),
        (200, "", "not JSON"),
        (200, "<html>", "find: "),
        (429, "", "RateLimitError"),
        (500, "", "InternalServerError"),
        (404, "", "NotFoundError"),
    ],
)
def test_unusable_answers_leave_the_prompt_with_a_reason_and_end_no_call(
    server: Server, status: int, answer: str, reason: str
) -> None:
    server.answers = [(status, answer)]
    with pytest.warns(VldebiasWarning, match="no answer for 1 of 1 prompt"):
        out = balance_prompts(["a nurse", PROMPT], "gender", find=finder_of(server))
    assert out.reasons[0] is None
    assert out.reasons[1].startswith("find: ")
    assert reason in out.reasons[1]
    assert out.prompts[1] == PROMPT


def test_nobody_keeps_the_reason_of_the_rules(server: Server) -> None:
    server.answers = [(200, '{"people": []}')]
    out = balance_prompts([PROMPT], "gender", find=finder_of(server))
    assert out.reasons == balance_prompts([PROMPT], "gender").reasons


def test_a_late_answer_is_not_waited_for(server: Server) -> None:
    server.answers = [(200, None)]
    with pytest.warns(VldebiasWarning, match="APITimeoutError"):
        out = balance_prompts([PROMPT], "gender", find=finder_of(server, timeout=0.05))
    assert out.prompts == [PROMPT]


@pytest.mark.parametrize("answer", [(500, ""), (200, "<html>")])
def test_a_dead_service_is_asked_a_few_times(server: Server, answer: tuple[int, str]) -> None:
    server.answers = [answer]
    prompts = [f"a Quorvian{'o' * i} weaver" for i in range(200)]
    finder = finder_of(server, workers=4)
    with pytest.warns(VldebiasWarning, match="no answer for 200 of 200 prompts"):
        balance_prompts(prompts, "gender", find=finder)
    asked = len(server.bodies)
    assert 8 <= asked <= 12
    with pytest.warns(VldebiasWarning, match="failed several times in a row"):
        balance_prompts(prompts, "gender", find=finder)
    assert len(server.bodies) == asked  # nor in the next minute


def test_answers_are_remembered_and_failures_are_not(server: Server) -> None:
    server.answers = [(500, ""), (200, BOTH)]
    done = []
    finder = finder_of(server, report=lambda *counts: done.append(counts))
    with pytest.warns(VldebiasWarning, match="InternalServerError"):
        balance_prompts([PROMPT], "gender", find=finder)
    for _ in range(3):
        assert balance_prompts([PROMPT], "gender", find=finder).reasons == [None]
    assert len(server.bodies) == 2
    assert done == [(0, 1), (1, 1)] * 4


def test_each_attribute_is_asked_about(server: Server) -> None:
    server.answers = [(200, BOTH)]
    balance_prompts([PROMPT], ["gender", "skin-tone"], find=finder_of(server))
    texts = [" ".join(body["messages"][0]["content"].split()) for body in server.bodies]
    assert ["whose gender is open" in text for text in texts] == [True, False]
    assert "whose skin tone is open" in texts[1]


def test_the_second_occurrence_is_marked() -> None:
    prompt = "a baker's shop, zorb baker"
    assert offsets_of(prompt, '{"people": [{"noun": "baker", "occurrence": 2}]}') == (21,)
    with pytest.raises(NoAnswerError, match="not in the prompt"):
        offsets_of(prompt, '{"people": [{"noun": "baker", "occurrence": 3}]}')


CLIENT = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=print)))


@refused(
    ({"client": "gpt"}, "client: got 'gpt'; expected a client of the openai package"),
    ({"workers": 0}, "workers: got 0; expected a whole number >= 1"),
)
def test_what_is_no_client_is_refused(options: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {"client": CLIENT, "model": "a-model"} | options
    ChatFinder(**arguments)
