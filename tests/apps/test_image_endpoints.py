"""Test that every path on which clients request images is balanced, or reports that it is not."""

from __future__ import annotations

import base64
import json
import logging
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import vldebias
from tests.apps.false_upstream import FalseServices
from tests.apps.test_images_api import ask, note
from vldebias import debias_queries, images_proxy
from vldebias.errors import InvalidInputError
from vldebias.wording import Balancer

vectors_of = import_module("apps.images_api.embeddings").vectors_of

CEO = "A photo of a CEO"
FEMALE = "A photo of a female CEO"
MALE = "A photo of a male CEO"
GEMINI = "v1beta/models/gemini-x:generateContent"
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aaaa"}}
PNG = {"inlineData": {"mimeType": "image/png", "data": "aaaa"}}

BODIES: dict[str, dict[str, Any]] = {
    "v1/images/generations": {"prompt": CEO},
    "v1/images": {"model": "seedream", "prompt": CEO},
    "v1/chat/completions": {
        "modalities": ["image", "text"],
        "messages": [{"role": "system", "content": "Draw."}, {"role": "user", "content": CEO}],
    },
    "v1/responses": {"tools": [{"type": "image_generation"}], "input": CEO},
    "v1/videos": {"model": "sora-2", "prompt": CEO},
    GEMINI: {
        "contents": [{"role": "user", "parts": [{"text": CEO}]}],
        "generationConfig": {"responseModalities": ["TEXT", "IMAGE"]},
    },
    "v1beta/models/imagen-4:predict": {
        "instances": [{"prompt": CEO}],
        "parameters": {"sampleCount": 1},
    },
}
MANY = {
    "v1/images/generations": ("n", "data"),
    "v1/images": ("n", "data"),
    "v1/chat/completions": ("n", "choices"),
    GEMINI: ("generationConfig.candidateCount", "candidates"),
    "v1beta/models/imagen-4:predict": ("parameters.sampleCount", "predictions"),
}


def proxy(services: FalseServices, upstream: str = "http://there", **how: Any) -> Any:
    how.setdefault("seed", 0)
    return images_proxy(upstream, "gender", transport=httpx2.ASGITransport(services.app), **how)


def post(app: Any, path: str, *bodies: Any, **how: Any) -> list[httpx2.Response]:
    async def calls(client: httpx2.AsyncClient) -> list[httpx2.Response]:
        return [await client.post(f"/{path}", json=body, **how) for body in bodies]

    return ask(app, calls)  # type: ignore[no-any-return]


def changed(body: dict[str, Any], name: str, number: Any) -> dict[str, Any]:
    """Return a copy of the fields in which one field, such as "a.b", is changed."""
    first, _, rest = name.partition(".")
    if rest:
        return {**body, first: changed(body.get(first, {}), rest, number)}
    return {**body, first: number}


def seeded(path: str, seed: int) -> dict[str, Any]:
    """Return a request with a seed, next to the field with the number of images."""
    folder, dot, _ = MANY[path][0].rpartition(".")
    return changed(BODIES[path], f"{folder}{dot}seed", seed)


@pytest.mark.parametrize("path", BODIES)
def test_values_are_even_over_single_image_requests(path: str) -> None:
    services = FalseServices()
    answers = post(proxy(services), path, *[BODIES[path]] * 41)
    assert {answer.status_code for answer in answers} == {200}
    assert sorted(Counter(services.prompts()).values()) == [20, 21]
    assert set(services.prompts()) == {FEMALE, MALE}
    written = [{"female": FEMALE, "male": MALE}[note(answer)["values"][0]] for answer in answers]
    assert written == services.prompts()
    assert {seen for seen, _ in services.seen} == {path}


@pytest.mark.parametrize("path", BODIES)
def test_all_fields_except_the_prompt_are_passed_unchanged(path: str) -> None:
    services = FalseServices()
    post(proxy(services), path, {**BODIES[path], "user": "u", "extra": {"a": [1]}})
    ((_, body),) = services.seen
    restored = json.loads(json.dumps(body).replace(" female", "").replace(" male", ""))
    assert restored == {**BODIES[path], "user": "u", "extra": {"a": [1]}}


