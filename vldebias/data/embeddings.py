"""Image embeddings with labels, all that an evaluation needs: from a model's cache, from arrays, from your own file.

Keys of a .npz or .safetensors file, for n images, k names and p prompts:

    features         (n, d) floats; `image` is read as well
    ids              (n,) strings; default: "0", "1", ...
    captions         (n,) strings
    label.<column>   (n,) strings ("" is unknown), or integers, each a value of its own
    names.<column>   (k,) strings: what the integers 0 .. k - 1 of that column mean; -1 is unknown then
    attributes       (n, a) numbers, above 0 where an attribute holds: a column "no" / "yes" for each; NaN is unknown
    attribute_names  (a,) strings
    text, prompts    (p, d) floats and (p,) strings: text embeddings of the same space, for evaluation without a model
    about            a JSON object

Strings are numpy strings, or UTF-8 JSON as uint8: `np.frombuffer(json.dumps(ids).encode(), dtype=np.uint8)`. A .npz
file has checksums; a .safetensors file by `save_embeddings` has a SHA-256 in its header, one by others is warned of.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from vldebias.data.dataset import Columns
from vldebias.data.labels import UNKNOWN, Labels
from vldebias.data.unit_rows import Parts, Picked, RowNumbers, UnitRows
from vldebias.errors import InvalidInputError, warn
from vldebias.files import add_tensors, write_atomically

Array = NDArray[Any]
Keys = Mapping[str, str | Sequence[str]]
KEYS = ("features", "ids", "captions", "attributes", "attribute_names", "text", "prompts", "about")
COLUMNS = ("label.", "names.")
SEVERAL = ("text", "prompts")
SAME = 1e-3  # two embeddings of one prompt, relative to their length
_ROWS = 1 << 14  # that are looked through at once: features may be mapped
_DIGEST = "sha256"  # in the header of a .safetensors file
_END = 22  # bytes of the record that ends a zip archive without a comment
_DEFLATE = 1032  # the most that one byte of a zip archive can stand for

# What zipfile, zlib and numpy raise for a file that is cut, damaged, encrypted or no archive at all.
_UNREADABLE = (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError)


@dataclass(frozen=True, eq=False, repr=False)
class Embeddings(Columns):
    """n image embeddings and what is known about each image.

    Attributes:
        features: (n, d) floats as stored, not normalised, perhaps memory-mapped and of half precision; an array, or
            what gives one for a slice.
        ids: n names of images; those that have none are numbered.
        labels: column -> Labels of n rows.
        captions: n texts, or none.
        about: where they come from: data set, split, model, fingerprints, preprocessing, images that were skipped.

    Raises:
        InvalidInputError: shapes or lengths that do not fit.
    """

    features: Any
    ids: Sequence[str]
    labels: Mapping[str, Labels]
    captions: tuple[str, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.features.ndim != 2 or self.features.dtype.kind != "f":
            raise InvalidInputError(
                f"features: expected floats (n, d), got {self.features.shape} of {self.features.dtype}"
            )
        self._check_lengths(ids=len(self.ids))

    @classmethod
    def of(
        cls,
        features: Any,
        labels: Mapping[str, Any] | None = None,
        *,
        ids: Sequence[Any] | None = None,
        captions: Sequence[str] = (),
        about: Mapping[str, Any] | None = None,
    ) -> Embeddings:
        """Embeddings from arrays as people have them: numpy, torch, lists.

        Args:
            features: (n, d) numbers of both signs, or `Shards` of them; bfloat16 becomes float32, whole numbers (int8)
                float64.
            labels: column -> n strings, integers or booleans; see `Labels.of_array`.
            ids: n names; default: "0", "1", ...
            captions: n texts.
            about: where they come from.

        Raises:
            InvalidInputError: shapes, types or lengths that do not fit; the message names the column.
        """
        try:
            rows: Any = _plain(features.detach().cpu()) if isinstance(features, Tensor) else features
            rows = rows if isinstance(rows, Parts) else np.asarray(rows)
            signed = rows.dtype.kind in "fiO"  # pixels, masks, spectra and texts would become floats without a word
            rows = rows.astype(np.float64) if signed and rows.dtype.kind != "f" else rows
        except (TypeError, ValueError) as error:
            came = type(features).__name__
            raise InvalidInputError(f"features: expected numbers (n, d), got {came} ({error})") from None
        if not signed:
            raise InvalidInputError(
                f"features: expected numbers (n, d), got {rows.shape} of {rows.dtype}; give what the image tower of a "
                "model makes of the images: real numbers of both signs, as floats"
            )
        columns = {}
        for name, values in (labels or {}).items():
            try:
                columns[name] = Labels.of_array(values)
            except InvalidInputError as error:
                raise InvalidInputError(f"labels[{name!r}]: {str(error).removeprefix('labels: ')}") from None
        names = RowNumbers(len(rows) if rows.ndim else 0) if ids is None else tuple(map(str, ids))
        return cls(rows, names, columns, tuple(captions), dict(about or {}))

    def __len__(self) -> int:
        return len(self.features)

    def __repr__(self) -> str:
        captions = ", captions" if self.captions else ""
        return f"Embeddings({len(self)} images of width {self.dim}, columns {list(self.labels)}{captions})"

    @property
    def dim(self) -> int:
        """Width d."""
        return int(self.features.shape[1])

    def normalised(self) -> Tensor:
        """L2-normalised features (n, d) in float32.

        Raises:
            InvalidInputError: a row that is not finite or zero.
        """
        return self.unit.whole()

    @property
    def unit(self) -> UnitRows:
        """The same rows, read and normalised a block at a time; some rows of shards are read where these lie."""
        held = self.features
        if isinstance(held, Picked) and isinstance(held.features, Parts):
            return UnitRows(held.features, RowNumbers(len(held.features), before="row "), held.index)
        return UnitRows(held, self.ids)

    def without(self, unknown: Any) -> Embeddings:
        """The same images with one value of labels, or several, as unknown in every column (`Labels.without`)."""
        labels = {column: one.without(unknown) for column, one in self.labels.items()}
        changed = [column for column, one in self.labels.items() if len(one.names) > len(labels[column].names)]
        if not changed:
            return self
        marks = {name for column in changed for name in self.labels[column].names if name not in labels[column].names}
        return replace(self, labels=labels, about={**self.about, "values read as unknown": sorted(marks)})

    def __getitem__(self, rows: ArrayLike | slice) -> Embeddings:
        """Some of the rows, in the given order: a slice, indices or a mask."""
        index, columns = self._some(rows)
        return replace(self, features=self.features[index], **columns)

    def picked(self, rows: ArrayLike | slice) -> Embeddings:
        """The same rows as `[rows]`, of which the features are copied when they are read, and no more than is read."""
        index, columns = self._some(rows)
        held = self.features
        lazy = Picked(held.features, held.index[index]) if isinstance(held, Picked) else Picked(held, index)
        return replace(self, features=lazy, **columns)


def _plain(tensor: Tensor) -> Array:
    """As numpy, which knows no bfloat16 and nothing smaller."""
    known = not tensor.is_floating_point() or tensor.dtype in (torch.float16, torch.float32, torch.float64)
    return (tensor if known else tensor.float()).numpy()


# ---- files -------------------------------------------------------------------------------------------------


def load_embeddings(path: str | Path, *, keys: Keys | None = None) -> tuple[Embeddings, dict[str, Tensor] | None]:
    """Image embeddings of a file, and its text embeddings, prompt -> (d,), if it has some.

    Args:
        path: a .npz or .safetensors file with the keys of `vldebias.data.embeddings`. Features of a .safetensors
            file are mapped into memory; bfloat16 is read as float32.
        keys: where the file has other names, ours -> theirs: {"features": "image_emb", "label.gender": "male"}. Those
            of `text` and `prompts` may be lists, which are joined in their order.

    Raises:
        InvalidInputError: no such file, another format, damage, pickled objects, keys that are missing or of other
            types, lengths or widths that differ, features that are not finite, a prompt with two embeddings.
    """
    path = Path(path)
    try:
        fields, ignored = _fields(path, keys or {})
        features = fields["features"]
        n = len(features) if features.ndim else 0
        about = {}
        if "about" in fields:
            text = fields["about"]
            about = _parsed(np.frombuffer(str(text).encode(), np.uint8) if text.dtype.kind == "U" else text, "about")
            if not isinstance(about, dict):
                raise InvalidInputError(f"'about': expected a JSON object, got {type(about).__name__}")
        about |= {"file": str(path)} | ({"ignored": ignored} if ignored else {})
        ids = fields.strings("ids") if "ids" in fields else RowNumbers(n)
        embeddings = Embeddings(features, ids, fields.labels(), fields.strings("captions"), about)
        bad = np.concatenate([~np.isfinite(features[i : i + _ROWS]).all(axis=1) for i in range(0, n or 1, _ROWS)])
        if bad.any():
            first = int(bad.argmax())
            raise InvalidInputError(
                f"features: {int(bad.sum())} of {n} rows are infinite or NaN, the first of them row {first} "
                f"({ids[first]!r}); expected finite numbers: leave these images out or embed them again"
            )
        return embeddings, fields.texts(embeddings.dim)
    except InvalidInputError as error:
        raise InvalidInputError(f"{path}: {error}") from None


def save_embeddings(path: str | Path, embeddings: Embeddings, texts: Mapping[str, Tensor] | None = None) -> Path:
    """Write `embeddings`, and `texts` (prompt -> (d,)) with them, as `load_embeddings` reads them; atomically.

    Raises:
        InvalidInputError: neither .npz nor .safetensors, or a column whose name such a file cannot hold.
    """
    path = Path(path)
    _check_suffix(path)
    unnamable = [column for column in embeddings.labels if "\0" in column]
    if unnamable:  # a zip archive ends a name there
        raise InvalidInputError(f"{path}: expected column names without a NUL character, got {unnamable}; rename them")
    fields = {
        "features": np.ascontiguousarray(embeddings.features),
        "ids": _json(list(embeddings.ids)),
        "about": _json(dict(embeddings.about)),
    }
    if embeddings.captions:
        fields["captions"] = _json(list(embeddings.captions))
    for column, labels in embeddings.labels.items():
        fields |= {f"label.{column}": labels.codes, f"names.{column}": _json(list(labels.names))}
    if texts:
        rows = torch.stack([row.detach().cpu().float() for row in texts.values()])
        fields |= {"text": rows.numpy(), "prompts": _json(list(texts))}
    if path.suffix == ".safetensors":
        from safetensors.torch import save

        tensors = {name: torch.from_numpy(np.array(field)) for name, field in fields.items()}
        return write_atomically(path, save(tensors, metadata={_DIGEST: _digest(tensors)}))
    file = io.BytesIO()
    np.savez(file, **fields)  # type: ignore[arg-type]
    return write_atomically(path, file.getvalue())


def _check_suffix(path: Path) -> None:
    if path.suffix not in (".npz", ".safetensors"):
        raise InvalidInputError(f"{path}: expected a file that ends in .npz or .safetensors")


def _json(value: Any) -> Array:
    return np.frombuffer(json.dumps(value, ensure_ascii=False, default=str).encode(), dtype=np.uint8)


def _fields(path: Path, keys: Keys) -> tuple[_Fields, list[str]]:
    """The arrays under our names, and the names of those that stand for nothing."""
    strangers = [ours for ours in keys if ours not in KEYS and not ours.startswith(COLUMNS)]
    if strangers:
        raise InvalidInputError(f"keys: expected {', '.join(KEYS)}, label.* or names.*, got {strangers}")
    _check_suffix(path)
    if not path.is_file():
        raise InvalidInputError("no such file")
    try:
        names, read = _open_safetensors(path) if path.suffix == ".safetensors" else _open_npz(path)
    except _UNREADABLE as error:
        raise InvalidInputError(f"cannot be read ({error}); expected a {path.suffix} file of arrays") from None
    sources: dict[str, str | Sequence[str]] = {name: name for name in names if name in KEYS or name.startswith(COLUMNS)}
    if "features" not in names and "image" in names:
        sources["features"] = "image"
    sources |= keys
    theirs = {ours: [name] if isinstance(name, str) else list(name) for ours, name in sources.items()}
    used = {name for parts in theirs.values() for name in parts}
    missing = sorted(used - set(names))
    if missing or "features" not in sources:
        raise InvalidInputError(
            f"expected an array {missing[0] if missing else 'features'!r}, found {sorted(names)}; "
            "say what is what with keys={'features': ...}"
        )
    fields = _Fields({ours: _joined(ours, [read(name) for name in parts]) for ours, parts in theirs.items()})
    return fields, sorted(set(names) - used)


def _joined(key: str, arrays: Sequence[Array]) -> Array:
    if len(arrays) == 1:
        return arrays[0]
    if key not in SEVERAL:
        raise InvalidInputError(f"keys: expected one name for {key!r}, got {len(arrays)}; only {SEVERAL} are joined")
    if key == "prompts":
        return np.array([text for array in arrays for text in _Fields({key: array}).strings(key)])
    try:
        return np.concatenate(arrays)
    except ValueError as error:
        raise InvalidInputError(f"{key!r}: {error}") from None


def _open_npz(path: Path) -> tuple[list[str], Callable[[str], Array]]:
    """Names of the arrays in a file, and a function that reads one."""
    with path.open("rb") as file:
        if file.read(6) == b"\x93NUMPY":
            raise ValueError("it holds one array without a name, as np.save writes it")
    with zipfile.ZipFile(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        _check_directory(path, archive)

    def read(name: str) -> Array:
        try:
            with zipfile.ZipFile(path) as archive, archive.open(members[name]) as file:
                return _array(file, members[name], path.stat().st_size)
        except (*_UNREADABLE, MemoryError) as error:
            raise InvalidInputError(
                f"{name!r} cannot be read ({error}); expected numbers or strings. Python objects are never unpickled: "
                "store strings with np.array(list_of_str)"
            ) from None

    return list(members), read


def _check_directory(path: Path, archive: zipfile.ZipFile) -> None:
    """Refuse a damaged list of members, which has no checksum: a column could vanish from it, or under another name."""
    for info in archive.infolist():
        archive.open(info).close()  # compares the name with the one beside the content
    with path.open("rb") as file:
        file.seek(-_END, os.SEEK_END)
        end = file.read(_END)
    count, there = int.from_bytes(end[10:12], "little"), len(archive.infolist())
    if end.startswith(b"PK\5\6") and count not in (there, 0xFFFF):  # else a comment follows, or 64 bits count elsewhere
        raise zipfile.BadZipFile(f"{there} of {count} arrays are listed")


def _array(file: Any, member: zipfile.ZipInfo, archive_size: int) -> Array:
    """The array of a member, which holds as many bytes as its header declares: memory is asked for after this check."""
    version = np.lib.format.read_magic(file)
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = header(file)
    if not dtype.hasobject:
        declared = int(np.prod(shape, dtype=object)) * dtype.itemsize
        there = min(member.file_size, _DEFLATE * min(member.compress_size, archive_size)) - file.tell()
        if declared > there:
            raise ValueError(
                f"its header declares {shape} of {dtype}, {declared:,} bytes, and it has {max(there, 0):,}"
            )
    file.seek(0)
    return np.lib.format.read_array(file, allow_pickle=False)


def _open_safetensors(path: Path) -> tuple[list[str], Callable[[str], Array]]:
    from safetensors import SafetensorError, safe_open

    try:
        file = safe_open(path, framework="pt").__enter__()  # what it gives stays mapped for as long as it is used
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        stored = (file.metadata() or {}).get(_DIGEST)
    except SafetensorError as error:
        raise ValueError(str(error)) from None
    if stored is None:
        warn(
            f"{path}: has no digest, so that damage to its numbers goes unnoticed (a .npz file has its own); write it "
            "again with vldebias.data.save_embeddings(path, *vldebias.data.load_embeddings(path))"
        )
    elif stored != _digest(tensors):
        raise ValueError("damaged: its content has not the digest that was saved with it; fetch it or write it again")
    return list(tensors), lambda name: _plain(tensors[name])


def _digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, types, shapes and content, in the order of the names; mapped tensors are not copied."""
    total = hashlib.sha256()
    add_tensors(total, sorted(tensors.items()))
    return total.hexdigest()


