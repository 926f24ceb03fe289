"""The labelling app's file, answers from elsewhere, and the images that people are asked about."""

import json
import os
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vldebias.errors import InvalidInputError
from vldebias.evaluation.answers import (
    CANNOT_TELL,
    LEAST,
    NO_MAJORITY,
    NO_PERSON,
    NOT_ANSWERED,
    AnnotationLog,
    LabelSample,
    Votes,
    read_answers,
    read_log,
)
from vldebias.metrics import corrected_shares

NAMES = ("male", "female")
SETS = 200


# ---- the log ---------------------------------------------------------------------------------------------------


@pytest.fixture
def log(tmp_path: Path) -> AnnotationLog:
    return AnnotationLog(tmp_path / "sub" / "answers.jsonl")


def test_the_last_answer_counts_and_nothing_is_rewritten(log: AnnotationLog) -> None:
    assert log.answers() == {}
    log.append("a.png", "ada", "gender", "male")
    before = log.path.read_bytes()
    log.append("a.png", "ada", "gender", CANNOT_TELL)
    log.append("a.png", "bob", "gender", "male")
    assert log.path.read_bytes().startswith(before)
    assert {key: answer.value for key, answer in log.answers().items()} == {
        ("ada", "a.png", "gender"): CANNOT_TELL,
        ("bob", "a.png", "gender"): "male",
    }


def test_an_answer_is_flushed_to_the_disk_before_append_returns(log: AnnotationLog, monkeypatch) -> None:
    synced = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (synced.append(os.fstat(file).st_size), real(file)))
    log.append("a.png", "ada", "gender", "male")
    assert log.path.stat().st_size in synced
    assert len(synced) == 2  # the file, and the folder that has a new name


def test_an_answer_waits_for_whoever_has_the_file(log: AnnotationLog) -> None:
    """Even for who only reads it under a lock: what looks like a torn line is one that is still being written."""
    fcntl = pytest.importorskip("fcntl", reason="this system has no flock")
    log.append("a.png", "ada", "gender", "male")
    with log.path.open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        writing = threading.Thread(target=log.append, args=("b.png", "bob", "gender", "male"))
        writing.start()
        writing.join(0.2)
        assert writing.is_alive()
        fcntl.flock(other, fcntl.LOCK_UN)
        writing.join(10)
    assert len(log.answers()) == 2


@settings(max_examples=40, deadline=None, derandomize=True)
@given(cut=st.integers(1, 400))
def test_a_torn_last_line_is_skipped_and_no_other_is_lost(tmp_path_factory, cut: int) -> None:
    log = AnnotationLog(tmp_path_factory.mktemp("torn") / "a.jsonl")
    for i in range(3):
        log.append(f"ä{i}.png", "ada", "gender", "male")
    content = log.path.read_bytes()
    left = content[: max(len(content) - cut, 0)]
    log.path.write_bytes(left)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kept = len(read_log(log.path))
        log.append("new.png", "bob", "gender", "female")
    whole = left.count(b"\n") + (cut == 1)
    assert kept == whole
    torn = left and not left.endswith(b"\n") and cut > 1
    assert len(caught) == (2 if torn else 0)
    # it warns no more: the file is whole again
    assert [a.image for a in read_log(log.path)] == [f"ä{i}.png" for i in range(whole)] + ["new.png"]


def test_a_whole_line_without_its_end_is_kept(log: AnnotationLog) -> None:
    """As an editor leaves it; also where its content does not fit: that is the user's to mend."""
    log.append("a.png", "ada", "gender", "male")
    log.path.write_bytes(log.path.read_bytes().rstrip(b"\n"))
    log.append("b.png", "ada", "gender", "male")
    assert len(log.answers()) == 2
    with log.path.open("ab") as file:
        file.write(b'{"image": "c.png"}')
    log.append("d.png", "ada", "gender", "male")
    with pytest.raises(InvalidInputError, match=r"1 lines are no answers.*line 3: annotator"):
        log.answers()


