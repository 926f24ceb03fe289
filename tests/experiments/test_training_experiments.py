"""The training experiments of eval/: the laws of their tables, each of them on next to nothing, what they committed."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from eval.experiments import does_it_pay as pay
from eval.experiments import (
    false_negatives,
    finetune_and_debias,
    finetune_tutorial,
    noisy_captions,
    out_of_fold,
    skewed_captions,
    small_clip,
    wrong_pairs,
)
from eval.experiments.cells import arguments_of, interval, run_cells, summed_up, write_result

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "eval" / "results"

NAMES = (
    "noisy_captions",
    "false_negatives",
    "skewed_captions",
    "finetune_and_debias",
    "wrong_pairs",
    "out_of_fold",
    "ssa",
)
figures = st.floats(-1, 1, allow_nan=False)


def committed(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return found


class TestIntervals:
    @given(st.lists(figures, min_size=2, max_size=9))
    def test_are_those_of_a_t_test(self, values: list[float]) -> None:
        found = interval(values)
        mean, error = np.mean(values), np.std(values, ddof=1) / len(values) ** 0.5
        half = stats.t.ppf(0.975, len(values) - 1) * error
        assert found == pytest.approx({"value": mean, "low": mean - half, "high": mean + half})

    def test_of_three_by_hand(self) -> None:
        found = interval([1.0, 2.0, 3.0])  # sd 1, so 4.3027 / sqrt(3), the quantile of the tables
        assert found["value"] == 2.0
        assert found["high"] - 2.0 == pytest.approx(4.30265 / 3**0.5, rel=1e-5)
        assert interval([1.0, 2.0, 3.0], level=0.9)["high"] < found["high"]

    def test_all_alike_leave_no_width(self) -> None:
        assert interval([0.5, 0.5, 0.5]) == {"value": 0.5, "low": 0.5, "high": 0.5}


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

    def test_pairing_takes_out_what_seeds_have_in_common(self) -> None:
        noise = [0.0, 0.3, 0.6]
        cells = [cell(arm, seed, x + gain) for arm, gain in (("a", 0.0), ("b", 0.01)) for seed, x in enumerate(noise)]
        row = summed_up(cells, ("arm",), against={"arm": "a"})[-2]
        assert row["low"] < 0.0 < row["high"]
        assert row["change"]["low"] == pytest.approx(0.01)

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
        with pytest.raises(KeyError):
            summed_up(
                [cell(*place, 0.1) for place in (("a", 0), ("a", 1), ("b", 1), ("b", 2))],
                ("arm",),
                against={"arm": "a"},
            )


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
        again = run_cells(work, self.plan, tmp_path, processes=1, title="")
        assert again[:2] == first
        assert seen == [3, 1, 2]

    def test_what_was_done_before_an_error_is_kept(self, tmp_path: Path) -> None:
        def failing(one: Mapping[str, Any]) -> dict[str, float]:
            return {"inverse": 1 / (one["x"] - 1)}

        with pytest.raises(ZeroDivisionError):
            run_cells(failing, self.plan, tmp_path, processes=1, title="")
        assert len(list(tmp_path.iterdir())) == 1

    def test_a_cell_that_differs_in_anything_is_another(self, tmp_path: Path) -> None:
        run_cells(squared, self.plan, tmp_path, processes=1, title="")
        run_cells(squared, [{**one, "steps": 1} for one in self.plan], tmp_path, processes=1, title="")
        assert len(list(tmp_path.iterdir())) == 6

    @pytest.mark.slow
    def test_do_not_depend_on_the_number_of_processes(self, tmp_path: Path, small: None) -> None:
        plan = [noisy_captions.cell("InfoNCE", 0.4, seed, 1, 0.2) for seed in (0, 1)]
        one = run_cells(squared, self.plan, tmp_path / "one", processes=1, title="")
        two = run_cells(squared, self.plan, tmp_path / "two", processes=2, title="")
        assert one == two
        alone = [noisy_captions.work(each) for each in plan]
        turned = [noisy_captions.work(each) for each in reversed(plan)]
        assert alone == turned[::-1], "a cell does not see what was done before it"

    def test_the_result_says_what_it_is_made_of(self, tmp_path: Path) -> None:
        write_result(tmp_path / "r.json", {"loop": "short"}, [{"a": 1}], [{"b": 2}])
        told = json.loads((tmp_path / "r.json").read_text())
        assert (told["protocol"], told["rows"], told["cells"]) == ({"loop": "short"}, [{"a": 1}], [{"b": 2}])
        assert "torch" in told["versions"]

    def test_flags(self) -> None:
        found = arguments_of("", "name", 7, ["--seeds", "3", "--out", "x"])
        assert (found.seeds, found.steps, found.out, found.work) == (3, 7, Path("x"), Path("name-cells"))
        assert found.processes >= 1


@pytest.fixture(scope="module")
def small() -> Iterator[None]:
    """Worlds of a few renders, batches that fit into them."""
    patch = pytest.MonkeyPatch()
    loop = small_clip.LOOP.model_copy(update={"batch_size": 16})
    for name, value in {"IMAGES": 48, "HELD_OUT": 96, "LOOP": loop}.items():
        patch.setattr(small_clip, name, value)
    patch.setattr(skewed_captions, "IMAGES", 48)
    patch.setattr(skewed_captions, "MOST_RENDERS", 30 * 48)
    for name, value in {"IMAGES": 48, "HELD_OUT": 64, "BATCH": 16}.items():
        patch.setattr(finetune_and_debias, name, value)
    cached: list[Any] = [small_clip.held_out, skewed_captions.skewed, finetune_and_debias.held_out]
    for function in cached:
        function.cache_clear()
    yield
    patch.undo()
    for function in cached:
        function.cache_clear()


def shares(found: Mapping[str, float], names: Sequence[str]) -> bool:
    return all(0 <= found[name] <= 1 for name in names)


class TestEachOnNextToNothing:
    @pytest.mark.parametrize("loss", ["InfoNCE", "RINCE q=1.0"])
    def test_noisy_captions(self, small: None, loss: str) -> None:
        found = noisy_captions.work(noisy_captions.cell(loss, 0.8, 0, 2, 0.5))
        assert found.keys() == {*noisy_captions.SCORES, "wrong"}
        assert shares(found, noisy_captions.SCORES)
        assert 0.55 < found["wrong"] < 0.95
        clean = noisy_captions.work(noisy_captions.cell(loss, 0.0, 0, 2, 0.5))
        assert clean["wrong"] == 0.0

    def test_the_ablation_s_lam_reaches_the_loss(self, small: None, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: list[Any] = []

        def noting(loss: Mapping[str, Any], *rest: Any) -> Any:
            seen.append(loss)
            return train(loss, *rest)

        train: Callable[..., Any] = noisy_captions.train
        monkeypatch.setattr(noisy_captions, "train", noting)
        for lam in (None, 0.05):
            noisy_captions.work(noisy_captions.cell("RINCE q=0.5", 0.4, 0, 1, 0.2, lam))
        assert [loss["lam"] for loss in seen] == [noisy_captions.LAM, 0.05]
        assert [loss["temperature"] for loss in seen] == [0.2, 0.2]
        assert seen[0]["q_start"] == noisy_captions.Q_START

    def test_false_negatives(self, small: None) -> None:
        place = {"seed": 0, "steps": 1, "tau_plus": 0.05}
        corrected = false_negatives.work({**place, "loss": "debiased", "beta": None})
        assert corrected.keys() == set(false_negatives.SCORES)
        assert shares(corrected, false_negatives.SCORES)
        flat = false_negatives.work({**place, "loss": "hard_negative", "beta": 0.0})
        assert flat == pytest.approx(corrected, abs=0.05), "beta = 0 is the debiased loss"

    def test_skewed_captions(self, small: None) -> None:
        found = skewed_captions.work({"loss": "nuclr", "seed": 1, "steps": 2, "popularity_lr": 1.0})
        names = ["zero_shot_accuracy", "accuracy on common species", "accuracy on rare species"]
        moved = {skewed_captions.FOLLOWS, "popularity, log, deviation"}
        assert found.keys() == {*names, "share of the commonest"} | moved
        assert found["popularity, log, deviation"] > 0
        assert shares(found, names)
        low, high = sorted(found[name] for name in names[1:])
        assert low <= found["zero_shot_accuracy"] <= high

    def test_how_far_the_popularity_went(self) -> None:
        texts = ["a", "a", "a", "a", "b", "b", "c"]
        shares = torch.tensor([4.0, 4, 4, 4, 2, 2, 1]).log()
        assert skewed_captions.moved(2 * shares - 3, texts)[skewed_captions.FOLLOWS] == pytest.approx(1, abs=1e-5)
        assert skewed_captions.moved(-shares, texts)[skewed_captions.FOLLOWS] == pytest.approx(-1, abs=1e-5)
        still = skewed_captions.moved(torch.full((7,), -0.1), texts)
        assert still[skewed_captions.FOLLOWS] == 0

    def test_skewed_captions_have_the_shares_that_they_say(self, small: None) -> None:
        _, texts, order = skewed_captions.skewed(1)
        counts = np.array([texts.count(small_clip.TEXTS[k]) for k in order])
        wanted = np.round(48 / np.arange(1, 49) / (1 / np.arange(1, 49)).sum())
        assert counts.tolist() == wanted.tolist()

    @pytest.mark.filterwarnings("ignore::vldebias.errors.ClassSignalWarning")
    @pytest.mark.parametrize("model", ["as shipped", "RINCE q=0.5"])
    def test_finetune_and_debias(self, small: None, model: str) -> None:
        found = finetune_and_debias.work({"captions": "species", "model": model, "seed": 0, "steps": 1})
        told = {f"{metric}, {name}" for metric in ("worst_group", "average") for name in finetune_and_debias.METHODS}
        assert found.keys() == {"species_accuracy", *finetune_and_debias.SCORES, *told}
        assert shares(found, [name for name in found if name != "positive_score"])
        assert all(found[f"worst_group, {m}"] <= found[f"average, {m}"] for m in finetune_and_debias.METHODS)

    def test_wrong_pairs(self, small: None) -> None:
        found = wrong_pairs.work({"loss": "InfoNCE", "eta": 0.5, "seed": 0, "steps": 2})
        assert found.keys() == {"auroc", "score of right pairs", "score of wrong pairs"}
        assert 0 <= found["auroc"] <= 1

    @pytest.mark.parametrize(("scores", "learned"), [(out_of_fold.LEARNED, [48]), (out_of_fold.UNSEEN, [32, 32, 32])])
    def test_out_of_fold(self, small: None, monkeypatch: pytest.MonkeyPatch, scores: str, learned: list[int]) -> None:
        for name, value in {"IMAGES": 48, "BATCH": 16, "FOLDS": 3}.items():
            monkeypatch.setattr(out_of_fold, name, value)
        train: Callable[..., Any] = out_of_fold.train
        read: Callable[..., torch.Tensor] = out_of_fold.image_features
        pixels: list[torch.Tensor] = []

        def noting(loss: Any, images: torch.Tensor, *rest: Any, **options: Any) -> Any:
            pixels.append(images)
            return train(loss, images, *rest, **options)

        def reading(towers: Any, images: torch.Tensor) -> torch.Tensor:
            known = {one.numpy().tobytes() for one in pixels[-1]}
            own = sum(one.numpy().tobytes() in known for one in images)
            assert own == (len(images) if scores == out_of_fold.LEARNED else 0)
            return read(towers, images)

        monkeypatch.setattr(out_of_fold, "train", noting)
        monkeypatch.setattr(out_of_fold, "image_features", reading)
        found = out_of_fold.work({"scores": scores, "seed": 0, "steps": 4})
        assert [len(images) for images in pixels] == learned
        assert list(found) == ["auroc after 1", "auroc after 2", "auroc after 4"]
        assert shares(found, list(found))

    def test_scores_of_pairs_are_cosines_with_the_caption_that_was_given(self, small: None) -> None:
        world, noise = wrong_pairs.noisy(0, 0.9)
        towers = wrong_pairs.trained("InfoNCE", world, noise, 0, 1)
        monitor = small_clip.TensorMonitor(small_clip.pixels(world), captions=noise.applied(small_clip.captions(world)))
        expected = monitor.rows(towers)["positive_score"].numpy()
        np.testing.assert_allclose(wrong_pairs.scores(towers, world, noise), expected, atol=1e-5)


def same_rows(found: Sequence[Any], expected: Sequence[Any]) -> None:
    """Rows of a file, and rows from its cells: up to the last digits of another machine's Student's t."""
    assert len(found) == len(expected)
    for one, other in zip(found, json.loads(json.dumps(expected)), strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            assert value == (pytest.approx(other[name], abs=1e-12) if name != "seeds" else other[name]), name


def places(cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What distinguishes cells, in an order."""
    told = [{name: value for name, value in one.items() if name != "figures"} for one in cells]
    return sorted(told, key=lambda one: json.dumps(one, sort_keys=True))


