"""Test the figures computed from a user's table."""

import statistics

import numpy as np
import pandas as pd
import pytest

from apps.shares.answers import CANNOT_TELL, NO_PERSON, AnnotationLog
from apps.shares.group_names import groups_named
from apps.shares.task import SharesTask
from tests.refusals import refused
from tests.study.painted_by_hand import GENDERS, chosen, paint
from vldebias.errors import InvalidInputError, SuspectInputWarning
from vldebias.measure.resampling import wilson_interval
from vldebias.measure.shares import discrepancies, shares_radius, squared_discrepancies
from vldebias.metrics import agreement, discrepancy
from vldebias.report.result import Result

FEW = pytest.mark.filterwarnings("ignore:people:vldebias.errors.SuspectInputWarning")
pytestmark = [pytest.mark.usefixtures("no_charts"), FEW]


def table(seed=0, prompts=8, images=30):
    """Return columns for a judge that mistakes every fourth woman for a man. People label every
    fifth image."""
    rng = np.random.default_rng(seed)
    rows = []
    for p in range(prompts):
        for method, share in (("sd", 0.2 + 0.08 * p), ("mended", 0.5)):
            for i in range(images):
                truth = "male" if rng.random() < share else "female"
                judged = "male" if truth == "female" and rng.random() < 0.25 else truth
                rows.append(
                    (
                        f"prompt {p}",
                        method,
                        "" if i == 7 else judged,
                        truth if i % 5 == 0 else "",
                        1.0,
                    )
                )
    return dict(
        zip(("text", "model", "judge", "people", "weight"), zip(*rows, strict=True), strict=True)
    )


def measure(columns, **fields):
    arguments = {
        "table": "t.csv",
        "prompt": "text",
        "value": "judge",
        "method": "model",
        "baseline": "sd",
    }
    return SharesTask.build(arguments | {"resamples": 200} | fields).measure(columns)


def by_name(part):
    return {(row.metric, row.method, row.subset): row for row in part.rows}


def test_figures_follow_from_the_counts_and_are_compared_with_the_baseline():
    columns = table()
    rows = by_name(measure(columns)[0])
    code = {"female": 0, "male": 1, "": -1}
    expected_figures = []
    for method, name in (("none", "sd"), ("mended", "mended")):
        codes = [
            code[v] for v, m in zip(columns["judge"], columns["model"], strict=True) if m == name
        ]
        counts = (np.array(codes).reshape(8, 30, 1) == [0, 1]).sum(1)
        assert rows["discrepancy", method, ""].value == pytest.approx(discrepancies(counts).mean())
        deviation = rows["discrepancy_deviation", method, ""].value
        assert deviation == pytest.approx(statistics.pstdev(discrepancies(counts).tolist()))
        squares = squared_discrepancies(counts).mean()
        assert rows["discrepancy_squared", method, ""].value == pytest.approx(squares)
        assert rows["unknown", method, ""].value == pytest.approx(1 / 30)
        share = rows["share", method, "mean over prompts: female"].value
        assert share == pytest.approx((counts[:, 0] / 30).mean())
        expected_figures.append(
            (float(discrepancies(counts)[3]), float(shares_radius(counts, resamples=200)[3]))
        )
    moved = rows["discrepancy", "mended", ""].value - rows["discrepancy", "none", ""].value
    assert rows["discrepancy", "mended", ""].change[0] == pytest.approx(moved)
    (before, change), (gap, around) = expected_figures
    figure = rows["discrepancy", "mended", "prompt 3"]
    largest = 0.5**0.5
    moved = gap - before
    assert figure.interval == pytest.approx((max(0, gap - around), min(largest, gap + around)))
    assert figure.change == pytest.approx(
        (moved, max(-largest, moved - change - around), min(largest, moved + change + around))
    )


def test_weights_are_equivalent_to_repeated_rows():
    columns = table(prompts=4, images=12)
    twice = {name: [*column, *column] for name, column in columns.items()}
    heavy = columns | {"weight": [2.0] * len(columns["text"])}
    plain = measure(columns)[0].rows
    doubled = measure(twice)[0].rows
    alike = measure(heavy, weight="weight")[0].rows
    assert [row.value for row in alike] == pytest.approx([row.value for row in plain])
    shares = [row.value for row in doubled if row.metric == "share"]
    assert shares == pytest.approx([row.value for row in plain if row.metric == "share"])
    uneven = columns | {"weight": [3.0 if value == "male" else 1.0 for value in columns["judge"]]}
    weighted = next(
        row for row in measure(uneven, weight="weight")[0].rows if "female" in row.subset
    )
    assert weighted.value < next(row for row in plain if "female" in row.subset).value


