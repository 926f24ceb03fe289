"""Human evaluation of drawn images: votes, discrepancy against its definition, pairing, agreement, judges."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vldebias.errors import InvalidInputError
from vldebias.evaluation.answers import (
    CANNOT_TELL,
    NO_PERSON,
    NOT_ANSWERED,
    Annotations,
    Answer,
)
from vldebias.evaluation.drawing import Drawn, by_variant
from vldebias.evaluation.result import Measurement, TaskProvenance
from vldebias.evaluation.shares import EVERYTHING, NO_MAJORITY, AnnotationsTask, count_votes
from vldebias.metrics import discrepancy, krippendorff_alpha

NAMES = ("male", "female")
OPTIONS = {"attribute": "gender", "names": NAMES, "name": "people gender", "title": "t", "resamples": 200}
Said = dict[tuple[str, str], Sequence[Sequence[str | None]]]  # (variant, concept) -> annotators x images


def records(variants: Sequence[str], concepts: Sequence[str], images: int) -> list[Drawn]:
    return [
        Drawn(f"{variant}/{concept}/{i}.png", variant, f"A photo of a {concept}.", concept, i)
        for variant in variants
        for concept in concepts
        for i in range(images)
    ]


def annotations(said: Said) -> Annotations:
    return Annotations(
        tuple(
            Answer(image=f"{variant}/{concept}/{i}.png", annotator=f"person {a}", attribute="gender", value=value)
            for (variant, concept), rows in said.items()
            for a, row in enumerate(rows)
            for i, value in enumerate(row)
            if value is not None
        )
    )


def short(letters: str) -> list[str | None]:
    return [{"m": "male", "f": "female", "?": CANNOT_TELL, "0": NO_PERSON, ".": None}[c] for c in letters]


def evaluate(said: dict, **options) -> tuple[list[Measurement], TaskProvenance]:
    """One annotator per string of letters, one letter per image."""
    rows = {key: [short(row) for row in given] for key, given in said.items()}
    variants, concepts = (list(dict.fromkeys(key[i] for key in said)) for i in (0, 1))
    drawn = records(variants, concepts, max(len(row) for given in said.values() for row in given))
    given = {name: options.pop(name) for name in ("judged", "judge") if name in options}
    part, *_ = AnnotationsTask.build(OPTIONS | options).measure(drawn, annotations(rows), **given)  # then the corrected
    return part.rows, part.provenance


def one(figures: list[Measurement], metric: str, method: str, subset: str = "") -> Measurement:
    (found,) = [f for f in figures if (f.metric, f.method, f.subset) == (metric, method, subset)]
    return found


# ---- votes -----------------------------------------------------------------------------------------------------

codes = st.lists(st.lists(st.integers(-1, 3), min_size=4, max_size=4), min_size=1, max_size=6)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(codes)
def test_votes_against_counting_one_by_one(table: list[list[int]]) -> None:
    given_codes = np.array(table)
    said = (*NAMES, CANNOT_TELL, NO_PERSON, NO_MAJORITY)
    for image, majority in enumerate(count_votes(given_codes, 2)):
        answers = [said[code] for code in given_codes[:, image] if code != NOT_ANSWERED]
        most = [v for v in said if answers.count(v) == max(map(answers.count, answers), default=0) and v in answers]
        winner = most[0] if len(most) == 1 else NO_MAJORITY
        assert dict(zip(said, majority, strict=True)) == {
            value: float(bool(answers) and value == winner) for value in said
        }


# ---- figures ---------------------------------------------------------------------------------------------------


@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    st.lists(st.text("mf?0", min_size=5, max_size=5), min_size=2, max_size=4),
    st.lists(st.text("mf?0", min_size=5, max_size=5), min_size=4, max_size=4),
)
def test_means_over_prompts_are_those_of_the_metric(before: list[str], after: list[str]) -> None:
    """Against metrics.discrepancy, the function that the automatic evaluation uses."""
    concepts = [f"job {i}" for i in range(len(before))]
    said = {("none", c): [row] for c, row in zip(concepts, before, strict=True)}
    said |= {("cali", c): [row] for c, row in zip(concepts, after, strict=False)}
    figures, _ = evaluate(said, resamples=20)
    for variant, rows in (("none", before), ("cali", after[: len(before)])):
        labels = [["mf".find(letter) for letter in row] for row in rows]
        expected = [discrepancy(r, 2, unknown=-1) if max(r) >= 0 else 0.5**0.5 for r in labels]
        assert one(figures, "discrepancy", variant).value == pytest.approx(np.mean(expected))
        for concept, value in zip(concepts, expected, strict=True):
            found = one(figures, "discrepancy", variant, concept)
            assert found.value == pytest.approx(value)
            assert found.interval[0] <= found.value <= found.interval[1] <= 0.5**0.5
        rate = {
            kind: np.mean([row.count(c) / 5 for row in rows]) for kind, c in (("cannot_tell", "?"), ("no_person", "0"))
        }
        assert one(figures, "cannot_tell", variant).value == pytest.approx(rate["cannot_tell"])
        assert one(figures, "no_person", variant).value == pytest.approx(rate["no_person"])
        assert one(figures, "unknown", variant).value == pytest.approx(sum(rate.values()))
        shares = [one(figures, "share", variant, f"mean over prompts: {name}").value for name in NAMES]
        assert sum(shares) + one(figures, "unknown", variant).value == pytest.approx(1)


def test_the_change_is_paired_by_prompt() -> None:
    """Prompts differ a lot, the variant lowers each by the same: the change is known though the mean is not."""
    said = {
        ("none", "a"): ["mmmmmmmm"],
        ("none", "b"): ["mmmmmmff"],
        ("cali", "a"): ["mmmmmmmf"],
        ("cali", "b"): ["mmmmmfff"],
    }
    figures, _ = evaluate(said)
    mean = one(figures, "discrepancy", "cali")
    step = -(2**0.5) / 8
    assert mean.change == pytest.approx((step, step, step))
    assert mean.interval[1] - mean.interval[0] > 0.2
    assert one(figures, "discrepancy", "none").change is None
    assert one(figures, "discrepancy", "none").n == {"prompts": 2, "images": 32}


def test_of_one_prompt_the_interval_is_over_its_images() -> None:
    figures, _ = evaluate({("none", "a"): ["mmmmmmmf"], ("cali", "a"): ["mmmmffff"]})
    found = one(figures, "discrepancy", "none")
    assert found.n == {"images": 8}
    assert found.interval[0] < found.value <= found.interval[1]
    assert one(figures, "discrepancy", "cali").change[0] == pytest.approx(-found.value)
    assert one(figures, "share", "none", "a: male").value == 7 / 8


def test_what_most_say_counts() -> None:
    said = {("none", "a"): ["mm", "mm", "ff"], ("none", "b"): ["mf", "mf", "mf"]}
    assert one(evaluate(said)[0], "discrepancy", "none", "a").value == pytest.approx(0.5**0.5)
    tied = evaluate({("none", "a"): ["mm", "fm"], ("none", "b"): ["mm", "mm"]})[0]
    assert one(tied, "no_majority", "none").value == one(tied, "unknown", "none").value == 0.25


def test_agreement_is_that_of_the_metric() -> None:
    said = {("none", "a"): ["mmf0", "mff0", "mm.?"], ("cali", "a"): ["mfmf", "mfmm", "...."]}
    figures, protocol = evaluate(said)
    code = {"m": 0, "f": 1, "?": 2, "0": 3, ".": -1}
    rows = {v: [[code[c] for c in row] for row in said[v, "a"]] for v in ("none", "cali")}
    both = np.concatenate([rows["none"], rows["cali"]], axis=1)
    for method, table in (("none", rows["none"]), ("cali", rows["cali"]), (EVERYTHING, both)):
        assert one(figures, "alpha", method).value == pytest.approx(krippendorff_alpha(table, missing=-1))
        assert one(figures, "alpha", method).change is None
    assert one(figures, "percent_agreement", "cali").value == 0.75
    assert one(figures, "alpha", EVERYTHING).n == {"images with two answers": 8, "annotators": 3, "answers": 19}
    assert "answers too" in protocol.settings["agreement"]["level"]


@pytest.mark.filterwarnings("ignore:labels:vldebias.errors.SuspectInputWarning")  # too few to correct by
def test_a_judge_is_compared_with_most_people() -> None:
    said = {("none", "a"): ["mmf?"], ("none", "b"): ["mf0m"]}
    judged = {f"none/a/{i}.png": v for i, v in enumerate(("male", "female", "female", "male"))}
    judged |= {f"none/b/{i}.png": v for i, v in enumerate(("male", "unknown", "unknown"))}
    figures, protocol = evaluate(said, judged=judged, judge="clip")
    found = one(figures, "judge_agreement", "none")
    assert found.value == 3 / 4
    assert found.n == {"prompts": 2, "images": 4}
    assert protocol.settings["judge"] == "clip"
    with pytest.raises(
        InvalidInputError, match=r"judged: expected one of \['male', 'female', 'unknown'\], got \['man'\]"
    ):
        evaluate(said, judged={"none/a/0.png": "man"})


@pytest.mark.parametrize(
    ("said", "change", "text"),
    [
        ({("none", "a"): ["m"]}, {"names": ("male",)}, r"names: List should have at least 2 items.* got \('male',\)"),
        ({("none", "a"): ["m"]}, {"names": ("male", "male")}, "names: expected two or more different values"),
        (
            {("none", "a"): ["m"], ("cali", "b"): ["m"]},
            {},
            r"no prompt is labelled under every variant \['none', 'cali'\]",
        ),
    ],
)
def test_errors(said: dict, change: dict, text: str) -> None:
    with pytest.raises(InvalidInputError, match=text):
        evaluate(said, **change)


def test_annotations_of_other_images_are_told_apart() -> None:
    made = annotations({("none", "a"): [["male"]]})
    with pytest.raises(
        InvalidInputError, match=r"none of 1 generated images was labelled.*\['none/a/0.png'\].*other/a/0.png"
    ):
        AnnotationsTask(**OPTIONS).measure(records(("other",), "a", 1), made)


def test_records_are_grouped_with_none_first() -> None:
    found = by_variant(records(("cali", "none"), "ab", 2))
    assert list(found) == ["none", "cali"]
    assert found["none"]["A photo of a b.", 1].path == "none/b/1.png"
    with pytest.raises(InvalidInputError, match=r"'none' has 'p' with seed 1 twice: x.png and y.png"):
        by_variant([Drawn("x.png", "none", "p", "c", 1), Drawn("y.png", "none", "p", "c", 1)])
    with pytest.raises(InvalidInputError, match="expected at least one record, got none"):
        by_variant([])
    with pytest.raises(InvalidInputError, match=r"path: expected one below the folder.*got '../x.png'"):
        Drawn("../x.png", "none", "p", "c", 1)