@pytest.mark.parametrize("path", MANY)
def test_n_images_become_n_requests(path: str) -> None:
    name, items = MANY[path]
    for body, n in ((BODIES[path], 4), *((seeded(path, seed), 2) for seed in range(6))):
        services = FalseServices()
        (answer,) = post(proxy(services), path, changed(body, name, n))
        assert Counter(services.prompts()) == {FEMALE: n / 2, MALE: n / 2}
        assert len(answer.json()[items]) == n
        assert Counter(note(answer)["values"]) == {"female": n / 2, "male": n / 2}
        if items in ("choices", "candidates"):
            assert [item["index"] for item in answer.json()[items]] == list(range(n))


@pytest.mark.parametrize("path", MANY)
def test_a_seed_decides_the_values(path: str) -> None:
    twice = []
    for _ in range(2):
        services = FalseServices()
        app = proxy(services)
        post(app, path, *[BODIES[path]] * 3)  # earlier requests do not matter
        post(app, path, *[seeded(path, 7)] * 3)
        twice += services.prompts()[3:]
    assert len(set(twice)) == 1
    services = FalseServices()
    post(proxy(services), path, *[seeded(path, seed) for seed in range(10)])
    assert Counter(services.prompts()) == {FEMALE: 5, MALE: 5}, "consecutive seeds are even"


@pytest.mark.parametrize(("how", "seed"), [({"follow_seeds": False}, 7), ({}, -1)])
def test_seeds_are_ignored_if_that_is_switched_off_or_if_they_are_minus_one(
    how: dict[str, bool], seed: int
) -> None:
    services = FalseServices()
    body = {"prompt": CEO, "seed": seed}
    post(proxy(services, **how), "v1/images/generations", body, body)
    assert set(services.prompts()) == {FEMALE, MALE}
    assert {body["seed"] for _, body in services.seen} == {seed}


@pytest.mark.parametrize(
    "path", ["v1/images/generations", "v1/chat/completions", "v1/responses", GEMINI]
)
def test_one_image_is_streamed(path: str) -> None:
    services = FalseServices()
    body = BODIES[path]
    if path == GEMINI:
        path = path.replace(":generate", ":streamGenerate")
    else:
        body = {**body, "stream": True}
    (answer,) = post(proxy(services), path, body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert set(services.prompts()) <= {FEMALE, MALE}
    assert services.prompts()[0] in answer.text
    assert note(answer)["values"][0] in services.prompts()[0]


def test_several_images_are_not_streamed() -> None:
    body = {**BODIES["v1/chat/completions"], "n": 2, "stream": True}
    (answer,) = post(proxy(FalseServices()), "v1/chat/completions", body)
    assert answer.status_code == 400
    assert "stream" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("v1/audio/speech", {"input": CEO}),
        ("v1/chat/completions", {"model": "gpt-5", "messages": [{"role": "user", "content": CEO}]}),
        ("v1/responses", {"model": "gpt-5", "input": CEO}),
        ("v1beta/models/gemini-3:generateContent", {"contents": [{"parts": [{"text": CEO}]}]}),
        ("v1/threads/ä b/messages", {"prompt": CEO}),
    ],
)
def test_requests_without_images_are_passed_on_and_reported(path: str, body: Any) -> None:
    services = FalseServices()
    (answer,) = post(proxy(services), path, body)
    assert services.seen[0][1] == body
    assert answer.headers["x-vldebias"].startswith("not balanced (")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("v1/images", {"prompt": CEO, "input_references": [PICTURE]}),
        (
            "v1/chat/completions",
            {
                "modalities": ["image"],
                "messages": [{"role": "user", "content": [{"type": "text", "text": CEO}, PICTURE]}],
            },
        ),
        (
            "v1/chat/completions",
            {
                "modalities": ["image"],
                "messages": [
                    {"role": "assistant", "content": "", "images": [PICTURE]},
                    {"role": "user", "content": CEO},
                ],
            },
        ),
        (
            "v1/responses",
            {
                "tools": [{"type": "image_generation"}],
                "input": [
                    {"type": "image_generation_call", "id": "i"},
                    {"role": "user", "content": CEO},
                ],
            },
        ),
        (
            GEMINI,
            {
                "contents": [{"parts": [{"text": CEO}, PNG]}],
                "generationConfig": {"responseModalities": ["IMAGE"]},
            },
        ),
        ("v1/videos/v1/remix", {"prompt": CEO}),
    ],
)
def test_edits_of_given_images_are_left_unchanged_and_reported(path: str, body: Any) -> None:
    services = FalseServices()
    (answer,) = post(proxy(services), path, body)
    assert services.seen[0][1] == body
    assert note(answer) == {"values": [], "reasons": ["edits a given image"]}


