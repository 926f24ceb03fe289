"""A host that vldebias does not know, for what an attachment does on any."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from vldebias.edit import Fingerprint
from vldebias.hosts.attachment import Attachment
from vldebias.hosts.base import Host, hook_methods
from vldebias.projection import CalibratedProjection


class Tower:
    """Embeds a prompt as letter counts; the hook is an attribute of the instance, as in real hosts."""

    def encode(self, prompts: Sequence[str], images_per_prompt: int = 1) -> Tensor:
        rows = torch.tensor([[p.count(c) for c in "abcdef"] for p in prompts], dtype=torch.float32)
        return rows.repeat_interleave(images_per_prompt, 0)


class Bag:
    """Something that hosts can share."""


class TowerHost(Host):
    library, roles = "tower_parts", ("joint",)

    def __init__(self, tower: Tower, *_: object, shared: Sequence[object] = (), name: str = "Tower") -> None:
        self.tower, self.exclusive_modules, self.shared_modules, self.name = tower, [tower], shared, name
        self.merged: list[tuple[dict[str, CalibratedProjection], float]] = []

    def read(self, prompts: Sequence[str], role: str) -> dict[tuple[str, str], Tensor]:
        rows = torch.nn.functional.normalize(Tower.encode(self.tower, prompts).double(), dim=-1)
        return {(role, prompt): row for prompt, row in zip(prompts, rows, strict=True)}

    def space(self, role: str) -> str:
        return f"tower.{role}"

    def fingerprint(self, role: str | None = None) -> Fingerprint:
        return Fingerprint("letters", (1.0,), (0.5,))

    def install(self, attachment: Attachment) -> Callable[[], None]:
        def change(original: Any, call: Any) -> Tensor:
            return attachment.apply("joint", original(*call.args), lambda: call.arguments["prompts"])

        return hook_methods(attachment, self.tower, {"encode": change})

    def merge(self, projections: Mapping[str, CalibratedProjection], strength: float) -> None:
        self.merged.append((dict(projections), strength))


PROMPTS = ["a bad face", "a dead woman", "cafe"]
PROJECTION = CalibratedProjection().fit(torch.eye(6)[None, :2], torch.eye(6)[4:5])


def attach(tower: Tower, **options: Any) -> Attachment:
    return Attachment(TowerHost(tower), {"joint": PROJECTION}, **options)
