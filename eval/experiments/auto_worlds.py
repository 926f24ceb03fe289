"""Worlds and references that auto.py measures on: photographs, renders of the miniature world, and made-up vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from eval.experiments.embeddings import World, celeba, file, worlds, worst_group
from eval.experiments.run import skip
from vldebias.edit import Edit
from vldebias.evaluation.texts import Texts
from vldebias.hosts import TextTable
from vldebias.methods import Problem, Reference
from vldebias.methods.auto import BOUND, PredictedGap
from vldebias.methods.bounded import Bounded
from vldebias.metrics import paired_difference_interval
from vldebias.metrics.rankings import rankings
from vldebias.metrics.skew import log_ratios
from vldebias.prompts import PromptSet, load_prompts, make_prompt_set

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]
RESAMPLES = 500


@dataclass(frozen=True, eq=False)
class Place:
    """A world: what is fitted on, what references are drawn from, and what is measured.

    rows, value, other: images (n, d) that may be seen, codes of the attribute and of something else they show.
    gallery: (m, d) images that are measured.
    units: edit -> one value per query or image. groups: of the images, where the worst group is asked; else the mean.
    gap: edit -> the gap that true labels show on what is measured.
    """

    name: str
    texts: Texts
    prompts: PromptSet
    neutral: tuple[str, ...]
    rows: Tensor
    value: Codes
    other: Codes
    gallery: Tensor
    units: Callable[[Edit | None], Floats]
    gap: Callable[[Edit | None], float]
    groups: Codes | None = None

    def cost(self, values: Floats, *groups: Codes) -> float:
        """Of the values of the units."""
        return float(1 - worst_group(values[None], groups[0][None])[0]) if groups else float(values.mean())

    def change(self, before: Floats, after: Floats) -> tuple[float, float, float]:
        """Cost after minus before, with its paired interval."""
        shared = () if self.groups is None else (self.groups,)
        found = paired_difference_interval(before, after, *shared, statistic=self.cost, resamples=RESAMPLES)
        return found.value, found.low, found.high

    def fit(self, method: Any, reference: Tensor | None, lam: float | None = None) -> Edit:
        """Within the bound of auto, on this world's neutral texts."""
        bound = replace(BOUND, neutral=self.neutral)
        given = None if reference is None else Reference(reference, within_classes=self.groups is not None)
        problem = replace(Problem.of(self.texts.host, self.prompts, lam=lam, reference=given), bound=bound)
        return problem.fit(method if method == "auto" else Bounded(method, bound), "joint")


# ---- references ------------------------------------------------------------------------------------------------------


def _some(n: int) -> Callable[[Place, np.random.Generator], Tensor]:
    return lambda p, rng: p.rows[rng.permutation(len(p.rows))[:n]]


def _shares(first: float, n: int = 100) -> Callable[[Place, np.random.Generator], Tensor]:
    """A share of the first value, the rest of the others."""

    def draw(p: Place, rng: np.random.Generator) -> Tensor:
        order = rng.permutation(len(p.rows))
        one, rest = order[p.value[order] == 0], order[p.value[order] != 0]
        k = round(first * n)
        return p.rows[np.sort(np.concatenate([one[:k], rest[: n - k]]))]

    return draw


def _where(chosen: Callable[[Place], NDArray[np.bool_]], n: int = 200) -> Callable[..., Tensor]:
    def draw(p: Place, rng: np.random.Generator) -> Tensor:
        rows = np.flatnonzero(chosen(p))
        return p.rows[rng.permutation(rows)[:n]]

    return draw


def _moved(p: Place, rng: np.random.Generator) -> Tensor:
    """All images, each moved by one and the same vector, as long as an image is far from the mean of all."""
    rows = p.rows
    move = normalize(torch.from_numpy(rng.normal(size=rows.shape[1])), dim=0)
    return normalize(rows + move * (rows - rows.mean(0)).norm(dim=1).mean(), dim=1)


def _rotated(p: Place, rng: np.random.Generator) -> Tensor:
    """The images of a model whose space is another, of the same width."""
    q, _ = torch.linalg.qr(torch.from_numpy(rng.normal(size=(p.rows.shape[1],) * 2)))
    return p.rows @ q


def _blurred(p: Place, rng: np.random.Generator) -> Tensor:
    """Around the mean image, as far from it as images are, in no direction that means anything."""
    spread = (p.rows - p.rows.mean(0)).square().sum(1).mean().sqrt()
    noise = torch.from_numpy(rng.normal(size=(300, p.rows.shape[1]))) / p.rows.shape[1] ** 0.5
    return normalize(p.rows.mean(0) + spread * noise, dim=1)