HER = "https://host.example/her.png"
ENCODED = "iVBORw0KGgo" * 9


@pytest.mark.parametrize(
    "name",
    [
        "image",
        "image_url",
        "images",
        "image_urls",
        "input_image",
        "reference_images",
        "ref_images",
        "init_image",
        "subject_images_of_the_next_server",
    ],
)
@pytest.mark.parametrize(
    "value",
    [
        HER,
        [HER],
        "data:image/png;base64,aaaa",
        ENCODED,
        {"url": HER},
        {"file_id": "f1"},
        [{"type": "image_url", "image_url": {"url": HER}}],
        {"b64_json": ENCODED},
    ],
)
def test_an_image_in_any_field_of_json_leaves_the_prompt_unchanged(name: str, value: Any) -> None:
    services = FalseServices()
    bodies = [{"prompt": CEO, name: value}, {"prompt": CEO, "extra_body": {"a": {name: value}}}]
    for body, answer in zip(
        bodies, post(proxy(services), "v1/images/generations", *bodies), strict=True
    ):
        assert note(answer) == {"values": [], "reasons": ["edits a given image"]}
        assert services.seen.pop(0)[1] == body


@pytest.mark.parametrize(
    "fields",
    [
        {"image": None, "images": [], "init_image": "", "reference_images": [None, ""]},
        {"image_format": "png", "image_size": "1024x1024", "image_quality": "high"},
        {"image": "none", "return_image": "auto", "image_size": {"width": 512, "height": 512}},
        {"image_guidance": 1.5, "image_count": 3, "image_tiling": True},
        {"image_config": {"aspect_ratio": "16:9", "file_id": ""}, "image_style": "x" * 65 + "?"},
        {"webhook": HER, "style": ENCODED, "extra_body": {"user": HER}},
    ],
)
def test_settings_of_an_image_are_no_image(fields: dict[str, Any]) -> None:
    services = FalseServices()
    post(proxy(services), "v1/images/generations", {"prompt": CEO, **fields})
    assert services.prompts()[0] in {FEMALE, MALE}


