"""Serve Modular Diffusers: edit and rewrite prompts around the block that encodes text.

A modular pipeline has no `encode_prompt`. Its blocks pass on a state, and one block puts the
embeddings of the prompt there and names them in its `intermediate_outputs`. That one block object
gets a class of its own, which rewrites the prompt before the block runs and edits embeddings after
it; `attachment.remove()` gives it its class back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from vldebias.errors import InvalidInputError, UnsupportedHostError, VldebiasError, need
from vldebias.hosts.attachment import INSIDE, Attachment
from vldebias.hosts.edits import EditAttachment
from vldebias.hosts.hooks import Hook
from vldebias.hosts.host import BARE, during
from vldebias.hosts.pipelines.calls import (
    EMBEDDING,
    copied,
    images_per_prompt,
    listed,
    set_texts,
    texts_of_images,
    up_to_last,
)
from vldebias.hosts.pipelines.diffusers import SHARED, DiffusersHost
from vldebias.hosts.pipelines.source import Source
from vldebias.hosts.records import raise_failures
from vldebias.hosts.values import PromptAttachment

_MARK = "_vldebias"
_COUNTS = ("num_images_per_prompt", "num_videos_per_prompt")

RunBlock = Callable[[Any, Any], Any]
"""Run a block: (components, state) -> (components, state)."""


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
        first_refusal = ""
        # Of a conditional block the one that needs no image is taken: it encodes a text alone.
        for self.block in leaves(pipe._blocks):
            self.inputs = {entry.name: entry for entry in self.block.inputs if entry.name}
            names = tuple(entry.name for entry in self.block.intermediate_outputs)
            if "prompt" not in self.inputs or not any(map(EMBEDDING.match, names)):
                continue
            self.single = False
            try:
                super().__init__(pipe, None, negative, Source(names))
                self.defaults = {name: entry.default for name, entry in self.inputs.items()}
                self.encode(["a cat"], ())
            except VldebiasError as error:
                # The first error is reported: later blocks serve rarer cases.
                first_refusal = first_refusal or str(error)
            else:
                return
        nothing = f"{type(pipe).__name__}: none of its blocks takes `prompt` and names embeddings"
        raise UnsupportedHostError(first_refusal or f"{nothing} as its outputs")

    def call(self, prompts: list[str], **values: object) -> Any:
        """Return the block's outputs for prompts, in a list or, where it takes a single one,
        alone."""
        if not self.single:
            try:
                return self._outputs({"prompt": list(prompts), **values})
            except (TypeError, ValueError):
                # No input says whether a block takes lists: it raises either at a list.
                self.single = True
        if len(prompts) > 1:
            raise self.refusal(f"its block takes one prompt at a time, got {len(prompts)}")
        return self._outputs({"prompt": prompts[0], **values})

    def _outputs(self, values: Mapping[str, object]) -> tuple[Any, ...]:
        """Run the block on a new state; return its outputs."""
        state = need("diffusers.modular_pipelines").PipelineState()
        for name, entry in self.inputs.items():
            state.set(name, entry.default, entry.kwargs_type)
        for name, value in values.items():
            state.set(name, value)
        self.block(self._pipe, state)
        return tuple(state.get(name) for name in self.source.returns)

    def install(self, attachment: EditAttachment) -> Callable[[], None]:
        """Edit the embeddings that the block puts into the state."""

        def run(run_block: RunBlock, components: Any, state: Any) -> Any:
            prompt = state.get("prompt")
            call = copied({name: state.get(name) for name in self.inputs})
            components, state = run_block(components, state)
            if listed(prompt):
                self._edit(attachment, call, state)
            return components, state

        return self._replace_block(attachment, run)

    def install_prompts(self, attachment: PromptAttachment) -> Callable[[], None]:
        """Rewrite the prompts in the state before the block reads them."""

        def run(run_block: RunBlock, components: Any, state: Any) -> Any:
            if state.get("prompt") is not None:
                call = copied({name: state.get(name) for name in self.inputs})
                self._rewrite(attachment, call, state)
            result = run_block(components, state)
            raise_failures()
            return result

        return self._replace_block(attachment, run)

    def _replace_block(
        self, attachment: Attachment, around: Callable[[RunBlock, Any, Any], object]
    ) -> Callable[[], None]:
        """Give the block that encodes text, or a conditional one that contains it, a subclass until
        the attachment is removed.

        Args:
            attachment: what is attached.
            around: (runs the block, components, state) -> what the block returns.

        Returns:
            The function that restores the class.
        """
        # Sequential blocks run what is inside of them by their own code, so the way goes through
        # them to the block itself, or to the conditional one that holds it.
        sequential = need("diffusers").SequentialPipelineBlocks
        block = self._pipe._blocks
        while isinstance(block, sequential):
            block = next(
                inner for inner in block.sub_blocks.values() if self.block in leaves(inner)
            )
        kind = type(block)

        @torch.no_grad()
        def run(called: object, components: object, state: object) -> Any:
            # A copy of the block is of another pipeline, which nothing is attached to.
            is_ours = called is block and components is self._pipe
            if not is_ours or attachment.state != "attached" or BARE.get():
                return kind.__call__(called, components, state)

            def run_block(components: object, state: object) -> Any:
                # The block calls the text encoders, whose watch would take that for a call from
                # outside.
                with during(INSIDE):
                    return kind.__call__(called, components, state)

            return around(run_block, components, state)

        members = {
            "__call__": run,
            "__module__": kind.__module__,
            "__qualname__": kind.__qualname__,
        }
        # On a class: Python does not look for `__call__` on the instance.
        block.__class__ = type(kind.__name__, (kind,), members)
        vars(self._pipe)[_MARK] = Hook(attachment)  # so that a copy of the pipeline is refused

        def take_off() -> None:
            block.__class__ = kind
            vars(self._pipe).pop(_MARK, None)

        return take_off

    def _rewrite(self, attachment: PromptAttachment, call: dict[str, Any], state: Any) -> None:
        """Rewrite the prompts of a call, in the state as well."""
        counts = {name: state.get(name) for name in _COUNTS if state.get(name)}
        count_name = next(iter(counts), None)
        seeds = state.get("generator")
        if self.single:
            texts = attachment.rewrite_texts({"prompt": [call["prompt"]]}, seeds=seeds)
            call["prompt"] = texts["prompt"][0]
            # One prompt makes all images of the call, so they share its value.
            shares_value = count_name is not None and counts[count_name] > 1
            if attachment.acts and shares_value:
                attachment.warn_once(SHARED.format(count=count_name))
        else:
            if count_name is not None:
                call[count_name] = counts[count_name]
            texts = texts_of_images(call)
            set_texts(call, attachment.rewrite_texts(texts, images_per_prompt(call), seeds=seeds))
        for name, value in call.items():
            state.set(name, value)

    def _edit(self, attachment: EditAttachment, call: dict[str, Any], state: Any) -> None:
        """Edit the embeddings that the block has put into the state."""
        outputs = {name: state.get(name) for name in self.source.returns}
        embedding = self.parts[0].name
        if outputs[embedding] is None:
            raise InvalidInputError(
                f"{self.name}: got a prompt, but its block gave no {embedding!r}"
            )
        # Where the block reports which tokens are of an image: those up to the last of them.
        shown = None
        for name, mask in outputs.items():
            if mask is not None and re.search("image.*mask", name):
                shown = up_to_last(mask)
                break
        edited = self.project(attachment, tuple(outputs.values()), call, shown=shown)
        for name, value in zip(outputs, edited, strict=True):
            if value is not outputs[name]:
                state.set(name, value)
