"""The measurements behind "which side": each measure by its definition, and the committed figures by their laws."""

from math import log
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch import Tensor
from torch.nn.functional import normalize

from eval.experiments import embeddings, image_side
from eval.experiments.image_side import COMPARED, Row, Search, classify, empty, rank_kept
from vldebias.data import Labels
from vldebias.evaluation.result import Result, TaskResult
from vldebias.evaluation.texts import Texts
from vldebias.hosts import TextTable
from vldebias.metrics import max_skew, worst_group_accuracy
from vldebias.projection import CalibratedProjection
from vldebias.prompts import PromptSet

COMMITTED = Path(__file__).parents[2] / "eval" / "results" / "image_side.json"
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


def nothing_yet(search: Search) -> TaskResult:
    prompts = PromptSet(name="made", attributes={"m": ("man",), "f": ("woman",)}, groups=(("a man", "a woman"),))
    return empty("t", "Made", search.texts, prompts, [Row(), projected("text")], "made", {})


@pytest.mark.parametrize("side", ["text", "image", "both"])
def test_scores_are_cosines_of_projected_vectors(search: Search, side: str) -> None:
    row = projected(side)
    p = row.edit.matrix()
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
    cosines = torch.cosine_similarity(row.edit(search.images), search.images)
    assert np.allclose(found["image_cosine"], cosines)


def test_chance_stands_beside_the_methods(search: Search) -> None:
    result = search.fill([Row(), projected("text")], nothing_yet(search))
    skews = [row for row in result.rows if row.metric == f"max_skew@{K}"]
    assert {row.method for row in skews} == {"none", "cali, text", "random"}
    assert max(row.value for row in skews) <= log(2)
    assert {row.lam for row in skews if row.method == "cali, text"} == {1000.0}


def test_a_text_that_is_removed_is_ranked_as_the_gallery_stands(search: Search) -> None:
    text = search.texts.embed(["doctor"])
    gone = Row("orth", "image", CalibratedProjection.fit(None, text))
    assert (search.scores(gone, ["doctor"]) == 0).all()


def test_classes_are_the_nearest_texts(search: Search) -> None:
    row, label = projected("image"), Labels.of(["a", "b", "b"] * 20, names=("a", "b"))
    rows = [Row(), row, projected("image", unit=False)]

    def classes(one: Row) -> Tensor:
        return one.texts(search.texts, QUERIES[:2])

    result = classify(search.images, rows, classes, label, search.groups, nothing_yet(search))
    (found,) = [r for r in result.rows if (r.metric, r.method) == ("worst_group", "cali, image")]
    guessed = (row.images(search.images) @ search.texts.embed(QUERIES[:2]).T).argmax(1).numpy()
    groups = 2 * label.codes + search.groups.codes
    assert found.value == pytest.approx(worst_group_accuracy(guessed, label.codes, groups))
    assert {r.method for r in result.rows} == {"none", "cali, image"}


@pytest.fixture(scope="module")
def committed() -> Result:
    return Result.read(COMMITTED)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["celeba retrieval", "portraits", "celeba age", "birds"])
def test_the_committed_result_is_complete(committed: Result, task: str) -> None:
    searched = "retrieval" in task or task == "portraits"
    k = 50 if "celeba" in task else 100
    metrics = [f"max_skew@{k}", "rank_kept", f"stated@{k}"] if searched else ["worst_group", "average", "gap"]
    names = {f"{method}, {side}" for method in COMPARED for side in SIDES} | {"none"}
    names |= {f"{method}, image, products" for method in COMPARED} if searched else set()
    (told,) = [one for one in committed.provenance if one.task == task]
    assert set(told.methods) == {*names, *(f"{m}, image, products" for m in COMPARED)} - {"none"}
    for metric in metrics:
        found = {f.method: f for f in committed.rows if (f.task, f.metric) == (task, metric)}
        assert set(found) - {"random"} == names
        assert all(f.interval[0] <= f.value <= f.interval[1] for f in found.values())
        assert all(f.change is not None for name, f in found.items() if name not in ("none", "random"))


@pytest.mark.slow
@pytest.mark.parametrize(("task", "k"), [("celeba retrieval", 50), ("portraits", 100)])
def test_committed_figures_obey_the_laws(committed: Result, task: str, k: int) -> None:
    def value(metric: str, method: str) -> float:
        return committed.row(task, metric, method).value

    for method in ("orth", "cali", "cali+equalise"):  # symmetric: products are the text side again
        for metric in (f"max_skew@{k}", "rank_kept"):
            assert value(metric, f"{method}, text") == pytest.approx(
                value(metric, f"{method}, image, products"), abs=2e-3
            )
    assert value("rank_kept", "orth, image") == pytest.approx(value("rank_kept", "orth, both"), abs=2e-3)
    for method in COMPARED:  # the gate knows texts, and no images
        assert value(f"stated@{k}", f"{method}, text") == value(f"stated@{k}", "none")
        assert value(f"stated@{k}", f"{method}, image") < value(f"stated@{k}", "none") - 0.1
        assert value("query_cosine", f"{method}, image") == pytest.approx(1)


@pytest.mark.slow
def test_celeba_is_what_the_code_gives(committed: Result) -> None:
    if not embeddings.file().is_file():
        pytest.skip(f"REAL CLIP EMBEDDINGS NOT CHECKED: {embeddings.file()} is missing; set VLDEBIAS_REAL")
    for part in image_side.measure_celeba(["cali"]):
        for row in part.rows:
            again = committed.row(row.task, row.metric, row.method)
            assert row.value == pytest.approx(again.value, abs=1e-6), (row.metric, row.method)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::vldebias.errors.VldebiasWarning")  # 200 images are few
def test_a_small_miniature_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLDEBIAS_CACHE", str(tmp_path))
    worlds = embeddings.worlds(images=200, reference=200)
    (birds,) = image_side.measure_birds(worlds["birds"], ["cali"])
    (portraits,) = image_side.measure_portraits(worlds["portraits"], ["cali", "difference"])
    assert {row.metric for row in birds.rows} == {"worst_group", "average", "gap"}
    assert {row.method for row in portraits.rows} > {"none", "random", "cali, both", "difference, image"}
