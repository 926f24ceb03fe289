"""Randomly damage files from other tools: the reader must raise an error, warn, or return a
complete result."""

import json
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from brought import images

from apps.audit.caption_texts import read_captions
from apps.runs.listing import list_runs
from apps.shares.task import SharesTask
from vldebias.cli.rerank import _read
from vldebias.data import ImageData, open_data
from vldebias.data.prompt_file import read_prompts
from vldebias.errors import InvalidInputError, VldebiasError

WORDS = ("nurse", "pilot", "Köchin", "judge", "café owner", "farmer", "tired man", "niño")
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


def read_points(path: Path) -> int:
    return sum(map(len, _read(path, {"query": "query"}, (), None).values()))


def read_images(path: Path) -> int:
    data = open_data("captions", path)
    assert isinstance(data, ImageData)
    return len(data)


def read_judged(path: Path) -> int:
    task = SharesTask.build(
        {"prompt": "data.prompt", "value": "data.gender", "values": ["female", "male"]}
    )
    return task.model_copy(update={"resamples": 50}).measure(path)[0].provenance.n["images"]


def read_runs(path: Path) -> int:
    listed = list_runs(path.parent)
    for reason in listed.unreadable.values():
        raise InvalidInputError(reason)
    return len(listed.rows)


FORMATS: dict[str, tuple[Written, Callable[[Path], int]]] = {
    "points.json": (qdrant, read_points),
    "civitai.json": (civitai, lambda path: len(read_prompts(path).prompts)),
    "batch.jsonl": (
        batch,
        lambda path: len(read_prompts(path, "body.messages.1.content").prompts),
    ),
    "meta_cap.json": (meta_cap, read_images),
    "captions.json": (meta_cap, lambda path: len(read_captions(path))),
    "infotexts.txt": (infotexts, lambda path: len(read_prompts(path).prompts)),
    "options.txt": (options, lambda path: len(read_prompts(path).prompts)),
    "judged.jsonl": (judged, read_judged),
    "result.json": (runs, read_runs),
}


def damaged_records(rows: Records, rng: random.Random) -> Records:
    """Duplicate, reorder or remove records and values, or change their kind."""
    kind = rng.choice(("none", "double", "reorder", "missing", "empty", "number", "object", "long"))
    place = rng.randrange(len(rows))
    key = rng.choice(("text", "group"))
    if kind == "double":
        rows.insert(place, {**rows[place], "name": "0.jpg" if place else "1.jpg"})
    elif kind == "reorder":
        rng.shuffle(rows)
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
        return text.encode(rng.choice(("utf-8-sig", "utf-16", "cp1252"))), False
    if kind == "lines":
        return text.replace("\n", "\r\n").encode(), False
    if kind == "cut line":
        lines = text.split("\n")
        return "\n".join(lines[: rng.randrange(len(lines) + 1)]).encode(), True
    content = bytearray(text.encode())
    if kind == "cut":
        return bytes(content[: rng.randrange(len(content))]), True
    if kind == "byte":
        content[rng.randrange(len(content))] = rng.randrange(256)
        return bytes(content), True
    return bytes(content), False


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("formats")
    images(folder)
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


@pytest.mark.parametrize("part", range(8))
def test_damage_never_shortens_a_file_silently(part: int, folder: Path, tmp_path: Path) -> None:
    ends = {"read": 0, "refused": 0, "refused without words": 0}
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
                ends["refused" if str(error).strip() else "refused without words"] += 1
                continue
            finally:
                path.unlink()
        ends["read"] += 1
        # Truncated files lost their records before they were read. JSON documents raise an error,
        # and all remaining lines are read.
        if may_lose:
            filled = [line for line in content.split(b"\n") if line.strip()]
            expected = len(filled) if name.endswith("jsonl") or name == "options.txt" else 1
        else:
            # Each method of a run appears once.
            methods = {row["name"] for row in rows}
            expected = len(methods if name == "result.json" else rows)
        assert count >= expected or caught, (seed, name, count, expected)
    assert ends["read"] > 3
    assert ends["refused"] > 1
    assert ends["refused without words"] == 0
