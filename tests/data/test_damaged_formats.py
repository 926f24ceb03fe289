"""Randomly damage tables, lists and files of other tools: the reader must raise an error, warn, or
return a complete result."""

import csv
import io
import json
import random
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from brought import images

from apps.shares.task import SharesTask
from vldebias.cli.rerank import _read
from vldebias.data import ImageData, open_data
from vldebias.data.prompt_file import read_prompts
from vldebias.errors import InvalidInputError, VldebiasError
from vldebias.report.runs import read_runs

WORDS = ("nurse", "pilot", "Köchin", "judge", "café owner", "farmer", "old, tired man", "niño")
GROUPS = ("female", "male", "N/A", "cannot determine")
Records = list[dict[str, Any]]
N = 8  # records per undamaged file


def records(rng: random.Random) -> Records:
    rows: Records = []
    for number in range(N):
        text = f"a {rng.choice(WORDS)} {number}"
        group = GROUPS[number % 2] if number < 6 else rng.choice(GROUPS)
        rows.append({"name": f"{number}.jpg", "text": text, "group": group, "hit": number % 2})
    return rows


# Functions that write a file and count its readable records.
Written = Callable[[Records], str]


def qdrant(rows: Records) -> str:
    points = []
    for row in rows:
        payload = {"gender": row["group"], "prompt": row["text"]}
        points.append({"id": row["name"], "score": row["hit"], "payload": payload})
    return json.dumps({"result": {"points": points}, "status": "ok"})


def civitai(rows: Records) -> str:
    items = [{"id": row["name"], "meta": {"prompt": row["text"], "seed": 1}} for row in rows]
    return json.dumps({"items": items, "metadata": {"nextPage": "x"}}, indent=1)


def batch(rows: Records) -> str:
    lines = []
    for row in rows:
        body = {"messages": [{"role": "system", "content": "draw"}, {"content": row["text"]}]}
        lines.append(json.dumps({"custom_id": row["name"], "body": body}))
    return "\n".join(lines)


def meta_cap(rows: Records) -> str:
    # Read one entry at a time, because names may be repeated.
    entries = []
    for row in rows:
        entry = {"caption": row["text"], "tags": "x"}
        entries.append(f" {json.dumps(row['name'])}: {json.dumps(entry)}")
    return "{\n" + ",\n".join(entries) + "\n}"


def infotexts(rows: Records) -> str:
    written = []
    for row in rows:
        settings = "Steps: 20, Sampler: Euler a, Seed: 2, Size: 512x512"
        written.append(f"{row['text']}\nNegative prompt: child, {row['hit']}\n{settings}")
    return "\n\n".join(written)


def options(rows: Records) -> str:
    return "\n".join(f'--prompt "{row["text"]}" --steps {row["hit"] + 20}' for row in rows)


def judged(rows: Records) -> str:
    return "\n".join(
        json.dumps({"data": {"prompt": "a nurse", "gender": row["group"]}}) for row in rows
    )


def runs(rows: Records) -> str:
    figures = []
    for row in rows:
        names = {"task": "t", "metric": "gap", "method": row["name"], "better": "lower"}
        figures.append({**names, "value": 0.5, "interval": [0.4, 0.6], "n": {"images": 9}})
    fields: dict[str, Any] = {"protocols": [], "versions": {}, "commit": None, "seconds": None}
    return json.dumps({"name": "made", "figures": figures, **fields})


def delimited(separator: str, column: str = "caption") -> Written:
    def written(rows: Records) -> str:
        text = io.StringIO()
        writer = csv.writer(text, delimiter=separator, lineterminator="\n")
        writer.writerow(["image", column])
        # A missing text is a missing cell, and a name in place of the text is a swapped row.
        writer.writerows([value for value in named(row) if value is not None] for row in rows)
        return text.getvalue()

    return written


def named(row: dict[str, Any]) -> list[Any]:
    """Return the image and its text, in the order of the record."""
    return [row[key] for key in row if key in ("name", "text")]


def json_lines(rows: Records) -> str:
    objects = [dict(zip(("image", "caption"), named(row), strict=True)) for row in rows]
    return "".join(f"{json.dumps(row)}\n" for row in objects)


def lines(rows: Records) -> str:
    return "".join(f"{row['text']}\n" for row in rows)


def read_points(path: Path) -> int:
    return sum(map(len, _read(path, {"query": "query"}, (), None).values()))


def read_images(path: Path) -> int:
    data = open_data("captions", path)
    assert isinstance(data, ImageData)
    # Rows with the same image are its captions. An empty caption is a row for an image without
    # captions.
    return len(data) + sum(map(len, data.more_captions or ()))


def read_labels(path: Path) -> int:
    data = open_data("manifest", path, labels=["caption"])
    assert isinstance(data, ImageData)
    return len(data)


def read_texts(path: Path) -> int:
    return len(read_prompts(path).prompts)


def read_judged(path: Path) -> int:
    task = SharesTask.build(
        {"prompt": "data.prompt", "value": "data.gender", "values": ["female", "male"]}
    )
    return task.model_copy(update={"resamples": 50}).measure(path)[0].provenance.n["images"]


def read_listed(path: Path) -> int:
    runs, unreadable = read_runs([path.parent])
    for reason in unreadable.values():
        raise InvalidInputError(reason)
    return sum(len(run.shares) for run in runs)


