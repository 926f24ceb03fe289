"""Test that no damaged file is silently read as something else, for every kind of binary file and
of run that is read. `test_fuzz.py` damages texts that people write, and tests/data their tables.

Reading a damaged copy has one of these outcomes: "same" (the content is what was written or, for
files without a digest, what the file contains now), "refused" (one of our errors, which explains
what to do), "warned", or a failure (a different exception or different content). A crafted file
must be rejected.
"""

import random
import struct
import tempfile
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from vldebias import CalibratedProjection, load_edit
from vldebias.data import Embeddings, load_embeddings, save_embeddings
from vldebias.data.labels import Labels
from vldebias.data.tables import as_texts, column_of, read_table
from vldebias.errors import InvalidInputError, VldebiasError, VldebiasWarning
from vldebias.report.result import Result
from vldebias.study.run_files import verify, write_manifest
from vldebias.training import loop
from vldebias.utils.pictures import decode

COMMITTED = Path(__file__).parents[2] / "eval" / "results" / "quickstart.json"


@dataclass(frozen=True)
class Kind:
    """Describe a kind of file.

    Attributes:
        make: Write a valid file or folder, and return what is opened.
        load: Return the content, for a comparison with ==.
        digest: Whether changed values must be rejected or trigger a warning.
        crafted: Description -> file that must be rejected.
    """

    make: Callable[[Path], Path]
    load: Callable[[Path], Any]
    digest: bool = True
    crafted: Callable[[Path], dict[str, Path]] | None = None


# ---- edits


