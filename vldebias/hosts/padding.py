"""Text features without the cost of padding: the same numbers from as many tokens as the longest text of a batch has.

Captions are short and context lengths long: of the 77 tokens that CLIP reads, a caption fills a fifth. Where nothing
that pads a text can reach its embedding, the columns that pad every text of a batch are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from vldebias.hosts.text import JointHost
from vldebias.hosts.transformers import TransformersHost

__all__ = ["text_features"]

Tokens = Mapping[str, Tensor]


def text_features(host: JointHost) -> Callable[[Tokens], Tensor]:
    """Tokens, (b, length) each -> features (b, d) as `host.features` gives them, differentiable.

    Shortened are open_clip's own causal text tower pooled at the end token, its Hugging Face text towers, and towers
    of transformers that mask their padding. The others, such as SigLIP's, which attends to padding, read all of it.
    """
    model: Any = host.model
    if isinstance(host, TransformersHost):
        return host.features if host.reads_padding else partial(_masked, host)
    if _is_causal(model):
        return partial(_causal, model)
    pad = getattr(getattr(getattr(model, "text", None), "config", None), "pad_token_id", None)
    return host.features if pad is None else partial(_padded_with, host, int(pad))


def _is_causal(model: Any) -> bool:
    """open_clip's CLIP with its own `encode_text`: no token sees a later one, and the end token is the embedding."""
    import open_clip

    return (
        isinstance(model, open_clip.CLIP)
        and type(model).encode_text is open_clip.CLIP.encode_text
        and model.attn_mask is not None
        and getattr(model, "text_pool_type", None) in ("argmax", "eos")
        and hasattr(model.transformer, "batch_first")  # before that, `encode_text` itself turned the axes
    )


def _causal(model: Any, tokens: Tokens) -> Tensor:
    """What `encode_text` computes, up to the last end token of the batch: it has no argument for a shorter text."""
    ids = tokens["text"]
    ends = ids.argmax(dim=-1) if model.text_pool_type == "argmax" else (ids == model.text_eos_id).int().argmax(dim=-1)
    length = int(ends.max()) + 1
    dtype = model.transformer.get_cast_dtype()
    x = model.token_embedding(ids[:, :length]).to(dtype) + model.positional_embedding[:length].to(dtype)
    x = model.ln_final(model.transformer(x, attn_mask=model.attn_mask[:length, :length]))
    pooled = x[torch.arange(len(ids), device=ids.device), ends]
    head = model.text_projection
    if head is None:
        return pooled
    return head(pooled) if isinstance(head, nn.Module) else pooled @ head


def _masked(host: JointHost, tokens: Tokens) -> Tensor:
    """By the attention mask: its columns that are zero in every row."""
    mask = tokens.get("attention_mask")
    return host.features(tokens if mask is None else _shortened(tokens, mask != 0))


def _padded_with(host: JointHost, pad: int, tokens: Tokens) -> Tensor:
    """By the ids: such a tower makes its mask from them."""
    return host.features(_shortened(tokens, tokens["text"] != pad))


def _shortened(tokens: Tokens, kept: Tensor) -> dict[str, Tensor]:
    """Without the columns after the last one of `kept` (b, length) that is true in any row."""
    columns = kept.any(dim=0).nonzero()
    length = int(columns.max()) + 1 if len(columns) else kept.shape[1]
    return {name: tensor[:, :length] for name, tensor in tokens.items()}