DRAWS = {"tools": [{"type": "image_generation"}]}


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("v1/responses", {**DRAWS, "input": CEO, "previous_response_id": "r"}, "continues"),
        ("v1/responses", {**DRAWS, "input": CEO, "conversation": {"id": "c"}}, "continues"),
        (
            "v1/responses",
            {
                **DRAWS,
                "input": [{"type": "item_reference", "id": "i"}, {"role": "user", "content": CEO}],
            },
            "continues",
        ),
        (
            "v1/responses",
            {"tools": [{"type": "image_generation", "action": "edit"}], "input": CEO},
            "edits",
        ),
        (
            "v1/responses",
            {
                "tools": [{"type": "image_generation", "input_image_mask": {"file_id": "f"}}],
                "input": CEO,
            },
            "edits",
        ),
        (
            "v1/responses",
            {
                **DRAWS,
                "input": [
                    {"role": "user", "content": [{"type": "input_image", "file_id": "f"}]},
                    {"role": "user", "content": CEO},
                ],
            },
            "edits",
        ),
        (
            "v1/chat/completions",
            {
                "modalities": ["image"],
                "messages": [
                    {"role": "user", "content": [PICTURE]},
                    {"role": "assistant", "content": "Nice."},
                    {"role": "user", "content": CEO},
                ],
            },
            "edits",
        ),
        (GEMINI, {**BODIES[GEMINI], "cachedContent": "cachedContents/c"}, "continues"),
        ("v1/videos", {"prompt": CEO, "first_frame": {"url": HER}}, "edits"),
    ],
)
def test_a_request_about_an_earlier_image_is_left_unchanged(
    path: str, body: Any, reason: str
) -> None:
    services = FalseServices()
    (answer,) = post(proxy(services), path, body)
    assert services.seen[0][1] == body
    assert note(answer)["values"] == []
    (given,) = note(answer)["reasons"]
    assert (
        given
        == {
            "edits": "edits a given image",
            "continues": "continues a conversation that may show somebody",
        }[reason]
    )


def test_a_first_request_of_responses_is_balanced() -> None:
    services = FalseServices()
    tools = [{"type": "image_generation", "action": "generate", "input_image_mask": None}]
    body = {"tools": tools, "input": CEO, "previous_response_id": None, "conversation": None}
    post(proxy(services), "v1/responses", body)
    assert services.prompts()[0] in {FEMALE, MALE}


def test_patterns_identify_image_models() -> None:
    services = FalseServices()
    messages = [{"role": "user", "content": CEO}]
    body = {"model": "maker/painter-2", "messages": messages}
    post(proxy(services, image_models=["painter-*"]), "v1/chat/completions", body)
    assert services.prompts()[0] in {FEMALE, MALE}
    listed = {"model": "google/gemini-2.5-flash-image", "messages": messages}
    post(proxy(services), "v1/chat/completions", listed)
    assert services.prompts()[1] in {FEMALE, MALE}


def test_all_text_parts_of_a_message_get_one_value() -> None:
    services = FalseServices()
    parts = [{"type": "text", "text": CEO}, {"type": "text", "text": "The CEO smiles."}]
    body = {"modalities": ["image"], "messages": [{"role": "user", "content": parts}]}
    post(proxy(services), "v1/chat/completions", *[body] * 8)
    for prompt in services.prompts():
        assert (" female " in prompt) != (" male " in prompt)


@pytest.mark.parametrize(
    ("upstream", "path", "asked"),
    [
        ("http://there/v1", "v1/images/generations", "v1/images/generations"),
        ("http://there/v1", "images/generations", "v1/images/generations"),
        ("http://there", "v1/images/generations", "v1/images/generations"),
        ("http://there/api/v1/", "v1/images", "api/v1/images"),
        ("http://there", GEMINI, GEMINI),
        ("http://there/v1beta", GEMINI, GEMINI),
        ("http://there/v1beta/openai", "v1/chat/completions", "v1beta/openai/chat/completions"),
    ],
)
def test_addresses_may_include_a_version(upstream: str, path: str, asked: str) -> None:
    services = FalseServices()
    body = BODIES.get(path, BODIES["v1/images/generations"])
    post(proxy(services, upstream), path, body)
    assert [seen for seen, _ in services.seen] == [asked]


