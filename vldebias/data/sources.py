"""Open data sets by name, and load Waterbirds, CelebA and FairFace from their released layouts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vldebias.data.catalog import DATA
from vldebias.data.dataset import ImageData, NoImagesError, file_images
from vldebias.data.folders import existing_names
from vldebias.data.labels import Labels, Names, mapped_columns
from vldebias.data.manifest import coded_labels, known_labels, labels_of
from vldebias.data.releases import (
    WATERBIRDS_FOLDERS,
    fairface_parts,
    find_celeba,
    find_fairface,
    find_in_release,
    find_waterbirds,
)
from vldebias.data.splits import SPLIT, files_name_split, rows_of_split
from vldebias.data.tables import as_texts, column_of, read_table
from vldebias.errors import InvalidInputError, Lazily, check_kind, did_you_mean, warn_of_input
from vldebias.utils.table_rows import find_column, plain_name

if TYPE_CHECKING:
    import pyarrow as pa

    from vldebias.data.huggingface import ImageStream
else:
    pa = Lazily("pyarrow")
pq = Lazily("pyarrow.parquet")

SPLITS = {"0": "train", "1": "val", "2": "test"}  # codes used by Waterbirds and CelebA


def _folder_with(files: Sequence[str], base: Path, folders: Sequence[str]) -> Path:
    """Return the first folder that contains the first file, defaulting to `base`."""
    for folder in folders:
        if (base / folder / files[0]).is_file():
            return base / folder
    return base


def _first_column(table: pa.Table, names: Sequence[str]) -> str:
    """Return the first name that is a table column, defaulting to the first name."""
    present = [name for name in names if name in table.column_names]
    return (*present, names[0])[0]


def _has_parquet(root: Path) -> bool:
    """Return True for a parquet file with images, or a folder of such files, as on the hub."""
    return (
        next(root.rglob("*.parquet"), None) is not None
        if root.is_dir()
        else (root.suffix == ".parquet")
    )


def _open_parquet(
    data: str, root: Path, split: str, columns: Mapping[str, tuple[Sequence[str], Names]]
) -> ImageData:
    """Open a copy of a data set in parquet, as on the Hugging Face hub.

    Args:
        data: data set name.
        root: a file, or a folder whose files are named after splits.
        split: the split, named by a column `split` or by the names of the files. A file without
            any split is read completely, with a warning.
        columns: label -> names of its column, and its known values.

    Raises:
        InvalidInputError: If a column is missing, or a training split is not named.
    """
    from vldebias.data.huggingface import open_huggingface  # imports the hub's libraries

    file = root if root.is_file() else next(root.rglob("*.parquet"))
    names = pq.read_schema(file).names
    found = {}
    for label, (spellings, _) in columns.items():
        column = next(filter(None, (find_column(names, name) for name in spellings)), None)
        if column is None:
            raise InvalidInputError(
                f"{data}: {file}: expected a column {' or '.join(spellings)}; the columns are"
                f" {names}; open a copy with other columns as 'huggingface' (labels=...)"
            )
        found[label] = column
    part = split
    if root.is_file() and SPLIT not in names and not files_name_split([root], split):
        if split == "train":
            raise InvalidInputError(
                f"{data}: {root}: expected a column {SPLIT!r} or a file named train.parquet for"
                " the split 'train'; pass the folder with the files of all splits"
            )
        part = "all"
        if split != "all":
            warn_of_input(f"{data}: {root} names no split {split!r}; all of its rows are read")
    opened = open_huggingface(root, part, labels=found)
    assert isinstance(opened, ImageData)  # a stream is not requested
    labels = {}
    for label, column in found.items():
        place = f"{data}: {file}: column {column!r}"
        known = mapped_columns(columns[label][1] or ())
        # Class columns already have the names of the values.
        known |= {value: value for value in known.values()}
        labels[label] = known_labels(opened.labels[label], known, place)
    return replace(opened, name=data, split=split, labels=labels)


_WATERBIRDS = {
    "label": (("y", "label"), {"0": "landbird", "1": "waterbird"}),
    "place": (("place", "a", "background"), {"0": "land", "1": "water"}),
}


def open_waterbirds(root: Path, split: str = "test") -> ImageData:
    """Open a split of Waterbirds (Sagawa et al., 2020).

    The label columns are `label` (landbird, waterbird) and `place` (land, water).

    Args:
        root: folder with metadata.csv or SubpopBench's metadata_waterbirds.csv, or the parent of
            this folder or of a folder "waterbirds" that contains it; or parquet with images, a
            file or a folder, as on the Hugging Face hub.
        split: train, val, test or all.
    """
    if _has_parquet(root):
        return _open_parquet("waterbirds", root, split, _WATERBIRDS)
    path = find_waterbirds(root)
    table = read_table(path)
    rows = rows_of_split("waterbirds", split, coded_labels(table, "split", SPLITS, path))
    # SubpopBench and other copies rename two of the columns.
    file_column = _first_column(table, ("img_filename", "filename"))
    place_column = _first_column(table, ("place", "a", "background"))
    files = as_texts(column_of(table, file_column, path), str(path))
    labels = {
        "label": coded_labels(table, "y", _WATERBIRDS["label"][1], path)[rows],
        "place": coded_labels(table, place_column, _WATERBIRDS["place"][1], path)[rows],
    }
    images = _folder_with(files, path.parent, WATERBIRDS_FOLDERS)
    return file_images("waterbirds", split, images, [files[i] for i in rows], labels)


def open_celeba(root: Path, split: str = "test") -> ImageData:
    """Open a split of CelebA (Liu et al., 2015).

    The label columns are `label` (blond, dark), `gender` (female, male) and the 40 attributes (no,
    yes). As in the paper, dark means "not blond" and includes grey, red and bald.

    Args:
        root: folder with the tables and images, or with Anno/, Eval/ and Img/ as released, or its
            parent. Two merged tables are also supported: JTT's metadata.csv (image_id, attributes,
            split), and SubpopBench's metadata_celeba.csv, which only has the attributes `y`
            (blond) and `a` (male). Parquet with images, a file or a folder, is read as on the
            Hugging Face hub, with a column for each attribute.
        split: train, val, test or all.
    """
    if _has_parquet(root):
        file = root if root.is_file() else next(root.rglob("*.parquet"))
        columns: dict[str, tuple[Sequence[str], Names]] = {
            "label": (("Blond_Hair", "y"), {"-1": "dark", "0": "dark", "1": "blond"}),
            "gender": (("Male", "a"), {"-1": "female", "0": "female", "1": "male"}),
        }
        for field in pq.read_schema(file):
            is_id = plain_name(field.name) in ("celeb_id", "id", "identity", "split", "y", "a")
            if not is_id and (pa.types.is_boolean(field.type) or pa.types.is_integer(field.type)):
                columns[field.name] = ((field.name,), {"-1": "no", "0": "no", "1": "yes"})
        return _open_parquet("celeba", root, split, columns)
    paths, images = find_celeba(root)
    table = _celeba_table(paths)
    path = paths[0]
    file_column = _first_column(table, ("image_id", "filename"))
    files = as_texts(column_of(table, file_column, path), str(path))
    rows = rows_of_split("celeba", split, coded_labels(table, "split", SPLITS, path))

    def binary(name: str, no: str, yes: str) -> Labels:
        # "No" is encoded as -1, or as 0 in some copies.
        return coded_labels(table, name, {"-1": no, "0": no, "1": yes}, path)[rows]

    labels = {
        "label": binary(_first_column(table, ("Blond_Hair", "y")), "dark", "blond"),
        "gender": binary(_first_column(table, ("Male", "a")), "female", "male"),
    }
    # Merged tables also have a column of row numbers, which is unnamed or named id.
    not_attributes = {file_column, "split", "id", "y", "a", ""}
    for name in table.column_names:
        if name not in not_attributes and not name.startswith("Unnamed"):
            labels[name] = binary(name, "no", "yes")
    return file_images("celeba", split, images, [files[row] for row in rows], labels)


def _celeba_table(paths: Sequence[Path]) -> pa.Table:
    """Return a table of CelebA's images with their attributes and splits.

    Args:
        paths: a merged table, or the attribute table and the split table.

    Raises:
        InvalidInputError: If an image has no split.
    """
    if len(paths) == 1:
        return read_table(paths[0])
    attributes = _read_celeba(paths[0], 2)
    partition = _read_celeba(paths[1], 0)
    files = as_texts(attributes.column(0).combine_chunks(), str(paths[0]))
    splits = as_texts(partition.column(1).combine_chunks(), str(paths[1]))
    # The partition may list the images in any order.
    split_of_file = dict(zip(partition.column(0).to_pylist(), splits, strict=True))
    missing = [file for file in files if file not in split_of_file]
    if missing:
        raise InvalidInputError(
            f"{paths[1]}: expected a split for every image, but {len(missing)} images with"
            f" attributes have none, such as {missing[:3]}"
        )
    column = pa.array([split_of_file[file] for file in files])
    table = attributes.rename_columns(["image_id", *attributes.column_names[1:]])
    return table.append_column("split", column)


def _read_celeba(path: Path, header: int) -> pa.Table:
    """Load a CelebA table: a .csv file, or a .txt file with space-separated columns.

    Args:
        path: the table, whose first column contains file names.
        header: number of header lines in a .txt file. The last one names all columns except the
            first.
    """
    if path.suffix == ".csv":
        return read_table(path)
    text = path.read_text(encoding="utf-8", errors="replace")
    lines = [line.split() for line in text.splitlines()]
    # The header of the released file names the attributes, but not the column of file names.
    columns = ["image_id"]
    if 0 < header <= len(lines):
        columns += lines[header - 1]
    else:
        columns.append("partition")
    rows = [line for line in lines[header:] if line]
    wrong = [" ".join(row)[:60] for row in rows if len(row) != len(columns)]
    if wrong or not rows:
        raise InvalidInputError(
            f"{path}: expected lines with a file name and {len(columns) - 1} values, got"
            f" {wrong[:1]}"
        )
    return pa.table(dict(zip(columns, zip(*rows, strict=True), strict=True)))


_FAIRFACE = {
    "gender": ("Male", "Female"),
    "race": (
        "White",
        "Black",
        "Latino_Hispanic",
        "East Asian",
        "Southeast Asian",
        "Indian",
        "Middle Eastern",
    ),
    "age": ("0-2", "3-9", "10-19", "20-29", "30-39", "40-49", "50-59", "60-69", "more than 70"),
}


def open_fairface(root: Path, split: str = "val") -> ImageData:
    """Open a split of FairFace (Karkkainen and Joo, 2021).

    The label columns are `gender`, `race` and `age`, with the original values. Images are in the
    folder of the label files or in "fairface-img-margin025-trainval".

    Args:
        root: folder with the label files, or its parent; or parquet with images, a file or a
            folder, as on the Hugging Face hub.
        split: train, val or all. The paper uses val.
    """
    if _has_parquet(root):
        columns = {name: ((name,), known) for name, known in _FAIRFACE.items()}
        return _open_parquet("fairface", root, split, columns)
    paths, images = find_fairface(root, split)
    table = pa.concat_tables(map(read_table, paths), promote_options="default")
    files = as_texts(column_of(table, "file", paths[-1]), str(paths[-1]))
    # Some copies have paths like "fairface/val/1.jpg", so search for the first file's folder.
    if not any((images / file).is_file() for file in existing_names(images, files[:3])):
        for part in fairface_parts(split):
            find_in_release("fairface", images, [part], [""])
    labels = {}
    for name, known in _FAIRFACE.items():
        place = f"{paths[-1]}: column {name!r}"
        labels[name] = known_labels(labels_of(table, name, None, paths[-1]), known, place)
    return file_images("fairface", split, images, files, labels)


def list_data() -> list[str]:
    """Return the sorted names of the data sets that `open_data` accepts.

    >>> "waterbirds" in list_data()
    True
    """
    return sorted(DATA)


def open_data(
    name: str, root: str | Path | None = None, split: str | None = None, **options: object
) -> ImageData | ImageStream:
    """Open a data set by name. Labels are loaded immediately, images on demand.

    Args:
        name: data set name, as in `list_data`.
        root: data set folder (a file for "manifest", a hub id for "huggingface"). Default: a folder
            in the working directory with one of the data set's names.
        split: train, val, test or all, depending on the data set. Default: the split for which
            results are usually reported.
        options: reader options, such as those of `vldebias.data.manifest.open_manifest`.

    Raises:
        InvalidInputError: If the name, an option or the split is unknown, or the data do not exist.

    >>> data = open_data("waterbirds", "data/waterbirds", "test")  # doctest: +SKIP
    >>> data.labels["label"].names  # doctest: +SKIP
    ('landbird', 'waterbird')
    """
    check_kind("root", root, str | os.PathLike | None, "the path of a file or folder")
    if name not in DATA:
        raise InvalidInputError(
            f"unknown data set {name!r}; {did_you_mean(name, DATA, 'choose another.')} Expected"
            f" one of {', '.join(list_data())}; open the worlds 'birds' and 'portraits' with"
            " vldebias.miniature.open_world, and your own table with 'manifest'"
        )
    data_set = DATA[name]
    known = data_set.options()
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise InvalidInputError(
            f"{name}: unknown options {unknown}; expected"
            f" {', '.join(known) or 'none for this data set'}"
        )
    read = data_set.load_reader()
    try:
        found = read(data_set.find_root(root), split or data_set.split, **options)
    except NoImagesError as error:
        expected = f"; the data set consists of {data_set.layout}" if data_set.layout else ""
        raise InvalidInputError(f"{error}{expected}") from None
    if isinstance(found, ImageData):
        missing = [column for column in data_set.columns if column not in found.labels]
        # With options, do not check the columns, because options may select different ones.
        if missing and not options:
            raise InvalidInputError(
                f"data set {name!r}: its reader returned the columns {list(found.labels)}, without"
                f" {', '.join(missing)}; return them, or remove them from `columns`"
            )
        return found
    # Imported here, because `vldebias.data.huggingface` imports the hub libraries.
    from vldebias.data.huggingface import ImageStream

    if not isinstance(found, ImageStream):
        raise InvalidInputError(
            f"data set {name!r}: its reader returned {found!r}; expected an ImageData, such as the"
            " result of vldebias.data.file_images"
        )
    return found
