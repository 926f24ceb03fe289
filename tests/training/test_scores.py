"""Positive scores: by definition, whatever the batches, resumed; the table and what is known of the truth."""

import csv
import io
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from rich.progress import Progress
from sklearn.metrics import roc_auc_score
from tiny_towers import prepare, tiny_image, tiny_towers, tokenize

from vldebias.data import ImageData
from vldebias.errors import InvalidInputError, VldebiasWarning
from vldebias.training.pairs import Pairs, PairSource
from vldebias.training.scores import detection, positive_scores, rank_pairs, write_table


def source(n: int = 23, broken: Sequence[int] = (), reads: list[int] | None = None) -> PairSource:
    def read(i: int) -> Any:
        if reads is not None:
            reads.append(i)
        if i in broken:
            raise OSError("image file is truncated")
        return tiny_image(i)

    captions = tuple(f"caption {i % 9}, with a comma" for i in range(n))
    return PairSource.of(ImageData("made up", "train", tuple(f"id{i}" for i in range(n)), read, {}, "f", captions))


def quiet() -> Progress:
    return Progress(console=Console(file=io.StringIO()))


def scored(towers: Any, pairs: PairSource, **how: Any) -> np.ndarray:
    return positive_scores(towers, pairs, progress=quiet(), **how)


def cosines(towers: Any, pairs: PairSource) -> np.ndarray:
    towers.model.eval()
    found = []
    with torch.no_grad():
        for i in range(pairs.items):
            seen, said = towers.image(prepare(tiny_image(i))[None])[0], towers.text(tokenize([pairs.captions[i]]))[0]
            found.append(float(seen @ said / seen.norm() / said.norm()))
    towers.model.train()
    return np.array(found)


@pytest.mark.parametrize(("batch_size", "workers", "shard_size"), [(1, 0, 4096), (4, 2, 10), (64, 3, 7), (5, 1, 5)])
def test_scores_are_cosines_whatever_the_batches(batch_size: int, workers: int, shard_size: int) -> None:
    towers, pairs = tiny_towers(), source()
    found = scored(towers, pairs, batch_size=batch_size, workers=workers, shard_size=shard_size)
    assert found == pytest.approx(cosines(towers, pairs), abs=1e-5)
    assert towers.model.training
    assert torch.is_grad_enabled()


def test_scores_stay_in_their_range_and_do_not_depend_on_the_temperature() -> None:
    towers, pairs = tiny_towers(), source()
    plain = scored(towers, pairs)
    assert np.abs(plain).max() <= 1
    image = towers.image
    towers.image = lambda images: 100 * image(images)  # a length, such as one over a temperature
    assert scored(towers, pairs) == pytest.approx(plain, abs=1e-6)


