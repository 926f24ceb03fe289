"""Serve Modular Diffusers: edit and rewrite prompts around the block that encodes text.

A modular pipeline has no `encode_prompt`. Its blocks pass on a state, and one block puts the embeddings of the prompt
there and names them in its `intermediate_outputs`. That one block object gets a class of its own, which rewrites the
prompt before the block runs and edits embeddings after it; `attachment.remove()` gives it its class back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from vldebias.errors import InvalidInputError, UnsupportedHostError, VldebiasError, need
from vldebias.hosts.base import INSIDE, Apply, Seam, during, installed
from vldebias.hosts.diffusers import SHARED, DiffusersHost, Rewrite, listed, rewrite_call
from vldebias.hosts.pipelines import EMBEDDING, Source, Trace

_MARK = "_vldebias"


def leaves(blocks: Any) -> Iterator[Any]:
    """Return the blocks that do work themselves, in the order in which they run."""
    if not blocks.sub_blocks:
        yield blocks
    for inside in blocks.sub_blocks.values():
        yield from leaves(inside)


class ModularHost(DiffusersHost):
    """Serve a modular pipeline, by the values that its text-encoding block puts into the state.

    Embeddings that a caller passes in without a prompt are not edited.
    """

    library = "diffusers.modular_pipelines"

    def __init__(self, pipe: Any, tokenizer: Any = None, negative: bool = False) -> None:
        why = ""
        for self.block in leaves(pipe._blocks):  # of a conditional block the one that needs no image
            names = tuple(one.name for one in self.block.intermediate_outputs)
            if "prompt" not in {one.name for one in self.block.inputs} or not any(map(EMBEDDING.match, names)):
                continue
            self.single = False
            try:
                super().__init__(pipe, None, negative, Source(names))
                self.defaults = {one.name: one.default for one in self.block.inputs}
                self.encode("a cat", ())
            except VldebiasError as error:
                why = why or str(error)
            else:
                return
        blocks = ", ".join(type(leaf).__name__ for leaf in leaves(pipe._blocks))
        raise UnsupportedHostError(
            why
            or f"{type(pipe).__name__}: none of its blocks takes `prompt` and gives embeddings of it by their names "
            f"({blocks[:300]}); derive the class of yours from one that does"
        )

    def call(self, prompt: str, more: Mapping[str, Any] = MappingProxyType({})) -> Any:
        """Return the block's outputs for a prompt, in a list or, where it takes a single one, alone."""

        def run(given: Any) -> tuple[Any, ...]:
            state = need("diffusers.modular_pipelines").PipelineState()
            for one in self.block.inputs:
                if one.name:
                    state.set(one.name, one.default, one.kwargs_type)
            for name, value in {"prompt": given, **more}.items():
                state.set(name, value)
            self.block(self._pipe, state)
            return tuple(state.get(name) for name in self.source.returns)

        if not self.single:
            try:
                return run([prompt])
            except (TypeError, ValueError):
                self.single = True
        return run(prompt)

    def shown(self, trace: Trace | None, result: Sequence[Any]) -> torch.Tensor | None:
        """Return (b, tokens), true up to the last token of an image; None where the block does not report any."""
        named = zip(self.source.returns, result, strict=True)
        masks = [one for name, one in named if re.search("image.*mask", name) and one is not None]
        return masks[0].bool().flip(1).cumsum(1).flip(1) > 0 if masks else None

    def install(self, apply: Apply, rewrite: Rewrite | None = None, again: Rewrite | None = None) -> Callable[[], None]:
        """Wrap the block that encodes text; the returned function unwraps it."""
        return installed([_BlockSeam(self.name, apply, self, rewrite, again)])


@dataclass(eq=False, repr=False)
class _BlockSeam(Seam):
    """Wrap the block that encodes text, or a conditional one that holds it: a copy of the block is not wrapped."""

    host: ModularHost
    rewrite: Rewrite | None
    again: Rewrite | None

    def __post_init__(self) -> None:
        sequential, block = need("diffusers").SequentialPipelineBlocks, self.host._pipe._blocks
        while isinstance(block, sequential):
            inside = block.sub_blocks.values()
            block = next(one for one in inside if any(leaf is self.host.block for leaf in leaves(one)))
        self.block, self.kind = block, type(block)

        @torch.no_grad()
        def call(one: Any, components: Any, state: Any) -> Any:
            if one is not self.block or components is not self.host._pipe or not self.active:
                return self.kind.__call__(one, components, state)
            return self._around(components, state)

        own = {"__call__": call, "__module__": self.kind.__module__, "__qualname__": self.kind.__qualname__}
        self.block.__class__ = type(self.kind.__name__, (self.kind,), own)
        vars(self.host._pipe)[_MARK] = self  # so that a copy of the pipeline is refused

    def take_off(self) -> None:
        """Give the block its class back."""
        super().take_off()
        self.block.__class__ = self.kind
        vars(self.host._pipe).pop(_MARK, None)

    def _around(self, components: Any, state: Any) -> Any:
        host, prompt = self.host, state.get("prompt")
        call = {one.name: state.get(one.name) for one in host.block.inputs if one.name}
        call = {name: list(one) if isinstance(one, list) else one for name, one in call.items()}
        counts = [name for name in ("num_images_per_prompt", "num_videos_per_prompt") if state.get(name)]
        if self.rewrite is not None and prompt is not None and host.single:
            state.set("prompt", self.rewrite([prompt])[0])
            attachment: Any = getattr(self.apply, "__self__", None)
            if attachment is not None and any(state.get(name) > 1 for name in counts):
                attachment.warn_once(SHARED.format(count=counts[0]))
        elif self.rewrite is not None and prompt is not None:
            given = call | {name: state.get(name) for name in counts[:1]}
            rewrite_call(given, self.rewrite, self.again)
            for name, value in given.items():
                state.set(name, value)
        with during(INSIDE):
            components, state = self.kind.__call__(self.block, components, state)
        if self.rewrite is not None or not listed(prompt):
            return components, state
        result, first = tuple(state.get(name) for name in host.source.returns), host.parts[0]
        if result[first.index] is None:
            raise InvalidInputError(f"{self.name}: there is a prompt and no {first.name!r} behind the encoder's block")
        changed = host.project(self.apply, result, call, False, host.shown(None, result))
        for name, before, now in zip(host.source.returns, result, changed, strict=True):
            if now is not before:
                state.set(name, now)
        return components, state
