"""Test that projected text embeddings match a model with the attachment, and that distances of
pairs match a loop."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

import vldebias
from tests.transformers_clip import load_transformers_clip
from vldebias.errors import InvalidInputError, UnsupportedHostError
from vldebias.hosts import resolve
from vldebias.hosts.loading import text_host
from vldebias.methods import METHODS, Problem
from vldebias.miniature import load_clip, load_pipeline
from vldebias.prompts import PromptSet, make_prompt_set
from vldebias.report.result import Result
from vldebias.report.table import published
from vldebias.study import load_suite, run_suite
from vldebias.study.evaluating import evaluate
from vldebias.study.tasks.images import fit_method
from vldebias.study.tasks.texts import TextsTask
from vldebias.utils.options import Options

pytestmark = pytest.mark.filterwarnings("ignore::vldebias.errors.VldebiasWarning")

JOBS = ("doctor", "nurse", "chef")
GENDER = PromptSet(
    name="small-gender",
    variants=tuple((f"A photo of a male {job}.", f"A photo of a female {job}.") for job in JOBS),
    spurious=("A photo of a man.", "A photo of a woman."),
    classes=tuple(f"A photo of a {job}." for job in JOBS),
    class_names=JOBS,
    stated_words=("man", "woman", "male", "female"),
)
FREE = ["A photo of a nurse.", "A photo of the manager.", "A photo of a pilot."]
STATED = ["A photo of a male nurse.", "a photo of a WOMAN"]
# Each concept has three prompts and three pairs.
TONES = {tone: [tone] for tone in ("pale", "tan", "dark-skinned")}
TONED = make_prompt_set(
    "tones", TONES, ["nurse", "plumber", "chef"], test_concepts=["pilot", "clerk"]
)
# One prompt of the last concept is missing, so the concept counts less.
TONED = replace(TONED, variants=(*TONED.variants[:2], TONED.variants[2][:2]))
SETTINGS = [  # method, strength, keep_stated
    ("cali", 1.0, False),
    ("cali", 0.0, True),
    ("orth", 1.0, False),
    ("orth", 0.0, True),
    ("orth-cali", 0.3, True),
]
Encode = Callable[[Sequence[str]], Tensor]


def open_clip_model() -> tuple[nn.Module, Any, Encode]:
    model, _, tokenizer = load_clip()
    return (
        model,
        tokenizer,
        lambda prompts: model.encode_text(tokenizer(list(prompts)), normalize=True),
    )


def transformers_model() -> tuple[nn.Module, Any, Encode]:
    model, tokenizer, _ = load_transformers_clip()

    def encode(prompts: Sequence[str]) -> Tensor:
        features = model.get_text_features(
            **tokenizer(list(prompts), return_tensors="pt", padding=True)
        )
        return normalize(getattr(features, "pooler_output", features), dim=-1)

    return model, tokenizer, encode


@pytest.mark.parametrize("make", [open_clip_model, transformers_model])
@torch.no_grad()
def test_under_matches_the_output_of_an_attached_model(
    make: Callable[[], tuple[nn.Module, Any, Encode]],
) -> None:
    model, tokenizer, encode = make()
    texts = resolve(model, tokenizer=tokenizer)
    assert fit_method(texts, GENDER, "none") is None
    assert torch.equal(texts.under(FREE, "text", None), texts.embed(FREE))
    torch.testing.assert_close(
        texts.embed(FREE + STATED).float(), encode(FREE + STATED), atol=2e-5, rtol=0
    )
    for method, strength, keep in SETTINGS:
        lam = 500.0 if METHODS[method].declaration.has_lam else None
        projection = fit_method(texts, GENDER, method, lam)
        edited_rows = texts.under(
            FREE + STATED, "text", projection, strength=strength, keep_stated=keep
        )
        how = {"method": method, "lam": lam, "strength": strength, "keep_stated": keep}
        with vldebias.debias(model, GENDER, tokenizer=tokenizer, **how):
            # Cached rows remain valid after removal.
            again = resolve(model, tokenizer=tokenizer).embed(FREE + STATED)
            # These are two passes of a float32 tower, whose sums may differ with the batch.
            torch.testing.assert_close(again, texts.embed(FREE + STATED), atol=1e-5, rtol=0)
            torch.testing.assert_close(
                edited_rows.float(), encode(FREE + STATED), atol=5e-5, rtol=0
            )
        alike = torch.isclose(edited_rows, texts.embed(FREE + STATED), atol=1e-3).all(1).tolist()
        assert alike == [strength == 0] * len(FREE) + [strength == 0 or keep] * len(STATED)


@pytest.mark.parametrize(("kind", "role"), [("model", "text"), ("pipeline", "sequence")])
@pytest.mark.parametrize("method", ["cali", "orth"])
def test_distances_match_a_plain_loop_over_pairs(kind: str, role: str, method: str) -> None:
    model, _, tokenizer = load_clip()
    subject, how = (
        (load_pipeline(), {})
        if kind == "pipeline"
        else (model, {"tokenizer": tokenizer, "lam": 20.0})
    )
    measured = evaluate(subject, attribute=TONED, task="texts", method=method, resamples=20, **how)
    host = resolve(subject, tokenizer=how.get("tokenizer"))
    lam = how.get("lam", 500.0) if method == "cali" else None
    edit = Problem(host, TONED, lam=lam).fit(method, role)
    for subset, groups in (("train", TONED.variants), ("unseen", TONED.held_out_variants)):
        for name, edited in (("none", lambda rows: rows), (method, edit)):
            rows = [edited(host.embed(list(group), role)).double() for group in groups]
            distances = []
            for group in rows:
                distances += [float(torch.dist(a, b)) for a, b in combinations(group, 2)]
            row = measured.row("texts tones", "pair_distance", name, subset=subset)
            assert row.value == pytest.approx(np.mean(distances))
            assert row.n == {
                "concepts": len(groups),
                "pairs": 3 * len(groups) - 2 * (subset == "train"),
            }
            assert row.interval[0] <= row.value <= row.interval[1]
    assert row.value < measured.row("texts tones", "pair_distance", "none", subset="unseen").value
    assert (row.lam, row.strength) == (lam, 1.0)


def test_the_suite_reproduces_the_committed_rows(tmp_path: Path) -> None:
    rows = run_suite("miniature", Options(out=tmp_path), only=["pairs"]).rows
    committed = Result.read(Path(__file__).parents[2] / "eval/results/miniature.json")
    expected = [row for row in committed.rows if row.metric == "pair_distance"]
    assert len(rows) == len(expected) == 8
    for row_here, row in zip(rows, expected, strict=True):
        assert row_here.task == row.task
        assert row_here.method == row.method
        assert row_here.subset == row.subset
        assert row_here.n == row.n
        assert (row_here.value, *row_here.interval) == pytest.approx(
            (row.value, *row.interval), rel=1e-5
        )


def test_the_suite_of_the_paper_measures_what_is_published_and_users_choose_lam() -> None:
    task = load_suite("generation").tasks[0]
    assert isinstance(task, TextsTask)
    assert task.with_options(Options(out=Path(), lam=7.0)).lam == 7.0
    figures = published("generation", "stable diffusion 2.1")
    measured = {name for name, metric, *_ in figures if metric == "pair_distance"}
    assert measured == {f"pairs {name}" for name in task.attribute}
    with pytest.raises(UnsupportedHostError, match="expected an image-text model"):
        text_host(load_pipeline())
    with pytest.raises(InvalidInputError, match="method="):
        evaluate(load_pipeline(), attribute=TONED, task="texts", methods=["cali", "orth"])