def test_autocast_outside_changes_nothing() -> None:
    towers, pairs = tiny_towers(), source()
    plain = scored(towers, pairs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert np.array_equal(scored(towers, pairs), plain)


def test_a_stopped_run_goes_on_from_its_last_shard(tmp_path: Path) -> None:
    towers = tiny_towers()
    whole = scored(towers, source())

    def stops(i: int) -> Any:
        if i == 17:
            raise KeyboardInterrupt
        return tiny_image(i)

    pairs = source()
    stopped = PairSource(pairs.name, pairs.ids, pairs.captions, stops)
    with pytest.raises(KeyboardInterrupt):
        scored(towers, stopped, cache_dir=tmp_path, shard_size=5, workers=0, batch_size=2)
    reads: list[int] = []
    resumed = scored(towers, source(reads=reads), cache_dir=tmp_path, shard_size=5, workers=0, batch_size=2)
    assert reads == list(range(15, 23))
    assert resumed == pytest.approx(whole, abs=1e-6)
    reads.clear()
    assert np.array_equal(scored(towers, source(reads=reads), cache_dir=tmp_path, shard_size=5), resumed)
    assert reads == []


@pytest.mark.parametrize("change", ["weights", "captions", "size"])
def test_what_changes_scores_is_not_served_from_the_cache(tmp_path: Path, change: str) -> None:
    towers, pairs = tiny_towers(), source()
    scored(towers, pairs, cache_dir=tmp_path)
    if change == "weights":
        with torch.no_grad():
            towers.model.letters.weight[100, 5] += 0.5  # the d of "caption", "comma": one value
    elif change == "captions":
        pairs = Pairs.with_mixture_noise(pairs, 0.5, seed=0)
    else:
        towers.size = (8, 8)
    found = scored(towers, pairs, cache_dir=tmp_path)
    assert np.array_equal(found, scored(towers, pairs))
    assert len(list(tmp_path.glob("scores-made-up-*"))) == 2


def test_unreadable_images_have_no_score_in_cached_runs_too(tmp_path: Path) -> None:
    towers = tiny_towers()
    for _ in range(2):
        with pytest.warns(
            VldebiasWarning, match=r"2 of 23 images cannot be read .*'id3', 'OSError: image file is trunc"
        ):
            found = scored(towers, source(broken=(3, 22)), cache_dir=tmp_path)
        assert np.flatnonzero(np.isnan(found)).tolist() == [3, 22]
    rest = [i for i in range(23) if i not in (3, 22)]
    assert found[rest] == pytest.approx(scored(towers, source())[rest], abs=1e-6)


def test_progress_counts_every_pair_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    bars = quiet()
    positive_scores(tiny_towers(), source(), progress=bars, shard_size=4)
    assert [(task.completed, task.total) for task in bars.tasks] == [(23, 23)]
    positive_scores(tiny_towers(), source())
    told = capsys.readouterr()
    assert told.out == ""
    assert "made up: positive scores" in told.err
    assert "23/23" in told.err


def test_memory_does_not_grow_with_the_pairs() -> None:
    """At most the batches that the threads are ahead are alive at a time."""
    alive = most = 0

    def counted(image: Any) -> torch.Tensor:
        nonlocal alive, most
        alive += 1
        most = max(most, alive)
        found = prepare(image)

        def gone() -> None:
            nonlocal alive
            alive -= 1

        weakref.finalize(found, gone)
        return found

    towers = tiny_towers()
    towers.prepare = counted
    scored(towers, source(400), batch_size=4, workers=2)
    assert most <= 4 * 4


@pytest.mark.parametrize(
    ("make", "how", "text"),
    [
        (lambda: source(), {"batch_size": 0}, "batch_size: expected at least 1, got 0"),
        (lambda: source(), {"workers": -1}, "workers: expected at least 0"),
        (lambda: source(), {"shard_size": 0}, "shard_size: expected at least 1"),
        (lambda: PairSource("bare", ("a",), (), tiny_image), {}, "bare: expected pairs of an image and a caption"),
        (lambda: source(broken=range(23)), {}, "none of 23 images can be read"),
    ],
)
def test_errors(make: Callable[[], PairSource], how: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidInputError, match=text):
        scored(tiny_towers(), make(), **how)


def test_a_model_that_diverged_is_refused() -> None:
    towers = tiny_towers()
    towers.model.image.weight.data[:] = torch.nan
    with pytest.raises(InvalidInputError, match="features of 23 pairs, such as 'id0', are not finite"):
        scored(towers, source())


def noisy(n: int = 400) -> tuple[Pairs, np.ndarray]:
    captions = tuple(f"text {i}" for i in range(n))
    data = ImageData("noisy", "train", tuple(f"id{i}" for i in range(n)), tiny_image, {}, "f", captions)
    pairs = Pairs.with_mixture_noise(PairSource.of(data), 0.4, seed=0)
    return pairs, np.random.default_rng(0).normal(size=n) * 0.2 - 0.3 * pairs.wrong


def test_the_table_lists_the_most_suspicious_first(tmp_path: Path) -> None:
    pairs, scores = noisy()
    scores[[5, 7]] = np.nan
    path = write_table(tmp_path / "deep" / "scores.csv", rank_pairs(pairs, scores))
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["rank", "percentile", "score", "id", "caption", "wrong", "original"]
    listed = [int(row["id"][2:]) for row in rows]
    assert listed == [*np.argsort(np.where(np.isnan(scores), 9, scores), kind="stable")]
    assert [row["rank"] for row in rows] == [*map(str, range(1, 399)), "", ""]
    assert [(row["score"], row["percentile"]) for row in rows[-2:]] == [("", "")] * 2
    percentiles = [float(row["percentile"]) for row in rows[:-2]]
    assert percentiles == sorted(percentiles)
    assert (percentiles[0], percentiles[-1]) == pytest.approx((50 / 398, 100 - 50 / 398), abs=1e-3)
    for row, i in zip(rows, listed, strict=True):
        assert row["caption"] == pairs.captions[i]
        assert row["original"] == f"text {i}"
        assert row["wrong"] == ("yes" if pairs.captions[i] != f"text {i}" else "no")
        if row["score"]:
            assert float(row["score"]) == pytest.approx(scores[i], abs=1e-6)
    assert [p.name for p in path.parent.iterdir()] == ["scores.csv"]


def test_awkward_captions_survive_the_table(tmp_path: Path) -> None:
    texts = ('say "cheese", please', "two\nlines", "猫 🐈", "a;b\tc")
    data = ImageData("odd", "train", ("a\udcff", "b", "c", "d"), tiny_image, {}, "f", texts)
    path = write_table(tmp_path / "scores.csv", rank_pairs(PairSource.of(data), np.array([0.1, 0.2, 0.3, 0.4])))
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(row["caption"] for row in rows) == texts
    assert rows[0]["id"] == r"a\udcff"  # a byte of a path that is no text
    assert {(row["wrong"], row["original"]) for row in rows} == {("", "")}  # nothing is known


def test_clean_pairs_claim_no_truth() -> None:
    ranked = rank_pairs(Pairs.clean(source()), np.linspace(0, 1, 23))
    assert ranked.wrong is None
    with pytest.raises(InvalidInputError, match=r"made up: .* no caption is known to be wrong"):
        detection(ranked)


def test_ties_share_a_percentile_and_keep_their_order() -> None:
    ranked = rank_pairs(source(5), torch.tensor([0.5, 0.1, 0.5, 0.5, 0.9]))
    assert ranked.order.tolist() == [1, 0, 2, 3, 4]
    assert ranked.percentile.tolist() == [10, 50, 50, 50, 90]
    assert ranked.lowest(0.4).tolist() == [1, 0]
    assert ranked.lowest(0).tolist() == []
    assert len(ranked.lowest(1)) == 5


def test_detection_tells_how_well_noise_is_found() -> None:
    pairs, scores = noisy()
    scores[0] = np.nan
    found = detection(rank_pairs(pairs, scores), resamples=200)
    assert found["auroc"]["value"] == pytest.approx(roc_auc_score(pairs.wrong[1:], -scores[1:]))
    assert found["auroc"]["low"] < found["auroc"]["value"] < found["auroc"]["high"]
    assert (found["pairs"], found["scored"], found["wrong"]) == (400, 399, pytest.approx(pairs.wrong[1:].mean()))
    lowest = np.argsort(scores)[:20]  # 5 % of 399, rounded up
    assert found["precision"]["0.05"]["value"] == pytest.approx(pairs.wrong[lowest].mean())
    assert list(found["precision"]) == ["0.01", "0.05", "0.1", "0.2"]


def test_ranking_errors() -> None:
    with pytest.raises(InvalidInputError, match=r"one per pair, \(23,\), got \(4,\)"):
        rank_pairs(source(), np.zeros(4))
    with pytest.raises(InvalidInputError, match="expected finite ones, got none among 23"):
        rank_pairs(source(), np.full(23, np.nan))
    with pytest.raises(InvalidInputError, match=r"share in \[0, 1\], got 1.5"):
        rank_pairs(source(), np.zeros(23)).lowest(1.5)
