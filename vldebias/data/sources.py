"""Every data set by name: what its folder should look like, where one gets it, how its labels are read."""

from __future__ import annotations

import inspect
import io
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vldebias.data.captions import one_row_per_image
from vldebias.data.dataset import ImageData, ImageStream
from vldebias.data.huggingface import LAYOUT, open_huggingface
from vldebias.data.labels import Labels
from vldebias.data.pictures import file_images
from vldebias.data.tables import (
    ColumnNames,
    Names,
    as_labels,
    as_texts,
    captions_of,
    column_of,
    integers,
    mapped_columns,
    read_table,
)
from vldebias.errors import InvalidInputError, Lazily, did_you_mean

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = Lazily("pyarrow")
pcsv = Lazily("pyarrow.csv")

SPLITS: Mapping[str, int] = {"train": 0, "val": 1, "test": 2}  # as Waterbirds and CelebA number them
GENDERS = ("Male", "Female")  # of FairFace and UTKFace
AGES = ("0-2", "3-9", "10-19", "20-29", "30-39", "40-49", "50-59", "60-69", "more than 70")
RACES = ("White", "Black", "Latino_Hispanic", "East Asian", "Southeast Asian", "Indian", "Middle Eastern")

# ---- what the readers share --------------------------------------------------------------------------------


def _check_split(data: str, split: str, known: Sequence[str], hint: str = "") -> None:
    if split not in known:
        raise InvalidInputError(f"{data}: expected split {' or '.join(known)}, got {split!r}{hint and f'; {hint}'}")