REFERENCES: dict[str, Callable[[Place, np.random.Generator], Tensor]] = {
    "20 images": _some(20),
    "100 images": _some(100),
    "all images": lambda p, rng: p.rows,
    "one value alone": _shares(1.0),
    "95 of 100 of one value": _shares(0.95),
    "another attribute goes along": _where(lambda p: p.other == p.value),
    "one kind of images alone": _where(lambda p: p.other == 0),
    "images that are all moved": _moved,
    "noise": lambda p, rng: normalize(torch.from_numpy(rng.normal(size=(300, p.rows.shape[1]))), dim=1),
    "noise around the mean image": _blurred,
    "another model": _rotated,
    "one image many times": lambda p, rng: p.rows[:1].repeat(100, 1),
}
GENUINE = ("20 images", "100 images", "all images")


# ---- worlds ----------------------------------------------------------------------------------------------------------


def searched(
    name: str,
    texts: Texts,
    prompts: PromptSet,
    neutral: tuple[str, ...],
    queries: tuple[str, ...],
    seen: tuple[Tensor, Codes, Codes],
    gallery: tuple[Tensor, Codes],
    k: int,
) -> Place:
    """A world that is searched: the skew of the first k."""
    asked, (rows, value) = texts.embed(queries), gallery
    uniform = np.full(value.max() + 1, 1 / (value.max() + 1))
    truth = PredictedGap.of(rows, torch.from_numpy(value), resamples=0)

    def projected(edit: Edit | None) -> Tensor:
        return asked if edit is None else normalize(edit(asked), dim=1)

    def units(edit: Edit | None) -> Floats:
        ranked = rankings((projected(edit) @ rows.T).numpy())
        return log_ratios(value[ranked], k, uniform).max(axis=1)

    return Place(
        name, texts, prompts, neutral, *seen, rows, units, lambda e: float(truth.of_texts(projected(e))[0].mean())
    )


def classified(
    name: str,
    texts: Texts,
    prompts: PromptSet,
    seen: tuple[Tensor, Codes, Codes],
    rows: Tensor,
    label: Codes,
    value: Codes,
) -> Place:
    """A world that is classified: the accuracy of the worst of classes by values."""
    classes = texts.embed(prompts.classes)
    truth = PredictedGap.of(rows, torch.from_numpy(value), torch.from_numpy(label), resamples=0)

    def projected(edit: Edit | None) -> Tensor:
        return classes if edit is None else normalize(edit(classes), dim=1)

    def units(edit: Edit | None) -> Floats:
        return ((rows @ projected(edit).T).argmax(1).numpy() == label).astype(np.float64)

    def gap(edit: Edit | None) -> float:
        return float(truth.of_texts(projected(edit))[0].mean())

    groups = label * (int(value.max()) + 1) + value
    return Place(name, texts, prompts, prompts.classes, *seen, rows, units, gap, groups)


def real(path: Path, halves: Sequence[int]) -> Iterator[Place]:
    """Gender and age among photographs; halves: seeds of what is seen."""
    data = celeba(path)
    with np.load(path, allow_pickle=False) as arrays:
        smiling = (arrays["attr"][:, list(arrays["attr_names"]).index("Smiling")] > 0).astype(np.int64)
        about = tuple(map(str, arrays["prompts64"]))
    age = data.images.column("age")
    pairs = tuple((p, p.replace("an old", "a young")) for p in about if " old " in p)
    ages = replace(
        data.prompts,
        name="old-young",
        attributes={"old": ("old",), "young": ("young",)},
        groups=tuple(pair for pair in pairs if pair[1] in about),
        spurious=(),
    )
    old = np.where(np.array(age.names)[age.codes] == "old", 0, 1)
    for seed in halves:
        order = np.random.default_rng(seed).permutation(len(data.images))
        seen, rest = order[:500], order[500:]
        for name, prompts, codes, other in (
            ("gender", data.prompts, data.gender, smiling),
            ("age", ages, old, data.gender),
        ):
            size = min(np.bincount(codes[rest]))
            pool = np.concatenate([rest[codes[rest] == c][:size] for c in np.unique(codes)])
            yield searched(
                f"photographs, {name}, half {seed}",
                data.texts,
                prompts,
                data.queries[::2],
                data.queries[1::2],
                (data.rows[seen], codes[seen], other[seen]),
                (data.rows[pool], codes[pool]),
                50 if name == "gender" else 25,
            )


