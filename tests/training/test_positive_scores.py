"""Test the scores of pairs against their definition, their table, and the kept pairs."""

import csv
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from training_parts import image_data, letters_of, pairs_of, plain, reader, tiny_image, tiny_towers

from tests.refusals import refused
from vldebias.data import Labels
from vldebias.errors import VldebiasWarning
from vldebias.training import monitor
from vldebias.training.pairs import Pairs, open_images
from vldebias.training.settings import load_settings
from vldebias.training.suspects import positive_scores, report_pairs

NONE = np.array([], np.float32)  # no scores of exchanged captions


def source(
    n: int = 23, broken: Any = (), several: bool = False, captions: tuple[str, ...] = ()
) -> Pairs:
    first_captions = captions or tuple(f"caption {i % 9}, with a comma" for i in range(n))
    further_captions = tuple((f"or {i}",) * (i % 2) for i in range(n)) if several else ()
    return pairs_of(
        image_data(
            len(first_captions),
            read=reader(broken, tiny_image),
            captions=first_captions,
            more_captions=further_captions,
        )
    )


def cosines(towers: Any, pairs: Pairs) -> np.ndarray:
    """Return the lowest cosine of each image with its captions, one pair at a time."""
    towers.model.eval()
    unit = torch.nn.functional.normalize
    scores = []
    with torch.no_grad():
        for i in range(pairs.items):
            seen = unit(towers.image(plain(tiny_image(i))[None]))
            text_rows = [unit(towers.text(letters_of([text]))) for text in pairs.captions[i]]
            scores.append(min(float((seen * row).sum()) for row in text_rows))
    towers.model.train()
    return np.array(scores)


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize(("batch_size", "workers"), [(1, 0), (4, 2), (64, 3)])
def test_scores_are_cosines_for_every_batch_size(
    batch_size: int, workers: int, several: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor, "BATCH", batch_size)
    towers = tiny_towers()
    pairs = source(several=several)
    scores = positive_scores(towers, pairs, workers=workers)
    assert scores == pytest.approx(cosines(towers, pairs), abs=1e-5)
    assert np.abs(scores).max() <= 1
    assert towers.model.training
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert np.array_equal(positive_scores(towers, pairs), scores)


def test_unreadable_images_have_no_score() -> None:
    with pytest.warns(VldebiasWarning, match="2 unreadable images have no score, such as id3"):
        scores = positive_scores(tiny_towers(), source(broken=(3, 22)))
    assert np.flatnonzero(np.isnan(scores)).tolist() == [3, 22]
    rest = [i for i in range(23) if i not in (3, 22)]
    assert scores[rest] == pytest.approx(positive_scores(tiny_towers(), source())[rest], abs=1e-6)


def test_the_table_lists_the_most_suspicious_pairs_first_and_the_auroc_is_reported(
    tmp_path: Path,
) -> None:
    pairs = source(captions=tuple(f"text {i}" for i in range(400))).with_noise(0.4, seed=0)
    scores = (np.random.default_rng(0).normal(size=400) * 0.2 - 0.3 * pairs.wrong).astype(
        np.float32
    )
    scores[[5, 7]] = np.nan
    files, report = report_pairs(pairs, scores, tmp_path, exchanged=NONE)
    assert (
        sorted(path.name for path in tmp_path.iterdir())
        == sorted(files.values())
        == ["pairs.csv", "pairs.html"]
    )
    rows = list(csv.DictReader((tmp_path / "pairs.csv").read_text().splitlines()))
    listed = [int(row["id"][2:]) for row in rows]
    # Rows without a score are last; 9 is larger than any cosine.
    assert listed == [*np.argsort(np.where(np.isnan(scores), 9, scores), kind="stable")]
    marks = re.findall(
        r"<figcaption>\d+\. (?:<b>(\w+)</b> )?", (tmp_path / "pairs.html").read_text()
    )
    page = (tmp_path / "pairs.html").read_text()
    assert "<code>--set keep=auto</code>" in page
    assert f"AUROC {report['auroc']['value']:.2f}" in page
    red = re.findall(r'<rect class="marked"[^>]* height="([\d.]+)"', page)
    every = re.findall(r'<rect class=""[^>]* height="([\d.]+)"', page)
    assert len(red) == len(every) == 50
    assert max(map(float, every)) == 120, "the highest bar fills the histogram"
    assert all(float(part) <= float(whole) for part, whole in zip(red, every, strict=True))
    assert marks == ["wrong" if pairs.wrong[i] else "" for i in listed[: len(marks)]]
    for row, i in zip(rows, listed, strict=True):
        assert row["caption"] == pairs.captions[i][0]
        assert row["wrong"] == ("yes" if pairs.captions[i] != (f"text {i}",) else "no")
        assert not row["score"] or float(row["score"]) == pytest.approx(scores[i], abs=1e-6)
    known = ~np.isnan(scores)
    assert report["auroc"]["value"] == pytest.approx(
        roc_auc_score(pairs.wrong[known], -scores[known])
    )
    assert report["auroc"]["low"] < report["auroc"]["value"] < report["auroc"]["high"]
    _, nothing = report_pairs(
        source(), np.linspace(0, 1, 23, dtype=np.float32), tmp_path, exchanged=NONE
    )
    assert nothing is None, "without noise, the table does not claim to know the truth"
    assert {
        row["wrong"] for row in csv.DictReader((tmp_path / "pairs.csv").read_text().splitlines())
    } == {""}


