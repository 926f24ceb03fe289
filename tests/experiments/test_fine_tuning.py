"""Test how pretrained heads are fine-tuned with the settings of printed commands."""

from types import SimpleNamespace

import numpy as np
import pytest

from eval.experiments.run import Experiment
from eval.photographs import fine_tuning, training
from eval.photographs.fine_tuning import RECALL, RECIPES, SPOILED, Parts, real_pairs, spoiled
from vldebias.training.settings import load_settings


@pytest.fixture
def synthetic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the photographs by 500 pairs of a common cause, which the heads partly match."""
    rng = np.random.default_rng(0)
    cause = rng.normal(size=(500, 8)).astype(np.float32)
    images = np.concatenate([cause, rng.normal(size=(500, 8))], axis=1).astype(np.float32)
    texts = [f"text {row}" for row in range(500)]
    generic = {f"generic {row}": cause[row] + 1 for row in range(20)}
    monkeypatch.setattr(fine_tuning, "text_vectors", lambda: generic)
    pairs = real_pairs(images, texts, cause)
    rows = np.arange(500)
    parts = Parts(pairs.take(rows[:400]), pairs.take(rows[400:450]), pairs.take(rows[450:]))
    heads = SimpleNamespace(
        image_head=np.vstack([np.eye(8), 3 * np.eye(8)]).astype(np.float32),
        text_head=np.eye(8, dtype=np.float32),
        scale=10.0,
    )
    monkeypatch.setattr(fine_tuning, "parts", lambda _: parts)
    for module in (fine_tuning, training):
        monkeypatch.setattr(module, "small_model", lambda: heads)


@pytest.mark.usefixtures("synthetic")
def test_every_arm_is_scored_at_its_end_half_way_and_as_saved() -> None:
    experiment = Experiment.read("fine_tuning")
    untrained = {"data": "titles", "texts": "30% of others", "seed": 0, "arm": "not trained"}
    start = fine_tuning.fine_tuning(untrained)[RECALL]
    recipe = "--preset heads --lr 3e-3 --epochs 10"
    for arm, settings in experiment.arms.items():
        if arm == "not trained":
            continue
        cell = {**untrained, "arm": arm, "settings": settings, "recipe": recipe}
        figures = fine_tuning.fine_tuning(cell)
        stages = (f"{arm}, half way", f"{arm}, saved")
        assert set(stages) <= set(experiment.also)
        values = [figures[RECALL], *(figures[f"{stage}: {RECALL}"] for stage in stages)]
        assert values[2] in values[:2]
        # The end differs from the start, and each stage has the score of every photograph.
        assert figures[RECALL] != start
        assert all(figures[f"{stage}: rows: {RECALL}"].startswith("50:") for stage in stages)


@pytest.mark.usefixtures("synthetic")
@pytest.mark.parametrize("texts", SPOILED)
def test_a_share_of_the_texts_is_spoiled(texts: str) -> None:
    learned, _, _ = fine_tuning.parts("titles")
    wrong = spoiled(learned, texts, 0)
    kind, share = SPOILED[texts]
    changed = [row for row in range(400) if wrong.texts[row] != learned.texts[row]]
    assert len(changed) == pytest.approx(400 * share, abs=30)
    listed = set(learned.texts)
    assert all((wrong.texts[row] in listed) == (kind != "generic") for row in changed)
    if kind == "similar":
        # The text is that of a photograph with a similar cause.
        cause = learned.vectors[:400].numpy()
        own = np.linalg.norm(cause[:, None] - cause[None], axis=2)
        rows = [learned.row_of_text[wrong.texts[row]] for row in changed]
        assert own[changed, rows].mean() < own[changed].mean()


@pytest.mark.usefixtures("synthetic")
def test_starting_scores_separate_wrong_texts_and_give_each_pair_a_weight() -> None:
    learned, _, _ = fine_tuning.parts("titles")
    wrong = learned.with_texts_of(np.where(np.arange(400) < 160, 399 - np.arange(400), range(400)))
    heads = training.Heads(wrong, (0.0, 0.0), is_pretrained=True)
    weights = fine_tuning.starting_scores(heads, wrong, 0).weights("auto")
    assert weights[160:].mean() > weights[:160].mean() + 0.2
    assert (fine_tuning.starting_scores(heads, wrong, 0).weights(0.6) == 1).sum() == 240


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_has_the_settings_of_its_flags(recipe: str) -> None:
    settings = load_settings(data="own", **RECIPES[recipe])
    flags = dict(zip(recipe.split()[::2], recipe.split()[1::2], strict=True))
    assert settings.tune == "heads"
    assert settings.lr == float(flags.get("--lr", "1e-4" if "--preset" in flags else "1e-5"))
    assert settings.epochs == float(flags.get("--epochs", "2" if "--preset" in flags else "10"))
