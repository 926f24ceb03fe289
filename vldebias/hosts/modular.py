"""Modular Diffusers: edits at the output of the block that encodes text, and the block that carries them.

A modular pipeline has no `encode_prompt`. What it has is a state that its blocks hand on, and one block that puts the
embeddings of the prompt there. `DebiasPrompt` is a block that stands right behind that one. `vldebias.debias` inserts
it into the pipeline at hand, and `attachment.remove()` takes it out again. It can also be inserted by hand, saved to a
folder or the hub and loaded from there, like any block::

    block = vldebias.hosts.modular.DebiasPrompt(vldebias.fit_projections(pipe, "gender"))
    block.save_pretrained("debias-gender")

    blocks = pipe.blocks
    blocks.sub_blocks.insert("debias_prompt", DebiasPrompt.from_pretrained("debias-gender"), 1)
    other = blocks.init_pipeline(repository)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from vldebias.edit import Edit
from vldebias.edit_folder import find_folder
from vldebias.errors import AlreadyAttachedError, InvalidInputError, UnsupportedHostError, need
from vldebias.files import write_atomically
from vldebias.hosts.attached_edits import AttachedEdits
from vldebias.hosts.attachment import Attachment
from vldebias.hosts.base import Apply
from vldebias.hosts.diffusers import DiffusersHost
from vldebias.hosts.families_modular import BLOCKS, REFUSED_BLOCKS, TextBlock
from vldebias.hosts.family import Part
from vldebias.hosts.seam import Installed, Seam
from vldebias.hosts.steps import checked_window

__all__ = ["DebiasPrompt", "ModularHost", "list_blocks"]

_NAME, _MARK = "debias_prompt", "_vldebias"
_EDITS, _SETTINGS = "edits", "debias_prompt.json"
_MODULE = '''"""The block `vldebias.hosts.modular.DebiasPrompt`, by the name that Modular Diffusers looks for."""

from vldebias.hosts.modular import DebiasPrompt as Block


class DebiasPrompt(Block):
    """Its edits lie beside this file: pass edits="this folder", or call vldebias's own DebiasPrompt.from_pretrained."""
