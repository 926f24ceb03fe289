"""Select the parameters to train, and save trained models."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from vldebias.errors import InvalidInputError, UnsupportedHostError, need
from vldebias.hosts.clip.towers import Towers
from vldebias.hosts.reading import reading
from vldebias.miniature import Preprocess
from vldebias.miniature.tokenizer import save_tokenizer
from vldebias.utils.files import storage_errors, sync
from vldebias.utils.formats import FORMAT
from vldebias.version import __version__

MANIFEST = "vldebias.json"
_NAME = "default"  # name of the peft adapter
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
    """Set `requires_grad` for all model parameters, and return the names of the trained ones.

    The temperature and the bias are always frozen, because they belong to the loss. Parameters that
    do not affect any feature, such as CoCa's caption decoder, are also frozen, because distributed
    processes would wait for their gradients.

    Args:
        towers: the model.
        scope: "all", "text" or "image" (one tower), "heads" (projections into the joint space) or
            "lora". LoRA adds 2 B A of rank `lora_rank`, with B = 0 initially (Hu et al., 2021,
            section 4.1), to the weights of every Linear layer except the heads, and to the query,
            key and value weights of torch's attention.
        lora_rank: rank of the adapters with scope "lora".
        seed: seed for the adapters' initial values.
        last: number of final blocks to train in each tower, such as {"image": 2, "text": 0}.
            Layers after the blocks, such as a norm or a projection, are trained in any case. Towers
            without a number are trained in full.

    Raises:
        InvalidInputError: If a tower has fewer blocks than `last` selects, or if the scope is
            "heads" and a tower has no head.
        UnsupportedHostError: If the model has adapters or quantized weights.
    """
    model = towers.model
    if hasattr(model, "peft_config"):
        raise UnsupportedHostError(
            f"{type(model).__name__}: expected a model without peft adapters; merge them first"
            " (merge_and_unload)"
        )
    if scope == "lora":
        _add_adapters(towers, lora_rank, seed)
    else:
        chosen = _parameters_of_scope(towers, scope)
        for side, blocks in (last or {}).items():
            if blocks is None:
                continue
            depth, levels = depths(towers, side)
            if blocks >= levels:
                raise InvalidInputError(
                    f"{side}_blocks: expected at most {levels - 1}, as in the tower, got {blocks}"
                )
            for key, parameter in list(chosen.items()):
                # Parameters of the other tower have no entry in `depth` and stay trainable.
                if depth.get(parameter, levels) < levels - blocks:
                    del chosen[key]
        learning = _reached(towers, list(chosen.values()))
        model.requires_grad_(False)
        for parameter in learning:
            parameter.requires_grad_(True)
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


def _parameters_of_scope(towers: Towers, scope: str) -> dict[int, nn.Parameter]:
    """Return the parameters in a scope, keyed by id.

    Raises:
        InvalidInputError: If the scope is "heads" and a tower has no head.
    """
    image = _parameters(towers.image_parts)
    text = _parameters(towers.text_parts)
    heads = _parameters(towers.heads)
    if scope == "heads":
        for side, tower in (("image", image), ("text", text)):
            if not tower.keys() & heads.keys():
                raise InvalidInputError(
                    f"scope 'heads': the {side} tower of {type(towers.model).__name__} has no"
                    " projection into the joint space at its end; use scope"
                    f" {side!r}, 'all' or 'lora'"
                )
    return {"all": image | text, "image": image, "text": text, "heads": heads}[scope]


def depths(towers: Towers, side: str) -> tuple[dict[nn.Parameter, int], int]:
    """Return the depth of each parameter in a tower, and the depth after the last block.

    Depth 0 is before the first block. The blocks are the list of modules of the same class that has
    the most parameters, such as the largest stage of a ResNet. As a side effect, all parameters of
    the tower require gradients afterwards.

    Args:
        towers: the model.
        side: "image" or "text".
    """
    parts = towers.image_parts if side == "image" else towers.text_parts
    blocks: list[nn.Module] = []
    for part in parts:
        if not isinstance(part, nn.Module):
            continue
        for module in part.modules():
            if isinstance(module, (nn.ModuleList, nn.Sequential)):
                modules = list(module)
                have_same_class = len({type(block) for block in modules}) == 1
                if have_same_class and _size_of(modules) > _size_of(blocks):
                    blocks = modules
    if not _size_of(blocks):
        raise UnsupportedHostError(
            f"{type(towers.model).__name__}: the {side} tower has no blocks; omit {side}_blocks"
        )
    depth = dict.fromkeys(_parameters(parts).values(), 0)

    def detached(
        _module: nn.Module, _inputs: object, output: Tensor | tuple[Tensor, ...]
    ) -> Tensor | tuple[Tensor, ...]:
        if isinstance(output, Tensor):
            return output.detach()
        return type(output)(part.detach() for part in output)

    # Detach the last block's output, so that only parameters after it get a gradient.
    with blocks[-1].register_forward_hook(detached):
        depth |= dict.fromkeys(_reached(towers, list(depth)), len(blocks) + 1)
    for number, block in enumerate(blocks, start=1):
        depth |= dict.fromkeys(block.parameters(), number)
    return depth, len(blocks) + 1


def _size_of(blocks: Iterable[nn.Module]) -> int:
    """Return the total number of parameters in the blocks."""
    size = 0
    for block in blocks:
        size += sum(parameter.numel() for parameter in block.parameters())
    return size


def _parameters(parts: Iterable[nn.Module | nn.Parameter]) -> dict[int, nn.Parameter]:
    """Return individual parameters and the parameters of modules, keyed by id."""
    parameters: dict[int, nn.Parameter] = {}
    for part in parts:
        if isinstance(part, nn.Parameter):
            parameters[id(part)] = part
        else:
            parameters |= {id(parameter): parameter for parameter in part.parameters()}
    return parameters


def _add_adapters(towers: Towers, rank: int, seed: int) -> None:
    """Add adapters to all Linear layers and stacked attention that affect features, except heads.

    An adapter has no effect if a different layer uses its layer's weights, as with the output
    projection of MultiheadAttention and a ResNet's attention pool. peft's layer for
    MultiheadAttention adds the adapter to the weights before each call and subtracts it afterwards,
    so rounding errors change the frozen weights. peft's adapters for individual parameters avoid
    this.
    """
    peft = need("peft")
    weight_of_layer = _running_layers(towers)
    reached = {id(weight) for weight in _reached(towers, list(weight_of_layer.values()))}
    linear = []
    stacked = []
    for name, weight in weight_of_layer.items():
        if id(weight) not in reached:
            continue
        if isinstance(towers.model.get_submodule(name), nn.MultiheadAttention):
            stacked.append(f"{name}.{_STACKED}")
        else:
            linear.append(name)
    towers.model.requires_grad_(False)
    config = peft.LoraConfig(
        r=rank,
        lora_alpha=2 * rank,
        target_modules=linear,
        target_parameters=stacked or None,
    )
    # peft uses the global generator, so restore its state for the caller.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        peft.inject_adapter_in_model(config, towers.model, adapter_name=_NAME)


def _running_layers(towers: Towers) -> dict[str, Tensor]:
    """Return the weights of the layers that are called to embed a pair, by module name.

    The layers are Linear layers and stacked attention, except the heads.
    """
    heads = _parameters(towers.heads)
    weights = dict[str, Tensor]()
    running = set[str]()
    with ExitStack() as stack:
        for name, module in towers.model.named_modules():
            weight: Tensor | None = None
            if isinstance(module, nn.MultiheadAttention):
                # The weight is None if query, key and value have separate matrices.
                weight = module.in_proj_weight
            elif isinstance(module, nn.Linear):
                weight = module.weight
            if weight is not None and id(weight) not in heads:
                weights[name] = weight
                hook = module.register_forward_hook(lambda *_, name=name: running.add(name))
                stack.enter_context(hook)
        with reading(towers.model):
            _embed_pair(towers)
    return {name: weight for name, weight in weights.items() if name in running}


def _reached(towers: Towers, parameters: Sequence[Weight]) -> list[Weight]:
    """Return the parameters that affect a feature, and make all parameters require gradients."""
    numbers = [p for p in parameters if p.is_floating_point()]
    if not numbers:
        raise UnsupportedHostError(
            f"{type(towers.model).__name__}: its weights are quantized; load it unquantized"
        )
    for parameter in numbers:
        parameter.requires_grad_(True)
    # Parameters that do not affect any feature get no gradient from the sum of all features.
    with reading(towers.model), torch.enable_grad():
        total = torch.stack([features.float().sum() for features in _embed_pair(towers)]).sum()
        gradients = torch.autograd.grad(total, numbers, allow_unused=True)
    return [p for p, gradient in zip(numbers, gradients, strict=True) if gradient is not None]


def _embed_pair(towers: Towers) -> tuple[Tensor, Tensor]:
    """Return the features (1, d) of a black image and a short caption."""
    device = next(towers.model.parameters()).device
    tokens = {name: tensor.to(device) for name, tensor in towers.tokenize(["a photo"]).items()}
    return towers.image(torch.zeros(1, 3, *towers.size, device=device)), towers.text(tokens)


def merged(model: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a state dict with adapters merged, W + (alpha / rank) B A, under the original names.

    Args:
        model: the model with adapters.
        weights: the state dict of the model.
    """
    kept = {name: tensor for name, tensor in weights.items() if ".lora_" not in name}
    plain = {name.replace(".base_layer.", "."): tensor for name, tensor in kept.items()}
    for name, first in weights.items():
        layer, is_adapter, _ = name.partition(f".lora_A.{_NAME}.weight")
        # peft stores A (rank, in) and B (out, rank) next to the weight they modify.
        if is_adapter:
            adapted: Any = model.get_submodule(layer)
            target = f"{layer}.{getattr(adapted, 'parameter_name', 'weight')}"
            second = weights[f"{layer}.lora_B.{_NAME}.weight"]
            weight = plain[target]
            change = adapted.scaling[_NAME] * (second.float() @ first.float())
            plain[target] = (weight.float() + change.to(weight.device)).to(weight.dtype)
    return plain


