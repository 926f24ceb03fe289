"""Test the real openai client through `vldebias serve`, in front of a server that generates no
images."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

openai = pytest.importorskip("openai", reason="make test-integrations installs it")
pytest.importorskip("uvicorn", reason="pip install 'vldebias[serve]'")

from tests.apps.false_upstream import KEY, FalseUpstream, served, serving, wait_until  # noqa: E402

CEO = "A photo of a CEO in an office"


@pytest.fixture(scope="module")
def upstream() -> FalseUpstream:
    return FalseUpstream()


@pytest.fixture(scope="module")
def base_url(upstream: FalseUpstream) -> Iterator[str]:
    with served(upstream.app) as address, serving(address, "--seconds", "20") as (_, port):
        yield f"http://127.0.0.1:{port}/v1"


@pytest.fixture
def client(base_url: str) -> Any:
    return openai.OpenAI(base_url=base_url, api_key=KEY, max_retries=0, timeout=20)


def test_several_images_are_even(client: Any, upstream: FalseUpstream) -> None:
    made = client.images.generate(
        model="tiny", prompt=CEO, n=4, size="256x256", extra_body={"seed": 5}
    )
    prompts = [image.revised_prompt for image in made.data]
    assert Counter("female" in prompt for prompt in prompts) == {True: 2, False: 2}
    assert made.usage.total_tokens == 40
    calls = upstream.seen[-4:]
    assert sorted(call["seed"] for call in calls) == [5, 6, 7, 8]
    assert {(call["n"], call["size"]) for call in calls} == {(1, "256x256")}


def test_values_and_reasons_are_in_a_header(client: Any) -> None:
    raw = client.images.with_raw_response.generate(model="tiny", prompt="A king", n=2)
    assert '"values": [null, null]' in raw.headers["x-vldebias"]
    assert raw.parse().data[0].revised_prompt == "A king"


def test_other_client_calls_are_passed_through(client: Any) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    with pytest.raises(openai.NotFoundError):
        client.batches.retrieve("nothing")


@pytest.mark.parametrize(
    ("prompt", "n", "error", "code"),
    [
        ("A busy chef", 3, "RateLimitError", "rate_limit_exceeded"),
        ("A forbidden chef", 3, "BadRequestError", "moderation_blocked"),
        ("A chef", 0, "BadRequestError", "invalid_value"),
        ("A chef", 99, "BadRequestError", "invalid_value"),
        ("", 1, "BadRequestError", "invalid_value"),
    ],
)
def test_errors_are_raised_as_client_exceptions(
    client: Any, prompt: str, n: int, error: str, code: str
) -> None:
    with pytest.raises(getattr(openai, error)) as raised:
        client.images.generate(model="tiny", prompt=prompt, n=n)
    assert raised.value.code == code
    assert raised.value.body["message"]


def test_a_wrong_key_is_reported_by_the_server(base_url: str) -> None:
    client = openai.OpenAI(base_url=base_url, api_key="sk-wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError) as raised:
        client.images.generate(model="tiny", prompt=CEO)
    assert raised.value.code == "invalid_api_key"
    assert raised.value.request_id == "r-401"


def test_a_client_that_stops_waiting_cancels_its_calls(
    base_url: str, upstream: FalseUpstream
) -> None:
    client = openai.OpenAI(base_url=base_url, api_key=KEY, max_retries=0, timeout=0.5)
    before = upstream.cancelled
    with pytest.raises(openai.APITimeoutError):
        client.images.generate(model="tiny", prompt="A slow chef", n=2)
    wait_until(lambda: upstream.cancelled == before + 2)


def test_images_are_streamed_as_events(client: Any) -> None:
    events = client.images.generate(model="tiny", prompt=CEO, stream=True, partial_images=1)
    assert len(list(events)) == 3