@pytest.mark.parametrize("seed", [{}, {"seed": 0}])
def test_every_person_in_a_scene_is_reported(seed: dict[str, int]) -> None:
    services = FalseServices()
    body = {"prompt": "A doctor and a nurse", "n": 4, **seed}
    (answer,) = post(proxy(services), "v1/images/generations", body)
    people = note(answer)["people"]
    assert [[noun for noun, _ in image] for image in people] == [["doctor", "nurse"]] * 4
    for noun_place in (0, 1):
        assert Counter(image[noun_place][1] for image in people) == {"female": 2, "male": 2}


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("as_header", [False, True])
def test_a_removed_field_or_header_is_rejected_and_not_passed_on(
    path: str, as_header: bool
) -> None:
    services = FalseServices()
    name = "x-vldebias-original" if as_header else "vldebias_original"
    if as_header:
        (answer,) = post(proxy(services), path, BODIES[path], headers={name: "a%20CEO"})
    else:
        (answer,) = post(proxy(services), path, {**BODIES[path], name: "a CEO"})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == name
    assert error["message"].startswith(f"{name}: this was removed; balance the user's prompt first")
    assert not services.seen


def test_what_was_removed_is_not_passed_on_with_other_requests_either() -> None:
    services = FalseServices()
    app = proxy(services)
    text = {"messages": [{"role": "user", "content": "Hello"}]}
    removed = {"vldebias_original": "a CEO"}
    assert post(app, "v1/chat/completions", text | removed)[0].status_code == 400
    header = {"X-VLDebias-Original": "a%20CEO"}
    for path in ("v1/chat/completions", "v1/embeddings", "v1/audio/speech"):
        assert post(app, path, text, headers=header)[0].status_code == 400
    assert not services.seen
    assert post(app, "v1/chat/completions", text)[0].status_code == 200


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    ("prompt", "woman", "man"),
    [
        ("一位医生在走廊里", "一位女医生在走廊里", "一位男医生在走廊里"),
        ("Ein Arzt im Flur", "Eine Ärztin im Flur", "Ein männlicher Arzt im Flur"),
    ],
)
def test_prompts_in_other_languages_are_balanced(
    path: str, prompt: str, woman: str, man: str
) -> None:
    services = FalseServices()
    body = json.loads(json.dumps(BODIES[path]).replace(CEO, prompt))
    answers = post(proxy(services), path, *[body] * 4)
    assert Counter(services.prompts()) == {woman: 2, man: 2}
    values = [note(answer)["values"][0] for answer in answers]
    assert services.prompts() == [{"female": woman, "male": man}[value] for value in values]


def test_long_conversations_are_passed_on_in_full() -> None:
    services = FalseServices()
    body = {**BODIES["v1/chat/completions"], "padding": "x" * 1_200_000}
    (answer,) = post(proxy(services), "v1/chat/completions", body)
    assert services.seen[0][1] == body
    assert "more than" in note(answer)["reasons"][0]


def test_forms_for_videos_are_balanced_and_those_with_files_left_unchanged() -> None:
    services = FalseServices()

    async def calls(client: httpx2.AsyncClient) -> list[httpx2.Response]:
        fields = {"prompt": (None, CEO), "seconds": (None, "4")}
        picture = ("p.png", b"png", "image/png")
        return [
            await client.post("/v1/videos", files=fields),
            await client.post("/v1/videos", files={**fields, "input_reference": picture}),
        ]

    written, kept = ask(proxy(services), calls)
    assert services.prompts()[0] in {FEMALE, MALE}
    assert services.seen[0][1]["seconds"] == "4"
    assert services.prompts()[1] == CEO
    assert written.status_code == kept.status_code == 200
    assert note(kept)["reasons"] == ["edits a given image"]


def test_an_unbalanced_path_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "vldebias.images_api"):
        post(proxy(FalseServices()), "v1/audio/speech", *[{"input": CEO}] * 3)
    assert [record.getMessage() for record in caplog.records] == [
        "POST audio/speech is forwarded without balancing"
    ]


GUARDRAIL = "beta/litellm_basic_guardrail_api"


def test_the_guardrail_inserts_values_evenly_and_does_not_need_an_upstream() -> None:
    app = images_proxy(None, "gender", seed=0)
    body = {"input_type": "request", "texts": [CEO], "request_data": {}}
    answers = [answer.json() for answer in post(app, GUARDRAIL, *[body] * 40)]
    assert {answer["action"] for answer in answers} == {"GUARDRAIL_INTERVENED"}
    assert Counter(text for answer in answers for text in answer["texts"]) == {FEMALE: 20, MALE: 20}
    (nowhere,) = post(app, "v1/images/generations", {"prompt": CEO})
    assert nowhere.status_code == 404


