"""What learns: the whole model, one tower, the heads, or low-rank adapters through peft; the rest stays as it is."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from vldebias.errors import InvalidInputError, UnsupportedHostError, need
from vldebias.hosts.seam import reading

if TYPE_CHECKING:
    from vldebias.hosts.towers import Towers

SCOPES = ("all", "text", "image", "heads", "lora")
_NAME = "default"  # of the adapter in peft
_STACKED = "in_proj_weight"

Weight = TypeVar("Weight", bound=Tensor)


def tune(
    towers: Towers,
    scope: str,
    *,
    lora_rank: int = 8,
    lora_alpha: float = 16.0,
    seed: int = 0,
    last: Mapping[str, int | None] | None = None,
) -> list[str]:
    """Sets `requires_grad` of all parameters of the model; what does not learn is frozen.

    Frozen in every scope: the model's own temperature and bias, which belong to its loss, and parameters that reach no
    feature (CoCa's caption decoder, unused poolers): they have no gradient, and processes would wait for one.

    "heads" learns what ends in the joint space alone: projections, of SigLIP's images the attention that pools them.

    "lora" adds (lora_alpha / lora_rank) B A of rank `lora_rank`, with B = 0 at first (Hu et al., LoRA,
    arXiv:2106.09685, section 4.1), to the weights of every Linear of both towers, heads excepted, and to the stacked
    query, key and value weights of torch's MultiheadAttention (which reads its output weights without calling their
    layer). Convolutions stay: of a ResNet or an EfficientNet next to nothing learns.

    Args:
        scope: "all", "text", "image", "heads" or "lora".
        lora_rank, lora_alpha: size of the adapters, and what they are multiplied with, times `lora_rank`.
        seed: of the adapters' first weights.
        last: {"image": 2, "text": 0}: of each tower only so many of its last blocks, and what follows them (a norm, a
            projection), as open_clip's --lock-image-unlocked-groups. A tower without a number learns whole.

    Returns:
        The names of the parameters that learn, as in `model.named_parameters()`.

    Raises:
        InvalidInputError: an unknown scope, a tower without a projection, a rank or alpha that is not positive.
        UnsupportedHostError: a model that carries adapters already, or quantized weights.
    """
    model = towers.model
    if scope not in SCOPES:
        raise InvalidInputError(f"scope: expected one of {', '.join(SCOPES)}, got {scope!r}")
    if has_adapters(model):
        raise UnsupportedHostError(
            f"{type(model).__name__}: carries adapters of peft already; merge them (merge_and_unload) or load it anew"
        )
    if scope == "lora":
        _add_adapters(towers, lora_rank, lora_alpha, seed)
    else:
        image, text, heads = (_parameters(p) for p in (towers.image_parts, towers.text_parts, towers.heads))
        for side, tower in (("image", image), ("text", text)):
            if scope == "heads" and not tower.keys() & heads.keys():
                raise InvalidInputError(
                    f"scope 'heads': the {side} tower of {type(model).__name__} ends without a projection into the "
                    f"joint space; use scope {side!r}, 'all' or 'lora'"
                )
        chosen = {"all": image | text, "image": image, "text": text, "heads": heads}[scope]
        for side, blocks in (last or {}).items():
            if blocks is not None:
                depth, levels = depths(towers, side)
                if blocks >= levels:
                    raise InvalidInputError(f"layers: the {side} tower has {levels - 1} blocks, got {blocks}")
                chosen = {k: p for k, p in chosen.items() if depth.get(p, levels) >= levels - blocks}
        learning = reached(towers, list(chosen.values()))
        model.requires_grad_(False)
        for parameter in learning:
            parameter.requires_grad_(True)
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


def depths(towers: Towers, side: str) -> tuple[dict[nn.Parameter, int], int]:
    """How deep each parameter of the "image" or "text" tower lies, and the number of what follows the last block.

    0 is what comes before the blocks (embeddings, the first convolution), then each of them, then what follows. The
    blocks are the longest run of modules of one class, by their parameters; of a ResNet its largest stage.
    """
    parts = towers.image_parts if side == "image" else towers.text_parts
    runs = [
        list(run)
        for part in parts
        if isinstance(part, nn.Module)
        for run in part.modules()
        if isinstance(run, (nn.ModuleList, nn.Sequential)) and len({type(block) for block in run}) == 1
    ]
    blocks: list[nn.Module] = max(runs, key=lambda run: sum(p.numel() for b in run for p in b.parameters()), default=[])
    if not any(True for block in blocks for _ in block.parameters()):
        raise UnsupportedHostError(f"{type(towers.model).__name__}: the {side} tower has no run of blocks to count")
    depth = dict.fromkeys(_parameters(parts).values(), 0)
    learns = {parameter: parameter.requires_grad for parameter in depth}
    hook = blocks[-1].register_forward_hook(lambda *call: _detached(call[-1]))
    try:  # what still has a gradient comes after
        depth |= dict.fromkeys(reached(towers, list(depth)), len(blocks) + 1)
    finally:
        hook.remove()
        for parameter, before in learns.items():
            parameter.requires_grad_(before)
    for number, block in enumerate(blocks, start=1):
        depth |= dict.fromkeys(block.parameters(), number)
    return depth, len(blocks) + 1


def layer_rates(towers: Towers, decay: float) -> dict[nn.Parameter, float]:
    """Parameter -> decay^k, k levels below what follows the last block of its tower; see `depths`."""
    rates: dict[nn.Parameter, float] = {}
    for side in ("image", "text"):
        depth, levels = depths(towers, side)
        rates |= {parameter: decay ** (levels - level) for parameter, level in depth.items()}
    return rates


def _detached(out: Any) -> Any:
    return out.detach() if isinstance(out, Tensor) else type(out)(_detached(part) for part in out)


def _parameters(parts: Iterable[Any]) -> dict[int, nn.Parameter]:
    """Those of modules, and those that stand alone, each once, by their identity."""
    each = (p for part in parts for p in ([part] if isinstance(part, nn.Parameter) else part.parameters()))
    return {id(parameter): parameter for parameter in each}


def _add_adapters(towers: Towers, rank: int, alpha: float, seed: int) -> None:
    """Adds an adapter to every layer of the towers that a forward pass calls.

    peft's own layer for MultiheadAttention adds to the weights before each call and subtracts after it, so rounding
    moves the frozen weights from step to step. Its adapters of single parameters do not.
    """
    peft = need("peft")
    if rank < 1 or not alpha > 0:
        raise InvalidInputError(f"lora: expected rank >= 1 and alpha > 0, got {rank} and {alpha}")
    layers = _layers(towers)
    towers.model.requires_grad_(False)
    stacked = [name for name, layer in layers.items() if isinstance(layer, nn.MultiheadAttention)]
    config = peft.LoraConfig(
        r=rank,
        lora_alpha=alpha,
        target_modules=[name for name in layers if name not in stacked],
        target_parameters=[f"{name}.{_STACKED}" for name in stacked] or None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        peft.inject_adapter_in_model(config, towers.model, adapter_name=_NAME)


def _layers(towers: Towers) -> dict[str, nn.Module]:
    """Name -> every Linear and MultiheadAttention of the towers, without the heads, that has a say in the features.

    A layer whose weights are read by another one (the output of a MultiheadAttention, the attention pool of a ResNet)
    would carry an adapter that nothing sees, and that of an unused pooler would have no gradient.
    """
    heads = {id(part) for head in towers.heads if isinstance(head, nn.Module) for part in head.modules()}
    weights: dict[str, tuple[nn.Module, Tensor]] = {}
    for name, module in towers.model.named_modules():
        if id(module) in heads:
            continue
        if isinstance(module, nn.Linear):
            weights[name] = module, module.weight
        elif isinstance(module, nn.MultiheadAttention) and module.in_proj_weight is not None:  # stacked
            weights[name] = module, module.in_proj_weight
    running: set[str] = set()
    hooks = [
        layer.register_forward_hook(lambda *_, name=name: running.add(name)) for name, (layer, _) in weights.items()
    ]
    try:
        with reading(towers.model):
            _one_pair(towers)
    finally:
        for hook in hooks:
            hook.remove()
    useful = {id(w) for w in reached(towers, [weight for name, (_, weight) in weights.items() if name in running])}
    return {name: module for name, (module, weight) in weights.items() if name in running and id(weight) in useful}


def has_adapters(model: nn.Module) -> bool:
    """Whether `tune`, or peft, added some."""
    return hasattr(model, "peft_config")


def merged(model: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`weights`, a whole state dict, as W + (alpha / rank) B A under the names that they have without adapters."""
    plain = {name.replace(".base_layer.", "."): t for name, t in weights.items() if ".lora_" not in name}
    for name, first in weights.items():
        layer, down, _ = name.partition(f".lora_A.{_NAME}.weight")
        if down:
            adapted: Any = model.get_submodule(layer)
            target = f"{layer}.{getattr(adapted, 'parameter_name', 'weight')}"
            second, weight = weights[f"{layer}.lora_B.{_NAME}.weight"], plain[target]
            change = adapted.scaling[_NAME] * (second.float() @ first.float())
            plain[target] = (weight.float() + change.to(weight.device)).to(weight.dtype)
    return plain


