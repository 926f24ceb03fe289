"""Name the types that public functions accept, for signatures and type checkers.

This module imports no other library at run time, so that the command line starts without torch.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path
    from typing import Any

    import numpy as np
    from diffusers import DiffusionPipeline, ModularPipeline
    from numpy.typing import ArrayLike, NDArray
    from torch import Tensor, nn

    from vldebias.prompts.prompt_set import PromptSet

T = TypeVar("T")

AnyArray: TypeAlias = "Tensor | ArrayLike"
"""Numbers of any shape: a tensor, an ndarray, a pandas column or nested lists."""
ColumnLike: TypeAlias = "Tensor | ArrayLike | Sequence[Hashable]"
"""One value for each of n rows (n,), such as labels. None, NaN and "" are unknown."""
ById: TypeAlias = Mapping[int, T] | Mapping[str, T]
"""A mapping from the id of a search result to a value."""
Features: TypeAlias = (
    "Tensor | NDArray[np.floating] | Iterable[Tensor | NDArray[np.floating]] | SupportsFeatures"
)
"""Image features (n, d): a tensor or an ndarray, an iterable of batches (b, d), or an object with
such `features`, such as `vldebias.data.Embeddings`."""
TextVectors: TypeAlias = "Mapping[str, Tensor | ArrayLike]"
"""A mapping from a text to its vector (d,)."""
PromptSetLike: TypeAlias = "str | Path | PromptSet | Mapping[str, object]"
"""A prompt set, its name, its YAML file, or the content of such a file."""
AttributeLike: TypeAlias = "str | Path | PromptSet | Sequence[PromptSetLike]"
"""One or several prompt sets. A mapping is not one of them, because `debias` also takes a mapping
from role to edit."""
ModelLike: TypeAlias = "nn.Module | TextVectors"
"""An open_clip or transformers model, or a mapping from a text to its vector instead of one."""
PipelineLike: TypeAlias = "DiffusionPipeline | ModularPipeline"
"""A diffusers pipeline."""
Tokenizer: TypeAlias = "Callable[..., Tensor | Mapping[str, Any]]"
"""An open_clip tokenizer, or a transformers tokenizer or processor."""
EmbedderLike: TypeAlias = (
    "Callable[[list[str]], AnyArray | Sequence[AnyArray]]"
    " | SupportsEncode | SupportsEmbedQuery | SupportsQueryEmbedding | TextVectors"
)
"""Anything that embeds text: a function from a list of texts to their vectors, an object from one
of the libraries below, or a mapping from a text to its vector."""


class SupportsFeatures(Protocol):
    """An object with image features (n, d), such as `vldebias.data.Embeddings`."""

    @property
    def features(self) -> Any:
        """Return the features (n, d)."""
        ...


class SupportsEncode(Protocol):
    """A sentence-transformers model, or another object whose `encode` embeds a list of texts."""

    def encode(self, texts: list[str], /) -> Any:
        """Return the vectors (n, d) of n texts."""
        ...


class SupportsEmbedQuery(Protocol):
    """LangChain's `Embeddings`."""

    def embed_query(self, text: str, /) -> list[float]:
        """Return the vector of a search query."""
        ...

    def embed_documents(self, texts: list[str], /) -> list[list[float]]:
        """Return the vectors of documents."""
        ...


class SupportsQueryEmbedding(Protocol):
    """llama-index's `BaseEmbedding`."""

    def get_query_embedding(self, query: str, /) -> list[float]:
        """Return the vector of a search query."""
        ...

    def get_text_embedding_batch(self, texts: list[str], /) -> list[list[float]]:
        """Return the vectors of documents."""
        ...