def rendered(found: Mapping[str, World], part: int) -> Iterator[Place]:
    """Portraits to search and to classify, birds to classify; part: 0 or 1, disjoint halves of what may be seen."""
    world = found["portraits"]
    fitted = world.fitted[np.arange(part, len(world.fitted), 2)]
    rows = fitted.normalised().double()
    columns = {name: fitted.column(name).codes for name in ("gender", "tone", "age")}
    for column, prompts, asked, other in (
        ("gender", "professions-gender", "professions-gender", "age"),
        ("gender", "fairface-gender", "professions-gender", "age"),
        ("age", "fairface-age", "professions-gender", "gender"),
        ("tone", "skin-tone", "skin-tone", "gender"),
    ):
        own, queries = load_prompts(prompts), load_prompts(asked)
        yield searched(
            f"portraits, {column} by {prompts}, part {part}",
            world.texts,
            own,
            own.classes,
            queries.held_out_classes,
            (rows, columns[column], columns[other]),
            (world.rows, world.measured.column(column).codes),
            100,
        )
    hair = load_prompts("celeba")
    known = world.measured.column("label").known
    yield classified(
        f"hair, part {part}",
        world.texts,
        hair,
        (rows, columns["gender"], columns["age"]),
        world.rows[torch.from_numpy(known)],
        _codes(world.measured.column("label"), hair)[known],
        world.measured.column("gender").codes[known],
    )
    birds = found["birds"]
    seen, place = birds.fitted[np.arange(part, len(birds.fitted), 2)], load_prompts("waterbirds")
    yield classified(
        f"birds, part {part}",
        birds.texts,
        place,
        (seen.normalised().double(), seen.column("place").codes, seen.column("label").codes),
        birds.rows,
        _codes(birds.measured.column("label"), place),
        birds.measured.column("place").codes,
    )


def _codes(labels: Any, prompts: PromptSet) -> Codes:
    from vldebias.evaluation.groups import class_of

    return np.array(class_of(labels.names, prompts))[labels.codes]


DIM, CONCEPTS = 64, 24
LEVELS = (  # how far texts lean along what texts differ in, and along what images alone differ in
    (0.0, 0.0),
    (0.1, 0.0),
    (0.3, 0.0),
    (0.0, 0.1),
    (0.0, 0.3),
    (0.1, 0.1),
    (0.3, 0.3),
    (0.2, -0.2),
)
AGAIN = ((0.05, 0.0), (0.15, 0.0), (0.2, 0.0), (0.0, 0.2), (0.2, 0.2), (0.1, 0.3), (0.3, 0.1), (0.1, -0.1))


def made(biased: float, lean: float, seed: int) -> Place:
    """Vectors: neutral texts lean by `biased` along what prompts of a pair differ in, and by `lean` along what images
    of the two values differ in and prompts do not; images also have a trait of their own, the other attribute."""
    draw = torch.Generator().manual_seed(1000 + seed)
    person, gender, hidden, trait = torch.eye(DIM, dtype=torch.float64)[:4]
    concepts = torch.eye(DIM, dtype=torch.float64)[6 : 6 + CONCEPTS]
    names = [f"job{i}" for i in range(CONCEPTS)]
    prompts = make_prompt_set("jobs", {"male": ["male"], "female": ["female"]}, names)
    rows: dict[str, Tensor] = {}
    for name, concept in zip(names, concepts, strict=True):
        swing = 1 + 0.5 * torch.randn(2, generator=draw, dtype=torch.float64)  # concepts lean more or less
        about = person + 0.4 * concept
        rows[f"A photo of a {name}."] = about + biased * swing[0] * gender + lean * swing[1] * hidden
        own = 0.05 * torch.randn(DIM, generator=draw, dtype=torch.float64)
        for value, sign in (("male", 1), ("female", -1)):
            rows[f"A photo of a {value} {name}."] = about + sign * (0.3 * gender + own)
    for value, sign in (("male", 1), ("female", -1)):
        rows[f"A photo of a {value}."] = person + 0.3 * sign * gender
    texts = Texts(TextTable(rows, "vectors"))

    def images(n: int) -> tuple[Tensor, Codes, Codes]:
        value, other, job = (torch.randint(k, (n,), generator=draw) for k in (2, 2, CONCEPTS))
        noise = torch.randn(n, DIM, generator=draw, dtype=torch.float64)
        depth = 1 + 0.4 * torch.rand(n, 1, generator=draw, dtype=torch.float64)
        sign, kind = (1.0 - 2 * value)[:, None], (1.0 - 2 * other)[:, None]
        shown = depth * (person + 0.3 * concepts[job]) + sign * (0.15 * gender + 0.15 * hidden) + 0.15 * kind * trait
        return normalize(shown + 0.08 * noise + 2 * torch.eye(DIM)[5], dim=1), value.numpy(), other.numpy()

    seen, (rows_, value, _) = images(600), images(2000)
    queries = tuple(prompts.classes)
    name = f"vectors, leaning {biased:g} along texts and {lean:g} along images alone"
    return searched(name, texts, prompts, queries[::2], queries[1::2], seen, (rows_, value), 100)


def places(again: bool = False) -> Iterator[Place]:
    """All worlds; again: other levels, other halves of the photographs, the other part of the renders."""
    for seed, (biased, lean) in enumerate(AGAIN if again else LEVELS, 200 * again):
        yield made(biased, lean, seed)
    if file().is_file():
        yield from real(file(), (4, 5) if again else (0, 1))
    else:
        skip(file())
    yield from rendered(worlds(), int(again))
