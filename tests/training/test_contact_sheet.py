"""The pictures of positive scores: what is on them, what they say of themselves, and text of any script."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tiny_towers import tiny_image

from vldebias.errors import InvalidInputError
from vldebias.evaluation.report.pictures import read_metadata
from vldebias.training import contact_sheet as module
from vldebias.training.contact_sheet import MARGIN, THUMB, WRONG, contact_sheet, score_histogram
from vldebias.training.glyphs import MISSING, font, for_matplotlib, printable, wrap
from vldebias.training.pairs import Pairs, PairSource
from vldebias.training.ranked import RankedPairs, rank_pairs

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
    found = shown(contact_sheet(ranked(n), tmp_path / "sheet.png", columns=6, lines=2))
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
    thumb = module._thumbnail(ranked(2, read=lambda i: Image.new("L", shape)), 0)
    assert max(thumb.size) == THUMB
    assert min(thumb.size) >= 1
    contact_sheet(ranked(2, read=lambda i: Image.new("L", shape)), tmp_path / "sheet.png")


AWKWARD = "猫と犬 🐈‍⬛ naïve “x” $a_1^2$ \x00\x07 é́ नमस्ते مرحبا\nnew\tline"


def test_scripts_without_glyphs_are_drawn_without_a_warning(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        contact_sheet(ranked(9, eta=0.5, caption=AWKWARD), tmp_path / "a.png", title=AWKWARD)
        score_histogram({AWKWARD: ranked(40, eta=0.5), "$": ranked(40)}, tmp_path / "b.png", resamples=20)


def test_ids_of_paths_that_are_no_text_are_kept(tmp_path: Path) -> None:
    pairs = PairSource("made up", ("a\udcff.png", "b"), ("x", "y"), tiny_image)
    found = shown(contact_sheet(rank_pairs(pairs, np.zeros(2)), tmp_path / "sheet.png"))
    assert ["a\udcff.png"] in found.values()


def test_printable_replaces_what_the_font_lacks_and_keeps_the_rest() -> None:
    assert printable("naïve “café” · ½ λ η ≥ Ж") == "naïve “café” · ½ λ η ≥ Ж"
    assert printable("猫 cat") == f"{MISSING} cat"
    assert printable("a\n b\t\tc\x00\u200d") == "a b c"
    assert printable("e\u0301") == "é"
    assert printable("\ud800") == ""
    assert for_matplotlib("5$ for $x$") == r"5\$ for \$x\$"


@laws
@given(st.text(max_size=60))
def test_every_printable_character_has_a_glyph(text: str) -> None:
    from matplotlib.ft2font import FT2Font

    known = FT2Font(font(12).path).get_charmap()
    found = printable(text)
    assert all(ord(character) in known for character in found)
    assert printable(found) == found


@laws
@given(st.text("abc dé-W.", max_size=120), st.integers(1, 4), st.integers(20, 200))
def test_wrapped_lines_fit_and_lose_nothing_but_the_end(text: str, lines: int, width: int) -> None:
    face = font(12)
    found = wrap(text, face, width, lines)
    assert len(found) <= lines
    assert all(face.getlength(line) <= width for line in found)
    whole = printable(text).replace(" ", "")
    if found and found[-1].endswith("…"):
        assert len(found) == lines
        assert whole.startswith("".join(found)[:-1].replace(" ", ""))
    else:
        assert "".join(found).replace(" ", "") == whole


def test_wrapping_by_words_and_ellipsis() -> None:
    face = font(12)
    width = face.getlength("a photo of a")
    assert wrap("a photo of a dog", face, width, 3) == ["a photo of a", "dog"]
    cut = wrap("a photo of a dog on a meadow in the sun", face, width, 2)
    assert cut[0] == "a photo of a"
    assert cut[1].startswith("dog on")
    assert cut[1].endswith("…")
    assert wrap("", face, width, 2) == []
    assert wrap("W", face, 1, 2) == []


def test_the_histogram_tells_its_auroc(tmp_path: Path) -> None:
    from sklearn.metrics import roc_auc_score

    noisy = ranked(80, eta=0.5)
    assert noisy.wrong is not None
    path = score_histogram({"RINCE": noisy, "plain": ranked(60)}, tmp_path / "new" / "h.png", resamples=50)
    told = read_metadata(path)["panels"]
    assert told["RINCE"]["auroc"]["value"] == pytest.approx(roc_auc_score(noisy.wrong, -noisy.scores))
    assert told["plain"] == {"pairs": 60, "scored": 60}
    assert module._title("RINCE", told["RINCE"]).startswith(f"RINCE: AUROC {told['RINCE']['auroc']['value']:.3f} [")
    assert module._title("plain", told["plain"]) == "plain: 60 pairs"


def test_panels_share_axes_and_densities_integrate_to_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from vldebias.evaluation.report import pictures

    kept: list[Any] = []
    monkeypatch.setattr(pictures, "save_png", lambda plot, path, told: kept.append(plot) or path)
    noisy = ranked(80, eta=0.5)
    assert noisy.wrong is not None
    score_histogram({"a": noisy, "b": ranked(60), "c": noisy, "d": noisy}, tmp_path / "h.png", resamples=20)
    used = [axis for axis in kept[0].axes if axis.get_visible()]
    assert len(used) == 4
    assert len({(axis.get_xlim(), axis.get_ylim()) for axis in used}) == 1
    bars = [patch for patch in used[0].patches if hasattr(patch, "get_height")]
    assert sum(bar.get_height() * bar.get_width() for bar in bars) == pytest.approx(2)  # right and wrong
    medians = sorted(line.get_xdata()[0] for line in used[0].lines)
    scores = noisy.scores
    assert medians == pytest.approx(sorted([np.median(scores[noisy.wrong]), np.median(scores[~noisy.wrong])]))


def test_errors(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="at least 1 of each, got 0 and 1"):
        contact_sheet(ranked(5), tmp_path / "a.png", columns=0)
    with pytest.raises(InvalidInputError, match="at least one panel, got none"):
        score_histogram({}, tmp_path / "a.png")
