"""Positive scores: by definition, whatever the batches, resumed; the table and what is known of the truth."""

import csv
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from tiny_towers import prepare, tiny_image, tiny_towers, tokenize

from tests.refusals import refused
from vldebias.data import ImageData, Labels
from vldebias.data.tables import read_table
from vldebias.errors import InvalidInputError, VldebiasWarning
from vldebias.progress import SILENT
from vldebias.training.pairs import Pairs, PairSource, open_images, said_wrong
from vldebias.training.scores import detection, positive_scores, rank_pairs, softmax_scores, write_kept, write_table
from vldebias.training.settings import load_settings


def source(n: int = 23, broken: Sequence[int] = (), reads: list[int] | None = None) -> PairSource:
    def read(i: int) -> Any:
        if reads is not None:
            reads.append(i)
        if i in broken:
            raise OSError("image file is truncated")
        return tiny_image(i)

    captions = tuple(f"caption {i % 9}, with a comma" for i in range(n))
    return PairSource.of(ImageData("made up", "train", tuple(f"id{i}" for i in range(n)), read, {}, "f", captions))


def unit(features: torch.Tensor) -> torch.Tensor:
    return features / features.norm(dim=-1, keepdim=True)


def scored(towers: Any, pairs: PairSource, **how: Any) -> np.ndarray:
    return positive_scores(towers, pairs, progress=SILENT, **how)


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


@pytest.mark.parametrize("compared", [3, 10_000])
def test_softmax_scores_are_those_of_their_definition(compared: int) -> None:
    generator = torch.Generator().manual_seed(2)
    images, texts = (unit(torch.randn(n, 5, generator=generator, dtype=torch.float64)) for n in (11, 4))
    codes = torch.arange(11) % 4
    found = softmax_scores(images, texts, codes, t=0.3, compared=compared, block=4)
    s = images @ texts.T / 0.3
    whole = (s.log_softmax(1) + s.log_softmax(0))[torch.arange(11), codes] / 2
    if compared > 11:
        torch.testing.assert_close(found, whole)
    else:
        assert (found >= whole).all(), "fewer rivals"
        assert (found <= 0).all(), "itself is always among them"
        assert not torch.allclose(found, whole)


@pytest.mark.parametrize("shard_size", [4, 100])
def test_pairs_are_scored_by_softmax_as_well_and_resumed(shard_size: int, tmp_path: Path) -> None:
    towers, reads = tiny_towers(), list[int]()
    towers.temperature = 0.3
    pairs = source(broken=(3,), reads=reads)
    how: dict[str, Any] = {"by": "softmax", "cache_dir": tmp_path, "shard_size": shard_size}
    with pytest.warns(VldebiasWarning, match="1 of 23 images cannot be read"):
        found = scored(towers, pairs, **how)
    captions = list(dict.fromkeys(pairs.captions))
    towers.model.eval()
    with torch.no_grad():
        images = unit(torch.cat([towers.image(prepare(tiny_image(i))[None]) for i in range(23) if i != 3]))
        texts = unit(towers.text(tokenize(captions)))
    codes = torch.tensor([captions.index(pairs.captions[i]) for i in range(23) if i != 3])
    expected = softmax_scores(images, texts, codes, t=towers.temperature)
    assert np.isnan(found[3])
    assert np.delete(found, 3) == pytest.approx(expected.numpy(), abs=1e-5)
    before = len(reads)
    with pytest.warns(VldebiasWarning, match="cannot be read"):
        assert np.array_equal(scored(towers, pairs, **how), found, equal_nan=True)
    assert len(reads) == before
    with pytest.raises(InvalidInputError, match="by: expected"):
        scored(towers, pairs, by="dot")


