"""Modular Diffusers: edits and rewritten prompts around the block that encodes text.

A modular pipeline has no `encode_prompt`. What it has is a state that its blocks hand on, and one block that puts the
embeddings of the prompt there, which names them in its `intermediate_outputs`. `vldebias.debias` inserts a block before
that one, where the prompt is rewritten, and one behind it, where embeddings are edited; `attachment.remove()` takes
both out again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

import torch

from vldebias.errors import InvalidInputError, UnsupportedHostError, VldebiasError, need
from vldebias.hosts.base import INSIDE, Apply, Seam, installed
from vldebias.hosts.diffusers import SHARED, DiffusersHost, Rewrite, listed, rewrite_call
from vldebias.hosts.pipelines import EMBEDDING, Source, Trace

_MARK = "_vldebias"


def leaves(blocks: Any) -> Iterator[Any]:
    """The blocks that do something themselves, in the order in which they run."""
    if not blocks.sub_blocks:
        yield blocks
    for inside in blocks.sub_blocks.values():
        yield from leaves(inside)


class ModularHost(DiffusersHost):
    """A modular pipeline, seen as what its block that encodes text puts into the state.

    Embeddings that a caller passes in where no prompt is given are left alone.
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
        """What the block makes of a prompt, in a list or, where it takes a single one, alone."""

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
        """(b, tokens), true up to the last token of an image; None where the block tells of none."""
        named = zip(self.source.returns, result, strict=True)
        masks = [one for name, one in named if re.search("image.*mask", name) and one is not None]
        return masks[0].bool().flip(1).cumsum(1).flip(1) > 0 if masks else None

    def install(self, apply: Apply, rewrite: Rewrite | None = None, again: Rewrite | None = None) -> Callable[[], None]:
        """Insert blocks before and behind the one that encodes text; the returned function takes them out."""
        seam = _StateSeam(self.name, apply, self, rewrite, again)
        setattr(self._pipe, _MARK, seam)
        return installed([seam])


@dataclass(eq=False, repr=False)
class _StateSeam(Seam):
    """The two blocks of one pipeline, and what they do."""

    host: ModularHost
    rewrite: Rewrite | None
    again: Rewrite | None

    def __post_init__(self) -> None:
        self._blocks, name = _place(self.host)
        place = list(self._blocks).index(name)
        self._names = {"debias_prompt": self._before, "debias_embeddings": self._behind}
        for (own, run), at in zip(self._names.items(), (place, place + 2), strict=True):
            self._blocks.insert(own, _block_class()(self, run), at)
        self._call: dict[str, Any] = {}

    def take_off(self) -> None:
        """Take the blocks out of the pipeline."""
        super().take_off()
        for name in self._names:
            self._blocks.pop(name, None)
        vars(self.host._pipe).pop(_MARK, None)

    def _before(self, state: Any) -> None:
        names = [one.name for one in self.host.block.inputs if one.name]
        call = {name: state.get(name) for name in names}
        self._call = {name: list(one) if isinstance(one, list) else one for name, one in call.items()}
        INSIDE.set(True)  # until the block behind the encoder
        if self.rewrite is None or call.get("prompt") is None:
            return
        counts = [name for name in ("num_images_per_prompt", "num_videos_per_prompt") if state.get(name)]
        if self.host.single:
            state.set("prompt", self.rewrite([call["prompt"]])[0])
            attachment: Any = getattr(self.apply, "__self__", None)
            if attachment is not None and any(state.get(name) > 1 for name in counts):
                attachment.warn_once(SHARED.format(count=counts[0]))
            return
        given = call | {name: state.get(name) for name in counts[:1]}
        rewrite_call(given, self.rewrite, self.again)
        for name, value in given.items():
            state.set(name, value)

    def _behind(self, state: Any) -> None:
        INSIDE.set(False)
        if self.rewrite is not None or not listed(self._call.get("prompt")):
            return
        result = tuple(state.get(name) for name in self.host.source.returns)
        first = self.host.parts[0]
        if result[first.index] is None:
            raise InvalidInputError(f"{self.name}: there is a prompt and no {first.name!r} behind the encoder's block")
        changed = self.host.project(self.apply, result, self._call, False, self.host.shown(None, result))
        for name, before, now in zip(self.host.source.returns, result, changed, strict=True):
            if now is not before:
                state.set(name, now)


def _place(host: ModularHost) -> tuple[Any, str]:
    """The blocks among which the one that encodes text stands, or a conditional one around it, and its name there."""
    sequential, inside = need("diffusers").SequentialPipelineBlocks, host._pipe._blocks
    if not isinstance(inside, sequential):
        raise UnsupportedHostError(
            f"{host.name}: it consists of one block, {type(inside).__name__}, and an edit stands behind that; make the "
            "pipeline of SequentialPipelineBlocks.from_blocks_dict({'text_encoder': block})"
        )
    while True:
        holds = ((n, b) for n, b in inside.sub_blocks.items() if any(leaf is host.block for leaf in leaves(b)))
        name, child = next(holds)
        if child is host.block or not isinstance(child, sequential):
            return inside.sub_blocks, name
        inside = child


@cache
def _block_class() -> Any:
    """A block that does one thing for one pipeline; in a copy of the blocks, which is of no pipeline yet, nothing."""
    base = need("diffusers").ModularPipelineBlocks

    def init(self: Any, seam: _StateSeam | None = None, run: Callable[[Any], None] | None = None) -> None:
        base.__init__(self)
        self.seam, self.run = seam, run

    @torch.no_grad()
    def call(self: Any, components: Any, state: Any) -> tuple[Any, Any]:
        if self.seam is not None and self.seam.active and self.seam.host._pipe is components:
            self.run(state)
        return components, state

    def copied(self: Any, memo: object) -> Any:
        return type(self)()

    about = {"__module__": __name__, "__init__": init, "__call__": call, "__deepcopy__": copied, "model_name": None}
    about |= {"expected_components": [], "inputs": [], "description": "Mitigates a bias in prompts (vldebias)."}
    return type("DebiasBlock", (base,), about)
