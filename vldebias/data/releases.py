"""Find the files of Waterbirds, CelebA and FairFace in the folders that their releases unpack to.

Needs neither numpy nor pyarrow, so that a command can answer a wrong folder at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path

from vldebias.data.catalog import DATA
from vldebias.errors import InvalidInputError

# The releases of group DRO and of WILDS.
WATERBIRDS_FOLDERS = ("", "waterbird_complete95_forest2water2", "waterbirds_v1.0")
_MERGED_CELEBA = ("metadata.csv", "metadata_celeba.csv")
_FAIRFACE_IMAGES = "fairface-img-margin025-trainval"  # the crop of the authors' main experiments


def find_in_release(data: str, root: Path, names: Sequence[str], folders: Sequence[str]) -> Path:
    """Return the first of some files in the first of some folders that has one.

    Args:
        data: name of the data set, for the message.
        root: folder that `folders` are relative to.
        names: names of files or folders.
        folders: folders below `root`; "" is `root` itself.

    Raises:
        InvalidInputError: If none of the folders has one of the names.
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
    """Return the folder that a release was unpacked into: `root`, or the first folder in it that
    has one of `names` in one of `folders`; `root` if none has."""
    paths = [Path(folder, name) for folder, name in product(folders, names)]
    inside = sorted(path for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
    # Below a folder of its own the code of group DRO has "data", and torchvision "celeba".
    nested = [path / below for path, below in product(inside, ("data", "celeba"))]
    # The root first: only if it does not have the files, folders inside it are tried.
    for base in (root, *inside, *nested):
        if any((base / path).exists() for path in paths):
            return base
    return root


def find_waterbirds(root: Path) -> Path:
    """Return the table of Waterbirds."""
    # The WILDS package and copies unpack it below a common root.
    folders = [*WATERBIRDS_FOLDERS, *(f"waterbirds/{name}" for name in WATERBIRDS_FOLDERS)]
    names = ["metadata.csv", "metadata_waterbirds.csv"]
    return find_in_release("waterbirds", root, names, folders)


def find_celeba(root: Path) -> tuple[list[Path], Path]:
    """Return the tables of CelebA (a merged one, or attributes and splits) and the folder of its
    images."""
    tables = ("", "Anno", "Eval")  # of the release; copies have all in one folder
    base = _base(root, ["list_attr_celeba.csv", "list_attr_celeba.txt", *_MERGED_CELEBA], tables)
    paths = []
    # JTT's folder also has the attributes of the release, without its partition.
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
    """Return the parts of FairFace in a split."""
    # There are no public labels of the test images.
    return ("train", "val") if split == "all" else (split,)


def find_fairface(root: Path, split: str) -> tuple[list[Path], Path]:
    """Return the tables of a split of FairFace, and the folder that their paths start from.

    Args:
        root: the folder with the label files, or the one above.
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


def find_tables(data: str, root: Path, split: str) -> list[Path]:
    """Return the tables of a data set; [] for one whose release is not described here.

    Args:
        data: name of the data set.
        root: folder that the user names.
        split: split that is read.

    Raises:
        InvalidInputError: If files are missing.
    """
    if data == "waterbirds":
        return [find_waterbirds(root)]
    if data == "celeba":
        return find_celeba(root)[0]
    if data == "fairface":
        return find_fairface(root, split)[0]
    return []


def count_rows(paths: Sequence[Path]) -> int:
    """Return how many rows some tables have, by their lines."""
    rows = 0
    for path in paths:
        with path.open("rb") as file:
            rows += max(sum(1 for line in file if line.strip()) - 1, 0)
    return rows
