"""What `encode_prompt` of a kind of diffusers pipeline takes and returns, as data, and its tensors in one form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

CROSS_ATTENTION = "cross-attention"


@dataclass(frozen=True, kw_only=True)
class Part:
    """One tensor that `encode_prompt` returns, (b, tokens, d) or (b, d), or a segment of its tokens.

    Some pipelines return it as a list, one (tokens, d) per prompt, or as a list of such lists.

    Attributes:
        role: its name: "sequence", "pooled", ...
        index: its place in the returned tuple.
        negative: place of its twin for the negative prompt, None where the tuple has none.
        mask: place of the attention mask of its tokens, None where the tuple has none.
        template: the encoder reads the prompt inside a text of the pipeline (a chat, an instruction) or with padding
            on the left. The ids that the encoder is given then say where it ends: `vldebias.hosts.prompt_end`.
        stack: axis of several hidden layers in a tensor (.., b, tokens, .., d), 0 also of a list of them; they are read
            and projected as one vector of width layers * d.
        when: argument of the call and its value that make it, where one method serves several encoders by turns.
        beside_image: an image may stand before the prompt; the tokens up to it are left alone.
        encoders: components of the pipeline that make it; at least one has to be loaded.
        tokenizers: components that tokenize its prompts; the first that is loaded finds the end-of-text token.
        given: argument with which a caller brings the tensor along instead of a prompt; "negative_" + given
            likewise for the twin. Such tensors are the caller's and are left alone.
        start, stop: attributes of the pipeline with the first token of the segment and the one after its last.
        layered: `clip_skip` takes it from an earlier layer, which is another space with a projection of its own.
        optional: left out where its encoders are not loaded, instead of refusing the pipeline.
        read_by: where `merge()` finds the weights that read it: CROSS_ATTENTION (keys and values of all
            cross-attentions) or the linear layer, by its name in the denoiser; a tuple where several read it.
        unmerged: why weights cannot hold the projection, where there is no such layer.
        leading: it is only the leading part of what that layer reads.
    """

    role: str = "sequence"
    index: int = 0
    negative: int | None = None
    mask: int | None = None
    template: bool = False
    stack: int | None = None
    when: tuple[str, Any] | None = None
    beside_image: bool = False
    encoders: tuple[str, ...] = ("text_encoder",)
    tokenizers: tuple[str, ...] = ("tokenizer",)
    given: str = "prompt_embeds"
    start: str | None = None
    stop: str | None = None
    layered: bool = False
    optional: bool = False
    read_by: str | tuple[str, ...] = ()
    unmerged: str = "its family does not say which layers read it"
    leading: bool = False


@dataclass(frozen=True, kw_only=True)
class Family:
    """Pipelines whose `encode_prompt` takes and returns the same.

    Attributes:
        name: prefix of the names of its spaces; projections fit every pipeline of the family with the same encoders.
        pipelines: class names; a subclass belongs to the family of its nearest listed base.
        parts: the tensors to project.
        texts: arguments of `encode_prompt` with the prompts; "negative_" + name for the negative ones.
        twice: `__call__` calls `encode_prompt` a second time for the negative prompt, with `negative_prompt` in the
            place of `prompt` and "negative_" + `given` in the place of `given` of the first part.
        masked: the denoiser is given a mask of the prompt, though no part says where: its end is not told by it.
    """

    name: str
    pipelines: tuple[str, ...]
    parts: tuple[Part, ...]
    texts: tuple[str, ...] = ("prompt",)
    twice: bool = False
    masked: bool = False

    @classmethod
    def of(cls, name: str, pipelines: str, *parts: Part, **settings: Any) -> Family:
        """The same in fewer words; pipelines: class names without "Pipeline" at their ends, apart by spaces."""
        return cls(name=name, pipelines=tuple(f"{p}Pipeline" for p in pipelines.split()), parts=parts, **settings)


def opened(value: Any, stack: int | None = None) -> tuple[Tensor, Callable[[Tensor], Any]] | None:
    """`value` as a tensor, and the function that gives such a tensor the form of `value`.

    Args:
        value: a tensor (b, tokens, d) or (b, d); one (tokens, d) per prompt in a list, or in lists in a list; several
            layers in a tensor or list.
        stack: the axis of layers. They become one vector of width layers * d.

    Returns:
        None where it is something else.
    """
    if stack is not None:
        layers = torch.stack(list(value)) if _is_list(value, 3) else value
        if not isinstance(layers, Tensor) or layers.ndim != 4:
            return None
        sizes = (layers.shape[stack], layers.shape[-1])

        def restack(flat: Tensor) -> Any:
            apart = flat.unflatten(-1, sizes).movedim(-2, stack)
            return apart if isinstance(value, Tensor) else type(value)(apart.unbind(0))

        return layers.movedim(stack, -2).flatten(-2), restack
    if isinstance(value, Tensor):
        return (value, lambda same: same) if value.ndim in (2, 3) else None
    if _is_list(value, 2):
        lengths = [len(row) for row in value]
        return pad_sequence(list(value), batch_first=True), lambda rows: [
            row[:n] for row, n in zip(rows, lengths, strict=True)
        ]
    if isinstance(value, (list, tuple)) and value and all(_is_list(part, 2) for part in value):
        inside = opened([row for part in value for row in part])
        assert inside is not None
        tensor, close = inside

        def regroup(rows: Tensor) -> Any:
            each = iter(close(rows))
            return [[next(each) for _ in part] for part in value]

        return tensor, regroup
    return None


def _is_list(value: Any, ndim: int) -> bool:
    rows = value if isinstance(value, (list, tuple)) else ()
    return bool(rows) and all(isinstance(row, Tensor) and row.ndim == ndim for row in rows)
