"""Test `vldebias eval captions`: what captions state about labelled images, counted by hand."""

import csv
import json
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.captions.people import describe_captions
from apps.captions.reading import (
    NO_LABEL,
    NOT_STATED,
    SEVERAL,
    UNCLEAR,
    StatementReader,
)
from apps.captions.rows import AnswerRows, Words, difference_interval
from apps.captions.table import image_key, texts_of_cell
from tests.cli.conftest import call
from vldebias import compare, evaluate_captions, load_prompts
from vldebias.cli.common import write_run
from vldebias.data.label_values import REFUSALS, UNDECIDED, is_refusal
from vldebias.errors import InvalidInputError
from vldebias.measure.resampling import Interval
from vldebias.report.gate import check_limits
from vldebias.report.result import Result
from vldebias.report.text import stored_sentences

# label, caption, what the caption states
CASES = (
    ("male", "A man rides a wave.", "male"),
    ("male", "A person rides a wave.", "none"),
    ("male", "A woman rides a wave.", "female"),
    ("female", "A girl and a boy play.", "several"),
    ("female", "A doctor with her patient.", "female"),
    ("female", "A boy sleeps.", "male"),
    ("female", "A guy in a hat.", "male"),
    ("unclear", "A surfer on his board.", "male"),
    ("unclear", "A surfer.", "none"),
    ("", "A man.", "male"),
    ("both", "A man.", "male"),
)
READER = StatementReader(load_prompts("gender"))


def table(repeat: int = 1, **columns: list[object]) -> dict[str, list[object]]:
    """Return the table of the cases, with each case repeated."""
    cases = CASES * repeat
    labels = [label for label, _, _ in cases]
    captions = [caption for _, caption, _ in cases]
    return {
        "image": [f"{n}.jpg" for n in range(len(cases))],
        "caption": captions,
        "label": labels,
        **columns,
    }


def values(result: Result, task: str = "captions", method: str = "none") -> dict[str, float]:
    rows = [row for row in result.rows if (row.task, row.method) == (task, method)]
    return {f"{row.metric} {row.subset}".strip(): row.value for row in rows}


def advice(result: Result) -> list[str]:
    settings = result.provenance[0].settings
    return [*settings.get("advice", []), *settings["notes"]]


def test_right_wrong_none_and_several_are_counted_by_label() -> None:
    found = values(evaluate_captions(table()))
    expected = {}
    for subset in ("", "male", "female"):
        rows = [(label, said) for label, _, said in CASES if label in ("male", "female")]
        rows = [row for row in rows if subset in ("", row[0])]
        counts = {
            "right": sum(label == said for label, said in rows),
            "wrong": sum(said in ("male", "female") and label != said for label, said in rows),
            "none": sum(said == "none" for _, said in rows),
            "several": sum(said == "several" for _, said in rows),
        }
        for answer, count in counts.items():
            expected[f"said_{answer} {subset}".strip()] = count / len(rows)
    expected["said_gap"] = 2 / 4 - 1 / 3  # women called men minus men called women
    assert found == pytest.approx(expected)
    # Wilson's interval has a width even if no caption does this.
    several = evaluate_captions(table()).row("captions", "said_several", "none", subset="male")
    assert several.value == 0
    assert several.interval[1] > 0.3


def test_unclear_images_are_counted_apart() -> None:
    result = evaluate_captions(table())
    found = values(result, "captions, unclear")
    assert found == {"unclear_said": 0.5, "share male": 1.0, "share female": 0.0}
    assert "50.0% [9.5%, 90.5%] get a gender" in result.provenance[1].settings["advice"][0]


def test_models_are_compared_on_the_images_that_both_describe(tmp_path: Path) -> None:
    before = table(30)
    after = {name: cells[:-1] for name, cells in before.items()}
    neutral = [caption.replace("A guy", "A person") for caption in after["caption"]]
    result = evaluate_captions(before | {"model": ["a"] * 330}, after | {"caption": neutral})
    row = result.row("captions", "said_wrong", "table 2")
    # 30 of 210 images with a clear label were described by "guy".
    assert row.change is not None
    assert row.change[0] == pytest.approx(-30 / 210)
    assert row.change[2] < 0
    none = result.row("captions", "said_none", "table 2").change
    assert none is not None
    assert none[0] == pytest.approx(30 / 210)
    gap = result.row("captions", "said_gap", "table 2").change
    assert gap is not None
    assert gap[0] == pytest.approx(-30 / 120)
    first, second, *rest = stored_sentences(result, "notes")
    assert first.startswith("a: Of 210 images with a clear label, ")
    assert second.startswith("table 2: Of 210 images with a clear label, ")
    assert rest[-1] == (
        "Left out: 1 of 330 images lacks a caption (a 0, table 2 1), and 30 of the other 329 a"
        " label."
    )
    page = write_run(result, tmp_path).read_text()
    for name in ("all, a", "all, table 2", "female, table 2"):
        assert f'<th scope="row">{name}</th>' in page
    assert "no method" not in page.partition("All values, and how they were measured")[0]
    assert "paired change from a, on the same images" in page
    (conclusion,) = [c for c in result.conclusions() if c.task == "captions"]
    assert conclusion.verdict == "better, at a cost"  # fewer values are stated
    assert "no value stated 0.14 to 0.29" in conclusion.sentence


