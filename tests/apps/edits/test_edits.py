"""Test `vldebias eval edits`: labels and skin before and after edits, counted by hand."""

import errno
import io
import json
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy import stats

from apps.captions import examples
from apps.edits import edits
from apps.edits.edits import evaluate_edits, interval_over_people
from tests.cli.conftest import call
from vldebias.cli.common import write_run
from vldebias.errors import InvalidInputError, MissingPackageError, SuspectInputWarning
from vldebias.judge.judges import Judge
from vldebias.measure.rows import Strip
from vldebias.report.gate import check_limits
from vldebias.report.result import Result
from vldebias.utils.json_values import JSON

POINTS = "113 90 143 90 128 107 116 122 140 122"
FOUND = np.array(POINTS.split(), dtype=float).reshape(5, 2)
Columns = dict[str, list[object]]


def labelled(before: Sequence[str], after: Sequence[str], repeat: int = 1) -> Columns:
    """Return a table in which each person is edited once, or several times in turn."""
    people = [f"person {n // repeat}" for n in range(len(before))]
    return {
        "before": [f"{person}.png" for person in people],
        "after": [f"{n}.png" for n in range(len(before))],
        "before_label": list(before),
        "after_label": list(after),
    }


def value(result: Result, metric: str, subset: str = "", task: str = "labels") -> float:
    return float(result.row(task, metric, "none", subset=subset).value)


def test_labels_are_counted_by_group_and_by_instruction() -> None:
    before = ["F"] * 30 + ["man"] * 10
    after = ["woman"] * 15 + ["male"] * 15 + ["m"] * 8 + ["female"] * 2
    table = labelled(before, after)
    table["race"] = ["Black"] * 20 + ["White"] * 20
    table["prompt"] = ["a CEO", "a nurse"] * 20
    result = evaluate_edits(table)
    assert value(result, "label_changed") == 17 / 40
    assert value(result, "label_changed", "group: Black") == 5 / 20
    assert value(result, "label_changed", "group: White") == 12 / 20
    ceo = sum(n % 2 == 0 for n in [*range(15, 30), 38, 39]) / 20
    assert value(result, "label_changed", "instruction: a CEO") == ceo
    assert value(result, "label_became", "female to male", "transitions") == 15 / 30
    assert value(result, "label_became", "male to female", "transitions") == 2 / 10
    in_group = "female to male, group: Black"
    assert value(result, "label_became", in_group, "transitions") == 5 / 20
    row = result.row("labels", "label_changed", "none")
    assert row.n == {"people": 40, "pairs": 40}
    advice = result.provenance[0].settings["advice"]
    assert advice[0].startswith("gender: the label changes in 42%")
    assert advice[1].startswith("Labels that became others: female to male 50%")


@pytest.mark.parametrize(
    "unknown", ["unclear", "", "none of them", "neither", "No face found", "-1"]
)
@pytest.mark.filterwarnings("ignore:labels. .* such as '-1'")
def test_an_unknown_label_is_neither_a_change_nor_a_label(unknown: str) -> None:
    before = ["female"] * 20 + [unknown] * 4
    after = ["female"] * 10 + [unknown] * 8 + ["male"] * 2 + ["male"] * 4
    result = evaluate_edits(labelled(before, after))
    row = result.row("labels", "label_changed", "none")
    assert row.value == 2 / 12
    assert row.n == {"people": 12, "pairs": 12}
    assert value(result, "label_became", "female to unknown", "transitions") == 8 / 20
    settings = result.provenance[0].settings
    assert settings["notes"][:2] == [
        "Left out: 4 pairs without a known label before the edit.",
        "Left out: 8 pairs without a known label after the edit.",
    ]
    assert settings["advice"][1].startswith("Labels that became others: female to male 10%")
    assert "unknown" not in settings["advice"][1]


@pytest.mark.filterwarnings("ignore:labels. .* such as '-1'")
def test_a_label_that_is_not_in_the_prompt_set_is_still_a_label() -> None:
    after = ["female"] * 10 + ["nonbinary"] * 10
    assert value(evaluate_edits(labelled(["female"] * 20, after)), "label_changed") == 0.5
    with pytest.warns(SuspectInputWarning, match=r"none is one of male, female, such as '0'"):
        codes = evaluate_edits(labelled(["0"] * 20, ["0"] * 10 + ["1"] * 5 + ["-1"] * 5))
    assert value(codes, "label_changed") == 5 / 15


