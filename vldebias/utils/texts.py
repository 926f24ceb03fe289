"""Check lists of texts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from vldebias.errors import InvalidInputError, shortened

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def is_frame(source: Any) -> bool:
    """Return whether an object is a pandas data frame, without importing pandas."""
    # Iterating over a frame yields its column names.
    return hasattr(source, "iterrows")


def checked_texts(prompts: Any, name: str = "prompts") -> tuple[str, ...]:
    """Validate texts and return them as a tuple of strings.

    Args:
        prompts: the texts.
        name: the name of the argument, for messages.

    Raises:
        InvalidInputError: If `prompts` is a data frame or not an ordered collection, or if an entry
            is not a valid string.
    """
    if is_frame(prompts):
        raise InvalidInputError(
            f"{name}: got a data frame with columns {list(map(str, prompts.columns))}; expected"
            " strings. Pass one of its columns, such as frame['prompt']"
        )
    # A set has no order, and iterating over a string would yield characters.
    is_no_list = isinstance(prompts, str | bytes | Mapping | set | frozenset)
    if is_no_list or not isinstance(prompts, Iterable):
        # Callers that also accept a string have put it into a list.
        is_text = isinstance(prompts, str)
        expected = "a list of strings" if is_text else "a string or a list of strings"
        raise InvalidInputError(
            f"{name}: got {shortened(repr(prompts), 200)}; expected {expected}, one per image"
        )
    # Iterating over an Arrow array yields scalars, not strings.
    texts = prompts.to_pylist() if hasattr(prompts, "to_pylist") else list(prompts)
    for place, text in enumerate(texts):
        # Tokenizers cannot encode a lone surrogate, which is half of an emoji.
        if not isinstance(text, str) or _LONE_SURROGATE.search(text):
            raise InvalidInputError(
                f"{name}: got {shortened(repr(text), 200)} at index {place} of {len(texts)};"
                " expected a string or a list of strings, one per image"
            )
    return tuple(texts)
