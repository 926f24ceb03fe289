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

from vldebias.data.dataset import Columns, refuse_text
from vldebias.data.labels import Labels
from vldebias.data.rows import RowNumbers, Shards, UnitRows, files_of, metadata_beside
from vldebias.data.tables import as_texts, column_of, read_table
from vldebias.errors import InvalidInputError, need
from vldebias.utils.files import write_atomically

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
        # Integers are refused: they are probably pixels or masks.
        if self.features.ndim != 2 or self.features.dtype.kind != "f":
            raise InvalidInputError(
                f"features: expected floats (n, d), got {self.features.shape} of"
                f" {self.features.dtype}; give the output of the image tower of a model"
            )
        self._check_lengths()

    @classmethod
    def from_arrays(
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
            labels: column -> n strings, integers or booleans; see `Labels.from_array`.
            ids: n names; default: "0", "1", ...
            captions: n texts, or none.
            about: where the features come from.

        Raises:
            InvalidInputError: shapes, types or lengths that do not fit; the message names the
                column.
        """
        rows = features
        try:
            if isinstance(rows, Tensor):
                rows = rows.detach().cpu()
                if rows.dtype == torch.bfloat16:
                    rows = rows.float()  # numpy knows no bfloat16
            if not isinstance(rows, Shards):
                rows = np.asarray(rows)
            # Objects are Python's numbers, such as those of a table with gaps; others are refused.
            if rows.dtype.kind in "iO":
                rows = rows.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise InvalidInputError(
                f"features: expected numbers (n, d), got {type(features).__name__} ({error})"
            ) from None
        refuse_text("ids", ids)
        refuse_text("captions", captions)
        if ids is None:
            names: Sequence[str] = _numbers(rows)
        else:
            names = tuple(map(str, ids))
        columns = {}
        for name, values in (labels or {}).items():
            columns[name] = _column(f"labels[{name!r}]", values)
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
        if isinstance(self.features, Shards):
            return self.features.unit
        return UnitRows(Shards([self.features]), self.ids)

    def without(self, unknown: Any) -> Embeddings:
        """Return the same images with one or several label values set to unknown in every
        column."""
        labels = {}
        removed: set[str] = set()
        for column, before in self.labels.items():
            labels[column] = before.without(unknown)
            removed |= set(before.names) - set(labels[column].names)
        if not removed:
            return self
        facts = {**self.about, "values read as unknown": sorted(removed)}
        return replace(self, labels=labels, about=facts)

    def __getitem__(self, rows: ArrayLike | slice) -> Embeddings:
        """Return some of the rows, in the given order: a slice, indices or a mask."""
        index, columns = self._some(rows)
        return replace(self, features=self.features[index], **columns)

    def picked(self, rows: ArrayLike | slice) -> Embeddings:
        """Return the same rows as `[rows]`, whose features are not copied before they are read."""
        index, columns = self._some(rows)
        shards = self.features
        if not isinstance(shards, Shards):
            shards = Shards([shards])
        return replace(self, features=shards.picked(index), **columns)


def _numbers(features: Any) -> RowNumbers:
    """Return names of rows that have none; a single number has no rows and is refused later."""
    if not features.ndim:
        return RowNumbers(0)
    return RowNumbers(len(features))


def _column(where: str, values: Any, names: Sequence[str] | None = None) -> Labels:
    """Return labels of an array; an error says where it was."""
    try:
        return Labels.from_array(values, names)
    except InvalidInputError as error:
        # The place says more than "labels".
        raise InvalidInputError(f"{where}: {str(error).removeprefix('labels: ')}") from None


def load_embeddings(path: str | Path) -> tuple[Embeddings, Texts]:
    """Read image embeddings of a .npz file, and its text embeddings, prompt -> (d,), if it has
    some.

    Raises:
        InvalidInputError: a file that is damaged or does not have the keys above, features that are
            not finite.
    """
    try:
        fields, ignored = _read_arrays(Path(path))
        if "features" not in fields:
            raise InvalidInputError(
                f"expected an array 'features', found {sorted({*fields, *ignored})}; save the"
                " features under this name: np.savez(path, features=...)"
            )
        facts = {**_facts(fields), "file": str(path)}
        if ignored:
            facts["ignored"] = ignored
        ids: Sequence[str] = _numbers(fields["features"])
        if "ids" in fields:
            ids = _strings(fields, "ids")
        labels = {}
        for key in fields:
            if key.startswith("label."):
                column = key.removeprefix("label.")
                # Integers without names are each a value of its own.
                names = _strings(fields, f"names.{column}") or None
                labels[column] = _column(f"{key!r}", fields[key], names)
        embeddings = Embeddings(
            fields["features"], ids, labels, _strings(fields, "captions"), facts
        )
        bad: Any = ~np.isfinite(embeddings.features).all(axis=1)
        if bad.any():
            first = int(bad.argmax())
            raise InvalidInputError(
                f"features: expected finite numbers, got others in {int(bad.sum())} of {len(bad)}"
                f" rows, the first of them row {first} ({embeddings.ids[first]!r}); leave these"
                " images out or embed them again"
            )
        return embeddings, _texts(fields, embeddings.dim)
    except InvalidInputError as error:
        raise InvalidInputError(f"{path}: {error}") from None


def _facts(fields: Mapping[str, Array]) -> dict[str, Any]:
    """Return what a file says about itself, a JSON object; nothing where it has none."""
    if "about" not in fields:
        return {}
    array = fields["about"]
    if array.dtype.kind == "U":
        array = np.frombuffer(str(array).encode(), np.uint8)
    facts = _parsed(array, "about")
    if not isinstance(facts, dict):
        raise InvalidInputError(f"'about': expected a JSON object, got {type(facts).__name__}")
    return facts


def load_texts(path: str | Path) -> Texts:
    """Read the text embeddings alone, prompt -> (d,), of a .npz file that need not have images;
    None without any.

    Raises:
        InvalidInputError: a file that cannot be read, or embeddings that do not fit their prompts.
    """
    try:
        fields, _ = _read_arrays(Path(path))
        dim = 0
        if "text" in fields:
            dim = fields["text"].shape[-1]
        return _texts(fields, dim)
    except InvalidInputError as error:
        raise InvalidInputError(f"{path}: {error}") from None


def save_embeddings(
    path: str | Path, embeddings: Embeddings, texts: Mapping[str, Tensor] | None = None
) -> Path:
    """Write `embeddings`, and `texts` (prompt -> (d,)) with them, as `load_embeddings` reads them;
    atomically.

    Args:
        path: the file, which ends in .npz.
        embeddings: rows with their labels.
        texts: prompt -> embedding (d,), if there are any.

    Raises:
        InvalidInputError: a path that does not end in .npz, or a column whose name such a file
            cannot hold.
    """

    def text(value: Any) -> Array:
        return np.frombuffer(
            json.dumps(value, ensure_ascii=False, default=str).encode(), dtype=np.uint8
        )

    if Path(path).suffix != ".npz":
        raise InvalidInputError(f"{path}: expected a path that ends in .npz")
    # A NUL character ends a name in a zip archive.
    if any("\0" in column for column in embeddings.labels):
        raise InvalidInputError(
            f"{path}: expected columns without a NUL character, got {list(embeddings.labels)}"
        )
    fields = {"features": np.ascontiguousarray(embeddings.features[:])}
    # JSON instead of numpy's strings, which take the width of the longest for each.
    fields |= {"ids": text(list(embeddings.ids)), "about": text(dict(embeddings.about))}
    if embeddings.captions:
        fields["captions"] = text(list(embeddings.captions))
    for column, labels in embeddings.labels.items():
        fields[f"label.{column}"] = labels.codes
        fields[f"names.{column}"] = text(list(labels.names))
    if texts:
        rows = torch.stack([row.detach().cpu().float() for row in texts.values()])
        fields["text"] = rows.numpy()
        fields["prompts"] = text(list(texts))
    # numpy writes an archive piece by piece; a stopped run must not leave half of one.
    file = io.BytesIO()
    np.savez(file, **fields)  # type: ignore[arg-type]
    return write_atomically(path, file.getvalue())


def _read_arrays(path: Path) -> tuple[dict[str, Array], list[str]]:
    """Return the arrays that a file has under our names, and the names of the others, which are not
    read."""
    fields = dict[str, Array]()
    ignored = list[str]()
    name = ""
    try:
        with zipfile.ZipFile(path) as archive:
            _check_count(path, archive)
            for info in archive.infolist():
                name = info.filename.removesuffix(".npy")
                array = _read_member(archive, info, name)
                if array is None:
                    ignored.append(name)
                else:
                    fields[name] = array
    except _UNREADABLE as error:
        subject = ""
        if name:
            subject = f"{name!r} "
        raise InvalidInputError(
            f"{subject}cannot be read ({error}); expected a .npz file of numbers and strings."
            " Python objects are never unpickled: store strings with np.array(list_of_str)"
        ) from None
    return fields, sorted(ignored)


def _read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str) -> Array | None:
    """Return an array under one of our names; None under another."""
    # Opening checks the name against that in the local header, so others are opened as well.
    with archive.open(info) as member:
        if name in KEYS or name.startswith(COLUMNS):
            return np.lib.format.read_array(member, allow_pickle=False)
    return None


def _check_count(path: Path, archive: zipfile.ZipFile) -> None:
    """Refuse an archive that lists another number of members than it counts.

    The list of members has no checksum: a column could be missing from it, or have another name
    there.
    """
    with path.open("rb") as file:
        file.seek(-_END, os.SEEK_END)
        end = file.read(_END)
    # Bytes 10 and 11 of the last record count the members (zip specification, 4.3.16).
    count = int.from_bytes(end[10:12], "little")
    if not end.startswith(b"PK\5\6") or count == 0xFFFF:
        return  # a comment follows, or 64 bits count
    listed = len(archive.infolist())
    if count != listed:
        raise zipfile.BadZipFile(f"{listed} of {count} arrays are listed")


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
    if array.dtype == np.uint8:
        texts: Any = _parsed(array, key)
    else:
        texts = array.tolist()
    if array.dtype.kind == "S":
        try:
            texts = [text.decode("utf-8") for text in texts]
        except UnicodeDecodeError as error:
            raise InvalidInputError(
                f"{key!r}: expected strings, got bytes that are no UTF-8 ({error})"
            ) from None
    is_column = array.ndim == 1 and isinstance(texts, list)
    if not is_column or not all(isinstance(text, str) for text in texts):
        raise InvalidInputError(
            f"{key!r}: expected strings (n,), got {array.shape} of {array.dtype}"
        )
    return tuple(texts)


def _texts(fields: Mapping[str, Array], dim: int) -> Texts:
    # One of the two without the other is refused below.
    if not {"text", "prompts"} & set(fields):
        return None
    prompts = _strings(fields, "prompts")
    rows = fields.get("text", np.empty(0))
    has_shape = rows.shape == (len(prompts), dim) and len(prompts) > 0
    if not has_shape or rows.dtype.kind != "f":
        raise InvalidInputError(
            f"'text': expected floats ({len(prompts)}, {dim}) for 'prompts', got {rows.shape} of"
            f" {rows.dtype}"
        )
    texts: dict[str, Tensor] = {}
    vectors = torch.from_numpy(np.array(rows, dtype=np.float32))
    for prompt, vector in zip(prompts, vectors, strict=True):
        if prompt not in texts:
            texts[prompt] = vector
            continue
        # The same prompt in another batch differs in its last digits.
        difference = float((texts[prompt] - vector).norm())
        if difference > SAME * float(vector.norm()):
            raise InvalidInputError(
                f"'prompts': {prompt!r} is there twice with different embeddings"
            )
    return texts


def open_embeddings(
    paths: str | Path, *, table: str | Path | None = None
) -> tuple[Embeddings, Texts]:
    """Open embeddings of a file or of several, with labels, and text embeddings where a file has
    some.

    Args:
        paths: a .npz file, .npy files by a pattern such as "shards/*.npy", which become `Shards`,
            or a folder of clip-retrieval: img_emb/*.npy with metadata/*.parquet beside it.
        table: for .npy, and for .npz without labels: .csv, .tsv, .parquet or .jsonl with a row for
            each row of the features; also a pattern. "ids" (or "image_path") and "captions" (or
            "caption") are those; other columns are labels ("label.gender" is "gender"), except
            those with too many values.

    Raises:
        InvalidInputError: no such file, files that do not fit together, a table of another length.
    """
    files = files_of(paths)
    texts: Texts = None
    if len(files) == 1 and files[0].suffix == ".npz":
        embeddings, texts = load_embeddings(files[0])
        is_named = not isinstance(embeddings.ids, RowNumbers)
        if table is not None and (is_named or embeddings.labels or embeddings.captions):
            raise InvalidInputError(
                f"{table}: a table has the ids, labels and captions of features without any;"
                f" {paths} has its own"
            )
    else:
        shards = Shards.open(files)
        facts = {"file": str(paths), "shards": len(files)}
        embeddings = Embeddings(shards, RowNumbers(len(shards)), {}, about=facts)
    # A pattern names files alone; a folder is what clip-retrieval wrote, whole.
    if table is None:
        table = metadata_beside(paths)
    if table is None:
        return embeddings, texts
    return _with_table(embeddings, files, table), texts


def _with_table(embeddings: Embeddings, files: Sequence[Path], table: str | Path) -> Embeddings:
    """Return embeddings with the ids, labels and captions of a table; `about` names the columns
    with too many values to be labels."""
    table_files = files_of(table)
    # A column that one part lacks is empty there; whole numbers and floats become floats.
    parts = [read_table(file) for file in table_files]
    rows = need("pyarrow").concat_tables(parts, promote_options="permissive")
    if len(rows) != len(embeddings):
        shorter = ""
        if len(files) == len(parts) > 1:
            for file, table_file, part in zip(files, table_files, parts, strict=True):
                length = len(Shards.open([file]))
                if len(part) != length:
                    shorter = f"; {table_file.name} has {len(part)} rows, and {file.name} {length}"
                    break
        raise InvalidInputError(
            f"{table}: expected a row for each of {len(embeddings)} rows of the features, in their"
            f" order, got {len(rows)}{shorter}. Labels would move to other images: write the"
            " table again with the features"
        )
    labels: dict[str, Labels] = {}
    columns: dict[str, Any] = {"labels": labels}
    ignored = list[str]()
    for name in rows.column_names:
        column = column_of(rows, name, table)
        place = f"{table}: column {name!r}"
        field_of_name = name
        # As clip-retrieval calls them.
        alias = {"image_path": "ids", "caption": "captions"}.get(name)
        if alias and alias not in rows.column_names:
            field_of_name = alias
        if field_of_name in ("ids", "captions"):
            columns[field_of_name] = tuple(as_texts(column, place))
            continue
        try:
            # Columns of too many values are texts or numbers, not groups.
            labels[name.removeprefix("label.")] = Labels.from_column(column, None, place)
        except InvalidInputError:
            ignored.append(name)
    facts = dict(embeddings.about)
    if ignored:
        facts["ignored"] = [*facts.get("ignored", ()), *ignored]
    return replace(embeddings, about=facts, **columns)
