"""Select what is trained (the model, one tower, last blocks, heads, adapters of peft), and save a
trained model.

The rest of the model stays as it was loaded.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from vldebias import __version__
from vldebias.errors import InvalidInputError, UnsupportedHostError, need
from vldebias.hosts.clip.towers import Towers
from vldebias.hosts.host import reading
from vldebias.miniature import Preprocess
from vldebias.miniature.tokenizer import save_tokenizer

MANIFEST = "vldebias.json"
_NAME = "default"  # of the adapter in peft
_STACKED = "in_proj_weight"

Weight = TypeVar("Weight", bound=Tensor)


def tune(
    towers: Towers,
    scope: str,
    *,
    lora_rank: int = 8,
    seed: int = 0,
    last: Mapping[str, int | None] | None = None,
) -> list[str]:
    """Set `requires_grad` of all parameters of the model, and return the names of the trained ones.

    Frozen in every scope are temperature and bias, which belong to the loss, and parameters that
    reach no feature (such as CoCa's caption decoder), for whose gradient processes would wait.

    Args:
        scope: "all", "text", "image" (one tower), "heads" (layers into the joint space) or "lora":
            2 B A of rank `lora_rank`, B = 0 at first (Hu et al., arXiv:2106.09685, section 4.1),
            added to the weights of every Linear and to the query, key and value weights of torch's
            attention, heads excepted.
        last: {"image": 2, "text": 0}: number of last blocks to train in each tower, with the layers
            after them (a norm, a projection). A tower without a number is trained whole.
    """
    model = towers.model
    if hasattr(model, "peft_config"):
        raise UnsupportedHostError(
            f"{type(model).__name__}: has peft adapters; merge them first (merge_and_unload)"
        )
    if scope == "lora":
        _add_adapters(towers, lora_rank, seed)
    else:
        image, text, heads = (
            _parameters(p) for p in (towers.image_parts, towers.text_parts, towers.heads)
        )
        for side, tower in (("image", image), ("text", text)):
            if scope == "heads" and not tower.keys() & heads.keys():
                raise InvalidInputError(
                    f"scope 'heads': the {side} tower of {type(model).__name__} ends without a"
                    f" projection into the joint space; use scope {side!r}, 'all' or 'lora'"
                )
        chosen = {"all": image | text, "image": image, "text": text, "heads": heads}[scope]
        for side, blocks in (last or {}).items():
            if blocks is not None:
                depth, levels = depths(towers, side)
                if blocks >= levels:
                    raise InvalidInputError(
                        f"{side}_blocks: the {side} tower has {levels - 1} blocks, got {blocks}"
                    )
                chosen = {
                    k: p for k, p in chosen.items() if depth.get(p, levels) >= levels - blocks
                }
        learning = _reached(towers, list(chosen.values()))
        model.requires_grad_(False)
        for parameter in learning:
            parameter.requires_grad_(True)
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


def depths(towers: Towers, side: str) -> tuple[dict[nn.Parameter, int], int]:
    """Return the depth of each parameter of one tower ("image", "text"), and the depth after the
    last block. All then require gradients.

    Depth 0 is before the first block. Blocks: the longest run of modules of one class; of a ResNet
    its largest stage.
    """
    parts = towers.image_parts if side == "image" else towers.text_parts
    modules = [run for part in parts if isinstance(part, nn.Module) for run in part.modules()]
    runs = [list(run) for run in modules if isinstance(run, (nn.ModuleList, nn.Sequential))]
    alike: list[list[nn.Module]] = [run for run in runs if len({type(block) for block in run}) == 1]
    blocks = max(
        alike, key=lambda run: sum(p.numel() for b in run for p in b.parameters()), default=[]
    )
    if not any(True for block in blocks for _ in block.parameters()):
        raise UnsupportedHostError(
            f"{type(towers.model).__name__}: the {side} tower has no run of blocks to count"
        )
    depth = dict.fromkeys(_parameters(parts).values(), 0)

    def detached(*call: Any) -> Any:
        out = call[-1]
        return out.detach() if isinstance(out, Tensor) else type(out)(part.detach() for part in out)

    hook = blocks[-1].register_forward_hook(detached)
    try:  # what still has a gradient comes after
        depth |= dict.fromkeys(_reached(towers, list(depth)), len(blocks) + 1)
    finally:
        hook.remove()
    for number, block in enumerate(blocks, start=1):
        depth |= dict.fromkeys(block.parameters(), number)
    return depth, len(blocks) + 1


def _parameters(parts: Iterable[Any]) -> dict[int, nn.Parameter]:
    """Return the parameters of modules, and those that stand alone, each once, by their
    identity."""
    each = (
        p
        for part in parts
        for p in ([part] if isinstance(part, nn.Parameter) else part.parameters())
    )
    return {id(parameter): parameter for parameter in each}


def _add_adapters(towers: Towers, rank: int, seed: int) -> None:
    """Add an adapter to every Linear and stacked attention, without the heads, that the features
    depend on.

    A layer whose weights are read by another one (the output of a MultiheadAttention, the attention
    pool of a ResNet) would carry an adapter that nothing sees. peft's own layer for
    MultiheadAttention adds to the weights before each call and subtracts after it, so rounding
    moves the frozen weights; its adapters of single parameters do not.
    """
    peft = need("peft")
    heads = {
        id(part) for head in towers.heads if isinstance(head, nn.Module) for part in head.modules()
    }
    weights, running, hooks = dict[str, Tensor](), set[str](), []
    for name, module in towers.model.named_modules():
        weight = getattr(
            module, _STACKED if isinstance(module, nn.MultiheadAttention) else "weight", None
        )
        if (
            id(module) in heads
            or weight is None
            or not isinstance(module, (nn.Linear, nn.MultiheadAttention))
        ):
            continue
        weights[name] = weight
        hooks.append(module.register_forward_hook(lambda *_, name=name: running.add(name)))
    try:
        with reading(towers.model):
            _one_pair(towers)
    finally:
        for hook in hooks:
            hook.remove()
    useful = {
        id(w)
        for w in _reached(towers, [weight for name, weight in weights.items() if name in running])
    }
    layers = [name for name, weight in weights.items() if name in running and id(weight) in useful]
    stacked = [
        name
        for name in layers
        if isinstance(towers.model.get_submodule(name), nn.MultiheadAttention)
    ]
    towers.model.requires_grad_(False)
    config = peft.LoraConfig(
        r=rank,
        lora_alpha=2 * rank,
        target_modules=[name for name in layers if name not in stacked],
        target_parameters=[f"{name}.{_STACKED}" for name in stacked] or None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        peft.inject_adapter_in_model(config, towers.model, adapter_name=_NAME)


def _reached(towers: Towers, parameters: Sequence[Weight]) -> list[Weight]:
    """Return those of `parameters`, which all require gradients afterwards, that a feature depends
    on."""
    numbers = [p for p in parameters if p.is_floating_point()]
    if not numbers:
        raise UnsupportedHostError(
            f"{type(towers.model).__name__}: its weights are quantized; load it unquantized"
        )
    for parameter in numbers:
        parameter.requires_grad_(True)
    with reading(towers.model), torch.enable_grad():
        total = torch.stack([features.float().sum() for features in _one_pair(towers)]).sum()
        gradients = torch.autograd.grad(total, numbers, allow_unused=True)
    return [p for p, gradient in zip(numbers, gradients, strict=True) if gradient is not None]


def _one_pair(towers: Towers) -> tuple[Tensor, Tensor]:
    """Return features (1, d) of an empty image and of a short caption."""
    device = next(towers.model.parameters()).device
    tokens = {name: tensor.to(device) for name, tensor in towers.tokenize(["a photo"]).items()}
    return towers.image(torch.zeros(1, 3, *towers.size, device=device)), towers.text(tokens)


def merged(model: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return `weights`, a state dict, as W + (alpha / rank) B A under the names without
    adapters."""
    plain = {
        name.replace(".base_layer.", "."): t for name, t in weights.items() if ".lora_" not in name
    }
    for name, first in weights.items():
        layer, down, _ = name.partition(f".lora_A.{_NAME}.weight")
        if down:
            adapted: Any = model.get_submodule(layer)
            target = f"{layer}.{getattr(adapted, 'parameter_name', 'weight')}"
            second, weight = weights[f"{layer}.lora_B.{_NAME}.weight"], plain[target]
            change = adapted.scaling[_NAME] * (second.float() @ first.float())
            plain[target] = (weight.float() + change.to(weight.device)).to(weight.dtype)
    return plain


def save_model(towers: Towers, folder: Path, *, scope: str, name: str) -> None:
    """Write the model into `folder`, whole or not at all, and replace a model saved there before.

    Its own library reads it (open_clip as "local-dir:FOLDER"). Adapters are merged, and
    vldebias.json records `scope`, the trained part, and `name`, by which the model was loaded (see
    `vldebias.hosts.loading.load_host`).
    """
    from safetensors.torch import save_file

    refuse_foreign(folder)
    small = isinstance(towers.preprocess, Preprocess)
    plain = merged(
        towers.model, {key: t.detach().cpu() for key, t in towers.model.state_dict().items()}
    )
    with replacing(folder) as beside:
        if small:
            save_file(
                {key: t.clone().contiguous() for key, t in plain.items()},
                beside / "clip.safetensors",
            )
            save_tokenizer(list(towers.tokenizer.bpe_ranks), beside)
        else:
            towers.save(plain, beside, name=name)
        family = "miniature" if small else towers.library
        about = {"family": family, "base": name, "scope": scope, "vldebias_version": __version__}
        (beside / MANIFEST).write_text(
            json.dumps(about, indent=2, sort_keys=True) + "\n", encoding="utf-8"
        )


def check_savable(towers: Towers, *, name: str) -> None:
    """Refuse, before hours of training, a model that could not be saved or would be loaded as
    another one."""
    if not isinstance(towers.preprocess, Preprocess):
        towers.check_saving(merged(towers.model, towers.model.state_dict()), name=name)


def refuse_foreign(folder: Path) -> None:
    """Raise InvalidInputError where saving would overwrite anything but a saved model."""
    if (
        folder.exists()
        and not (folder / MANIFEST).is_file()
        and (not folder.is_dir() or any(folder.iterdir()))
    ):
        raise InvalidInputError(
            f"{folder}: holds files other than a saved model; choose a new folder"
        )


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that replaces `folder` when all is written; a kill leaves the old
    one."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside, before = (folder.with_name(folder.name + end) for end in (".part", ".before"))
    if before.is_dir() and not folder.exists():  # a kill between the two moves left it aside
        os.replace(before, folder)
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