def test_a_misspelt_label_is_reported() -> None:
    after = ["female"] * 10 + ["femlae"] * 10
    with pytest.warns(SuspectInputWarning, match=r"got 'femlae'; .* did you mean 'female'\?"):
        evaluate_edits(labelled(["female"] * 20, after))


def naive_means(values: Sequence[float], people: Sequence[str]) -> list[float]:
    """Return the mean of each person, person by person."""
    means = []
    for person in sorted(set(people)):
        mine = [value for value, other in zip(values, people, strict=True) if other == person]
        means.append(sum(mine) / len(mine))
    return means


def naive_interval(values: Sequence[float], people: Sequence[str]) -> tuple[float, float, float]:
    """Return the mean over people with Student's interval."""
    means = naive_means(values, people)
    mean = sum(means) / len(means)
    error = (sum((value - mean) ** 2 for value in means) / (len(means) - 1)) ** 0.5
    half = stats.t.ppf(0.975, len(means) - 1) * error / len(means) ** 0.5
    return mean, max(mean - half, 0.0), min(mean + half, 1.0)


def naive_wilson(values: Sequence[float], people: Sequence[str]) -> tuple[float, float, float]:
    """Solve (mean - p)^2 = t^2 p (1 - p) / n for p, with the effective number of edits n."""
    means = naive_means(values, people)
    mean = sum(means) / len(means)
    further = mean * (1 - mean) ** 2 + (1 - mean) * mean**2  # variance of a person with 0 or 1
    variance = (sum((value - mean) ** 2 for value in means) + further) / len(means) ** 2
    n = min(mean * (1 - mean) / variance, len(values))
    t = stats.t.ppf(0.975, len(means) - 1)
    low, high = sorted(np.roots([1 + t * t / n, -2 * mean - t * t / n, mean * mean]).real)
    return mean, low, high


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 24), st.booleans()), min_size=30, max_size=80))
def test_intervals_are_those_of_a_naive_twin(rows: list[tuple[int, bool]]) -> None:
    rows += [(person, person % 2 == 0) for person in range(25)]
    people = [f"person {person:02}" for person, _ in rows]
    table = labelled(["female"] * len(rows), ["male" if hit else "female" for _, hit in rows])
    result = evaluate_edits(table | {"person": people})
    row = result.row("labels", "label_changed", "none")
    expected = naive_wilson([float(hit) for _, hit in rows], people)
    assert (row.value, *row.interval) == pytest.approx(expected)
    assert row.n == {"people": 25, "pairs": len(rows)}


@pytest.mark.parametrize("share", [0.0, 1.0, 0.5])
def test_people_who_are_all_alike_get_wilsons_interval(share: float) -> None:
    value, low, high = interval_over_people(np.full(20, share), is_share=True)
    assert value == share
    assert 0 <= low <= share <= high <= 1
    assert high - low > 0.1


def test_few_people_are_refused_or_warned_about_and_small_groups_are_not_listed() -> None:
    with pytest.raises(InvalidInputError, match="people: got edits of 4; expected 5 or more"):
        evaluate_edits(labelled(["female"] * 4, ["male"] * 4))
    with pytest.warns(SuspectInputWarning, match="5 people give wide intervals; edit 20 or more"):
        evaluate_edits(labelled(["female"] * 5, ["male"] * 5))
    table = labelled(["female"] * 24, ["male", "female"] * 12)
    result = evaluate_edits(table | {"group": ["A"] * 20 + ["B"] * 4})
    subsets = {row.subset for row in result.rows if row.task == "labels"}
    assert subsets == {"", "group: A"}
    note = "Groups and instructions with fewer than 5 measured people are not listed"
    assert f"{note} (1, such as 'group: B')." in result.provenance[0].settings["notes"]


