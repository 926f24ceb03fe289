"""Represent labelled image embeddings from a cache, arrays or files.

Keys of a .npz file, for n images, k names and p prompts:

    features         (n, d) floats
    ids              (n,) strings; default: "0", "1", ...
    captions         (n,) strings
    label.<column>   (n,) strings ("" is unknown), or integers, each of which is a value
    names.<column>   (k,) strings: names of the integers 0 .. k - 1 in label.<column>, where -1 is
                     then unknown
    text, prompts    (p, d) floats and (p,) strings: text embeddings from the same model, for
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
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vldebias.data.dataset import Columns, Facts, refuse_text
from vldebias.data.labels import Labels
from vldebias.data.rows import Array, RowNumbers, Shards, UnitRows, files_of, metadata_beside
from vldebias.data.tables import as_texts, column_of, read_table
from vldebias.errors import InvalidInputError, check_kind, need
from vldebias.utils.files import refuse_special, write_atomically
from vldebias.utils.text_rows import TextRows

if TYPE_CHECKING:
    from torch import Tensor

    from vldebias.typing import AnyArray, ColumnLike

Texts: TypeAlias = dict[str, NDArray[np.float32]] | None
KEYS = ("features", "ids", "captions", "text", "prompts", "about")
COLUMNS = ("label.", "names.")
_SMALL = 256_000_000  # bytes that an archive may always contain
_MOST_EXPANSION = 20  # times that compressed embeddings may expand
SAME = 1e-3  # largest relative difference between embeddings of the same prompt
_END = 22  # size in bytes of a zip archive's last record, without a comment

# Exceptions that zipfile, zlib and numpy raise for truncated, damaged or encrypted files, and for
# files that are not archives.
_BROKEN_ZIP = (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError)
_UNREADABLE = (OSError, ValueError, OverflowError, EOFError, TokenError, MemoryError, *_BROKEN_ZIP)


@dataclass(frozen=True, eq=False, repr=False)
class Embeddings(Columns):
    """Store n image embeddings with the ids, labels and captions of the images.

    Attributes:
        features: (n, d) floats as stored, not normalised: an array or `Shards`.
        ids: n image names; unnamed images are numbered.
        labels: column -> labels of the n rows.
        captions: n captions, or empty.
        about: origin of the features, and the images that were skipped.

    Raises:
        InvalidInputError: If shapes or lengths are inconsistent.

    >>> import numpy as np
    >>> labels = {"gender": ["female", "male", None]}
    >>> images = Embeddings.from_arrays(np.eye(3), labels)
    >>> images
    Embeddings(3 images of width 3, columns ['gender'])
    >>> images.labels["gender"].counts
    {'female': 1, 'male': 1}
    """

    features: Any
    ids: Sequence[str]
    labels: Mapping[str, Labels]
    captions: tuple[str, ...] = ()
    about: Facts = field(default_factory=dict)
    name = "embeddings"

    def __post_init__(self) -> None:
        # Integer arrays are probably pixels or masks.
        if self.features.ndim != 2 or self.features.dtype.kind != "f":
            expected = "the output of a model's image tower"
            if self.features.dtype.kind == "U":
                expected = "vldebias.data.load_embeddings(FILE)[0], or for images their folder"
            raise InvalidInputError(
                f"features: expected floats (n, d), got shape {self.features.shape} with dtype"
                f" {self.features.dtype}; pass {expected}"
            )
        self._check_lengths()

    @classmethod
    def from_arrays(
        cls,
        features: AnyArray | Shards,
        labels: Mapping[str, Labels | ColumnLike] | None = None,
        *,
        ids: Iterable[object] | None = None,
        captions: Sequence[str] = (),
        about: Facts | None = None,
    ) -> Embeddings:
        """Create embeddings from numpy arrays, tensors or lists.

        Args:
            features: (n, d) numbers, or `Shards`. bfloat16 is converted to float32, and integers to
                float64.
            labels: column -> n strings, integers or booleans; None, NaN and "" are unknown.
            ids: n names. Default: "0", "1", ...
            captions: n captions, or empty.
            about: origin of the features.

        Raises:
            InvalidInputError: If shapes or lengths are inconsistent, or types are wrong.
        """
        rows: Any = features
        try:
            # Tensors are recognised by their methods to avoid importing torch.
            if hasattr(rows, "detach"):
                rows = rows.detach().cpu()
                if str(rows.dtype) == "torch.bfloat16":
                    rows = rows.float()  # numpy does not support bfloat16
            if not isinstance(rows, Shards):
                rows = np.asarray(rows)
            # Object arrays may contain Python numbers, for example if a table has missing values.
            if rows.dtype.kind in "iO":
                rows = rows.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise InvalidInputError(
                f"features: expected numbers (n, d), got {type(features).__name__} ({error})"
            ) from None
        refuse_text("ids", ids)
        refuse_text("captions", captions)
        names = _numbers(rows) if ids is None else tuple(map(str, ids))
        given = {} if labels is None else labels
        check_kind("labels", given, Mapping, "a mapping, such as {'gender': values}")
        columns = {name: _column(f"labels[{name!r}]", values) for name, values in given.items()}
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
        """Return the dimension d of the features."""
        return int(self.features.shape[1])

    @property
    def unit(self) -> UnitRows:
        """Return the rows normalised to unit length, read block by block.

        If the features are `Shards` with a runner, the runner reads them.
        """
        if isinstance(self.features, Shards):
            return self.features.unit
        return UnitRows(Shards([self.features]), self.ids)

    def without(self, unknown: object) -> Embeddings:
        """Return embeddings with one or several values set to unknown in every column."""
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
        """Return the rows selected by a slice, an index array or a mask, in that order."""
        index, columns = self._some(rows)
        return replace(self, features=self.features[index], **columns)

    def select(self, rows: ArrayLike | slice) -> Embeddings:
        """Select rows like `[rows]`, but without copying features until they are read."""
        index, columns = self._some(rows)
        shards = self.features
        if not isinstance(shards, Shards):
            shards = Shards([shards])
        return replace(self, features=shards.select(index), **columns)


def _numbers(features: Any) -> RowNumbers:
    """Return row numbers, which serve as the names of unnamed rows."""
    # A scalar has no rows; it raises an error later.
    return RowNumbers(len(features) if features.ndim else 0)


def _column(source: str, values: Labels | ColumnLike, names: Sequence[str] | None = None) -> Labels:
    """Create labels from an array; error messages start with `source`."""
    try:
        return Labels.from_array(values, names)
    except InvalidInputError as error:
        # `source` is more specific than "labels".
        raise InvalidInputError(f"{source}: {str(error).removeprefix('labels: ')}") from None


def load_embeddings(path: str | Path) -> tuple[Embeddings, Texts]:
    """Load image embeddings and any text embeddings from a .npz file.

    Returns:
        The image embeddings, and a mapping from prompt to text embedding (d,), or None if the file
        has no text embeddings.

    Raises:
        InvalidInputError: If the file is damaged, has no features or has an invalid entry, or
            features are not finite.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(Path(folder, "faces.npz"), features=np.eye(2))
    ...     images, texts = load_embeddings(Path(folder, "faces.npz"))
    >>> images
    Embeddings(2 images of width 2, columns [])
    """
    refuse_special(path)
    try:
        fields, ignored = _read_arrays(Path(path))
        if "features" not in fields:
            raise InvalidInputError(
                f"expected an array 'features', got {sorted({*fields, *ignored})}; save the"
                " features under this name: np.savez(path, features=...)"
            )
        facts = {**_facts(fields), "file": str(path)}
        if ignored:
            facts["ignored"] = ignored
        ids = _strings(fields, "ids") if "ids" in fields else _numbers(fields["features"])
        labels = {}
        for key in fields:
            if key.startswith("label."):
                column = key.removeprefix("label.")
                # Without names, each integer is a separate value.
                names = _strings(fields, f"names.{column}") or None
                labels[column] = _column(f"{key!r}", fields[key], names)
        embeddings = Embeddings(
            fields["features"], ids, labels, _strings(fields, "captions"), facts
        )
        bad: Array = ~np.asarray(np.isfinite(fields["features"]).all(axis=1))
        if bad.any():
            first = int(bad.argmax())
            raise InvalidInputError(
                f"features: expected finite numbers, but {int(bad.sum())} of {len(bad)} rows are"
                f" not finite, the first of which is row {first} ({embeddings.ids[first]!r});"
                " remove these images or embed them again"
            )
        return embeddings, _texts(fields, embeddings.dim)
    except InvalidInputError as error:
        raise InvalidInputError(f"{path}: {error}") from None


def _facts(fields: Mapping[str, Array]) -> dict[str, Any]:
    """Return a file's metadata, or an empty dict if there is none."""
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
    """Load only the text embeddings from a .npz file, as a mapping prompt -> (d,).

    Raises:
        InvalidInputError: If the file cannot be read, contains no text embeddings, or embeddings
            and prompts are inconsistent.
    """
    refuse_special(path)
    try:
        fields, _ = _read_arrays(Path(path))
        dim = 0
        if "text" in fields:
            dim = fields["text"].shape[-1]
        elif "prompts" not in fields:
            raise InvalidInputError(
                "got no text embeddings; expected the arrays 'text' (p, d) and 'prompts' (p,)"
            )
        return _texts(fields, dim)
    except InvalidInputError as error:
        raise InvalidInputError(f"{path}: {error}") from None


