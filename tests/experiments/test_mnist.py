"""Test the image experiments: readers, views and strata on small synthetic files, and each
experiment end to end."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import interpolate

from eval.experiments import class_prior, coarse_digits, mnist, ssa
from eval.experiments.mnist import Images, Views
from eval.experiments.run import Experiment
from vldebias.errors import InvalidInputError
from vldebias.report.result import Result
from vldebias.training.batches import Batch
from vldebias.training.objective import Objective
from vldebias.training.settings import LossSettings

ROOT = Path(__file__).parents[2]
NAMES = (
    "class_prior",
    "coarse_digits",
    "negatives",
    "noisy_mnist",
    "nuclr_variants",
    "rare_digit",
    "ssa",
    "ssa_labels",
    "tail_digits",
    "wrong_labels",
)


def write_idx(path: Path, values: NDArray[np.uint8]) -> None:
    """Write the IDX format: two zero bytes, the type code for bytes, the number of axes, and the
    shape."""
    head = struct.pack(f">4B{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
    path.write_bytes(head + values.tobytes())


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the files of MNIST with the small digits from scikit-learn."""
    folder = tmp_path_factory.mktemp("mnist-data")
    loaded = load_digits()
    pixels = interpolate(torch.from_numpy(loaded.images / 16)[:, None], (28, 28), mode="bilinear")
    images = (255 * pixels[:, 0]).round().numpy().astype(np.uint8)
    labels = loaded.target.astype(np.uint8)
    for prefix, rows in (("train", slice(0, 1200)), ("t10k", slice(1200, None))):
        write_idx(folder / f"{prefix}-images-idx3-ubyte", images[rows])
        write_idx(folder / f"{prefix}-labels-idx1-ubyte", labels[rows])
    return folder


