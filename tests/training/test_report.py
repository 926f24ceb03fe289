"""The pictures of positive scores: what is on them, what they say of themselves, and text of any script."""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from PIL import Image
from tiny_towers import tiny_image

from vldebias.errors import InvalidInputError
from vldebias.pictures import read_metadata
from vldebias.training import report as module
from vldebias.training.pairs import Pairs, PairSource
from vldebias.training.report import MARGIN, THUMB, WRONG, contact_sheet, score_histogram, suspects_page
from vldebias.training.scores import RankedPairs, rank_pairs

laws = settings(max_examples=80, deadline=None, derandomize=True)


def ranked(n: int = 60, *, eta: float = 0.0, read: Any = tiny_image, caption: str = "caption") -> RankedPairs:
    source = PairSource("made up", tuple(f"id{i}" for i in range(n)), tuple(f"{caption} {i}" for i in range(n)), read)
    pairs = Pairs.with_mixture_noise(source, eta, seed=1) if eta else source
    wrong = pairs.wrong if isinstance(pairs, Pairs) else np.zeros(n)
    return rank_pairs(pairs, np.linspace(-0.2, 0.8, n)[::-1] - 0.4 * wrong)


def shown(path: Path) -> dict[str, list[str]]:
    return {title: [pair["id"] for pair in rows] for title, rows in read_metadata(path)["shown"].items()}


def has(image: Image.Image, colour: str) -> bool:
    wanted = tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return bool((np.asarray(image.convert("RGB")) == wanted).all(axis=-1).any())


def test_lowest_middle_and_highest_pairs_are_shown(tmp_path: Path) -> None:
    pairs = ranked(61)
    path = contact_sheet(pairs, tmp_path / "new" / "sheet.png", columns=3)
    order = [f"id{i}" for i in range(60, -1, -1)]
    assert shown(path) == {
        "Lowest positive scores": order[:3],
        "Around the median": order[29:32],
        "Highest positive scores": order[-3:],
    }
    told = read_metadata(path)
    assert (told["data"], told["pairs"], told["wrong"]) == ("made up", 61, None)
    assert told["shown"]["Lowest positive scores"][0]["score"] == pytest.approx(-0.2)
    with Image.open(path) as image:
        assert image.format == "PNG"
        assert image.width == 2 * MARGIN + 3 * THUMB + 2 * module.GAP


