"""Test `vldebias.hosts.custom`: towers from unknown libraries in three states, and errors."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import vldebias
from vldebias.errors import AlreadyAttachedError, InvalidInputError, UnsupportedHostError
from vldebias.hosts import TextTable, custom
from vldebias.prompts import PromptSet

PROMPTS = ["a photo of a doctor", "a photo of a male nurse", "a photo of a chef"]
LETTERS = "abcdefghijklmnopqrstuvwxyz "


def counts(prompts: Sequence[str]) -> Tensor:
    return torch.tensor([[p.count(c) for c in LETTERS] for p in prompts], dtype=torch.float32)


class Output(NamedTuple):
    embeds: Tensor
    length: int


class Clip(nn.Module):
    """Behave like OpenAI's CLIP: ids -> embeddings."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(len(LETTERS), 8)

    def encode_text(self, ids: Tensor) -> Tensor:
        return self.head(ids)

    def forward(self, ids: Tensor) -> Tensor:
        return self.encode_text(ids)


class Sentences:
    """Behave like sentence-transformers: texts -> an array; a single text -> a single row."""

    def __init__(self) -> None:
        self.tower = Clip()

    def encode(self, sentences: str | list[str], convert_to_tensor: bool = False) -> Any:
        with torch.no_grad():
            rows = self.tower.head(counts([sentences] if isinstance(sentences, str) else sentences))
        rows = rows[0] if isinstance(sentences, str) else rows
        return rows if convert_to_tensor else rows.numpy()


class Pipeline:
    """Behave like a custom pipeline: a sequence in a tuple."""

    def __init__(self) -> None:
        self.tower = Clip()

    def encode_prompt(self, prompt: list[str], images: int = 1) -> Output:
        rows = self.tower.head(counts(prompt)).repeat_interleave(images, 0)
        return Output(torch.stack([rows, rows + 1, rows - 1], 1), 3)


def clip_host(clip: Clip, **options: Any) -> Any:
    return custom(
        clip, "encode_text", embed=lambda p: clip.encode_text(counts(p)), head=clip.head, **options
    )


def decoded(ids: Tensor) -> list[str]:
    return [next(p for p in PROMPTS if torch.equal(counts([p])[0], row)) for row in ids]


@torch.no_grad()
def test_a_text_tower_is_edited_in_three_states(gender: PromptSet) -> None:
    clip = Clip()
    ids = counts(PROMPTS)
    bare = clip.encode_text(ids)
    attachment = vldebias.debias(clip_host(clip, texts=decoded), gender)
    edit = attachment.projections["text"]
    expected = edit(bare)
    expected[1] = bare[1]  # states the attribute
    torch.testing.assert_close(clip.encode_text(ids), expected)
    torch.testing.assert_close(clip(ids), expected)
    with attachment.disabled():
        assert torch.equal(clip.encode_text(ids), bare)
    with pytest.raises(AlreadyAttachedError):
        vldebias.debias(clip_host(clip), gender)
    attachment.remove()
    assert torch.equal(clip.encode_text(ids), bare)
    assert "encode_text" not in vars(clip)


@torch.no_grad()
def test_merging_requires_the_head(gender: PromptSet) -> None:
    clip = Clip()
    ids = counts(PROMPTS)
    attachment = vldebias.debias(clip_host(clip), gender, keep_stated=False)
    projected = clip.encode_text(ids)
    attachment.merge()
    torch.testing.assert_close(clip.encode_text(ids), projected, atol=1e-5, rtol=1e-4)
    headless = custom(Clip(), "encode_text", embed=lambda p: Clip().encode_text(counts(p)))
    with pytest.raises(UnsupportedHostError, match="head="):
        vldebias.debias(headless, gender).merge()


@pytest.mark.parametrize("prompts", [PROMPTS, PROMPTS[0], PROMPTS[1]])
@pytest.mark.parametrize("convert", [False, True])
def test_a_sentence_encoder_is_edited(gender: PromptSet, prompts: Any, convert: bool) -> None:
    model = Sentences()
    bare = model.encode(prompts, convert_to_tensor=convert)
    with vldebias.debias(custom(model, "encode", weights=model.tower), gender) as attachment:
        got = model.encode(prompts, convert_to_tensor=convert)
    edit = attachment.projections["text"]
    rows = torch.as_tensor(bare).reshape(-1, 8)
    names = [prompts] if isinstance(prompts, str) else prompts
    expected = torch.stack(
        [row if "male" in name else edit(row) for name, row in zip(names, rows, strict=True)]
    )
    assert type(got) is type(bare)
    np.testing.assert_allclose(got, expected.reshape(np.shape(bare)), rtol=1e-5)
    assert np.array_equal(model.encode(prompts, convert_to_tensor=convert), bare)


@torch.no_grad()
def test_a_custom_pipeline_is_edited(gender: PromptSet) -> None:
    pipe = Pipeline()

    def ends(prompts: list[str]) -> Tensor:
        return Pipeline.encode_prompt(pipe, prompts).embeds[:, -1]

    bare = pipe.encode_prompt(PROMPTS, images=2)
    host = custom(pipe, "encode_prompt", embed=ends, output=0, weights=pipe.tower, generative=True)
    with vldebias.debias(host, gender, method="cali") as attachment:
        got = pipe.encode_prompt(PROMPTS, images=2)
    assert isinstance(got, Output)
    assert got.length == 3
    expected = attachment.projections["sequence"](bare.embeds)
    expected[2:4] = bare.embeds[2:4]
    torch.testing.assert_close(got.embeds, expected)