def save_model(
    towers: Towers, folder: Path, *, scope: str, name: str, weights: str = "end"
) -> None:
    """Save the model in a folder atomically, replacing any previously saved model.

    The model's own library can load the folder (open_clip, as "local-dir:FOLDER"). Adapters are
    merged. vldebias.json records `scope`, `name` and `weights`.

    Args:
        towers: the model.
        folder: folder to write.
        scope: part of the model that was trained.
        name: name under which the model was loaded.
        weights: which weights these are, "end" of training or "half way" back to its start.
    """
    from safetensors.torch import save_file

    refuse_foreign(folder)
    # Load everything into memory before writing or moving anything.
    state = {key: tensor.detach().cpu() for key, tensor in towers.model.state_dict().items()}
    plain = merged(towers.model, state)
    # Write to a temporary folder, because a partially written one would load as a broken model.
    with replacing(folder) as new_folder:
        if isinstance(towers.preprocess, Preprocess):
            family = "miniature"
            tensors = {key: tensor.clone().contiguous() for key, tensor in plain.items()}
            save_file(tensors, new_folder / "clip.safetensors")
            save_tokenizer(list(towers.tokenizer.bpe_ranks), new_folder)
        else:
            family = towers.library
            towers.save(plain, new_folder, name=name)
        manifest = {
            FORMAT: 1,
            "family": family,
            "base": name,
            "scope": scope,
            "weights": weights,
            "vldebias_version": __version__,
        }
        text = json.dumps(manifest, indent=2, sort_keys=True) + "\n"
        (new_folder / MANIFEST).write_text(text, encoding="utf-8")


