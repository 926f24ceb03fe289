"""Embeddings as they lie on disks: one file, or shards with their labels inside or in a table beside them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from vldebias.data.embeddings import Embeddings, Keys, load_embeddings
from vldebias.data.labels import Labels
from vldebias.data.shards import KINDS, Shards, files_of, is_pattern
from vldebias.data.tables import as_labels, as_texts, column_of, read_table
from vldebias.data.unit_rows import RowNumbers
from vldebias.errors import InvalidInputError, need
from vldebias.files import digest

WITH_LABELS = (".npz", ".safetensors")  # files of `load_embeddings`


def is_features(path: str | Path) -> bool:
    """Whether a path names features: a file by its ending, or files by a pattern."""
    return Path(path).suffix in (*WITH_LABELS, *KINDS) or is_pattern(path)


def open_embeddings(
    paths: str | Path, *, keys: Keys | None = None, table: str | Path | None = None
) -> tuple[Embeddings, dict[str, Tensor] | None]:
    """Embeddings of a file or of shards, with labels, and text embeddings where the files have some.

    One .npz or .safetensors file is `load_embeddings`. Everything else becomes `Shards`, which are read when they are
    used (.npz files are read whole):

    - several .npz or .safetensors files of that kind: labels, ids, captions and texts of all of them, in order;
    - .npy files: features alone, with the labels of `table`;
    - .parquet files: lists of floats in column "features"; the other columns are labels.

    Of a table "ids" and "captions" are what they say; every other column of texts or whole numbers is a label
    ("label.gender" is "gender"), but for those with so many values that they are none. Where `keys` name labels, those
    alone are read.

    Args:
        paths: a file, or a pattern such as "shards/*.npy".
        keys: ours -> theirs, as in `load_embeddings`: {"features": "image_emb", "label.gender": "sex"}.
        table: .csv, .tsv, .parquet or .jsonl with one row for each row of the features, in their order; also a pattern.

    Raises:
        InvalidInputError: no such file, files that do not fit together, a table of another length.
    """
    files, keys = files_of(paths), keys or {}
    kinds = {path.suffix for path in files}
    if len(kinds) > 1 or not kinds <= {*WITH_LABELS, *KINDS}:
        raise InvalidInputError(
            f"{paths}: expected files that all end in one of {', '.join(dict.fromkeys((*WITH_LABELS, *KINDS)))}, got "
            f"{sorted(kinds)}"
        )
    inside = kinds <= set(WITH_LABELS)
    if inside and table is not None:
        raise InvalidInputError(f"{table}: a table has the labels of .npy shards; {paths} has its own, as label.COLUMN")
    if inside and len(files) == 1:
        return load_embeddings(files[0], keys=keys or None)
    if inside:
        return _joined(files, keys, str(paths))
    name = keys.get("features", "features")
    shards = Shards.open(files, features=name if isinstance(name, str) else name[0])
    about: dict[str, Any] = {"file": str(paths), "shards": len(files)}
    fields: dict[str, Any] = {"ids": RowNumbers(len(shards)), "labels": {}, "captions": ()}
    tables = files_of(table) if table is not None else files if kinds == {".parquet"} else []
    if tables:
        fields |= _columns(tables, keys, str(table or paths), about)
    try:
        return Embeddings(shards, fields["ids"], fields["labels"], fields["captions"], about), None
    except InvalidInputError as error:
        raise InvalidInputError(f"{table or paths}: {error}") from None


def digest_of(paths: str | Path) -> str:
    """SHA-256 of a file; of several over those of all, in order."""
    files = files_of(paths)
    if len(files) == 1:
        return digest(files[0])
    return hashlib.sha256(" ".join(map(digest, files)).encode()).hexdigest()


def _joined(files: Sequence[Path], keys: Keys, called: str) -> tuple[Embeddings, dict[str, Tensor] | None]:
    """Files of `load_embeddings`, one below the other."""
    loaded = [load_embeddings(path, keys=keys or None) for path in files]
    several = [embeddings for embeddings, _ in loaded]
    rows: dict[str, Tensor] = {}
    for _, texts in loaded:
        rows |= texts or {}
    if files[0].suffix == ".npz":
        shards = Shards.of_arrays([one.features for one in several])
    else:
        shards = Shards([part for path in files for part in Shards.open(path, features=_name(path, keys)).arrays])
    columns = dict.fromkeys(column for one in several for column in one.labels)
    absent = {
        column: [path.name for path, one in zip(files, several, strict=True) if column not in one.labels]
        for column in columns
    }
    for column, names in absent.items():
        if names:
            raise InvalidInputError(f"{called}: column {column!r} is missing in {names[:5]}; expected it in every file")
    named = not all(isinstance(one.ids, RowNumbers) for one in several)
    captioned = any(one.captions for one in several)
    return Embeddings(
        shards,
        tuple(name for one in several for name in one.ids) if named else RowNumbers(len(shards)),
        {column: Labels.joined([one.labels[column] for one in several]) for column in columns},
        tuple(text for one in several for text in one.captions or ("",) * len(one)) if captioned else (),
        {**several[0].about, "file": called, "shards": len(files)},
    ), rows or None


def _name(path: Path, keys: Keys) -> str:
    """What the features of a .safetensors file are called there."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        names = set(file.keys())
    features = keys.get("features", "features" if "features" in names else "image")
    return features if isinstance(features, str) else features[0]


def _columns(files: Sequence[Path], keys: Keys, called: str, about: dict[str, Any]) -> dict[str, Any]:
    """Ids, labels and captions of a table in one or several files."""
    pa = need("pyarrow")
    renamed = {ours: theirs for ours, theirs in keys.items() if ours != "features" and isinstance(theirs, str)}
    table = pa.concat_tables([_table(path) for path in files], promote_options="permissive")
    there = {ours: ours for ours in ("ids", "captions") if ours in table.column_names} | {
        ours: theirs for ours, theirs in renamed.items() if ours in ("ids", "captions")
    }
    fields: dict[str, Any] = {ours: tuple(as_texts(column_of(table, of, called), called)) for ours, of in there.items()}
    chosen = {ours.removeprefix("label."): theirs for ours, theirs in renamed.items() if ours.startswith("label.")}
    every = {name.removeprefix("label."): name for name in table.column_names if name not in there.values()}
    labels, ignored = {}, []
    for column, name in (chosen or every).items():
        try:
            labels[column] = as_labels(column_of(table, name, called), None, f"{called}: column {name!r}")
        except InvalidInputError:
            if chosen:
                raise
            ignored.append(name)
    about |= {"ignored": ignored} if ignored else {}
    return fields | {"labels": labels}


def _table(path: Path) -> Any:
    """The columns of a file but for lists, which features are."""
    if path.suffix != ".parquet":
        return read_table(path)
    pa, pq = need("pyarrow"), need("pyarrow.parquet")
    try:
        with pq.ParquetFile(path) as file:
            plain = [field.name for field in file.schema_arrow if not pa.types.is_nested(field.type)]
            return file.read(columns=plain)
    except (OSError, pa.ArrowException) as error:
        raise InvalidInputError(f"{path}: cannot be read as parquet: {error}") from None
