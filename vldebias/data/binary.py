"""Open CIFAR-10, CIFAR-100 and STL-10 in their binary formats, which `datasets` does not read.

CIFAR's "python" layouts are not supported: they are pickles, and loading a pickle can run code.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vldebias.data.catalog import DATA
from vldebias.data.dataset import ImageData, fingerprint_files
from vldebias.data.labels import Labels
from vldebias.errors import InvalidInputError, need


@dataclass(frozen=True)
class BinaryLayout:
    """Describe a file of fixed-size records: label bytes followed by the pixels of one image.

    Attributes:
        files: split -> file names.
        names_file: name of the file with one class name per line.
        side: image height and width.
        label_bytes: number of label bytes before the pixels. The last one is the class.
        columns_first: whether each channel is stored in column-major order (STL-10).
    """

    files: dict[str, tuple[str, ...]]
    names_file: str
    side: int
    label_bytes: int
    columns_first: bool = False


LAYOUTS = {
    "cifar10": BinaryLayout(
        files={
            "train": tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
            "test": ("test_batch.bin",),
        },
        names_file="batches.meta.txt",
        side=32,
        label_bytes=1,
    ),
    "cifar100": BinaryLayout(
        files={"train": ("train.bin",), "test": ("test.bin",)},
        names_file="fine_label_names.txt",
        side=32,
        label_bytes=2,
    ),
    "stl10": BinaryLayout(
        files={"train": ("train_X.bin",), "test": ("test_X.bin",)},
        names_file="class_names.txt",
        side=96,
        label_bytes=0,
        columns_first=True,
    ),
}
PICKLED = {"cifar-10-batches-py": "cifar10", "cifar-100-python": "cifar100"}


def open_binary(name: str, root: Path, split: str = "test") -> ImageData:
    """Open a split of CIFAR-10, CIFAR-100 or STL-10.

    The label column is `label`.

    Args:
        name: "cifar10", "cifar100" or "stl10".
        root: folder with the files, or its parent.
        split: train or test.

    Raises:
        InvalidInputError: If the files are pickles, the split is unknown, a file is missing, or a
            file's size is not a multiple of the record size.
    """
    layout = LAYOUTS[name]
    pickled = [folder for folder, of_name in PICKLED.items() if of_name == name]
    (released,) = DATA[name].folders
    folder = root
    # As with other data sets, the files may be in a subfolder named after the data set.
    for parent, below in product((root, root / name), (released, *pickled)):
        if (parent / below).is_dir():
            folder = parent / below
            break
    if folder.name in pickled:
        raise InvalidInputError(
            f"{folder}: expected the binary version ({released}), got the Python version, whose"
            " pickle files can run code"
        )
    if split not in layout.files:
        raise InvalidInputError(f"{name}: expected split train or test, got {split!r}")
    pixels = np.concatenate([_records(folder / file, layout) for file in layout.files[split]])
    if layout.label_bytes:
        codes = pixels[:, layout.label_bytes - 1].astype(np.int64)
        pixels = pixels[:, layout.label_bytes :]
    else:
        codes = _bytes_of(folder / f"{split}_y.bin").astype(np.int64) - 1  # STL-10 starts at 1
    names = (folder / layout.names_file).read_text(encoding="utf-8").split()
    images = pixels.reshape(len(pixels), 3, layout.side, layout.side)
    order = (0, 3, 2, 1) if layout.columns_first else (0, 2, 3, 1)
    images = images.transpose(order)
    from_array = need("PIL.Image").fromarray
    files = [folder / file for file in layout.files[split]]
    return ImageData(
        name=name,
        split=split,
        ids=tuple(f"{split}-{row}" for row in range(len(images))),
        read=lambda row: from_array(np.ascontiguousarray(images[row])),
        labels={"label": Labels(codes, tuple(names))},
        fingerprint=fingerprint_files([file.name for file in files], files),
    )


open_cifar10 = partial(open_binary, "cifar10")
open_cifar100 = partial(open_binary, "cifar100")
open_stl10 = partial(open_binary, "stl10")


def _records(file: Path, layout: BinaryLayout) -> NDArray[np.uint8]:
    """Return a file's records as an array (n, bytes)."""
    size = layout.label_bytes + 3 * layout.side**2
    content = _bytes_of(file)
    if len(content) == 0 or len(content) % size:
        raise InvalidInputError(
            f"{file}: expected records of {size} bytes, got {len(content)} bytes; the file is"
            " damaged or has a different layout"
        )
    return content.reshape(-1, size)


def _bytes_of(file: Path) -> NDArray[np.uint8]:
    """Memory-map a file as bytes."""
    if not file.is_file():
        raise InvalidInputError(
            f"{file}: file not found; expected all files from the release in this folder"
        )
    return np.memmap(file, dtype=np.uint8, mode="r")
