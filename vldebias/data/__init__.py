"""Load labelled data sets and feature matrices, and cache embeddings."""

from typing import TYPE_CHECKING

from vldebias.errors import lazy_names

if TYPE_CHECKING:
    from vldebias.data.cache import embed_images as embed_images
    from vldebias.data.catalog import DATA as DATA
    from vldebias.data.catalog import DataSet as DataSet
    from vldebias.data.catalog import register_data as register_data
    from vldebias.data.dataset import ImageData as ImageData
    from vldebias.data.dataset import check_images as check_images
    from vldebias.data.dataset import describe as describe
    from vldebias.data.dataset import file_images as file_images
    from vldebias.data.embeddings import Embeddings as Embeddings
    from vldebias.data.embeddings import load_embeddings as load_embeddings
    from vldebias.data.embeddings import open_embeddings as open_embeddings
    from vldebias.data.embeddings import save_embeddings as save_embeddings
    from vldebias.data.labelled_folder import images_of_folder as images_of_folder
    from vldebias.data.labels import Labels as Labels
    from vldebias.data.labels import cross as cross
    from vldebias.data.parallel import OnRay as OnRay
    from vldebias.data.rows import Shards as Shards
    from vldebias.data.sources import list_data as list_data
    from vldebias.data.sources import open_data as open_data

# Imported on first use, so that an invalid table or folder is reported without importing torch.
__getattr__, __dir__, __all__ = lazy_names(__name__)
