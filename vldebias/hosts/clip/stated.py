"""Find the rows of token ids whose text states an attribute."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from vldebias.hosts.hooks import outside_compiled_code
from vldebias.prompts import StatedWords

_KEPT = 1 << 16  # maximum number of cached decisions


class StatedRows:
    """Decode rows of token ids and look for stated words in their text.

    Decisions are cached by row, because the same prompts usually return.

    Args:
        gate: the words to look for.
        texts: function from ids (b, length) to the text of each row.
    """

    def __init__(self, gate: StatedWords, texts: Callable[[Tensor], list[str]]) -> None:
        self._gate = gate
        self._texts = texts
        self._known = dict[bytes, bool]()

    @outside_compiled_code(
        "token ids have to be decoded to find stated attributes; for a single graph, pass"
        " keep_stated=False to debias()"
    )
    def __call__(self, ids: Tensor) -> Tensor:
        """Return, for each row of ids (b, length), whether its text contains one of the words."""
        rows = ids.detach().reshape(-1, ids.shape[-1]).to("cpu", torch.int64)
        keys = [row.numpy().tobytes() for row in rows]
        known = self._known  # another thread may replace `self._known` in the meantime
        place_of_new = {key: place for place, key in enumerate(keys) if key not in known}
        decisions = dict[bytes, bool]()
        if place_of_new:
            texts = self._texts(rows[list(place_of_new.values())])
            for key, text in zip(place_of_new, texts, strict=True):
                decisions[key] = bool(self._gate.find(text))
        stated = [decisions[key] if key in decisions else known[key] for key in keys]
        known.update(decisions)
        # If the cache is full, replace it, which avoids tracking the order of use.
        if len(known) > _KEPT:
            self._known = decisions
        return torch.tensor(stated, dtype=torch.bool, device=ids.device)