def save_embeddings(
    path: str | Path, embeddings: Embeddings, texts: Mapping[str, ArrayLike | Tensor] | None = None
) -> Path:
    """Save embeddings to a .npz file for `load_embeddings`, atomically.

    Args:
        path: output file, ending in .npz.
        embeddings: the image embeddings to save.
        texts: text embeddings, prompt -> (d,).

    Raises:
        InvalidInputError: If the path does not end in .npz, or a column name contains a NUL
            character.

    >>> import tempfile
    >>> images = Embeddings.from_arrays([[1.0, 0.0], [0.0, 1.0]], {"gender": ["female", "male"]})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = save_embeddings(Path(folder, "faces.npz"), images)
    ...     load_embeddings(path)
    (Embeddings(2 images of width 2, columns ['gender']), None)
    """

    def text(value: object) -> Array:
        return np.frombuffer(
            json.dumps(value, ensure_ascii=False, default=str).encode(), dtype=np.uint8
        )

    check_kind("path", path, str | Path, "a file; the order is (path, embeddings)")
    check_kind("embeddings", embeddings, Embeddings, "Embeddings.from_arrays(features, labels)")
    if Path(path).suffix != ".npz":
        raise InvalidInputError(f"{path}: expected a path that ends in .npz")
    # A name in a zip archive ends at the first NUL character.
    if any("\0" in column for column in embeddings.labels):
        raise InvalidInputError(
            f"{path}: expected column names without NUL characters, got {list(embeddings.labels)}"
        )
    fields = {"features": np.ascontiguousarray(embeddings.features[:])}
    # JSON is smaller than numpy strings, which are all padded to the longest.
    fields |= {"ids": text(list(embeddings.ids)), "about": text(dict(embeddings.about))}
    if embeddings.captions:
        fields["captions"] = text(list(embeddings.captions))
    for column, labels in embeddings.labels.items():
        fields[f"label.{column}"] = labels.codes
        fields[f"names.{column}"] = text(list(labels.names))
    if texts:
        rows = TextRows(texts).row_of_prompt
        fields["text"] = np.stack(list(rows.values())).astype(np.float32)
        fields["prompts"] = text(list(texts))
    # Write the archive in one go, so that an interrupted run leaves no partial file.
    file = io.BytesIO()
    np.savez(file, **fields)  # type: ignore[arg-type]
    return write_atomically(path, file.getvalue())


