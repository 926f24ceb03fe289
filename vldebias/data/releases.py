"""Locate the files of Waterbirds, CelebA and FairFace in the folders that their releases use.

This module imports neither numpy nor pyarrow, so commands can report an invalid folder immediately.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path

from vldebias.data.catalog import DATA
from vldebias.errors import InvalidInputError

# Folder names in the group DRO and WILDS releases.
WATERBIRDS_FOLDERS = ("", "waterbird_complete95_forest2water2", "waterbirds_v1.0")
_MERGED_CELEBA = ("metadata.csv", "metadata_celeba.csv")
_FAIRFACE_IMAGES = "fairface-img-margin025-trainval"  # the crop in the authors' main experiments


def find_in_release(data: str, root: Path, names: Sequence[str], folders: Sequence[str]) -> Path:
    """Return the path of the first file or folder that exists, searching the folders in order.

    Args:
        data: data set name for the message.
        root: folder to which `folders` are relative.
        names: file or folder names.
        folders: folders below `root`; "" is `root` itself.

    Raises:
        InvalidInputError: If none of the folders contains any of the names.
    """
    for folder in folders:
        for name in names:
            path = root / folder / name
            if path.exists():
                return path
    raise InvalidInputError(
        f"{data}: {' or '.join(names)} not found in {root}; expected {DATA[data].layout}"
    )


def _base(root: Path, names: Sequence[str], folders: Sequence[str]) -> Path:
    """Return `root`, or the folder inside it that a release was unpacked into."""
    paths = [Path(folder, name) for folder, name in product(folders, names)]
    inside = sorted(path for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
    # Group DRO's code keeps data in a nested folder "data", and torchvision in "celeba".
    nested = [path / below for path, below in product(inside, ("data", "celeba"))]
    # Try the root first, and its subfolders only if it does not contain the files.
    for base in (root, *inside, *nested):
        if any((base / path).exists() for path in paths):
            return base
    return root


def find_waterbirds(root: Path) -> Path:
    """Return the path of the Waterbirds table."""
    # The WILDS package and some copies use a subfolder "waterbirds".
    folders = [*WATERBIRDS_FOLDERS, *(f"waterbirds/{name}" for name in WATERBIRDS_FOLDERS)]
    names = ["metadata.csv", "metadata_waterbirds.csv"]
    return find_in_release("waterbirds", root, names, folders)


def find_celeba(root: Path) -> tuple[list[Path], Path]:
    """Return CelebA's tables (one merged table, or attributes and splits) and its image folder."""
    tables = ("", "Anno", "Eval")  # folders in the release; copies have a single folder
    base = _base(root, ["list_attr_celeba.csv", "list_attr_celeba.txt", *_MERGED_CELEBA], tables)
    paths = []
    # JTT's folder also contains CelebA's attributes, but not its partition, so its merged table is
    # only used if there is no partition.
    has_partition = any(
        (base / folder / f"list_eval_partition{ending}").exists()
        for folder, ending in product(tables, (".csv", ".txt"))
    )
    if not has_partition:
        paths = [base / name for name in _MERGED_CELEBA if (base / name).exists()][:1]
    if not paths:
        for stem in ("list_attr_celeba", "list_eval_partition"):
            paths.append(find_in_release("celeba", base, [f"{stem}.csv", f"{stem}.txt"], tables))
    folders = ["img_align_celeba/img_align_celeba", "img_align_celeba"]
    return paths, find_in_release("celeba", base, folders, ("", "Img"))


def fairface_parts(split: str) -> tuple[str, ...]:
    """Return the parts of FairFace that make up a split."""
    # The test labels are not public.
    return ("train", "val") if split == "all" else (split,)


def find_fairface(root: Path, split: str) -> tuple[list[Path], Path]:
    """Return the tables of a FairFace split, and the base folder for their paths.

    Args:
        root: folder with the label files, or its parent.
        split: train, val or all.

    Raises:
        InvalidInputError: If files are missing.
    """
    tables = ("", "labels", _FAIRFACE_IMAGES)
    names = [f"fairface_label_{part}.csv" for part in fairface_parts(split)]
    base = _base(root, names, tables)
    paths = [find_in_release("fairface", base, [name], tables) for name in names]
    images = base / _FAIRFACE_IMAGES
    return paths, images if images.exists() else base
