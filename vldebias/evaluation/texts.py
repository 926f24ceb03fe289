"""Texts under a method: prompts in, normalised rows out, changed as an attachment would change them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from vldebias.edit import Edit
from vldebias.errors import InvalidInputError, UnsupportedHostError
from vldebias.hosts import Host, TextTable, resolve
from vldebias.methods import Method, Problem, get_method
from vldebias.prompts import PromptSet


class Texts:
    """The text side of an evaluation. Every prompt goes through the tower once, whatever the number of methods.

    Args:
        model: an open_clip or transformers image-text model, or a mapping prompt -> embedding (d,).
        tokenizer: where it cannot be found from the model.
        model_id: what the embeddings of a mapping come from.
        about: what is known of them, such as the digest of their file.

    Raises:
        UnsupportedHostError: see `vldebias.debias`; also a pipeline, which has no images to compare with.
    """

    def __init__(
        self, model: Any, tokenizer: Any = None, *, model_id: str | None = None, about: Mapping[str, Any] | None = None
    ) -> None:
        host = TextTable(model, model_id) if isinstance(model, Mapping) else resolve(model, tokenizer=tokenizer)
        if host.generative:
            raise UnsupportedHostError(f"{host.name}: expected an image-text model; a pipeline is evaluated by images")
        self.host: Host = host
        self.about = dict(about or ({"digest": _digest(model)} if isinstance(model, Mapping) else {}))

    @property
    def fingerprint(self) -> dict[str, Any] | None:
        """Return that of the weights, as plain values; None for embeddings that were computed before."""
        weights = self.host.fingerprint()
        return None if weights is None else weights.to_dict()

    def holds(self, prompts: Sequence[str]) -> bool:
        """Tell whether all prompts can be embedded: a table of embeddings may lack some."""
        try:
            return not isinstance(self.host, TextTable) or self.embed(prompts) is not None
        except InvalidInputError:
            return False

    def embed(self, prompts: Sequence[str]) -> Tensor:
        """Return L2-normalised float64 rows (n, d), not changed."""
        return self.host.embed(prompts, self.host.roles[0])

    def fit(
        self,
        prompts: PromptSet | Sequence[PromptSet],
        method: str | Method,
        lam: float | None = None,
        *,
        reference: Any = None,
        max_loss: float | None = None,
        neutral: Sequence[str] = (),
    ) -> Edit | None:
        """Fit a method; None for "none", and where it changes nothing by definition.

        lam: its weight, for methods that take one. reference, max_loss: see `vldebias.debias`. neutral: what
        a bound looks after; the class prompts of the sets by default.
        """
        chosen = get_method(method)
        if chosen.name == "none":
            return None
        sets = [prompts] if isinstance(prompts, PromptSet) else list(prompts)
        weight = lam if chosen.has_lam else None
        how: dict[str, Any] = {"reference": reference, "max_loss": max_loss, "neutral": neutral}
        return Problem.of(self.host, sets, lam=weight, **how).fit(chosen, self.host.roles[0])

    def under(
        self, prompts: Sequence[str], edit: Edit | None, *, strength: float = 1.0, keep_stated: bool = True
    ) -> Tensor:
        """Return L2-normalised float64 rows (n, d) as a model with `edit` attached gives them.

        keep_stated: leave prompts alone that name an attribute word of the edit, as `vldebias.debias` does.
        """
        return self.host.under(prompts, self.host.roles[0], edit, strength=strength, keep_stated=keep_stated)


def _digest(rows: Mapping[str, Any]) -> str:
    """SHA-256 of prompts and their embeddings, whatever their order."""
    state = hashlib.sha256()
    for prompt in sorted(rows):
        row = torch.as_tensor(rows[prompt]).detach().cpu().double().contiguous()
        state.update(f"{prompt}\n".encode() + row.numpy().tobytes())
    return state.hexdigest()
