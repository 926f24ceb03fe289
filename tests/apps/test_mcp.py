"""Test `vldebias mcp`: the tools' limits and error messages, and a client over stdin and stdout."""

import asyncio
import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from apps.mcp.tools import (
    MAX_CHARACTERS,
    MAX_IMAGES,
    MAX_TOTAL_CHARACTERS,
    Tools,
    replace_lone_surrogates,
    tools_server,
)
from vldebias.errors import InvalidInputError

DOCTOR = "A photo of a doctor"
SECONDS = 120  # the limit for all requests of a client together
SECRET = "api_key: sk-0123456789\n"
SIZES = "attribute: {small: [small], large: [large]}\ntemplates: ['a {attribute} {concept}']\n"
SIZES += "concepts: [dog, cat]\nadjectives: {small: small, large: large}\n"


@pytest.fixture
def set_of_user(tmp_path: Path) -> Path:
    path = tmp_path / "sizes.yaml"
    path.write_text(SIZES)
    return path


def test_an_attribute_is_never_treated_as_a_path(set_of_user: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.yaml"
    secret.write_text(SECRET)
    tools = Tools()
    paths = [secret, set_of_user, Path("/etc/passwd"), Path("../prompts/age.yaml"), tmp_path]
    for path in paths:
        for tool in (tools.balance_prompts, tools.audit_prompts):
            with pytest.raises(InvalidInputError, match="expected one of gender, age") as caught:
                tool([DOCTOR], attribute=str(path))
            assert "sk-" not in str(caught.value)
            assert "root:" not in str(caught.value)


def test_the_set_on_the_command_line_is_the_default_and_is_known_by_its_name(
    set_of_user: Path,
) -> None:
    tools = Tools(str(set_of_user))
    for attribute in (None, "sizes"):
        (written,) = tools.balance_prompts([DOCTOR], attribute=attribute).prompts
        assert written.value in {"small", "large"}
    (written,) = tools.balance_prompts([DOCTOR], attribute="gender").prompts
    assert written.value in {"female", "male"}
    with pytest.raises(InvalidInputError, match="expected one of sizes"):
        tools.balance_prompts([DOCTOR], attribute=str(set_of_user))


def test_values_are_even_across_calls_to_a_server() -> None:
    tools = Tools("age")
    values = [tools.balance_prompts([DOCTOR], attribute="gender").prompts[0].value for _ in "1234"]
    assert Counter(values) == {"female": 2, "male": 2}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompts": [DOCTOR], "images": MAX_IMAGES + 1}, "expected 1 to 1000"),
        ({"prompts": [DOCTOR] * 2, "images": MAX_IMAGES // 2 + 1}, "expected 1 to 1000"),
        ({"prompts": [DOCTOR], "images": 0}, "expected 1 to 1000"),
        ({"prompts": ["a" * (MAX_CHARACTERS + 1)]}, "got a prompt of 10,001 characters"),
        ({"prompts": ["a" * 5000], "images": 101}, "got 505,000 characters"),
        ({"prompts": ["a" * 5000] * 101}, "got 505,000 characters"),
    ],
)
def test_calls_are_limited(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        Tools().balance_prompts(**arguments)


def test_audits_are_limited_and_limits_are_inclusive() -> None:
    with pytest.raises(InvalidInputError, match="expected 1 to 1000"):
        Tools().audit_prompts([DOCTOR] * (MAX_IMAGES + 1))
    n = MAX_TOTAL_CHARACTERS // MAX_CHARACTERS
    rows = Tools().audit_prompts([f"{number:0{MAX_CHARACTERS}}" for number in range(n)])
    assert len(rows.prompts) == 50


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (rb'"a \ud83d"', rb'"a \ufffd"'),
        (rb'"a \uDE00 b"', rb'"a \ufffd b"'),
        (rb'"\ud83d\ud83d\ude00"', rb'"\ufffd\ud83d\ude00"'),
        (rb'"\ude00\ud83d"', rb'"\ufffd\ufffd"'),
        (rb'"\ud83d\n\ude00"', rb'"\ufffd\n\ufffd"'),
        (rb'"\\ud83d \\\ud83d"', rb'"\\ud83d \\\ufffd"'),
        ('"\u00e9 \U0001f600 \\u00e9"'.encode(), '"\u00e9 \U0001f600 \\u00e9"'.encode()),
    ],
)
def test_lone_surrogates_are_replaced(line: bytes, expected: bytes) -> None:
    assert replace_lone_surrogates(line) == expected
    json.loads(expected).encode()