def save_adapter(model: nn.Module, weights: Mapping[str, Tensor], folder: Path, *, base: str) -> None:
    """The adapters alone in a new folder as peft reads them: `PeftModel.from_pretrained(base_model, folder)`."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    adapter = {
        f"base_model.model.{name.replace(f'.{_NAME}.', '.')}": tensor.detach().cpu().clone().contiguous()
        for name, tensor in weights.items()
        if ".lora_" in name
    }
    save_file(adapter, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config: Any = model.peft_config
    settings = {**config[_NAME].to_dict(), "base_model_name_or_path": base, "inference_mode": True}
    plain = {name: sorted(value) if isinstance(value, set) else value for name, value in settings.items()}
    (folder / "adapter_config.json").write_text(json.dumps(plain, indent=2, default=str) + "\n", encoding="utf-8")


def reached(towers: Towers, parameters: Sequence[Weight]) -> list[Weight]:
    """Those of `parameters`, which all require gradients afterwards, from which a gradient of a feature comes."""
    numbers = [p for p in parameters if p.is_floating_point()]
    if not numbers:
        raise UnsupportedHostError(
            f"{type(towers.model).__name__}: its weights are quantized; load the model unquantized to train it"
        )
    for parameter in numbers:
        parameter.requires_grad_(True)
    with reading(towers.model), torch.enable_grad():
        total = torch.stack([features.float().sum() for features in _one_pair(towers)]).sum()
        gradients = torch.autograd.grad(total, numbers, allow_unused=True)
    return [p for p, gradient in zip(numbers, gradients, strict=True) if gradient is not None]


def feature_size(towers: Towers) -> int:
    """d of the features."""
    with reading(towers.model), torch.no_grad():
        return int(_one_pair(towers)[0].shape[1])


def _one_pair(towers: Towers) -> tuple[Tensor, Tensor]:
    """Features (1, d) of an empty image and of a short caption."""
    device = towers.device
    tokens = {name: tensor.to(device) for name, tensor in towers.tokenize(["a photo"]).items()}
    return towers.image(torch.zeros(1, 3, *towers.size, device=device)), towers.text(tokens)
