"""Declare each data set once: its reader, folder, label columns and training defaults.

`vldebias train`, `vldebias eval` and `open_data` read these declarations. Importing them needs
neither numpy nor torch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vldebias.errors import InvalidInputError
from vldebias.utils.registry import Registry, check_callable, imported

if TYPE_CHECKING:
    from vldebias.data.dataset import ImageData
    from vldebias.data.huggingface import ImageStream

Reader = Callable[..., "ImageData | ImageStream"]
_TRAINING_SETTINGS = ("label", "group", "caption_template", "val_split")


@dataclass(frozen=True)
class DataSet:
    """Describe a data set to `vldebias train`, `vldebias eval` and `open_data`.

    Attributes:
        name: name passed to `--data` and `open_data`; must not contain spaces or commas.
        read: reader, called as read(root, split, **options). Its keyword-only parameters are the
            options. If an import path ("package.module:function") is passed instead, the reader is
            imported on first use.
        layout: what the folder must contain and where to get it; empty if no folder is needed.
        split: split for which results are reported. Default: the reader's default.
        columns: label columns, shown in listings.
        training: defaults of `vldebias train`: label, group, caption_template and val_split.
        folders: folder names used by releases, in addition to `name`. A folder with one of these
            names in the working directory is the default root.
        is_format: True if this is a file format rather than a data set.

    Raises:
        InvalidInputError: If the reader does not have this signature, or training settings are
            unknown.

    >>> from vldebias.data import DATA
    >>> DATA["waterbirds"].columns
    ('label', 'place')
    """

    name: str
    read: Reader | str
    layout: str = ""
    split: str | None = None
    columns: tuple[str, ...] = ()
    training: Mapping[str, str] = field(default_factory=dict)
    folders: tuple[str, ...] = ()
    is_format: bool = False

    def __post_init__(self) -> None:
        unknown = sorted(set(self.training) - set(_TRAINING_SETTINGS))
        if unknown:
            raise InvalidInputError(
                f"data set {self.name!r}: training: got {', '.join(unknown)}; expected only"
                f" {', '.join(_TRAINING_SETTINGS)}"
            )
        for field_name in ("columns", "folders"):
            names = getattr(self, field_name)
            if isinstance(names, str):
                raise InvalidInputError(
                    f"data set {self.name!r}: {field_name}: got the string {names!r}; expected a"
                    f" tuple of strings, such as ({names!r},)"
                )
        if not isinstance(self.read, str):
            self.load_reader()

    def load_reader(self) -> Reader:
        """Return the reader, importing it if necessary.

        Raises:
            InvalidInputError: If the function does not exist, or has an incompatible signature.
        """
        where = f"data set {self.name!r}: read"
        reader: Any = imported(self.read, where, "function")
        check_callable(where, reader, ("root", "split"))
        return reader

    def options(self) -> list[str]:
        """Return the names of the reader's options."""
        parameters = inspect.signature(self.load_reader()).parameters.values()
        return [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]

    def find_root(self, root: str | Path | None) -> str | Path | None:
        """Return the folder, file, hub id or pattern to read the data from.

        Args:
            root: the user's choice. Default: the data set's folder in the working directory.

        Raises:
            InvalidInputError: If there is no such folder.
        """
        if root is None:
            here = [Path(name) for name in (self.name, *self.folders) if Path(name).is_dir()]
            if self.layout and not here:
                raise InvalidInputError(
                    f"{self.name}: no data folder found; pass one (root, --data-root) with"
                    f" {self.layout}"
                )
            return here[0] if here else None
        # The root may also be a hub id or a pattern.
        if self.name in ("huggingface", "captions"):
            return root
        path = Path(root).expanduser()
        if not path.exists():
            raise InvalidInputError(f"{self.name}: {path} does not exist; expected {self.layout}")
        return path


DATA: Registry[DataSet] = Registry("data set", "vldebias.data", DataSet)
"""All data sets by name: built in, registered, and from entry points."""