def _read_arrays(path: Path) -> tuple[dict[str, Array], list[str]]:
    """Return a file's arrays with known names, and the names of its other arrays."""
    fields = dict[str, Array]()
    ignored = list[str]()
    name = ""
    try:
        with zipfile.ZipFile(path) as archive:
            _check_count(path, archive)
            _check_size(archive)
            for info in archive.infolist():
                name = info.filename.removesuffix(".npy")
                array = _read_member(archive, info, name)
                if array is None:
                    ignored.append(name)
                else:
                    fields[name] = array
    except _UNREADABLE as error:
        subject = f"{name!r} " if name else ""
        raise InvalidInputError(
            f"{subject}cannot be read ({error}); expected a .npz file of numbers and strings, as"
            " np.savez(path, features=array) writes. Python objects are never unpickled: store"
            " strings with np.array(list_of_str)"
        ) from None
    return fields, sorted(ignored)


def _read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str) -> Array | None:
    """Return an array if its name is known, otherwise None."""
    # Opening a member verifies its name against the local header, so open unknown members too.
    with archive.open(info) as member:
        if name in KEYS or name.startswith(COLUMNS):
            return np.lib.format.read_array(member, allow_pickle=False)
    return None


def _check_size(archive: zipfile.ZipFile) -> None:
    """Raise an error if a small archive would expand to more memory than embeddings need."""
    size = sum(info.file_size for info in archive.infolist())
    compressed = sum(info.compress_size for info in archive.infolist())
    if size > max(_SMALL, _MOST_EXPANSION * compressed):
        raise zipfile.BadZipFile(
            f"{compressed:,} bytes expand to {size:,}; save the file with np.savez instead"
        )