@pytest.mark.slow
class TestCommitted:
    @pytest.mark.parametrize("name", NAMES)
    def test_no_path_of_a_machine(self, name: str) -> None:
        assert not re.search(r'"(/|[A-Za-z]:\\|~)|/(home|tmp|root|Users|mnt|work)/', json.dumps(committed(name)))

    @pytest.mark.parametrize("name", NAMES[:-1])
    def test_the_protocol_is_that_of_the_cells(self, name: str) -> None:
        found = committed(name)
        assert {one["steps"] for one in found["cells"]} == {found["protocol"]["loop"]["steps"]}
        kept = places(found["cells"])
        assert all(one != other for one, other in pairwise(kept)), "a cell stands twice"

    def test_noisy_captions_hold_together(self) -> None:
        found = committed("noisy_captions")
        protocol, cells = found["protocol"], found["cells"]
        steps, best, seeds = protocol["loop"]["steps"], protocol["temperature"], protocol["seeds"]
        tuning = [one for one in cells if one["seed"] == noisy_captions.TUNING_SEED]
        noise = [one for one in cells if one not in tuning and one["lam"] is None]
        ablation = [one for one in cells if one["lam"] is not None]
        of = noisy_captions.cell
        losses, temperatures = noisy_captions.LOSSES, noisy_captions.TEMPERATURES
        assert places(tuning) == places(
            [of(loss, noisy_captions.TUNED_AT, 100, steps, t) for loss in losses for t in temperatures]
        )
        assert places(noise) == places(
            [of(k, eta, s, steps, best[k]) for eta in noisy_captions.ETAS for k in losses for s in seeds["noise"]]
        )
        name = noisy_captions.ABLATED
        assert places(ablation) == places(
            [
                of(name, eta, s, steps, best[name], lam)
                for eta, lam, s in product(noisy_captions.ABLATED_AT, noisy_captions.LAMS, seeds["lam"])
            ]
        )
        assert len(seeds["noise"]) >= 3
        for loss in losses:
            own = {one["temperature"]: one["figures"]["zero_shot_accuracy"] for one in tuning if one["loss"] == loss}
            assert own[best[loss]] == max(own.values())
        rows = [{"table": "noise", **row} for row in summed_up(noise, ("eta", "loss"), against={"loss": "InfoNCE"})]
        same_rows(found["rows"], [*rows, *({"table": "lam", **row} for row in summed_up(ablation, ("eta", "lam")))])
        for one in noise:  # a text drawn in place of another is the same one in 48
            assert one["figures"]["wrong"] == pytest.approx(one["eta"] * 47 / 48, abs=0.03)

    @pytest.mark.parametrize("eta", [0.4, 0.6, 0.8])
    @pytest.mark.parametrize("loss", ["RINCE q=0.5", "RINCE q=1.0"])
    def test_rince_is_ahead_under_noise_beyond_the_interval(self, eta: float, loss: str) -> None:
        """What the README says; where a new measurement says otherwise, both have to."""
        (row,) = (
            row
            for row in committed("noisy_captions")["rows"]
            if (row["table"], row["metric"]) == ("noise", "zero_shot_accuracy") and row["eta"] == eta
            if row["loss"] == loss
        )
        assert row["change"]["low"] > 0

    def test_false_negatives_hold_together(self) -> None:
        found = committed("false_negatives")
        protocol, cells = found["protocol"], found["cells"]
        of = {"steps": protocol["loop"]["steps"]}
        share, seeds = false_negatives.TRUE_SHARE, protocol["seeds"]
        debiased = [
            {"loss": "debiased", "tau_plus": tau, "beta": None, "seed": s, **of}
            for tau, s in product(false_negatives.TAUS, seeds)
        ]
        hard = [
            {"loss": "hard_negative", "tau_plus": share, "beta": beta, "seed": s, **of}
            for beta, s in product(false_negatives.BETAS, seeds)
        ]
        assert places(cells) == places(debiased + hard)
        first, second = ([c for c in cells if c["loss"] == loss] for loss in ("debiased", "hard_negative"))
        rows = summed_up(first, ("loss", "tau_plus"), against={"tau_plus": 0.0})
        same_rows(found["rows"], [*rows, *summed_up(second, ("loss", "beta"), against={"beta": 0.0})])

    def test_skewed_captions_hold_together(self) -> None:
        found = committed("skewed_captions")
        protocol, cells = found["protocol"], found["cells"]
        steps, best = protocol["loop"]["steps"], protocol["popularity_lr"]["chosen"]
        seeds, tuning_seed = protocol["seeds"], skewed_captions.TUNING_SEED
        plan = [
            {"loss": loss, "seed": s, "steps": steps, "popularity_lr": best if loss == "nuclr" else None}
            for loss, s in product(skewed_captions.LOSSES, seeds)
        ]
        tuning = [
            {"loss": "nuclr", "seed": tuning_seed, "steps": steps, "popularity_lr": size}
            for size in skewed_captions.STEP_SIZES
        ]
        assert places(cells) == places(plan + tuning)
        follows = skewed_captions.FOLLOWS
        tried = {c["popularity_lr"]: c["figures"][follows] for c in cells if c["seed"] == tuning_seed}
        assert tried[best] == max(tried.values()) > 0.5, "a step that moves it"
        done = [one for one in cells if one["seed"] != tuning_seed]
        same_rows(found["rows"], summed_up(done, ("loss",), against={"loss": "info_nce"}))
        share = 1 / (1 / np.arange(1, 49)).sum()  # of the commonest of 48 species, by Zipf's law
        assert all(one["figures"]["share of the commonest"] == pytest.approx(share, abs=0.01) for one in cells)

    def test_finetune_and_debias_hold_together(self) -> None:
        found = committed("finetune_and_debias")
        protocol, cells = found["protocol"], found["cells"]
        plan = [
            {"captions": said, "model": model, "seed": s, "steps": protocol["loop"]["steps"]}
            for said, model, s in product(finetune_and_debias.CAPTIONS, finetune_and_debias.MODELS, protocol["seeds"])
        ]
        assert places(cells) == places(plan)
        same_rows(found["rows"], summed_up(cells, ("captions", "model"), against={"model": "as shipped"}))
        shipped = [one["figures"] for one in cells if one["model"] == "as shipped"]
        assert all(one == shipped[0] for one in shipped), "the model as shipped depends on no seed"

    def test_wrong_pairs_hold_together(self) -> None:
        found = committed("wrong_pairs")
        protocol, cells = found["protocol"], found["cells"]
        plan = [
            {"loss": loss, "eta": eta, "seed": s, "steps": protocol["loop"]["steps"]}
            for eta, loss, s in product(wrong_pairs.ETAS, wrong_pairs.COMPARED, protocol["seeds"])
        ]
        assert places(cells) == places(plan)
        same_rows(found["rows"], summed_up(cells, ("eta", "loss"), against={"loss": "InfoNCE"}))
        chosen = committed("noisy_captions")["protocol"]["temperature"]
        assert all(chosen[loss] == t for loss, t in wrong_pairs.COMPARED.items()), "the temperatures of the other table"

    def test_out_of_fold_holds_together(self) -> None:
        found = committed("out_of_fold")
        protocol, cells = found["protocol"], found["cells"]
        steps = protocol["loop"]["steps"]
        of = {"steps": steps}
        arms = (out_of_fold.LEARNED, out_of_fold.UNSEEN)
        assert places(cells) == places([{"scores": a, "seed": s, **of} for a, s in product(arms, protocol["seeds"])])
        same_rows(found["rows"], summed_up(cells, ("scores",), against={"scores": out_of_fold.LEARNED}))
        # What docs/fine-tuning.md says; where a new measurement says otherwise, it has to as well.
        assert all(row["change"]["low"] < 0 < row["change"]["high"] for row in found["rows"] if "change" in row)
        for arm in arms:
            own = [one["figures"] for one in cells if one["scores"] == arm]
            falls = [one[f"auroc after {steps // 4}"] - one[f"auroc after {steps}"] for one in own]
            assert interval(falls)["low"] > 0


