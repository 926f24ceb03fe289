"""Zero-shot classification by group (Tables 7.1-7.4 and A.9): worst group, averages, gap, with and without a method.

Source: sections 7.3.1 and 7.4.1 of the thesis; groups are label x spurious value (Sagawa et al., 2020). Everything
comes from one matrix of image features: a method is another (k, d) matrix of class texts, its scores are one product.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vldebias.data import Embeddings
from vldebias.errors import InvalidInputError
from vldebias.evaluation.groups.agnostic import class_agnostic as without_class_names
from vldebias.evaluation.groups.baselines import train_baselines
from vldebias.evaluation.groups.cosines import cosine_figures, spurious_by_value
from vldebias.evaluation.groups.figures import Classified, GroupFigures
from vldebias.evaluation.groups.split import GroupSplit
from vldebias.evaluation.part import Part
from vldebias.evaluation.result import Figure, Protocol
from vldebias.evaluation.texts import Texts
from vldebias.fitting import CLASSIFIER, METHODS
from vldebias.projection import CalibratedProjection
from vldebias.prompts import PromptSet
from vldebias.stated import StatedWords

__all__ = ["AGNOSTIC", "evaluate_groups"]

Projections = Mapping[str, CalibratedProjection | None]

AGNOSTIC = "orth-cali, class-agnostic"
KNOWN = ("none", *METHODS, "difference")
CALIBRATED = ("orth-cali", "cali")  # the methods that have a lambda
TITLES = {
    "": "Zero-shot group robustness (Tables 7.2, 7.4 and A.9)",
    "lambda": "Sensitivity to lambda (Table 7.3)",
    "cosines": "Cosines of class prompts with spurious prompts (Table 7.1)",
}
TOLD = {
    "": "An image counts as the class whose prompt is nearest. A group is a label together with a spurious value; the "
    "worst of them is picked again in every resample of the images.",
    "lambda": "The same images and prompts, with projections of several lambda; rows without lambda for comparison.",
    "cosines": "Cosine of each class prompt, projected, with the spurious prompts of a value, as they are, averaged; "
    "the spread is the largest minus the smallest over the values. Texts alone: nothing is drawn, so intervals have "
    "no width.",
}
INTERVALS = (
    "95 % percentile bootstrap over images, the worst group picked again in every resample; Wilson's for the accuracy "
    "of one group and for worst group and average at 0 or 1; the reweighted average is put together from those where a "
    "group is at 0 or 1"
)


def evaluate_groups(
    test: Embeddings,
    texts: Texts,
    prompts: PromptSet,
    *,
    task: str,
    label: str,
    spurious: str,
    methods: Sequence[str] = ("none", *METHODS),
    lam: float | None = None,
    strength: float = 1.0,
    lams: Sequence[float] = (),
    class_agnostic: bool = False,
    projections: Mapping[str, CalibratedProjection] | None = None,
    train: Embeddings | None = None,
    val: Embeddings | None = None,
    baselines: Sequence[str] = (),
    true_groups: bool = False,
    group_weights: Mapping[str, float] | None = None,
    resamples: int = 2000,
    seed: int = 0,
    on_step: Callable[[str], None] | None = None,
) -> list[Part]:
    """Group robustness of zero-shot classification, as parts `task`, "`task`: lambda" and "`task`: cosines".

    Args:
        test: features (n, d) of the split with the columns `label` and `spurious`; images of which one is unknown are
            counted and left out.
        texts: the text side of the same model.
        prompts: with class prompts that name the labels (see `class_of`).
        task: what the figures are called.
        label, spurious: columns; a group is one value of each, such as "landbird/water".
        methods: of "none", "orth", "orth-cali", "cali", "difference"; "none" is always measured, as the base of every
            change.
        lam, strength: of the methods; lam = None is the paper's 1000.
        lams: a sweep over these lambda for "orth-cali" and "cali"; 0 is P0 alone, and no change at all for "cali".
        class_agnostic: "orth-cali" also with pairs that name no class (Table A.9).
        projections: name -> projection that was fitted before, measured like a method.
        train, val: splits with the same columns, for `baselines`; they use labels, and their figures say so.
        baselines: names in `vldebias.baselines.BASELINES`.
        true_groups: let the baselines see the groups of `train`; by default they go by zero-shot predictions, as in
            Table 7.2.
        group_weights: group -> weight of `average_reweighted`. By default the sizes of the groups in `train`, where
            that is given and every group of it occurs in `test`.
        resamples, seed: of the bootstrap; the seed is also that of the baselines.
        on_step: is told what is being measured.

    Returns:
        Figures `worst_group`, `average`, `average_reweighted`, `gap` with percentile intervals over images, and
        `accuracy` of every group with Wilson's; changes from "none" are paired. Where such intervals do not cover is
        said in `vldebias.evaluation.groups.bootstrap`. A sweep has the overall metrics only.

    Raises:
        InvalidInputError: columns, labels, methods, weights or widths that do not fit, baselines without `train`, a
            sweep without a method that has a lambda.
        ProjectionMismatchError: a projection in `projections` that belongs to another model.
    """
    _check(methods, lams)
    split = GroupSplit.of(test, prompts, label, spurious)
    learn, select = (None if s is None else GroupSplit.of(s, prompts, label, spurious) for s in (train, val))
    tell = on_step or (lambda step: None)
    run = _Run(split, texts, prompts, task, strength, seed, tell)
    solved = run.solve(methods, lam, class_agnostic, projections or {})
    found = [run.classify(method, projection) for method, projection in solved.items()]
    zero_shot = texts.embed(prompts.classes).float()
    everything = found + train_baselines(
        baselines, split, learn, select, zero_shot, true_groups=true_groups, seed=seed, on_step=tell
    )

    weights = group_weights if group_weights is not None else _sizes(learn, split)
    measure = GroupFigures(found[0].right, split.groups, weights, resamples, seed)
    figures = measure.overall(task, everything) + measure.by_group(task, everything)
    settings = {
        "label": label,
        "spurious": spurious,
        "data": split.facts,
        "train": None if learn is None else learn.facts,
        "val": None if select is None else select.facts,
        "group_weights": None if weights is None else dict(weights),
        "intervals": INTERVALS,
        "resamples": resamples,
        "seed": seed,
    }
    parts = [Part(figures, run.protocol("", everything, settings))]
    if lams:
        swept = run.sweep(found, methods, lams)
        protocol = run.protocol("lambda", swept, settings | {"lams": list(lams)})
        parts.append(Part(measure.overall(protocol.task, swept), protocol))
    cosines = run.cosines(solved, found)
    return [*parts, *([cosines] if cosines else [])]


@dataclass(frozen=True, eq=False)
class _Run:
    """What all steps of one evaluation share.

    Raises:
        InvalidInputError: image features and texts of different widths.
    """

    split: GroupSplit
    texts: Texts
    prompts: PromptSet
    task: str
    strength: float
    seed: int
    on_step: Callable[[str], None]

    def __post_init__(self) -> None:
        width, other = self.split.features.shape[1], self.texts.embed(self.prompts.classes[:1]).shape[1]
        if width != other:
            raise InvalidInputError(
                f"image features have width {width}, text embeddings {other}; expected both from one model"
            )

    def solve(
        self, methods: Sequence[str], lam: float | None, agnostic: bool, given: Mapping[str, CalibratedProjection]
    ) -> Projections:
        """Method -> projection, None where it changes nothing; "none" first."""
        taken = [name for name in given if name in (*KNOWN, AGNOSTIC)]
        if taken:
            raise InvalidInputError(f"projections: {taken} are names of methods; call them otherwise")
        for projection in given.values():
            self.texts.host.check(self.texts.host.roles[0], projection)
        solved = {method: self._fit(method, self.prompts, lam) for method in dict.fromkeys(("none", *methods))}
        if agnostic:
            solved[AGNOSTIC] = self._fit("orth-cali", without_class_names(self.prompts), lam)
        return solved | dict(given)

    def _fit(self, method: str, prompts: PromptSet, lam: float | None) -> CalibratedProjection | None:
        chosen = CLASSIFIER.lam if lam is None else float(lam)
        if method == "cali" and chosen == 0:
            return None  # (I + 0)^-1 = I changes nothing, and there is no projection that removes nothing
        return self.texts.fit(prompts, method, chosen)

    def classify(self, method: str, projection: CalibratedProjection | None, lam: float | None = None) -> Classified:
        """Zero-shot classification with the class prompts under a projection; lam: where it is swept over."""
        self.on_step(method if lam is None else f"{method}, lam = {lam:g}")
        rows = self.texts.under(self.prompts.classes, projection, strength=self.strength)
        right = self.split.right(self.split.features @ rows.float().T)
        if method == "none":
            return Classified(method, right)
        about: dict[str, Any] = {"lam": lam, "strength": self.strength}
        if projection is not None:
            about |= {"lam": projection.lam, "prompts": projection.prompts, "prompts_hash": projection.prompts_hash}
            if lam is None and "cali" in projection.method and isinstance(projection.lam, float):
                lam = projection.lam
        return Classified(method, right, {"lam": lam, "strength": self.strength}, about)

    def sweep(self, found: Sequence[Classified], methods: Sequence[str], lams: Sequence[float]) -> list[Classified]:
        """The calibrated methods at every lambda, after "none" and "orth", which have none."""
        return [c for c in found if c.method in ("none", "orth")] + [
            self.classify(method, self._fit(method, self.prompts, lam), float(lam))
            for method in methods
            if method in CALIBRATED
            for lam in dict.fromkeys(lams)
        ]

    def cosines(self, solved: Projections, found: Sequence[Classified]) -> Part | None:
        """Table 7.1 before and after; None where no spurious prompt names a value of the attribute."""
        name = f"{self.task}: cosines"
        details = {c.method: c.details for c in found}
        figures: list[Figure] = cosine_figures(
            self.texts, self.prompts, solved, task=name, strength=self.strength, details=details
        )
        named = {"spurious prompts": spurious_by_value(self.prompts)}
        return Part(figures, self.protocol("cosines", found, named)) if figures else None

    def protocol(self, kind: str, methods: Sequence[Classified], settings: Mapping[str, Any]) -> Protocol:
        """What was done; kind: "" or what follows the task in its name."""
        host, about, gate = self.texts.host, self.split.about, StatedWords(self.prompts.stated_words)
        stated = [prompt for prompt in self.prompts.classes if gate.match(prompt)]
        return Protocol(
            task=f"{self.task}: {kind}" if kind else self.task,
            title=TITLES[kind],
            description=TOLD[kind],
            model=str(about.get("model") or host.model_id or "unnamed model"),
            fingerprint=host.fingerprint(),
            prompts=self.prompts.name,
            prompts_hash=self.prompts.hash,
            split=" ".join(str(about[key]) for key in ("data", "split") if about.get(key)) or "unnamed split",
            methods={c.method: dict(c.about) for c in methods},
            seeds=[self.seed],
            n={"images": len(self.split), "unknown": self.split.unknown},
            settings={**settings, "class prompts left alone, they state the attribute": stated},
        )


def _check(methods: Sequence[str], lams: Sequence[float]) -> None:
    if isinstance(methods, str) or any(method not in KNOWN for method in methods):
        raise InvalidInputError(f"methods: expected some of {list(KNOWN)}, got {methods!r}")
    if lams and not any(method in CALIBRATED for method in methods):
        raise InvalidInputError(f"lams: expected a method with a lambda, {list(CALIBRATED)}, got {list(methods)}")


def _sizes(train: GroupSplit | None, test: GroupSplit) -> dict[str, float] | None:
    """Sizes of the groups of the training split; None without one, or where the test split lacks one of its groups."""
    if train is None:
        return None
    sizes = train.groups.counts
    if any(n and not test.groups.counts.get(name) for name, n in sizes.items()):
        return None
    return {name: float(sizes.get(name, 0)) for name in test.groups.names}
