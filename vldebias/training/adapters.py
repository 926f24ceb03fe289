"""Low-rank adapters through peft: where they go, how they are saved, and the weights that they come to."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor, nn

from vldebias.errors import InvalidInputError
from vldebias.training.probing import called, reached

if TYPE_CHECKING:
    from vldebias.hosts.towers import Towers

__all__ = ["add_adapters", "has_adapters", "merged", "save_adapter"]

_NAME = "default"
_STACKED = "in_proj_weight"


def add_adapters(towers: Towers, rank: int, alpha: float, targets: Sequence[str] | None, seed: int) -> None:
    """Adds an adapter to every layer of the towers that a forward pass calls, or to those that `targets` name.

    peft has a layer of its own for MultiheadAttention. It adds to the weights before each call and subtracts again
    after it, so rounding moves the frozen weights from step to step. Its adapters of single parameters do not.

    Raises:
        InvalidInputError: peft is not installed, a rank or alpha that is not positive, or targets that are no layers.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise InvalidInputError("scope 'lora' needs peft: pip install 'peft>=0.17'") from error
    if rank < 1 or not alpha > 0:
        raise InvalidInputError(f"lora: expected rank >= 1 and alpha > 0, got {rank} and {alpha}")
    layers = _layers(towers)
    towers.model.requires_grad_(False)
    names = list(layers) if targets is None else _named(list(layers), targets)
    stacked = [name for name in names if isinstance(layers[name], nn.MultiheadAttention)]
    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,  # type: ignore[arg-type]
        target_modules=[name for name in names if name not in stacked],
        target_parameters=[f"{name}.{_STACKED}" for name in stacked] or None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(config, towers.model, adapter_name=_NAME)


def _layers(towers: Towers) -> dict[str, nn.Module]:
    """Name -> every Linear and MultiheadAttention of the towers, without the heads, that has a say in the features.

    Both are asked for: a layer that runs, because a layer whose weights are read by another one (the output of a
    MultiheadAttention, the attention pool of a ResNet) would carry an adapter that nothing sees; and a layer whose
    weights reach a feature, because the adapter of an unused pooler would have no gradient.
    """
    heads = {id(part) for head in towers.heads if isinstance(head, nn.Module) for part in head.modules()}
    weights = {
        name: (module, module.weight if isinstance(module, nn.Linear) else module.in_proj_weight)
        for name, module in towers.model.named_modules()
        if id(module) not in heads and (isinstance(module, nn.Linear) or _is_stacked(module))
    }
    running = called(towers, {name: module for name, (module, _) in weights.items()})
    useful = {id(weight) for weight in reached(towers, [weights[name][1] for name in running])}
    return {name: module for name, module in running.items() if id(weights[name][1]) in useful}


def _is_stacked(module: nn.Module) -> TypeGuard[nn.MultiheadAttention]:
    """With one weight for query, key and value."""
    return isinstance(module, nn.MultiheadAttention) and module.in_proj_weight is not None


def _named(names: Sequence[str], targets: Sequence[str]) -> list[str]:
    """Those of `names` that are, or end in, one of `targets`."""
    found = {target: [n for n in names if n == target or n.endswith(f".{target}")] for target in targets}
    missing = [target for target in targets if not found[target]]
    if missing or not found:
        ends = sorted({name.rpartition(".")[2] for name in names})
        raise InvalidInputError(
            f"lora_targets: {', '.join(map(repr, missing)) or 'nothing'} names no layer that the towers call; names of "
            f"layers end in {', '.join(ends)}"
        )
    return [name for name in names if any(name in matches for matches in found.values())]


def has_adapters(model: nn.Module) -> bool:
    """Whether `add_adapters`, or peft, was here."""
    return hasattr(model, "peft_config")


def merged(model: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights W + (alpha / rank) B A under the names that they have without adapters.

    Args:
        model: carries adapters; nothing is changed.
        weights: its state dict, whole.
    """
    plain = {_plain(name): tensor for name, tensor in weights.items() if not _is_adapter(name)}
    for name, first in weights.items():
        layer, found, _ = name.partition(f".lora_A.{_NAME}.weight")
        if found:
            adapted: Any = model.get_submodule(layer)
            target = f"{layer}.{getattr(adapted, 'parameter_name', 'weight')}"
            second, weight = weights[f"{layer}.lora_B.{_NAME}.weight"], plain[target]
            change = adapted.scaling[_NAME] * (second.float() @ first.float())
            plain[target] = (weight.float() + change.to(weight.device)).to(weight.dtype)
    return plain


def _is_adapter(name: str) -> bool:
    return ".lora_" in name


def _plain(name: str) -> str:
    return name.replace(".base_layer.", ".")


def save_adapter(model: nn.Module, weights: Mapping[str, Tensor], folder: Path, *, base: str) -> None:
    """The adapters alone as peft reads them: `PeftModel.from_pretrained(base_model, folder)`.

    Args:
        model: carries adapters.
        weights: its state dict, whole.
        folder: is made.
        base: the name of the model that they are for.
    """
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    adapter = {
        f"base_model.model.{name.replace(f'.{_NAME}.', '.')}": tensor.detach().cpu().clone().contiguous()
        for name, tensor in weights.items()
        if _is_adapter(name)
    }
    save_file(adapter, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config: Any = model.peft_config
    settings = {**config[_NAME].to_dict(), "base_model_name_or_path": base, "inference_mode": True}
    plain = {name: sorted(value) if isinstance(value, set) else value for name, value in settings.items()}
    (folder / "adapter_config.json").write_text(json.dumps(plain, indent=2, default=str) + "\n", encoding="utf-8")