@pytest.mark.parametrize(("keep", "words"), [(0.5, "left out"), ("auto", "counts less")])
def test_the_page_says_how_many_pairs_it_shows_and_marks_those_below_the_cut(
    keep: Any, words: str, tmp_path: Path
) -> None:
    pairs = source(captions=tuple(f"text {i}" for i in range(300)))
    rng = np.random.default_rng(0)
    exchanged = rng.normal(0, 0.02, 200).astype(np.float32)
    scores = np.concatenate([rng.normal(0, 0.02, 60), rng.normal(0.5, 0.02, 240)])
    report_pairs(pairs, scores.astype(np.float32), tmp_path, exchanged=exchanged, keep=keep)
    page = (tmp_path / "pairs.html").read_text()
    assert "The first 200 of 300 are shown." in page
    assert page.count("<figure>") == 200
    # The first rows need no click, and the others are folded.
    shown, folded = page.split("<details><summary>176 more</summary>")
    assert (shown.count("<figure>"), folded.count("<figure>")) == (24, 176)
    n_below = 150 if keep == 0.5 else 60
    figures = page.split("<figure>")[1:]
    tag = f'<span class="tag">{words}</span>'
    assert [tag in figure for figure in figures] == [True] * n_below + [False] * (200 - n_below)
    assert f">← {words}: {n_below}</text>" in page


@pytest.mark.parametrize("several", [False, True])
def test_kept_pairs_can_be_used_for_training(several: bool, tmp_path: Path) -> None:
    scores = np.linspace(1, 0, 10, dtype=np.float32)
    scores[4] = np.nan
    pairs = source(10, several=several)
    report_pairs(pairs, scores, tmp_path, exchanged=NONE, keep=2 / 3)
    page = (tmp_path / "pairs.html").read_text()
    # The sixth of nine scores, with the scores 1, 8/9, 7/9, 6/9, none, 4/9, 3/9, ...
    assert "The pairs below 0.333 are left out (<code>keep=0.666667</code>)" in page
    assert page.count("<line ") == 1
    assert "--set keep" not in page, "no advice that contradicts the run"
    images: Any = open_images(load_settings(data=str(tmp_path / "kept.parquet")))
    assert pairs_of(images).captions == tuple(pairs.captions[i] for i in (0, 1, 2, 3, 5, 6))
    assert images.read(4).tobytes() == tiny_image(5).tobytes()


def test_kept_pairs_include_the_labels_of_the_data(tmp_path: Path) -> None:
    kinds = ["cat", None, "dog", "owl", "cat", "dog", "owl", "cat", "dog", "owl"]
    places = ["land", "water"] * 5
    labels = {"kind": Labels.from_values(kinds), "place": Labels.from_values(places)}
    pairs = pairs_of(image_data(10, read=reader((), tiny_image), labels=labels), label="kind")
    report_pairs(pairs, np.linspace(1, 0, 10, dtype=np.float32), tmp_path, exchanged=NONE, keep=0.5)
    kept = str(tmp_path / "kept.parquet")
    settings = load_settings(data=kept, label="kind", group_dro="place")
    images: Any = open_images(settings)
    expected = {
        "kind": Labels.from_values(kinds[:5]),
        "place": Labels.from_values(places[:5]),
    }
    for name, column in expected.items():
        assert images.column(name).names == column.names
        assert images.column(name).codes.tolist() == column.codes.tolist()


def test_kept_pairs_can_be_read_with_the_names_in_the_settings(tmp_path: Path) -> None:
    names = {"y": {"0": "landbird", "1": "waterbird"}}
    texts = "".join(f"{i}.png,{i % 2},{i % 2},caption {i}\n" for i in range(6))
    (tmp_path / "birds.csv").write_text(f"image,y,place,caption\n{texts}")
    for i in range(6):
        tiny_image(i).save(tmp_path / f"{i}.png")
    settings: dict[str, Any] = {"label": "y", "names": names, "group_dro": "place"}
    data: Any = open_images(load_settings(data=str(tmp_path / "birds.csv"), **settings))
    scores = np.linspace(1, 0, 6, dtype=np.float32)
    report_pairs(pairs_of(data, **settings), scores, tmp_path, exchanged=NONE, keep=0.5)
    kept: Any = open_images(load_settings(data=str(tmp_path / "kept.parquet"), **settings))
    assert kept.column("y").names == ("landbird", "waterbird")
    assert kept.column("y").codes.tolist() == [0, 1, 0]
    assert kept.column("place").names == ("0", "1")


@refused(
    ({"label": "score"}, "cannot be named 'score'; rename"),
    ({"label": "kind", "group_dro": "kind, id"}, "cannot be named 'id'; rename"),
)
def test_a_label_named_like_a_column_of_kept_pairs_raises_an_error(
    settings: dict[str, Any],
) -> None:
    load_settings(data="own", keep=0.5, **settings)
