"""Test `ChatFinder` against a server that gives right, wrong, late and broken answers."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import openai
import pytest

from tests.refusals import refused
from vldebias.errors import VldebiasWarning
from vldebias.wording import balance_prompts
from vldebias.wording.chat import ChatFinder, NoAnswerError, offsets_of

PROMPT = "a Quorvian weaver and a Zorb baker"
BOTH = '{"people": [{"noun": "weaver", "occurrence": 1}, {"noun": "baker", "occurrence": 1}]}'


class Server(ThreadingHTTPServer):
    """Answer each request for a chat completion with the next status and text."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: list[tuple[int, str | None]] = []
        self.bodies: list[dict[str, Any]] = []
        self.release = threading.Event()  # late answers wait for it

    def finder(self, **options: Any) -> ChatFinder:
        url = f"http://127.0.0.1:{self.server_port}/v1"
        client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
        return ChatFinder(client, "a-model", **options)


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        length = int(self.headers["content-length"])
        self.server.bodies.append(json.loads(self.rfile.read(length)))
        index = min(len(self.server.bodies), len(self.server.answers)) - 1
        status, text = self.server.answers[index]
        if text is None:
            self.server.release.wait(30)
        message = {"role": "assistant", "content": text}
        choices = [{"index": 0, "finish_reason": "stop", "message": message}]
        completion = {"id": "1", "object": "chat.completion", "created": 0, "model": "a-model"}
        body = json.dumps(completion | {"choices": choices}).encode()
        if text == "<html>":
            body = b"<html>Bad gateway</html>"
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Print nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    thread = threading.Thread(target=running.serve_forever, args=(0.01,))
    thread.start()
    yield running
    running.release.set()
    running.shutdown()
    thread.join()
    running.server_close()


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
    out = balance_prompts([PROMPT] * 4, "gender", find=server.finder(temperature=0), seed=0)
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
    with pytest.warns(VldebiasWarning, match="1 of 1 prompts got no answer"):
        out = balance_prompts(["a nurse", PROMPT], "gender", find=server.finder())
    assert out.reasons[0] is None
    assert out.reasons[1].startswith("find: ")
    assert reason in out.reasons[1]
    assert out.prompts[1] == PROMPT


def test_nobody_keeps_the_reason_of_the_rules(server: Server) -> None:
    server.answers = [(200, '{"people": []}')]
    out = balance_prompts([PROMPT], "gender", find=server.finder())
    assert out.reasons == balance_prompts([PROMPT], "gender").reasons


def test_a_late_answer_is_not_waited_for(server: Server) -> None:
    server.answers = [(200, None)]
    with pytest.warns(VldebiasWarning, match="APITimeoutError"):
        out = balance_prompts([PROMPT], "gender", find=server.finder(timeout=0.05))
    assert out.prompts == [PROMPT]


def test_a_dead_service_is_asked_a_few_times(server: Server) -> None:
    server.answers = [(500, "")]
    prompts = [f"a Quorvian{'o' * i} weaver" for i in range(200)]
    finder = server.finder(workers=4)
    with pytest.warns(VldebiasWarning, match="200 of 200 prompts"):
        balance_prompts(prompts, "gender", find=finder)
    asked = len(server.bodies)
    assert 8 <= asked <= 12
    with pytest.warns(VldebiasWarning, match="failed several times in a row"):
        balance_prompts(prompts, "gender", find=finder)
    assert len(server.bodies) == asked  # nor in the next minute


def test_answers_are_remembered_and_failures_are_not(server: Server) -> None:
    server.answers = [(500, ""), (200, BOTH)]
    done = []
    finder = server.finder(report=lambda *counts: done.append(counts))
    with pytest.warns(VldebiasWarning, match="InternalServerError"):
        balance_prompts([PROMPT], "gender", find=finder)
    for _ in range(3):
        assert balance_prompts([PROMPT], "gender", find=finder).reasons == [None]
    assert len(server.bodies) == 2
    assert done == [(1, 1)] * 4


def test_each_attribute_is_asked_about(server: Server) -> None:
    server.answers = [(200, BOTH)]
    balance_prompts([PROMPT], ["gender", "skin-tone"], find=server.finder())
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
    ChatFinder(**{"client": CLIENT, "model": "a-model"} | options)
