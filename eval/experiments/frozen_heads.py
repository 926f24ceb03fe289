"""The heads of the shipped CLIP over features of its frozen towers, which are computed once: trainings within seconds.

It stands where towers do: an image is what its tower gives before the projection, (w, 1, 1), a text the number of its
row in a table that grows as texts are asked for. The weights that learn are the model's own, so projections and
whatever else reads the model see what was learned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vldebias.hosts.towers import towers
from vldebias.miniature import load_clip
from vldebias.training.tuning import tune


class FrozenHeads:
    """Towers of the shipped model of which the two projections learn."""

    def __init__(self) -> None:
        model, preprocess, tokenizer = load_clip()
        self.whole = towers(model, tokenizer, preprocess)
        tune(self.whole, "heads")
        self.temperature, self.bias, self.device = self.whole.temperature, self.whole.bias, self.whole.device
        self.numbers: dict[str, int] = {}
        self.frozen_texts = torch.empty(0)

    @property
    def model(self) -> Any:
        return self.whole.model

    @property
    def tokenizer(self) -> Any:
        return self.whole.tokenizer

    def image(self, features: Tensor) -> Tensor:
        out: Tensor = features.flatten(1) @ self.model.visual.proj
        return out

    def text(self, tokens: Mapping[str, Tensor]) -> Tensor:
        out: Tensor = self.frozen_texts[tokens["text"][:, 0]] @ self.model.text_projection
        return out

    def tokenize(self, captions: Sequence[str]) -> dict[str, Tensor]:
        new = [text for text in dict.fromkeys(captions) if text not in self.numbers]
        if new:
            self.numbers |= {text: len(self.numbers) + k for k, text in enumerate(new)}
            parts = [self._before_projection(new[start : start + 500]) for start in range(0, len(new), 500)]
            self.frozen_texts = torch.cat([*([self.frozen_texts] if len(self.frozen_texts) else []), *parts])
        return {"text": torch.tensor([[self.numbers[text]] for text in captions])}

    @torch.no_grad()
    def _before_projection(self, texts: Sequence[str]) -> Tensor:
        return _without(self.model, "text_projection", lambda: self.whole.text(self.whole.tokenize(texts)))

    @torch.no_grad()
    def frozen_images(self, pixels: Tensor) -> Tensor:
        """What the image tower gives (n, w, 1, 1) of pixels (n, 3, h, w) before the projection."""
        parts = pixels.split(200)
        features = _without(self.model.visual, "proj", lambda: torch.cat([self.whole.image(part) for part in parts]))
        return features[:, :, None, None]


def _without(owner: nn.Module, name: str, do: Any) -> Tensor:
    """What `do` gives while the projection of that name is not there."""
    kept = getattr(owner, name)
    setattr(owner, name, None)
    try:
        return do()  # type: ignore[no-any-return]
    finally:
        setattr(owner, name, kept)
