"""Read data sets with labels and rows of features, and cache embeddings."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vldebias.data.cache import embed_images
    from vldebias.data.dataset import ImageData, check_images, describe, file_images
    from vldebias.data.embeddings import (
        Embeddings,
        load_embeddings,
        load_texts,
        open_embeddings,
        save_embeddings,
    )
    from vldebias.data.huggingface import ImageStream
    from vldebias.data.parallel import OnRay, prefetch, processes
    from vldebias.data.rows import Shards, UnitRows, digest_of
    from vldebias.data.sources import list_data, open_data
    from vldebias.data.tables import UNKNOWN, Labels, cross, odd_values, read_table
    from vldebias.pictures import decode

# Name -> where it lives. Loaded when first asked for: whether a table or a folder is right is
# answered without torch.
_HOMES = {
    "embed_images": "data.cache",
    **dict.fromkeys(("ImageData", "check_images", "describe", "file_images"), "data.dataset"),
    **dict.fromkeys(
        ("Embeddings", "load_embeddings", "load_texts", "open_embeddings", "save_embeddings"),
        "data.embeddings",
    ),
    "ImageStream": "data.huggingface",
    **dict.fromkeys(("OnRay", "prefetch", "processes"), "data.parallel"),
    **dict.fromkeys(("Shards", "UnitRows", "digest_of"), "data.rows"),
    **dict.fromkeys(("list_data", "open_data"), "data.sources"),
    **dict.fromkeys(("UNKNOWN", "Labels", "cross", "odd_values", "read_table"), "data.tables"),
    "decode": "pictures",
}
__all__ = [
    "UNKNOWN",
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
    "save_embeddings",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'vldebias.data' has no attribute {name!r}")
    globals()[name] = getattr(import_module(f"vldebias.{_HOMES[name]}"), name)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted(__all__)