def test_a_full_disk_leaves_the_file_as_it_was(log: AnnotationLog, monkeypatch) -> None:
    log.append("a.png", "ada", "gender", "male")
    before = log.path.read_bytes()
    real = os.write
    monkeypatch.setattr(os, "write", lambda file, data: real(file, data[:10]))
    with pytest.raises(OSError, match="no room for another answer; the file is as before"):
        log.append("b.png", "ada", "gender", "male")
    assert log.path.read_bytes() == before


@pytest.mark.parametrize(
    "change",
    [{"image": "/etc/passwd"}, {"image": "../x.png"}, {"image": "a\\b.png"}, {"annotator": " ada"}, {"seconds": -1.0}],
)
def test_what_the_file_may_not_hold_is_not_written(log: AnnotationLog, change: dict) -> None:
    given = {"image": "a.png", "annotator": "ada", "attribute": "gender", "value": "male"} | change
    with pytest.raises(InvalidInputError, match=f"annotation: {next(iter(change))}: "):
        log.append(**given)
    assert not log.path.exists()


# ---- answers from files ----------------------------------------------------------------------------------------


def line(image: str, annotator: str, value: str, time: str = "2024-01-01T00:00:00Z") -> str:
    fields = {"version": 1, "image": image, "annotator": annotator, "attribute": "gender", "value": value}
    return json.dumps(fields | {"time": time, "seconds": None})


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{one}\n" for one in lines), encoding="utf-8")
    return path


def values(found) -> dict:
    return {(a.annotator, a.image): a.value for a in found}


def test_inside_a_file_the_later_line_counts_even_if_a_clock_was_set_back(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.jsonl",
        line("1.png", "ada", "male", "2024-01-02T00:00:00Z"),
        line("1.png", "ada", "female", "2024-01-01T00:00:00Z"),
        line("1.png", "bob", "male", "2024-01-01T00:00:00Z"),
    )
    assert values(read_answers([path])) == {("ada", "1.png"): "female", ("bob", "1.png"): "male"}


@pytest.mark.parametrize("order", [1, -1])
def test_between_files_the_later_time_counts_in_any_zone(tmp_path: Path, order: int) -> None:
    early = write(tmp_path / "early.jsonl", line("1.png", "ada", "male", "2024-01-01T10:00:00+05:00"))
    late = write(tmp_path / "late.jsonl", line("1.png", "ada", "female", "2024-01-01T06:00:00Z"))
    assert values(read_answers([early, late][::order])) == {("ada", "1.png"): "female"}


def test_no_answer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="no answer"):
        read_answers([write(tmp_path / "a.jsonl")])


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.lists(st.lists(st.integers(-1, 3), min_size=4, max_size=4), min_size=1, max_size=6))
def test_votes_against_counting_one_by_one(table: list[list[int]]) -> None:
    codes = np.array(table)
    votes = Votes(NAMES, (), codes, np.ones(4))
    said = (*NAMES, CANNOT_TELL, NO_PERSON, NO_MAJORITY)
    for image, majority in enumerate(votes.majority):
        answers = [said[code] for code in codes[:, image] if code != NOT_ANSWERED]
        most = [v for v in said if answers.count(v) == max(map(answers.count, answers), default=0) and v in answers]
        assert majority == (most[0] if len(most) == 1 else NO_MAJORITY if answers else "")


def test_other_values_are_refused_and_other_images_left_out(tmp_path: Path) -> None:
    answers = read_answers([write(tmp_path / "a.jsonl", line("1.png", "b", "woman"), line("9.png", "a", "woman"))])
    with pytest.raises(InvalidInputError, match=r"unknown values 'woman' \(2\); expected one of \['male', 'female',"):
        Votes.of(answers, NAMES, ["1.png"])
    votes = Votes.of(answers, ("man", "woman"), ["1.png"])
    assert votes.codes.tolist() == [[NOT_ANSWERED], [1]]
    assert votes.annotators == ("a", "b")


# ---- the sample ------------------------------------------------------------------------------------------------