def _check_count(path: Path, archive: zipfile.ZipFile) -> None:
    """Raise an error if an archive's number of members differs from the declared number.

    The list of members has no checksum, so damage could remove or rename a column.
    """
    with path.open("rb") as file:
        file.seek(-_END, os.SEEK_END)
        end = file.read(_END)
    # Bytes 10 and 11 of the last record count the members (zip specification, 4.3.16).
    count = int.from_bytes(end[10:12], "little")
    if not end.startswith(b"PK\5\6") or count == 0xFFFF:
        return  # archive with a comment, or a 64-bit count
    listed = len(archive.infolist())
    if count != listed:
        raise zipfile.BadZipFile(f"{listed} of {count} arrays are listed in the archive")


def _parsed(array: Array, key: str) -> Any:
    """Parse the JSON value in a byte array."""
    try:
        return json.loads(array.tobytes())
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(
            f"{key!r}: expected UTF-8 JSON in an array of uint8 ({error})"
        ) from None


def _strings(fields: Mapping[str, Array], key: str) -> tuple[str, ...]:
    """Return a column of strings, or () if the file does not have it."""
    if key not in fields:
        return ()
    array = fields[key]
    texts = _parsed(array, key) if array.dtype == np.uint8 else array.tolist()
    if array.dtype.kind == "S":
        try:
            texts = [text.decode("utf-8") for text in texts]
        except UnicodeDecodeError as error:
            raise InvalidInputError(
                f"{key!r}: expected strings, got bytes that are not UTF-8 ({error})"
            ) from None
    is_column = array.ndim == 1 and isinstance(texts, list)
    if not is_column or not all(isinstance(text, str) for text in texts):
        raise InvalidInputError(
            f"{key!r}: expected strings (n,), got shape {array.shape} with dtype {array.dtype}"
        )
    return tuple(texts)


def _texts(fields: Mapping[str, Array], dim: int) -> Texts:
    """Return text embeddings, prompt -> (dim,), or None if there are none."""
    # If the file has only one of "text" and "prompts", the code below raises an error.
    if not {"text", "prompts"} & set(fields):
        return None
    prompts = _strings(fields, "prompts")
    rows = fields.get("text", np.empty(0))
    has_shape = rows.shape == (len(prompts), dim) and len(prompts) > 0
    if not has_shape or rows.dtype.kind != "f":
        raise InvalidInputError(
            f"'text': expected floats ({len(prompts)}, {dim}), one row for each of 'prompts', got"
            f" shape {rows.shape} with dtype {rows.dtype}"
        )
    texts: dict[str, NDArray[np.float32]] = {}
    for prompt, vector in zip(prompts, rows.astype(np.float32), strict=True):
        if prompt not in texts:
            texts[prompt] = vector
            continue
        # Embeddings of the same prompt from different batches differ in their last digits.
        difference = np.linalg.norm(texts[prompt] - vector)
        if difference > SAME * np.linalg.norm(vector):
            raise InvalidInputError(
                f"'prompts': {prompt!r} occurs twice with different embeddings; keep one of them"
            )
    return texts


