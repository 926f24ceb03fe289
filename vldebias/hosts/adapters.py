"""Notice that LoRA adapters of a text encoder are others than those that an edit was fitted with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import nn

from vldebias.hosts.fingerprint import weights_fingerprint

_Active = tuple[tuple[int, tuple[str, ...]], ...]


class Adapters:
    """Those of some modules, as they were when it was first asked; a model without peft costs two look-ups a call."""

    def __init__(self, modules: Sequence[nn.Module], root: object) -> None:
        self.modules, self._root = modules, root
        self._first: tuple[_Active, float | None] | None = None
        self._last: _Active = ()
        self._told = False

    def changed(self) -> bool:
        """True once: when others are at work for the first time."""
        if self._told:
            return False
        active = self._active()
        if self._first is None:
            self._first, self._last = (active, self._length(active)), active
        if active == self._last:
            return False
        self._last = active
        first, length = self._first
        now = self._length(active)
        if active == first or (now is not None and length is not None and math.isclose(now, length, rel_tol=5e-3)):
            return False
        self._told = True
        return True

    def _active(self) -> _Active:
        """Layers with adapters, and the names of those that act; peft leaves its config on what it adapts."""
        if not self._last and not any(_vars(one).get("peft_config") for one in (*self.modules, self._root)):
            return ()
        layers = [part for module in self.modules for part in module.modules() if hasattr(part, "base_layer")]
        acting = ((id(one), () if one.disable_adapters else tuple(one.active_adapters)) for one in layers)  # type: ignore[arg-type]
        return tuple((layer, names) for layer, names in acting if names)

    def _length(self, active: _Active) -> float | None:
        """Of all that they add; None where the weights are elsewhere."""
        if not active:
            return 0.0
        mark = weights_fingerprint(*self.modules)
        return None if mark is None else mark.adapters


def _vars(one: object) -> dict[str, Any]:
    return getattr(one, "__dict__", {})
