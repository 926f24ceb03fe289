"""Serve Modular Diffusers: edit and rewrite prompts around the block that encodes text.

A modular pipeline has no `encode_prompt`. Its blocks pass on a state, and one block puts the
embeddings of the prompt there and names them in its `intermediate_outputs`. That one block object
gets a class of its own, which rewrites the prompt before the block runs and edits embeddings after
it; `attachment.remove()` gives it its class back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import torch

from vldebias.errors import InvalidInputError, UnsupportedHostError, VldebiasError, need
from vldebias.hosts.attachment import INSIDE, Attachment
from vldebias.hosts.host import BARE, Hook, during
from vldebias.hosts.pipelines.calls import EMBEDDING, copied, listed, rewrite_call, up_to_last
from vldebias.hosts.pipelines.diffusers import SHARED, DiffusersHost
from vldebias.hosts.pipelines.source import Source

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

    def __init__(self, pipe: Any, tokenizer: Any, negative: bool) -> None:
        why = ""
        for self.block in leaves(
            pipe._blocks
        ):  # of a conditional block the one that needs no image
            names = tuple(one.name for one in self.block.intermediate_outputs)
            self.inputs = {one.name: one for one in self.block.inputs if one.name}
            if "prompt" not in self.inputs or not any(map(EMBEDDING.match, names)):
                continue
            self.single = False
            try:
                super().__init__(pipe, None, negative, Source(names))
                self.defaults = {name: one.default for name, one in self.inputs.items()}
                self.encode("a cat", ())
            except VldebiasError as error:
                why = why or str(error)
            else:
                return
        raise UnsupportedHostError(
            why
            or f"{type(pipe).__name__}: none of its blocks takes `prompt` and names embeddings "
            "as its outputs"
        )

    def call(self, prompt: str, **more: Any) -> Any:
        """Return the block's outputs for a prompt, in a list or, where it takes a single one,
        alone."""
        for given in [prompt] if self.single else [[prompt], prompt]:
            state = need("diffusers.modular_pipelines").PipelineState()
            for name, one in self.inputs.items():
                state.set(name, one.default, one.kwargs_type)
            for name, value in {"prompt": given, **more}.items():
                state.set(name, value)
            try:
                self.block(self._pipe, state)
            except (TypeError, ValueError):
                if given is prompt:
                    raise
                self.single = True
            else:
                break
        return tuple(state.get(name) for name in self.source.returns)

    def install(self, attachment: Attachment) -> Callable[[], None]:
        """Give the block that encodes text, or a conditional one that holds it, a class of its own,
        until removed."""
        sequential = need("diffusers").SequentialPipelineBlocks
        block = self._pipe._blocks
        while isinstance(block, sequential):
            block = next(
                one
                for one in block.sub_blocks.values()
                if any(leaf is self.block for leaf in leaves(one))
            )
        kind = type(block)

        @torch.no_grad()
        def call(one: Any, components: Any, state: Any) -> Any:
            acts = (
                one is block and components is self._pipe
            )  # a copy of the block is of another pipeline
            if not acts or attachment.state != "attached" or BARE.get():
                return kind.__call__(one, components, state)
            return self._around(attachment, lambda: kind.__call__(one, components, state), state)

        own = {"__call__": call, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
        block.__class__ = type(kind.__name__, (kind,), own)
        vars(self._pipe)[_MARK] = Hook(attachment)  # so that a copy of the pipeline is refused

        def take_off() -> None:
            block.__class__ = kind
            vars(self._pipe).pop(_MARK, None)

        return take_off

    def _around(self, attachment: Attachment, run: Any, state: Any) -> Any:
        prompt = state.get("prompt")
        call = copied({name: state.get(name) for name in self.inputs})
        if attachment.balancer is not None and prompt is not None:
            count = next(
                (n for n in ("num_images_per_prompt", "num_videos_per_prompt") if state.get(n)),
                None,
            )
            if self.single:
                call["prompt"] = attachment.rewrite([prompt])[0]
                if attachment.acts and count is not None and state.get(count) > 1:
                    attachment.warn_once(SHARED.format(count=count))
            else:
                call |= {} if count is None else {count: state.get(count)}
                rewrite_call(call, attachment.rewrite_texts)
            for name, value in call.items():
                state.set(name, value)
        with during(INSIDE):
            components, state = run()
        if attachment.balancer is None and listed(prompt):
            result = {name: state.get(name) for name in self.source.returns}
            if result[self.parts[0].name] is None:
                raise InvalidInputError(
                    f"{self.name}: got a prompt, but its block gave no {self.parts[0].name!r}"
                )
            # Where the block reports which tokens are of an image: those up to the last of them.
            masks = [
                one
                for name, one in result.items()
                if re.search("image.*mask", name) and one is not None
            ]
            shown = up_to_last(masks[0]) if masks else None
            edited = self.project(attachment, tuple(result.values()), call, shown=shown)
            for name, now in zip(result, edited, strict=True):
                if now is not result[name]:
                    state.set(name, now)
        return components, state
