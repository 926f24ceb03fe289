"""Test `vldebias.diagnose` against scikit-learn and worlds with known answers, and its page."""

from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import Ridge
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold
from torch import nn
from torch.nn.functional import normalize

import vldebias
from apps.diagnose.diagnosis import readable, wrong_labels
from vldebias.data import Embeddings
from vldebias.errors import InvalidInputError
from vldebias.hosts import TextTable
from vldebias.prompts import load_prompts
from vldebias.report.page import render
from vldebias.study import Result

pytestmark = pytest.mark.usefixtures("no_charts")


def two_values(
    n: int = 400, d: int = 12, gap: float = 4.0, seed: int = 0
) -> tuple[torch.Tensor, np.ndarray]:
    """Return unit rows whose first column reveals a value."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(2, size=n)
    rows = rng.standard_normal((n, d))
    rows[:, 0] += gap * (codes - 0.5)
    return normalize(torch.from_numpy(rows), dim=1).float(), codes


class TestReaders:
    def test_the_neighbour_is_the_nearest_row_in_the_other_folds(self) -> None:
        rows, codes = two_values(200, gap=1.5)
        cosines = (rows @ rows.T).fill_diagonal_(-1).numpy()
        right = np.zeros(200)
        for train, test in StratifiedKFold(5, shuffle=True, random_state=0).split(rows, codes):
            right[test] = codes[train[cosines[np.ix_(test, train)].argmax(1)]] == codes[test]
        expected = np.mean([right[codes == code].mean() for code in (0, 1)])
        assert readable(rows, codes, "neighbour").accuracy == pytest.approx(expected, abs=0.01)

    def test_random_labels_are_at_chance_and_an_attribute_is_not(self) -> None:
        rows, codes = two_values()
        read = [readable(rows, np.random.default_rng(i).permutation(codes)) for i in range(8)]
        # Accuracy exceeds the limit by chance once in 20 probes, and in more than two of eight
        # probes for 0.6% of seeds.
        assert sum(probe.accuracy <= probe.limit for probe in read) >= 6
        reading = readable(rows, codes)
        assert 0.5 < reading.limit < 0.6 < 0.9 < reading.accuracy
        assert np.array_equal(reading.draws, readable(rows, codes, seed=0, resamples=2000).draws)
        low, high = np.percentile(reading.draws, (2.5, 97.5))
        assert low < reading.accuracy < high < low + 0.08

    @pytest.mark.parametrize("reader", ["linear", "neighbour"])
    def test_chance_is_one_over_the_number_of_values_for_any_shares(self, reader: str) -> None:
        rng = np.random.default_rng(0)
        reading = readable(
            rng.standard_normal((600, 8)), rng.choice(3, 600, p=[0.7, 0.2, 0.1]), reader
        )
        # Always predicting the most frequent value is correct 70% of the time, but its balanced
        # accuracy is only 1/3.
        assert reading.accuracy == pytest.approx(1 / 3, abs=0.06)
        assert 1 / 3 < reading.limit < 1 / 3 + 0.1

    def test_rotation_and_scaling_change_nothing(self) -> None:
        rows, codes = two_values(80, d=6)
        turn = torch.linalg.qr(torch.randn(6, 6, generator=torch.Generator().manual_seed(1)))[0]
        for reader in ("linear", "neighbour"):
            plain = readable(rows, codes, reader)
            turned = readable(7.0 * rows @ turn, codes, reader)
            assert plain.accuracy == pytest.approx(turned.accuracy, abs=0.03)


class TestWrongLabels:
    def test_no_row_is_predicted_by_a_model_that_was_fitted_on_it(self) -> None:
        rows, codes = two_values()
        listed = wrong_labels(rows, codes).sort_values("row")
        for rest, held in StratifiedKFold(5, shuffle=True, random_state=0).split(rows, codes):
            oracle = Ridge(alpha=rows.double().var(0, correction=0).mean().item() * len(rows))
            scores = oracle.fit(rows.numpy()[rest], np.eye(2)[codes[rest]]).predict(
                rows.numpy()[held]
            )
            given_ = scores[range(len(held)), codes[held]]
            wrong_scores = scores[range(len(held)), 1 - codes[held]]
            np.testing.assert_allclose(
                listed.confidence.to_numpy()[held], given_ - wrong_scores, atol=1e-4
            )

    def test_rows_with_changed_labels_come_first(self) -> None:
        digits = load_digits()
        rng = np.random.default_rng(0)
        x = digits.data / 16.0
        y = digits.target
        wrong = rng.random(len(y)) < 0.1
        given_labels = np.where(wrong, (y + rng.integers(1, 10, len(y))) % 10, y)
        listed = wrong_labels(x, given_labels)
        assert list(listed.columns) == ["row", "given", "proposed", "confidence"]
        assert (listed.confidence.is_monotonic_increasing, listed.index[0]) == (True, 0)
        assert roc_auc_score(wrong[listed.row], -listed.confidence) > 0.9
        first = listed[: wrong.sum()]
        assert (first.proposed.astype(int).to_numpy() == y[first.row]).mean() > 0.7
        suspects = wrong_labels(
            x, [None if i % 3 == 0 else f"c{label}" for i, label in enumerate(y)]
        )
        assert sorted(suspects.row) == [i for i in range(len(y)) if i % 3], (
            "unknown labels are left out"
        )
        assert all(
            f"c{y[row]}" == named for row, named in zip(suspects.row, suspects.given, strict=True)
        )


@pytest.fixture(scope="module")
def clusters() -> tuple[torch.Tensor, np.ndarray]:
    codes = torch.arange(60) % 3
    rows = torch.randn(60, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return rows + 2 * nn.functional.one_hot(codes, 5), codes.numpy()


@pytest.fixture(scope="module")
def world() -> tuple[Embeddings, dict[str, torch.Tensor]]:
    """Return images of two classes, with a gender along one direction, and texts in the same
    space."""
    rng = np.random.default_rng(0)
    prompts = load_prompts("gender")
    gender = rng.integers(2, size=300)
    smile = rng.integers(2, size=300)
    rows = rng.standard_normal((300, 16))
    rows[:, 0] += 3 * (2 * gender - 1)
    rows[:, 1] += 2 * (2 * smile - 1)
    texts = {}
    shared = {text: rng.standard_normal(16) for text in chain(*prompts.pairs)}
    for pair in prompts.pairs:  # the prompts of a pair differ only in gender
        shared |= dict.fromkeys(pair, shared[pair[0]])
    for text in prompts.texts:
        row = 0.1 * shared.get(text, rng.standard_normal(16)) + np.eye(16)[2]
        row[0] += {("male",): 1.0, ("female",): -1.0}.get(prompts.values_in(text), 0.0)
        texts[text] = torch.from_numpy(row)
    columns = {"smile": np.where(smile, "yes", "no"), "gender": np.where(gender, "male", "female")}
    return Embeddings.from_arrays(rows, columns), texts


@pytest.fixture(scope="module")
def result(world: Any) -> Result:
    return vldebias.diagnose(
        world[0],
        "smile",
        groups="gender",
        texts=world[1],
        attribute="gender",
        methods=["cali"],
        seed=1,
    )


class TestDiagnose:
    def test_probes_are_compared_with_and_without_every_method(self, result: Result) -> None:
        none = result.row("diagnose", "linear_probe", "none", subset="gender")
        cali = result.row("diagnose", "linear_probe", "cali", subset="gender")
        assert cali.value < none.value > 0.95
        assert cali.change[0] == pytest.approx(cali.value - none.value)
        assert result.row("diagnose", "class_probe", "cali", subset="smile").value > 0.9

    def test_only_a_method_whose_linear_probe_is_at_chance_counts_as_removing(
        self, world: Any
    ) -> None:
        data, texts = world
        how = {
            "texts": texts,
            "attribute": "gender",
            "methods": ["cali", "leace"],
            "reference": data[150:],
            "seed": 3,
        }
        read = vldebias.diagnose(data[:150], groups="gender", **how)
        (gone,) = vldebias.diagnose(
            data[:150], groups=np.random.default_rng(2).integers(2, size=150), **how
        ).provenance
        assert ("nothing to remove" in gone.description, "leace" in gone.description) == (
            True,
            False,
        )
        protocol = read.provenance[0]
        assert "nothing to remove" not in protocol.description
        for method, limit in protocol.settings["chance"]["linear_probe of gender"].items():
            at_chance = read.row("diagnose", "linear_probe", method, subset="gender").value <= limit
            assert (method in protocol.description) == (method != "none" and at_chance)

    def test_attributes_that_only_neighbours_can_read_are_not_called_unreadable(self) -> None:
        rng = np.random.default_rng(0)
        # Opposite corners of a square have the same value, so no line separates the values.
        corners = rng.integers(2, size=(400, 2))
        rows = 2.0 * corners - 1 + 0.1 * rng.standard_normal((400, 2))
        features = np.c_[rows, np.ones(400)]
        diagnosis = vldebias.diagnose(features, groups=corners[:, 0] ^ corners[:, 1])
        assert "can be read from the features, but not linearly" in (
            diagnosis.provenance[0].description
        )

    def test_invalid_requests_are_rejected(self, world: Any, clusters: Any) -> None:
        for labels in (np.zeros(60, int), np.r_[np.zeros(56, int), 1, 1, 1, 1], np.arange(59)):
            with pytest.raises(InvalidInputError, match="labels"):
                readable(clusters[0], labels)
        with pytest.raises(InvalidInputError, match="finite"):
            readable(clusters[0] * torch.inf, clusters[1])
        for options in (
            {},
            {"labels": "colour"},
            {"labels": "smile", "methods": "cali"},
            {"labels": np.zeros(7)},
        ):
            with pytest.raises(InvalidInputError, match=r"labels|colour|methods|300"):
                vldebias.diagnose(world[0], **options)

    def test_each_group_is_counted_and_hidden_groups_come_from_text(
        self, world: Any, result: Result
    ) -> None:
        data, texts = world
        listed = wrong_labels(data.features, data.column("smile"), seed=1).set_index("row")
        gender = data.column("gender")
        smile = data.column("smile")
        rows = {row.subset: row for row in result.rows if row.metric == "accuracy"}
        assert set(rows) == {"no/female", "no/male", "yes/female", "yes/male"}
        for name, row in rows.items():
            counted = [
                i
                for i in range(300)
                if f"{smile.names[smile.codes[i]]}/{gender.names[gender.codes[i]]}" == name
            ]
            right = [listed.given[i] == listed.proposed[i] for i in counted]
            assert (row.value, row.n) == (pytest.approx(np.mean(right)), {"images": len(counted)})
        suspect = result.row("diagnose", "suspect_labels", "none").value
        assert suspect == pytest.approx((listed.confidence < 0).mean())
        worst = min(rows.values(), key=lambda row: row.value)
        right = (listed.given == listed.proposed).groupby(gender.codes[listed.index])
        alone = int(right.mean().idxmin())
        answer, gender_of_worst = worst.subset.split("/")
        shown = (
            f"Worst group by gender: {gender_of_worst} with smile {answer},"
            f" {worst.value:.0%} of {worst.n['images']} images correct (by gender alone:"
            f" {gender.names[alone]}, {right.mean()[alone]:.0%}; all: "
        )
        for sentence in (
            "on held-out images, a linear probe has a balanced accuracy of",
            shown,
            f"{round(300 * suspect)} of 300 labels of smile fit another class better",
        ):
            assert sentence in result.provenance[0].description
        hidden = vldebias.diagnose(
            data, "smile", texts=TextTable(texts, "mine"), attribute="gender", seed=1
        )
        assert {row.subset for row in hidden.rows if row.metric == "accuracy"} == set(rows)
        assert [diagnosis.provenance[0].model for diagnosis in (hidden, result)] == [
            "mine",
            "unnamed model",
        ]

    @pytest.mark.parametrize(("rows", "named"), [(29, False), (30, True)])
    def test_small_groups_give_no_advice(self, rows: int, named: bool) -> None:
        classes = np.repeat([0, 1, 0, 1], (60, 60, 60, rows))
        groups = np.repeat([0, 0, 1, 1], (60, 60, 60, rows))
        features = np.random.default_rng(0).normal(size=(len(classes), 8))
        features[:, 0] += 4 * (classes * (1 - groups))  # ones in the second group look like zeros
        description = vldebias.diagnose(features, classes, groups=groups).provenance[0].description
        assert (f"of {rows} images correct" in description) == named

    def test_print_shows_every_answer_with_the_worst_group_before_others(
        self, result: Result
    ) -> None:
        shown = str(result)
        lines = shown.splitlines()
        assert len(lines) <= 25
        assert max(map(len, lines)) <= 80
        words = " ".join(shown.split())
        for sentence in result.provenance[0].settings["advice"]:
            assert " ".join(sentence.split()) in words
        for title in ("linear probe", "nearest neighbour", "accuracy (", "another class fits"):
            assert any(title in line for line in lines), title
        groups = {row.subset: row for row in result.rows if row.metric == "accuracy"}
        worst = min(groups.values(), key=lambda row: row.value)
        first = lines[lines.index("accuracy (higher is better)") + 1]
        assert first.startswith(f"  {worst.value:.2f} [")
        assert f"{worst.n['images']} images" in first

    def test_the_page_answers_one_question_after_the_other(
        self, result: Result, tmp_path: Path
    ) -> None:
        page = render(result, tmp_path / "page.html", run_folder=tmp_path).read_text()
        places = [
            page.index(sentence)
            for sentence in (
                "a linear probe has a balanced accuracy",
                "Worst group",
                "fit another class better",
            )
        ]
        assert places == sorted(places)