def one_row_fewer(prompts: list[str]) -> Any:
    return counts(prompts[1:])


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "states without a way to embed": (
        lambda: vldebias.debias(custom(Pipeline(), "encode_prompt"), "gender", method="cali"),
        "embed=",
    ),
    "a bare class": (lambda: vldebias.debias(Clip(), "gender"), r"custom\("),
    "a module": (lambda: custom(Clip(), "head"), "'head' is a submodule; pass an embed="),
    "a row too few": (
        lambda: vldebias.debias(
            custom(Clip(), "encode_text", embed=one_row_fewer), "gender", method="cali"
        ),
        "one row",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_errors_give_advice(name: str) -> None:
    make, words = REFUSED[name]
    with pytest.raises((InvalidInputError, UnsupportedHostError), match=words):
        make()


def test_unreadable_prompts_and_outputs_are_rejected(
    gender: PromptSet,
) -> None:
    clip = Clip()
    message = "found no prompts in ids: Tensor; pass texts="
    with vldebias.debias(clip_host(clip), gender), pytest.raises(InvalidInputError, match=message):
        clip.encode_text(counts(PROMPTS))
    pipe = Pipeline()
    host = custom(pipe, "encode_prompt", embed=lambda p: pipe.tower.head(counts(p)))
    message = "got Output.*output="
    with (
        vldebias.debias(host, gender, keep_stated=False),
        pytest.raises(InvalidInputError, match=message),
    ):
        pipe.encode_prompt(PROMPTS)


class Tower(nn.Module):
    """Behave like remote code: token states, a pooler and a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedder = nn.Linear(len(LETTERS), 8)
        self.pooler = nn.Linear(8, 8)
        self.unused = nn.Linear(8, 8)

    def forward(self, ids: Tensor) -> dict[str, Tensor]:
        states = torch.stack([self.embedder(ids.roll(i, -1)) for i in range(3)], 1)
        return {"sequence": states, "pooled": self.pooler(states[:, -1])}


def tower_host(tower: Tower, method: str = "forward", **options: Any) -> Any:
    settings = {"embed": lambda p: tower(counts(p))["pooled"], "texts": decoded} | options
    return custom(tower, method, **settings)


@torch.no_grad()
def test_a_submodule_is_edited_in_three_states(gender: PromptSet) -> None:
    tower = Tower()
    ids = counts(PROMPTS)
    bare = tower(ids)["pooled"]
    host = tower_host(tower, "pooler", head=tower.pooler)
    attachment = vldebias.debias(host, gender, keep_stated=False)
    torch.testing.assert_close(tower(ids)["pooled"], attachment.projections["text"](bare))
    with attachment.disabled():
        assert torch.equal(tower(ids)["pooled"], bare)
    attachment.remove()
    assert torch.equal(tower(ids)["pooled"], bare)
    assert "forward" not in vars(tower.pooler)


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("unused", "'unused' .*never called"),
        ("embedder", "not among the outputs of 'embedder'"),
        ("poler", "no method 'poler'; .*pooler"),
    ],
)
def test_a_method_that_does_not_return_the_rows_is_rejected(
    gender: PromptSet, place: str, words: str
) -> None:
    tower = Tower()
    fitted = vldebias.fit_projections(tower_host(tower, "pooler"), gender).only
    for prompts_or_edit in (gender, fitted):
        with pytest.raises(InvalidInputError, match=words):
            vldebias.debias(tower_host(tower, place), prompts_or_edit)
    assert all("forward" not in vars(module) for module in tower.modules())


def test_rows_of_any_type_are_stored_as_directions() -> None:
    table = TextTable(
        {"a": torch.tensor([3.0, 4.0]), "b": np.array([0.0, -2.0]), "c": [5, 12]}, model_id="theirs"
    )
    rows = table.embed(["c", "a", "b", "a"], "text")
    expected = torch.tensor(
        [[5 / 13, 12 / 13], [0.6, 0.8], [0.0, -1.0], [0.6, 0.8]], dtype=torch.float64
    )
    torch.testing.assert_close(rows, expected)
    assert table.dim("text") == 2
    assert table.space("text") == "table.text"
    assert table.model_id == "theirs"
    assert (table.fingerprint(), table.weights) == (None, None)
    # These are the same directions in a different order.
    reordered = TextTable({"b": [0.0, -1.0], "c": [10, 24], "a": [3.0, 4.0]})
    assert table.digest == reordered.digest != TextTable({"a": [3.0, 4.0]}).digest


@pytest.mark.parametrize(
    "rows",
    [
        {},
        {"a": [1.0, 0.0], "b": [1.0]},
        {"a": [[1.0], [1.0]]},
        {"a": 1.0},
        {"a": [1.0], "b": [0.0]},
        {"a": [math.nan]},
    ],
)
def test_invalid_rows_are_rejected(rows: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match="text embeddings"):
        TextTable(rows)


def test_missing_prompts_are_counted_and_listed() -> None:
    with pytest.raises(InvalidInputError, match=r"5 of 6 .*\['b', 'c', 'd'\]"):
        TextTable({"a": [1.0, 0.0]}).embed(list("abcdef"), "text")


def test_a_table_of_embeddings_is_rejected(gender: PromptSet) -> None:
    table = TextTable({text: torch.randn(4) for text in gender.texts})
    with pytest.raises(UnsupportedHostError, match="table of text embeddings"):
        vldebias.debias(table, gender, method="cali")