def test_people_correct_the_labels() -> None:
    # The judge sees a change in 12 of 40 people's edits; in 4 of 10 labelled ones it is wrong.
    judged = np.array([True] * 12 + [False] * 28)
    truth = judged.copy()
    truth[:4] = False
    is_labelled = np.zeros(40, dtype=bool)
    is_labelled[[0, 1, 2, 3, 4, 5, 20, 21, 22, 23]] = True
    table = labelled(["female"] * 40, ["male" if hit else "female" for hit in judged])
    table["before_people"] = ["female" if known else "" for known in is_labelled]
    table["after_people"] = [
        "" if not known else "male" if hit else "female"
        for known, hit in zip(is_labelled, truth, strict=True)
    ]
    result = evaluate_edits(table)
    row = result.row("labels", "corrected_label_changed", "none")
    error = (truth.astype(float) - judged)[is_labelled]
    expected = judged.mean() + error.mean()
    variance = truth[is_labelled].var(ddof=1) / 40 + (1 / 10 - 1 / 40) * error.var(ddof=1)
    half = stats.t.ppf(0.975, 9) * variance**0.5
    assert row.value == pytest.approx(max(expected, 0))
    assert row.interval[1] == pytest.approx(expected + half)
    assert row.n == {"people": 40, "labelled people": 10}
    # If people labelled everything, their share and its interval come out.
    everybody = table | {"before_people": ["female"] * 40}
    everybody["after_people"] = ["male" if hit else "female" for hit in truth]
    row = evaluate_edits(everybody).row("labels", "corrected_label_changed", "none")
    assert row.value == pytest.approx(8 / 40)
    assert row.interval == pytest.approx(naive_interval(truth, everybody["after"])[1:])


def test_few_labels_by_people_correct_nothing() -> None:
    table = labelled(["female"] * 20, ["male", "female"] * 10)
    table["before_people"] = table["after_people"] = ["female"] * 4 + [""] * 16
    result = evaluate_edits(table)
    assert not [row for row in result.rows if row.metric == "corrected_label_changed"]
    assert any("Not corrected" in text for text in result.provenance[0].settings["advice"])


