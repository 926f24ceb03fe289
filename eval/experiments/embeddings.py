"""What the experiments on embeddings share: real and rendered images and texts, methods on either side, chance.

The real embeddings are not part of the project (CelebA is for non-commercial research). They are read from the folder
in VLDEBIAS_REAL, or from ../shared/real beside the checkout:

celeba1000_vitb32_openai.npz  image (1000, 512), attr (1000, 40) with attr_names, names (1000,); of texts: text64
                              (64, 512) with prompts64, prof (51, 512) with prof_prompts
text_vitl14.npz               texts of five ViT-L/14: prompts64, and NAME_64 (64, 768) for each of BACKBONES
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import comb, log
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from vldebias.data import Embeddings, Labels
from vldebias.edit import Edit
from vldebias.evaluation.result import TaskProvenance
from vldebias.evaluation.task import Texts
from vldebias.files import digest
from vldebias.hosts import TextTable
from vldebias.metrics.rankings import log_ratios, rankings
from vldebias.prompts import PromptSet

FILE, TEXTS = "celeba1000_vitb32_openai.npz", "text_vitl14.npz"
BACKBONES = ("openai", "laion400m_e31", "laion2b_s32b_b82k", "datacomp_xl_s13b_b90k", "commonpool_xl_s13b_b90k")
PER_GENDER = 402  # of a pool with as many men as women: the rarer gender of the 1000 images
LAM = 1000.0  # the paper's, for models
SEEDS = {"birds": (9001, 9011), "portraits": (9002, 9013)}  # renders that are measured on, and fitted on
Floats = NDArray[np.float64]
Rows = NDArray[np.int64]


def file(name: str = FILE) -> Path:
    """Where a file of real embeddings should be; it may not exist."""
    return Path(os.environ.get("VLDEBIAS_REAL", Path(__file__).resolve().parents[3] / "shared" / "real")) / name


@dataclass(frozen=True, eq=False)
class Gallery:
    """Images with labels, the texts of the same model, queries, and the prompts that projections are fitted on."""

    images: Embeddings
    texts: Texts
    queries: tuple[str, ...]
    prompts: PromptSet
    digest: str = ""

    @cached_property
    def rows(self) -> Tensor:
        """(n, d) normalised image features."""
        return self.images.normalised().double()

    @property
    def gender(self) -> Rows:
        """(n,) codes: male, female."""
        return self.images.column("gender").codes

    def pools(self, seeds: Sequence[Any], among: Rows | None = None) -> list[Rows]:
        """Rows with as many men as women, PER_GENDER of each or all of the rarer, drawn anew for each seed."""
        among = np.arange(len(self.images)) if among is None else among
        groups = [among[self.gender[among] == code] for code in (0, 1)]
        size = min(PER_GENDER, *map(len, groups))
        draws = [np.random.default_rng(seed) for seed in seeds]
        return [np.concatenate([rng.choice(group, size, replace=False) for group in groups]) for rng in draws]


def celeba(path: Path) -> Gallery:
    """1000 images with gender and age, 51 professions as queries, prompts with "man" and the same with "woman"."""
    with np.load(path, allow_pickle=False) as arrays:
        read = {name: arrays[name] for name in arrays.files}

    def attribute(name: str, yes: str, no: str) -> Labels:
        shown = read["attr"][:, list(read["attr_names"]).index(name)] > 0
        return Labels.of(np.where(shown, yes, no), names=(yes, no) if name == "Male" else (no, yes))

    queries, about = tuple(map(str, read["prof_prompts"])), tuple(map(str, read["prompts64"]))
    rows = dict(zip([*about, *queries], torch.tensor(np.concatenate([read["text64"], read["prof"]])), strict=True))
    return Gallery(
        images=Embeddings(
            features=read["image"],
            ids=tuple(map(str, read["names"])),
            labels={"gender": attribute("Male", "male", "female"), "age": attribute("Young", "young", "old")},
            about={"model": "CLIP ViT-B/32 openai", "data": "CelebA", "split": "000001-001000"},
        ),
        texts=Texts(TextTable(rows, "CLIP ViT-B/32 openai")),
        queries=queries,
        prompts=PromptSet(
            name="man-woman",
            attributes={"male": ("man",), "female": ("woman",)},
            groups=man_and_woman(about),
            spurious=("a photo of a man", "a photo of a woman"),
        ),
        digest=digest(path)[:16],
    )


def man_and_woman(prompts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Pairs of the prompts that end with "man" and the same with "woman"."""
    return tuple((p, p.removesuffix("man") + "woman") for p in prompts if p.endswith(" man"))


