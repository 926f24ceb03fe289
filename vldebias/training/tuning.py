"""What learns: the whole model, one tower, the heads, or low-rank adapters; and what stays as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

from vldebias.errors import InvalidInputError, UnsupportedHostError
from vldebias.training.adapters import add_adapters
from vldebias.training.probing import reached

if TYPE_CHECKING:
    from vldebias.hosts.towers import Part, Towers

__all__ = ["SCOPES", "hold_scalars", "keep_frozen_still", "parameter_groups", "tune"]

SCOPES = ("all", "text", "image", "heads", "lora")


def tune(
    towers: Towers,
    scope: str,
    *,
    lora_rank: int = 8,
    lora_alpha: float = 16.0,
    lora_targets: Sequence[str] | None = None,
    seed: int = 0,
) -> list[str]:
    """Sets `requires_grad` of all parameters of the model; what does not learn is frozen.

    Frozen in every scope: the model's own temperature and bias, which belong to its loss, and parameters that reach no
    feature (CoCa's caption decoder, unused poolers): they have no gradient, and processes would wait for one.

    "heads" learns what ends in the joint space alone: projections, of SigLIP's images the attention that pools them.

    "lora" adds (lora_alpha / lora_rank) B A of rank `lora_rank`, with B = 0 at first (Hu et al., LoRA,
    arXiv:2106.09685, section 4.1), to the weights of every Linear of both towers, heads excepted, and to the stacked
    query, key and value weights of torch's MultiheadAttention. The output weights of the latter stay, for it reads
    them without calling their layer, and so do convolutions: of a ResNet or an EfficientNet next to nothing learns.

    Args:
        towers: the model; changed in place.
        scope: "all", "text", "image", "heads" or "lora".
        lora_rank, lora_alpha: size of the adapters, and what they are multiplied with, times `lora_rank`.
        lora_targets: ends of the names of the layers that get one, such as ("q_proj", "v_proj"); default: all.
        seed: of the adapters' first weights.

    Returns:
        The names of the parameters that learn, as in `model.named_parameters()`.

    Raises:
        InvalidInputError: an unknown scope, a tower without a projection, targets that are no layers of the towers.
        UnsupportedHostError: a model that carries adapters already, or quantized weights.
    """
    model = towers.model
    if scope not in SCOPES:
        raise InvalidInputError(f"scope: expected one of {', '.join(SCOPES)}, got {scope!r}")
    if hasattr(model, "peft_config"):
        raise UnsupportedHostError(
            f"{type(model).__name__}: carries adapters of peft already; merge them (merge_and_unload) or load it anew"
        )
    if scope == "lora":
        add_adapters(towers, lora_rank, lora_alpha, lora_targets, seed)
    else:
        learning = reached(towers, _parameters(_chosen(towers, scope)))
        model.requires_grad_(False)
        for parameter in learning:
            parameter.requires_grad_(True)
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


def _chosen(towers: Towers, scope: str) -> tuple[Part, ...]:
    if scope == "heads":
        _refuse_headless(towers)
        return towers.heads
    return {"all": towers.image_parts + towers.text_parts, "image": towers.image_parts, "text": towers.text_parts}[
        scope
    ]


def _refuse_headless(towers: Towers) -> None:
    heads = {id(p) for p in _parameters(towers.heads)}
    for name, parts in (("image", towers.image_parts), ("text", towers.text_parts)):
        if not any(id(p) in heads for p in _parameters(parts)):
            raise InvalidInputError(
                f"scope 'heads': the {name} tower of {type(towers.model).__name__} ends without a projection into the "
                f"joint space; use scope {name!r}, 'all' or 'lora'"
            )


def _parameters(parts: Iterable[Part]) -> list[nn.Parameter]:
    """Each once, those of a loss left out."""
    found: dict[int, nn.Parameter] = {}
    for part in parts:
        for parameter in [part] if isinstance(part, nn.Parameter) else part.parameters():
            found[id(parameter)] = parameter
    return list(found.values())


def keep_frozen_still(module: nn.Module) -> None:
    """After `module.train()`: what has weights and learns none of them goes back to evaluation mode.

    There dropout would only add noise to features that nobody trains, and batch normalisation would move its running
    statistics, so that a frozen tower would not be the one that was loaded.
    """
    for part in module.modules():
        weights = list(part.parameters())
        if weights and not any(weight.requires_grad for weight in weights):
            part.eval()


def parameter_groups(module: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Groups for an optimizer: the parameters that learn, and of these the vectors and scalars without decay.

    Vectors are biases, gains of norms, class embeddings, popularities; scalars are temperatures: pulling them to 0 is
    no regularisation. Call it before FSDP flattens parameters.
    """
    learning = [p for p in module.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in learning if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in learning if p.ndim < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def hold_scalars(module: nn.Module) -> Callable[[], None]:
    """Makes frozen scalar parameters buffers, because FSDP refuses parameters without a dimension.

    The state dict stays the same. Returns the function that makes them parameters again.
    """
    held: list[tuple[nn.Module, str]] = []
    for part in list(module.modules()):
        for name, parameter in list(part.named_parameters(recurse=False)):
            if parameter.ndim == 0 and not parameter.requires_grad:
                delattr(part, name)
                part.register_buffer(name, parameter.data)
                held.append((part, name))

    def release() -> None:
        for part, name in held:
            data = getattr(part, name)
            delattr(part, name)
            part.register_parameter(name, nn.Parameter(data, requires_grad=False))

    return release
