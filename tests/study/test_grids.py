"""Test grids: every cell equals what the pipeline generates with its method and seed, and names and
seeds are next to the cells."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1] / "hosts"))

from diffusers_tiny import gender, sd

import vldebias
from tests.fewer import few
from vldebias.errors import AlreadyAttachedError, InvalidInputError
from vldebias.hosts import resolve
from vldebias.hosts.attachment import attachment_of
from vldebias.miniature import load_pipeline, open_world
from vldebias.prompts import load_prompts
from vldebias.study.grids import CELL, GAP, HEAD, LABEL, grid, layout
from vldebias.study.inputs import Inputs
from vldebias.utils.options import Options

FAST = {"steps": 2, "guidance": 3.0}
TEXT = "A photo of a nurse."
PROFESSIONS = few(load_prompts("professions-gender"))


def assert_drawn(
    picture: Image.Image, row: int, column: int, pipe: Any, text: str, seed: int
) -> None:
    """Check that a cell at its original size equals what the pipeline generates by itself."""
    noise = torch.Generator().manual_seed(seed)
    expected = pipe(
        text, generator=noise, num_inference_steps=2, guidance_scale=3.0, output_type="pil"
    ).images[0]
    columns = picture.width // (CELL + GAP)
    _, left, above = layout(columns * (CELL + GAP))
    start = left + column * (CELL + GAP)
    top = above + row * (CELL + GAP)
    zoom = CELL // 64
    shown = np.asarray(picture.crop((start, top, start + CELL, top + CELL)))[
        zoom // 2 :: zoom, zoom // 2 :: zoom
    ]
    assert np.abs(shown.astype(int) - np.asarray(expected).astype(int)).max() <= 1


def test_a_search_grid_shows_the_top_results_of_each_method(tmp_path: Path) -> None:
    images = open_world("portraits", n=60)
    loaded = vldebias.load_host("miniature")
    how = {"images": images, "prompts": "A photo of a nurse.", "methods": ["none", "rerank"]}
    picture = grid(loaded, "gender", **how)
    features = Inputs(Options(Path()), {"model": loaded, "images": images}, needs="t")["images"]
    host = resolve(loaded.host, tokenizer=loaded.tokenizer)
    texts = loaded.host.encode_text(loaded.tokenizer([how["prompts"]])).detach()
    scores = (torch.nn.functional.normalize(texts, dim=1) @ features.unit[:].T)[0]
    even = vldebias.rerank(scores, 10, features=features.unit[:], attribute="gender", model=host)
    _, left, top = layout(10 * (CELL + GAP))
    for row, order in enumerate((scores.argsort(descending=True, stable=True), even)):
        for column in (0, 9):
            start = (left + column * (CELL + GAP), top + row * (CELL + GAP))
            shown = picture.crop((*start, start[0] + CELL, start[1] + CELL))
            expected = images.read(int(order[column])).resize(shown.size, Image.Resampling.NEAREST)
            assert np.array_equal(np.asarray(shown), np.asarray(expected))


def test_a_grid_shows_what_debias_attaches() -> None:
    shown = [
        grid(load_pipeline(), "professions-gender", seeds=[0], prompts=[TEXT], **how, **FAST)
        for how in ({}, {"methods": ["none", "default"]})
    ]
    assert shown[0].tobytes() == shown[1].tobytes()


def test_cells_equal_what_the_pipeline_generates_with_each_method() -> None:
    pipe = load_pipeline()
    seeds = (3, 8)
    texts = [TEXT, "A photo of a plumber."]
    edit = vldebias.fit_projections(pipe, PROFESSIONS, method="cali", lam=5.0).only
    methods = {"as it is": "none", "by name": "cali", "as an edit": edit}
    picture = grid(pipe, PROFESSIONS, methods=methods, seeds=seeds, prompts=texts, **FAST)
    assert picture.size == (LABEL + 2 * (CELL + GAP), HEAD + 2 * 3 * (CELL + GAP))
    assert attachment_of(pipe) is None
    named = np.asarray(picture)[HEAD:, :LABEL].reshape(6, CELL + GAP, -1)
    assert (named[:, :34].min(axis=(1, 2)) < 128).all()  # each row has the name of its method
    # A label shows the prompt.
    assert ((named[:, 34:].min(axis=(1, 2)) < 200) == [True, False, False] * 2).all()
    options = {"by name": {}, "as an edit": {"lam": 5}}
    for j, name in enumerate(methods):
        if name != "as it is":
            vldebias.debias(pipe, PROFESSIONS, method="cali", **options[name])
        for i, text in enumerate(texts):
            for column, seed in enumerate(seeds):
                assert_drawn(picture, i * len(methods) + j, column, pipe, text, seed)
        attachment = attachment_of(pipe)
        if attachment is not None:
            attachment.remove()


def test_invalid_grids_are_rejected() -> None:
    pipe = sd()
    with pytest.raises(InvalidInputError, match="seeds"):
        grid(pipe, gender(), seeds=[])
    with pytest.raises(InvalidInputError, match="did you mean 'cali'"):
        grid(
            load_pipeline(), "gender", methods=["none", "calli"], seeds=[0], prompts=[TEXT], **FAST
        )
    with vldebias.debias(pipe, gender()), pytest.raises(AlreadyAttachedError):
        grid(pipe, gender(), prompts=[TEXT])


def test_the_class_prompts_of_the_set_are_the_default_texts() -> None:
    picture = grid(load_pipeline(), "professions-gender", methods=["none"], seeds=range(2), steps=1)
    assert picture.height == HEAD + 4 * (CELL + GAP)  # four unseen professions


def test_prompts_are_balanced_over_all_images_instead_of_by_batch() -> None:
    """With batches of one image, balancing by batch would assign a value to each image
    separately."""
    how = {"seeds": range(4), "prompts": TEXT, "batch_size": 3, **FAST}
    picture = grid(load_pipeline(), "professions-gender", methods=["balanced-prompts"], **how)
    pipe = load_pipeline()  # an attachment does not keep its host alive
    with vldebias.debias(pipe, "professions-gender", method="balanced-prompts") as attachment:
        attachment.seed = 0  # a grid uses these if the method has none
        attachment.rewrite([TEXT] * 4)
        values = list(attachment.sampled)
    assert sorted(values) == ["female"] * 2 + ["male"] * 2
    for column, value in enumerate(values):
        assert_drawn(picture, 0, column, pipe, f"A photo of a {value} nurse.", column)