def l14(path: Path) -> Iterator[tuple[str, Texts, tuple[str, ...]]]:
    """(backbone, its texts, their prompts) of five ViT-L/14."""
    with np.load(path, allow_pickle=False) as arrays:
        prompts = tuple(map(str, arrays["prompts64"]))
        tables = {name: torch.tensor(arrays[f"{name}_64"]).double() for name in BACKBONES}
    for name, rows in tables.items():
        host = TextTable(dict(zip(prompts, rows, strict=True)), f"CLIP ViT-L/14 {name}")
        yield name, Texts(host), prompts


@dataclass(frozen=True, eq=False)
class World:
    """Renders without correlation to measure on, others with the world's own to fit on, and the model's texts."""

    name: str
    texts: Texts
    measured: Embeddings
    fitted: Embeddings

    @cached_property
    def rows(self) -> Tensor:
        """(n, d) normalised features that are measured."""
        return self.measured.normalised().double()

    @property
    def reference(self) -> NDArray[np.float32]:
        """Features (m, d) that methods may see, without their labels."""
        return self.fitted.features.astype(np.float32)

    @property
    def split(self) -> str:
        """What a report says of both."""
        measured, fitted = SEEDS[self.name]
        return (
            f"{self.name}, {len(self.measured)} renders, seed {measured}; fitted on {len(self.fitted)}, seed {fitted}"
        )


def miniature() -> tuple[Texts, Callable[[str, int, int, bool], Embeddings]]:
    """The texts of the miniature CLIP, and its features of renders by world, number, seed and whether it is balanced;
    from the cache of the package where they are there."""
    from eval.miniature.data import open_world
    from vldebias.data.cache import embed_images
    from vldebias.hosts.images import image_encoder
    from vldebias.miniature import load_clip

    model, preprocess, tokenizer = load_clip()
    encoder = image_encoder(model, preprocess)

    def features(name: str, n: int, seed: int, balanced: bool) -> Embeddings:
        return embed_images(open_world(name, n=n, seed=seed, balanced=balanced), encoder)

    return Texts(model, tokenizer), features


def worlds(images: int = 4000, reference: int = 2000) -> dict[str, World]:
    """Both worlds."""
    texts, features = miniature()
    return {
        name: World(name, texts, features(name, images, measured, True), features(name, reference, fitted, False))
        for name, (measured, fitted) in SEEDS.items()
    }


@torch.no_grad()
def image_features(model: Any, images: Tensor, preprocess: Callable[[Tensor], Tensor]) -> Tensor:
    """Normalised (n, d) features of images (n, 3, h, w) in [0, 1] from an open_clip model."""
    batches = (torch.stack([preprocess(image) for image in batch]) for batch in images.split(500))
    return torch.cat([model.encode_image(batch, normalize=True) for batch in batches])


