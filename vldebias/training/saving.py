"""A trained model as a folder that every command which takes --model reads, and so do the libraries it came from."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor, nn

from vldebias import __version__
from vldebias.errors import InvalidInputError
from vldebias.training.sharded import whole
from vldebias.training.tuning import has_adapters, merged, save_adapter

if TYPE_CHECKING:
    from vldebias.hosts.towers import Towers

MANIFEST, ADAPTER = "vldebias.json", "adapter"


def save_model(
    towers: Towers, folder: Path, *, scope: str, name: str, weights: Mapping[str, Tensor] | None = None
) -> None:
    """Writes the model into `folder`, whole or not at all; what was saved there before is replaced.

    open_clip       open_clip_config.json, open_clip_model.safetensors: open_clip reads "local-dir:FOLDER"
    transformers    what save_pretrained writes for model, tokenizer and image processor
    miniature       clip.safetensors, merges.txt.gz: vldebias.miniature.load_clip(folder)
    adapters        the same with the adapters merged, and adapter/ with them alone, as peft reads it
    vldebias.json   what it was made of

    Args:
        scope: what learnt, see `vldebias.training.tuning.tune`.
        name: what the model was loaded by, see `vldebias.loading.load_host`.
        weights: the whole state dict, where FSDP has split the model (`whole_weights`); default: the model's own.

    Raises:
        InvalidInputError: a folder with other things in it; a model that cannot be saved, see `check_savable`.
    """
    from safetensors.torch import save_file

    from vldebias.hosts.checkpoints import write_checkpoint
    from vldebias.miniature.tokenizer import save_tokenizer

    refuse_foreign(folder)
    held = whole_weights(towers.model) if weights is None else weights
    plain = merged(towers.model, held) if has_adapters(towers.model) else dict(held)
    with replacing(folder) as beside:
        if _is_miniature(towers):
            family = "miniature"
            kept = {key: tensor.detach().cpu().clone().contiguous() for key, tensor in plain.items()}
            save_file(kept, beside / "clip.safetensors")
            save_tokenizer(list(towers.tokenizer.bpe_ranks), beside)
        else:
            family = towers.library
            write_checkpoint(towers, plain, beside, name=name)
        if has_adapters(towers.model):
            save_adapter(towers.model, held, beside / ADAPTER, base=name)
        made_of = {"family": family, "base": name, "scope": scope, "vldebias_version": __version__}
        (beside / MANIFEST).write_text(json.dumps(made_of, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def check_savable(towers: Towers, *, name: str) -> None:
    """Before hours of training: could the model be saved, and would it be this model that is read again?

    Raises:
        InvalidInputError: `name` is no architecture or another one than the model's; a tokenizer or preprocessing
            that cannot be stored with it.
    """
    from vldebias.hosts.checkpoints import check_checkpoint

    if not _is_miniature(towers):
        weights = towers.model.state_dict()
        plain = merged(towers.model, weights) if has_adapters(towers.model) else weights
        check_checkpoint(towers, plain, name=name)


def whole_weights(model: nn.Module) -> dict[str, Tensor]:
    """The state dict on the CPU, with the shards of all processes, each of which must call this."""
    return {name: whole(tensor).detach().cpu() for name, tensor in model.state_dict().items()}


def _is_miniature(towers: Towers) -> bool:
    from vldebias.miniature import Preprocess

    return isinstance(towers.preprocess, Preprocess)


def refuse_foreign(folder: Path) -> None:
    """Raises InvalidInputError where something would be lost that was never a saved model."""
    if folder.exists() and not (folder / MANIFEST).is_file() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidInputError(
            f"{folder}: holds other things than a saved model, which would be lost; expected a new folder, an empty "
            f"one, or one with a {MANIFEST}"
        )


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """A folder beside `folder` that takes its name when all is written; a kill leaves the old one, or it beside."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    put_back(folder)
    beside, before = (folder.with_name(folder.name + end) for end in (".part", ".before"))
    for leftover in (beside, before):
        shutil.rmtree(leftover, ignore_errors=True)
    beside.mkdir()
    try:
        yield beside
        if folder.exists():
            os.replace(folder, before)
        os.replace(beside, folder)
    finally:
        for leftover in (beside, before):
            shutil.rmtree(leftover, ignore_errors=True)


def put_back(folder: Path) -> None:
    """After a kill between the two moves of `replacing` the only whole folder is the one that was moved aside."""
    before = folder.with_name(folder.name + ".before")
    if before.is_dir() and not folder.exists():
        os.replace(before, folder)