def test_human_labels_correct_the_judge():
    raw, mended = measure(table(1, 20, 200), people="people")
    rows = by_name(mended)
    judged = rows["share", "mended", "male"]
    right = rows["corrected_share", "mended", "male"]
    assert [figure.interval[0] <= 0.5 <= figure.interval[1] for figure in (judged, right)] == [
        False,
        True,
    ]
    gap, bare = (rows["corrected_discrepancy", method, ""] for method in ("mended", "none"))
    assert gap.change[0] == pytest.approx(gap.value - bare.value)
    assert gap.interval[0] == 0 < rows["discrepancy", "mended", ""].interval[0]
    assert {"discrepancy_squared", "max_skew"} <= {
        metric.removeprefix("corrected_") for metric, _, _ in rows
    }
    assert mended.provenance.settings["labelled images"] == {"none": 800, "mended": 800}
    conclusions = Result.from_tasks("shares", [raw, mended], seconds=1.0).conclusions()
    assert [conclusion.metric for conclusion in conclusions] == [
        "discrepancy",
        "corrected_discrepancy",
    ]


def test_prompts_missing_for_a_method_are_excluded():
    protocol = measure({name: column[:-30] for name, column in table().items()})[0].provenance
    assert (
        protocol.n["prompts"],
        protocol.settings["prompts without images from every method"],
    ) == (7, 1)
    columns = {"text": ["a"] * 9, "judge": ["x"] * 6 + ["y"] * 2 + ["unknown"]}
    complete = by_name(measure(columns, method=None, baseline="none")[0])["discrepancy", "none", ""]
    assert complete.value == pytest.approx(np.sqrt(2) * 0.25)
    assert complete.interval[0] < complete.value < complete.interval[1]
    columns = {"text": ["b", "a", "a"], "judge": ["x", "x", "y"]}
    lone = by_name(measure(columns, method=None, baseline="none")[0])
    assert [subset for *_, subset in lone][-4:] == ["b", "b: x", "a", "a: x"], (
        "for two values, the first determines both"
    )
    assert lone["share", "none", "b: x"].interval == pytest.approx(wilson_interval(1, 1))


@refused(
    ({}, {"prompt": "nothing"}, "'nothing'"),
    ({}, {"baseline": "sd3"}, "baseline: .*'mended', 'sd'"),
    (
        {"judge": ["male"] * 480},
        {},
        "every image .* shows 'male'; expected two groups or more; .* --groups gender",
    ),
    ({}, {"values": ["male", "other"]}, r"judge: got \['female'\]"),
    ({"text": [""] * 480}, {}, "rows have an empty 'text'"),
    ({"weight": ["much"] * 480}, {"weight": "weight"}, "'much' in row 1"),
    ({"weight": [-1] * 480}, {"weight": "weight"}, "'-1' in row 1"),
    ({"text": [f"only {i}" for i in range(480)]}, {}, "no prompt has images from every method"),
    (
        {"text": ["p", "text"] * 240, "judge": ["male", "judge"] * 240},
        {},
        "row 2 repeats the column names",
    ),
)
def test_invalid_tables_are_rejected(changed, fields):
    measure(table() | changed, **fields)


def test_synonyms_are_one_value_and_similar_values_are_reported():
    columns = table()
    short = {"male": "M", "female": " F "}
    mixed = [short.get(v, v) if i % 2 else v for i, v in enumerate(columns["judge"])]
    plain = measure(columns)[0].rows
    synonyms = {"M": "male", "F": "female"}
    for fields in ({"rename": synonyms}, {"rename": synonyms, "values": ["female", "male"]}):
        assert [r.value for r in measure(columns | {"judge": mixed}, **fields)[0].rows] == [
            r.value for r in plain
        ]
    capitals = [v.title() if i % 2 else v for i, v in enumerate(columns["judge"])]
    with pytest.warns(SuspectInputWarning, match="--rename Female=female"):
        measure(columns | {"judge": capitals})
    people = [v.replace("female", "woman") for v in columns["people"]]
    with pytest.warns(SuspectInputWarning, match="--rename woman=female"):
        measure(columns | {"people": people}, people="people")


