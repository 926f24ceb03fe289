"""Test prompts in common file formats: one reader, and errors that name the file and the line."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.refusals import refused
from vldebias.data.prompt_file import prompt_list, read_prompts
from vldebias.errors import InvalidInputError, SuspectInputWarning
from vldebias.utils.texts import checked_texts
from vldebias.wording import balance_prompts

CHAIR = "A red chair"
CASTLE = "A doctor in a castle."
BAKER = ("a baker, in a shop", "a pilot")


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    ("content", "prompts", "comments"),
    [
        (f"# mine\n {CHAIR}\n\n{CASTLE}\n{CHAIR}", (CHAIR, CASTLE, CHAIR), 1),
        ("# people\na baker\n  # old: a plumber\n#a welder\n#1 fan\n", ("a baker", "#1 fan"), 3),
        ("\ufeffa baker\r\na pilot\r\n", ("a baker", "a pilot"), 0),
        ("a\u2028in\nb\x0bon\x0ca\x85b\n", ("a\u2028in", "b\x0bon\x0ca\x85b"), 0),
        ('"a baker"\n"a" and "b"\n\'a cook\'\n"\n', ("a baker", '"a" and "b"', "a cook", '"'), 0),
        ("a #hashtag nurse\n", ("a #hashtag nurse",), 0),
    ],
)  # fmt: skip
def test_lines_are_prompts_and_comments_are_counted(
    content: str, prompts: tuple[str, ...], comments: int, tmp_path: Path
) -> None:
    found = read_prompts(write(tmp_path / "prompts.txt", content))
    assert (found.prompts, found.comments, found.column) == (prompts, comments, None)


@pytest.mark.parametrize(
    ("name", "content", "column"),
    [
        ("a.csv", 'name,prompt\nb,"a baker, in a shop"\np,a pilot\n', "prompt"),
        ("a.csv", "id;text\n1;a baker, in a shop\n2;a pilot\n", "text"),
        ("a.csv", "\ufeffPrompt\tseed\na baker, in a shop\t1\na pilot\t2\n", "Prompt"),
        ("a.tsv", "prompt\tseed\na baker, in a shop\t1\na pilot\t2\n", "prompt"),
        ("a.jsonl", '{"prompt": "a baker, in a shop"}\n\n{"prompt": "a pilot"}\n', "prompt"),
        ("a.jsonl", '["a baker, in a shop", "a pilot"]\n', None),
        ("a.json", '["a baker, in a shop", "a pilot"]', None),
        ("a.jsonl", '[\n "a baker, in a shop",\n "a pilot"\n]\n', None),
        ("a.json", '{"prompt": "a baker, in a shop"}\n{"prompt": "a pilot"}\n', "prompt"),
        ("a.json", '[{"caption": "a baker, in a shop"}, {"caption": "a pilot"}]', "caption"),
        ("a.txt", "a baker, in a shop\na pilot\n".encode("utf-16"), None),
        ("a.json", '{"prompts": ["a baker, in a shop", "a pilot"], "seed": 3}', None),
        ("a.json", '{"1": {"prompt": "a baker, in a shop"}, "2": {"prompt": "a pilot"}}', "prompt"),
    ],
)
def test_tables_and_json_have_a_column_of_prompts(
    name: str, content: str | bytes, column: str | None, tmp_path: Path
) -> None:
    found = read_prompts(write(tmp_path / name, content))
    assert (found.prompts, found.column) == (BAKER, column)
    assert repr(column) in str(found) or column is None


def test_parquet_and_frames_have_a_column_of_prompts(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"id": [7, 8], "prompt": BAKER}, index=[3, 1])
    frame.to_parquet(tmp_path / "a.parquet")
    assert read_prompts(tmp_path / "a.parquet").prompts == BAKER
    assert read_prompts(frame).prompts == prompt_list(frame, "prompt").prompts == BAKER
    with pytest.raises(InvalidInputError, match=r"a data frame with columns .*frame\['prompt'\]"):
        balance_prompts(frame, "gender")
    assert balance_prompts(frame["prompt"], "gender", seed=0).reasons == [None, None]


def test_an_unexpected_encoding_is_reported(tmp_path: Path) -> None:
    file = write(tmp_path / "a.txt", "a baker in a café\n".encode("latin-1"))
    with pytest.warns(SuspectInputWarning, match="read as cp1252"):
        assert read_prompts(file).prompts == ("a baker in a café",)


@refused(
    ("none.txt", None, "no such file"),
    ("a.txt", "", "got no prompts"),
    ("a.txt", "# a comment alone", "got no prompts"),
    ("a.txt", "prompt,gender\nA nurse,female", "save it as .csv"),
    ("a.txt", "prompt\tvalue\nA nurse\tfemale", "as .tsv if tabs separate its columns"),
    ("a.txt", b"\x89PNG\r\n\x1a\n\x00", r"a\.txt"),
    ("a.csv", "prompt,seed\na baker, in a shop,1\n", "line 2: expected 2 columns .*quotes"),
    ("a.csv", 'prompt\n" "\n', "a.csv: row 2: expected a prompt in 'prompt', got ' '"),
    ("a.csv", "id,name\n1,a\n", "no column 'prompt' in .*--column"),
    ("a.csv", "text,caption\na,b\n", "any of .*'text', 'caption'"),
    ("a.jsonl", '{"prompt": 3}', "a.jsonl: line 1: expected a prompt in 'prompt', got 3"),
    ("a.jsonl", "nurse", "a.jsonl: line 1: expected JSON"),
    ("a.jsonl", '{"prompt": "a"}\n{"x": "b"}\n', "a.jsonl: line 2: expected a prompt"),
    ("a.json", '{"prompt": "a"}', "expected a list"),
    ("a.json", "[]", "got no prompts"),
    ("a.yaml", "- a baker\n", "YAML .*expected a text file"),
    ("a.md", "| n | prompt |\n", "Markdown"),
    ("a.xlsx", "PK", "a spreadsheet"),
    ("a.toml", '[prompt]\nprompt="a nurse"', r"got TOML \(\.toml\).*Save the prompts"),
    (".", None, "got a folder; expected a file of prompts"),
    ("a.json", '{"a": ["x"], "b": {"c": ["y"]}}', "several lists of strings, a, b.c"),
    ("a.csv", b"PK\x03\x04\x14\x00\x06\x00", "expected text, got a spreadsheet"),
    (
        "a.json",
        '[{"m": {"prompt": "a"}}, {"m": null}]',
        r"entry 2: expected a prompt in 'm\.prompt'",
    ),
)
def test_files_that_are_not_lists_of_prompts_are_rejected(
    tmp_path: Path, name: str, content: str | bytes | None
) -> None:
    if content is not None:
        write(tmp_path / name, content)
    read_prompts(tmp_path / name)


def test_a_column_name_for_a_text_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="a text file has one prompt per line"):
        read_prompts(write(tmp_path / "a.txt", "a\n"), "prompt")


@refused(
    (None, "got None"),
    (b"a", "got b'a'"),
    ({"a"}, "got {'a'}"),
    (["a", None], "got None at index 1 of 2"),
)
def test_inputs_other_than_ordered_strings_are_rejected(texts: Any) -> None:
    checked_texts(texts)


def test_json_and_text_lines_give_the_same_prompts(tmp_path: Path) -> None:
    prompts = ["a baker\u2028in a shop", "a “quoted” nurse"]
    lines = write(tmp_path / "a.jsonl", "".join(json.dumps({"prompt": p}) + "\n" for p in prompts))
    array = write(tmp_path / "a.json", json.dumps(prompts, ensure_ascii=False))
    assert read_prompts(lines).prompts == read_prompts(array).prompts == tuple(prompts)


INFOTEXTS = """a pilot at dawn,
masterpiece
Negative prompt: child, lowres,
bad hands
Steps: 20, Sampler: Euler a, CFG scale: 7, Seed: 2, Size: 512x512

