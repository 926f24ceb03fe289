"""Probes, hidden groups and wrong labels: against scikit-learn, slow twins and worlds whose answer is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge
from sklearn.metrics import balanced_accuracy_score, roc_auc_score
from sklearn.neighbors import KNeighborsClassifier

from vldebias.diagnostics import geometry, hidden_groups, readable, wrong_labels
from vldebias.diagnostics.folds import Folds, fold_numbers, unit_rows
from vldebias.diagnostics.labels import centre_rule
from vldebias.errors import InvalidInputError
from vldebias.methods.rivals.erasure import leace


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray]:
    found = load_digits()
    return found.data / 16.0, found.target


def two_values(n: int = 400, d: int = 12, gap: float = 4.0, seed: int = 0) -> tuple[torch.Tensor, np.ndarray]:
    """Rows of length 1 whose first column tells a value."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(2, size=n)
    rows = rng.standard_normal((n, d))
    rows[:, 0] += gap * (codes - 0.5)
    return unit_rows(rows), codes


class TestFolds:
    def test_no_row_is_judged_by_what_it_was_fitted_on(self) -> None:
        rows, codes = two_values(90)
        number = fold_numbers(codes, 3, 0)
        before = Folds.of(rows, number).scores(codes, 2, balanced=False, penalty=0.1)
        changed = codes.copy()
        changed[5] = 1 - changed[5]
        after = Folds.of(rows, number).scores(changed, 2, balanced=False, penalty=0.1)
        same = number == number[5]
        assert torch.equal(before[same], after[same])
        assert not torch.allclose(before[~same], after[~same])

    @pytest.mark.parametrize("penalty", [1e-3, 1.0])
    def test_ridge_is_that_of_scikit_learn(self, penalty: float) -> None:
        rows, codes = two_values(120)
        number = fold_numbers(codes, 4, 0)
        scores = Folds.of(rows, number).scores(codes, 2, balanced=False, penalty=penalty)
        mine, rest = number == 2, number != 2
        x = rows.double().numpy()[rest]
        alpha = penalty * ((x - x.mean(0)) ** 2).sum() / x.shape[1]
        oracle = Ridge(alpha=alpha).fit(x, np.eye(2)[codes[rest]]).predict(rows.double().numpy()[mine])
        np.testing.assert_allclose(scores[mine].numpy(), oracle, atol=1e-4)

    def test_the_discriminant_is_that_of_scikit_learn_with_equal_priors(self) -> None:
        rows, codes = two_values(300, gap=1.0)
        number = fold_numbers(codes, 3, 0)
        scores = Folds.of(rows, number).scores(codes, 2, balanced=True, penalty=1e-9)
        mine, rest = number == 0, number != 0
        oracle = LinearDiscriminantAnalysis(solver="lsqr", priors=[0.5, 0.5]).fit(rows.numpy()[rest], codes[rest])
        assert (scores[mine].argmax(1).numpy() == oracle.predict(rows.numpy()[mine])).all()

    def test_every_class_is_dealt_evenly(self) -> None:
        codes = np.repeat([0, 1, 2], [7, 30, 11])
        number = fold_numbers(codes, 5, 1)
        for code in range(3):
            sizes = np.bincount(number[codes == code], minlength=5)
            assert sizes.max() - sizes.min() <= 1

    def test_what_cannot_be_dealt_is_refused(self) -> None:
        with pytest.raises(InvalidInputError, match=r"folds: expected 2 .. 3, rows of the smallest class, got 5"):
            fold_numbers(np.repeat([0, 1], [3, 9]), 5, 0)
        with pytest.raises(InvalidInputError, match="row 1 has NaN or infinity"):
            unit_rows([[1.0, 0.0], [np.nan, 1.0]])