def test_expected_errors_are_passed_on_and_crashes_are_hidden(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("mcp", reason="pip install 'vldebias[mcp]'")
    from mcp.server.mcpserver.exceptions import ToolError

    tools = Tools()
    server = tools_server(tools)
    for arguments, message in [
        ({"prompts": [DOCTOR], "attribute": "gendre"}, "did you mean 'gender'"),
        ({"prompts": [DOCTOR], "shares": {"x": 1.0}}, "expected values of the sets"),
    ]:
        with pytest.raises(ToolError, match=message):
            asyncio.run(server.call_tool("balance_prompts", arguments))

    monkeypatch.setattr(tools, "_set_named", Mock(side_effect=RuntimeError("sk-0123456789")))
    with pytest.raises(ToolError) as caught:
        asyncio.run(server.call_tool("audit_prompts", {"prompts": [DOCTOR]}))
    assert "sk-" not in str(caught.value)


class Client:
    """Send requests to a server over its stdin, and read the answers from its stdout."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.requests = 0

    def send(self, message: dict[str, Any]) -> None:
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self.process.stdin.flush()

    def ask(self, method: str, **params: Any) -> Any:
        self.requests += 1
        self.send({"id": self.requests, "method": method, "params": params})
        answer = json.loads(self.process.stdout.readline())
        assert answer["id"] == self.requests
        return answer["result"]

    def call(self, name: str, **arguments: Any) -> Any:
        return self.ask("tools/call", name=name, arguments=arguments)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    pytest.importorskip("mcp", reason="pip install 'vldebias[mcp]'")
    command = [sys.executable, "-m", "vldebias", "mcp"]
    with (
        (tmp_path / "stderr").open("wb") as stderr,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr
        ) as process,
    ):
        # An unanswered request ends the test.
        timer = threading.Timer(SECONDS, process.kill)
        timer.start()
        try:
            yield Client(process)
        finally:
            timer.cancel()
            process.kill()


def test_a_client_calls_the_tools_over_stdin_and_stdout(client: Client, tmp_path: Path) -> None:
    client.ask(
        "initialize",
        protocolVersion="2025-06-18",
        capabilities={},
        clientInfo={"name": "test", "version": "1"},
    )
    client.send({"method": "notifications/initialized"})
    tools = client.ask("tools/list")["tools"]
    assert {tool["name"] for tool in tools} == {"balance_prompts", "audit_prompts"}
    assert all(tool["description"] and tool["outputSchema"] for tool in tools)

    answer = client.call("balance_prompts", prompts=[DOCTOR], images=4)
    rows = answer["structuredContent"]["prompts"]
    expected = {"A photo of a female doctor": 2, "A photo of a male doctor": 2}
    assert Counter(row["prompt"] for row in rows) == expected
    answer = client.call("audit_prompts", prompts=[DOCTOR, "a lady"])
    advice = [row["advice"] for row in answer["structuredContent"]["prompts"]]
    assert advice[0].startswith("counted in 3 released models, which differ")
    assert advice[1].startswith("not measured: states")

    # Half of an emoji is invalid Unicode, which json.dumps writes as an escape.
    answer = client.call("balance_prompts", prompts=["A photo of a doctor \ud83d"])
    (row,) = answer["structuredContent"]["prompts"]
    assert row["prompt"].endswith("male doctor \ufffd")

    answer = client.call("balance_prompts", prompts=[DOCTOR], attribute="/etc/passwd")
    assert answer["isError"]
    assert "attribute: got" in answer["content"][0]["text"]
    assert client.call("balance_prompts", prompts=5)["isError"]

    client.process.stdin.close()
    assert client.process.wait(60) == 0
    assert "Traceback" not in (tmp_path / "stderr").read_text()