def world(rng, n=800):
    """What is true, what a judge says, and its confidence: of women it is less sure, and then it calls them men."""
    truth = rng.choice(2, size=n, p=(0.4, 0.6))
    sure = np.where(rng.random(n) < np.where(truth == 1, 0.3, 0.1), 0.6, 0.99)
    wrong = rng.random(n) < np.where(truth == 1, np.where(sure > 0.9, 0.02, 0.6), 0.02)
    said = np.where(wrong, 1 - truth, truth)
    return truth, np.where(rng.random(n) < 0.05, 2, said), sure


def drawn(said, sure, labels, seed=0, within=""):
    paths = [f"{i}.png" for i in range(len(said))]
    within = [within] * len(said) if isinstance(within, str) else within
    names = [(*NAMES, "unknown")[code] for code in said]
    return LabelSample.draw(paths, within, names, sure, labels, attribute="gender", judge="one", seed=seed)


def of_sample(sample, truth):
    """What people say of the images of the sample, and the weights, in the order of the images."""
    weights = np.array([sample.weights.get(f"{i}.png", 0.0) for i in range(len(truth))])
    return np.where(weights > 0, truth, -1), weights


def test_every_image_is_drawn_with_the_probability_that_its_weight_says():
    _, said, sure = world(np.random.default_rng(0), 120)
    weights, hits = {}, np.zeros(120)
    for seed in range(SETS):
        sample = drawn(said, sure, 30, seed)
        weights |= sample.weights
        hits[[int(path[:-4]) for path in sample.weights]] += 1
    chance = np.array([1 / weights[f"{i}.png"] for i in range(120)])
    assert chance.max() > 2 * chance.min()  # some are asked about far more often, so that the test can fail
    off = np.abs(hits / SETS - chance)
    assert (off <= 4 * np.sqrt(chance * (1 - chance) / SETS)).all()


def test_weighted_estimates_have_no_bias_and_are_narrower_and_unweighted_ones_are_wrong():
    rng, rows = np.random.default_rng(1), []
    for seed in range(SETS):
        truth, said, sure = world(rng)
        people, weights = of_sample(drawn(said, sure, 100, seed), truth)
        one = corrected_shares(said, people, 2, weights=weights)
        interval, asked = one.interval(1), people >= 0
        by_lot = corrected_shares(said, np.where(rng.permutation(len(truth)) < 100, truth, -1), 2).shares[1]
        alone = np.average(truth[asked], weights=weights[asked])
        held = interval.low <= 0.6 <= interval.high
        rows.append((one.shares[1], alone, truth[asked].mean(), held, by_lot))
    corrected, alone, bare, held, by_lot = np.array(rows).T
    for values in (corrected, alone, by_lot):
        assert abs(values.mean() - 0.6) < 4 * values.std() / SETS**0.5
    assert abs(bare.mean() - 0.6) > 5 * bare.std() / SETS**0.5
    assert 0.91 <= held.mean() <= 0.99
    assert corrected.std() < 0.9 * by_lot.std()


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 90), st.integers(0, 40), st.integers(0, 5))
def test_a_larger_sample_holds_the_smaller_one_and_weights_add_up(labels, more, seed):
    rng = np.random.default_rng(seed)
    _, said, sure = world(rng, 100)
    within = rng.choice(["none, unseen", "cali, unseen"], 100).tolist()
    small = drawn(said, sure, labels, seed, within)
    large = small.of_size(labels + more)
    assert set(small.weights) <= set(large.weights)
    assert len(small.weights) == max(labels, sum(min(LEAST, len(one.images)) for one in small.strata))
    assert large == drawn(said, sure, labels + more, seed, within)
    assert sum(small.weights.values()) == pytest.approx(100)
    assert {path for one in small.strata for path in one.images} == {f"{i}.png" for i in range(100)}


def test_it_is_kept_and_another_file_is_refused(tmp_path: Path):
    sample, path = drawn(*world(np.random.default_rng(0), 50)[1:], 20), tmp_path / "s.json"
    path.write_text(sample.model_dump_json())
    assert LabelSample.read(path) == sample
    path.write_text('{"judge": "x"}')
    with pytest.raises(InvalidInputError, match="is no sample for labelling: attribute"):
        LabelSample.read(path)