@pytest.mark.parametrize("fields", [{"rename": {"Male": "male"}}, {"unknown": ("Both",)}])
def test_labels_to_rename_or_ignore_that_do_not_occur_are_reported(fields):
    with pytest.warns(SuspectInputWarning, match="no label is '(Male|Both)' .*check its spelling"):
        measure(table(), **fields)


def test_prompts_that_only_differ_in_case_or_whitespace_are_reported():
    columns = table(prompts=2)
    spelt = [p.title() if i % 3 == 0 else p for i, p in enumerate(columns["text"])]
    with pytest.warns(
        SuspectInputWarning,
        match="text: 2 prompts are written in several ways.*'Prompt 0' and 'prompt 0'.*spelling",
    ):
        measure(columns | {"text": spelt})
    # Trailing whitespace is ignored. A warning would be an error here.
    ended = [p + " " * (i % 2) for i, p in enumerate(columns["text"])]
    assert [row.value for row in measure(columns | {"text": ended})[0].rows] == [
        row.value for row in measure(columns)[0].rows
    ]


@pytest.mark.parametrize("column", ["image", "image_url", "Input.image_url"])
def test_repeated_images_are_reported_unless_they_are_several_faces(recwarn, column):
    columns = table(prompts=2)
    number = len(columns["text"])
    files = [f"{i}.png" for i in range(number)]
    # The methods generated different pictures with the same name, so pictures are only compared
    # within a method.
    plain = [row.value for row in measure(columns)[0].rows]
    assert [row.value for row in measure(columns | {column: files})[0].rows] == plain
    assert not recwarn.list
    twice = {name: [*column, *column[:5]] for name, column in columns.items()}
    twice[column] = files + files[:5]
    with pytest.warns(
        SuspectInputWarning,
        match=f"5 rows repeat the image of another row .*'{column}'.*'0.png'.*--faces",
    ):
        counted = measure(twice)[0].rows
    recwarn.clear()
    as_faces = measure(twice, faces=True)[0].rows
    assert not recwarn.list
    assert [row.value for row in as_faces] == [row.value for row in counted]
    assert [row.value for row in as_faces] != plain


@pytest.mark.parametrize(("labels", "blocks"), [(9, 1), (10, 2)])
def test_a_method_with_fewer_than_ten_labels_is_not_corrected(labels, blocks):
    columns = table() | {"people": ["male"] * labels + [""] * (480 - labels)}
    with pytest.warns(SuspectInputWarning, match="10 or more.*'mended': 0"):
        assert len(measure(columns, people="people")) == blocks


def test_a_table_can_be_read_from_a_file(tmp_path):
    columns = table(prompts=2)
    pd.DataFrame(columns).to_csv(tmp_path / "mine.csv", index=False)
    read, in_memory = (
        measure(source, people="people") for source in (tmp_path / "mine.csv", columns)
    )
    assert [part.rows for part in read] == [part.rows for part in in_memory]
    assert ("corrected_discrepancy_squared", "mended", "") in by_name(read[1]), (
        "a mean over both prompts"
    )


MEANING = {"m": "male", "f": "female", "?": CANNOT_TELL, "0": NO_PERSON}


@pytest.fixture
def people(tmp_path):
    """Measure human answers: (variant, concept) -> one string per annotator, with one letter per
    image."""
    drawn, _ = paint(tmp_path, np.random.default_rng(0), stated=False)
    log = AnnotationLog(tmp_path / "labels.jsonl")

    def measured(answers):
        for (variant, concept), annotators in answers.items():
            images = chosen(drawn, variant=variant, concept=concept)
            for i, letters in enumerate(annotators):
                for image, letter in zip(images, letters, strict=False):
                    if letter != ".":
                        log.append(image.path, str(i), "gender", MEANING[letter])
        task = SharesTask(attribute="gender", values=GENDERS, resamples=200)
        (part,) = task.measure(labels=[log.path], folder=drawn.folder)
        return by_name(part), part.provenance

    return measured


def test_means_over_prompts_match_the_metric(people):
    answers = {
        ("none", "pilot"): ["mmmf?"],
        ("none", "clerk"): ["mff0f"],
        ("cali", "pilot"): ["mf?0."],
    }
    rows, _ = people(answers | {("cali", "clerk"): ["mmfff"]})
    gaps = [discrepancy([0, 0, 0, 1], 2), discrepancy([0, 1, 1, 1], 2)]
    assert rows["discrepancy", "none", ""].value == pytest.approx(np.mean(gaps))
    assert rows["discrepancy", "none", "clerk"].value == pytest.approx(gaps[1])
    assert rows["unknown", "none", ""].value == pytest.approx(0.2)
    # Four pilot images are labelled.
    assert rows["unknown", "cali", ""].value == pytest.approx(0.25)
    assert rows["discrepancy", "cali", ""].lam == 500


