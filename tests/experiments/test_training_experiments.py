"""The training experiments of eval/: the laws of their tables, each on next to nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from eval import readme, tables
from eval.experiments import (
    experiment,
    run,
    small_clip,
    wrong_pairs,
)
from eval.experiments.cells import interval, packed, run_cells, summed_up, unpacked
from eval.experiments.experiment import Experiment, place_of, subset
from vldebias.errors import InvalidInputError
from vldebias.evaluation.result import Measurement, Result
from vldebias.files import commit

figures = st.floats(-1, 1, allow_nan=False)


def arms(name: str) -> dict[str, dict[str, Any]]:
    return Experiment.read(name).arms


class TestIntervals:
    @given(st.lists(figures, min_size=2, max_size=9))
    def test_are_those_of_a_t_test(self, values: list[float]) -> None:
        found = interval(values)
        mean, error = np.mean(values), np.std(values, ddof=1) / len(values) ** 0.5
        half = stats.t.ppf(0.975, len(values) - 1) * error
        assert found == pytest.approx({"value": mean, "low": mean - half, "high": mean + half})

    def test_all_alike_leave_no_width_and_a_lower_level_less(self) -> None:
        assert interval([0.5, 0.5, 0.5]) == {"value": 0.5, "low": 0.5, "high": 0.5}
        assert interval([1.0, 2.0, 3.0], level=0.9)["high"] < interval([1.0, 2.0, 3.0])["high"]


class TestImages:
    def test_what_each_scored_comes_back_and_does_not_become_a_row(self) -> None:
        right = np.random.default_rng(0).random(13) < 0.7
        figures = {"score": float(right.mean()), **packed("score", right)}
        assert json.loads(json.dumps(figures)) == figures
        found = unpacked(figures, "score")
        assert found is not None
        assert np.array_equal(found, right)
        assert unpacked(figures, "other") is None
        rows = summed_up([{"arm": "a", "seed": seed, "figures": figures} for seed in (0, 1)], ("arm",))
        assert [row["metric"] for row in rows] == ["score"]

    def test_intervals_cover_a_world_of_other_seeds_and_other_images(self) -> None:
        """Crossed effects of seeds and images: 95 % over both cover the truth, over seeds alone far too seldom."""
        generator, both, alone = np.random.default_rng(1), 0, 0
        for _ in range(200):
            easy = generator.uniform(0.3, 0.9, 100)  # the truth is .6
            right = generator.random((5, 100)) < easy + generator.normal(0, 0.02, (5, 1))
            values, rows = right.mean(1).tolist(), [one.astype(float) for one in right]
            wide, narrow = interval(values, rows=rows), interval(values)
            both += wide["low"] <= 0.6 <= wide["high"]
            alone += narrow["low"] <= 0.6 <= narrow["high"]
        assert both / 200 > 0.93
        assert alone < both


def cell(arm: str, seed: int, value: float, **more: Any) -> dict[str, Any]:
    return {"arm": arm, "seed": seed, **more, "figures": {"score": value, "other": -value}}


class TestRows:
    @given(st.lists(st.tuples(figures, figures), min_size=2, max_size=6), st.randoms(use_true_random=False))
    def test_changes_are_paired_by_seed_in_whatever_order_cells_come(
        self, pairs: list[tuple[float, float]], random: Any
    ) -> None:
        cells = [cell("base", seed, a) for seed, (a, _) in enumerate(pairs)]
        cells += [cell("new", seed, b) for seed, (_, b) in enumerate(pairs)]
        random.shuffle(cells)
        rows = {(row["arm"], row["metric"]): row for row in summed_up(cells, ("arm",), against={"arm": "base"})}
        assert len(rows) == 4
        by_hand = interval([b - a for a, b in pairs])
        assert rows["new", "score"]["change"] == pytest.approx(by_hand, abs=1e-12)
        assert rows["new", "score"]["value"] == pytest.approx(np.mean([b for _, b in pairs]))
        assert rows["new", "other"]["change"]["value"] == pytest.approx(-by_hand["value"], abs=1e-12)
        assert "change" not in rows["base", "score"]
        assert rows["new", "score"]["seeds"] == list(range(len(pairs)))

    def test_the_base_is_that_of_the_same_place(self) -> None:
        cells = [
            cell(arm, seed, place + (arm == "b") * (1 + place), place=place)
            for place, arm, seed in product((0, 1), "ab", (0, 1))
        ]
        rows = summed_up(cells, ("place", "arm"), against={"arm": "a"})
        changes = {
            (r["place"], r["arm"]): r["change"]["value"] for r in rows if "change" in r and r["metric"] == "score"
        }
        assert changes == {(0, "b"): 1.0, (1, "b"): 2.0}

    def test_a_base_without_the_seed_is_an_error(self) -> None:
        cells = [cell(*place, 0.1) for place in (("a", 0), ("a", 1), ("b", 1), ("b", 2))]
        with pytest.raises(KeyError):
            summed_up(cells, ("arm",), against={"arm": "a"})


def squared(one: Mapping[str, Any]) -> dict[str, float]:
    return {"square": float(one["x"] ** 2)}


class TestCells:
    plan: Sequence[dict[str, Any]] = [{"x": x, "seed": 0} for x in (3, 1, 2)]

    def test_come_in_their_order_and_are_done_once(self, tmp_path: Path) -> None:
        seen: list[int] = []

        def work(one: Mapping[str, Any]) -> dict[str, float]:
            seen.append(one["x"])
            return squared(one)

        first = run_cells(work, self.plan[:2], tmp_path, processes=1, title="")
        assert [one["figures"]["square"] for one in first] == [9.0, 1.0]
        assert first[0]["commit"] == commit()
        again = run_cells(work, self.plan, tmp_path, processes=1, title="")
        assert again[:2] == first
        assert seen == [3, 1, 2]
        run_cells(work, [{**one, "steps": 1} for one in self.plan], tmp_path, processes=1, title="")
        assert len(list(tmp_path.iterdir())) == 6, "a cell that differs in anything is another"

    def test_what_was_done_before_an_error_is_kept(self, tmp_path: Path) -> None:
        def failing(one: Mapping[str, Any]) -> dict[str, float]:
            return {"inverse": 1 / (one["x"] - 1)}

        with pytest.raises(ZeroDivisionError):
            run_cells(failing, self.plan, tmp_path, processes=1, title="")
        assert len(list(tmp_path.iterdir())) == 1

    @pytest.mark.slow
    def test_do_not_depend_on_the_number_of_processes(self, tmp_path: Path, small: None) -> None:
        plan = [{"settings": {"loss": "info_nce"}, "eta": 0.4, "seed": seed, "steps": 1} for seed in (0, 1)]
        one = run_cells(squared, self.plan, tmp_path / "one", processes=1, title="")
        two = run_cells(squared, self.plan, tmp_path / "two", processes=2, title="")
        assert [cell["figures"] for cell in one] == [cell["figures"] for cell in two]
        alone = [small_clip.work(each) for each in plan]
        turned = [small_clip.work(each) for each in reversed(plan)]
        assert alone == turned[::-1], "a cell does not see what was done before it"


@pytest.fixture(scope="module")
def small() -> Iterator[None]:
    """Worlds of a few renders, batches that fit into them."""
    patch = pytest.MonkeyPatch()
    loop = small_clip.LOOP.model_copy(update={"batch_size": 16})
    for name, value in {"IMAGES": 48, "HELD_OUT": 96, "LOOP": loop}.items():
        patch.setattr(small_clip, name, value)
    small_clip.held_out.cache_clear()
    yield
    patch.undo()
    small_clip.held_out.cache_clear()


def shares(found: Mapping[str, float], names: Sequence[str]) -> bool:
    return all(0 <= found[name] <= 1 for name in names)


class TestEachOnNextToNothing:
    @pytest.mark.parametrize("loss", ["InfoNCE", "RINCE q=1.0"])
    def test_noisy_captions(self, small: None, loss: str) -> None:
        place = {"settings": arms("noisy_captions")[loss], "seed": 0, "steps": 2, "temperature": 0.5}
        found = small_clip.work({**place, "eta": 0.8})
        assert found.keys() == {*small_clip.SCORES, "wrong"}
        assert shares(found, small_clip.SCORES)
        assert 0.55 < found["wrong"] < 0.95
        clean = small_clip.work({**place, "eta": 0.0})
        assert clean["wrong"] == 0.0

    def test_a_column_that_is_a_setting_of_the_loss_reaches_it(self) -> None:
        arm = arms("noisy_captions")["RINCE q=0.5"]
        place = {"loss": "RINCE q=0.5", "settings": arm, "temperature": 0.1, "eta": 0.4, "seed": 0}
        assert small_clip.loss_of(place) == {**arm, "temperature": 0.1}
        assert small_clip.loss_of({**place, "lam": 0.05}) == {**arm, "temperature": 0.1, "lam": 0.05}
        assert small_clip.loss_of({"settings": {"loss": "info_nce"}})["temperature"] == small_clip.T

    def test_wrong_pairs_are_scored_by_cosines_with_the_caption_that_was_given(self, small: None) -> None:
        found = wrong_pairs.work({"settings": arms("wrong_pairs")["InfoNCE"], "eta": 0.5, "seed": 0, "steps": 1})
        assert found.keys() == {"auroc", "score of right pairs", "score of wrong pairs"}
        assert 0 <= found["auroc"] <= 1
        world, source, wrong = wrong_pairs.noisy(0, 0.9)
        towers = wrong_pairs.trained(arms("wrong_pairs")["InfoNCE"], world, source, 0, 1)
        own = small_clip.captions(world)
        given = [own[row] for row in source]
        assert wrong.tolist() == [new != old for new, old in zip(given, own, strict=True)]
        expected = small_clip.Monitor(small_clip.pixels(world), captions=given).rows(towers)["positive_score"].numpy()
        np.testing.assert_allclose(wrong_pairs.scores(towers, world, source), expected, atol=1e-5)


class TestExperiment:
    def test_settings_are_chosen_by_the_highest_figure_the_first_of_equal_ones(self) -> None:
        noisy = Experiment.read("noisy_captions")
        values = {0.1: 0.3, 0.2: 0.7, 0.5: 0.7, 1.0: 0.1}
        tried = [{**one, "figures": {"zero_shot_accuracy": values[one["temperature"]]}} for one in noisy.tried(1)]
        assert {one["seed"] for one in tried} == {100}
        chosen = noisy.chosen(tried)
        assert [settings for _, settings in chosen] == [{"temperature": 0.2}] * 5
        lam = [one.cell for one in noisy.plan(chosen, 5, 300) if one.table.task == "lam"]
        assert {(cell["loss"], cell["temperature"], cell["steps"]) for cell in lam} == {("RINCE q=0.5", 0.2, 300)}
        assert {cell["seed"] for cell in lam} == {0, 1, 2}

    @given(st.dictionaries(st.sampled_from("abc"), st.one_of(st.floats(0, 1), st.integers(0, 9), st.just("as it is"))))
    def test_the_columns_of_a_row_are_read_from_its_subset(self, place: dict[str, Any]) -> None:
        row = Measurement(
            task="t", metric="m", method="x", value=1.0, interval=(1.0, 1.0), better="lower", n={}, subset=subset(place)
        )
        assert place_of(row) == {**place, "task": "t", "metric": "m", "method": "x"}

    def test_an_unknown_one_and_a_wrong_field_are_told(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidInputError, match=r"noisy_caption; expected one of \['noisy_captions'"):
            Experiment.read("noisy_caption")
        (tmp_path / "a.yaml").write_text("name: a\nabout: b\nmethod: c\ntables: []\nmetrics: {}\nlosses: 1\n")
        with pytest.raises(InvalidInputError, match=r"a\.yaml: losses: Extra inputs are not permitted"):
            Experiment.read(tmp_path / "a.yaml")


class TestStranger:
    """An experiment of one's own: one YAML file, and a marker in a page."""

    @pytest.fixture
    def mine(self, small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        page = {"page": str(tmp_path / "page.md"), "block": "mine", "rows": ["loss"], "metrics": ["zero_shot_accuracy"]}
        content = {
            "name": "mine",
            "about": "Does RINCE help?",
            "method": "loss",
            "arms": {"InfoNCE": {"loss": "info_nce"}, "RINCE": {"loss": "rince", "q": 0.5}},
            "tables": [{"columns": {"eta": [0.5], "loss": ["InfoNCE", "RINCE"]}, "against": {"loss": "InfoNCE"}}],
            "metrics": {"zero_shot_accuracy": "higher", "wrong": "neither"},
            "pages": [{**page, "note": "mean over seeds"}],
        }
        (tmp_path / "mine.yaml").write_text(yaml.safe_dump(content))
        (tmp_path / "page.md").write_text("Before\n\n<!-- mine:begin -->\n<!-- mine:end -->\n")
        monkeypatch.setattr(experiment, "FOLDER", tmp_path)
        monkeypatch.setattr(tables, "RESULTS", tmp_path)
        return tmp_path

    def given(self, folder: Path, *more: str) -> list[str]:
        words = ["--out", folder, "--work", folder / "cells", "--seeds", "2", "--processes", "1", *more]
        return list(map(str, words))

    def test_it_is_run_kept_and_shown(self, mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run.main([str(mine / "mine.yaml"), *self.given(mine)]) == 0
        result = Result.read(mine / "mine.json")
        assert {(row.method, row.subset) for row in result.rows} == {("InfoNCE", "eta = 0.5"), ("RINCE", "eta = 0.5")}
        shown = readme.render(mine / "page.md")
        assert "| loss | zero_shot_accuracy |" in shown
        assert shown.count("±") == 2
        done = len(list((mine / "cells").iterdir()))
        assert run.main(["mine", *self.given(mine)]) == 0
        assert len(list((mine / "cells").iterdir())) == done == 4
        assert Result.read(mine / "mine.json").rows == result.rows
        (cell, *_) = (mine / "cells").iterdir()  # of another commit
        told = json.loads(cell.read_text())
        told["commit"] = "0" * 12
        cell.write_text(json.dumps(told))
        with pytest.raises(SystemExit):
            run.main(["mine", *self.given(mine)])
        assert f"got cells of commit {'0' * 12}" in capsys.readouterr().err

    def test_the_command_lists_what_there_is_and_refuses_one_seed(
        self, mine: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run.main([]) == 0
        assert capsys.readouterr().out.split(maxsplit=1) == ["mine", "Does RINCE help?\n"]
        with pytest.raises(SystemExit):
            run.main(["mine", *self.given(mine, "--seeds", "1")])
        assert "an interval over seeds needs at least 2" in capsys.readouterr().err