a nurse
Steps: 20, Sampler: Euler a, Seed: 2
a judge
Negative prompt: woman

a baker
"""


def test_only_the_prompts_of_infotexts_are_read(tmp_path: Path) -> None:
    found = read_prompts(write(tmp_path / "a.txt", INFOTEXTS))
    assert found.prompts == ("a pilot at dawn, masterpiece", "a nurse", "a judge", "a baker")
    assert "1 had the prompt on several lines" in str(found)
    # A list that mentions steps is not a list of infotexts.
    plain = read_prompts(write(tmp_path / "b.txt", "Steps: a staircase\na nurse\n"))
    assert plain.prompts == ("Steps: a staircase", "a nurse")


def test_only_the_prompts_of_prompts_from_file_are_read(tmp_path: Path) -> None:
    lines = '--prompt "a nurse, tired" --negative_prompt "a man"\n--steps 9 --prompt pilot\na judge'
    found = read_prompts(write(tmp_path / "a.txt", lines))
    assert found.prompts == ("a nurse, tired", "pilot", "a judge")
    assert "without its other options" in str(found)


@refused(
    ("Negative prompt: a man\nSteps: 20, Sampler: Euler, Seed: 1\n", "line 1: expected a prompt"),
    ("a nurse\nSteps: 20, Seed: 1\nSteps: 20, Seed: 2\n", "line 3: expected a prompt"),
    ('a nurse\n--prompt "a pilot\n', "line 2: No closing quotation"),
    ("--steps 20\n", "line 1: expected --prompt"),
    ("--prompt\n", "line 1: expected --prompt"),
)
def test_webui_lines_without_a_prompt_are_rejected(tmp_path: Path, content: str) -> None:
    read_prompts(write(tmp_path / "a.txt", content))


@pytest.mark.parametrize(
    ("name", "content", "column", "where"),
    [
        ("a.jsonl", '{"id": 1, "body": {"prompt": "a nurse"}}', None, "body.prompt"),
        ("a.jsonl", '{"id": 1, "body": {"prompt": "a nurse"}}', "body.prompt", "body.prompt"),
        ("a.json", '{"items": [{"meta": {"prompt": "a nurse"}}]}', None, "meta.prompt"),
        ("a.json", '{"items": [{"m": [0, {"p": "a nurse"}]}]}', "m.1.p", "m.1.p"),
    ],
)
def test_prompts_inside_objects_are_read(
    name: str, content: str, column: str | None, where: str, tmp_path: Path
) -> None:
    found = read_prompts(write(tmp_path / name, content), column)
    assert (found.prompts, found.column) == (("a nurse",), where)
