"""Randomly damage tables and lists: the reader must raise an error, or read or count every row."""

import json
import random
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from brought import images

from vldebias.data import ImageData, open_data
from vldebias.data.prompt_file import read_prompts
from vldebias.errors import InvalidInputError

WORDS = ("nurse", "pilot", "Köchin", "judge", "café owner", "farmer", "old, tired man", "niño")
Rows = list[list[str]]


def delimited(separator: str) -> Callable[[Rows], str]:
    def written(rows: Rows) -> str:
        lines = []
        for row in rows:
            cells = [f'"{text}"' if separator in text else text for text in row]
            lines.append(separator.join(cells))
        return "\n".join(lines) + "\n"

    return written


def json_lines(rows: Rows) -> str:
    head, *body = rows
    return "".join(json.dumps(dict(zip(head, row, strict=False))) + "\n" for row in body)


def lines(rows: Rows) -> str:
    return "".join(f"{row[-1]}\n" for row in rows[1:])


FORMS: dict[str, Callable[[Rows], str]] = {
    "a.csv": delimited(","),
    "b.csv": delimited("\t"),
    "c.csv": delimited(";"),
    "d.txt": delimited("|"),
    "e.tsv": delimited("\t"),
    "f.jsonl": json_lines,
    "prompts.txt": lines,
    "prompts.csv": delimited(","),
    "labels.csv": delimited(","),
}


def table(name: str, rng: random.Random) -> Rows:
    head = ["image", "caption"]
    if name.startswith("prompts"):
        head = ["image", "prompt"]
    rows = [[f"img/{number}.jpg", f"a {rng.choice(WORDS)} {number}"] for number in range(4)]
    return [head, *rows]


def damaged_rows(rows: Rows, rng: random.Random) -> Rows:
    """Duplicate rows, swap columns or remove cells, as people and programs do."""
    rows = [list(row) for row in rows]
    kind = rng.choice(("none", "double", "swap", "swap all", "missing", "empty", "reorder"))
    place = rng.randrange(1, len(rows))
    if kind == "double":
        rows.insert(place, list(rows[place]))
    elif kind == "swap":
        rows[place].reverse()
    elif kind == "swap all":
        rows = [row[::-1] for row in rows]
    elif kind == "missing":
        rows[place] = rows[place][:1]
    elif kind == "empty":
        rows[place][1] = ""
    elif kind == "reorder":
        body = rows[1:]
        rng.shuffle(body)
        rows[1:] = body
    return rows


def damaged_bytes(text: str, rng: random.Random) -> bytes:
    """Change the encoding, mix line endings, or truncate."""
    if rng.random() < 0.4:
        text = "".join(
            letter if letter != "\n" else rng.choice(("\n", "\r\n", "\n\n")) for letter in text
        )
    encoding = rng.choice(("utf-8", "utf-8", "utf-8-sig", "utf-16", "cp1252"))
    content = text.encode(encoding)
    if rng.random() < 0.4:
        content = content[: rng.randrange(len(content))]
    return content


def expected_rows(content: bytes, name: str) -> int | None:
    """Return the number of rows from counting lines, or None if the bytes are not text in any
    supported encoding."""
    for encoding in ("utf-16",) if content[:2] == b"\xff\xfe" else ("utf-8-sig", "cp1252"):
        try:
            filled = [line for line in content.decode(encoding).split("\n") if line.strip()]
        except UnicodeDecodeError:
            continue
        has_header = not name.endswith("jsonl") and name != "prompts.txt"
        return len(filled) - has_header
    return None


def read(path: Path, name: str) -> int:
    """Return the number of rows that are read."""
    if name.startswith("prompts"):
        return len(read_prompts(path).prompts)
    if name.startswith("labels"):
        data = open_data("manifest", path, labels=["caption"])
        assert isinstance(data, ImageData)
        return len(data)
    data = open_data("captions", path)
    assert isinstance(data, ImageData)
    # Rows with the same image are its captions. An empty caption is a row for an image without
    # captions.
    further: Sequence[tuple[str, ...]] = data.more_captions or [()] * len(data)
    return len(data) + sum(map(len, further))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("damages")
    images(folder / "img")
    return folder


@pytest.mark.parametrize("part", range(8))
def test_damage_never_shortens_a_table_silently(part: int, folder: Path) -> None:
    refusals = []
    for seed in range(25 * part, 25 * part + 25):
        rng = random.Random(seed)
        name = rng.choice(list(FORMS))
        rows = damaged_rows(table(name, rng), rng)
        path = folder / name
        path.write_bytes(damaged_bytes(FORMS[name](rows), rng))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                count = read(path, name)
            except InvalidInputError as error:
                refusals.append((seed, name.partition(".")[0], str(error)))
                continue
        expected = expected_rows(path.read_bytes(), name)
        assert expected is None or count >= expected or caught, (seed, count, expected)
    # The message names the file.
    assert all(stem in message for _, stem, message in refusals), refusals