def test_does_it_pay_asks_every_arm_alike_and_holds_the_rivals_apart() -> None:
    args = SimpleNamespace(seeds=5, steps=10)
    settings = {(s, arm, n): (0.1, 1e-3) for s, start in pay.STARTS.items() for arm in start.arms for n in start.noises}
    cells = list(pay.plan(args, settings))
    for name, start in pay.STARTS.items():
        own = Counter(
            (c["noise"], c["share"], c["arm"]) for c in cells if c["start"] == name and c["arm"] != pay.SHIPPED
        )
        conditions = len(start.noises) * len(start.shares) + start.clean
        assert len(own) == conditions * len(start.arms)
        assert set(own.values()) == {min(5, start.most_seeds)}
    assert not any(c["tuning"] for c in cells)
    extra = {f"{arm}: {name}": 0.9 for arm in (pay.STOPPED, pay.FILTERED) for name in (pay.METRIC, "linear evaluation")}
    done = [
        {**c, "figures": {pay.METRIC: 0.5, "linear evaluation": 0.6, **(extra if c["arm"] == pay.BASE else {})}}
        for c in cells
    ]
    rows = summed_up(pay.apart(done), ("start", "noise", "share", "arm"), against={"arm": pay.BASE})
    found = {(r["start"], r["noise"], r["share"], r["arm"]): r["value"] for r in rows if r["metric"] == pay.METRIC}
    heads = [(noise, share) for noise in pay.NOISES for share in (0.0, *pay.SHARES)]
    arms = [*pay.ARMS, pay.STOPPED, pay.FILTERED, pay.SHIPPED]
    assert {key[1:] for key in found if key[0] == "heads"} == {(*place, arm) for place in heads for arm in arms}
    assert all(value == (0.9 if key[3] in (pay.STOPPED, pay.FILTERED) else 0.5) for key, value in found.items())


