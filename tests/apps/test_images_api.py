"""Test the images API with balanced prompts, in front of a server that does not generate images."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import AsyncMock, Mock

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.apps.false_upstream import KEY, FalseUpstream, port_of, served, serving, wait_until
from tests.cli.conftest import call
from vldebias import ProxyLimits, images_proxy
from vldebias.errors import InvalidInputError
from vldebias.wording import Balancer

PATH = "/v1/images/generations"
CEO = "A photo of a CEO in an office"
KING = "A photo of a king"
RIGHT = {"authorization": f"Bearer {KEY}"}
VALUES = {
    "A photo of a female CEO in an office": "female",
    "A photo of a male CEO in an office": "male",
}
Calls = Callable[[httpx2.AsyncClient], Awaitable[Any]]


def ask(app: Any, calls: Calls) -> Any:
    """Return the result of requests to an app in this process."""

    async def asking() -> Any:
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://here") as client:
            return await calls(client)

    return asyncio.run(asking())


def proxy(upstream: FalseUpstream, **how: Any) -> Any:
    how.setdefault("transport", httpx2.ASGITransport(app=upstream.app))
    how.setdefault("seed", 0)
    return images_proxy("http://there/v1", how.pop("attribute", "gender"), **how)


def post(app: Any, body: Any, **headers: str) -> httpx2.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()

    async def calls(client: httpx2.AsyncClient) -> httpx2.Response:
        return await client.post(PATH, content=content, headers={**RIGHT, **headers})

    return ask(app, calls)  # type: ignore[no-any-return]


def note(response: httpx2.Response) -> Any:
    return json.loads(response.headers["x-vldebias"])


def test_n_images_become_n_calls_with_even_values() -> None:
    upstream = FalseUpstream()
    body = {"prompt": CEO, "n": 4, "seed": 7, "model": "tiny", "size": "8x8", "steps": 3}
    response = post(proxy(upstream), body)
    assert response.status_code == 200
    assert Counter(VALUES[call["prompt"]] for call in upstream.seen) == {"female": 2, "male": 2}
    assert sorted(call["seed"] for call in upstream.seen) == [7, 8, 9, 10]
    assert {call["n"] for call in upstream.seen} == {1}
    assert all((call["model"], call["steps"]) == ("tiny", 3) for call in upstream.seen)
    assert {headers["authorization"] for headers in upstream.headers} == {f"Bearer {KEY}"}
    answer = response.json()
    prompts = [image["revised_prompt"] for image in answer["data"]]
    assert [VALUES[prompt] for prompt in prompts] == note(response)["values"]
    fields_of_image = [image["b64_json"].split("|") for image in answer["data"]]
    assert [prompt for prompt, _, _ in fields_of_image] == prompts
    assert [seed for _, seed, _ in fields_of_image] == ["7", "8", "9", "10"]
    assert answer["usage"] == {"total_tokens": 40, "input_tokens_details": {"text_tokens": 16}}
    assert (answer["created"], answer["size"]) == (5, "8x8")
    assert response.headers["x-request-id"] == "r-200"


def test_a_batch_makes_one_call_per_distinct_prompt() -> None:
    upstream = FalseUpstream()
    response = post(proxy(upstream, batch=True), {"prompt": CEO, "n": 5})
    assert sorted(call["n"] for call in upstream.seen) == [2, 3]
    assert len({call["prompt"] for call in upstream.seen}) == 2
    images = response.json()["data"]
    assert [VALUES[image["revised_prompt"]] for image in images] == note(response)["values"]
    assert len({image["b64_json"] for image in images}) == 5


def test_prompts_that_state_a_value_are_passed_unchanged() -> None:
    upstream = FalseUpstream()
    response = post(proxy(upstream), {"prompt": KING, "n": 2, "seed": 1})
    assert [call["prompt"] for call in upstream.seen] == [KING, KING]
    assert sorted(call["seed"] for call in upstream.seen) == [1, 2]
    assert note(response)["values"] == [None, None]
    assert all(note(response)["reasons"])


def test_a_request_without_n_and_seed_is_passed_without_them() -> None:
    upstream = FalseUpstream()
    post(proxy(upstream), {"prompt": CEO})
    assert set(upstream.seen[0]) == {"prompt"}
    post(proxy(upstream), {"prompt": CEO, "n": None})
    assert upstream.seen[1]["n"] == 1


def test_several_sets_and_shares_are_supported() -> None:
    upstream = FalseUpstream()
    response = post(proxy(upstream, attribute=["gender", "age"]), {"prompt": CEO, "n": 4})
    assert len({tuple(values) for values in note(response)["values"]}) > 2
    response = post(proxy(upstream, shares={"female": 1, "male": 0}), {"prompt": CEO, "n": 3})
    assert note(response)["values"] == ["female"] * 3


def test_a_balancer_uses_its_own_settings() -> None:
    upstream = FalseUpstream()
    balancer = Balancer("gender", people="leave", seed=3)
    post(
        images_proxy("http://there/v1", balancer, transport=httpx2.ASGITransport(app=upstream.app)),
        {"prompt": "five engineers"},
    )
    assert upstream.seen[0]["prompt"] == "five engineers"


@pytest.mark.parametrize(
    ("prompt", "status", "calls"),
    [
        ("A busy chef", 429, 3),
        ("A chef of tomorrow", 429, 1),
        ("A forbidden chef", 400, 1),
    ],
)
@pytest.mark.parametrize("n", [1, 3])
def test_upstream_errors_are_returned(prompt: str, status: int, calls: int, n: int) -> None:
    upstream = FalseUpstream()
    response = post(proxy(upstream), {"prompt": prompt, "n": n})
    assert response.status_code == status
    assert response.json()["error"]["code"] in (
        "rate_limit_exceeded",
        "quota",
        "moderation_blocked",
    )
    assert len(upstream.seen) == calls * n
    if status == 429 and calls > 1:
        assert response.headers["retry-after-ms"] == "10"
        assert response.headers["x-request-id"] == "r-429"
    if "tomorrow" in prompt:
        assert response.headers["retry-after"] == "86400", "it is left to the client"


def test_images_that_were_paid_for_are_returned() -> None:
    upstream = FalseUpstream()
    response = post(proxy(upstream), {"prompt": "A lopsided CEO", "n": 4})
    assert response.status_code == 200
    assert [("female" in image["revised_prompt"]) for image in response.json()["data"]] == [
        False
    ] * 2
    assert note(response) == {"values": ["male"] * 2, "reasons": [None] * 2, "failed": 2}
    assert response.json()["usage"]["total_tokens"] == 20
    assert len(upstream.seen) == 4, "a refused request is not retried"


def test_slow_calls_time_out_and_the_others_are_returned() -> None:
    upstream = FalseUpstream()
    app = proxy(upstream, limits=ProxyLimits(seconds=0.4))
    began = time.monotonic()
    response = post(app, {"prompt": "A slow chef", "n": 2})
    assert (response.status_code, response.json()["error"]["code"]) == (504, "upstream_timeout")
    response = post(app, {"prompt": "A sluggish chef", "n": 2})
    assert note(response)["values"] == ["male"]
    assert note(response)["failed"] == 1
    assert time.monotonic() - began < 10


def test_an_unreachable_server_and_an_invalid_answer_are_reported() -> None:
    with socket.socket() as occupied:
        occupied.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{occupied.getsockname()[1]}/v1"
        app = images_proxy(address, "gender", limits=ProxyLimits(retries=0))
        response = post(app, {"prompt": CEO})
        assert response.status_code == 502
        assert response.json()["error"]["code"] == "upstream_unreachable"
        assert ask(app, lambda client: client.get("/v1/models")).status_code == 502
    response = post(proxy(FalseUpstream()), {"prompt": "A shapeless CEO", "n": 2})
    assert response.status_code == 502
    assert response.json()["error"]["code"] == "upstream_form"


BAD: list[Any] = [
    (b"{", 400, "not JSON"),
    (b"[" * 100_000, 400, "not JSON"),
    (b"\xff", 400, "not JSON"),
    (b'{"prompt": "A CEO", "guidance": NaN}', 400, "not JSON"),
    (b'{"prompt": "A CEO", "guidance": -Infinity}', 400, "not JSON"),
    (b'{"prompt": "A CEO", "guidance": 1e999}', 400, "not JSON"),
    (b'{"prompt": "A CEO \\ud83d"}', 400, "not JSON"),
    (b'{"prompt": "A CEO", "\\udc00": 1}', 400, "not JSON"),
    (b'{"prompt": "A CEO \xed\xa0\xbd"}', 400, "not JSON"),
    ('{"prompt": "A CEO"}'.encode("utf-16"), 400, "not JSON"),
    (b'{"prompt": "A CEO", "seed": ' + b"9" * 5000 + b"}", 400, "not JSON"),
    pytest.param(
        *(b'{"prompt": "A CEO", "x": ' + b"[" * 5000 + b"]" * 5000 + b"}", 400, "not JSON"),
        marks=pytest.mark.skipif(sys.version_info >= (3, 13), reason="Python 3.13 parses this"),
    ),
    (b"[" + b"[]," * 100_000 + b"1]", 400, "more than 100,000 lists, objects and commas"),
    ([1], 400, "not a JSON object"),
    ({}, 400, "prompt: expected a non-empty string"),
    ({"prompt": " "}, 400, "prompt: expected a non-empty string"),
    ({"prompt": ["A CEO"]}, 400, "prompt: expected a non-empty string"),
    ({"prompt": CEO, "n": 0}, 400, "n: expected a whole number from 1 to 16"),
    ({"prompt": CEO, "n": 17}, 400, "n: expected a whole number from 1 to 16"),
    ({"prompt": CEO, "n": True}, 400, "n: expected a whole number"),
    ({"prompt": CEO, "n": 1.0}, 400, "n: expected a whole number"),
    ({"prompt": CEO, "n": 2, "stream": True}, 400, "several images cannot be streamed"),
    ({"prompt": "x" * 1_000_001}, 413, "more than 1,000,000 bytes"),
]


@pytest.mark.parametrize(("body", "status", "message"), BAD)
def test_invalid_requests_are_explained_and_not_passed_on(
    body: Any, status: int, message: str
) -> None:
    upstream = FalseUpstream()
    response = post(proxy(upstream), body)
    assert response.status_code == status
    assert message in response.json()["error"]["message"]
    assert not upstream.seen


@pytest.mark.parametrize("name", ["num_images", "num_images_per_prompt", "batch_size"])
def test_other_names_for_the_number_of_images_are_balanced_as_well(name: str) -> None:
    upstream = FalseUpstream()
    response = post(proxy(upstream), {"prompt": CEO, name: 4})
    assert Counter(note(response)["values"]) == {"female": 2, "male": 2}
    assert [body[name] for body in upstream.seen] == [1] * 4
    response = post(proxy(upstream), {"prompt": CEO, name: 4, "n": 2})
    assert response.status_code == 400
    assert "the same number of images" in response.json()["error"]["message"]


def test_invalid_headers_are_explained() -> None:
    upstream = FalseUpstream()
    for index in ("-1", "one", "9" * 30):
        response = post(proxy(upstream), {"prompt": CEO}, **{"x-vldebias-index": index})
        assert response.status_code == 400
    response = post(proxy(upstream), {"prompt": CEO}, **{"content-encoding": "gzip"})
    assert response.status_code == 415
    assert not upstream.seen


def test_concurrent_calls_and_requests_stay_within_the_limits() -> None:
    upstream = FalseUpstream(seconds=0.02)
    app = proxy(upstream, limits=ProxyLimits(parallel=3, requests=4))

    async def calls(client: httpx2.AsyncClient) -> list[int]:
        body = {"prompt": CEO, "n": 4}
        requests = [client.post(PATH, json=body, headers=RIGHT) for _ in range(6)]
        return [response.status_code for response in await asyncio.gather(*requests)]

    assert Counter(ask(app, calls)) == {200: 4, 503: 2}
    assert upstream.most == 3


def test_an_index_gives_even_values_that_do_not_depend_on_the_process() -> None:
    values = []
    for index in [*range(0, 12, 3)] * 2:  # each request reaches a different process
        app = proxy(FalseUpstream(), seed=None)
        response = post(app, {"prompt": CEO, "n": 3}, **{"x-vldebias-index": str(index)})
        values += note(response)["values"]
    assert values[:12] == values[12:]
    assert Counter(values[:12]) == {"female": 6, "male": 6}


def test_other_paths_are_passed_through() -> None:
    upstream = FalseUpstream()

    async def calls(client: httpx2.AsyncClient) -> list[httpx2.Response]:
        picture = {"image": ("a.png", b"\x89PNG" * 1000)}
        return [
            await client.get("/v1/models?after=x"),
            await client.post("/v1/images/edits", files=picture, data={"prompt": CEO}),
            await client.delete("/v1/files/f1"),
            await client.get("/v1/nothing"),
            await client.get("/models"),
        ]

    models, edited, removed, nothing, short = ask(proxy(upstream), calls)
    assert models.json()["query"] == "after=x"
    assert models.headers.get_list("set-cookie") == ["a=1", "b=2"]
    assert models.headers["x-vldebias"] == "not balanced (models)"
    assert (edited.text, removed.status_code, nothing.status_code) == ("edited", 204, 404)
    assert note(edited) == {"values": [], "reasons": ["edits a given image"]}
    assert upstream.raw[0].count(b"\x89PNG") == 1000
    assert CEO.encode() in upstream.raw[0]
    assert upstream.headers[0]["content-length"] == str(len(upstream.raw[0]))
    assert short.json()["data"][0]["id"] == "tiny"


def test_prompts_and_keys_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for prompt in (CEO, KING, "A forbidden CEO", "A busy CEO", "A shapeless CEO"):
        post(proxy(FalseUpstream()), {"prompt": prompt, "n": 2})
    post(proxy(FalseUpstream()), b"{ a CEO")
    text = " ".join(record.getMessage() for record in caplog.records)
    assert "images/generations: 200" in text
    assert not any(word in text for word in ("CEO", "king", KEY))
    post(proxy(FalseUpstream(), log_prompts=True), {"prompt": CEO})
    assert CEO in caplog.text
    assert KEY not in caplog.text


def test_a_client_that_disconnects_cancels_its_calls() -> None:
    upstream = FalseUpstream()
    with served(upstream.app) as address, served(images_proxy(address, "gender")) as front:
        body = json.dumps({"prompt": "A slow chef", "n": 3}).encode()
        port = port_of(front)
        head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            wait_until(lambda: upstream.now == 3)
        wait_until(lambda: upstream.cancelled == 3)
    assert upstream.now == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"upstream": "api.openai.com"}, "expected a client's base_url"),
        ({"upstream": "https://api.openai.com/v1?key=sk-1"}, "without a key"),
        ({"upstream": "https://me:sk-1@api.openai.com/v1"}, "without a key"),
        ({"upstream": "https://x:port/v1"}, "expected a client's base_url"),
        ({"attribute": "gendre"}, "did you mean"),
        ({"shares": {"female": 2.0}}, "shares"),
        ({"attribute": Balancer("gender"), "seed": 1}, "a Balancer has its own"),
    ],
)
def test_inconsistent_settings_are_rejected(arguments: dict[str, Any], message: str) -> None:
    settings = {"upstream": "https://api.openai.com/v1", "attribute": "gender", **arguments}
    with pytest.raises(InvalidInputError, match=message) as refusal:
        images_proxy(**settings)
    assert "sk-1" not in str(refusal.value)
    with pytest.raises(InvalidInputError, match="seconds"):
        ProxyLimits(seconds=0)


def test_the_command_only_serves_this_machine_until_it_is_stopped() -> None:
    upstream = FalseUpstream()
    with served(upstream.app) as address, serving(address) as (_, port):
        url = f"http://127.0.0.1:{port}{PATH}"
        body = {"prompt": CEO, "n": 2}
        response = httpx2.post(url, json=body, headers=RIGHT)
        assert sorted(note(response)["values"]) == ["female", "male"]
        for headers in ({"host": "evil.example"}, {"origin": "https://evil.example"}):
            foreign = httpx2.post(url, json=body, headers={**RIGHT, **headers})
            assert foreign.status_code == (400 if "host" in headers else 403)
            assert "x-vldebias" in foreign.headers
        assert len(upstream.seen) == 2


def test_invalid_options_are_explained() -> None:
    command = "serve --attribute gender --upstream"
    with pytest.raises(InvalidInputError, match="expected a client's base_url"):
        call(f"{command} localhost")
    with socket.socket() as occupied:
        occupied.bind(("127.0.0.1", 0))
        occupied.listen()
        port = occupied.getsockname()[1]
        with pytest.raises(InvalidInputError, match="cannot be opened"):
            call(f"{command} http://127.0.0.1:1/v1 --port {port}")


def values_of_seeds(seeds: range, **how: Any) -> list[str]:
    """Return the value for each seed from a server that was just started."""
    app = proxy(FalseUpstream(), **how)
    return [note(post(app, {"prompt": CEO, "seed": seed}))["values"][0] for seed in seeds]


def test_a_seed_gives_the_same_value_after_a_restart_and_each_pair_has_both_values() -> None:
    values = values_of_seeds(range(40), seed=None)
    assert values == values_of_seeds(range(40), seed=None)
    assert all(set(values[i : i + 2]) == {"female", "male"} for i in range(0, 40, 2))
    # The pairs are not all in the same order.
    assert len({values[i] for i in range(0, 40, 2)}) == 2
    assert values != values_of_seeds(range(40), seed=5)


def test_the_largest_seed_is_accepted() -> None:
    upstream = FalseUpstream()
    response = post(proxy(upstream, seed=None), {"prompt": CEO, "seed": 2**64 - 1})
    assert response.status_code == 200
    assert upstream.seen[0]["seed"] == 2**64 - 1


def test_200_servers_with_one_request_each_give_both_values_about_as_often() -> None:
    values: Counter[str] = Counter()
    for _ in range(200):
        response = post(proxy(FalseUpstream(), seed=None), {"prompt": CEO})
        values.update(note(response)["values"])
    # Fewer than 60 of 200 have a probability of one in a hundred million.
    assert min(values["female"], values["male"]) >= 60


@pytest.mark.parametrize("status", [408, 409, 429, 503])
def test_calls_that_the_server_did_not_work_on_are_retried(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream = FalseUpstream()
    failure = Response(status_code=status, headers={"retry-after": "0"})
    monkeypatch.setattr(upstream, "_failure", Mock(side_effect=[failure, failure, None]))
    refusal = post(proxy(upstream, limits=ProxyLimits(retries=0)), {"prompt": CEO})
    assert refusal.status_code == status
    assert post(proxy(upstream), {"prompt": CEO}).status_code == 200
    assert len(upstream.seen) == 3


@pytest.mark.parametrize("status", [500, 502, 504])
def test_failures_after_which_the_images_may_be_charged_are_not_retried(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream = FalseUpstream()
    failure = Response(b"broken", status_code=status)
    monkeypatch.setattr(upstream, "_failure", Mock(side_effect=[failure, None]))
    response = post(proxy(upstream), {"prompt": CEO})
    assert (response.status_code, response.content) == (status, b"broken")
    assert len(upstream.seen) == 1


ERRORS: list[tuple[type[httpx2.TransportError], int]] = [
    (httpx2.ConnectError, 3),
    (httpx2.ConnectTimeout, 3),
    (httpx2.PoolTimeout, 3),
    (httpx2.ReadError, 1),
    (httpx2.WriteError, 1),
    (httpx2.ReadTimeout, 1),
    (httpx2.WriteTimeout, 1),
    (httpx2.RemoteProtocolError, 1),
    (httpx2.CloseError, 1),
]


@pytest.mark.parametrize(("error", "calls"), ERRORS)
def test_only_calls_that_did_not_reach_the_server_are_made_again(
    error: type[httpx2.TransportError], calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apps.images_api.upstream.backoff", lambda attempt: 0.0)
    failing = AsyncMock(side_effect=error("it failed"))
    transport = Mock(spec=httpx2.AsyncBaseTransport, handle_async_request=failing)
    response = post(images_proxy("http://there/v1", "gender", transport=transport), {"prompt": CEO})
    assert response.status_code in (502, 504)
    assert failing.await_count == calls


def of_several_images(n: int) -> Any:
    """Return a server that answers each call with n images."""

    async def answer(request: Request) -> JSONResponse:
        prompt = (await request.json())["prompt"]
        return JSONResponse({"data": [{"b64_json": f"{prompt}|{place}"} for place in range(n)]})

    return httpx2.ASGITransport(Starlette(routes=[Route(PATH, answer, methods=["POST"])]))


@pytest.mark.parametrize("batch", [False, True])
def test_no_image_is_lost_if_the_server_returns_more_than_requested(batch: bool) -> None:
    app = images_proxy("http://there/v1", "gender", transport=of_several_images(3), batch=batch)
    response = post(app, {"prompt": CEO, "n": 2})
    images = [image["b64_json"].split("|") for image in response.json()["data"]]
    assert Counter(place for _, place in images) == {"0": 2, "1": 2, "2": 2}
    assert note(response)["values"] == [VALUES[prompt] for prompt, _ in images]
    assert Counter(note(response)["values"]) == {"female": 3, "male": 3}
    assert "share" in note(response)["shared"]
    assert "failed" not in note(response)


def test_the_header_only_says_that_images_share_a_value_if_they_may() -> None:
    app = proxy(FalseUpstream())
    field = "sequential_image_generation"
    for fields, shares in (
        ({}, False),
        ({field: "disabled"}, False),
        ({field: "auto"}, True),
        ({"extra_body": {field: "auto"}}, True),
    ):
        assert ("shared" in note(post(app, {"prompt": CEO, **fields}))) == shares
    response = post(app, {"prompt": CEO, "num_outputs_per_prompt": 4})
    assert Counter(note(response)["values"]) == {"female": 2, "male": 2}
    assert "shared" not in note(response)


def test_the_end_of_the_app_closes_the_client_of_the_upstream_server() -> None:
    answering = httpx2.ASGITransport(app=FalseUpstream().app)
    closing = AsyncMock()
    transport = Mock(
        spec=httpx2.AsyncBaseTransport,
        handle_async_request=answering.handle_async_request,
        aclose=closing,
    )
    app = images_proxy("http://there/v1", "gender", transport=transport)

    async def live() -> None:
        async with app.router.lifespan_context(app):
            async with httpx2.AsyncClient(
                transport=httpx2.ASGITransport(app=app), base_url="http://here"
            ) as client:
                response = await client.post(PATH, json={"prompt": CEO}, headers=RIGHT)
            assert response.status_code == 200
            closing.assert_not_awaited()

    asyncio.run(live())
    closing.assert_awaited_once()
