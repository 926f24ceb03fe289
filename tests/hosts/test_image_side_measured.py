"""The measurements behind "which side": each measure by its definition, and the committed figures by their laws."""

import sys
from math import log
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch import Tensor
from torch.nn.functional import normalize

from vldebias.data import Labels
from vldebias.evaluation.result import Protocol, Result
from vldebias.evaluation.texts import Texts, TextTable
from vldebias.metrics import max_skew, worst_group_accuracy
from vldebias.projection import CalibratedProjection

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "eval"))

import image_side  # noqa: E402
import real_clip  # noqa: E402
from image_side_measures import METHODS, Row, Search, class_part, rank_kept, search_part  # noqa: E402

COMMITTED = ROOT / "eval" / "results" / "image_side.json"
DIM, N, K = 8, 60, 10
QUERIES = ("doctor", "nurse", "pilot")
STATED = {"m": ("a man", "a male nurse"), "f": ("a woman",)}
SIDES = ("text", "image", "both")


def rows(n: int, seed: int) -> Tensor:
    return normalize(torch.randn(n, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)), dim=1)


@pytest.fixture
def search() -> Search:
    prompts = (*QUERIES, *STATED["m"], *STATED["f"])
    texts = Texts(TextTable(dict(zip(prompts, rows(len(prompts), 1), strict=True))))
    groups = Labels.of(np.where(np.arange(N) % 3 == 0, "m", "f"), names=("m", "f"))
    return Search(texts, rows(N, 2), groups, QUERIES, STATED, K)


def projected(side: str, unit: bool = True) -> Row:
    projection = CalibratedProjection.fit(rows(6, 3).reshape(3, 2, DIM), None, 50.0)
    return Row("cali", side, projection, unit)


def protocol(task: str) -> Protocol:
    return Protocol(
        task=task, description="", model="", fingerprint=None, prompts="", prompts_hash="", split="", methods={},
        seeds=[0], n={},
    )  # fmt: skip


@pytest.mark.parametrize("side", ["text", "image", "both"])
def test_scores_are_cosines_of_projected_vectors(search: Search, side: str) -> None:
    row = projected(side)
    p = row.projection.matrix() if row.projection else torch.eye(DIM)
    x, z = search.images, search.texts.embed(QUERIES)
    x = normalize(x @ p.T, dim=1) if side != "text" else x
    z = normalize(z @ p.T, dim=1) if side != "image" else z
    assert np.allclose(search.scores(row, QUERIES), (z @ x.T).numpy())


def test_products_with_projected_images_rank_as_the_text_side(search: Search) -> None:
    """P is symmetric here, and the length of a text moves no image past another."""
    text, products, image = projected("text"), projected("image", unit=False), projected("image")
    orders = [np.argsort(-search.scores(row, QUERIES), axis=1) for row in (text, products, image)]
    assert np.array_equal(orders[0], orders[1])
    assert not np.array_equal(orders[0], orders[2])
    assert (text.name, products.name) == ("cali, text", "cali, image, products")


def test_rank_kept_is_spearman_inside_groups() -> None:
    before, after = rows(3, 5).numpy() @ rows(N, 6).numpy().T, rows(3, 7).numpy() @ rows(N, 6).numpy().T
    groups = np.arange(N) % 2
    expected = [
        np.mean([spearmanr(one[groups == g], other[groups == g]).statistic for g in (0, 1)])
        for one, other in zip(before, after, strict=True)
    ]
    assert np.allclose(rank_kept(before, after, groups), expected)
    lifted = np.exp(before) + 5 * groups  # another order over all, the same one inside each group
    assert np.allclose(rank_kept(before, lifted, groups), 1)


def test_measures_by_their_definitions(search: Search) -> None:
    row = projected("image")
    found = search.measure(row)
    scores = search.scores(row, QUERIES)
    expected = [max_skew(one, search.groups.codes, K, n_groups=2) for one in scores]
    assert np.allclose(found[f"max_skew@{K}"], expected)
    shares = []
    for value, prompts in STATED.items():
        for one in search.scores(row, prompts):
            best = np.argsort(-one)[:K]
            shares.append(np.mean([search.groups.names[search.groups.codes[i]] == value for i in best]))
    assert np.allclose(found[f"stated@{K}"], shares)
    assert np.allclose(found["query_cosine"], 1)
    cosines = torch.cosine_similarity(row.projection(search.images), search.images)
    assert np.allclose(found["image_cosine"], cosines)