FORMATS: dict[str, tuple[Written, Callable[[Path], int]]] = {
    "points.json": (qdrant, read_points),
    "civitai.json": (civitai, read_texts),
    "batch.jsonl": (
        batch,
        lambda path: len(read_prompts(path, "body.messages.1.content").prompts),
    ),
    "meta_cap.json": (meta_cap, read_images),
    "infotexts.txt": (infotexts, read_texts),
    "options.txt": (options, read_texts),
    "judged.jsonl": (judged, read_judged),
    "result.json": (runs, read_listed),
    "a.csv": (delimited(","), read_images),
    "b.csv": (delimited("\t"), read_images),
    "c.csv": (delimited(";"), read_images),
    "d.txt": (delimited("|"), read_images),
    "e.tsv": (delimited("\t"), read_images),
    "f.jsonl": (json_lines, read_images),
    "labels.csv": (delimited(","), read_labels),
    "prompts.csv": (delimited(",", "prompt"), read_texts),
    "prompts.txt": (lines, read_texts),
}
TABLES = ("a.csv", "b.csv", "c.csv", "d.txt", "e.tsv", "labels.csv", "prompts.csv")
# The ends of formats in which every line that is left is a record or the names of columns.
LINES = ("jsonl", "options.txt", "prompts.txt", *TABLES)


def damaged_records(rows: Records, rng: random.Random) -> Records:
    """Duplicate, reorder or remove records and values, or change their kind."""
    kinds = ["none", "double", "reorder", "missing", "empty", "number", "object", "long"]
    kind = rng.choice([*kinds, "swap", "swap all"])
    place = rng.randrange(len(rows))
    key = rng.choice(("text", "group"))
    if kind == "double":
        rows.insert(place, {**rows[place], "name": "0.jpg" if place else "1.jpg"})
    elif kind == "reorder":
        rng.shuffle(rows)
    elif kind.startswith("swap"):
        for number in range(len(rows)) if kind == "swap all" else [place]:
            rows[number] = dict(reversed(rows[number].items()))
    values: dict[str, Any] = {"missing": None, "empty": "", "number": 7, "object": {"a": [1]}}
    values["long"] = 'x, "y"\nSteps: and {z'
    if kind in values:
        rows[place][key] = values[kind]
    return rows


def damaged_bytes(text: str, rng: random.Random) -> tuple[bytes, bool]:
    """Change the encoding, the line endings or a byte, or truncate the data. Return whether records
    may be lost."""
    kind = rng.choice(("none", "none", "encoding", "lines", "cut", "byte", "cut line"))
    if kind == "encoding":
        content = text.encode(rng.choice(("utf-8-sig", "utf-16", "cp1252")), "replace")
        size = rng.choice((len(content), rng.randrange(len(content))))
        return content[:size], size < len(content)
    if kind == "lines":
        ends = rng.choice((["\r\n"], ["\n", "\r\n"], ["\n", "\r\n", "\n\n"]))
        return re.sub("\n", lambda _: rng.choice(ends), text).encode(), False
    if kind == "cut line":
        lines = text.split("\n")
        return "\n".join(lines[: rng.randrange(len(lines) + 1)]).encode(), True
    array = bytearray(text.encode())
    if kind == "cut":
        return bytes(array[: rng.randrange(len(array))]), True
    if kind == "byte":
        array[rng.randrange(len(array))] = rng.randrange(256)
        return bytes(array), True
    return bytes(array), False


def filled_lines(content: bytes) -> int:
    encoding = "utf-16" if content[:2] == b"\xff\xfe" else "utf-8-sig"
    return sum(bool(line.strip()) for line in content.decode(encoding, "replace").split("\n"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("formats")
    images(folder, names=[f"{number}.jpg" for number in range(N)])
    return folder


@pytest.mark.parametrize("name", FORMATS)
def test_an_intact_file_is_read_completely(name: str, folder: Path, tmp_path: Path) -> None:
    write, read = FORMATS[name]
    path = (tmp_path if name == "result.json" else folder) / name
    rows = records(random.Random(0))
    path.write_text(write(rows))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert read(path) == N


@pytest.mark.parametrize("part", range(16))
def test_damage_never_shortens_a_file_silently(part: int, folder: Path, tmp_path: Path) -> None:
    ends = {"read": 0, "refused": 0, "refused without the file": 0}
    for seed in range(25 * part, 25 * part + 25):
        rng = random.Random(seed)
        name = list(FORMATS)[seed % len(FORMATS)]
        write, read = FORMATS[name]
        rows = damaged_records(records(rng), rng)
        content, may_lose = damaged_bytes(write(rows), rng)
        path = (tmp_path if name == "result.json" else folder) / name
        path.write_bytes(content)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                count = read(path)
            except VldebiasError as error:
                ends["refused" if path.stem in str(error) else "refused without the file"] += 1
                continue
            finally:
                path.unlink()
        ends["read"] += 1
        # Truncated files lost their records before they were read. JSON documents raise an error,
        # and all remaining lines are read. An empty line is no prompt.
        if may_lose or name == "prompts.txt":
            expected = filled_lines(content) - (name in TABLES) if name.endswith(LINES) else 1
        else:
            # Each method of a run appears once.
            methods = {row["name"] for row in rows}
            expected = len(methods if name == "result.json" else rows)
        assert count >= expected or caught, (seed, name, count, expected)
    assert ends["read"] > 3
    assert ends["refused"] > 1
    assert ends["refused without the file"] == 0
