"""Provide parsers for users' files, and files with arbitrary structure, for `test_fuzz.py`.

`test_damaged.py` changes bytes in valid files. Here, the structure itself is arbitrary: any YAML or
JSON value where a field is expected, any cell in a table, any header for tensors or a picture.
"""

from __future__ import annotations

import json
import struct
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st

from apps.shares.answers import AnnotationLog
from vldebias import CalibratedProjection, load_edit, load_prompts
from vldebias.data.tables import read_table
from vldebias.errors import VldebiasError
from vldebias.report.result import Result
from vldebias.study.suite import load_suite
from vldebias.utils.files import packaged
from vldebias.utils.pictures import decode

Read = Callable[[Path], Any]


@dataclass(frozen=True)
class Parser:
    """Describe how a file is read.

    Attributes:
        file: The file name.
        content: A strategy for the bytes to read.
        refusals: Errors that count as a proper rejection.
    """

    file: str
    read: Read
    content: st.SearchStrategy[bytes]
    refusals: tuple[type[Exception], ...] = (VldebiasError,)

    def tried(self, content: bytes) -> str:
        """Return the outcome of reading the content: "read", "refused", or a description of any
        other exception."""
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            path = Path(folder) / self.file
            path.write_bytes(content)
            try:
                self.read(path)
            except self.refusals as error:
                # A rejection without a message does not help the user.
                return "refused" if str(error).strip() else f"{type(error).__name__} without words"
            except Exception as error:
                return f"{type(error).__name__}: {str(error)[:200]}"
        return "read"


# ---- YAML and JSON

WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.floats(),
    WORDS,
    st.sampled_from(
        ["{concept}", "{}", "{concept", "a photo of a {concept}.", "male", "female", ""]
    ),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=8,
)
TEXTS = st.binary(max_size=300) | WORDS.map(str.encode)


def changed(sound: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Draw a valid structure in which a few values, at any depth, are arbitrary or missing."""
    return st.lists(st.tuples(st.integers(0, 10**6), VALUES | st.just(...)), max_size=3).map(
        lambda edits: with_edits(sound, edits)
    )


def with_edits(sound: Any, edits: list[tuple[int, Any]]) -> Any:
    """Return a copy in which the values at some places are replaced; `...` removes them."""
    copy = json.loads(json.dumps(sound))
    for number, value in edits:
        places = places_of(copy)
        if not places:
            continue
        holder, key = places[number % len(places)]
        if value is ...:
            del holder[key]
        else:
            holder[key] = value
    return copy


def places_of(value: Any) -> list[tuple[Any, Any]]:
    """Return every (holder, key) in a structure."""
    keys: list[Any] = []
    if isinstance(value, dict):
        keys = list(value)
    elif isinstance(value, list):
        keys = list(range(len(value)))
    places = []
    for key in keys:
        places += [(value, key), *places_of(value[key])]
    return places


def in_yaml(value: Any) -> bytes:
    return yaml.safe_dump(value, allow_unicode=True).encode(errors="replace")


def in_json(value: Any) -> bytes:
    return json.dumps(value).encode()


PROMPTS = yaml.safe_load(packaged("prompts")["gender"].read_text(encoding="utf-8"))
SUITE = yaml.safe_load(packaged("suites")["quickstart"].read_text(encoding="utf-8"))
RESULT = {
    "name": "made",
    "date": "2026-01-01",
    "command": None,
    "seconds": None,
    "platform": "",
    "versions": {},
    "commit": None,
    "protocols": [{"task": "t", "description": "d"}],
    "figures": [
        {
            "task": "t",
            "metric": "gap",
            "method": "none",
            "value": 0.5,
            "interval": [0.4, 0.6],
            "better": "lower",
            "n": {"images": 3},
        }
    ],
}
ANSWER = {"image": "none/a/0.png", "annotator": "anna", "attribute": "gender", "value": "male"}


# ---- tables

CELLS = st.one_of(WORDS, st.sampled_from(["", '"', "a,b", "1e999", "nan", "\n", "=1+1", "ä", "\0"]))


def delimited(mark: str) -> st.SearchStrategy[bytes]:
    """Draw rows of cells, possibly of unequal length, with or without a header."""
    rows = st.lists(st.lists(CELLS, max_size=4), max_size=5)
    return rows.map(lambda lines: "\n".join(mark.join(line) for line in lines).encode()) | TEXTS


JSON_LINES = st.lists(VALUES.map(in_json) | TEXTS, max_size=5).map(b"\n".join)


# ---- tensors and pictures


def sound_edit() -> bytes:
    """Return a saved edit."""
    import torch

    rows = torch.linspace(-1, 1, 48, dtype=torch.float64).reshape(3, 2, 8)
    with tempfile.TemporaryDirectory() as folder:
        CalibratedProjection(lam=4.0).fit(rows.sin(), rows[:2, 0]).save_pretrained(folder)
        return (Path(folder) / "projection.safetensors").read_bytes()


def with_header(header: Any, body: bytes) -> bytes:
    text = in_json(header)
    return struct.pack("<Q", len(text)) + text + body


def edits() -> st.SearchStrategy[bytes]:
    """Draw valid tensors with a changed header, including its settings, or an arbitrary header."""
    content = sound_edit()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    body = content[8 + length :]
    settings = {}
    for name, text in header["__metadata__"].items():
        try:
            settings[name] = json.loads(text)
        except ValueError:
            settings[name] = text
    inside = changed(settings).map(
        lambda made: {**header, "__metadata__": {k: texted(v) for k, v in made.items()}}
    )
    headers = changed(header) | inside
    return headers.map(lambda made: with_header(made, body)) | TEXTS


def texted(value: Any) -> str:
    """Format a setting as in a header."""
    return value if isinstance(value, str) else json.dumps(value)


def read_edit(path: Path) -> Any:
    edit = load_edit(path.parent)
    return edit.settings()


SIGNATURES = (
    b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
    b"\xff\xd8\xff\xe0\0\x10JFIF\0",
    b"\xff\xd8\xff\xe1\0\x20Exif\0\0II*\0",
    b"RIFF\x40\0\0\0WEBPVP8 ",
    b"RIFF\x40\0\0\0WEBPVP8X",
    b"GIF89a",
    b"BM",
    b"II*\0\x08\0\0\0",
    b"P6\n2 2\n255\n",
    b"",
)
PICTURES = st.tuples(st.sampled_from(SIGNATURES), st.binary(max_size=200)).map(b"".join)

PARSERS: dict[str, Parser] = {
    "prompts": Parser("made.yaml", load_prompts, changed(PROMPTS).map(in_yaml) | TEXTS),
    "suites": Parser("made.yaml", load_suite, changed(SUITE).map(in_yaml) | TEXTS),
    "tables, comma": Parser("made.csv", read_table, delimited(",")),
    "tables, tab": Parser("made.tsv", read_table, delimited("\t")),
    "tables, JSON": Parser("made.jsonl", read_table, JSON_LINES),
    "tables, parquet": Parser("made.parquet", read_table, TEXTS.map(lambda text: b"PAR1" + text)),
    "answers": Parser(
        "anna.jsonl",
        lambda path: AnnotationLog(path).answers(),
        st.lists(changed(ANSWER).map(in_json) | TEXTS, max_size=4).map(b"\n".join),
    ),
    "results": Parser("made.json", Result.read, changed(RESULT).map(in_json) | TEXTS),
    "edits": Parser("projection.safetensors", read_edit, edits()),
    "pictures": Parser("made.png", decode, PICTURES, (VldebiasError, OSError)),
}