'''


def list_blocks() -> list[str]:
    """Names of the classes of blocks that encode text and are known, sorted."""
    return sorted(name for block in BLOCKS for name in block.classes)


def _leaves(blocks: Any) -> Iterator[Any]:
    """The blocks that do something themselves, in the order in which they run."""
    if not blocks.sub_blocks:
        yield blocks
    for inside in blocks.sub_blocks.values():
        yield from _leaves(inside)


def _named(block: Any, names: Mapping[str, Any]) -> Any:
    """The entry for the class of a block, or the nearest base of it."""
    return next((names[base.__name__] for base in type(block).__mro__ if base.__name__ in names), None)


def find_text_block(pipe: Any) -> tuple[Any, TextBlock]:
    """The block of a modular pipeline that encodes text, and what is known of it.

    Raises:
        UnsupportedHostError: there is none that is known; the message says why.
    """
    known = {name: block for block in BLOCKS for name in block.classes}
    blocks = [(leaf, one) for leaf in _leaves(pipe._blocks) if (one := _named(leaf, known)) is not None]
    if blocks:  # of a conditional block the one without an image, which is named first
        block = blocks[0][1]
        places = {name: place for place, name in enumerate(block.classes)}
        return min((leaf for leaf, one in blocks if one is block), key=lambda leaf: _named(leaf, places)), block
    why = next((why for leaf in _leaves(pipe._blocks) if (why := _named(leaf, REFUSED_BLOCKS)) is not None), None)
    names = ", ".join(type(leaf).__name__ for leaf in _leaves(pipe._blocks))
    raise UnsupportedHostError(
        f"{type(pipe).__name__}: {why or f'none of its blocks is known to encode text ({names[:300]})'}.\n"
        "Known ones: vldebias.hosts.modular.list_blocks(). If one of yours gives what a known one gives, derive its "
        "class from that one."
    )


class ModularHost(DiffusersHost):
    """A modular pipeline, seen as what its block that encodes text puts into the state.

    Embeddings that a caller passes in where no prompt is given are left alone.
    """

    library = "diffusers.modular_pipelines"
    held = (*DiffusersHost.held, "_block", "_inserted")

    @classmethod
    def of(cls, model: Any, tokenizer: Any = None, *, negative: bool = False) -> Self:
        """The host for a modular pipeline with one of the blocks of `list_blocks()`, or of a class derived from one.

        Raises:
            UnsupportedHostError: none of its blocks is known, or its text encoders are not loaded.
        """
        return cls(model, *find_text_block(model), negative)

    def __init__(self, pipe: Any, block: Any, known: TextBlock, negative: bool) -> None:
        super().__init__(pipe, known.family, negative)
        origin = getattr(pipe, "_pretrained_model_name_or_path", None)
        self.model_id = str(origin) if origin else None
        self._block, self._known = block, known
        self._batch = 1 if known.single else self._batch
        self._inserted: Any = None  # a DebiasPrompt that stands in the pipeline already

    def _encode(self, prompts: list[str], skip: int | None, when: tuple[str, Any] | None) -> tuple[Any, ...]:
        """What the block makes of prompts."""
        state = need("diffusers.modular_pipelines").PipelineState()
        for given in self._block.inputs:
            if given.name:
                state.set(given.name, given.default, given.kwargs_type)
        state.set("prompt", prompts[0] if self._known.single else prompts)
        if skip is not None:
            state.set("clip_skip", skip)
        self._block(self._pipe, state)
        return tuple(state.get(name) for name in self._known.outputs)

    def _encoded(self, prompts: Any, skip: int | None) -> Iterator[Any]:
        """Of what an encoder reads, the first is the prompt; under guidance it reads the negative one too."""
        for batch, part, result, readings in super()._encoded(prompts, skip):
            yield batch, part, result, {name: given[:1] for name, given in readings.items()}

    def _default(self, argument: str) -> Any:
        return next((own.default for own in self._block.inputs if own.name == argument), None)

    def project_state(self, apply: Apply, state: Any) -> None:
        """Change what the block has put into the state.

        Raises:
            InvalidInputError: there is a prompt and no embeddings of it.
        """
        names, first = self._known.outputs, self._family.parts[0]
        result = tuple(state.get(name) for name in names)
        prompt = state.get("prompt")
        if prompt is None:
            return
        if result[first.index] is None:
            raise InvalidInputError(
                f"{self.name}: a prompt and no {names[first.index]!r} where the block DebiasPrompt stands; insert it "
                f"right behind the block that encodes text, {type(self._block).__name__}"
            )
        call = {given.name: state.get(given.name) for given in self._block.inputs if given.name}
        changed = self.project(apply, result, call, second=False, readings={})
        for name, before, now in zip(names, result, changed, strict=True):
            if now is not before:
                state.set(name, now)

    def _shown(self, part: Part, result: Any, readings: Any) -> Tensor | None:
        """(b, tokens), true up to the last token of an image; None where the block tells of none."""
        if self._known.shown is None:
            return None
        shown = result[self._known.outputs.index(self._known.shown)]
        return None if shown is None else shown.bool().flip(1).cumsum(1).flip(1) > 0

    def install(self, apply: Apply) -> Callable[[], None]:
        """Insert a `DebiasPrompt` right behind the block that encodes text; the returned function takes it out."""
        Seam.refuse_copy(vars(self._pipe).values())
        block = self._inserted
        if block is None:
            if any(isinstance(leaf, _Steps) for leaf in _leaves(self._pipe._blocks)):
                raise AlreadyAttachedError(
                    f"{self.name}: a block DebiasPrompt stands in it already. Projecting twice is another method "
                    "(P P is not P): take that block out, or fit its edits jointly"
                )
            block = _block_class()()
            self._insert(block)
        seam = _StateSeam(self, apply, block)
        block.seam = seam
        setattr(self._pipe, _MARK, seam)
        self._beginnings = None
        hooks = self._step_by_step(apply)
        return Installed([seam] if self._steps is None else [seam, self._steps], hooks)

    def _insert(self, block: Any) -> None:
        sequential = need("diffusers").SequentialPipelineBlocks
        inside = self._pipe._blocks
        if not isinstance(inside, sequential):
            raise UnsupportedHostError(
                f"{self.name}: it consists of one block, {type(inside).__name__}, and an edit stands behind that; "
                "make the pipeline of SequentialPipelineBlocks.from_blocks_dict({'text_encoder': block})"
            )
        while True:
            name, child = next(
                (n, b) for n, b in inside.sub_blocks.items() if any(leaf is self._block for leaf in _leaves(b))
            )
            if child is self._block or not isinstance(child, sequential):
                break
            inside = child
        inside.sub_blocks.insert(_NAME, block, list(inside.sub_blocks).index(name) + 1)


class _StateSeam(Seam):
    """What a `DebiasPrompt` hands the state to, for one pipeline."""

    def __init__(self, host: ModularHost, apply: Apply, block: Any) -> None:
        super().__init__(host.name, apply)
        self.host, self.block = host, block

    def take_off(self) -> None:
        """Take the block out of the pipeline."""
        super().take_off()
        _take_out(self.host._pipe._blocks, self.block)
        self.block.seam = None
        vars(self.host._pipe).pop(_MARK, None)
        self.host._beginnings = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        twin = super().__deepcopy__(memo)
        twin.block = memo.get(id(self.block), self.block)
        return twin


def _take_out(blocks: Any, block: Any) -> None:
    for name, inside in list(blocks.sub_blocks.items()):
        if inside is block:
            del blocks.sub_blocks[name]
        else:
            _take_out(inside, block)


class _Steps:
    """What a `DebiasPrompt` does; the class itself derives from that of diffusers too, and is made when asked for."""

    model_name = None
    seam: _StateSeam | None = None

    def __init__(
        self,
        edits: Edit | Mapping[str, Edit] | str | Path | None = None,
        *,
        strength: float = 1.0,
        keep_stated: bool = True,
        negative: bool = False,
        steps: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        self.settings: dict[str, Any] = {"strength": strength, "keep_stated": keep_stated, "negative": negative}
        self.settings |= {"steps": None if steps is None else checked_window(steps)}
        self.edits: Edit | Mapping[str, Edit] | None = None
        if isinstance(edits, str | Path):
            loaded = type(self).from_pretrained(edits)
            self.edits, self.settings = loaded.edits, loaded.settings
        else:
            self.edits = edits

    @property
    def description(self) -> str:
        return (
            "Mitigates a bias in the embeddings of the prompt (vldebias). It stands right behind the block that "
            "encodes text, and changes what that put into the state; prompts that state the attribute are left alone."
        )

    @property
    def expected_components(self) -> list[Any]:
        return []

    @property
    def inputs(self) -> list[Any]:
        return [need("diffusers.modular_pipelines").InputParam("prompt", description="The prompt or prompts.")]

    @torch.no_grad()
    def __call__(self, components: Any, state: Any) -> tuple[Any, Any]:
        """The embeddings in the state, changed.

        Raises:
            UnsupportedHostError, ProjectionMismatchError: edits that do not belong to this pipeline.
            InvalidInputError: no edits, or embeddings that are not there yet.
        """
        seam = self.seam if self.seam is not None and self.seam.host._pipe is components else self._begin(components)
        if seam.active:
            seam.host.project_state(seam.apply, state)
        return components, state

    def _begin(self, pipe: Any) -> _StateSeam:
        """Attach to the pipeline that this block was inserted into."""
        edits, settings = self._carried()
        if edits is None:
            raise InvalidInputError(
                "DebiasPrompt: it has no edits; make it with DebiasPrompt(vldebias.fit_projections(pipe, prompts)) or "
                "DebiasPrompt.from_pretrained(folder)"
            )
        host = ModularHost.of(pipe, negative=settings["negative"])
        host._inserted = self
        if settings["steps"] is not None:
            host.within(settings["steps"])
        placed = AttachedEdits.on(host, edits, settings["keep_stated"])
        Attachment(host, placed.edits, strength=settings["strength"], gate=placed.gate, label=placed.label)
        assert self.seam is not None
        return self.seam

    def _carried(self) -> tuple[Edit | Mapping[str, Edit] | None, dict[str, Any]]:
        """Its edits and settings as they are now; those of the attachment, where it belongs to one."""
        attachment = getattr(self.seam.apply, "__self__", None) if self.seam is not None else None
        if isinstance(attachment, Attachment):
            return attachment.projections, attachment.settings
        return self.edits, self.settings

    # ---- on disk and on the hub ------------------------------------------------------------------------------

    def save_pretrained(self, save_directory: str | Path, push_to_hub: bool = False, **kwargs: Any) -> None:
        """Write the edits, the settings and what Modular Diffusers needs to find the class; and upload the folder.

        Raises:
            InvalidInputError: it has no edits.
        """
        edits, settings = self._carried()
        if edits is None:
            raise InvalidInputError("DebiasPrompt: it has no edits to save")
        folder = Path(save_directory)
        folder.mkdir(parents=True, exist_ok=True)
        for role, edit in (edits if isinstance(edits, Mapping) else {"": edits}).items():
            edit.save_pretrained(folder / _EDITS / (role or "all"))
        write_atomically(folder / _SETTINGS, json.dumps(settings, indent=2).encode())
        write_atomically(folder / "debias_prompt.py", _MODULE.encode())
        self.register_to_config(auto_map={"ModularPipelineBlocks": "debias_prompt.DebiasPrompt"})  # type: ignore[attr-defined]
        self.save_config(save_directory=str(folder), push_to_hub=push_to_hub, **kwargs)  # type: ignore[attr-defined]

    @classmethod
    def from_pretrained(cls, directory_or_repo: str | Path, **kwargs: Any) -> Self:
        """Read what `save_pretrained` wrote, from a folder or a hub repository; no code of it is run.

        kwargs: revision, token.

        Raises:
            InvalidInputError: no such folder or repository, or no edits in it.
        """
        hub = {name: kwargs.get(name) for name in ("revision", "token")}
        folder = find_folder(directory_or_repo, **hub, patterns=["*"])
        roles = sorted((folder / _EDITS).glob("*/config.json"))
        if not roles or not (folder / _SETTINGS).is_file():
            raise InvalidInputError(f"{folder}: no {_SETTINGS} or no {_EDITS} of a block DebiasPrompt in it")
        edits = {path.parent.name: Edit.from_pretrained(path.parent) for path in roles}
        settings = json.loads((folder / _SETTINGS).read_text("utf-8"))
        return cls(edits["all"] if list(edits) == ["all"] else edits, **settings)


@cache
def _block_class() -> Any:
    base = need("diffusers").ModularPipelineBlocks
    return type("DebiasPrompt", (_Steps, base), {"__module__": __name__, "__doc__": _Steps.__doc__})


if TYPE_CHECKING:
    DebiasPrompt = _Steps
else:

    def __getattr__(name: str) -> Any:
        if name == "DebiasPrompt":
            return _block_class()
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