def test_the_floor_is_that_of_random_rankings(search: Search) -> None:
    share = np.random.default_rng(0).hypergeometric(20, 40, K, size=200_000) / K
    assert search.floor() == pytest.approx(np.log(2 * np.maximum(share, 1 - share)).mean(), abs=2e-3)
    part = search_part(search, [Row(), projected("text")], protocol("t"))
    assert {f.method for f in part.figures if f.metric == f"max_skew@{K}"} == {"none", "cali, text", "random"}
    assert max(f.value for f in part.figures if f.metric == f"max_skew@{K}") <= log(2)


def test_classes_are_the_nearest_texts(search: Search) -> None:
    row, label = projected("image"), Labels.of(["a", "b", "b"] * 20, names=("a", "b"))
    part = class_part(
        search.images, [Row(), row, projected("image", unit=False)], lambda one: one.texts(search.texts, QUERIES[:2]),
        label, search.groups, protocol("t"),
    )  # fmt: skip
    (found,) = [f for f in part.figures if (f.metric, f.method) == ("worst_group", "cali, image")]
    guessed = (row.images(search.images) @ search.texts.embed(QUERIES[:2]).T).argmax(1).numpy()
    groups = 2 * label.codes + search.groups.codes
    assert found.value == pytest.approx(worst_group_accuracy(guessed, label.codes, groups))
    assert {f.method for f in part.figures} == {"none", "cali, image"}


@pytest.fixture(scope="module")
def committed() -> Result:
    return Result.model_validate_json(COMMITTED.read_text(encoding="utf-8"))


@pytest.mark.parametrize("task", ["celeba retrieval", "portraits", "celeba age", "birds"])
def test_the_committed_result_is_complete(committed: Result, task: str) -> None:
    searched = "retrieval" in task or task == "portraits"
    k = 50 if "celeba" in task else 100
    metrics = [f"max_skew@{k}", "rank_kept", f"stated@{k}"] if searched else ["worst_group", "average", "gap"]
    names = {f"{method}, {side}" for method in METHODS for side in SIDES} | {"none"}
    names |= {f"{method}, image, products" for method in METHODS} if searched else set()
    (told,) = [one for one in committed.protocols if one.task == task]
    assert set(told.methods) == {*names, *(f"{m}, image, products" for m in METHODS)} - {"none"}
    for metric in metrics:
        found = {f.method: f for f in committed.figures if (f.task, f.metric) == (task, metric)}
        assert set(found) - {"random"} == names
        assert all(f.interval[0] <= f.value <= f.interval[1] for f in found.values())
        assert all(f.change is not None for name, f in found.items() if name not in ("none", "random"))


@pytest.mark.parametrize(("task", "k"), [("celeba retrieval", 50), ("portraits", 100)])
def test_committed_figures_obey_the_laws(committed: Result, task: str, k: int) -> None:
    def value(metric: str, method: str) -> float:
        return committed.figure(task, metric, method).value

    for method in ("orth", "cali", "cali+equalise"):  # symmetric: products are the text side again
        for metric in (f"max_skew@{k}", "rank_kept"):
            assert value(metric, f"{method}, text") == pytest.approx(
                value(metric, f"{method}, image, products"), abs=2e-3
            )
    assert value("rank_kept", "orth, image") == pytest.approx(value("rank_kept", "orth, both"), abs=2e-3)
    for method in METHODS:  # the gate knows texts, and no images
        assert value(f"stated@{k}", f"{method}, text") == value(f"stated@{k}", "none")
        assert value(f"stated@{k}", f"{method}, image") < value(f"stated@{k}", "none") - 0.1
        assert value("query_cosine", f"{method}, image") == pytest.approx(1)


def test_celeba_is_what_the_code_gives(committed: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    path = real_clip.data_file()
    if not path.is_file():
        pytest.skip(f"REAL CLIP EMBEDDINGS NOT CHECKED: {path} is missing; set VLDEBIAS_REAL to its folder")
    monkeypatch.setattr("image_side_measures.METHODS", ("cali",))
    for part in image_side.celeba(path):
        for figure in part.figures:
            again = committed.figure(figure.task, figure.metric, figure.method)
            assert figure.value == pytest.approx(again.value, abs=2e-3), (figure.metric, figure.method)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::vldebias.errors.VldebiasWarning")  # 200 images are few
def test_a_small_miniature_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLDEBIAS_CACHE", str(tmp_path))
    birds, portraits = image_side.miniature(images=200, reference=200)
    assert {f.metric for f in birds.figures} == {"worst_group", "average", "gap"}
    assert {f.method for f in portraits.figures} > {"none", "random", "cali, both"}
