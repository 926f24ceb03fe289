"""The pictures of positive scores: what is on them, what they say of themselves, and text of any script."""

import csv
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from tiny_towers import tiny_image

from vldebias.errors import InvalidInputError
from vldebias.pictures import picture_metadata
from vldebias.training.pairs import Pairs, PairSource
from vldebias.training.report import draw_curves, report_popularity, score_histogram, suspects_page, write_popularity
from vldebias.training.scores import RankedPairs, rank_pairs

laws = settings(max_examples=80, deadline=None, derandomize=True)


def ranked(n: int = 60, *, eta: float = 0.0, read: Any = tiny_image, caption: str = "caption") -> RankedPairs:
    source = PairSource("made up", tuple(f"id{i}" for i in range(n)), tuple(f"{caption} {i}" for i in range(n)), read)
    pairs = Pairs.with_mixture_noise(source, eta, seed=1) if eta else source
    wrong = pairs.wrong if isinstance(pairs, Pairs) else np.zeros(n)
    return rank_pairs(pairs, np.linspace(-0.2, 0.8, n)[::-1] - 0.4 * wrong)


AWKWARD = "猫と犬 🐈‍⬛ naïve “x” $a_1^2$ \x00\x07 é́ नमस्ते مرحبا\nnew\tline"


def test_scripts_without_glyphs_are_drawn_without_a_warning(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        score_histogram({AWKWARD: ranked(40, eta=0.5), "$": ranked(40)}, tmp_path / "b.png", resamples=20)


def test_the_histogram_tells_its_auroc(tmp_path: Path) -> None:
    from sklearn.metrics import roc_auc_score

    noisy = ranked(80, eta=0.5)
    assert noisy.wrong is not None
    path = score_histogram({"RINCE": noisy, "plain": ranked(60)}, tmp_path / "new" / "h.png", resamples=50)
    told = picture_metadata(path)["panels"]
    assert told["RINCE"]["auroc"]["value"] == pytest.approx(roc_auc_score(noisy.wrong, -noisy.scores))
    assert told["plain"] == {"pairs": 60, "scored": 60}


def test_panels_share_axes_and_densities_integrate_to_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kept: list[Any] = []
    monkeypatch.setattr("vldebias.training.report.save_png", lambda plot, path, told: kept.append(plot) or path)
    noisy = ranked(80, eta=0.5)
    assert noisy.wrong is not None
    score_histogram({"a": noisy, "b": ranked(60), "c": noisy, "d": noisy}, tmp_path / "h.png", resamples=20)
    used = [axis for axis in kept[0].axes if axis.get_visible()]
    assert len(used) == 4
    assert used[0].get_title().startswith("a: AUROC 0.")
    assert used[1].get_title() == "b: 60 pairs"
    assert len({(axis.get_xlim(), axis.get_ylim()) for axis in used}) == 1
    bars = [patch for patch in used[0].patches if hasattr(patch, "get_height")]
    assert sum(bar.get_height() * bar.get_width() for bar in bars) == pytest.approx(2)  # right and wrong
    medians = sorted(line.get_xdata()[0] for line in used[0].lines)
    scores = noisy.scores
    assert medians == pytest.approx(sorted([np.median(scores[noisy.wrong]), np.median(scores[~noisy.wrong])]))


def test_errors(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="at least one panel, got none"):
        score_histogram({}, tmp_path / "a.png")


def test_the_page_shows_the_lowest_scores_and_is_no_way_in(tmp_path: Path) -> None:
    captions = ("<script>alert(1)</script>", "a cat & a dog", "third")
    pairs = PairSource("own", ("a", "b", "c"), captions, tiny_image, path=lambda row: f"/x/{row}<.png")
    page = suspects_page(rank_pairs(pairs, np.array([0.1, 0.3, 0.2])), tmp_path / "pairs.html", most=2).read_text()
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert page.index("1. +0.100") < page.index("2. +0.200")
    assert "a cat" not in page
    assert "/x/2&lt;.png" in page
    assert page.count("data:image/jpeg;base64,") == 2
    known = suspects_page(rank_pairs(pairs, np.zeros(3), np.array([True, False, False])), tmp_path / "pairs.html")
    assert known.read_text().count("<b>wrong</b>") == 1


def test_popular_captions_come_first_and_are_no_formulas(tmp_path: Path) -> None:
    captions = ("=1+1", "rare", "often", "often")
    path = write_popularity(tmp_path / "p.csv", captions, np.log([1.0, 0.5, 2.0, 4.0]) + 50)
    told = list(csv.DictReader(path.read_text().splitlines()))
    assert [one["caption"] for one in told] == ["often", "'=1+1", "rare"]
    assert [float(one["popularity"]) for one in told] == pytest.approx([3 / 1.875, 1 / 1.875, 0.5 / 1.875], rel=1e-5)
    assert [one["pairs"] for one in told] == ["2", "1", "1"]


def test_the_picture_of_popularity_says_what_dominates(tmp_path: Path) -> None:
    captions = [f"caption {k % 20}" for k in range(100)]
    popularity = np.where(np.arange(100) % 20 < 2, 9.0, 1.0)
    files = report_popularity(tmp_path, captions, np.log(popularity))
    assert set(files.values()) == {"popularity.csv", "popularity.png"}
    about = picture_metadata(tmp_path / "popularity.png")
    assert about["captions"] == 20
    assert sorted(about["first"][:2]) == ["caption 0", "caption 1"]
    assert about["first tenth"] == pytest.approx(18 / 36)


def test_facts_of_another_scale_have_axes_of_their_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kept: list[Any] = []
    monkeypatch.setattr("vldebias.training.report.save_png", lambda plot, path, told: kept.append(plot) or path)
    entry = {"step": 0, "loss": 1.0, "zero_shot_accuracy": 0.5}
    draw_curves(tmp_path / "c.png", [entry])
    draw_curves(tmp_path / "c.png", [entry | {"uniformity": -2.0, "sharpness": 0.1}])
    assert [len(plot.axes) for plot in kept] == [2, 3]
    assert [line.get_label() for line in kept[1].axes[1].lines] == ["zero_shot_accuracy"]
    assert [line.get_label() for line in kept[1].axes[2].lines] == ["uniformity", "sharpness"]