@dataclass(frozen=True)
class Sides:
    """A method: its edit of the texts and that of the images, None where a side is left alone."""

    texts: Edit | None = None
    images: Edit | None = None

    def of_texts(self, rows: Tensor) -> Tensor:
        """L2-normalised texts (n, d)."""
        return normalize(rows if self.texts is None else self.texts(rows), dim=-1)

    def of_images(self, rows: Tensor) -> Tensor:
        """L2-normalised image features (n, d)."""
        return normalize(rows if self.images is None else self.images(rows), dim=-1)

    def cosines(self, rows: Tensor) -> Floats:
        """Cosine (n,) of texts (n, d) with themselves before."""
        return (self.of_texts(rows) * rows).sum(1).numpy()

    def about(self) -> dict[str, Any]:
        """What a provenance says of it: side -> method and lam, and what "auto" chose."""
        edits = {"texts": self.texts, "images": self.images}
        return {side: facts(edit) for side, edit in edits.items() if edit is not None}


def facts(edit: Edit) -> dict[str, Any]:
    """Method, lam and what else there is to say of an edit."""
    about: dict[str, Any] = {"method": edit.provenance.method, "lam": edit.provenance.lam}
    about |= {"rank": edit.rank} if hasattr(edit, "rank") else {}
    return about | ({"loss at most": edit.provenance.max_loss} if edit.provenance.max_loss else {})


def skews(side: Sides, queries: Tensor, images: Tensor, groups: Labels, k: int, pools: Sequence[Any] = ()) -> Floats:
    """MaxSkew@k (q,) of queries (q, d) among images (n, d), prior uniform: mean over pools of rows, or of all."""
    scores = (side.of_texts(queries) @ side.of_images(images).T).numpy()
    uniform = np.full(len(groups.names), 1 / len(groups.names))
    first = [groups.codes[pool][rankings(scores[:, pool])] for pool in pools or [slice(None)]]
    return np.mean([log_ratios(codes, k, uniform).max(axis=1) for codes in first], axis=0)


def is_right(side: Sides, classes: Tensor, images: Tensor, label: Labels) -> Floats:
    """1 (n,) for images whose nearest class text is their label."""
    nearest = (side.of_texts(classes) @ side.of_images(images).T).argmax(0).numpy()
    return (nearest == label.codes).astype(float)


def worst_group(correct: Floats, groups: Rows) -> Floats:
    """min over groups of the accuracy, for each row of `correct` and `groups` (b, n): a statistic to resample.

    A group that a resample does not hold has no accuracy and is left out, as in `worst_group_accuracy`.
    """
    accuracies = []
    for group in np.unique(groups):
        inside = groups == group
        count, hits = inside.sum(axis=-1), (correct * inside).sum(axis=-1)
        accuracies.append(np.where(count > 0, hits / np.maximum(count, 1), np.inf))
    return np.min(accuracies, axis=0)


def chance(k: int, first: int, second: int) -> float:
    """Expected MaxSkew@k of a random ranking of two groups of these sizes: a hypergeometric mean."""
    total = comb(first + second, k)
    chances = [comb(first, x) * comb(second, k - x) / total for x in range(k + 1)]
    return sum(p * log(2 * max(x, k - x) / k) for x, p in enumerate(chances))


def protocol(
    task: str,
    title: str,
    description: str,
    n: Mapping[str, int],
    methods: Mapping[str, Sides | dict[str, Any]],
    of: tuple[Texts, PromptSet] | None = None,
    *,
    split: str = "as above",
    seeds: Sequence[int] = (0,),
    data: Mapping[str, str] | None = None,
    **settings: Any,
) -> TaskProvenance:
    """What was done with the texts of a model and a prompt set; None: of several tasks together."""
    weights = None if of is None else of[0].host.fingerprint()
    return TaskProvenance(
        task=task,
        title=title,
        description=description,
        model="all of the above" if of is None else str(of[0].host.model_id or "miniature CLIP"),
        fingerprint=None if weights is None else weights.to_dict(),
        prompts="as above" if of is None else of[1].name,
        prompts_hash="" if of is None else of[1].hash,
        split=split,
        methods={name: one.about() if isinstance(one, Sides) else one for name, one in methods.items()},
        seeds=list(seeds),
        n=dict(n),
        data=dict(data or {}),
        settings=settings,
    )