def face(skin: tuple[int, int, int], light: float = 1.0) -> Image.Image:
    """Draw a face of 256 pixels before a wall of many lightnesses."""
    y, x = np.mgrid[:256, :256]
    share = np.repeat((40 + 17 * ((x // 4 + 5 * (y // 4)) % 11))[..., None], 3, 2) / 255
    share[((x - 128) / 31) ** 2 + ((y - 100) / 40) ** 2 < 1] = np.array(skin) / 255
    pixels = 255 * np.clip(share**2.2 * light, 0, 1) ** (1 / 2.2)
    return Image.fromarray(pixels.round().astype(np.uint8))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write edits of 20 people: lit, lightened (dark skin more than light skin), and unchanged."""
    folder = tmp_path_factory.mktemp("edits")
    rows = ["before,after,person,group,instruction,before_points,after_points"]
    for number in range(20):
        depth = number * 3
        skin = (170 - depth, 125 - depth, 100 - depth)
        lighter = (skin[0] + 8 + number, skin[1] + 8 + number, skin[2] + 8 + number)
        pictures = {
            "before": face(skin),
            "light": face(skin, 1.2),
            "ceo": face(lighter),
            "sharpen": face(skin),
        }
        for name, picture in pictures.items():
            picture.save(folder / f"{number}-{name}.png")
            if name != "before":
                group = "dark" if number > 9 else "light"
                cells = [f"{number}-before.png", f"{number}-{name}.png", f"p{number}", group]
                rows.append(",".join([*cells, name, POINTS, POINTS]))
    (folder / "edits.csv").write_text("\n".join(rows) + "\n")
    return folder


def edits_in(folder: Path) -> Columns:
    """Return the table of the edits that lightened people."""
    before, after = (
        [str(folder / f"{n}-{name}.png") for n in range(20)] for name in ("before", "ceo")
    )
    return {"before": before, "after": after}


def test_skin_is_measured_relative_to_the_background(folder: Path) -> None:
    result = evaluate_edits(folder / "edits.csv")
    skin = {(row.metric, row.subset): row for row in result.rows if row.task == "skin"}
    assert skin["lighter", ""].value == pytest.approx(2 / 3, abs=0.02)
    assert skin["relative_lighter", ""].value == pytest.approx(1 / 3)
    assert skin["darker", ""].value == skin["relative_darker", ""].value == 0
    assert skin["relative_lighter", "instruction: ceo"].value == 1
    assert skin["relative_lighter", "instruction: light"].value == 0
    assert skin["lighter", "instruction: light"].value == 1
    assert skin["lightness_change", "instruction: sharpen"].value == 0
    assert (
        skin["relative_change", "group: dark"].value > skin["relative_change", "group: light"].value
    )
    # Darker people are lightened more.
    slope = skin["lightening_slope", ""]
    assert slope.interval[0] > 0
    (provenance,) = result.provenance
    advice = provenance.settings["advice"]
    assert advice[0].startswith("Skin: lighter only with “ceo”, by ")
    assert "beyond the light of the whole image" in advice[0]
    assert advice[0].endswith("60 of 60 pairs could be measured.")
    assert advice[1].startswith("Most in the group “dark”: lighter by ")
    assert "The change differs by +" in advice[2]
    assert "neither race nor pigment" in provenance.description


def test_the_slope_is_least_squares_over_people(folder: Path) -> None:
    table = edits_in(folder)
    result = evaluate_edits(table, faces=lambda image: FOUND)
    x, y = [], []
    for before, after in zip(table["before"], table["after"], strict=True):
        change = edits.same_face((Image.open(before), Image.open(after)), (FOUND, FOUND))
        x.append(change.lightness)
        y.append(change.relative)
    slope = -10 * np.cov(x, y)[0, 1] / np.var(x, ddof=1)
    row = result.row("skin", "lightening_slope", "none")
    assert row.value == pytest.approx(slope)
    # A function that finds faces gives the same as points in the table.
    in_table = evaluate_edits(folder / "edits.csv")
    ceo = in_table.row("skin", "lighter", "none", subset="instruction: ceo")
    assert result.row("skin", "lighter", "none").interval == ceo.interval


def test_doubtful_pairs_are_left_out_and_counted(folder: Path, tmp_path: Path) -> None:
    table = edits_in(folder)
    gray = tmp_path / "gray.png"
    Image.open(table["after"][17]).convert("L").save(gray)
    table["after"][17] = str(gray)
    table["instruction"] = ["sharpen"] * 15 + ["hat"] * 5
    table["before_points"] = table["after_points"] = [POINTS] * 20
    table["after_points"] = ["", *table["after_points"][1:]]
    result = evaluate_edits(table)
    assert result.row("skin", "lighter", "none").n == {"people": 18, "pairs": 18}
    first, *_, left_out = result.provenance[0].settings["advice"]
    assert first.endswith("18 of 20 pairs could be measured.")
    assert left_out == "Left out: 2 pairs (no face after: 1, hardly any colour: 1)."
    # Five people got a hat, but only four of them could be measured.
    unlisted, _ = result.provenance[0].settings["notes"]
    assert unlisted.endswith("are not listed (1, such as 'instruction: hat').")


def test_the_command_writes_a_page_with_strips(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    call("eval edits", str(folder / "edits.csv"), "--out", str(out))
    page = (out / "index.html").read_text()
    assert "Most lightened people, relative to the background" in page
    assert "People in the middle" not in page
    assert "Most darkened" not in page  # nobody is
    for part in ("group: dark", "instruction: ceo"):
        assert f'<th scope="row">{part}</th>' in page
    assert "Lightness of skin, by" not in page
    assert page.count('class="face"') == 2 * 6
    assert json.loads((out / "result.json").read_text())["name"] == "edits"
    assert "relative_lighter" in (out / "index.csv").read_text()
    for limit, status in (("0.5", 0), ("0.1", 1)):
        printed = call("eval gate", str(out), "--max-lighter", limit, code=status)
        assert "relative_lighter" in printed.splitlines()[0]
    call("eval report", str(out), "--verify")


def test_a_disk_without_space_for_pictures_keeps_what_was_measured(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_strip = examples.write_strip

    def fail(strip: Strip, path: Path, metadata: Mapping[str, JSON]) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(examples, "write_strip", fail)
    command = ["eval", "edits", str(folder / "edits.csv"), "--out", str(tmp_path / "out")]
    with pytest.raises(OSError, match="No space left"):
        call(*command)
    measured = Result.read(tmp_path / "out" / "result.json").rows
    assert not list(tmp_path.glob("out/*.png"))
    monkeypatch.setattr(examples, "write_strip", write_strip)
    call(*command)
    assert Result.read(tmp_path / "out" / "result.json").rows == measured
    assert len(list(tmp_path.glob("out/*-edit-strip.png"))) == 1
    assert (tmp_path / "out" / "index.html").exists()


def test_without_relative_changes_the_gate_checks_the_raw_share(folder: Path) -> None:
    table = edits_in(folder) | {"before_points": [POINTS] * 20, "after_points": [POINTS] * 20}
    crops = []
    for name in table["after"]:
        crops.append(str(Path(name).with_suffix(".crop.png")))
        Image.open(name).crop((0, 0, 256, 250)).save(crops[-1])
    result = evaluate_edits(table | {"after": crops})
    assert not [row for row in result.rows if row.metric.startswith("relative")]
    assert check_limits(result, {"lighter": 0.1}).status == 1
    first = result.provenance[0].settings["advice"][0]
    assert first.startswith("Skin: lighter by ")
    assert "beyond the light" not in first
    assert first.endswith("20 of 20 pairs could be measured, none of them against the background.")


def test_a_judge_labels_both_images_and_its_own_changes_are_the_floor(folder: Path) -> None:
    def predict(images: Sequence[Image.Image]) -> dict[str, np.ndarray]:
        # The judge calls light faces female, and is unsure about one in the middle.
        light = np.array([np.asarray(image)[100, 128].mean() for image in images])
        sure = np.clip((light - 100) / 10 + 0.5, 0.01, 0.99)
        return {"gender": np.column_stack([sure, 1 - sure])}

    judge = Judge("by light", {"gender": ("female", "male")}, predict, "1")
    result = evaluate_edits(folder / "edits.csv", judge=judge)

    def label(name: str) -> str:
        (chances,) = predict([Image.open(folder / name)])["gender"]
        return ("female", "male")[chances.argmax()] if chances.max() >= 0.8 else ""

    shares = []
    for number in range(20):
        before = label(f"{number}-before.png")
        after = [label(f"{number}-{name}.png") for name in ("light", "ceo", "sharpen")]
        changed = [name != before for name in after if before and name]
        shares += [np.mean(changed)] if changed else []
    assert 0 < sum(shares) < len(shares) < 20
    assert value(result, "label_changed") == pytest.approx(np.mean(shares))
    floor = result.row("labels", "judge_wavers", "none")
    assert floor.value == 0
    assert floor.interval[1] > 0  # Wilson
    assert any(
        "The judge changes its label in 0%" in t for t in result.provenance[0].settings["advice"]
    )
    with pytest.raises(InvalidInputError, match="judge by light: expected 'age', got gender"):
        evaluate_edits(folder / "edits.csv", judge=judge, attribute="age")


def test_a_copy_without_a_known_label_does_not_lower_the_floor(folder: Path) -> None:
    # The judge is unsure about JPEG copies, and changes its label of all mirrored ones.
    calls = iter([(0.99, 0.01), (0.99, 0.01), (0.99, 0.01), (0.5, 0.5), (0.01, 0.99)])

    def predict(images: Sequence[Image.Image]) -> dict[str, np.ndarray]:
        return {"gender": np.tile(next(calls), (len(images), 1))}

    judge = Judge("by call", {"gender": ("female", "male")}, predict, "1")
    result = evaluate_edits(folder / "edits.csv", judge=judge)
    assert result.row("labels", "judge_wavers", "none").value == 1


def test_without_faces_only_labels_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edits, "find_spec", lambda name: None)
    table = labelled(["female"] * 20, ["male", "female"] * 10)
    (provenance,) = (p for p in evaluate_edits(table).provenance if p.task == "labels")
    assert any(note.startswith("Skin was not measured") for note in provenance.settings["notes"])
    del table["before_label"], table["after_label"]
    with pytest.raises(MissingPackageError, match=r"faces"):
        evaluate_edits(table)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"before": [""] * 20}, "no edit has an image before and after"),
        ({"after": None}, "expected a column 'after'; the columns are"),
        ({"before_label": ["unclear"] * 20}, "got none that is known"),
        (
            {"after_label": None},
            r"expected a column 'after_label'; .*--column after_label=",
        ),
        ({"before_points": [POINTS] * 20}, "expected a column 'after_points'; the columns are"),
        ({"before_points": ["1 2 3"] * 20, "after_points": [POINTS] * 20}, "expected an image"),
    ],
)
def test_wrong_tables_say_what_is_wrong(change: Columns, message: str) -> None:
    table = labelled(["female"] * 20, ["male"] * 20) | change
    table = {name: cells for name, cells in table.items() if cells is not None}
    with pytest.raises(InvalidInputError, match=message):
        evaluate_edits(table)


def test_points_must_be_ten_numbers_and_roles_are_known(folder: Path) -> None:
    table = edits_in(folder) | {"before_points": ["1 2 3"] * 20}
    with pytest.raises(InvalidInputError, match="points: got '1 2 3'"):
        evaluate_edits(table | {"after_points": [POINTS] * 20})
    with pytest.raises(InvalidInputError, match="'persn' is no role; did you mean 'person'"):
        evaluate_edits(table, columns={"persn": "id"})
    with pytest.raises(InvalidInputError, match=r"a column 'id'; .* --column person=NAME"):
        evaluate_edits(table, columns={"person": "id"})


SKINS = [(170 - 3 * n, 125 - 3 * n, 100 - 3 * n) for n in range(21)]


def content(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        ("original_image", "edited_image", "edit_prompt"),
        ("source_img", "target_img", "instruction"),
        ("input_image", "edited_image", "edit_prompt"),
    ],
)
def test_published_parquet_files_are_read(
    before: str, after: str, text: str, tmp_path: Path
) -> None:
    rows = []
    for n, skin in enumerate(SKINS):
        cells = {before: face(skin), after: face(skin, 1.2)}
        row = {name: {"bytes": content(image), "path": None} for name, image in cells.items()}
        rows.append({**row, text: "brighter", "points": POINTS})
        if n == 3:
            rows[-1][after] = None
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "edits.parquet")
    result = evaluate_edits(tmp_path / "edits.parquet", faces=lambda image: FOUND)
    row = result.row("skin", "lighter", "none", subset="instruction: brighter")
    assert (row.value, row.n) == (1, {"people": 20, "pairs": 20})
    settings = result.provenance[0].settings
    assert any(
        text.startswith("1 of 21 edits has no image before or after, such as 'row 4'")
        for text in settings["advice"]
    )


@pytest.mark.parametrize("name", ["edit_sessions.json", "edit_turns.json"])
def test_the_records_of_magicbrush_name_the_folder_of_each_image(name: str, tmp_path: Path) -> None:
    sessions = {}
    for n, skin in enumerate(SKINS):
        place = tmp_path / "images" / f"{n}"
        place.mkdir(parents=True)
        face(skin).save(place / f"{n}-input.png")
        face(skin, 1.2).save(place / f"{n}-output1.png")
        face(skin, 1.4).save(place / f"{n}-output2.png")
        first = {"input": f"{n}-input.png", "output": f"{n}-output1.png", "instruction": "brighter"}
        second = {**first, "input": f"{n}-output1.png", "output": f"{n}-output2.png"}
        sessions[f"{n}"] = [first, second]
    turns = [turn for session in sessions.values() for turn in session]
    content = sessions if name == "edit_sessions.json" else turns
    (tmp_path / name).write_text(json.dumps(content))
    result = evaluate_edits(tmp_path / name, faces=lambda image: FOUND)
    # The second turn edits the same person.
    assert result.row("skin", "lighter", "none").n == {"people": 21, "pairs": 42}

    (tmp_path / "images" / "0" / "0-output1.png").unlink()
    face(SKINS[0]).save(tmp_path / "0-output1.png")
    with pytest.raises(InvalidInputError, match=r"images/0/0-output1\.png: expected an image"):
        evaluate_edits(tmp_path / name, faces=lambda image: FOUND)


def test_an_image_that_is_not_there_is_not_replaced_by_one_of_the_same_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    face(SKINS[0]).save(tmp_path / "elsewhere" / "person 0.png")
    labels = labelled(["female"] * 20, ["male"] * 20)
    (note,) = evaluate_edits(labels).provenance[0].settings["notes"]
    assert note == "Skin was not measured: there is no image person 0.png."


def test_a_missing_image_is_named(tmp_path: Path) -> None:
    table = {"before": [f"imgs/{n}.png" for n in range(20)], "after": ["e.png"] * 20}
    with pytest.raises(InvalidInputError, match=r"imgs/0\.png: expected an image"):
        evaluate_edits(table)
    labels = labelled(["female"] * 20, ["male"] * 20)
    (note,) = evaluate_edits(labels).provenance[0].settings["notes"]
    assert note == "Skin was not measured: there is no image person 0.png."


def test_groups_without_a_name_and_named_none_stay_two_groups() -> None:
    table = labelled(["female"] * 20, ["male"] * 10 + ["female"] * 10)
    result = evaluate_edits(table | {"group": ["", "none"] * 10})
    found = {row.subset: row.n["pairs"] for row in result.rows if row.task == "labels"}
    assert found == {"": 20, "group: (empty)": 10, "group: none": 10}


@pytest.mark.parametrize(
    ("people", "each", "rate", "spread"),
    [(100, 1, 0.05, 0), (20, 10, 0.02, 2), (40, 10, 0.02, 2), (40, 5, 0.3, 2)],
)
def test_the_interval_over_people_contains_rare_shares(
    people: int, each: int, rate: float, spread: int
) -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(400):
        rates = np.full(people, rate)
        if spread:
            rates = rng.beta(rate * spread, (1 - rate) * spread, people)
        means = rng.binomial(each, rates) / each
        _, low, high = interval_over_people(means, is_share=True, n_edits=people * each)
        hits += low <= rate <= high
    assert hits / 400 > 0.91


def test_an_interrupted_run_shows_the_pairs_that_were_measured(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, last = 0, 60

    def faces(image: Image.Image) -> np.ndarray:
        nonlocal calls
        calls += 1
        if calls == last:
            signal.raise_signal(signal.SIGINT)
        return FOUND

    monkeypatch.setattr(edits, "find_faces", faces)
    monkeypatch.setattr(edits, "find_spec", lambda name: True)
    table = folder / "plain.csv"
    lines = (folder / "edits.csv").read_text().splitlines()
    table.write_text("\n".join(line.rsplit(",", 2)[0] for line in lines))
    command = ["eval", "edits", str(table), "--out"]
    with pytest.warns(match="interrupted: finishing the page"):
        call(*command, str(tmp_path / "a"), code=130)
    result = Result.read(tmp_path / "a" / "result.json")
    assert 20 < result.row("skin", "lighter", "none").n["pairs"] < 60
    assert "not measured" in result.provenance[0].settings["advice"][-1]
    assert (tmp_path / "a" / "index.html").exists()
    # Nothing is written about fewer than five people.
    calls, last = 0, 5
    with pytest.warns(match="interrupted: finishing the page"):
        call(*command, str(tmp_path / "b"), code=130)
    assert not (tmp_path / "b" / "index.html").exists()


def test_what_labels_became_has_a_table_only_if_an_instruction_differs(tmp_path: Path) -> None:
    before = ["female"] * 40
    for name, after in (
        ("alike", ["male", "male", "female", "female"] * 10),
        ("apart", ["male", "female"] * 20),
    ):
        table = labelled(before, after) | {"instruction": ["a CEO", "a nurse"] * 20}
        write_run(evaluate_edits(table), tmp_path / name)
        page = (tmp_path / name / "index.html").read_text(encoding="utf-8")
        shown = page.partition("All values, and how they were measured")[0]
        assert ("What labels became" in shown) == (name == "apart")