def register_data(data_set: DataSet) -> DataSet:
    """Register a data set for `vldebias train`, `vldebias eval` and `open_data`, and return it.

    Raises:
        InvalidInputError: If the argument is not a `DataSet`, or the name is taken.

    >>> from vldebias.data import DATA, DataSet, Labels, file_images
    >>> def read_scans(root, split):
    ...     labels = {"gender": Labels.from_values(["female", "male"])}
    ...     return file_images("scans", split or "all", root, ["a.png", "b.png"], labels)
    >>> data_set = register_data(DataSet("scans", read_scans, layout="two scans"))
    >>> "scans" in DATA  # vldebias eval --data scans
    True
    """
    return DATA.register(data_set)


BUILT_IN = (
    DataSet(
        "waterbirds",
        "vldebias.data.sources:open_waterbirds",
        "metadata.csv (img_filename, y, split, place), or SubpopBench's"
        " metadata_waterbirds.csv (filename, y, split, a), and its images next to it; get it"
        " from github.com/kohpangwei/group_DRO"
        " (waterbird_complete95_forest2water2.tar.gz) or the WILDS package",
        split="test",
        columns=("label", "place"),
        training={
            "label": "label",
            "group": "place",
            "caption_template": "a photo of a {}.",
            "val_split": "val",
        },
        folders=("waterbird_complete95_forest2water2", "waterbirds_v1.0"),
    ),
    DataSet(
        "celeba",
        "vldebias.data.sources:open_celeba",
        "list_attr_celeba and list_eval_partition, .txt or .csv, and the folder"
        " img_align_celeba, also in Anno/, Eval/ and Img/ as released; or a merged"
        " metadata.csv of JTT or metadata_celeba.csv of SubpopBench; get it from"
        " mmlab.ie.cuhk.edu.hk/projects/CelebA.html (non-commercial research), or"
        " Kaggle jessicali9530/celeba-dataset",
        split="test",
        columns=("label", "gender"),
        training={
            "label": "label",
            "group": "gender",
            "caption_template": "a photo of a person with {} hair.",
            "val_split": "val",
        },
        folders=("CelebA", "celebA"),
    ),
    DataSet(
        "fairface",
        "vldebias.data.sources:open_fairface",
        "fairface_label_val.csv and fairface_label_train.csv (file, age, gender, race), and"
        " the folders val/, train/; get it from github.com/joojs/fairface (CC BY 4.0):"
        " images with padding 0.25 and the labels",
        split="val",
        columns=("gender", "race", "age"),
        # There are three class columns, so there is no default label.
        training={"caption_template": "a photo of a person, {}.", "val_split": "val"},
        folders=("FairFace",),
    ),
    DataSet(
        "manifest",
        "vldebias.data.manifest:open_manifest",
        "a .csv, .tsv, .parquet or .jsonl file with a column of image paths, relative to the file",
        split="all",
        is_format=True,
    ),
    DataSet(
        "captions",
        "vldebias.data.captions:open_captions",
        "images with captions: a table, COCO's captions_*.json, a folder with a text file"
        " next to each image, tars, parquet, a pattern of files, or an id on the hub",
        is_format=True,
    ),
    DataSet(
        "huggingface",
        "vldebias.data.huggingface:open_huggingface",
        "a dataset id from huggingface.co/datasets, a folder of parquet, arrow, tar or image"
        " files, a .parquet, .arrow or .tar file, or a pattern such as shards/*.tar",
        is_format=True,
    ),
)
"""Built-in data sets, in the order in which they are listed."""
for _data_set in BUILT_IN:
    register_data(_data_set)


def trained_data(name: object) -> DataSet | None:
    """Return the data set with this name, or None if it names a format, file or folder."""
    if name not in DATA:
        return None
    data_set = DATA[str(name)]
    return None if data_set.is_format else data_set