def open_embeddings(
    paths: str | Path, *, table: str | Path | None = None
) -> tuple[Embeddings, Texts]:
    """Open embeddings from one or more files, with labels and any text embeddings.

    Args:
        paths: a .npz file, a pattern for .npy files such as "shards/*.npy", which are opened as
            `Shards`, or a clip-retrieval folder with img_emb/*.npy and metadata/*.parquet.
        table: a .csv, .tsv, .parquet or .jsonl file, or a pattern, with one row per row of
            features; for .npy files, and for a .npz file without labels. The columns "ids" (or
            "image_path") and "captions" (or "caption") contain ids and captions. Other columns are
            labels ("label.gender" is named "gender"), unless they have too many values.

    Raises:
        InvalidInputError: If a file does not exist, files are inconsistent, or the table has the
            wrong length.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for number in range(2):
    ...         np.save(Path(folder, f"{number}.npy"), np.eye(3))
    ...     images, texts = open_embeddings(f"{folder}/*.npy")
    ...     images.unit[:].shape
    torch.Size([6, 3])
    """
    files = files_of(paths)
    texts: Texts = None
    if len(files) == 1 and files[0].suffix == ".npz":
        embeddings, texts = load_embeddings(files[0])
        is_named = not isinstance(embeddings.ids, RowNumbers)
        if table is not None and (is_named or embeddings.labels or embeddings.captions):
            raise InvalidInputError(
                f"{table}: a table can only be used if the features have no ids, labels or"
                f" captions, but {paths} contains some"
            )
    else:
        shards = Shards.open(files)
        facts = {"file": str(paths), "shards": len(files)}
        embeddings = Embeddings(shards, RowNumbers(len(shards)), {}, about=facts)
    # Unlike a pattern, a clip-retrieval folder includes metadata.
    if table is None:
        table = metadata_beside(paths)
    if table is None:
        return embeddings, texts
    return _with_table(embeddings, files, table), texts


def _with_table(embeddings: Embeddings, files: Sequence[Path], table: str | Path) -> Embeddings:
    """Add the ids, labels and captions from a table to embeddings.

    Columns with too many values for labels are listed in `about`.
    """
    table_files = files_of(table)
    # Rows from a part without a column are empty in that column; mixed integers and floats become
    # floats.
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
            f"{table}: expected a row for each of {len(embeddings)} rows of features, in the same"
            f" order, got {len(rows)}{shorter}. Labels would be assigned to the wrong images; write"
            " the table again together with the features"
        )
    labels: dict[str, Labels] = {}
    texts: dict[str, tuple[str, ...]] = {}
    ignored = list[str]()
    for name in rows.column_names:
        column = column_of(rows, name, table)
        place = f"{table}: column {name!r}"
        field_name = name
        # Accept the column names that clip-retrieval uses.
        alias = {"image_path": "ids", "caption": "captions"}.get(name)
        if alias and alias not in rows.column_names:
            field_name = alias
        if field_name in ("ids", "captions"):
            texts[field_name] = tuple(as_texts(column, place))
            continue
        try:
            # Columns with too many values contain free text or numbers, not groups.
            labels[name.removeprefix("label.")] = Labels.from_column(column, None, place)
        except InvalidInputError:
            ignored.append(name)
    facts = dict(embeddings.about)
    if ignored:
        facts["ignored"] = [*facts.get("ignored", ()), *ignored]
    return replace(
        embeddings,
        labels=labels,
        ids=texts.get("ids", embeddings.ids),
        captions=texts.get("captions", embeddings.captions),
        about=facts,
    )