def _parsed(array: Array, key: str) -> Any:
    try:
        return json.loads(array.tobytes())
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"{key!r}: expected UTF-8 JSON in an array of uint8 ({error})") from None


class _Fields(dict[str, Array]):
    """The arrays of a file under our names."""

    def strings(self, key: str) -> tuple[str, ...]:
        """A column of strings; none where the file has none."""
        if key not in self:
            return ()
        array, texts = self[key], None
        if array.ndim == 1 and array.dtype.kind == "U":
            return tuple(array.tolist())
        if array.ndim == 1 and array.dtype.kind == "S":
            try:
                return tuple(text.decode("utf-8") for text in array.tolist())
            except UnicodeDecodeError as error:
                raise InvalidInputError(f"{key!r}: expected strings, got bytes that are no UTF-8 ({error})") from None
        if array.ndim == 1 and array.dtype == np.uint8:
            texts = _parsed(array, key)
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise InvalidInputError(f"{key!r}: expected strings (n,), got {array.shape} of {array.dtype}")
        return tuple(texts)

    def labels(self) -> dict[str, Labels]:
        columns: dict[str, Labels] = {}
        if "attributes" in self:
            table, attributes = self["attributes"], self.strings("attribute_names")
            if table.ndim != 2 or table.dtype.kind not in "iufb" or table.shape[1] != len(attributes):
                raise InvalidInputError(
                    f"'attributes': expected numbers (n, {len(attributes)}), one column for each of 'attribute_names', "
                    f"got {table.shape} of {table.dtype}"
                )
            codes = np.where(np.isnan(table), UNKNOWN, table > 0).T
            columns = {name: Labels(row, ("no", "yes")) for name, row in zip(attributes, codes, strict=True)}
        for key, values in self.items():
            if key.startswith("label."):
                column = key.removeprefix("label.")
                names = self.strings(f"names.{column}") if f"names.{column}" in self else None
                try:
                    columns[column] = Labels.of_array(values, names)
                except InvalidInputError as error:
                    raise InvalidInputError(f"{key!r}: {error}") from None
        return columns

    def texts(self, dim: int) -> dict[str, Tensor] | None:
        if "text" not in self and "prompts" not in self:
            return None
        prompts = self.strings("prompts")
        rows = self.get("text", np.empty(0))
        if rows.shape != (len(prompts), dim) or rows.dtype.kind != "f" or not prompts:
            raise InvalidInputError(
                f"'text': expected floats ({len(prompts)}, {dim}), one row for each of 'prompts' and as wide as the "
                f"features, got {rows.shape} of {rows.dtype}"
            )
        texts: dict[str, Tensor] = {}
        for prompt, row in zip(prompts, torch.from_numpy(np.array(rows, dtype=np.float32)), strict=True):
            if prompt in texts and float((texts[prompt] - row).norm()) > SAME * float(row.norm()):
                raise InvalidInputError(f"'prompts': {prompt!r} is there twice with different embeddings")
            texts.setdefault(prompt, row)
        return texts
