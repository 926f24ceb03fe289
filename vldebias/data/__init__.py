"""Data sets with labels, and the cache of their embeddings."""

from vldebias.data.cache import default_cache_dir, embed_images
from vldebias.data.dataset import ImageData, ImageStream, Record, fingerprint_of
from vldebias.data.embeddings import Embeddings, load_embeddings, save_embeddings
from vldebias.data.labels import UNKNOWN, Labels, cross
from vldebias.data.on_ray import OnRay
from vldebias.data.parallel import processes
from vldebias.data.pictures import decode
from vldebias.data.shards import Shards
from vldebias.data.sources import DataSource, data_source, list_data, open_data, register_data
from vldebias.data.summary import check_images, describe, group_counts
from vldebias.data.tables import read_table
from vldebias.data.unit_rows import UnitRows

__all__ = [
    "UNKNOWN",
    "DataSource",
    "Embeddings",
    "ImageData",
    "ImageStream",
    "Labels",
    "OnRay",
    "Record",
    "Shards",
    "UnitRows",
    "check_images",
    "cross",
    "data_source",
    "decode",
    "default_cache_dir",
    "describe",
    "embed_images",
    "fingerprint_of",
    "group_counts",
    "list_data",
    "load_embeddings",
    "open_data",
    "processes",
    "read_table",
    "register_data",
    "save_embeddings",
]
