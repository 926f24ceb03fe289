"""Out-of-fold scores: no pair is scored by a model that learned it, and what stopped goes on."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from training_parts import image_data, number_of, plain
from typer.testing import CliRunner

from vldebias.cli import app
from vldebias.errors import InvalidInputError
from vldebias.training import folds as folds_module
from vldebias.training.folds import out_of_fold_scores
from vldebias.training.pairs import Pairs, PairSource, make_pairs, open_images
from vldebias.training.run import Job
from vldebias.training.sampling import folds_of
from vldebias.training.settings import TrainSettings, load_settings


def settings(**given: Any) -> TrainSettings:
    small = {"data": "birds", "items": 30, "steps": 2, "batch_size": 8, "workers": 0, "lr": 1e-3, "caption_noise": 0.5}
    return load_settings(**{**small, **given})


@given(st.integers(2, 60), st.integers(2, 9), st.integers(0, 99))
def test_folds_part_the_rows_evenly(n: int, folds: int, seed: int) -> None:
    if folds > n:
        with pytest.raises(InvalidInputError, match=rf"folds: expected 2 .. {n}, the number of pairs, got {folds}"):
            folds_of(n, folds, seed)
        return
    sizes = Counter(folds_of(n, folds, seed).tolist())
    assert sorted(sizes) == list(range(folds))
    assert max(sizes.values()) - min(sizes.values()) <= 1


def test_folds_are_drawn_by_the_seed_and_follow_no_order_of_the_rows() -> None:
    """Data sets lie sorted by class or source: rows a fold apart would give every fold the same ones."""
    drawn = [folds_of(300, 3, seed) for seed in range(4)]
    assert len({tuple(fold) for fold in drawn}) == 4
    same = [(fold[3:] == fold[:-3]).mean() for fold in drawn]
    assert max(same) < 0.5, "a third of the rows by chance"
    assert np.array_equal(folds_of(300, 3, 0), drawn[0])


def test_pairs_that_are_taken_keep_what_is_known_of_them() -> None:
    source = PairSource.of(image_data(9), label="kind")
    pairs = Pairs.with_mixture_noise(source, 0.7, 1)
    rows = np.array([7, 2, 4])
    some = pairs.taken(rows)
    assert some.items == 3
    assert some.ids == ("id7", "id2", "id4")
    assert [number_of(plain(some.read(index))) for index in range(3)] == [7, 2, 4]
    assert some.captions == tuple(pairs.captions[row] for row in rows)
    assert some.own.captions == tuple(source.captions[row] for row in rows)
    assert some.wrong.tolist() == pairs.wrong[rows].tolist()
    assert some.labels is not None
    assert some.labels.codes.tolist() == [1, 2, 1]


@pytest.mark.slow
def test_no_pair_is_scored_by_a_model_that_learned_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = settings()
    pairs = make_pairs(open_images(chosen), chosen)  # type: ignore[arg-type]
    learned: list[set[str]] = []
    scored: list[set[str]] = []
    score: Any = folds_module.positive_scores

    class Noting(Job):
        def train(self, done: int) -> Any:
            assert self.pairs is not None
            learned.append(set(self.pairs.ids))
            return super().train(done)

    def noting(towers: Any, some: PairSource, **options: Any) -> Any:
        scored.append(set(some.ids))
        return score(towers, some, **options)

    monkeypatch.setattr(folds_module, "Job", Noting)
    monkeypatch.setattr(folds_module, "positive_scores", noting)
    first = out_of_fold_scores(pairs, chosen, tmp_path, folds=3, cpu=True)
    assert np.isfinite(first).all()
    assert set.union(*scored) == set(pairs.ids)
    for inside, outside in zip(learned, scored, strict=True):
        assert not inside & outside
        assert inside | outside == set(pairs.ids)
    steps = [len((tmp_path / f"fold-{k}-of-3" / "history.jsonl").read_text().splitlines()) for k in (1, 2, 3)]
    assert steps == [2, 2, 2]
    assert np.array_equal(out_of_fold_scores(pairs, chosen, tmp_path, folds=3, cpu=True), first), (
        "nothing is done again"
    )
    with pytest.raises(InvalidInputError, match=r"other settings: lr 0.001 there and 0.002 here"):
        out_of_fold_scores(pairs, settings(lr=2e-3), tmp_path, folds=3, cpu=True)


@pytest.mark.slow
def test_the_command_measures_them_by_a_column(tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text("steps: 2\nbatch_size: 8\nlr: 1.0e-4\nworkers: 0\ncaption_noise: 0.5\nitems: 30\n")
    arguments = ["pairs", "birds", "--folds", "2", "--config", str(config), "--out", str(tmp_path / "out"), "--json"]
    done = CliRunner().invoke(app, [*arguments, "--device", "cpu"], catch_exceptions=False)
    told = json.loads(done.stdout)
    assert told["pairs"] == 30
    assert told["wrong_pairs"]["auroc"]["value"] > 0.7, "the file's noise is known"
    assert (tmp_path / "out" / "pairs.html").is_file()
    for wrong, said in (
        (["pairs", "birds", "--folds", "2"], "--folds and --config go together"),
        ([*arguments, "--dtype", "bfloat16"], "--dtype: the trainings of --folds have the precision"),
    ):
        with pytest.raises(InvalidInputError, match=said):
            CliRunner().invoke(app, wrong, catch_exceptions=False)