def test_the_same_captions_change_nothing() -> None:
    same = evaluate_captions(table(), table() | {"model": ["copy"] * len(CASES)})
    changes = [row.change for row in same.rows if row.method == "copy" and row.change]
    assert changes
    assert all(change == (0, 0, 0) for change in changes)


def test_nouns_are_counted_if_there_is_a_column() -> None:
    nouns = ["surfing"] * 3 + ["rest"] * 8
    found = values(evaluate_captions(table(2, activity=nouns * 2)))
    assert found["said_wrong surfing"] == pytest.approx(1 / 3)
    assert found["said_wrong rest"] == pytest.approx(2 / 4)


@pytest.mark.parametrize(
    ("references", "label"),
    [
        (["A man.", "A guy runs.", "Someone."], "male"),
        (["A man.", "A woman.", "Someone."], UNCLEAR),
        (["A man.", "A person.", "A child."], UNCLEAR),
        (["A person.", "A runner."], UNCLEAR),
        (["A man.", "A man and a woman.", "A man."], SEVERAL),
        (["A nonbinary person.", "A nonbinary runner."], SEVERAL),
        (["A dog.", "A cat."], ""),
        ([], ""),
    ],
)
def test_references_label_images_if_two_agree_and_none_disagrees(
    references: list[str], label: str
) -> None:
    assert READER.label_of_references(references) == label


@pytest.mark.parametrize(
    ("attribute", "text", "said"),
    [
        ("gender", "A woman water skiing", "female"),  # read as a thing
        ("gender", "A man next to a statue of a woman", SEVERAL),
        ("gender", 'A sign that says "men at work"', NOT_STATED),
        ("gender", "A king size bed", NOT_STATED),
        ("gender", "A grandfather clock", NOT_STATED),
        ("gender", "Eine Frau fährt Rad.", "female"),
        ("gender", "戴帽子的男人骑自行车", "male"),
        ("gender", "Una mujer y un hombre", SEVERAL),
        ("gender", "Ein Arzt mit seiner Tasche", NOT_STATED),
        ("age", "An old man and his old dog.", "old"),
        ("age", "A person with an old dog.", NOT_STATED),
        ("race", "A black woman with a white dog.", "Black"),
    ],
)
def test_values_are_read_in_several_languages(attribute: str, text: str, said: str) -> None:
    assert StatementReader(load_prompts(attribute)).stated_value([text]) == said


def test_a_parents_age_is_read_beside_a_baby_who_states_another() -> None:
    assert describe_captions([("A young woman with a baby.",)], load_prompts("age")).rows


CHAT = {
    "custom_id": "a.jpg",
    "response": {
        "status_code": 200,
        "body": {
            "model": "m",
            "choices": [{"message": {"role": "assistant", "content": "A man."}}],
        },
    },
}
TURNS = {
    "image": "a.jpg",
    "conversations": [{"from": "human", "value": "Caption?"}, {"from": "gpt", "value": "A man."}],
}
PARTS = {"key": "a.jpg", "content": [{"type": "text", "text": "A man."}]}
FAILED = {
    "custom_id": "b.jpg",
    "response": {"status_code": 429, "body": {"error": {"message": "Slow"}}},
}
FILES = {
    "chat.jsonl": f"{json.dumps(CHAT)}\n{json.dumps(FAILED)}",
    "turns.jsonl": json.dumps(TURNS),
    "parts.jsonl": json.dumps(PARTS),
    "coco.json": json.dumps([{"image_id": "a.jpg", "caption": "A man."}]),
    "flickr.txt": "a.jpg#0\tA man .\na.jpg#1\tA man runs .",
    "predictions.csv": "image_id,pred\na.jpg,A man.",
}