class TestTutorial:
    def test_the_command_that_is_measured_is_the_one_of_the_tutorial(self) -> None:
        page = (ROOT / "docs" / "tutorials" / "fine-tune.md").read_text(encoding="utf-8")
        first = next(line for line in page.splitlines() if line.startswith("vldebias train"))
        assert first == f"vldebias train {finetune_tutorial.COMMAND}"
        assert committed("finetune_tutorial")["protocol"]["command"] == first

    def test_it_gains_and_loses_what_the_page_says(self) -> None:
        rows = committed("finetune_tutorial")["rows"]
        changes = {row["metric"]: row["change"] for row in rows if row["model"] == finetune_tutorial.TUTORIAL}
        assert {name for name, change in changes.items() if change["low"] > 0} >= {
            "zero-shot",
            "species",
            "worst group",
        }
        assert changes["worst group, projection"]["value"] >= 0
        assert {name for name, change in changes.items() if change["high"] < 0} == {
            "zero-shot, projection",
            "recall@10 text->image",
        }

    def test_its_rows_are_those_of_its_cells(self) -> None:
        found = committed("finetune_tutorial")
        against = {"model": finetune_tutorial.START}
        same_rows(found["rows"], summed_up(finetune_tutorial.apart(found["cells"]), ("model",), against=against))

    def test_the_model_that_it_began_with_is_an_arm(self) -> None:
        one = {"model": "a", "seed": 0, "figures": {"zero-shot": 0.9, "before: zero-shot": 0.8}}
        assert finetune_tutorial.apart([one]) == [
            {"model": "as shipped", "seed": 0, "figures": {"zero-shot": 0.8}},
            {"model": "a", "seed": 0, "figures": {"zero-shot": 0.9}},
        ]