def test_the_change_is_paired_by_prompt(people):
    """Prompts differ a lot, but the variant lowers each by the same amount, so the change is
    precise although the mean is not."""
    answers = {
        ("none", "pilot"): ["m" * 8],
        ("none", "clerk"): ["mmmmmmff"],
        ("cali", "pilot"): ["mmmmmmmf"],
    }
    rows, _ = people(answers | {("cali", "clerk"): ["mmmmmfff"]})
    mean = rows["discrepancy", "cali", ""]
    step = -(2**0.5) / 8
    assert mean.change == pytest.approx((step, step, step))
    assert mean.interval[1] - mean.interval[0] > 0.2


@pytest.mark.parametrize("methods_of_clerk", [["none"], ["none", "cali"]])
def test_prompts_without_labels_for_every_method_are_counted_in_a_sentence(
    people, methods_of_clerk
):
    answers = {("none", "pilot"): ["mf"], ("cali", "pilot"): ["mf"]}
    _, provenance = people(answers | {(method, "clerk"): ["mf"] for method in methods_of_clerk})
    only = [text for text in provenance.settings["findings"] if text.startswith("Only ")]
    assert [text[: len("Only 1 of 2 prompts")] for text in only] == (
        ["Only 1 of 2 prompts"] if len(methods_of_clerk) == 1 else []
    )


def test_majority_labels_and_agreement_are_measured(people):
    answers = {("none", "pilot"): ["mmf0", "mff0", "mm.?"], ("none", "clerk"): ["mf", "fm"]}
    rows, provenance = people(answers | {("cali", "pilot"): ["mf"], ("cali", "clerk"): ["mm"]})
    assert rows["unknown", "none", ""].value == 0.625  # both clerk images and one pilot image
    assert rows["share", "none", "pilot: male"].value == 0.5
    codes = [[0, 0, 1, 3, 0, 1], [0, 1, 1, 3, 1, 0], [0, 0, -1, 2, -1, -1]]
    alpha = rows["alpha", "all images", ""]
    assert alpha.value == pytest.approx(agreement(codes).alpha.value)
    assert alpha.n == {"images with two answers": 6, "annotators": 3, "answers": 15}
    assert provenance.settings["annotators"] == ["0", "1", "2"]


@refused(
    (("none/1.png", "woman"), {("none", "pilot"): ["m"]}, "woman"),
    (("x/1.png", "male"), {}, r"none of 140 .* x/1\.png"),
    (
        None,
        {("none", "pilot"): ["m"], ("cali", "clerk"): ["m"]},
        "no prompt has images from every method",
    ),
)
def test_answers_that_do_not_match_the_images_are_rejected(
    people, tmp_path, fields, values_of_cell
):
    if fields is not None:
        AnnotationLog(tmp_path / "labels.jsonl").append(fields[0], "eve", "gender", fields[1])
    people(values_of_cell)


def judged(values):
    return {"text": ["a CEO"] * len(values), "judge": list(values)}


def alone(columns, **fields):
    return measure(columns, method=None, baseline="none", **fields)[0]


def test_groups_that_no_image_shows_are_counted_if_they_are_named():
    columns = judged(["White", "Black"] * 25)
    with pytest.warns(SuspectInputWarning, match="--groups fairface-race \\(7 groups\\)"):
        occurring = alone(columns)
    assert by_name(occurring)["discrepancy", "none", ""].value == 0
    assert "over the 2 groups that occur" in occurring.provenance.settings["notes"][0]
    named = alone(columns, values=["White", "Black", "Asian", "Indian"])
    # Half and half over four groups: sqrt(2 (1/4)^2 + 2 (1/4)^2).
    assert by_name(named)["discrepancy", "none", ""].value == pytest.approx(0.5)
    assert "over the 4 groups that were named" in named.provenance.settings["notes"][0]
    men = alone(judged(["male"] * 20), values=["female", "male"])
    assert by_name(men)["discrepancy", "none", ""].value == pytest.approx(0.5**0.5)


