"""Load embeddings of real and rendered images, and of prompts, for experiments.

The real embeddings are not part of the project (CelebA is for non-commercial research). They are
loaded from the folder in VLDEBIAS_REAL, or from ../shared/real next to the checkout:

    celeba1000_vitb32_openai.npz  image (1000, 512), attr (1000, 40) with attr_names, names (1000,),
                                  and the prompt embeddings text64 (64, 512) with prompts64 and prof
                                  (51, 512) with prof_prompts
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eval.photographs import folder
from vldebias.data import Embeddings, Labels
from vldebias.hosts import Host, TextTable, resolve
from vldebias.prompts import PromptSet

FILE = "celeba1000_vitb32_openai.npz"
# Number of images per gender in a pool, which is limited by the rarer gender in the 1000 images.
PER_GENDER = 402
Floats = NDArray[np.float64]
Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Gallery:
    """Labelled images, with queries and prompts for fitting embedded by the same model."""

    images: Embeddings
    texts: Host
    queries: tuple[str, ...]
    prompt_set: PromptSet

    @property
    def rows(self) -> Tensor:
        """Return normalised image features (n, d)."""
        return self.images.unit[:].double()

    @property
    def gender(self) -> Rows:
        """Return gender codes (n,) in the order male, female."""
        return self.images.column("gender").codes

    def pool(self, seed: int, among: Rows | None = None) -> Rows:
        """Sample rows with equally many men and women, with up to PER_GENDER each."""
        among = np.arange(len(self.images)) if among is None else among
        groups = [among[self.gender[among] == code] for code in (0, 1)]
        size = min(PER_GENDER, *map(len, groups))
        rng = np.random.default_rng(seed)
        return np.concatenate([rng.choice(group, size, replace=False) for group in groups])


def celeba() -> Gallery:
    """Return 1000 CelebA images with gender and age, and queries for 51 professions."""
    with np.load(folder() / FILE, allow_pickle=False) as arrays:
        read = {name: arrays[name] for name in arrays.files}

    def attribute(name: str, yes: str, no: str) -> Labels:
        shown = read["attr"][:, list(read["attr_names"]).index(name)] > 0
        return Labels.from_values(
            np.where(shown, yes, no), names=(yes, no) if name == "Male" else (no, yes)
        )

    queries, about = tuple(map(str, read["prof_prompts"])), tuple(map(str, read["prompts64"]))
    rows = dict(
        zip(
            [*about, *queries],
            torch.tensor(np.concatenate([read["text64"], read["prof"]])),
            strict=True,
        )
    )
    return Gallery(
        images=Embeddings(
            features=read["image"],
            ids=tuple(map(str, read["names"])),
            labels={
                "gender": attribute("Male", "male", "female"),
                "age": attribute("Young", "young", "old"),
            },
            about={"model": "CLIP ViT-B/32 openai", "data": "CelebA", "split": "000001-001000"},
        ),
        texts=TextTable(rows, "CLIP ViT-B/32 openai"),
        queries=queries,
        prompt_set=PromptSet(
            name="man-woman",
            attributes={"male": ("man",), "female": ("woman",)},
            variants=tuple(
                (p, p.removesuffix("man") + "woman") for p in about if p.endswith(" man")
            ),
            spurious=("a photo of a man", "a photo of a woman"),
        ),
    )


def miniature() -> tuple[Host, Callable[..., Embeddings]]:
    """Return the text encoder of a miniature CLIP, and a function that embeds rendered images.

    The function takes a world and the options of `open_world`. It uses the package's
    feature cache.
    """
    from eval.miniature.data import open_world
    from vldebias.data.cache import embed_images
    from vldebias.hosts.clip.images import image_encoder
    from vldebias.miniature import load_clip

    model, preprocess, tokenizer = load_clip()
    encoder = image_encoder(model, preprocess)
    return resolve(model, tokenizer=tokenizer), lambda name, **how: embed_images(
        open_world(name, **how), encoder
    )