class TestReadable:
    def test_the_neighbour_is_that_of_scikit_learn(self) -> None:
        rows, codes = two_values(200, gap=1.5)
        found = readable(rows, codes)["neighbour"]
        near = KNeighborsClassifier(2).fit(rows.numpy(), codes).kneighbors(rows.numpy(), return_distance=False)[:, 1]
        assert found.accuracy == pytest.approx(balanced_accuracy_score(codes, codes[near]))

    def test_labels_without_meaning_are_at_chance_and_an_attribute_is_not(self) -> None:
        rows, codes = two_values()
        at_chance = [readable(rows, np.random.default_rng(i).permutation(codes))["linear"].at_chance for i in range(8)]
        assert sum(at_chance) >= 6
        assert not readable(rows, codes)["linear"].at_chance

    def test_chance_is_one_over_the_values_whatever_their_shares(self) -> None:
        rng = np.random.default_rng(0)
        found = readable(rng.standard_normal((600, 8)), rng.choice(3, 600, p=[0.7, 0.2, 0.1]))
        for one in found.values():
            assert one.chance.mean() == pytest.approx(1 / 3, abs=0.04)

    def test_leace_leaves_nothing_on_the_rows_it_was_fitted_on_and_something_on_others(self) -> None:
        rows, codes = two_values(240, d=100, gap=3.0)
        erase = leace(rows[:120].double(), torch.nn.functional.one_hot(torch.from_numpy(codes[:120]), 2).double())
        seen, unseen = (
            readable(erase(part.double()), y) for part, y in ((rows[:120], codes[:120]), (rows[120:], codes[120:]))
        )
        assert seen["linear"].accuracy <= 0.55
        assert unseen["linear"].accuracy > 0.6

    @settings(max_examples=10, deadline=None)
    @given(st.integers(0, 100), st.floats(0.1, 50))
    def test_turning_and_scaling_change_nothing(self, seed: int, scale: float) -> None:
        rows, codes = two_values(80, d=6, seed=3)
        turn = torch.linalg.qr(torch.randn(6, 6, generator=torch.Generator().manual_seed(seed)))[0]
        one, other = readable(rows, codes), readable(scale * rows @ turn, codes)
        for reader in one:
            assert one[reader].accuracy == pytest.approx(other[reader].accuracy, abs=0.03)

    @pytest.mark.parametrize(
        ("labels", "message"),
        [
            (np.zeros(80, int), "two or more values"),
            (np.arange(79), "expected 80, one for each row of features, got 79"),
        ],
    )
    def test_what_cannot_be_read_is_refused(self, labels: Any, message: str) -> None:
        with pytest.raises(InvalidInputError, match=message):
            readable(two_values(80)[0], labels)


class TestWrongLabels:
    def test_the_centre_rule_is_the_rule_written_out(self, digits: tuple[np.ndarray, np.ndarray]) -> None:
        x, y = digits[0][:150], digits[1][:150]
        u = x / np.linalg.norm(x, axis=1, keepdims=True)
        slow = []
        for i in range(len(u)):
            same = [j for j in range(len(u)) if y[j] == y[i] and j != i]
            centre = u[same].mean(0)
            others = np.mean([u[i] @ u[j] for j in range(len(u)) if y[j] != y[i]])
            slow.append(u[i] @ centre / np.linalg.norm(centre) - others)
        np.testing.assert_allclose(centre_rule(unit_rows(x), y, 10), slow, atol=1e-5)

    @pytest.mark.parametrize("by", ["ridge", "centres"])
    def test_labels_that_were_changed_come_first(self, digits: tuple[np.ndarray, np.ndarray], by: Any) -> None:
        x, y = digits
        rng = np.random.default_rng(0)
        wrong = rng.random(len(y)) < 0.1
        given_labels = np.where(wrong, (y + rng.integers(1, 10, len(y))) % 10, y)
        listed = wrong_labels(x, given_labels, by=by)
        assert list(listed.columns) == ["row", "given", "proposed", "confidence"]
        assert listed.confidence.is_monotonic_increasing
        assert roc_auc_score(wrong[listed.row], -listed.confidence) > 0.9
        first = listed[: wrong.sum()]
        assert (first.proposed.astype(int).to_numpy() == y[first.row]).mean() > 0.7

    def test_unknown_labels_are_left_out_and_rows_keep_their_numbers(self) -> None:
        rows, codes = two_values(60)
        labels = [None if i % 3 == 0 else f"c{code}" for i, code in enumerate(codes)]
        listed = wrong_labels(rows, labels)
        assert sorted(listed.row) == [i for i in range(60) if i % 3]
        assert all(labels[row] == one for row, one in zip(listed.row, listed.given, strict=True))

    def test_a_class_of_one_row_and_another_rule_are_refused(self) -> None:
        rows, codes = two_values(40)
        codes[0] = 2
        with pytest.raises(InvalidInputError, match="two or more rows of every class"):
            wrong_labels(rows, codes, by="centres")
        with pytest.raises(InvalidInputError, match="expected ridge or centres, got 'votes'"):
            wrong_labels(*two_values(40), by="votes")  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def world() -> tuple[torch.Tensor, np.ndarray, np.ndarray]:
    """Two classes, each with a common and a rare group; the axis of the groups is the second one."""
    rng = np.random.default_rng(0)
    labels, groups = rng.integers(2, size=600), (rng.random(600) < 0.15).astype(int)
    rows = 0.3 * rng.standard_normal((600, 8))
    rows[:, 0] += 2 * labels - 1
    rows[:, 1] += 3 * groups - 1.5
    return unit_rows(rows), labels, groups