def make_projection(folder: Path) -> Path:
    pairs = torch.randn(4, 2, 24, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return CalibratedProjection(lam=4.0).fit(pairs, pairs[:2, 0]).save_pretrained(folder)


def read_edit(path: Path) -> Any:
    edit = load_edit(path)
    tensors = {name: getattr(edit, name).tolist() for name in edit.axes}
    return type(edit), tensors, edit.settings(), edit.provenance


# ---- embeddings, pictures, results, states


def make_embeddings(path: Path) -> Path:
    features = np.random.default_rng(0).normal(size=(30, 8)).astype(np.float32)
    labels = {"sex": np.array(["female", "male", ""] * 10), "age": np.arange(30) % 4}
    texts = {
        f"a photo of {i}": torch.randn(8, generator=torch.Generator().manual_seed(i))
        for i in range(5)
    }
    path.mkdir(parents=True)
    return save_embeddings(
        path / "features.npz", Embeddings.from_arrays(features, labels=labels), texts
    )


def read_embeddings(path: Path) -> Any:
    embeddings, texts = load_embeddings(path)
    columns = {
        name: (labels.names, labels.codes.tolist()) for name, labels in embeddings.labels.items()
    }
    rows = None if texts is None else {name: row.tolist() for name, row in texts.items()}
    return embeddings.features.tolist(), embeddings.ids, columns, rows


def npz_bombs(folder: Path) -> dict[str, Path]:
    """Return archives whose headers claim that they contain something other than features."""

    def archive(name: str, dtype: str, shape: str, body: bytes = b"") -> Path:
        described = dtype if dtype.startswith("[") else repr(dtype)
        header = f"{{'descr': {described}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
        path = folder / f"{name}.npz"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr(
                "features.npy",
                b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + body,
            )
        return path

    infinite = folder / "infinite.npz"
    np.savez(infinite, features=np.array([[1.0, np.inf], [0.0, 1.0]], np.float32))
    return {
        "rows": archive("rows", "<f4", "(1000000000000, 512)"),
        "objects": archive("objects", "|O", "(2, 2)"),
        "negative": archive("negative", "<f4", "(-3, 4)"),
        "structured": archive("structured", "[('a', '<f4')]", "(2,)"),
        "shorter than it says": archive("bomb", "<f4", "(500000, 512)", bytes(1 << 20)),
        "infinite values": infinite,
    }


def make_parquet(path: Path) -> Path:
    path.mkdir(parents=True)
    columns = {"image": [f"{i}.png" for i in range(99)], "gender": ["female", "male", "male"] * 33}
    pq.write_table(pa.table(columns), path / "labels.parquet", write_page_checksum=True)
    return path / "labels.parquet"


def read_labels(path: Path) -> Any:
    """Read a table as callers do: a text column and a label column."""
    table = read_table(path)
    labels = Labels.from_column(column_of(table, "gender", path), None, "gender")
    return as_texts(column_of(table, "image", path), "image"), labels.names, labels.codes.tolist()


def make_picture(path: Path) -> Path:
    path.mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 255, (24, 24, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path / "photo.png")
    return path / "photo.png"


def read_picture(path: Path) -> Any:
    """Return the pixels. Callers expect an OSError for an unreadable image, count it and
    continue."""
    try:
        return decode(path).tobytes()
    except OSError as error:
        raise InvalidInputError(str(error)) from None


def make_run(path: Path) -> Path:
    path.mkdir(parents=True)
    Result.read(COMMITTED).write(path / "result.json")
    write_manifest(path)
    return path


def read_run(path: Path) -> Any:
    """Read the result in a folder that is unchanged since its run."""
    differences = verify(path)
    if any(differences.values()):
        raise InvalidInputError(f"{path}: {differences}")
    return Result.read(path / "result.json").model_dump_json()


def make_state(path: Path) -> Path:
    path.mkdir(parents=True)
    torch.manual_seed(0)
    module = torch.nn.Linear(6, 4)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    module(torch.randn(5, 6)).square().sum().backward()
    optimizer.step()
    state = {
        "format_version": 1,
        "step": 1,
        "identity": "{}",
        "history": [],
        "tensors": dict(module.named_parameters()),
        "average": None,
    }
    torch.save({**state, "optimizer": optimizer.state_dict(), "scaler": {}}, path / "state.pt")
    return path / "state.pt"


def read_state(path: Path) -> str:
    """Return its entire content as text."""
    with torch.no_grad():
        return str(loop.read_state(path))


KINDS: dict[str, Kind] = {
    "projection": Kind(make_projection, read_edit),
    "training state": Kind(make_state, read_state),
    "embeddings": Kind(make_embeddings, read_embeddings, crafted=npz_bombs),
    "table in parquet": Kind(make_parquet, read_labels),
    "run": Kind(make_run, read_run),
    "picture": Kind(make_picture, read_picture, False),
}


# ---- damage

RENAMED = (
    (b'"F64"', b'"I64"'),
    (b'"F32"', b'"I32"'),
    (b"<f4", b"<i4"),
    (b"<f8", b"<i8"),
    (b"float", b"FLOAT"),
)


def damaged(content: bytes, rng: random.Random) -> bytes:
    """Draw one to three changes: bits are flipped, bytes are cut, doubled, zeroed or exchanged, or
    a type in a header is changed."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if not data:
            break
        start, end = sorted((rng.randrange(len(data)), rng.randrange(len(data))))
        end = min(end, start + 64)
        match rng.choice(("flip", "flip", "cut", "end", "double", "noise", "zeros", "type")):
            case "flip":
                data[start] ^= 1 << rng.randrange(8)
            case "cut":
                del data[start:end]
            case "end":
                del data[start:]
            case "double":
                data[start:start] = data[start:end]
            case "noise":
                data[start:end] = rng.randbytes(end - start)
            case "zeros":
                data[start:end] = bytes(end - start)
            case "type":
                data = data.replace(
                    *rng.choice([pair for pair in RENAMED if pair[0] in data] or RENAMED)
                )
    return bytes(data)


def opened(kind: Kind, path: Path, sound: Any) -> str:
    """Return the outcome of reading one file."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            read = kind.load(path)
        except VldebiasError:
            return "refused"
        except Exception as error:
            return f"{type(error).__name__}: {str(error)[:120]}"
    if not kind.digest or read == sound:
        return "same"
    return (
        "warned"
        if any(issubclass(warning.category, VldebiasWarning) for warning in caught)
        else "other content"
    )


def tried(kind: Kind, tries: int, seed: object) -> Counter[str]:
    """Return the outcomes of reading this many damaged copies, followed by those of the crafted
    ones."""
    rng = random.Random(str(seed))
    ends = Counter[str]()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        path = kind.make(folder / "sound")
        sound = kind.load(path)
        files = [path] if path.is_file() else sorted(path.rglob("*"))
        contents = {
            file: file.read_bytes() for file in files if file.is_file() and file.suffix != ".md"
        }
        for _ in range(tries):
            file = rng.choice(list(contents))
            is_swapped = len(contents) > 1 and rng.random() < 0.05  # one file in place of another
            file.write_bytes(
                contents[rng.choice(list(contents))] if is_swapped else damaged(contents[file], rng)
            )
            ends[opened(kind, path, sound)] += 1
            file.write_bytes(contents[file])
        for title, file in (kind.crafted(folder) if kind.crafted else {}).items():
            end = opened(kind, file, None)
            ends[end if end == "refused" else f"{title}: {end}"] += 1
    return ends


def failures(ends: Counter[str]) -> Counter[str]:
    """Return the exceptions that are not ours, and the content that changed silently."""
    return Counter(
        {end: count for end, count in ends.items() if end not in ("same", "refused", "warned")}
    )


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("files", [12, pytest.param(400, marks=pytest.mark.slow)])
def test_damaged_files_are_rejected_or_read_unchanged(name: str, files: int) -> None:
    ends = tried(KINDS[name], files, files)
    assert ends.total() >= files
    assert not failures(ends)
    assert ends["refused"] > 0
