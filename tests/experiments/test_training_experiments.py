"""Test the training experiments in eval/: the properties of their tables, and each of them at a
tiny size."""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import yaml
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from eval.experiments import batch_sizes, captions, every_loss, label_margins, noisy_digits, run
from eval.experiments.run import Experiment, interval, run_cells, summed_up
from eval.pages import training
from eval.tables import RESULTS, place_of, read
from vldebias.report.result import Result

figures = st.floats(-1, 1, allow_nan=False)


def arms(name: str) -> dict[str, dict[str, Any]]:
    return Experiment.read(name).arms


class TestIntervals:
    @given(st.lists(figures, min_size=2, max_size=9))
    def test_intervals_match_a_t_test(self, values: list[float]) -> None:
        bounds = interval(values)
        mean = np.mean(values)
        error = np.std(values, ddof=1) / len(values) ** 0.5
        half = stats.t.ppf(0.975, len(values) - 1) * error
        assert bounds == pytest.approx({"value": mean, "low": mean - half, "high": mean + half})


class TestImages:
    def test_intervals_cover_other_seeds_and_other_images(self) -> None:
        """With crossed effects of seeds and images, 95% intervals over both cover the truth.
        Intervals over seeds alone cover it far too rarely."""
        generator = np.random.default_rng(1)
        both = 0
        alone = 0
        for _ in range(200):
            easy = generator.uniform(0.3, 0.9, 100)  # the true value is 0.6
            right = generator.random((5, 100)) < easy + generator.normal(0, 0.02, (5, 1))
            values = right.mean(1).tolist()
            rows = [hits.astype(float) for hits in right]
            wide = interval(values, rows=rows)
            narrow = interval(values)
            both += wide["low"] <= 0.6 <= wide["high"]
            alone += narrow["low"] <= 0.6 <= narrow["high"]
        assert both / 200 > 0.93
        assert alone < both


def cell(arm: str, seed: int, value: float, **fields: Any) -> dict[str, Any]:
    return {"arm": arm, "seed": seed, **fields, "figures": {"score": value, "other": -value}}


class TestRows:
    @given(
        st.lists(st.tuples(figures, figures), min_size=2, max_size=6),
        st.randoms(use_true_random=False),
    )
    def test_changes_are_paired_by_seed_regardless_of_the_order_of_cells(
        self, pairs: list[tuple[float, float]], random: Any
    ) -> None:
        cells = [cell("base", seed, a) for seed, (a, _) in enumerate(pairs)]
        cells += [cell("new", seed, b) for seed, (_, b) in enumerate(pairs)]
        random.shuffle(cells)
        rows = {
            (row["arm"], row["metric"]): row
            for row in summed_up(cells, ("arm",), against={"arm": "base"})
        }
        assert len(rows) == 4
        by_hand = interval([b - a for a, b in pairs])
        assert rows["new", "score"]["change"] == pytest.approx(by_hand, abs=1e-12)
        assert rows["new", "score"]["value"] == pytest.approx(np.mean([b for _, b in pairs]))
        assert rows["new", "other"]["change"]["value"] == pytest.approx(
            -by_hand["value"], abs=1e-12
        )
        assert "change" not in rows["base", "score"]
        assert rows["new", "score"]["seeds"] == list(range(len(pairs)))

    def test_the_baseline_has_the_same_coordinates(self) -> None:
        cells = [
            cell(arm, seed, place + (arm == "b") * (1 + place), place=place)
            for place, arm, seed in product((0, 1), "ab", (0, 1))
        ]
        rows = summed_up(cells, ("place", "arm"), against={"arm": "a"})
        changes = {
            (r["place"], r["arm"]): r["change"]["value"]
            for r in rows
            if "change" in r and r["metric"] == "score"
        }
        assert changes == {(0, "b"): 1.0, (1, "b"): 2.0}

    def test_a_baseline_without_the_seed_raises_an_error(self) -> None:
        cells = [cell(*place, 0.1) for place in (("a", 0), ("a", 1), ("b", 1), ("b", 2))]
        with pytest.raises(KeyError):
            summed_up(cells, ("arm",), against={"arm": "a"})


def squared(settings: Mapping[str, Any]) -> dict[str, float]:
    return {"square": float(settings["x"] ** 2)}


