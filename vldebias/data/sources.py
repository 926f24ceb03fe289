"""Open every data set by name, with its folder layout, its source and the meaning of its labels."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vldebias.data.binary import LAYOUTS, open_binary
from vldebias.data.captions import open_captions
from vldebias.data.dataset import ImageData, file_images
from vldebias.data.folders import existing_names
from vldebias.data.huggingface import LAYOUT, ImageStream, open_huggingface
from vldebias.data.manifest import coded_labels, known_labels, open_manifest, rows_of_split
from vldebias.data.tables import Labels, as_texts, column_of, read_table
from vldebias.errors import InvalidInputError, Lazily, did_you_mean

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = Lazily("pyarrow")

SPLITS = {"0": "train", "1": "val", "2": "test"}  # as Waterbirds and CelebA number them


def _find(data: str, root: Path, names: Sequence[str], folders: Sequence[str]) -> Path:
    """Return the first of `names` in the first of `folders` of `root` that has one."""
    for folder in folders:
        for name in names:
            path = root / folder / name
            if path.exists():
                return path
    raise InvalidInputError(
        f"{data}: no {' or '.join(names)} in {root}; expected {_SOURCES[data].layout}"
    )


def _base(root: Path, names: Sequence[str], folders: Sequence[str]) -> Path:
    """Return the folder that a release was unpacked into: `root`, or the first folder in it that
    has one of `names` in one of `folders`; `root` where none has."""
    paths = [Path(folder, name) for folder, name in product(folders, names)]
    inside = sorted(path for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
    # Below a folder of its own the code of group DRO has "data", and torchvision "celeba".
    nested = [path / below for path, below in product(inside, ("data", "celeba"))]
    # The root first: only where it does not have the files, folders inside of it are tried.
    for base in (root, *inside, *nested):
        if any((base / path).exists() for path in paths):
            return base
    return root


def _first_column(table: pa.Table, names: Sequence[str]) -> str:
    """Return the first of some names that a table has; the usual one where it has none."""
    present = [name for name in names if name in table.column_names]
    return (*present, names[0])[0]


def open_waterbirds(root: Path, split: str = "test") -> ImageData:
    """Open one split of Waterbirds (Sagawa et al., 2020): `label` (landbird, waterbird) and `place`
    (land, water).

    root: the folder with metadata.csv, or the one above, there also in "waterbirds".
    """
    names = ("", "waterbird_complete95_forest2water2", "waterbirds_v1.0")  # group_DRO's, WILDS'
    # Where the WILDS package and copies unpack it below a common root.
    folders = [*names, *(f"waterbirds/{name}" for name in names)]
    path = _find("waterbirds", root, ["metadata.csv"], folders)
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
    return file_images("waterbirds", split, path.parent, [files[i] for i in rows], labels)


def open_celeba(root: Path, split: str = "test") -> ImageData:
    """Open one split of CelebA (Liu et al., 2015): `label`, `gender` (female, male) and the 40
    attributes (no, yes).

    `label` is blond or dark. Dark is "not blond", as in the paper: grey, red and bald count as
    dark. root: the folder with the tables and images, or with Anno/, Eval/ and Img/ as released,
    or the one above.
    """
    tables = ("", "Anno", "Eval")  # of the release; copies have all in one folder
    base = _base(root, ["list_attr_celeba.csv", "list_attr_celeba.txt"], tables)
    paths = [
        _find("celeba", base, [f"{stem}.csv", f"{stem}.txt"], tables)
        for stem in ("list_attr_celeba", "list_eval_partition")
    ]
    folders = ["img_align_celeba/img_align_celeba", "img_align_celeba"]
    images = _find("celeba", base, folders, ("", "Img"))
    attributes = _read_celeba(paths[0], 2)
    partition = _read_celeba(paths[1], 0)
    files = as_texts(attributes.column(0).combine_chunks(), str(paths[0]))
    splits = coded_labels(partition, partition.column_names[1], SPLITS, paths[1])
    place = {file: i for i, file in enumerate(partition.column(0).to_pylist())}  # in any order
    lost = [file for file in files if file not in place]
    if lost:
        raise InvalidInputError(
            f"{paths[1]}: {len(lost)} images have attributes but no split, such as {lost[:3]}"
        )
    rows = rows_of_split("celeba", split, splits[[place[file] for file in files]])

    def binary(name: str, no: str, yes: str) -> Labels:  # absent is written -1, in some copies 0
        return coded_labels(attributes, name, {"-1": no, "0": no, "1": yes}, paths[0])[rows]

    labels = {
        "label": binary("Blond_Hair", "dark", "blond"),
        "gender": binary("Male", "female", "male"),
    }
    labels |= {name: binary(name, "no", "yes") for name in attributes.column_names[1:]}
    return file_images("celeba", split, images, [files[i] for i in rows], labels)


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
_FAIRFACE_IMAGES = "fairface-img-margin025-trainval"  # the crop of the authors' main experiments


def open_fairface(root: Path, split: str = "val") -> ImageData:
    """Open one split of FairFace (Karkkainen and Joo, 2021): `gender`, `race` and `age`, by the
    names of the data set.

    Images lie beside the label files or in "fairface-img-margin025-trainval". root: the folder with
    the label files, or the one above. The paper measures on val.
    """
    # FairFace has no public test labels.
    parts = ("train", "val") if split == "all" else (split,)
    tables = ("", "labels", _FAIRFACE_IMAGES)
    base = _base(root, [f"fairface_label_{part}.csv" for part in parts], tables)
    paths = [_find("fairface", base, [f"fairface_label_{part}.csv"], tables) for part in parts]
    images = base / _FAIRFACE_IMAGES if (base / _FAIRFACE_IMAGES).exists() else base
    table = pa.concat_tables(map(read_table, paths), promote_options="default")
    files = as_texts(column_of(table, "file", paths[-1]), str(paths[-1]))
    # Copies write "fairface/val/1.jpg", which shows where val is.
    if not any((images / file).is_file() for file in existing_names(images, files[:3])):
        for part in parts:
            _find("fairface", images, [part], [""])
    labels = {
        name: known_labels(table, name, known, paths[-1]) for name, known in _FAIRFACE.items()
    }
    return file_images("fairface", split, images, files, labels)


@dataclass(frozen=True)
class _Source:
    """Describe a data set.

    read: its reader. split: the one that figures are reported on. layout: of the root, and where to
    get it; nothing is downloaded.
    """

    read: Callable[..., ImageData | ImageStream]
    split: str | None
    layout: str

    def check_options(self, name: str, options: Iterable[str]) -> None:
        """Refuse options that the reader does not have; they are its keywords."""
        known = []
        for parameter in inspect.signature(self.read).parameters.values():
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                known.append(parameter.name)
        unknown = sorted(set(options) - set(known))
        if unknown:
            raise InvalidInputError(
                f"{name}: unknown options {unknown}; expected"
                f" {', '.join(known) or 'none for this data set'}"
            )


_SOURCES = {
    "waterbirds": _Source(
        open_waterbirds,
        "test",
        "metadata.csv (img_filename, y, split, place) and the images that it names beside it; get"
        " it from github.com/kohpangwei/group_DRO (waterbird_complete95_forest2water2.tar.gz) or"
        " the WILDS package",
    ),
    "celeba": _Source(
        open_celeba,
        "test",
        "list_attr_celeba and list_eval_partition, .txt or .csv, and the folder img_align_celeba,"
        " also in Anno/, Eval/ and Img/ as released; get it from"
        " mmlab.ie.cuhk.edu.hk/projects/CelebA.html (non-commercial research), or"
        " Kaggle jessicali9530/celeba-dataset",
    ),
    "fairface": _Source(
        open_fairface,
        "val",
        "fairface_label_val.csv and fairface_label_train.csv (file, age, gender, race), and the"
        " folders val/, train/; get it from github.com/joojs/fairface (CC BY 4.0): images with"
        " padding 0.25 and the labels",
    ),
    "cifar10": _Source(
        partial(open_binary, "cifar10"),
        "test",
        f"the folder {LAYOUTS['cifar10'].folder} of cs.toronto.edu/~kriz/cifar.html (binary"
        " version)",
    ),
    "cifar100": _Source(
        partial(open_binary, "cifar100"),
        "test",
        f"the folder {LAYOUTS['cifar100'].folder} of cs.toronto.edu/~kriz/cifar.html (binary"
        " version)",
    ),
    "stl10": _Source(
        partial(open_binary, "stl10"),
        "test",
        f"the folder {LAYOUTS['stl10'].folder} of cs.stanford.edu/~acoates/stl10",
    ),
    "manifest": _Source(
        open_manifest,
        "all",
        "a .csv, .tsv, .parquet or .jsonl file with a column of image paths, relative to it",
    ),
    "captions": _Source(
        open_captions,
        None,
        "images with captions: a table, COCO's captions_*.json, a folder with a text beside each"
        " image, tars, parquet, a pattern of files, or an id of the hub",
    ),
    "huggingface": _Source(
        open_huggingface, None, f"{LAYOUT}, such as one of huggingface.co/datasets"
    ),
}


def list_data() -> list[str]:
    """Return the names that `open_data` knows, sorted."""
    return sorted(_SOURCES)


def open_data(
    name: str, root: str | Path | None = None, split: str | None = None, **options: Any
) -> ImageData | ImageStream:
    """Open a data set by name; read labels, not images.

    Args:
        name: see `list_data`.
        root: its folder (a file for "manifest", also an id for "huggingface").
        split: train, val, test or all, as far as the data set has them; by default the one figures
            are reported on.
        options: options of the reader, such as those of `vldebias.data.sources.open_manifest`.

    Raises:
        InvalidInputError: unknown name, option or split, or no data there; it says where to get the
            data.
    """
    if name not in _SOURCES:
        raise InvalidInputError(
            f"unknown data set {name!r}; {did_you_mean(name, _SOURCES, 'choose another.')} There"
            f" are: {', '.join(list_data())}; the worlds 'birds' and 'portraits' are opened with"
            " vldebias.miniature.open_world. A folder of your own is a 'manifest'"
        )
    source = _SOURCES[name]
    source.check_options(name, options)
    if root is None:
        raise InvalidInputError(
            f"{name}: got no folder of the data (root, --data-root); expected {source.layout}"
        )
    if name not in ("huggingface", "captions"):  # which may be ids and patterns
        root = Path(root).expanduser()
        if not root.exists():
            raise InvalidInputError(f"{name}: {root} does not exist; expected {source.layout}")
    return source.read(root, split or source.split, **options)