@pytest.fixture
def downloads(files: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the folder with these files, which the experiments read."""
    monkeypatch.setattr(mnist, "DOWNLOADS", files)
    mnist.read.cache_clear()
    yield files
    mnist.read.cache_clear()


class TestReaders:
    def test_idx_files_round_trip(self, downloads: Path) -> None:
        pixels, labels = mnist.read("test")
        assert pixels.dtype == torch.uint8
        assert tuple(pixels.shape) == (597, 1, 28, 28)
        assert labels.tolist() == load_digits().target[1200:].tolist()
        raw = (downloads / "t10k-images-idx3-ubyte").read_bytes()[16:]
        assert pixels.numpy().tobytes() == raw

    def test_the_error_for_missing_files_names_their_folder(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(mnist, "DOWNLOADS", tmp_path / "missing")
        mnist.read.cache_clear()
        with pytest.raises(InvalidInputError, match="expected MNIST in eval/downloads/mnist-data"):
            mnist.read("train")


CELL: dict[str, Any] = {"seed": 0}


class TestSamples:
    def test_seeds_train_on_different_images_and_are_tested_on_the_same(
        self, downloads: Path
    ) -> None:
        learn, test = mnist.sample(CELL, 100, 50)
        other, same = mnist.sample({**CELL, "seed": 1}, 100, 50)
        assert not torch.equal(learn.pixels, other.pixels)
        assert torch.equal(test.pixels, same.pixels)
        assert float(learn.pixels.max()) <= 1

    def test_settings_are_selected_on_training_images_that_no_seed_uses(
        self, downloads: Path
    ) -> None:
        learn, chosen_by = mnist.sample({**CELL, "tuning": True}, 1000, 200)
        distances = torch.cdist(learn.pixels.flatten(1), chosen_by.pixels.flatten(1))
        assert len(learn) == 1000
        assert float(distances.min()) > 0
        pixels, _ = mnist.read("train")
        assert torch.equal(chosen_by.pixels, pixels[-200:].float() / 255)

    def test_a_share_of_zero_excludes_a_digit(self, downloads: Path) -> None:
        shares = np.ones(10)
        shares[8] = 0
        learn, _ = mnist.sample(CELL, 500, 10, shares=shares)
        assert set(learn.labels.tolist()) == set(range(10)) - {8}


class TestViews:
    def test_a_view_without_changes_equals_the_image(self) -> None:
        images = torch.rand(4, 1, 12, 12)
        assert torch.allclose(Views(1.0)(images, torch.Generator()), images, atol=1e-5)

    def test_a_crop_only_shows_a_part_of_the_image(self) -> None:
        """Each pixel's value is its column, so a crop spans the share of columns that was kept."""
        ramp = torch.linspace(0, 1, 32).expand(300, 1, 32, 32).clone()
        seen = Views(0.25)(ramp, torch.Generator().manual_seed(0))[:, 0, 0]
        area = (31 * (seen[:, 16] - seen[:, 15])) ** 2
        assert 0.24 < float(area.min()) < 0.3
        assert 0.95 < float(area.max()) < 1.01
        assert float(area.mean()) == pytest.approx(0.625, abs=0.05)

    def test_half_of_the_images_are_mirrored(self) -> None:
        ramp = torch.linspace(0, 1, 32).expand(400, 1, 32, 32).clone()
        seen = Views(1.0, mirror=True)(ramp, torch.Generator().manual_seed(0))[:, 0, 0]
        mirrored = seen[:, 0] > seen[:, -1]
        assert 0.4 < float(mirrored.float().mean()) < 0.6


def test_partners_have_the_label_of_their_image() -> None:
    """Images only show their label, so both views in a pair are equal."""
    labels = torch.arange(3).repeat(20)
    images = (labels / 2).float()[:, None, None, None].expand(-1, 1, 8, 8)
    batches = mnist.Partners(
        images, labels=labels, augment=Views(1.0), batch_size=30, two_views=True, seed=0
    )
    batch = batches.batch(1)
    torch.testing.assert_close(batch.images, batch.views)
    assert len(batch.images.unique()) >= 3


def test_the_worst_digit_benefits_from_true_groups(downloads: Path) -> None:
    given = Experiment.read("rare_digit").given
    cell = {**given, "items": 1000, "tested": 500, "seed": 0, "classifier_steps": 2}
    images, test = coarse_digits.data(cell)
    assert (images.labels == 8).sum() < 20
    low = coarse_digits.worst_digit(cell, images, test, images.labels)
    longer = {**cell, "classifier_steps": 60}
    high = coarse_digits.worst_digit(longer, images, test, images.labels)
    assert low < high <= 1


def test_clusters_stay_within_the_coarse_classes() -> None:
    embeddings = torch.randn(80, 4, generator=torch.Generator().manual_seed(0))
    is_high = np.arange(80) % 3 == 0
    clusters = coarse_digits.strata(embeddings, is_high, 5, seed=0)
    assert set(clusters[~is_high].tolist()) == set(range(5))
    assert set(clusters[is_high].tolist()) == set(range(5, 10))


def test_cosines_are_grouped_by_what_the_images_of_a_pair_share() -> None:
    digits = np.array([0, 0, 4, 5])
    angles = torch.tensor([0.0, 0.1, 1.0, 2.0])
    embeddings = torch.stack([angles.cos(), angles.sin()], 1)
    same, other, across = coarse_digits.pair_cosines(embeddings, digits).values()
    assert same == pytest.approx(np.cos([0.1]))
    assert sorted(other) == pytest.approx(sorted(np.cos([1.0, 0.9])))
    assert sorted(across) == pytest.approx(sorted(np.cos([2.0, 1.9, 1.0])))


def test_images_of_a_digit_have_the_mean_of_their_cosines() -> None:
    digits = np.arange(10).repeat(3)
    rows = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
    rows = nn.functional.normalize(rows, dim=1)
    for digit, mean in enumerate(coarse_digits.mean_cosines(rows, digits)):
        a, b, c = rows[3 * digit : 3 * digit + 3]
        assert mean == pytest.approx(float((a @ b + a @ c + b @ c) / 3), abs=1e-5)


def test_a_tail_has_the_same_frequencies_in_both_classes_and_another_order_for_each_seed() -> None:
    cells = [{"digits": "tail", "rare": 0.5, "seed": seed} for seed in range(3)]
    shares = [coarse_digits.shares_of(cell) for cell in cells]
    for share in shares:
        for part in np.split(share, 2):
            assert sorted(part) == [0.0625, 0.125, 0.25, 0.5, 1.0]
    assert not np.array_equal(shares[0], shares[1])


def batch_of(labels: list[int], dim: int = 4) -> dict[str, Any]:
    """Return unit features of two views with labels, as arguments of an objective."""
    rows = torch.randn(2 * len(labels), dim, generator=torch.Generator().manual_seed(1))
    first, second = nn.functional.normalize(rows, dim=1).chunk(2)
    batch = Batch(images=first[:, :0], labels=torch.tensor(labels))
    return {"first": first, "second": second, "batch": batch}


def info_nce() -> Objective:
    settings = LossSettings(loss="info_nce", temperature=0.5)
    return Objective(settings, temperature=0.5, items=None, two_views=True)


class TestTrueNegatives:
    def test_the_loss_is_info_nce_if_all_labels_differ(self) -> None:
        objective, inputs = info_nce(), batch_of([0, 1, 2, 3])
        expected = objective(**inputs)
        loss = mnist.true_negatives(objective, (), inputs, expected)
        torch.testing.assert_close(loss, expected)

    def test_negatives_have_other_labels_and_their_mean_counts_for_all(self) -> None:
        labels = [0, 1, 0, 1, 1]
        inputs = batch_of(labels)
        rows, both = torch.cat([inputs["first"], inputs["second"]]), labels * 2
        expected = 0.0
        for i, anchor in enumerate(rows):
            scores = rows @ anchor / 0.5
            other = [float(scores[j].exp()) for j in range(10) if both[j] != both[i]]
            positive = float(scores[(i + 5) % 10].exp())
            expected -= np.log(positive / (positive + 8 * np.mean(other))) / 10
        loss = mnist.true_negatives(info_nce(), (), inputs, torch.zeros(()))
        assert float(loss) == pytest.approx(expected, rel=1e-5)


class TestWrongLabels:
    def test_leads_match_their_definition(self) -> None:
        labels = torch.tensor([0, 0, 0, 1, 1, 2, 2])
        rows = nn.functional.normalize(
            torch.randn(7, 3, generator=torch.Generator().manual_seed(2)), dim=1
        )
        leads, nearest = mnist.label_leads(rows, labels)
        means = torch.stack([rows[labels == code].mean(0) for code in range(3)])
        for i, row in enumerate(rows):
            is_same = labels == labels[i]
            others = rows[is_same & (torch.arange(7) != i)].mean(0)
            own = nn.functional.cosine_similarity(others, row, dim=0)
            expected = float(own - (rows[~is_same] @ row).mean())
            assert float(leads[i]) == pytest.approx(expected, abs=1e-6)
        cosines = nn.functional.cosine_similarity(rows[:, None], means[None], dim=2)
        assert nearest.tolist() == cosines.argmax(1).tolist()

    def test_the_wrong_label_in_a_batch_is_corrected_after_a_fifth_of_the_steps(self) -> None:
        """Rows of a class are equal, and the last one has the label of the other class."""
        rows = torch.eye(2).repeat_interleave(4, dim=0)
        given, true = [0] * 4 + [1] * 3 + [0], [0] * 4 + [1] * 4
        seen = []
        objective = info_nce()

        def keep(objective: object, args: object, inputs: dict[str, Any], loss: object) -> None:
            seen.append(inputs["batch"].labels.tolist())

        mnist.correct_labels(objective, share=1 / 8, steps=10)
        objective.register_forward_hook(keep, with_kwargs=True)
        for _ in range(4):
            batch = Batch(images=rows[:, :0], labels=torch.tensor(given))
            objective(first=rows, second=rows, batch=batch)
        assert seen == [given, given, true, true]


def test_further_views_differ_from_the_contrasted_ones() -> None:
    images = torch.rand(12, 1, 8, 8)
    batches = mnist.TensorBatches(images, augment=Views(0.5), batch_size=4, two_views=True, seed=0)
    plain = batches.batch(1)
    batches.more_views = 2
    batch = batches.batch(1)
    assert plain.more_views is None
    assert tuple(batch.more_views.shape) == (4, 2, 1, 8, 8)
    torch.testing.assert_close(batch.images, plain.images)
    torch.testing.assert_close(batch.views, plain.views)
    for view in batch.more_views.unbind(1):
        assert not torch.equal(view, batch.images)


@pytest.mark.parametrize("truth", [0.1, 0.5])
def test_the_class_prior_of_a_known_mixture_is_estimated(truth: float) -> None:
    rng = np.random.default_rng(0)
    positive, negative = 0.6 + 0.2 * rng.normal(size=4000), 0.2 * rng.normal(size=40_000)
    number = round(truth * len(negative))
    mixed = np.concatenate([0.6 + 0.2 * rng.normal(size=number), negative[number:]])
    assert class_prior.class_prior(positive, mixed) == pytest.approx(truth, rel=0.15)
    # Without a threshold that excludes negatives, the estimate is only an upper bound.
    assert class_prior.class_prior(negative[:4000], negative) > 0.7


class TestAttack:
    def test_the_attack_is_the_sign_of_the_gradient_of_the_cross_entropy(self) -> None:
        torch.manual_seed(0)
        classifier = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
        images = 0.3 + 0.4 * torch.rand(5, 1, 4, 4)
        labels = torch.tensor([0, 1, 2, 0, 1])
        pixels = images.clone().requires_grad_()
        nn.functional.cross_entropy(classifier(pixels), labels).backward()
        expected = images + 0.1 * pixels.grad.sign()
        torch.testing.assert_close(ssa.fgsm(classifier, images, labels, 0.1), expected)

    def test_a_linear_classifier_is_less_accurate_under_a_larger_attack(self) -> None:
        torch.manual_seed(0)
        linear = nn.Linear(16, 3, bias=False)
        classifier = nn.Sequential(nn.Flatten(), linear)
        pixels = 0.3 + 0.4 * torch.rand(200, 1, 4, 4)
        with torch.no_grad():
            # The weights sum to 0, so the mean of the pixels does not favour a class.
            linear.weight -= linear.weight.mean(1, keepdim=True)
            labels = classifier(pixels).argmax(1).numpy()
        rates = [
            ssa.robust_correct(classifier, Images(pixels, labels), epsilon).mean()
            for epsilon in (0.0, 0.02, 0.1)
        ]
        assert rates[0] == 1
        assert rates[0] > rates[1] > rates[2]


def test_the_shift_gap_matches_a_manual_computation() -> None:
    images = torch.tensor([[0.0, 0.0], [2.0, 0.0], [5.0, 5.0]])
    labels = torch.tensor([0, 0, 1])
    # The mean view of each image. The class means are (1, 0) and (5, 5).
    means = torch.tensor([[1.0, 3.0], [1.0, 0.0], [5.0, 4.0]])
    views = torch.stack([means - 1, means + 1], 1)
    assert ssa.shift_gap(views, labels, images) == pytest.approx((3 + 0 + 1) / 3)


def test_a_xi_of_zero_is_accepted(downloads: Path) -> None:
    experiment = Experiment.read("nuclr_variants")
    cell = {**experiment.given, "seed": 0, "steps": 4, "temperature": 0.1, "batch_size": 16}
    images, _ = mnist.sample(cell, 64, 10)
    views = Views(0.5)
    losses = {}
    for name in ("no wait", "xi = 0"):
        batches = mnist.TensorBatches(
            images.pixels, augment=views, two_views=True, batch_size=16, seed=0
        )
        settings = {**experiment.arms[name], "popularity_wait": 0.0}
        zero_xi = settings.pop("xi", None) == 0
        learner = mnist.learn(batches, settings, cell, zero_xi=zero_xi)
        losses[name] = learner.embeddings(images.pixels)
    assert not torch.allclose(losses["no wait"], losses["xi = 0"])


# lam = 0.4 is from Table A.4, and q / temperature suits the small batches in a test.
@pytest.mark.filterwarnings("ignore:rince. lam")
@pytest.mark.parametrize("name", NAMES)
def test_every_arm_runs_end_to_end_on_small_digits(
    name: str, downloads: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = Experiment.read(name)
    small = {
        **experiment.given,
        **{"items": 140, "tested": 60, "labelled": 120, "batch_size": 40},
        **{"classifier_steps": 2, "gap_views": 2, "clusters": 2, "tail": 1.0},
    }
    if name == "wrong_labels":
        small["labelled"] = experiment.given["labelled"]  # shares instead of a number
    given = {key: value for key, value in small.items() if key in experiment.given}
    tables = [table.model_copy(update={"seeds": 2}) for table in experiment.tables]
    experiment = experiment.model_copy(update={"given": given, "tables": tables})
    result = experiment.run(tmp_path, seeds=2, steps=2, processes=1)
    arms = {arm for table in tables for arm in table.columns[experiment.method]}
    assert {row.method for row in result.rows} == arms
    assert {row.metric for row in result.rows} <= set(experiment.metrics)
    assert all(np.isfinite(row.value) for row in result.rows)


@pytest.mark.parametrize("name", NAMES)
def test_committed_figures_use_at_least_three_seeds(name: str) -> None:
    result = Result.read(ROOT / "eval" / "results" / f"{name}.json")
    assert min(row.n["seeds"] for row in result.rows) >= 3