@pytest.mark.parametrize(
    "body",
    [
        {"input_type": "response", "texts": [CEO]},
        {"input_type": "request", "texts": ["A female CEO"]},
        {"input_type": "request", "texts": [CEO], "images": ["aaaa"]},
        {"input_type": "request", "texts": []},
        {
            "input_type": "request",
            "model": "gpt-5",
            "texts": [CEO],
            "structured_messages": [{"role": "user", "content": CEO}],
        },
    ],
)
def test_the_guardrail_leaves_other_requests_unchanged(body: Any) -> None:
    (answer,) = post(images_proxy(None, "gender"), GUARDRAIL, body)
    assert answer.json() == {"action": "NONE"}


def test_the_guardrail_only_changes_the_last_message() -> None:
    messages = [
        {"role": "system", "content": "You draw a nurse."},
        {"role": "user", "content": [{"type": "text", "text": CEO}]},
    ]
    body = {
        "input_type": "request",
        "model": "gpt-image-2",
        "texts": ["You draw a nurse.", CEO],
        "structured_messages": messages,
    }
    (answer,) = post(images_proxy(None, Balancer("gender")), GUARDRAIL, body)
    first, last = answer.json()["texts"]
    assert first == "You draw a nurse."
    assert last in {FEMALE, MALE}


class FalseEmbeddings:
    """Embed text like a 64-dimensional model, as floats or base64, and record the requests."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.seen: list[dict[str, Any]] = []

    def vector(self, text: Any) -> np.ndarray:
        # Texts that only differ in a value differ along one direction, for any subject.
        value = {"female": 1.0, "woman": 1.0, "male": -1.0, "man": -1.0}
        words = str(text).lower().replace(".", "").split()
        subject = " ".join(word for word in words if word not in value)
        rng = np.random.default_rng([self.seed, *subject.encode()])
        vector = rng.normal(size=64).astype(np.float32)
        vector[0] += 4 * sum(value.get(word, 0) for word in words)
        return vector

    async def answer(self, request: Request) -> JSONResponse:
        body = await request.json()
        self.seen.append(body)
        texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
        rows = []
        for place, text in enumerate(texts):
            vector: Any = self.vector(text)
            is_text = body.get("encoding_format") == "base64"
            vector = base64.b64encode(vector.tobytes()).decode() if is_text else vector.tolist()
            rows.append({"object": "embedding", "index": place, "embedding": vector})
        return JSONResponse({"object": "list", "data": rows, "model": body["model"]})

    @property
    def app(self) -> Starlette:
        return Starlette(routes=[Route("/v1/embeddings", self.answer, methods=["POST"])])


@pytest.fixture(scope="module")
def edit_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with an edit that was fitted on the fake service."""
    service = FalseEmbeddings()

    def embed(texts: list[str]) -> np.ndarray:
        return np.stack([service.vector(text) for text in texts])

    folder = tmp_path_factory.mktemp("edit")
    debias_queries(embed, "gender", method="cali").fitted.save_pretrained(folder)
    return folder


