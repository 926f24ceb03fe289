"""Whose folder is it: a pipeline's identity, and the check that a folder of images goes on with the same plan."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from vldebias.errors import InvalidInputError
from vldebias.evaluation.drawing.drawn import PLAN
from vldebias.evaluation.drawing.plan import Plan
from vldebias.fingerprint import fingerprint_matches, weights_fingerprint

__all__ = ["digest", "identity", "joint_fingerprint", "settle"]

IMAGES = "*/*/*.png"


def identity(pipe: Any, name: str | None = None) -> dict[str, Any]:
    """What tells one pipeline from another: class, origin, weights of every component, scheduler, adapters, precision.

    Fingerprints are None where weights are offloaded to meta tensors. `name` stands for where it came from.
    """
    modules = {n: getattr(m, "_orig_mod", m) for n, m in pipe.components.items() if isinstance(m, nn.Module)}
    # Private entries say which values were defaults, in an order that changes from process to process.
    scheduler = {key: value for key, value in pipe.scheduler.config.items() if not key.startswith("_")}
    adapters = {name for module in modules.values() for name in getattr(module, "peft_config", None) or ()}
    return {
        "pipeline": type(pipe).__name__,
        "id": name or str(getattr(pipe, "name_or_path", None) or "") or None,
        "fingerprints": {name: weights_fingerprint(module) for name, module in modules.items()},
        "scheduler": f"{type(pipe.scheduler).__name__} {digest(json.dumps(scheduler, sort_keys=True, default=str))}",
        "adapters": sorted(adapters),
        "precision": sorted({str(p.dtype).removeprefix("torch.") for m in modules.values() for p in m.parameters()}),
    }


def joint_fingerprint(components: Mapping[str, dict[str, Any] | None]) -> dict[str, Any] | None:
    """One fingerprint from those of all components, for `fingerprint_matches`; None where one is not known."""
    found = [components[name] for name in sorted(components)]
    known = [fingerprint for fingerprint in found if fingerprint is not None]
    if not known or len(known) < len(found):
        return None
    return {
        "structure": digest(json.dumps([sorted(components), [fingerprint["structure"] for fingerprint in known]])),
        "norms": [norm for fingerprint in known for norm in fingerprint["norms"]],
        "waves": [wave for fingerprint in known for wave in fingerprint["waves"]],
    }


def settle(plan: Plan, folder: Path, *, write: bool) -> Plan:
    """The plan in force: what the folder has, if it says the same, else `plan`, which `write` then puts there.

    Raises:
        InvalidInputError: the folder holds images of another plan, or images without one.
    """
    path = folder / PLAN
    drawn = any(folder.glob(IMAGES))
    if path.exists():
        before = Plan.read(path)
        found = differences(before, plan)
        if not found:
            return before
        if drawn:
            raise InvalidInputError(
                f"{folder}: holds images that were drawn with other settings: {'; '.join(found)}. Draw into another "
                "folder, repeat the settings to go on with these images, or delete the folder"
            )
    elif drawn:
        raise InvalidInputError(f"{folder}: holds images but no {PLAN}; draw into an empty folder")
    if write:
        folder.mkdir(parents=True, exist_ok=True)
        plan.write(path)
    return plan


def differences(before: Plan, now: Plan) -> list[str]:
    """What differs, in words, one text for each setting. Weights may differ by rounding."""
    old, new = _flat(before), _flat(now)
    old_weights, new_weights = old.pop("fingerprints"), new.pop("fingerprints")
    found = [_change(key, old.get(key), new.get(key)) for key in {**old, **new} if old.get(key) != new.get(key)]
    if old_weights.keys() != new_weights.keys():
        return [*found, _change("components", sorted(old_weights), sorted(new_weights))]
    others = [name for name, print_ in new_weights.items() if not fingerprint_matches(old_weights[name], print_)]
    return found + [f"the weights of {name} are others" for name in others]


def _flat(plan: Plan) -> dict[str, Any]:
    content = json.loads(plan.model_dump_json())
    model = content.pop("model")
    return {"fingerprints": {}, **model, **content}


def _change(key: str, old: Any, new: Any) -> str:
    before, now = json.dumps(old), json.dumps(new)
    if max(len(before), len(now)) > 120:
        return f"{key} differ" if key.endswith("s") else f"{key} differs"
    return f"{key} was {before} and is {now} now"


def digest(text: str) -> str:
    """A short hash."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]
