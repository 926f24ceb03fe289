"""Generation: an image depends on its prompt and seed, not on its batch."""

from types import SimpleNamespace
from typing import Any

import torch

from vldebias.evaluation.generation import generate


def pipe(prompts: list[str], *, generator: list[torch.Generator], **_: Any) -> SimpleNamespace:
    noise = torch.stack([torch.randn(3, 2, 2, generator=g) for g in generator])
    return SimpleNamespace(images=noise + torch.tensor([float(len(p)) for p in prompts]).view(-1, 1, 1, 1))


def test_images_do_not_depend_on_the_batch_and_are_clamped() -> None:
    prompts, seeds, seen = ["", "", "", "", ""], [3, 1, 4, 1, 5], []
    one = generate(pipe, prompts, seeds, batch_size=1)
    many = generate(pipe, prompts, seeds, batch_size=3, on_batch=seen.append)
    assert torch.equal(one, many)
    assert torch.equal(one[1], one[3])
    assert not torch.equal(one[0], one[1])
    assert float(one.min()) == 0  # noise around 0 is clamped at both ends
    assert float(one.max()) <= 1
    assert seen == [3, 2]