def queries_proxy(service: FalseEmbeddings, folder: Path) -> Any:
    transport = httpx2.ASGITransport(service.app)
    return images_proxy("http://there/v1", None, edit=folder, transport=transport)


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_query_embeddings_are_edited_and_document_embeddings_are_unchanged(
    edit_folder: Path, encoding: str
) -> None:
    service = FalseEmbeddings()
    app = queries_proxy(service, edit_folder)
    texts = ["A photo of a doctor", "A photo of a female doctor"]
    body = {"model": "m", "input": texts, "encoding_format": encoding}
    (documents,) = post(app, "v1/embeddings", body)
    (queries,) = post(app, "queries/v1/embeddings", body)
    (typed,) = post(app, "v1/embeddings", {**body, "input_type": "query"})

    plain, _ = vectors_of(documents.json())
    edited, is_encoded = vectors_of(queries.json())
    assert is_encoded == (encoding == "base64")
    np.testing.assert_array_equal(plain, [service.vector(text) for text in texts])
    np.testing.assert_array_equal(vectors_of(typed.json())[0], edited)
    expected = vldebias.load_edit(edit_folder)(torch.from_numpy(plain), 1.0)
    cosine = torch.nn.functional.cosine_similarity(expected[:1], torch.from_numpy(edited[:1]))
    assert cosine.item() == pytest.approx(1, abs=1e-4)
    assert np.linalg.norm(edited[0] - plain[0]) > 0.1
    np.testing.assert_allclose(edited[1], plain[1], atol=1e-5)  # this query states a value
    np.testing.assert_allclose(np.linalg.norm(edited, axis=1), np.linalg.norm(plain, axis=1), 1e-4)
    assert documents.headers["x-vldebias"] == "not edited (documents)"


def test_the_model_is_compared_once_with_the_model_of_the_edit(edit_folder: Path) -> None:
    service = FalseEmbeddings()
    body = {"model": "m", "input": "A photo of a doctor", "input_type": "query"}
    post(queries_proxy(service, edit_folder), "v1/embeddings", body, body)
    assert len(service.seen) == 3
    other = FalseEmbeddings(seed=1)
    (refused,) = post(queries_proxy(other, edit_folder), "v1/embeddings", body)
    assert refused.status_code == 400
    assert "a different model" in refused.json()["error"]["message"]


def test_an_edit_or_a_prompt_set_is_required(edit_folder: Path) -> None:
    with pytest.raises(InvalidInputError, match="attribute"):
        images_proxy("http://there/v1", None)
    (passed,) = post(queries_proxy(FalseEmbeddings(), edit_folder), "v1/images/generations", {})
    assert passed.headers["x-vldebias"] == "not balanced (images/generations)"


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=4,
)
FIELDS = ["prompt", "n", "seed", "stream", "model", "modalities", "messages", "tools", "input"]
FIELDS += ["contents", "generationConfig", "instances", "parameters", "input_references"]
FIELDS += ["vldebias_original"]


@settings(max_examples=60, deadline=None)
@given(
    path=st.sampled_from(sorted(BODIES)),
    changes=st.dictionaries(st.sampled_from(FIELDS), JUNK, max_size=3),
)
def test_no_body_crashes_the_proxy(path: str, changes: dict[str, Any]) -> None:
    services = FalseServices()
    app = proxy(services)
    (answer,) = post(app, path, {**BODIES[path], **changes})
    assert answer.status_code in (200, 400)
    # Either the proxy rejects the request with a message, or the server answers after receiving all
    # of the request's fields.
    if answer.status_code == 400:
        assert answer.json()["error"]["message"]
    else:
        assert services.seen


@pytest.mark.parametrize(
    "start",
    ["openai/deployments/Image-1/", "openai/v1/", "openai/", "v1/openai/deployments/a%20b/"],
)
def test_paths_of_azure_are_balanced(start: str) -> None:
    services = FalseServices()
    body = {"prompt": CEO, "n": 1}
    (answer,) = post(proxy(services), f"{start}images/generations?api-version=2025-04-01", body)
    assert note(answer)["values"] in (["female"], ["male"])
    chat = {"modalities": ["image"], "messages": [{"role": "user", "content": CEO}]}
    (answer,) = post(proxy(services), f"{start}chat/completions", chat)
    assert note(answer)["values"] in (["female"], ["male"])
    (answer,) = post(proxy(services), f"{start}images/edits", body)
    assert note(answer)["reasons"] == ["edits a given image"]
    edits_class = import_module("apps.images_api.embeddings").QueryEdits
    assert edits_class.reads(None, "openai/deployments/Embedding-3/embeddings")