class TestCells:
    plan: Sequence[dict[str, Any]] = [{"x": x, "seed": 0} for x in (3, 1, 2)]

    def test_cells_run_in_order_and_only_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[int] = []

        def work(settings: Mapping[str, Any]) -> dict[str, float]:
            seen.append(settings["x"])
            return squared(settings)

        first = run_cells(work, self.plan[:2], tmp_path, processes=1, title="")
        assert first == [{"square": 9.0}, {"square": 1.0}]
        assert run_cells(work, self.plan, tmp_path, processes=1, title="")[:2] == first
        assert seen == [3, 1, 2]
        run_cells(
            work,
            [{**cell_settings, "steps": 1} for cell_settings in self.plan],
            tmp_path,
            processes=1,
            title="",
        )
        assert len(list(tmp_path.iterdir())) == 6, (
            "a cell that differs in any setting is a different cell"
        )
        monkeypatch.setattr(run, "commit", lambda: "another")
        run_cells(work, self.plan, tmp_path, processes=1, title="")
        assert len(seen) == 9, "cells of another commit are run again"

    @pytest.mark.slow
    def test_results_do_not_depend_on_the_number_of_processes(self, tmp_path: Path) -> None:
        single, parallel = (
            run_cells(squared, self.plan, tmp_path / str(n), processes=n, title="") for n in (1, 2)
        )
        assert single == parallel


@pytest.fixture(scope="module")
def small() -> Iterator[None]:
    """Create worlds with few renders, and batches that fit them."""
    patch = pytest.MonkeyPatch()
    for name, value in {
        "IMAGES": 48,
        "FEWER": 48,
        "HELD_OUT": 96,
        "VALIDATION": 48,
        "BATCH": 16,
    }.items():
        patch.setattr(captions, name, value)
    patch.setattr(captions, "FEWER_BATCH", 16)
    yield
    patch.undo()
    for kept in (captions.fewer, captions.monitor):
        kept.cache_clear()


@pytest.fixture(scope="module")
def renders(small: None) -> Iterator[None]:
    """Create a pool of ten renders per species, half of which are used for training."""
    patch = pytest.MonkeyPatch()
    patch.setattr(every_loss, "POOL", 480)
    patch.setattr(captions, "FEWER", 240)
    yield
    patch.undo()
    every_loss.renders.cache_clear()


def test_kinds_of_data_match_their_names() -> None:
    species = np.random.default_rng(0).permutation(np.arange(48).repeat(125))
    for name, kind in every_loss.DATA.items():
        rows, named = kind(species, 0)
        right = named == species[rows]
        if "wrong" in name:
            share = float(name.split("%")[0]) / 100  # one in 48 random captions is the correct one
            assert 1 - right.mean() == pytest.approx(share * 47 / 48, abs=0.03)
        elif name == "coarse captions":
            assert len(set(named.tolist())) == 48 // every_loss.COARSE
            assert set(np.unique(species[rows] - named)) == set(range(every_loss.COARSE))
        else:
            assert right.all()
    few, _ = every_loss.few_classes(species, 0)
    assert len(few) == 125 * every_loss.FEW
    _, named = every_loss.long_tail(species, 0)
    counts = np.bincount(named)
    assert counts[0] == 125
    assert counts[-1] == pytest.approx(125 / every_loss.TAIL, abs=0.6)
    assert (np.diff(counts) <= 0).all()