@pytest.mark.parametrize("name", FILES)
def test_the_formats_of_captioners_are_read(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text(FILES[name])
    labels = tmp_path / "labels.csv"
    labels.write_text("image,label\na.jpg,female\nb.jpg,male")
    result = evaluate_captions(file, references=labels)
    assert values(result)["said_wrong female"] == 1
    notes = [note for note in advice(result) if "no caption" in note]
    failed = "1 of 2 images has no caption, such as 'b.jpg'; left out."
    assert notes == ([failed] if name == "chat.jsonl" else [])


def test_coco_results_are_joined_with_the_captions_of_annotators(tmp_path: Path) -> None:
    names = {n: f"COCO_val2014_{n:012d}.jpg" for n in (42, 43)}
    captions = [(42, "A man."), (42, "A boy runs."), (43, "A woman."), (43, "A person.")]
    content = {
        "images": [{"id": n, "file_name": name} for n, name in names.items()],
        "annotations": [{"id": i, "image_id": n, "caption": text}
                        for i, (n, text) in enumerate(captions)],
    }  # fmt: skip
    references = tmp_path / "captions_val2014.json"
    references.write_text(json.dumps(content))
    results = tmp_path / "results.json"
    results.write_text(json.dumps([{"image_id": n, "caption": "A man."} for n in names]))
    result = evaluate_captions(results, references=references)
    assert values(result)["said_right"] == 1
    assert values(result, "captions, unclear")["unclear_said"] == 1


def test_images_and_cells_are_read_in_each_form() -> None:
    assert image_key("000000000042.jpg") == image_key("42") == "42"
    assert image_key("img_42.jpg") == "img_42.jpg"
    assert image_key("000.jpg") == image_key("0") == "0"
    assert texts_of_cell(["a", "b"]) == texts_of_cell('["a", "b"]') == ["a", "b"]
    assert texts_of_cell([{"raw": "a"}, {"raw": "b"}]) == ["a", "b"]  # Karpathy's split
    assert texts_of_cell(None) == texts_of_cell("n/a") == []


def test_without_labels_people_are_counted_by_noun() -> None:
    captions = ["A nurse with her patient."] * 6 + ["A male nurse."] * 2
    result = evaluate_captions({"image": range(8), "caption": captions})
    assert result.row("captions", "stated_share", "none", subset="nurse").value == 0.25


@given(st.integers(0, 20), st.integers(0, 20))
def test_the_interval_of_a_gap_contains_it(first: int, last: int) -> None:
    shares = [Interval(hits / 20, max(0, hits / 20 - 0.1), min(1, hits / 20 + 0.1))
              for hits in (first, last)]  # fmt: skip
    low, high = difference_interval(*shares)
    assert low <= shares[1].value - shares[0].value <= high
    assert difference_interval(*reversed(shares)) == pytest.approx((-high, -low))


def test_results_can_be_gated_and_compared(tmp_path: Path) -> None:
    result = evaluate_captions(table(20))
    assert check_limits(result, {"said_wrong": 0.9, "unclear_said": 0.9}).status == 0
    assert check_limits(result, {"said_wrong": 0.1}).status == 1
    assert "said_wrong" in str(compare(result, result).to_pandas().metric.tolist())


@pytest.mark.parametrize(
    ("tables", "options", "message"),
    [
        ([{"caption": ["A man."]}] * 2, {}, "expected a column 'image'; the columns are"),
        ([{"image": [1]}], {}, r"expected a column 'caption'; .* --column caption=NAME"),
        ([table()], {"columns": {"captoin": "x"}}, "did you mean 'caption'"),
        ([table()], {"columns": {"label": "gneder"}}, "no table has the column 'gneder'"),
        ([{"image": [], "caption": []}], {}, "no rows"),
        ([table(label=["blue"] * 11)], {}, "not understood: 11 labels of 11, such as 'blue'"),
        ([table(), table(image=[f"x{n}" for n in range(11)])], {}, "none is in all tables"),
        ([table(label=["N/A"] + ["unknown"] * 10)], {}, "none of 11 images has a label"),
        ([table(label=[""] * 11)], {}, "none of 11 images has a label"),
        ([table(image=["a"] * 11)], {}, "image 'a' has the labels 'male' and 'female'"),
    ],
)
def test_bad_tables_are_refused(
    tables: list[object], options: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        evaluate_captions(*tables, **options)  # type: ignore[arg-type]


def test_the_command_writes_a_page_and_prints_the_shares(tmp_path: Path) -> None:
    file = tmp_path / "blip.csv"
    rows = [f"{n},{caption},{label}" for n, (label, caption, _) in enumerate(CASES)]
    file.write_text("\n".join(["image,pred,gender", *rows]))
    out = tmp_path / "out"
    printed = call("eval captions", str(file), "--out", str(out))
    assert "Of 7 images with a clear label, 28.6%" in printed
    page = (out / "index.html").read_text()
    assert "What captions state about gender" in page
    assert "none stated" in page  # next to wrong values
    assert page.count('<th scope="row">all</th>') == 2  # clear and unclear images
    assert "any gender stated" in page
    assert Result.read(out / "result.json").rows


@pytest.mark.parametrize(
    "absent", [None, "", " ", "nan", float("nan"), pd.NA, "RateLimitError: Error code: 429 - slow"]
)
def test_a_caption_that_never_came_is_left_out_and_counted(absent: object) -> None:
    captions = ["A man.", "A man.", absent, absent]
    columns = {"image": ["a", "b", "c", "d"], "caption": captions, "label": ["female"] * 4}
    for columns_or_frame in (columns, pd.DataFrame(columns)):
        result = evaluate_captions(columns_or_frame)
        row = result.row("captions", "said_wrong", "none", subset="female")
        assert (row.value, row.n) == (1.0, {"images": 2})
        assert "2 of 4 images have no caption, such as 'c'; left out." in advice(result)
    with pytest.raises(InvalidInputError, match="none of 4 images has a caption, such as 'a'"):
        evaluate_captions(columns | {"caption": [absent] * 4})


def test_refusals_are_answers_and_counted_by_group() -> None:
    sorry = "I'm sorry, but I can't help with that."
    captions = [sorry] * 3 + ["A man."] + ["A man."] * 4
    labels = ["female"] * 4 + ["male"] * 4
    result = evaluate_captions({"image": range(8), "caption": captions, "label": labels})
    found = values(result)
    assert found["refused female"] == found["said_none female"] == 0.75
    assert found["refused male"] == 0
    assert found["refused_gap"] == 0.75
    low, high = result.row("captions", "refused_gap", "none").interval
    assert -0.05 < low < 0.75 < high <= 1
    # A refusal that states a value is a description.
    assert is_refusal(f"{sorry} It is a man.")
    said = evaluate_captions(
        {"image": [1], "caption": [f"{sorry} It is a man."], "label": ["male"]}
    )
    assert values(said)["said_right"] == 1
    assert "refused" not in values(said)


def test_the_list_of_refusals_is_short_and_finds_those_it_was_written_for() -> None:
    assert len(REFUSALS) + len(UNDECIDED) <= 30
    for text in (
        "I can't tell from this angle.",
        'A sign "I will not go".',
        "Sorry, I can't tell.",
    ):
        assert not is_refusal(text)
    with (Path(__file__).parent / "refusals.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    hits: dict[tuple[str, str], list[bool]] = {}
    for row in rows:
        text = row["answer"]
        is_counted = is_refusal(text) and READER.stated_value([text]) == NOT_STATED
        hits.setdefault((row["part"], row["is_refusal"]), []).append(is_counted)
    for part in ("development", "held out"):
        assert np.mean(hits[part, "yes"]) > 0.7
        assert np.mean(hits[part, "no"]) < 0.1


@pytest.mark.parametrize(
    ("label", "meaning"),
    [
        *((word, NO_LABEL) for word in ("N/A", "nan", "unknown", "None", "no face")),
        *((word, UNCLEAR) for word in ("unclear", "Unsure", "ambiguous", "cannot tell")),
        *(("F", "female"), ("man", "male"), ("masculine", "male"), ("both", SEVERAL)),
    ],
)
def test_only_people_who_looked_make_an_image_unclear(label: str, meaning: str) -> None:
    assert READER.meanings([label])[label] == meaning
    columns = {"image": range(3), "caption": ["A man."] * 3, "label": ["male", "female", label]}
    result = evaluate_captions(columns)
    assert ("captions, unclear" in {row.task for row in result.rows}) == (meaning == UNCLEAR)
    note = f"1 of 3 images has no label, such as '2' ({label}); left out."
    assert (note in advice(result)) == (meaning == NO_LABEL)


def test_images_without_a_partner_are_counted(tmp_path: Path) -> None:
    labels = tmp_path / "labels.csv"
    labels.write_text("image,label\n" + "\n".join(f"{n}.png,male" for n in range(100, 130)))
    images = [f"{n}.png" for n in range(100, 130)] + [f"val/{n}.png" for n in range(30)]
    columns = {"image": images, "caption": ["A man."] * 60}
    result = evaluate_captions(columns, references=labels)
    assert "30 of 60 images have no label, such as 'val/0.png'; left out." in advice(result)
    message = "none of 30 images has a label, such as 'val/0.png'; the references are .* '100.png'"
    with pytest.raises(InvalidInputError, match=message):
        evaluate_captions({"image": images[30:], "caption": ["A man."] * 30}, references=labels)


def test_models_that_describe_different_images_lose_nobody_silently() -> None:
    images = [1, 2, 3, 4, 3, 4, 5, 6]
    columns = {"image": images, "model": ["a"] * 4 + ["b"] * 4, "caption": ["A man."] * 8}
    result = evaluate_captions(columns | {"label": ["male"] * 8})
    assert "Left out: 4 of 6 images lack a caption (a 2, b 2)." in advice(result)


def test_an_interrupt_while_resampling_leaves_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_clear = AnswerRows.add_clear
    calls, at_calls = 0, {1}

    def interrupted(rows: AnswerRows, nouns: Words) -> None:
        nonlocal calls
        calls += 1
        if calls in at_calls:
            signal.raise_signal(signal.SIGINT)
        add_clear(rows, nouns)

    monkeypatch.setattr(AnswerRows, "add_clear", interrupted)
    file = tmp_path / "captions.csv"
    pd.DataFrame(table(2)).to_csv(file, index=False)
    command = ["eval", "captions", str(file), "--out", str(tmp_path / "out")]
    # A shell starts background jobs with SIGINT ignored.
    handler = signal.getsignal(signal.SIGINT)
    with pytest.warns(match="interrupted: finishing the page"):
        call(*command, code=130)
    assert (tmp_path / "out" / "index.html").exists()
    assert (tmp_path / "out" / "captions.csv").exists()
    assert signal.getsignal(signal.SIGINT) is handler
    # The next run is complete.
    call(*command)


def test_an_interrupt_while_reading_leaves_the_page_of_what_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stated_value = StatementReader.stated_value

    def interrupted(reader: StatementReader, texts: Sequence[str]) -> str:
        if texts in interrupting:
            signal.raise_signal(signal.SIGINT)
        return stated_value(reader, texts)

    monkeypatch.setattr(StatementReader, "stated_value", interrupted)
    file = tmp_path / "captions.csv"
    pd.DataFrame(table()).to_csv(file, index=False)
    command = ["eval", "captions", str(file), "--out", str(tmp_path / "out")]
    interrupting = [["A doctor with her patient."]]  # the fifth one
    with pytest.warns(match="interrupted: finishing the page"):
        call(*command, code=130)
    result = Result.read(tmp_path / "out" / "result.json")
    assert result.row("captions", "said_wrong", "none").n == {"images": 5}
    assert "Interrupted: 5 of 11 images were read." in advice(result)
    # The second Ctrl-C ends the command.
    interrupting += [["A man rides a wave."], ["A person rides a wave."]]
    monkeypatch.setattr("apps.captions.captions.until_interrupted", iter)
    with pytest.warns(match="interrupted: finishing the page"):
        call(*command[:-1], str(tmp_path / "two"), code=130)
    assert not (tmp_path / "two" / "index.html").exists()


def test_one_image_twice_is_one_image_with_two_captions() -> None:
    columns = {"image": ["a", "a", "b", "b"], "label": ["male"] * 4}
    result = evaluate_captions(columns | {"caption": ["A man.", "He runs.", "A man.", "A woman."]})
    assert values(result)["said_right"] == values(result)["said_several"] == 0.5
    assert any(
        text.startswith("2 images with several texts, such as 'a'") for text in advice(result)
    )


def test_an_echoed_question_is_not_read() -> None:
    texts = ["USER: Is it a man or a woman? ASSISTANT: A man."] * 4
    result = evaluate_captions({"image": range(4), "caption": texts, "label": ["male"] * 4})
    assert values(result)["said_right"] == 1


class Polars:
    """A frame that converts itself to pyarrow, as those of polars do."""

    def __init__(self, columns: dict[str, list[object]]) -> None:
        self.columns = columns

    def to_arrow(self) -> pa.Table:
        return pa.table(self.columns)


@pytest.mark.parametrize("role", ["caption", "label", "noun", "image"])
@pytest.mark.parametrize("missing", [None, float("nan"), pd.NA, ""])
def test_tables_in_memory_are_read_as_files_are(role: str, missing: object, tmp_path: Path) -> None:
    columns = table(2, noun=["surfer"] * 22)
    columns[role] = [missing, *columns[role][1:]]
    texts = {name: ["" if i == 0 and name == role else cell for i, cell in enumerate(cells)]
             for name, cells in columns.items()}  # fmt: skip
    pd.DataFrame(texts).to_csv(tmp_path / "t.csv", index=False)
    expected = values(evaluate_captions(tmp_path / "t.csv"))
    assert values(evaluate_captions(columns)) == expected
    assert values(evaluate_captions(pd.DataFrame(columns))) == expected
    assert values(evaluate_captions(pa.table(texts))) == expected
    assert values(evaluate_captions(Polars(texts))) == expected  # type: ignore[arg-type]


def test_cells_of_several_types_and_bytes_are_read_or_refused() -> None:
    columns = {"image": [1, "b"], "caption": ["A man.", b"Eine Frau."], "label": ["F", "F"]}
    assert values(evaluate_captions(columns))["said_right female"] == 0.5
    with pytest.raises(InvalidInputError, match=r"expected text in UTF-8, got the bytes"):
        evaluate_captions(columns | {"caption": [b"\xff\xfe", b"A man."]})
    with pytest.raises(InvalidInputError, match=r"columns of the same length, got .*'label': 1"):
        evaluate_captions(columns | {"label": ["F"]})


def test_the_models_column_is_asked_for_if_the_key_may_be_it() -> None:
    columns = table() | {"prediction": ["A man."] * 11}
    with pytest.raises(InvalidInputError, match=r"any of \['caption', 'prediction'\]; choose"):
        evaluate_captions(columns)
    chosen = values(evaluate_captions(columns, columns={"caption": "prediction"}))
    assert chosen["said_right male"] == 1
    assert evaluate_captions(table(text=["x"] * 11, title=["y"] * 11)).rows  # neither is a model's
    # The column of an answerer may hold captions.
    columns["model_answer"] = columns.pop("caption")
    del columns["prediction"]
    assert values(evaluate_captions(columns)) == values(evaluate_captions(table()))


@pytest.mark.parametrize(
    ("read", "text"),
    [(texts_of_cell, '[""' + " " * 300_000 + "x"), (image_key, "0" * 100_000 + "x")],
)
def test_long_runs_are_read_in_linear_time(read: Callable[[str], object], text: str) -> None:
    start = time.process_time()
    assert read(text) in (text, [text])
    assert time.process_time() - start < 5  # quadratic time would be a minute or more


def test_wrong_captions_are_listed_and_marks_survive_a_rerun(tmp_path: Path) -> None:
    out = tmp_path / "out"
    evaluate_captions(table(), out=out)
    rows = list(csv.DictReader((out / "captions.csv").open(newline="")))
    assert len(rows) == len(CASES)
    by_image = {row["image"]: row for row in rows}
    assert by_image["2"]["answer"] == "wrong"
    assert (by_image["2"]["read as"], by_image["2"]["label"]) == ("female", "male")
    assert [row["answer"] for row in rows[:3]] == ["wrong"] * 3
    before = (out / "captions.csv").read_bytes()
    evaluate_captions(table(), out=out)
    assert (out / "captions.csv").read_bytes() == before
    # A mark in the table, and one that the page saved.
    (out / "captions.csv").write_text(
        before.decode().replace("wrong,,table 1", "wrong,x,table 1", 1)
    )
    (out / "marks.csv").write_text('image,model,misread\n"6","table 1","x"\n')
    for _ in range(2):
        result = evaluate_captions(table(), out=out)
        marked = {row["image"] for row in csv.DictReader((out / "captions.csv").open(newline=""))
                  if row["misread"]}  # fmt: skip
        assert marked == {"2", "6"}
    sentence = advice(result)[1]
    assert sentence.startswith(
        "Without 2 images marked as misread or wrongly labelled: Of 5 images"
    )
    assert "20.0%" in sentence  # one of five is still wrong
    (examples,) = [p.settings["examples"] for p in result.provenance if p.settings["examples"]]
    assert [row["misread"] for row in examples["rows"]] == ["x", "", "x"]
    assert [part for part, is_read in examples["rows"][1]["parts"] if is_read] == ["boy"]
