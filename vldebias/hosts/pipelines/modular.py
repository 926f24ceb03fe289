"""Support Modular Diffusers: edit and rewrite prompts around the block that encodes text.

A modular pipeline has no `encode_prompt`. Its blocks read and write a shared state, and one block
writes the prompt embeddings, which it lists in its `intermediate_outputs`. The class of this block
object is replaced by a subclass that rewrites the prompt before the block runs and edits the
embeddings afterwards. `attachment.remove()` restores the original class.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, cast

import torch

from vldebias.errors import InvalidInputError, UnsupportedHostError, VldebiasError, need
from vldebias.hosts.attachment import INSIDE, Attachment
from vldebias.hosts.call_log import raise_failures
from vldebias.hosts.edits import EditAttachment
from vldebias.hosts.hooks import Hook
from vldebias.hosts.pipelines.calls import (
    EMBEDDING,
    PICTURES,
    copied,
    edited_images,
    listed,
    set_texts,
    texts_of_images,
    up_to_last,
)
from vldebias.hosts.pipelines.diffusers import SHARED, DiffusersHost
from vldebias.hosts.pipelines.source import Source
from vldebias.hosts.reading import BARE, during
from vldebias.hosts.values import PromptAttachment

if TYPE_CHECKING:
    from diffusers import ModularPipeline, ModularPipelineBlocks
    from diffusers.modular_pipelines import PipelineState

_MARK = "_vldebias"
_COUNTS = ("num_images_per_prompt", "num_videos_per_prompt")

Ran = tuple["ModularPipeline", "PipelineState"]
"""The output of a block: the components and the state."""
RunBlock = Callable[["ModularPipeline", "PipelineState"], Ran]
"""Function that runs a block: (components, state) -> (components, state)."""
Around = Callable[[RunBlock, "ModularPipeline", "PipelineState"], Ran]
"""Function that is called instead of a block, with the original call, components and state."""


def leaves(blocks: ModularPipelineBlocks) -> Iterator[ModularPipelineBlocks]:
    """Yield the innermost blocks in execution order."""
    if not blocks.sub_blocks:
        yield blocks
    for inside in blocks.sub_blocks.values():
        yield from leaves(inside)


class ModularHost(DiffusersHost):
    """Support a modular pipeline through the outputs of its text-encoding block.

    Embeddings that the caller passes instead of a prompt are not edited.
    """

    library = "diffusers.modular_pipelines"

    def __init__(self, pipe: ModularPipeline, tokenizer: object, negative: bool) -> None:
        first_refusal = ""
        # Use the first block that encodes text without an image.
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
                # Report the first error, because later blocks handle rarer cases.
                first_refusal = first_refusal or str(error)
            else:
                return
        raise UnsupportedHostError(
            first_refusal
            or f"{type(pipe).__name__}: no block takes `prompt` as input and outputs embeddings"
        )

    def call(self, prompts: list[str], **values: object) -> tuple[object, ...]:
        """Return the block's outputs for prompts, which are passed as a list or one by one.

        Args:
            prompts: the prompts; only one if the block does not accept lists.
            values: additional inputs of the block.
        """
        if not self.single:
            try:
                return self._outputs({"prompt": list(prompts), **values})
            except (TypeError, ValueError):
                # Blocks do not declare whether they accept lists, but raise one of these errors if
                # they do not.
                self.single = True
        if len(prompts) > 1:
            raise self.refusal(f"its block takes one prompt at a time, got {len(prompts)}")
        return self._outputs({"prompt": prompts[0], **values})

    def _outputs(self, values: Mapping[str, object]) -> tuple[object, ...]:
        """Run the block on a new state and return its outputs."""
        state = need("diffusers.modular_pipelines").PipelineState()
        for name, entry in self.inputs.items():
            state.set(name, entry.default, entry.kwargs_type)
        for name, value in values.items():
            state.set(name, value)
        self.block(self.pipe, state)
        return tuple(state.get(name) for name in self.source.returns)

    def install(self, attachment: EditAttachment) -> Callable[[], None]:
        """Edit the embeddings that the block writes to the state."""

        def run(run_block: RunBlock, components: ModularPipeline, state: PipelineState) -> Ran:
            prompt = state.get("prompt")
            call = copied({name: state.get(name) for name in self.inputs})
            components, state = run_block(components, state)
            if not listed(prompt):
                return components, state
            outputs = {name: state.get(name) for name in self.source.returns}
            embedding = self.parts[0].name
            if outputs[embedding] is None:
                raise InvalidInputError(
                    f"{self.name}: expected {embedding!r} from the block that encodes text, but it"
                    " returned none for this prompt"
                )
            # If the block reports which tokens represent an image, all tokens up to the last one
            # stay unchanged.
            masks = [outputs[name] for name in outputs if re.search("image.{0,100}mask", name)]
            shown = next((up_to_last(mask) for mask in masks if mask is not None), None)
            edited = self.project(attachment, tuple(outputs.values()), call, shown=shown)
            for name, value in zip(outputs, edited, strict=True):
                if value is not outputs[name]:
                    state.set(name, value)
            return components, state

        return self._replace_block(attachment, run)

    def install_prompts(self, attachment: PromptAttachment) -> Callable[[], None]:
        """Rewrite the prompts in the state before the block reads them."""

        def run(run_block: RunBlock, components: ModularPipeline, state: PipelineState) -> Ran:
            if state.get("prompt") is not None:
                call = copied({name: state.get(name) for name in self.inputs})
                seeds = state.get("generator")
                count_name = next(filter(state.get, _COUNTS), None)
                if count_name is not None and not self.single:
                    call[count_name] = state.get(count_name)
                arguments = {name: state.get(name) for name in PICTURES}
                edits = edited_images(PICTURES, arguments, call)
                if self.single:
                    columns = {"prompt": listed(call["prompt"])}
                    texts = attachment.rewrite_texts(columns, edits=edits, seeds=seeds)
                    call["prompt"] = texts["prompt"][0]
                    # All images of the call are generated from one prompt, so they share a value.
                    if attachment.acts and count_name is not None and state.get(count_name) > 1:
                        attachment.warn_once(SHARED.format(count=count_name))
                else:
                    columns = texts_of_images(call)
                    texts = attachment.rewrite_texts(columns, edits=edits, seeds=seeds)
                    set_texts(call, texts)
                for name, value in call.items():
                    state.set(name, value)
            result = run_block(components, state)
            raise_failures()
            return result

        return self._replace_block(attachment, run)

    def _replace_block(self, attachment: Attachment, around: Around) -> Callable[[], None]:
        """Replace the class of the text-encoding block, or of a conditional block containing it.

        Args:
            attachment: the attachment; the class is replaced while it is attached.
            around: a function that is called instead of the block, and returns its output.

        Returns:
            The function that restores the class.
        """
        # Sequential blocks run their inner blocks with their own code, so follow the path through
        # them to the block itself, or to the conditional one that contains it.
        sequential = need("diffusers").SequentialPipelineBlocks
        block = self.pipe._blocks
        while isinstance(block, sequential):
            inner_blocks = block.sub_blocks.values()
            block = next(inner for inner in inner_blocks if self.block in leaves(inner))
        kind = type(block)

        @torch.no_grad()
        def run(
            called: ModularPipelineBlocks, components: ModularPipeline, state: PipelineState
        ) -> Ran:
            # A copy of the block belongs to a different pipeline, to which nothing is attached.
            is_ours = called is block and components is self.pipe
            if not is_ours or attachment.state != "attached" or BARE.get():
                return cast("Ran", kind.__call__(called, components, state))

            def run_block(components: ModularPipeline, state: PipelineState) -> Ran:
                # The block calls the text encoders, which would look like an outside call.
                with during(INSIDE, True):
                    return cast("Ran", kind.__call__(called, components, state))

            return around(run_block, components, state)

        members = {
            "__call__": run,
            "__module__": kind.__module__,
            "__qualname__": kind.__qualname__,
        }
        # Define `__call__` on the class, because Python does not look it up on the instance.
        block.__class__ = type(kind.__name__, (kind,), members)
        vars(self.pipe)[_MARK] = Hook(attachment)  # prevents copies of the pipeline

        def restore() -> None:
            block.__class__ = kind
            vars(self.pipe).pop(_MARK, None)

        return restore
