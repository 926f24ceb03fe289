"""Test real clients for image generation services through `images_proxy`, in front of a server that
generates no images. LiteLLM's gateway calls the guardrail."""

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

openai = pytest.importorskip("openai", reason="make test-integrations installs it")
genai = pytest.importorskip("google.genai", reason="make test-integrations installs it")
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # otherwise, it would be downloaded
litellm = pytest.importorskip("litellm", reason="make test-integrations installs it")

from tests.apps.false_upstream import FalseServices, served  # noqa: E402
from vldebias import images_proxy  # noqa: E402

CEO = "A photo of a CEO"
FEMALE = "A photo of a female CEO"
MALE = "A photo of a male CEO"
SINGLE = 41
MANY = 200
MODALITIES = {"extra_body": {"modalities": ["image", "text"]}}
MESSAGES = [{"role": "user", "content": CEO}]


@pytest.fixture(scope="module")
def services() -> FalseServices:
    return FalseServices()


@pytest.fixture(scope="module")
def address(services: FalseServices) -> Iterator[str]:
    """Serve the proxy in front of the fake services, and yield its base_url with /v1."""
    with served(services.app) as upstream:
        proxy = images_proxy(upstream.removesuffix("/v1"), "gender", seed=0)
        with served(proxy) as base_url:
            yield base_url


@pytest.fixture(autouse=True)
def forget(services: FalseServices) -> None:
    services.seen.clear()


@pytest.fixture(scope="module")
def client(address: str) -> Any:
    return openai.OpenAI(base_url=address, api_key="k", max_retries=0, timeout=30)


@pytest.fixture(scope="module")
def gemini(address: str) -> Any:
    options = genai.types.HttpOptions(base_url=address.removesuffix("/v1"))
    return genai.Client(api_key="k", http_options=options)


def asks(client: Any, gemini: Any, address: str) -> dict[str, Callable[[], Any]]:
    """Return a request for one image for each client and path."""
    config = genai.types.GenerateContentConfig(response_modalities=["TEXT", "IMAGE"])
    models = gemini.models
    return {
        "openai images": lambda: client.images.generate(model="m", prompt=CEO),
        "openai chat": lambda: client.chat.completions.create(
            model="m", messages=MESSAGES, **MODALITIES
        ),
        "openai responses": lambda: client.responses.create(
            model="m", input=CEO, tools=[{"type": "image_generation"}]
        ),
        "openai videos": lambda: client.videos.create(model="sora-2", prompt=CEO),
        "genai content": lambda: models.generate_content(model="g", contents=CEO, config=config),
        "litellm images": lambda: litellm.image_generation(
            model="openai/gpt-image-1", prompt=CEO, api_base=address, api_key="k"
        ),
        "litellm chat": lambda: litellm.completion(
            model="openai/m", messages=MESSAGES, api_base=address, api_key="k", **MODALITIES
        ),
    }


NAMES = [
    "openai images",
    "openai chat",
    "openai responses",
    "openai videos",
    "genai content",
    "litellm images",
    "litellm chat",
]


@pytest.mark.parametrize("name", NAMES)
def test_single_image_requests_are_even(
    client: Any, gemini: Any, address: str, services: FalseServices, name: str
) -> None:
    ask = asks(client, gemini, address)[name]
    for _ in range(SINGLE):
        ask()
    counts = Counter(services.prompts())
    assert set(counts) == {FEMALE, MALE}
    # Clients on the same path count together, so one of them may start with the other value.
    assert sorted(counts.values()) == [20, 21]


def test_events_are_streamed(client: Any, gemini: Any, services: FalseServices) -> None:
    config = genai.types.GenerateContentConfig(response_modalities=["IMAGE"])
    chunks = client.chat.completions.create(model="m", messages=MESSAGES, stream=True, **MODALITIES)
    texts = [chunk.choices[0].delta.content for chunk in chunks]
    tools = [{"type": "image_generation"}]
    events = client.responses.create(model="m", input=CEO, tools=tools, stream=True)
    texts += [event.response.output_text for event in events]
    stream = gemini.models.generate_content_stream(model="g", contents=CEO, config=config)
    texts += [part.text for answer in stream for part in answer.parts if part.text]
    assert texts == services.prompts()
    assert set(texts) <= {FEMALE, MALE}


def test_concurrent_requests_are_all_answered(client: Any, services: FalseServices) -> None:
    def ask(place: int) -> int:
        made = client.images.generate(model="m", prompt=CEO)
        return len(made.data)

    with ThreadPoolExecutor(32) as threads:
        assert sum(threads.map(ask, range(MANY))) == MANY
    assert Counter(services.prompts()) == {FEMALE: MANY // 2, MALE: MANY // 2}


def test_litellm_calls_the_guardrail(services: FalseServices, address: str) -> None:
    hooks = "litellm.proxy.guardrails.guardrail_hooks.generic_guardrail_api"
    guardrails = pytest.importorskip(hooks)
    guard = guardrails.GenericGuardrailAPI(
        api_base=address.removesuffix("/v1"), guardrail_name="balanced", event_hook="pre_call"
    )

    async def ask() -> list[str]:
        inputs = {"texts": [CEO], "model": "gpt-image-1"}
        written = await guard.apply_guardrail(inputs, {"model": "m"}, "request", None)
        return list(written["texts"])

    async def ask_often() -> list[str]:
        texts = []
        for _ in range(40):
            texts += await ask()
        return texts

    counts = Counter(asyncio.run(ask_often()))
    # The proxy counts all requests in this module together.
    assert set(counts) == {FEMALE, MALE}
    assert abs(counts[FEMALE] - counts[MALE]) <= 2