class TestHiddenGroups:
    @pytest.mark.parametrize("by", ["texts", "clusters"])
    def test_groups_that_are_the_main_direction_are_found(self, world: Any, by: Any) -> None:
        rows, labels, groups = world
        found = hidden_groups(rows, labels, by, texts=np.eye(8)[[1, 1]] * [[-1], [1]], names=("common", "rare"))
        f1 = found.f1(groups)
        assert f1["mean"] > 0.95 > 0.5 > f1["one cluster"]
        assert sum(found.sizes.values()) == 600

    def test_errors_are_those_of_a_classifier_that_did_not_see_the_row(self, world: Any) -> None:
        rows, labels, _ = world
        changed = labels.copy()
        changed[:20] = 1 - changed[:20]
        found = hidden_groups(rows, changed, "errors")
        wrong = found.parts().codes == 1
        assert wrong[:20].mean() > 0.9
        assert wrong[20:].mean() < 0.1

    def test_f1_is_best_over_every_matching_and_no_cut_is_told_beside(self) -> None:
        rows = np.eye(4)[[0, 0, 0, 1, 2, 2, 3, 3]]
        found = hidden_groups(rows, [0] * 8, "texts", texts=np.eye(4))
        truth = [0, 0, 0, 0, 1, 1, 1, 1]
        # groups of 3, 1, 2, 2 rows: the best partner of each true group of 4 gives 6/7 and 4/6
        assert found.f1(truth)["mean"] == pytest.approx((6 / 7 + 4 / 6) / 2)
        assert found.f1(truth)["one cluster"] == pytest.approx((8 / 12 + 0) / 2)

    def test_parts_are_columns_for_a_baseline(self, world: Any) -> None:
        rows, labels, _ = world
        found = hidden_groups(rows, labels, texts=np.eye(8)[[0, 1]], names=("land", "sea"))
        assert found.groups.names == ("0/land", "0/sea", "1/land", "1/sea")
        assert found.parts().names == ("land", "sea")

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({}, "expected texts"),
            ({"texts": np.eye(3)}, r"texts: expected two or more \(m, 8\), got \(3, 3\)"),
            ({"texts": np.eye(8), "names": ("a",)}, "names: expected 8"),
            ({"by": "luck"}, "expected texts, clusters or errors, got 'luck'"),
        ],
    )
    def test_what_does_not_fit_is_refused(self, world: Any, options: Any, message: str) -> None:
        with pytest.raises(InvalidInputError, match=message):
            hidden_groups(world[0], world[1], **options)


class TestGeometry:
    def test_figures_are_means_over_all_pairs(self) -> None:
        rows, codes = two_values(60, d=5, gap=2.0)
        x = rows.double().numpy()
        same = [x[i] @ x[j] for i in range(60) for j in range(60) if i != j and codes[i] == codes[j]]
        other = [x[i] @ x[j] for i in range(60) for j in range(60) if codes[i] != codes[j]]
        far = [((x[i] - x[j]) ** 2).sum() for i in range(60) for j in range(60) if i != j]
        found = geometry(rows, codes)
        assert found.same_cosine == pytest.approx(np.mean(same), abs=1e-6)
        assert found.other_cosine == pytest.approx(np.mean(other), abs=1e-6)
        assert found.alignment == pytest.approx(2 - 2 * np.mean(same), abs=1e-6)
        assert found.uniformity == pytest.approx(np.log(np.mean(np.exp(-2 * np.array(far)))), abs=0.02)
        within = sum(((x[codes == c] - x[codes == c].mean(0)) ** 2).sum() for c in (0, 1))
        assert found.within_variance == pytest.approx(within / ((x - x.mean(0)) ** 2).sum(), abs=1e-6)

    def test_collapsed_classes_have_no_variance_within(self) -> None:
        codes = np.arange(30) % 3
        found = geometry(np.eye(6)[codes], codes)
        assert found.within_variance == pytest.approx(0, abs=1e-6)
        assert found.alignment == pytest.approx(0, abs=1e-6)
        assert found.effective_rank == pytest.approx(2, abs=1e-3)  # three points on a circle about their mean
