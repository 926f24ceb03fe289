"""The popularity experiment: its world is the one it says, its errors are their definitions, its result holds."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.integrate import dblquad
from scipy.stats import kstest
from torch import Tensor

from eval.experiments import popularity
from eval.experiments import popularity_toy as toy
from eval.experiments.popularity_plot import draw
from vldebias.evaluation.result import Measurement, Result
from vldebias.losses import estimate_popularity
from vldebias.pictures import picture_metadata

ROOT = Path(__file__).parents[2]
COMMITTED = ROOT / "eval" / "results" / "popularity.json"

POINTS = [[0.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.6, 0.8], [-0.7, 0.1], [1e-4, 0.5], [4e-4, -2e-4], [-3e-4, 0.9]]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def density(x: list[float], y: list[float]) -> float:
    """p(y | x) with its integral by quadrature."""
    total, _ = dblquad(lambda b, a: math.exp((x[0] * a + x[1] * b) / 0.2), 0, 1, 0, 1, epsabs=1e-12, epsrel=1e-12)
    return math.exp((x[0] * y[0] + x[1] * y[1]) / 0.2) / total


@pytest.fixture(scope="module")
def few() -> toy.Pairs:
    return toy.sample(7, rng(3))


class TestWorld:
    @pytest.mark.parametrize("x", POINTS)
    def test_the_partition_function_is_the_integral(self, x: list[float]) -> None:
        ours = float(toy.log_partition(torch.tensor([x], dtype=torch.float64)).exp())
        y = [0.3, 0.8]
        assert math.exp((x[0] * y[0] + x[1] * y[1]) / 0.2) / ours == pytest.approx(density(x, y), rel=1e-10)

    def test_x_is_uniform_on_the_half_disc(self) -> None:
        """r^2 and the angle are then uniform, each by itself."""
        x = toy.half_disc(20_000, rng(1)).numpy()
        assert x.shape == (20_000, 2)
        assert (x[:, 1] >= 0).all()
        radius, angle = (x**2).sum(1), np.arctan2(x[:, 1], x[:, 0]) / np.pi
        assert kstest(radius, "uniform").pvalue > 0.01
        assert kstest(angle, "uniform").pvalue > 0.01
        assert abs(np.corrcoef(radius, angle)[0, 1]) < 0.02

    @pytest.mark.parametrize("x", [[0.0, 1.0], [-0.8, 0.3], [0.7, 0.7]])
    def test_y_follows_its_density(self, x: list[float]) -> None:
        """Per axis the distribution function is (e^{s y} - 1) / (e^s - 1), and the axes are independent."""
        n = 10_000
        y = toy.square(torch.tensor([x], dtype=torch.float64).expand(n, 2), rng(2)).numpy()
        assert ((y >= 0) & (y <= 1)).all()
        for axis in (0, 1):
            s = x[axis] / 0.2 or 1e-9
            assert kstest(y[:, axis], lambda v, s=s: np.expm1(s * v) / np.expm1(s)).pvalue > 0.01
        assert abs(np.corrcoef(y.T)[0, 1]) < 0.03

    def test_every_y_belongs_with_its_own_x(self) -> None:
        """Rejection accepts in any order; p(y | x) of left and right anchors would be mixed up by a wrong index."""
        x = torch.tensor([[-1.0, 0.0], [1.0, 0.0]], dtype=torch.float64).repeat(3000, 1)
        y = toy.square(x, rng(4))
        assert float(y[::2, 0].mean()) == pytest.approx(1 / 5 - 1 / math.expm1(5), abs=0.01)
        assert float(y[1::2, 0].mean()) == pytest.approx(4 / 5 + 1 / math.expm1(5), abs=0.01)

    def test_q_is_the_sum_of_the_densities(self, few: toy.Pairs) -> None:
        x, y = few.x.tolist(), few.y.tolist()
        expected = [sum(density(one, item) for one in x) for item in y]
        assert few.log_popularity.exp().tolist() == pytest.approx(expected, rel=1e-9)
        assert few.log_density.exp().tolist() == pytest.approx([density(a, b) for a, b in zip(x, y, strict=True)])

    def test_the_true_risk_by_quadrature_is_that_of_many_pairs(self) -> None:
        mean, error = popularity.true_risk(seed=5)
        assert abs(mean - toy.exact_risk()) < 4 * error
        assert error < 0.001
        assert toy.exact_risk(40) == pytest.approx(toy.exact_risk(80), rel=1e-12)


class TestErrors:
    def test_the_empirical_risk_is_equation_5(self, few: toy.Pairs) -> None:
        log_q = torch.linspace(-1, 1, 7, dtype=torch.float64)
        expected = 0.0
        for i in range(7):
            total = sum(math.exp(float(few.x[i] @ few.y[j]) / 0.2) / math.exp(float(log_q[j])) for j in range(7))
            expected -= 0.2 * math.log(math.exp(float(few.x[i] @ few.y[i]) / 0.2) / total) / 7
        assert toy.risk(log_q, few) == pytest.approx(expected, rel=1e-12)

    def test_the_error_term_is_that_of_theorem_1(self, few: toy.Pairs) -> None:
        log_q, true = torch.linspace(0, 2, 7, dtype=torch.float64), few.log_popularity
        expected = 0.0
        for i in range(7):
            for j in range(7):
                gap = abs(math.exp(-float(log_q[j])) - math.exp(-float(true[j])))
                expected += gap * math.exp((float(few.x[i] @ few.y[j]) - 1) / 0.2) / 7
        assert toy.error_term(log_q, few) == pytest.approx(expected, rel=1e-12)
        assert toy.error_term(true, few) == 0

    @pytest.mark.parametrize("n", [7, 40])
    def test_no_constant_does_better_than_the_best(self, n: int) -> None:
        pairs = toy.sample(n, rng(n))
        for log_q in (torch.zeros(n, dtype=torch.float64), pairs.y[:, 0] - pairs.y[:, 1]):
            best = toy.best_constant(log_q, pairs)
            assert float((best - log_q).std()) < 1e-12
            least = toy.error_term(best, pairs)
            for step in (-1.0, -0.1, -1e-4, 1e-4, 0.1, 1.0):
                assert toy.error_term(best + step, pairs) >= least

    def test_constants_do_not_matter_once_they_are_matched(self, few: toy.Pairs) -> None:
        log_q, true = torch.linspace(0, 1, 7, dtype=torch.float64), few.log_popularity
        for one in (lambda q: toy.matched_maxima(q, true), lambda q: toy.best_constant(q, few)):
            torch.testing.assert_close(one(log_q + 3.7), one(log_q))
        assert float(toy.matched_maxima(log_q, true).max()) == pytest.approx(float(true.max()))

    def test_the_methods_are_what_they_are_called(self, few: toy.Pairs) -> None:
        found = toy.popularities(few)
        zeta = estimate_popularity(few.similarity, temperature=0.2).log_popularity
        assert torch.equal(found["true"], few.log_popularity)
        for name, log_q in found.items():
            shape = {"true": few.log_popularity, "estimate": zeta, "uniform": torch.zeros(7)}[name.split(",")[0]]
            assert float((log_q - shape).std()) < 1e-9
        # c = 1 on a square of area 1: eq. 5 then divides by the mean over the data
        mean = torch.exp(few.similarity / 0.2).mean(1).log()
        gcl = -0.2 * (few.similarity.diagonal() / 0.2 - mean).mean()
        assert toy.risk(found["uniform"], few) == pytest.approx(float(gcl))


Measurements = dict[tuple[str, str], Tensor]  # (metric, method) -> (repetitions,)


def measured(n: int, repetitions: int) -> Measurements:
    truth = toy.exact_risk()
    rows = [popularity.measure_pairs(popularity.pairs_of(7, n, r), truth) for r in range(repetitions)]
    return {key: torch.tensor([row[key] for row in rows], dtype=torch.float64) for key in rows[0]}


@pytest.fixture(scope="module")
def both() -> tuple[Measurements, Measurements]:
    """Few pairs, and sixteen times as many."""
    return measured(16, 40), measured(256, 20)


class TestLaws:
    """On small samples, whatever was committed."""

    @pytest.mark.parametrize("metric", ["risk_error", "to_exact", "error_term", "log_error"])
    def test_the_estimate_gets_better_and_uniform_does_not(
        self, both: tuple[Measurements, Measurements], metric: str
    ) -> None:
        small, large = both
        assert large[metric, "estimate"].mean() < 0.5 * small[metric, "estimate"].mean()
        assert large[metric, "uniform"].mean() > 0.8 * small[metric, "uniform"].mean()
        assert large[metric, "estimate"].mean() < 0.4 * large[metric, "uniform"].mean()

    def test_no_constant_makes_uniform_right(self, both: tuple[Measurements, Measurements]) -> None:
        small, large = both
        name = "uniform, best constant"
        assert large["error_term", name].mean() > 0.8 * small["error_term", name].mean()
        assert large["error_term", name].min() > large["error_term", "estimate"].mean()

    def test_the_error_of_maximum_likelihood_is_that_of_a_mean(self) -> None:
        """E |error| = sqrt(2 / pi) sigma / sqrt(n), of independent losses with standard deviation sigma."""
        sigma = 0.2 * float(toy.sample(50_000, rng(8)).log_density.std())
        n, truth = 64, toy.exact_risk()
        pairs = toy.sample(n * 40, rng(9))
        samples = [toy.Pairs(pairs.x[i : i + n], pairs.y[i : i + n]) for i in range(0, n * 40, n)]
        found = [popularity.measure_pairs(one, truth)["risk_error", toy.EXACT] for one in samples]
        assert found == pytest.approx([abs(-0.2 * float(one.log_density.mean()) - truth) for one in samples])
        losses = -0.2 * toy.sample(n * 4000, rng(10)).log_density
        errors = (losses.reshape(4000, n).mean(1) - truth).abs().mean()
        assert float(errors) == pytest.approx(math.sqrt(2 / math.pi / n) * sigma, rel=0.05)

    def test_a_repetition_depends_on_nothing_but_its_numbers(self) -> None:
        one = popularity.pairs_of(1, 20, 3)
        assert torch.equal(one.y, popularity.pairs_of(1, 20, 3).y)
        for other in (popularity.pairs_of(2, 20, 3), popularity.pairs_of(1, 20, 4)):
            assert not torch.equal(one.x, other.x)


class TestScript:
    @pytest.mark.slow
    def test_it_writes_a_result_and_draws_it_again_from_that_alone(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        options = ["--out", str(tmp_path / "new"), "--sizes", "12", "8", "--repetitions", "3"]
        assert popularity.main(options) == 0
        told = capsys.readouterr()
        assert "n = 12" in told.out
        assert "3 of 3" in told.err  # progress, not in the way of the table
        path = tmp_path / "new" / "popularity.json"
        result = Result.read(path)
        assert result.provenance[0].settings["sizes"] == [8, 12]
        assert {f.n["repetitions"] for f in result.rows} == {3}
        example = result.provenance[0].settings["example"]
        example["estimate"][0] = example["true"][0]
        again = tmp_path / "again"
        result.write(again / "popularity.json")
        assert popularity.main(["--out", str(again), "--redraw"]) == 0
        assert picture_metadata(again / "popularity.png")["result"] == "popularity"
        assert Result.read(again / "popularity.json") == result

    @pytest.mark.parametrize("wrong", [["--sizes", "1"], ["--repetitions", "0"], ["--seed", "-1"]])
    def test_what_it_refuses(self, wrong: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            popularity.main(["--out", str(tmp_path), *wrong])
        assert "expected sizes of at least 2, at least 1 repetition" in capsys.readouterr().err
        assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def committed() -> Result:
    return Result.read(COMMITTED)


@pytest.mark.slow
class TestCommitted:
    def at(self, result: Result, metric: str, method: str, n: int) -> Measurement:
        return result.row(popularity.TASK, metric, method, subset=f"n = {n}")

    def test_it_is_complete(self, committed: Result) -> None:
        (protocol,) = committed.provenance
        settings = protocol.settings
        assert settings["tau"] == 0.2
        assert settings["sizes"] == list(popularity.SIZES)
        assert protocol.n["true risk pairs"] == 50_000
        assert set(protocol.methods) == {f.method for f in committed.rows} == set(popularity.METHODS)
        assert set(settings["metrics"]) == {f.metric for f in committed.rows}
        assert all(f.n["repetitions"] == protocol.n["repetitions"] >= 20 for f in committed.rows)
        risk = settings["true_risk"]
        assert abs(risk["mean"] - risk["by_quadrature"]) < 4 * risk["standard_error"]
        assert risk["by_quadrature"] == pytest.approx(toy.exact_risk())

    def test_a_repetition_can_be_measured_again(self, committed: Result) -> None:
        """The smallest size anew: the committed figures are those of this code."""
        n, truth = min(popularity.SIZES), committed.provenance[0].settings["true_risk"]["mean"]
        (seed,) = committed.provenance[0].seeds
        repetitions = committed.provenance[0].n["repetitions"]
        rows = [popularity.measure_pairs(popularity.pairs_of(seed, n, r), truth) for r in range(repetitions)]
        for metric, method in rows[0]:
            expected = np.mean([row[metric, method] for row in rows])
            assert self.at(committed, metric, method, n).value == pytest.approx(expected, rel=1e-6), (metric, method)

    def test_its_heatmaps_show_the_first_sample(self, committed: Result) -> None:
        again = popularity.example(committed.provenance[0].seeds[0])
        example = committed.provenance[0].settings["example"]
        assert again["seed"] == example["seed"] == [0, 100, 0]
        assert example["estimate"] == pytest.approx(again["estimate"], rel=1e-4)
        assert example["true"] == pytest.approx(again["true"], rel=1e-4)

    @pytest.mark.slow
    def test_its_picture_is_drawn_from_it_alone(self, committed: Result, tmp_path: Path) -> None:
        path = draw(committed, tmp_path / "deep" / "popularity.png")
        told = picture_metadata(path)
        assert (told["result"], told["commit"]) == ("popularity", committed.commit)
        assert picture_metadata(COMMITTED.with_suffix(".png")) == told