def test_what_is_kept_can_be_trained_on(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    scores = np.linspace(1, 0, 10)
    scores[4] = np.nan
    ranked = rank_pairs(source(10), scores)
    assert ranked.kept(1.0).tolist() == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    path = write_kept(tmp_path / "clean.parquet", ranked, 2 / 3)
    opened = datasets.Dataset.from_parquet(str(path), cache_dir=str(tmp_path / "cache"))
    assert opened["id"] == [f"id{i}" for i in (0, 1, 2, 3, 5, 6)]
    assert opened["caption"] == [source().captions[i] for i in (0, 1, 2, 3, 5, 6)]
    assert opened[4]["image"].tobytes() == tiny_image(5).tobytes()
    images = open_images(load_settings(data=str(path)))
    assert isinstance(images, ImageData)
    assert images.read(4).tobytes() == tiny_image(5).tobytes()
    with pytest.raises(InvalidInputError, match=r"ends in \.parquet"):
        write_kept(tmp_path / "clean.csv", ranked, 0.5)


def test_images_that_are_files_are_named_and_not_copied(tmp_path: Path) -> None:
    for i in range(4):
        tiny_image(i).save(tmp_path / f"{i}.png")
    table = tmp_path / "pairs.csv"
    table.write_text(
        "image,caption,checked\n" + "".join(f"{i}.png,caption {i},{('no', 'yes')[i % 2]}\n" for i in range(4))
    )
    data = open_images(load_settings(data=str(table)), also=("checked",))
    assert isinstance(data, ImageData)
    pairs = PairSource.of(data)
    ranked = rank_pairs(pairs, np.arange(4.0), said_wrong(data, Pairs.clean(pairs), "checked"))
    assert ranked.wrong is not None
    assert ranked.wrong.tolist() == [False, True, False, True]
    assert ranked.path(2) == str(tmp_path / "2.png")
    written = list(csv.DictReader(write_table(tmp_path / "scores.csv", ranked).read_text().splitlines()))
    assert [row["path"] for row in written] == [str(tmp_path / f"{i}.png") for i in range(4)]
    path = write_kept(tmp_path / "clean.parquet", ranked, 0.5)
    assert path.stat().st_size < 4000
    kept = open_images(load_settings(data=str(path)))
    assert isinstance(kept, ImageData)
    assert [kept.read(i).tobytes() for i in range(2)] == [tiny_image(i).tobytes() for i in (2, 3)]


def test_a_column_that_says_neither_yes_nor_no_is_refused() -> None:
    labels = {"checked": Labels.of(["yes", "perhaps"], ("yes", "perhaps")), "some": Labels.of(["no", None], ("no",))}
    data = ImageData("made up", "train", ("a", "b"), tiny_image, labels, "f", ("one", "two"))
    pairs = Pairs.clean(PairSource.of(data))
    with pytest.raises(InvalidInputError, match=r"column 'checked': expected yes or no .* got perhaps"):
        said_wrong(data, pairs, "checked")
    with pytest.raises(InvalidInputError, match=r"column 'some': .* rows without a value"):
        said_wrong(data, pairs, "some")
    with pytest.raises(InvalidInputError, match=r"wrong: expected one per row, \(2,\), got \(3,\)"):
        rank_pairs(pairs, np.zeros(2), np.zeros(3, bool))


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
    positive_scores(tiny_towers(), source(), shard_size=4)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "made up: positive scores" in shown.err
    assert "23/23" in shown.err


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


def diverged() -> Any:
    towers = tiny_towers()
    towers.model.image.weight.data[:] = torch.nan
    return towers


@refused(
    (lambda: scored(tiny_towers(), PairSource("bare", ("a",), (), tiny_image)), "bare: expected pairs of an image"),
    (lambda: scored(tiny_towers(), source(broken=range(23))), "none of 23 images can be read"),
    (lambda: scored(diverged(), source()), "features of 23 pairs, such as 'id0', are not finite"),
    (lambda: rank_pairs(source(), np.zeros(4)), r"one per row, \(23,\), got \(4,\)"),
    (lambda: rank_pairs(source(), np.full(23, np.nan)), "expected finite ones, got none among 23"),
    (lambda: rank_pairs(source(), np.zeros(23)).lowest(1.5), r"share in \[0, 1\], got 1.5"),
)
def test_errors(call: Callable[[], object]) -> None:
    call()


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
    assert list(rows[0]) == ["rank", "percentile", "score", "id", "caption", "wrong", "original", "path"]
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


def test_no_caption_is_a_formula_and_the_reader_of_tables_gives_it_back(tmp_path: Path) -> None:
    texts = ("=cmd|' /C calc'!A0", "+1 for the cat", "-", "'=quoted", "plain")
    data = ImageData("odd", "train", ("@a", "b", "c", "d", "e"), tiny_image, {}, "f", texts)
    path = write_table(tmp_path / "pairs.csv", rank_pairs(PairSource.of(data), -np.arange(5.0)[::-1]))
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert not [cell for row in rows for cell in (row["id"], row["caption"]) if cell[0] in "=+-@"]
    assert [row["score"] for row in rows] == ["-4.000000", "-3.000000", "-2.000000", "-1.000000", "-0.000000"]
    table = read_table(path)
    assert tuple(table["caption"].to_pylist()) == texts
    assert table["id"].to_pylist()[0] == "@a"


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
