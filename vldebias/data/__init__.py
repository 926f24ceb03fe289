"""Data sets with labels, and the cache of their embeddings."""

from vldebias.data.embeddings import Embeddings
from vldebias.data.images import ImageData, ImageStream, Record
from vldebias.data.labels import UNKNOWN, Labels, cross

__all__ = ["UNKNOWN", "Embeddings", "ImageData", "ImageStream", "Labels", "Record", "cross"]