def test_thumbnails_stand_where_their_scores_say(tmp_path: Path) -> None:
    """Each image is of one colour, which is found again at the place of its rank."""

    def grey(i: int) -> Image.Image:
        return Image.new("RGB", (300, 300), (4 * i, 4 * i, 4 * i))

    path = contact_sheet(ranked(read=grey), tmp_path / "sheet.png", columns=3)
    with Image.open(path) as image:
        pixels = np.asarray(image)
    top = module.HEAD + module.SECTION + THUMB // 2
    centres = [MARGIN + THUMB // 2 + column * (THUMB + module.GAP) for column in range(3)]
    assert [int(pixels[top, x, 0]) // 4 for x in centres] == [59, 58, 57]


@pytest.mark.parametrize(("n", "sections"), [(1, [1]), (2, [1, 1]), (7, [3, 2, 2]), (36, [12, 12, 12])])
def test_few_pairs_are_shown_once_each(tmp_path: Path, n: int, sections: list[int]) -> None:
    found = shown(contact_sheet(ranked(n), tmp_path / "sheet.png", columns=12))
    assert [len(rows) for rows in found.values()] == sections
    assert len({name for rows in found.values() for name in rows}) == n


def test_wrong_captions_are_marked_and_right_ones_not(tmp_path: Path) -> None:
    noisy = ranked(60, eta=0.5)
    assert noisy.wrong is not None
    path = contact_sheet(noisy, tmp_path / "wrong.png", columns=4)
    assert read_metadata(path)["wrong"] == noisy.wrong.sum()
    with Image.open(path) as image:
        assert has(image, WRONG)
    with Image.open(contact_sheet(ranked(60), tmp_path / "right.png", columns=4)) as image:
        assert not has(image, WRONG)


def test_frames_are_around_wrong_pairs_alone(tmp_path: Path) -> None:
    noisy = ranked(60, eta=0.5)
    assert noisy.wrong is not None
    with Image.open(contact_sheet(noisy, tmp_path / "sheet.png", columns=60)) as image:  # every pair, 20 in a section
        pixels = np.asarray(image.convert("RGB"))
    wanted = tuple(int(WRONG[i : i + 2], 16) for i in (1, 3, 5))
    top = module.HEAD + module.SECTION + THUMB // 2
    framed = [tuple(pixels[top, MARGIN + c * (THUMB + module.GAP) - 2]) == wanted for c in range(20)]
    assert framed == noisy.wrong[noisy.order[:20]].tolist()
    assert sum(framed) > 0


def test_longer_captions_make_a_higher_page_and_never_overflow(tmp_path: Path) -> None:
    short = contact_sheet(ranked(9, caption="a"), tmp_path / "short.png", columns=3)
    long = contact_sheet(ranked(9, caption="word " * 200), tmp_path / "long.png", columns=3)
    with Image.open(short) as first, Image.open(long) as second:
        assert second.height == first.height + 3 * 2 * module.LINE_HEIGHT
        right = np.asarray(second.convert("L"))[:, -MARGIN + 4 :]
    assert right.min() == 255


def test_the_same_pairs_give_the_same_file(tmp_path: Path) -> None:
    first, second = (contact_sheet(ranked(20), tmp_path / name).read_bytes() for name in ("a.png", "b.png"))
    assert first == second


def test_images_that_are_gone_leave_a_note(tmp_path: Path) -> None:
    def gone(i: int) -> Any:
        raise FileNotFoundError(2, "gone")

    with Image.open(contact_sheet(ranked(5, read=gone), tmp_path / "sheet.png")) as image:
        assert has(image, "#eef0f3")


@pytest.mark.parametrize("shape", [(500, 20), (20, 500), (1, 1), (160, 160), (32, 32)])
def test_images_of_any_shape_fit(tmp_path: Path, shape: tuple[int, int]) -> None:
    thumb = module._Pair(ranked(2, read=lambda i: Image.new("L", shape)), 0).thumbnail()
    assert max(thumb.size) == THUMB
    assert min(thumb.size) >= 1
    contact_sheet(ranked(2, read=lambda i: Image.new("L", shape)), tmp_path / "sheet.png")


AWKWARD = "猫と犬 🐈‍⬛ naïve “x” $a_1^2$ \x00\x07 é́ नमस्ते مرحبا\nnew\tline"


def test_scripts_without_glyphs_are_drawn_without_a_warning(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pairs = ranked(9, eta=0.5, caption=AWKWARD)
        contact_sheet(replace(pairs, pairs=replace(pairs.pairs, name=AWKWARD)), tmp_path / "a.png")
        score_histogram({AWKWARD: ranked(40, eta=0.5), "$": ranked(40)}, tmp_path / "b.png", resamples=20)


def test_ids_of_paths_that_are_no_text_are_kept(tmp_path: Path) -> None:
    pairs = PairSource("made up", ("a\udcff.png", "b"), ("x", "y"), tiny_image)
    found = shown(contact_sheet(rank_pairs(pairs, np.zeros(2)), tmp_path / "sheet.png"))
    assert ["a\udcff.png"] in found.values()


def test_the_histogram_tells_its_auroc(tmp_path: Path) -> None:
    from sklearn.metrics import roc_auc_score

    noisy = ranked(80, eta=0.5)
    assert noisy.wrong is not None
    path = score_histogram({"RINCE": noisy, "plain": ranked(60)}, tmp_path / "new" / "h.png", resamples=50)
    told = read_metadata(path)["panels"]
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
