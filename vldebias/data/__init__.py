"""Data sets with labels, and the cache of their embeddings."""

from vldebias.data.cache import default_cache_dir, embed_images
from vldebias.data.embedding_files import load_embeddings, save_embeddings
from vldebias.data.embeddings import Embeddings
from vldebias.data.images import ImageData, ImageStream, Record
from vldebias.data.labels import UNKNOWN, Labels, cross
from vldebias.data.registry import DataSource, data_source, list_data, open_data, register_data
from vldebias.data.summary import check_images, describe, group_counts

__all__ = [
    "UNKNOWN",
    "DataSource",
    "Embeddings",
    "ImageData",
    "ImageStream",
    "Labels",
    "Record",
    "check_images",
    "cross",
    "data_source",
    "default_cache_dir",
    "describe",
    "embed_images",
    "group_counts",
    "list_data",
    "load_embeddings",
    "open_data",
    "register_data",
    "save_embeddings",
]
