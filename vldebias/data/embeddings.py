"""Hold image embeddings with labels, from a model's cache, from arrays or from files.

Keys of a .npz file, for n images, k names and p prompts:

    features         (n, d) floats
    ids              (n,) strings; default: "0", "1", ...
    captions         (n,) strings
    label.<column>   (n,) strings ("" is unknown), or integers, each a value of its own
    names.<column>   (k,) strings: what the integers 0 .. k - 1 of that column mean; -1 is unknown
                     then
    text, prompts    (p, d) floats and (p,) strings: text embeddings of the same space, for
                     evaluation without a model
    about            a JSON object

Strings are numpy strings, or UTF-8 JSON as uint8:
`np.frombuffer(json.dumps(ids).encode(), dtype=np.uint8)`.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from vldebias.data.dataset import Columns
from vldebias.data.rows import RowNumbers, Shards, UnitRows, files_of
from vldebias.data.tables import Labels, as_texts, column_of, read_table
from vldebias.errors import InvalidInputError, need
from vldebias.files import write_atomically

Array = NDArray[Any]
Texts = dict[str, Tensor] | None
KEYS = ("features", "ids", "captions", "text", "prompts", "about")
COLUMNS = ("label.", "names.")
SAME = 1e-3  # two embeddings of one prompt, relative to their length
_END = 22  # bytes of the record that ends a zip archive without a comment

# What zipfile, zlib and numpy raise for a file that is cut, damaged, encrypted or no archive at
# all.
_BROKEN_ZIP = (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError)
_UNREADABLE = (OSError, ValueError, OverflowError, EOFError, TokenError, MemoryError, *_BROKEN_ZIP)


@dataclass(frozen=True, eq=False, repr=False)
class Embeddings(Columns):
    """Hold n image embeddings with the ids, labels and captions of their images.

    Attributes:
        features: (n, d) floats as stored, not normalised; an array, or `Shards`.
        ids: n names of images; images without names are numbered.
        labels: column -> Labels of n rows.
        captions: n texts, or none.
        about: where they come from, and which images were skipped.

    Raises:
        InvalidInputError: shapes or lengths that do not fit.
    """

    features: Any
    ids: Sequence[str]
    labels: Mapping[str, Labels]
    captions: tuple[str, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)
    name = "embeddings"

    def __post_init__(self) -> None:
        if (
            self.features.ndim != 2 or self.features.dtype.kind != "f"
        ):  # pixels and masks would become floats unseen
            raise InvalidInputError(
                f"features: expected floats (n, d), got {self.features.shape} of"
                f" {self.features.dtype}; give the output of the image tower of a model"
            )
        self._check_lengths()

    @classmethod
    def of(
        cls,
        features: Any,
        labels: Mapping[str, Any] | None = None,
        *,
        ids: Iterable[Any] | None = None,
        captions: Sequence[str] = (),
        about: Mapping[str, Any] | None = None,
    ) -> Embeddings:
        """Return embeddings from arrays: numpy, torch or lists.

        Args:
            features: (n, d) numbers, or `Shards`; bfloat16 becomes float32, whole numbers float64.
            labels: column -> n strings, integers or booleans; see `Labels.of_array`.
            ids: n names; default: "0", "1", ...

        Raises:
            InvalidInputError: shapes, types or lengths that do not fit; the message names the
                column.
        """
        try:
            if isinstance(features, Tensor):
                features = features.detach().cpu()
                features = features.float() if features.dtype == torch.bfloat16 else features
            rows: Any = features if isinstance(features, Shards) else np.asarray(features)
            rows = rows.astype(np.float64) if rows.dtype.kind in "iO" else rows
        except (TypeError, ValueError) as error:
            raise InvalidInputError(
                f"features: expected numbers (n, d), got {type(features)} ({error})"
            ) from None
        names = RowNumbers(len(rows) if rows.ndim else 0) if ids is None else tuple(map(str, ids))
        columns = {
            name: _column(f"labels[{name!r}]", values) for name, values in (labels or {}).items()
        }
        return cls(rows, names, columns, tuple(captions), dict(about or {}))

    def __len__(self) -> int:
        return len(self.features)

    def __repr__(self) -> str:
        captions = ", captions" if self.captions else ""
        return (
            f"Embeddings({len(self)} images of width {self.dim}, columns"
            f" {list(self.labels)}{captions})"
        )

    @property
    def dim(self) -> int:
        """Return the width d."""
        return int(self.features.shape[1])

    @property
    def unit(self) -> UnitRows:
        """Return the same rows, read and normalised a block at a time, by the runner of the shards
        if there is one."""
        held = self.features
        return held.unit if isinstance(held, Shards) else UnitRows(Shards([held]), self.ids)

    def without(self, unknown: Any) -> Embeddings:
        """Return the same images with one or several label values set to unknown in every
        column."""
        labels = {column: one.without(unknown) for column, one in self.labels.items()}
        marks = {
            name
            for column, one in self.labels.items()
            for name in one.names
            if name not in labels[column].names
        }
        about = {**self.about, "values read as unknown": sorted(marks)}
        return replace(self, labels=labels, about=about) if marks else self

    def __getitem__(self, rows: ArrayLike | slice) -> Embeddings:
        """Return some of the rows, in the given order: a slice, indices or a mask."""
        index, columns = self._some(rows)
        return replace(self, features=self.features[index], **columns)

    def picked(self, rows: ArrayLike | slice) -> Embeddings:
        """Return the same rows as `[rows]`, whose features are not copied before they are read."""
        index, columns = self._some(rows)
        held = self.features if isinstance(self.features, Shards) else Shards([self.features])
        return replace(self, features=held.picked(index), **columns)


def _column(where: str, values: Any, names: Sequence[str] | None = None) -> Labels:
    """Return labels of an array; an error says where it was."""
    try:
        return Labels.of_array(values, names)
    except InvalidInputError as error:
        raise InvalidInputError(f"{where}: {str(error).removeprefix('labels: ')}") from None


def load_embeddings(path: str | Path) -> tuple[Embeddings, Texts]:
    """Read image embeddings of a .npz file, and its text embeddings, prompt -> (d,), if it has
    some.

    Raises:
        InvalidInputError: a file that is damaged or does not have the keys above, features that are
            not finite.
    """
    try:
        fields, ignored = _fields(Path(path))
        if "features" not in fields:
            raise InvalidInputError(
                f"expected an array 'features', found {sorted({*fields, *ignored})}"
            )
        features, about = fields["features"], {}
        if "about" in fields:
            text = fields["about"]
            about = _parsed(
                np.frombuffer(str(text).encode(), np.uint8) if text.dtype.kind == "U" else text,
                "about",
            )
            if not isinstance(about, dict):
                raise InvalidInputError(
                    f"'about': expected a JSON object, got {type(about).__name__}"
                )
        about |= {"file": str(path)} | ({"ignored": ignored} if ignored else {})
        ids = (
            _strings(fields, "ids")
            if "ids" in fields
            else RowNumbers(len(features) if features.ndim else 0)
        )
        columns = [key.removeprefix("label.") for key in fields if key.startswith("label.")]
        known = {name: _strings(fields, f"names.{name}") or None for name in columns}
        labels = {
            name: _column(f"'label.{name}'", fields[f"label.{name}"], known[name])
            for name in columns
        }
        embeddings = Embeddings(features, ids, labels, _strings(fields, "captions"), about)
        bad: Any = ~np.isfinite(features).all(axis=1)
        if bad.any():
            raise InvalidInputError(
                f"features: expected finite numbers, got others in {int(bad.sum())} of {len(bad)}"
                f" rows, the first of them row {int(bad.argmax())} ({ids[int(bad.argmax())]!r});"
                " leave these images out or embed them again"
            )
        return embeddings, _texts(fields, embeddings.dim)
    except InvalidInputError as error:
        raise InvalidInputError(f"{path}: {error}") from None


def load_texts(path: str | Path) -> Texts:
    """Read the text embeddings alone, prompt -> (d,), of a .npz file that need not have images;
    None without any.

    Raises:
        InvalidInputError: a file that cannot be read, or embeddings that do not fit their prompts.
    """
    try:
        fields, _ = _fields(Path(path))
        return _texts(fields, fields["text"].shape[-1] if "text" in fields else 0)
    except InvalidInputError as error:
        raise InvalidInputError(f"{path}: {error}") from None


def save_embeddings(
    path: str | Path, embeddings: Embeddings, texts: Mapping[str, Tensor] | None = None
) -> Path:
    """Write `embeddings`, and `texts` (prompt -> (d,)) with them, as `load_embeddings` reads them;
    atomically.

    Raises:
        InvalidInputError: a path that does not end in .npz, or a column whose name such a file
            cannot hold.
    """

    def text(value: Any) -> Array:
        return np.frombuffer(
            json.dumps(value, ensure_ascii=False, default=str).encode(), dtype=np.uint8
        )

    if Path(path).suffix != ".npz" or any(
        "\0" in column for column in embeddings.labels
    ):  # which ends a name there
        raise InvalidInputError(
            f"{path}: expected a path in .npz and columns without a NUL character, got"
            f" {list(embeddings.labels)}"
        )
    fields = {"features": np.ascontiguousarray(embeddings.features[:])}
    fields |= {"ids": text(list(embeddings.ids)), "about": text(dict(embeddings.about))}
    if embeddings.captions:
        fields["captions"] = text(list(embeddings.captions))
    for column, labels in embeddings.labels.items():
        fields |= {f"label.{column}": labels.codes, f"names.{column}": text(list(labels.names))}
    if texts:
        rows = torch.stack([row.detach().cpu().float() for row in texts.values()])
        fields |= {"text": rows.numpy(), "prompts": text(list(texts))}
    file = io.BytesIO()
    np.savez(file, **fields)  # type: ignore[arg-type]
    return write_atomically(path, file.getvalue())


def _fields(path: Path) -> tuple[dict[str, Array], list[str]]:
    """Return the arrays that a file has under our names, and the names of the others, which are not
    read."""
    fields, others, name = dict[str, Array](), list[str](), ""
    try:
        with path.open("rb") as file:
            file.seek(-_END, os.SEEK_END)
            end = file.read(_END)
        with zipfile.ZipFile(path) as archive:
            # The list of members has no checksum: a column could vanish from it, or stand there
            # under another name.
            count, there = int.from_bytes(end[10:12], "little"), len(archive.infolist())
            if end.startswith(b"PK\5\6") and count not in (
                there,
                0xFFFF,
            ):  # else a comment follows, or 64 bits count
                raise zipfile.BadZipFile(f"{there} of {count} arrays are listed")
            for info in archive.infolist():
                name = info.filename.removesuffix(".npy")
                with archive.open(
                    info
                ) as member:  # which compares the name with the one beside the content
                    if name in KEYS or name.startswith(COLUMNS):
                        fields[name] = np.lib.format.read_array(member, allow_pickle=False)
                    else:
                        others.append(name)
    except _UNREADABLE as error:
        raise InvalidInputError(
            f"{name and repr(name) + ' '}cannot be read ({error}); expected a .npz file of numbers"
            " and strings. Python objects are never unpickled: store strings with"
            " np.array(list_of_str)"
        ) from None
    return fields, sorted(others)


def _parsed(array: Array, key: str) -> Any:
    try:
        return json.loads(array.tobytes())
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(
            f"{key!r}: expected UTF-8 JSON in an array of uint8 ({error})"
        ) from None


def _strings(fields: Mapping[str, Array], key: str) -> tuple[str, ...]:
    """Return a column of strings; none where the file has none."""
    if key not in fields:
        return ()
    array = fields[key]
    texts: Any = _parsed(array, key) if array.dtype == np.uint8 else array.tolist()
    try:
        texts = [text.decode("utf-8") for text in texts] if array.dtype.kind == "S" else texts
    except UnicodeDecodeError as error:
        raise InvalidInputError(
            f"{key!r}: expected strings, got bytes that are no UTF-8 ({error})"
        ) from None
    if (
        array.ndim != 1
        or not isinstance(texts, list)
        or not all(isinstance(text, str) for text in texts)
    ):
        raise InvalidInputError(
            f"{key!r}: expected strings (n,), got {array.shape} of {array.dtype}"
        )
    return tuple(texts)


def _texts(fields: Mapping[str, Array], dim: int) -> Texts:
    if not {"text", "prompts"} & set(fields):
        return None
    prompts, rows = _strings(fields, "prompts"), fields.get("text", np.empty(0))
    if rows.shape != (len(prompts), dim) or rows.dtype.kind != "f" or not prompts:
        raise InvalidInputError(
            f"'text': expected floats ({len(prompts)}, {dim}) for 'prompts', got {rows.shape} of"
            f" {rows.dtype}"
        )
    texts: dict[str, Tensor] = {}
    for prompt, row in zip(
        prompts, torch.from_numpy(np.array(rows, dtype=np.float32)), strict=True
    ):
        if prompt in texts and float((texts[prompt] - row).norm()) > SAME * float(row.norm()):
            raise InvalidInputError(
                f"'prompts': {prompt!r} is there twice with different embeddings"
            )
        texts.setdefault(prompt, row)
    return texts


def open_embeddings(
    paths: str | Path, *, table: str | Path | None = None
) -> tuple[Embeddings, Texts]:
    """Open embeddings of a file or of several, with labels, and text embeddings where a file has
    some.

    Args:
        paths: a .npz file, or .npy files by a pattern such as "shards/*.npy", which become
            `Shards`.
        table: for .npy: .csv, .tsv, .parquet or .jsonl with a row for each row of the features;
            also a pattern. Columns but "ids" and "captions" are labels ("label.gender" is
            "gender"), except those with too many values.

    Raises:
        InvalidInputError: no such file, files that do not fit together, a table of another length.
    """
    files = files_of(paths)
    if len(files) == 1 and files[0].suffix == ".npz":
        if table is not None:
            raise InvalidInputError(
                f"{table}: a table has the labels of .npy shards; {paths} has its own"
            )
        return load_embeddings(files[0])
    shards, ignored = Shards.open(files), list[str]()
    about: dict[str, Any] = {"file": str(paths), "shards": len(files)}
    fields: dict[str, Any] = {"ids": RowNumbers(len(shards)), "labels": {}}
    if table is not None:
        rows = need("pyarrow").concat_tables(
            map(read_table, files_of(table)), promote_options="permissive"
        )
        for name in rows.column_names:
            column, where = column_of(rows, name, table), f"{table}: column {name!r}"
            if name in ("ids", "captions"):
                fields[name] = tuple(as_texts(column, where))
                continue
            try:
                fields["labels"][name.removeprefix("label.")] = Labels.of_column(
                    column, None, where
                )
            except InvalidInputError:
                ignored.append(name)
    try:
        return (
            Embeddings(shards, about=about | ({"ignored": ignored} if ignored else {}), **fields),
            None,
        )
    except InvalidInputError as error:
        raise InvalidInputError(f"{table or paths}: {error}") from None
