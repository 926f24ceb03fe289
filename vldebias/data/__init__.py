"""Load labelled data sets and feature matrices, and cache embeddings."""

from typing import TYPE_CHECKING

from vldebias.errors import lazy_names

if TYPE_CHECKING:
    from vldebias.data.cache import embed_images
    from vldebias.data.catalog import DATA, DataSet, register_data
    from vldebias.data.dataset import ImageData, check_images, describe, file_images
    from vldebias.data.embeddings import (
        Embeddings,
        load_embeddings,
        load_texts,
        open_embeddings,
        save_embeddings,
    )
    from vldebias.data.huggingface import ImageStream
    from vldebias.data.label_checks import odd_values
    from vldebias.data.labels import UNKNOWN, Labels, cross
    from vldebias.data.parallel import OnRay, prefetch, processes
    from vldebias.data.rows import Shards, UnitRows, digest_of
    from vldebias.data.sources import list_data, open_data
    from vldebias.data.tables import read_table
    from vldebias.utils.pictures import decode

# Imported on first use, so that an invalid table or folder is reported without importing torch.
_NAMES_OF_HOME = {
    "vldebias.data.cache": ("embed_images",),
    "vldebias.data.catalog": ("DATA", "DataSet", "register_data"),
    "vldebias.data.dataset": ("ImageData", "check_images", "describe", "file_images"),
    "vldebias.data.embeddings": (
        *("Embeddings", "load_embeddings", "load_texts", "open_embeddings", "save_embeddings"),
    ),
    "vldebias.data.huggingface": ("ImageStream",),
    "vldebias.data.parallel": ("OnRay", "prefetch", "processes"),
    "vldebias.data.rows": ("Shards", "UnitRows", "digest_of"),
    "vldebias.data.sources": ("list_data", "open_data"),
    "vldebias.data.label_checks": ("odd_values",),
    "vldebias.data.labels": ("UNKNOWN", "Labels", "cross"),
    "vldebias.data.tables": ("read_table",),
    "vldebias.utils.pictures": ("decode",),
}
__all__ = [
    "DATA",
    "UNKNOWN",
    "DataSet",
    "Embeddings",
    "ImageData",
    "ImageStream",
    "Labels",
    "OnRay",
    "Shards",
    "UnitRows",
    "check_images",
    "cross",
    "decode",
    "describe",
    "digest_of",
    "embed_images",
    "file_images",
    "list_data",
    "load_embeddings",
    "load_texts",
    "odd_values",
    "open_data",
    "open_embeddings",
    "prefetch",
    "processes",
    "read_table",
    "register_data",
    "save_embeddings",
]

__getattr__ = lazy_names(__name__, _NAMES_OF_HOME)


def __dir__() -> list[str]:
    return sorted(__all__)