def test_a_column_of_counts_that_is_not_used_is_reported(recwarn):
    counts = {
        "text": ["a nurse", "a nurse", "a pilot", "a pilot"],
        "judge": ["female", "male"] * 2,
        "Count": ["90", "10", "10", "90"],
    }
    with pytest.warns(SuspectInputWarning, match="'Count' are not used.*--weight-column Count"):
        (part,) = measure(counts, method=None, baseline="none")
    assert by_name(part)["discrepancy", "none", ""].value == 0
    (part,) = measure(counts, method=None, baseline="none", weight="Count")
    assert by_name(part)["discrepancy", "none", ""].value == pytest.approx(0.8 / 2**0.5)
    # Row numbers, equal weights and names are not counts.
    for column in (["1", "2", "3", "4"], ["1"] * 4, ["1", "x", "1", "2"]):
        recwarn.clear()
        measure(counts | {"Count": column}, method=None, baseline="none")
        assert not [w for w in recwarn if "not used" in str(w.message)]


def test_the_groups_of_a_packaged_set_are_given_by_its_name():
    assert groups_named(["gender"]) == ("male", "female")
    assert groups_named(["a", "b"]) == ("a", "b")
    for names in (["a"], ["a", "a"], []):
        with pytest.raises(InvalidInputError, match="two or more different groups"):
            groups_named(names)


def test_spellings_of_named_groups_are_read_with_a_warning():
    with pytest.warns(SuspectInputWarning, match="read 'F' .20 rows. as 'female', 'Man'"):
        part = alone(judged(["F", "Man"] * 20), values=["female", "male"])
    assert by_name(part)["discrepancy", "none", ""].value == 0
    expected = r"got \['femlae'\]; the groups are female, male; did you mean 'female'\? map each"
    with pytest.raises(InvalidInputError, match=expected):
        alone(judged(["femlae", "male"] * 20), values=["female", "male"])


def test_none_is_a_group_if_it_is_listed():
    columns = judged(["glasses", "none"] * 20)
    part = alone(columns, values=["glasses", "none"])
    assert by_name(part)["discrepancy", "none", ""].value == 0
    with (
        pytest.warns(SuspectInputWarning, match="'none' .20.; if one of them is a group, list all"),
        pytest.raises(InvalidInputError, match="every image with a known group shows 'glasses'"),
    ):
        alone(columns)


@pytest.mark.parametrize(
    "answer", ["cannot determine", "I'm sorry, I can't tell.", "no_face", "none"]
)
def test_answers_without_a_group_are_unknown(answer):
    columns = judged(["female", "male", answer] * 25)
    with pytest.warns(SuspectInputWarning, match="25 of 75 labels name no group") as caught:
        part = alone(columns)
    assert answer in str(caught[0].message)
    rows = by_name(part)
    assert rows["discrepancy", "none", ""].value == 0
    assert part.provenance.settings["values"] == ["female", "male"]
    # This does not apply if the answer is named as a group.
    named = alone(columns, values=["female", "male", answer])
    assert named.provenance.settings["values"] == ["female", "male", answer]


@refused(
    (["0.91", "0.12", "0.5", "1"] * 8, "look like probabilities; .* p > 0.5"),
    ([str(age) for age in range(20, 60)], "40 groups in 40 rows"),
    (["cannot tell"] * 20, "no image has a known group"),
)
@pytest.mark.filterwarnings("ignore::vldebias.errors.SuspectInputWarning")
def test_columns_without_groups_are_rejected(values):
    alone(judged(values))


def test_prompts_with_one_image_are_reported(recwarn):
    """One image has the largest possible discrepancy, whatever it shows."""
    prompts = [f"A photo of a nurse, take {i}" for i in range(40)]
    columns = {"text": prompts, "judge": ["female", "male"] * 20}
    with pytest.warns(SuspectInputWarning, match=r"40 of 40 prompts have one image.*every row"):
        measure(columns, method=None, baseline="none")
    recwarn.clear()
    (together,) = measure(columns | {"text": ["nurse"] * 40}, method=None, baseline="none")
    assert by_name(together)["discrepancy", "none", ""].value == pytest.approx(0)
    assert not recwarn


def test_images_without_a_label_by_people_are_counted() -> None:
    columns = table() | {"people": [""] * 80 + ["male"] * 200 + ["female"] * 200}
    notes = measure(columns, people="people")[0].provenance.settings["notes"]
    assert "80 of 480 images have no label by people, such as that in row 1." in notes