class TestEachExperimentOnTinyData:
    def test_wrong_pairs_have_the_requested_rate(self, small: None) -> None:
        cell = {"settings": arms("wrong_pairs")["InfoNCE"], "eta": 0.5, "seed": 0, "steps": 1}
        figures_of_cell = captions.wrong_pairs(cell)
        scores, wrong = captions.scores(cell)
        assert figures_of_cell["score of wrong pairs"] == pytest.approx(scores[wrong].mean())
        pairs = list(product(scores[wrong], scores[~wrong]))
        assert figures_of_cell["auroc"] == pytest.approx(
            np.mean([(a < b) + 0.5 * (a == b) for a, b in pairs])
        )

    @pytest.mark.parametrize("noise", ["mixture", "class", "crop"])
    def test_a_loss_that_needs_results_from_other_arms_runs_them_first(
        self, small: None, noise: str
    ) -> None:
        settings = Experiment.read("which_loss_heads").given
        cell = {
            "start": "heads",
            "noise": noise,
            "share": 0.8,
            "arm": "InfoNCE",
            "seed": 0,
            "steps": 2,
            "lr": 0.01,
        }
        figures_of_cell = captions.which_loss(
            {**settings, **cell, "temperature": 0.2, "settings": {"loss": "info_nce"}}
        )
        named = {name.partition(": ")[0] for name in figures_of_cell}
        assert named == {"zero_shot_accuracy", "rows", "InfoNCE, filtered"}

    @pytest.mark.parametrize("arm", list(Experiment.read("every_loss").arms))
    def test_every_loss_runs(self, arm: str, renders: None) -> None:
        experiment = Experiment.read("every_loss")
        place = {**experiment.given, "arm": arm, "seed": 0, "steps": 2, "temperature": 0.1}
        cell = {**place, "settings": experiment.arms[arm], "data": "20% wrong captions"}
        figures_of_cell = every_loss.every_loss(cell)
        assert 0 <= figures_of_cell["zero_shot_accuracy"] <= 1
        is_filtered = any(name.startswith("InfoNCE, filtered") for name in figures_of_cell)
        assert is_filtered == (arm == "InfoNCE")
        if arm == "InfoNCE":  # data and tuning are the same for every loss
            coarse = every_loss.every_loss({**cell, "data": "coarse captions"})
            assert 0.2 < coarse["species by means"] <= 1
            assert 0 <= every_loss.every_loss({**cell, "tuning": True})["validation"] <= 1

    @pytest.mark.parametrize("arm", ["not trained", "RINCE"])
    def test_the_batch_size_experiment_runs(
        self, arm: str, renders: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(batch_sizes, "POOL", 480)
        experiment = Experiment.read("batch_sizes")
        cell = {**experiment.given, "arm": arm, "seed": 0, "steps": 1, "batch": 64}
        figures_of_cell = batch_sizes.batch_sizes({**cell, "settings": experiment.arms[arm]})
        # A single step at a tenth of the learning rate hardly changes a trained model.
        assert 0.3 < figures_of_cell["zero_shot_accuracy"] <= 1

    def test_the_learned_popularity_is_compared_with_the_frequency(
        self, renders: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(captions, "FEWER_BATCH", 16)
        experiment = Experiment.read("learned_popularity")
        cell = {**experiment.given, "settings": experiment.arms["NUCLR"], "seed": 0, "steps": 20}
        figures_of_cell = every_loss.learned_popularity(cell)
        assert set(figures_of_cell) == set(experiment.metrics)
        assert all(np.isfinite(value) for value in figures_of_cell.values())

    def test_the_ratio_of_margins_is_that_of_correct_to_random_labels(self) -> None:
        experiment = Experiment.read("label_margins")
        cell = {"settings": experiment.arms["random"], "seed": 0, "steps": 250}
        figures_of_cell = label_margins.work(cell)
        correct, random = (label_margins.medians(0, share, steps=250) for share in (0.0, 1.0))
        assert set(figures_of_cell) == set(experiment.metrics)
        assert figures_of_cell["ratio, margin"] == correct["margin"] / random["margin"]
        assert label_margins.work({**cell, "settings": {}}).keys() == {label_margins.GAP}

    def test_the_noisy_digits_experiment_runs(self) -> None:
        cell = {
            "settings": arms("noisy_digits")["InfoNCE"],
            "eta": 0.4,
            "seed": 0,
            "steps": 2,
            "temperature": 0.2,
        }
        figures_of_cell = noisy_digits.work(cell)
        assert 0.1 < figures_of_cell["linear evaluation"] < 1


def test_nuclr_learned_that_captions_of_common_species_are_popular() -> None:
    rows = {row.metric: row for row in read("learned_popularity").rows}
    for side in ("captions", "images"):
        assert rows[f"rank correlation, {side}"].interval[0] > 0
        least, most = (rows[f"frequency of {end} popular, {side}"] for end in ("least", "most"))
        assert least.interval[1] < most.interval[0]


def test_class_noise_replaces_labels_by_the_given_class_at_half_the_rate() -> None:
    labels = np.arange(10).repeat(2000)
    others = np.array([6, 7, 1, 8, 9, 3, 0, 1, 3, 4])
    noisy = captions.class_noise(labels, 0.4, others, 0)
    flipped = noisy != labels
    assert flipped.mean() == pytest.approx(0.2, abs=0.01)
    assert np.array_equal(noisy[flipped], others[labels[flipped]])


def test_the_similar_class_is_the_one_with_the_nearest_mean_image() -> None:
    labels = np.arange(10).repeat(3)
    means = torch.tensor([0.0, 1, 10, 11, 20, 21, 30, 31, 40, 41])
    images = (means[labels] + torch.tensor([-0.4, 0.0, 0.4]).repeat(10))[:, None, None, None]
    images = images.expand(-1, 1, 8, 8)
    assert list(noisy_digits.similar_classes(images, labels)) == [1, 0, 3, 2, 5, 4, 7, 6, 9, 8]


def test_softmax_scores_match_their_definition() -> None:
    draw = torch.Generator().manual_seed(0)
    x, v = (F.normalize(torch.randn(n, 4, generator=draw), dim=1) for n in (6, 3))
    codes = torch.tensor([0, 1, 2, 2, 1, 0])
    logits = x @ v.T / 0.5
    for i, code in enumerate(codes):
        expected = (logits.log_softmax(1)[i, code] + logits.log_softmax(0)[i, code]) / 2
        assert captions.softmax_scores(x, v, codes, 0.5)[i] == pytest.approx(
            expected.item(), abs=1e-6
        )


class TestExperiment:
    def test_the_setting_with_the_highest_figure_is_selected_and_ties_take_the_first(self) -> None:
        noisy = Experiment.read("noisy_digits")
        few = run.Table(task="few", columns={"loss": ["RINCE q=0.5"], "eta": [0.4]}, seeds=3)
        noisy = noisy.model_copy(update={"tables": [*noisy.tables, few]})
        values = {0.1: 0.3, 0.2: 0.7, 0.5: 0.7}
        tried = []
        for trial in noisy.tried(1):
            value = values.get(trial["temperature"], 0.1)
            tried.append({**trial, "figures": {"linear evaluation": value}})
        assert {trial["seed"] for trial in tried} == {100}
        chosen = noisy.chosen(tried)
        assert [settings for _, settings in chosen] == [{"temperature": 0.2}] * 3
        cells = [cell for table, cell, _ in noisy.plan(chosen, 5, 300) if table.task == "few"]
        assert {(cell["loss"], cell["temperature"], cell["steps"]) for cell in cells} == {
            ("RINCE q=0.5", 0.2, 300)
        }
        assert {cell["seed"] for cell in cells} == {0, 1, 2}

    def test_cells_that_do_not_depend_on_a_column_run_once(self) -> None:
        heads = Experiment.read("which_loss_heads")
        plan = heads.plan([], 1, 300)
        untrained = [(cell, done) for _, cell, done in plan if cell["arm"] == "not trained"]
        assert len(untrained) == 15
        assert len({json.dumps(done) for _, done in untrained if done["share"] == 0.0}) == 1

    def test_experiments_are_listed_if_no_name_is_given(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run.main([]) == 0
        names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
        assert {"every_loss", "noisy_digits", "which_loss_heads", "wrong_pairs"} <= set(names)

    def test_a_custom_experiment_is_run_and_saved(
        self, small: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        content = {
            "about": "Does RINCE help?",
            "work": "eval.experiments.captions:wrong_pairs",
            "method": "loss",
            "steps": 1,
            "arms": {"InfoNCE": {"loss": "info_nce"}, "RINCE": {"loss": "rince", "q": 0.5}},
            "tables": [
                {
                    "columns": {"eta": [0.5], "loss": ["InfoNCE", "RINCE"]},
                    "against": {"loss": "InfoNCE"},
                }
            ],
            "metrics": {"auroc": "higher", "score of wrong pairs": "lower"},
        }
        (tmp_path / "mine.yaml").write_text(yaml.safe_dump(content))
        command = f"{tmp_path}/mine.yaml --out {tmp_path} --work {tmp_path}/cells --processes 1"
        assert run.main(f"{command} --seeds 2".split()) == 0
        result = Result.read(tmp_path / "mine.json")
        assert {(row.method, row.subset) for row in result.rows} == {
            ("InfoNCE", "eta = 0.5"),
            ("RINCE", "eta = 0.5"),
        }
        assert {row.method for row in result.rows if row.change is not None} == {"RINCE"}
        assert run.main(f"{command} --seeds 2".split()) == 0
        assert len(list((tmp_path / "cells").iterdir())) == 4
        with pytest.raises(SystemExit):
            run.main(f"{command} --seeds 1".split())
        assert "an interval over seeds needs at least 2" in capsys.readouterr().err


STORED = [
    path.stem
    for path in sorted(run.FOLDER.glob("*.yaml"))
    if (RESULTS / f"{path.stem}.json").is_file()
]
TUNED = [name for name in STORED if Experiment.read(name).tuning]


class TestEdges:
    """Tables mark settings that were chosen from the end points of a search."""

    @pytest.mark.parametrize("name", TUNED)
    def test_a_chosen_setting_is_inside_its_search_or_marked(self, name: str) -> None:
        experiment = Experiment.read(name)
        mark = training.edges(name)
        marked = 0
        for choice in read(name).provenance[0].settings["chosen"]:
            (search,) = (
                search
                for search in experiment.tuning
                if all(choice.get(column) in tried for column, tried in search.columns.items())
            )
            is_at_an_end = any(
                len(tried) > 1 and choice[setting] in (min(tried), max(tried))
                for setting, tried in search.tried.items()
            )
            where = {column: choice[column] for column in search.columns}
            method = where.pop(experiment.method)
            for row in read(name).rows:
                is_own = row.method == method or row.method.startswith(f"{method}, ")
                if is_own and where.items() <= place_of(row).items():
                    assert mark(row) == ("†" if is_at_an_end else "")
                    marked += 1
        assert marked

    @pytest.mark.parametrize("name", STORED)
    def test_results_state_the_arms_and_settings_of_their_experiment(self, name: str) -> None:
        experiment = Experiment.read(name)
        (stored,) = read(name).provenance
        assert stored.methods == experiment.arms
        assert stored.settings["given"] == experiment.given