def _rows_of(split: str, codes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Indices of the rows of a split, in their order; `codes` as in SPLITS."""
    return np.arange(len(codes)) if split == "all" else np.flatnonzero(codes == SPLITS[split])


def _find(root: Path, names: Sequence[str], folders: Sequence[str] = ("",)) -> Path | None:
    """The first of `names` in the first of `folders` of `root` that has one; None where none has."""
    paths = (root / folder / name for folder in folders for name in names)
    return next((path for path in paths if path.exists()), None)


# ---- Waterbirds (Sagawa et al., 2020): landbirds and waterbirds cut out and put in front of land and water ---

WATERBIRDS = "metadata.csv (img_filename, y, split, place) and the images that it names beside it"


def open_waterbirds(root: Path, split: str = "test") -> ImageData:
    """One split with columns `label` (landbird, waterbird) and `place` (land, water).

    root: the folder with metadata.csv, or the one above.

    Raises:
        InvalidInputError: another layout or split, or values that the format does not have.
    """
    _check_split("waterbirds", split, (*SPLITS, "all"))
    # of group_DRO and of WILDS
    path = _find(root, ["metadata.csv"], ("", "waterbird_complete95_forest2water2", "waterbirds_v1.0"))
    if path is None:
        raise InvalidInputError(f"waterbirds: no metadata.csv in {root}; expected {WATERBIRDS}")
    table = read_table(path)

    def codes(column: str, n: int) -> NDArray[np.int64]:
        return integers(column_of(table, column, path), range(n), f"{path}: column {column!r}")

    rows = _rows_of(split, codes("split", len(SPLITS)))
    files = as_texts(column_of(table, "img_filename", path), str(path))
    labels = {
        "label": Labels(codes("y", 2)[rows], ("landbird", "waterbird")),
        "place": Labels(codes("place", 2)[rows], ("land", "water")),
    }
    return file_images("waterbirds", split, path.parent, [files[i] for i in rows], labels)


# ---- CelebA (Liu et al., 2015): celebrities with 40 attributes, as the official text files or as csv ---------

CELEBA = (
    "list_attr_celeba and list_eval_partition, .txt or .csv, and the folder img_align_celeba (once more inside itself "
    "as on Kaggle is fine)"
)
_CELEBA_ROOTS = ("", "data", "celeba", "celebA_v1.0")  # data: group_DRO; v1.0: WILDS; Anno, Eval, Img: the release


def open_celeba(root: Path, split: str = "test") -> ImageData:
    """One split with columns `label` (dark, blond), `gender` (female, male) and the 40 attributes by name (no, yes).

    Dark is "not blond", as in the paper: grey, red and bald count as dark.

    Raises:
        InvalidInputError: another layout or split, images without a partition, or values that the format lacks.
    """
    _check_split("celeba", split, (*SPLITS, "all"))

    def table_path(stem: str) -> Path:
        path = _find(root, [f"{stem}.csv", f"{stem}.txt"], (*_CELEBA_ROOTS, "Anno", "Eval"))
        if path is None:
            raise InvalidInputError(f"celeba: no {stem}.txt or {stem}.csv in {root}; expected {CELEBA}")
        return path

    attributes_path, partition_path = table_path("list_attr_celeba"), table_path("list_eval_partition")
    images = _find(root, ("img_align_celeba/img_align_celeba", "img_align_celeba"), (*_CELEBA_ROOTS, "Img"))
    if images is None:
        raise InvalidInputError(f"celeba: no folder img_align_celeba in {root}; expected {CELEBA}")
    attributes = _read_celeba(attributes_path, header_line=1)
    files = as_texts(attributes.column(0).combine_chunks(), str(attributes_path))
    partition = _read_celeba(partition_path)  # in any order
    splits = integers(partition.column(1).combine_chunks(), list(SPLITS.values()), f"{partition_path}: column 1")
    places = {file: place for place, file in reversed(list(enumerate(partition.column(0).to_pylist())))}
    lost = [file for file in files if file not in places]
    if lost:
        raise InvalidInputError(
            f"{partition_path}: {len(lost)} images have attributes but no split, such as {lost[:3]}"
        )
    rows = _rows_of(split, splits[[places[file] for file in files]])
    present = {}
    for name in attributes.column_names[1:]:  # absent is written -1, in some copies 0
        column = column_of(attributes, name, attributes_path)
        values = integers(column, (-1, 0, 1), f"{attributes_path}: column {name!r}")
        present[name] = (values > 0).astype(np.int64)[rows]
    for name in ("Blond_Hair", "Male"):
        if name not in present:
            raise InvalidInputError(f"{attributes_path}: expected a column {name!r}; there are {list(present)}")
    labels = {
        "label": Labels(present["Blond_Hair"], ("dark", "blond")),
        "gender": Labels(present["Male"], ("female", "male")),
        **{name: Labels(codes, ("no", "yes")) for name, codes in present.items()},
    }
    return file_images("celeba", split, images, [files[i] for i in rows], labels)


def _read_celeba(path: Path, header_line: int | None = None) -> pa.Table:
    """A table whose first column holds file names; in .txt columns are kept apart by one or more blanks.

    header_line: the line of a .txt file that names all columns but the first; None where no line does.
    """
    if path.suffix == ".csv":
        return read_table(path)
    lines = path.read_bytes().splitlines()
    header = [] if header_line is None else lines[: header_line + 1]
    names = header[-1].decode(errors="replace").split() if header else ["partition"]
    body = re.sub(rb" *\n *", b"\n", re.sub(rb"  +", b" ", b"\n".join(lines[len(header) :]).strip()))
    columns = ["image_id", *names]
    try:
        return pcsv.read_csv(
            io.BytesIO(body),
            read_options=pcsv.ReadOptions(column_names=columns),
            parse_options=pcsv.ParseOptions(delimiter=" "),
            convert_options=pcsv.ConvertOptions(column_types=dict.fromkeys(columns, pa.string())),
        )
    except pa.ArrowException as error:
        raise InvalidInputError(f"{path}: expected a file name and {len(names)} values in a line: {error}") from error


# ---- FairFace (Karkkainen and Joo, 2021): faces balanced over seven race labels, with gender and age in bins -

FAIRFACE = "fairface_label_val.csv and fairface_label_train.csv (file, age, gender, race), and the folders val/, train/"
_FAIRFACE_COLUMNS = {"gender": GENDERS, "race": RACES, "age": AGES}
_PADDINGS = ("0.25", "1.25")  # margin around the face; the authors' main experiments use 0.25


def open_fairface(root: Path, split: str = "val", *, padding: str = "0.25") -> ImageData:
    """One split with columns `gender`, `race` and `age`, by the names that the data set gives them.

    root: the folder with the label files; images lie beside them or in "fairface-img-margin025-trainval".
    padding: which of the two crops to take where both are there: "0.25" or "1.25".

    Raises:
        InvalidInputError: another layout or split, or a label that FairFace does not have.
    """
    no_test = "FairFace has no test split; the paper measures on val"
    _check_split("fairface", split, ("train", "val", "all"), no_test if split == "test" else "")
    if padding not in _PADDINGS:
        raise InvalidInputError(f"fairface: expected padding {' or '.join(_PADDINGS)}, got {padding!r}")
    cropped = f"fairface-img-margin{padding.replace('.', '')}-trainval"
    parts = ("train", "val") if split == "all" else (split,)
    files: list[str] = []
    codes: dict[str, list[NDArray[np.int64]]] = {column: [] for column in _FAIRFACE_COLUMNS}
    for part in parts:
        path = _find(root, [f"fairface_label_{part}.csv"], ("", "labels", cropped))
        if path is None:
            raise InvalidInputError(f"fairface: no fairface_label_{part}.csv in {root}; expected {FAIRFACE}")
        table = read_table(path)
        files += as_texts(column_of(table, "file", path), str(path))
        for column, names in _FAIRFACE_COLUMNS.items():
            codes[column].append(as_labels(column_of(table, column, path), names, f"{path}: column {column!r}").codes)
    images = _find(root, [cropped]) or root
    missing = [part for part in parts if not (images / part).is_dir()]
    if missing:
        raise InvalidInputError(f"fairface: no folder {missing[0]}/ in {images}; expected {FAIRFACE}")
    labels = {column: Labels(np.concatenate(codes[column]), names) for column, names in _FAIRFACE_COLUMNS.items()}
    return file_images("fairface", split, images, files, labels, about={"padding": padding})


# ---- UTKFace (Zhang, Song and Qi, 2017): faces whose age, gender and race stand in the file name -------------

UTKFACE = "images named [age]_[gender]_[race]_[date].jpg, in the folder itself, in UTKFace/, or in part1/ to part3/"
_UTKFACE_RACES = ("White", "Black", "Asian", "Indian", "Others")
# Three labels and a date; what follows varies (".jpg", ".jpg.chip.jpg", a few with a blank) and does not matter.
_UTKFACE_NAME = re.compile(r"(\d{1,3})_([01])_([0-4])_\d{14}")
_OLDEST = 116
_BINS = (3, 10, 20, 30, 40, 50, 60, 70)  # first year of each of FairFace's bins but the first


def open_utkface(root: Path, split: str = "all") -> ImageData:
    """All images with columns `gender`, `race`, `age` (FairFace's nine bins) and `years`, sorted by name.

    Images whose name lacks a label (the release has some) are left out; `about` counts and lists them.

    Raises:
        InvalidInputError: another layout, or a split: the data set has no official one.
    """
    _check_split("utkface", split, ("all",), "UTKFace has no official splits")
    files = _utkface_files(root)
    matches = {file: _UTKFACE_NAME.match(file.rpartition("/")[2]) for file in files}
    read = {file: [int(part) for part in match.groups()] for file, match in matches.items() if match}
    good = {file: values for file, values in read.items() if values[0] <= _OLDEST}
    if not good:
        raise InvalidInputError(f"utkface: {len(files)} images in {root}, none with a name as expected: {UTKFACE}")
    malformed = sorted(set(files) - set(good))
    years, gender, race = np.array(list(good.values()), dtype=np.int64).T
    labels = {
        "gender": Labels(gender, GENDERS),
        "race": Labels(race, _UTKFACE_RACES),
        "age": Labels(np.digitize(years, _BINS), AGES),
        "years": Labels(years, tuple(map(str, range(_OLDEST + 1)))),
    }
    about = {"malformed": len(malformed), "malformed files": malformed}
    return file_images("utkface", split, root, list(good), labels, about=about)


def _utkface_files(root: Path) -> list[str]:
    """Paths below root of the images in the first of the known layouts that has any.

    Not of all folders: copies of the data set hold the same faces twice, cropped and not.
    """
    for folders in ([""], ["UTKFace"], ["part1", "part2", "part3"]):
        there = [folder for folder in folders if (root / folder).is_dir()]
        names = [f"{folder}/{entry.name}".lstrip("/") for folder in there for entry in os.scandir(root / folder)]
        pictures = sorted(name for name in names if name.lower().endswith((".jpg", ".jpeg", ".png")))
        if pictures:
            return pictures
    raise InvalidInputError(f"utkface: no images in {root}; expected {UTKFACE}")


# ---- a table of your own that lists images: csv, tsv, parquet or jsonl, its columns mapped by options --------

MANIFEST = "a .csv, .tsv, .parquet or .jsonl file with a column of image paths, relative to it"


def open_manifest(
    root: Path,
    split: str = "all",
    *,
    image: str = "image",
    caption: str | None = None,
    id: str | None = None,
    labels: ColumnNames = (),
    names: Mapping[str, Names] | None = None,
    unknown: Any = (),
    split_column: str | None = None,
    images: str | Path | None = None,
    allow_outside: bool = False,
    name: str | None = None,
) -> ImageData:
    """The rows of a table whose `split_column` says `split`; all rows for "all".

    Args:
        root: the table.
        split: a value of `split_column`, or "all".
        image: column of paths, relative to `images`.
        caption: column of texts; or in jsonl and parquet of lists of texts, see `vldebias.data.ImageData`. An image on
            several rows becomes one row with several captions.
        id: column of names that tell the rows apart, by default the paths.
        labels: columns that are labels, as a list or as {name here: name in the table}; empty cells are unknown.
        names: for a label, its values in their order, or {value in the table: name}; by default those found, sorted.
        unknown: a value of labels that means "not known", such as -1, or several.
        split_column: column that names the split.
        images: folder that the paths start from, by default that of the table.
        allow_outside: take absolute paths and paths with "..", which are refused otherwise.
        name: what reports call the data, by default the stem of the file.

    Raises:
        InvalidInputError: a column that is not there (the message lists those that are), a value without a name, a
            split without rows, an image twice without captions, a path that leads out.
    """
    path = Path(root)
    table = read_table(path)

    def texts(column: str) -> list[str]:
        return as_texts(column_of(table, column, path), f"{path}: column {column!r}")

    def labels_in(column: str, known: Names = None) -> Labels:
        return as_labels(column_of(table, column, path), known, f"{path}: column {column!r}", unknown)

    if split != "all":
        if split_column is None:
            raise InvalidInputError(
                f"{path}: split {split!r} needs split_column, the column that names it; without one take split 'all'"
            )
        splits = as_labels(column_of(table, split_column, path), None, f"{path}: column {split_column!r}")
        if split not in splits.names:
            raise InvalidInputError(f"{path}: expected split {' or '.join((*splits.names, 'all'))}, got {split!r}")
        table = table.take(np.flatnonzero(splits.codes == splits.names.index(split)))
    files = texts(image)
    if "" in files:
        raise InvalidInputError(f"{path}: {files.count('')} rows have no image in column {image!r}")
    captions, more = (
        captions_of(column_of(table, caption, path), f"{path}: column {caption!r}") if caption else ([], [])
    )
    mapped, named = mapped_columns(labels, names, str(path))
    columns = {here: labels_in(there, named.get(here)) for here, there in mapped.items()}
    ids = texts(id) if id else files
    if id is None or (captions and len(set(zip(ids, files, strict=True))) == len(set(ids))):
        rows, captions, more = one_row_per_image(str(path), ids, captions, more, columns)
        files, ids = [files[row] for row in rows], [ids[row] for row in rows]
        columns = {here: labels[rows] for here, labels in columns.items()}
    used = {image, caption, id, split_column, *mapped.values()}
    unused = [column for column in table.column_names if column not in used]
    return file_images(
        name or path.stem,
        split,
        Path(images) if images is not None else path.parent,
        files,
        columns,
        ids=ids,
        captions=captions,
        more_captions=more,
        about={"columns not used": unused} if unused else {},
        allow_outside=allow_outside,
    )


# ---- by name -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DataSource:
    """A data set that can be opened by name.

    Attributes:
        open: (root, split, **options) -> data; options are keyword-only parameters.
        split: the one that figures are reported on.
        layout: what should be in the root folder.
        source: where one gets it. Nothing is downloaded here: licences are accepted at the source, and there is no
            official checksum to verify a copy by. (`datasets` downloads and verifies its own.)
        local: the root is a folder or file on this machine.
        finds_split: where nobody names a split and `split` is not there, the only one that is there is taken.
    """

    open: Callable[..., ImageData | ImageStream]
    split: str
    layout: str
    source: str
    local: bool = True
    finds_split: bool = False

    @property
    def options(self) -> tuple[str, ...]:
        """Names of the options."""
        parameters = inspect.signature(self.open).parameters.values()
        return tuple(p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY)


_SOURCES = {
    "waterbirds": DataSource(
        open_waterbirds,
        "test",
        WATERBIRDS,
        "github.com/kohpangwei/group_DRO (waterbird_complete95_forest2water2.tar.gz) or the WILDS package",
    ),
    "celeba": DataSource(
        open_celeba,
        "test",
        CELEBA,
        "mmlab.ie.cuhk.edu.hk/projects/CelebA.html (non-commercial research), or Kaggle jessicali9530/celeba-dataset",
    ),
    "fairface": DataSource(
        open_fairface,
        "val",
        FAIRFACE,
        "github.com/joojs/fairface (CC BY 4.0): images with padding 0.25 and the labels",
    ),
    "utkface": DataSource(open_utkface, "all", UTKFACE, "susanqq.github.io/UTKFace (non-commercial research)"),
    "manifest": DataSource(open_manifest, "all", MANIFEST, "your own images"),
    "huggingface": DataSource(
        open_huggingface, "test", LAYOUT, "huggingface.co/datasets", local=False, finds_split=True
    ),
}


def list_data() -> list[str]:
    """Names that `open_data` knows, sorted."""
    return sorted(_SOURCES)


def data_source(name: str) -> DataSource:
    """What is known about a data set before it is opened.

    Raises:
        InvalidInputError: an unknown name; the message lists those there are.
    """
    if name not in _SOURCES:
        close = did_you_mean(name, _SOURCES, "")
        raise InvalidInputError(
            f"unknown data set {name!r}{f'; {close}' if close else '.'} There are: {', '.join(list_data())}; the "
            "worlds 'birds' and 'portraits' are opened with vldebias.miniature.data.open_world. A folder of your own "
            "is a 'manifest'"
        )
    return _SOURCES[name]


def register_data(name: str, source: DataSource) -> None:
    """Adds a data set of your own, so that `open_data` and the suites find it by name.

    Raises:
        InvalidInputError: the name is taken.
    """
    if name in _SOURCES:
        raise InvalidInputError(f"data set {name!r} is there already; choose another name")
    _SOURCES[name] = source


def open_data(
    name: str, root: str | Path | None = None, split: str | None = None, **options: Any
) -> ImageData | ImageStream:
    """A data set by name; reads labels, not images.

    Args:
        name: see `list_data`.
        root: its folder (a file for "manifest", also an id for "huggingface").
        split: train, val, test or all, as far as the data set has them; by default the one figures are reported on.
        options: of the reader: see `data_source(name).options` and e.g. `vldebias.data.sources.open_manifest`.

    Raises:
        InvalidInputError: unknown name, option or split, or no data there; the message says what the folder should
            look like and where one gets it.
    """
    source = data_source(name)
    unknown = sorted(set(options) - set(source.options))
    if unknown:
        raise InvalidInputError(
            f"{name}: unknown options {unknown}; expected {', '.join(source.options) or 'none for this data set'}"
        )
    if root is None:
        raise InvalidInputError(f"{name}: expected its root: {source.layout}. Get it from {source.source}")
    place: str | Path = Path(root).expanduser() if source.local else root
    if isinstance(place, Path) and not place.exists():
        raise InvalidInputError(
            f"{name}: {place} does not exist; expected {source.layout}. Get it from {source.source}"
        )
    return source.open(place, split or (None if source.finds_split else source.split), **options)