def check_savable(towers: Towers, *, name: str) -> None:
    """Raise an error before training if the model could not be saved and reloaded correctly.

    Args:
        towers: the model.
        name: name under which the model was loaded.
    """
    if not isinstance(towers.preprocess, Preprocess):
        towers.check_saving(merged(towers.model, towers.model.state_dict()), name=name)


def refuse_foreign(folder: Path) -> None:
    """Raise an error if saving would overwrite anything but a saved model."""
    if not folder.exists() or (folder / MANIFEST).is_file():
        return
    # If the path is a file, saving would overwrite it, so it counts as not empty.
    is_empty = folder.is_dir() and not any(folder.iterdir())
    if not is_empty:
        raise InvalidInputError(
            f"{folder}: contains files other than a saved model; choose a new folder"
        )


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that replaces `folder` when the block ends.

    If the process is killed before that, the old folder remains.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    new_folder = folder.with_name(folder.name + ".part")
    old_folder = folder.with_name(folder.name + ".before")
    # If an earlier process was killed between the two moves, only the old folder is left.
    if old_folder.is_dir() and not folder.exists():
        os.replace(old_folder, folder)
    for leftover in (new_folder, old_folder):
        shutil.rmtree(leftover, ignore_errors=True)
    try:
        with storage_errors(folder):
            new_folder.mkdir()
            yield new_folder
            # Renaming may reach the disk before the files do.
            for path in [*new_folder.rglob("*"), new_folder]:
                sync(path)
            if folder.exists():
                os.replace(folder, old_folder)
            os.replace(new_folder, folder)
            sync(folder.parent)
    finally:
        for leftover in (new_folder, old_folder):
            shutil.rmtree(leftover, ignore_errors=True)
