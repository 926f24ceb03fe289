"""A package of somebody else: one loss, data set, method, task and host, as the documentation says
to write them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from pydantic import BaseModel, Field
from torch import Tensor, nn

from vldebias.data import DataSet, ImageData, Labels
from vldebias.hosts import Host
from vldebias.losses import Contrast, ContrastiveLoss, Loss
from vldebias.methods import Declaration, EditMethod, Need
from vldebias.projection.projection import CalibratedProjection
from vldebias.prompts import load_prompts
from vldebias.study import TaskResult
from vldebias.study.tasks.images import ImageTask


# ---- a loss
def decoupled(
    image_features: Tensor, text_features: Tensor, *, push: float = 1.0, **options: Any
) -> Tensor:
    """Return push log sum_i e^{s_i} - s+: InfoNCE without the pair in its denominator."""
    batch = Contrast(image_features, text_features, **options)
    (log_sum,) = batch.sums(1.0)
    return batch.reduce(push * log_sum - batch.positive)


class DecoupledSettings(BaseModel):
    """Hold the settings of `decoupled`."""

    push: float = Field(1.0, gt=0, description="weight of the negatives.")


class DecoupledLoss(ContrastiveLoss[DecoupledSettings]):
    """Apply `decoupled` with its settings."""

    function = staticmethod(decoupled)


DECOUPLED = Loss(
    "theirs",
    title="decoupled",
    summary="small batches",
    source="Yeh et al., 2022, eq. 6",
    module=DecoupledLoss,
    settings=DecoupledSettings,
)


# ---- a data set
def open_shades(root: Path | None, split: str | None) -> ImageData:
    """Open images of one shade each: dark or bright."""
    count = {"train": 12, "test": 8}[split or "test"]
    codes = np.arange(count) % 2
    return ImageData(
        name="theirs",
        split=split or "test",
        ids=tuple(f"{split}-{row}" for row in range(count)),
        read=lambda row: Image.new("RGB", (64, 64), (200 * int(codes[row]) + row,) * 3),
        labels={"shade": Labels(codes, ("dark", "bright"))},
        fingerprint=f"shades {split}",
    )


SHADES = DataSet(
    "theirs",
    open_shades,
    split="test",
    columns=("shade",),
    training={"label": "shade", "caption_template": "a {} picture.", "val_split": "test"},
)


# ---- a method
class MeanDifference(EditMethod):
    """Remove the mean difference of the prompt pairs."""

    declaration = Declaration(
        "theirs",
        title="mean difference",
        about="removes the mean difference of the prompt pairs",
        source="theirs, eq. 1",
        needs=frozenset({Need.PAIRS}),
    )

    def fit(self, problem: Any, role: str) -> Any:
        """Return the projection that removes one direction."""
        texts = [text for pair in problem.sets[0].pairs for text in pair]
        pairs = problem.host.embed(texts, role).unflatten(0, (-1, 2))
        difference = (pairs[:, 0] - pairs[:, 1]).mean(0, keepdim=True)
        return CalibratedProjection().fit(None, difference)


# ---- a task
class Leaning(ImageTask):
    """Measure how much more the images resemble the first value of a prompt set than the second."""

    task: Literal["theirs"] = "theirs"
    prompts: str

    def measure(self, images: Any, texts: Any) -> list[TaskResult]:
        """Return the mean difference of cosines under each method."""
        prompts = load_prompts(self.prompts)
        about: dict[str, Any] = {"title": "Leaning", "description": "Difference.", "settings": {}}
        n = {"images": len(images)}
        result = TaskResult(self.provenance(self.name, images, texts, [prompts], {}, n=n, **about))
        for method, edit in self.fit(texts, [prompts]).items():
            first, second = self.rows(texts, prompts.pairs[0], edit)
            cosines = images.unit[:].double() @ (first - second)
            result.add("cosine", method, float(cosines.mean()), n=n)
        return [result]

    def texts(self) -> tuple[str, ...]:
        """Return the prompts that the task embeds."""
        return tuple(text for pair in load_prompts(self.prompts).pairs for text in pair)


# ---- a host
class Tower(nn.Module):
    """Encode texts by the numbers of their letters."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.letters = nn.Parameter(torch.randn(128, 64, generator=generator))

    def encode(self, texts: Sequence[str]) -> Tensor:
        """Return embeddings (n, 64)."""
        rows = [self.letters[[min(ord(letter), 127) for letter in text]].sum(0) for text in texts]
        return torch.stack(rows)


class TowerHost(Host):
    """Attach edits to `Tower.encode`."""

    library = "theirs"
    roles = ("joint",)

    def __init__(self, model: Any, tokenizer: Any = None, negative: bool = False) -> None:
        self.name = type(model).__name__
        self.model = model
        self.text_modules = (model,)
        self.exclusive_modules = (model,)

    def dim(self, role: str) -> int:
        """Return the length of an embedding."""
        return 64

    def read(self, prompts: Sequence[str], role: str) -> dict[tuple[str, str], Tensor]:
        """Return the embeddings of prompts without an edit."""

        def encode(texts: list[str]) -> Tensor:
            return Tower.encode(self.model, texts)

        return self.read_by(encode, prompts, role, self.model)

    def install(self, attachment: Any) -> Callable[[], None]:
        """Edit what `encode` returns."""
        bare = self.model.encode

        def encode(texts: Sequence[str]) -> Tensor:
            return attachment.apply("joint", bare(texts), list(texts))

        self.model.encode = encode
        return lambda: vars(self.model).pop("encode")
