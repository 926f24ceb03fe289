"""Open every data set by name, and read the layouts of Waterbirds, CelebA and FairFace."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vldebias.data.catalog import DATA
from vldebias.data.dataset import ImageData, file_images
from vldebias.data.folders import existing_names
from vldebias.data.manifest import coded_labels, known_labels, rows_of_split
from vldebias.data.releases import (
    WATERBIRDS_FOLDERS,
    fairface_parts,
    find_celeba,
    find_fairface,
    find_in_release,
    find_waterbirds,
)
from vldebias.data.tables import Labels, as_texts, column_of, read_table
from vldebias.errors import InvalidInputError, Lazily, did_you_mean

if TYPE_CHECKING:
    import pyarrow as pa

    from vldebias.data.huggingface import ImageStream
else:
    pa = Lazily("pyarrow")

SPLITS = {"0": "train", "1": "val", "2": "test"}  # as Waterbirds and CelebA number them


def _folder_with(files: Sequence[str], base: Path, folders: Sequence[str]) -> Path:
    """Return the first of some folders below `base` that has the first of some files; `base` if
    none has."""
    for folder in folders:
        if (base / folder / files[0]).is_file():
            return base / folder
    return base


def _first_column(table: pa.Table, names: Sequence[str]) -> str:
    """Return the first of some names that a table has; the usual one where it has none."""
    present = [name for name in names if name in table.column_names]
    return (*present, names[0])[0]


def open_waterbirds(root: Path, split: str = "test") -> ImageData:
    """Open one split of Waterbirds (Sagawa et al., 2020): `label` (landbird, waterbird) and `place`
    (land, water).

    Args:
        root: the folder with metadata.csv, or the one above, there also in "waterbirds"; or with
            SubpopBench's metadata_waterbirds.csv.
        split: train, val, test or all.
    """
    path = find_waterbirds(root)
    table = read_table(path)
    rows = rows_of_split("waterbirds", split, coded_labels(table, "split", SPLITS, path))
    # SubpopBench and others rename two of the columns.
    file_column = _first_column(table, ("img_filename", "filename"))
    place_column = _first_column(table, ("place", "a", "background"))
    files = as_texts(column_of(table, file_column, path), str(path))
    labels = {
        "label": coded_labels(table, "y", {"0": "landbird", "1": "waterbird"}, path)[rows],
        "place": coded_labels(table, place_column, {"0": "land", "1": "water"}, path)[rows],
    }
    images = _folder_with(files, path.parent, WATERBIRDS_FOLDERS)
    return file_images("waterbirds", split, images, [files[i] for i in rows], labels)


def open_celeba(root: Path, split: str = "test") -> ImageData:
    """Open one split of CelebA (Liu et al., 2015): `label`, `gender` (female, male) and the 40
    attributes (no, yes).

    `label` is blond or dark. Dark is "not blond", as in the paper: grey, red and bald count as
    dark.

    Args:
        root: the folder with the tables and images, or with Anno/, Eval/ and Img/ as released, or
            the one above. Tables that others have merged are read too: metadata.csv of JTT
            (image_id, attributes, split), and SubpopBench's metadata_celeba.csv, which has no
            attributes besides `y` (blond) and `a` (male).
        split: train, val, test or all.
    """
    paths, images = find_celeba(root)
    table = _celeba_table(paths)
    path = paths[0]
    file_column = _first_column(table, ("image_id", "filename"))
    files = as_texts(column_of(table, file_column, path), str(path))
    rows = rows_of_split("celeba", split, coded_labels(table, "split", SPLITS, path))

    def binary(name: str, no: str, yes: str) -> Labels:  # absent is written -1, in some copies 0
        return coded_labels(table, name, {"-1": no, "0": no, "1": yes}, path)[rows]

    labels = {
        "label": binary(_first_column(table, ("Blond_Hair", "y")), "dark", "blond"),
        "gender": binary(_first_column(table, ("Male", "a")), "female", "male"),
    }
    # Merged tables also have columns of row numbers, without a name or called id.
    not_attributes = {file_column, "split", "id", "y", "a", ""}
    for name in table.column_names:
        if name not in not_attributes and not name.startswith("Unnamed"):
            labels[name] = binary(name, "no", "yes")
    return file_images("celeba", split, images, [files[row] for row in rows], labels)


def _celeba_table(paths: Sequence[Path]) -> pa.Table:
    """Return the table of CelebA's images with their attributes and split.

    Args:
        paths: a merged table, or the tables of attributes and of splits.

    Raises:
        InvalidInputError: images without a split.
    """
    if len(paths) == 1:
        return read_table(paths[0])
    attributes = _read_celeba(paths[0], 2)
    partition = _read_celeba(paths[1], 0)
    files = as_texts(attributes.column(0).combine_chunks(), str(paths[0]))
    splits = as_texts(partition.column(1).combine_chunks(), str(paths[1]))
    # The partition may list the images in any order.
    split_of_file = dict(zip(partition.column(0).to_pylist(), splits, strict=True))
    lost = [file for file in files if file not in split_of_file]
    if lost:
        raise InvalidInputError(
            f"{paths[1]}: {len(lost)} images have attributes but no split, such as {lost[:3]}"
        )
    column = pa.array([split_of_file[file] for file in files])
    table = attributes.rename_columns(["image_id", *attributes.column_names[1:]])
    return table.append_column("split", column)


def _read_celeba(path: Path, header: int) -> pa.Table:
    """Read a table whose first column has file names; in .txt columns are separated by one or more
    blanks.

    header: lines before the first row of a .txt file; the last of them names all columns but the
    first.
    """
    if path.suffix == ".csv":
        return read_table(path)
    text = path.read_text(encoding="utf-8", errors="replace")
    lines = [line.split() for line in text.splitlines()]
    # The header of the release names the attributes alone.
    columns = ["image_id"]
    if 0 < header <= len(lines):
        columns += lines[header - 1]
    else:
        columns.append("partition")
    rows = [line for line in lines[header:] if line]
    wrong = [" ".join(row)[:60] for row in rows if len(row) != len(columns)]
    if wrong or not rows:
        raise InvalidInputError(
            f"{path}: expected lines of a file name and {len(columns) - 1} values, got {wrong[:1]}"
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
    """Open one split of FairFace (Karkkainen and Joo, 2021): `gender`, `race` and `age`, by the
    names of the data set.

    Images lie next to the label files or in "fairface-img-margin025-trainval".

    Args:
        root: the folder with the label files, or the one above.
        split: train, val or all. The paper measures on val.
    """
    paths, images = find_fairface(root, split)
    table = pa.concat_tables(map(read_table, paths), promote_options="default")
    files = as_texts(column_of(table, "file", paths[-1]), str(paths[-1]))
    # Copies write "fairface/val/1.jpg", which shows where val is.
    if not any((images / file).is_file() for file in existing_names(images, files[:3])):
        for part in fairface_parts(split):
            find_in_release("fairface", images, [part], [""])
    labels = {
        name: known_labels(table, name, known, paths[-1]) for name, known in _FAIRFACE.items()
    }
    return file_images("fairface", split, images, files, labels)


def list_data() -> list[str]:
    """Return the names that `open_data` knows, sorted."""
    return sorted(DATA)


def open_data(
    name: str, root: str | Path | None = None, split: str | None = None, **options: object
) -> ImageData | ImageStream:
    """Open a data set by name; read labels, not images.

    Args:
        name: see `list_data`.
        root: its folder (a file for "manifest", also an id for "huggingface"). None: a folder of
            the data set in the working folder.
        split: train, val, test or all, as far as the data set has them; by default the one figures
            are reported on.
        options: options of the reader, such as those of `vldebias.data.manifest.open_manifest`.

    Raises:
        InvalidInputError: unknown name, option or split, or no data there; it says where to get the
            data.
    """
    if name not in DATA:
        raise InvalidInputError(
            f"unknown data set {name!r}; {did_you_mean(name, DATA, 'choose another.')} There"
            f" are: {', '.join(list_data())}; the worlds 'birds' and 'portraits' are opened with"
            " vldebias.miniature.open_world. A folder of your own is a 'manifest'"
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
    found = read(data_set.find_root(root), split or data_set.split, **options)
    if isinstance(found, ImageData):
        return found
    # Only now: the module imports what it takes to ask the hub.
    from vldebias.data.huggingface import ImageStream

    if not isinstance(found, ImageStream):
        raise InvalidInputError(
            f"data set {name!r}: its reader returned {found!r}; expected an ImageData, such as the"
            " result of vldebias.data.file_images"
        )
    return found
