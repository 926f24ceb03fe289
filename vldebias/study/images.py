"""Fit methods on texts and a reference, apply them to image embeddings, and warn of valid inputs
that look mistaken.

The warnings look at a thousand rows and at texts that are embedded already, and change no figure.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from math import sqrt
from typing import Annotated, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BeforeValidator, PlainSerializer
from torch import Tensor
from torch.nn.functional import normalize

from vldebias.data import Embeddings, UnitRows, cross, odd_values
from vldebias.edits.edit import Edit
from vldebias.errors import InvalidInputError, SuspectInputWarning, need, warn
from vldebias.hosts import Host
from vldebias.hosts.host import IMAGE, SIDES, TEXT
from vldebias.measure.result import NONE, TaskProvenance
from vldebias.methods import METHODS, Method, Need, Problem, get_method
from vldebias.methods.diagnostics import spread_along
from vldebias.methods.reference import place_of
from vldebias.prompts import PromptSet, load_prompts
from vldebias.schema import Lam, Share
from vldebias.study.task import Data, Session, Task

FOREIGN = 3.0  # deviations from images of another space, of their spread and of their mean
ENOUGH = 10  # images of a value, to say how well texts tell it


def _methods(given: Any) -> tuple[Method | str, ...]:
    """Read names of the registry and Method objects; "none", the base of every change, comes
    first."""
    listed = [given] if isinstance(given, (str, Method)) else given
    return tuple({get_method(one).name: one for one in (NONE, *listed)}.values())


Methods = Annotated[
    tuple[Any, ...],
    BeforeValidator(_methods),
    PlainSerializer(lambda methods: [get_method(one).name for one in methods]),
]


class ImageTask(Task):
    """Hold the fields that tasks comparing methods on image embeddings share.

    data: what is measured. methods: names in `vldebias.methods.METHODS`; "none" is always measured
    first. lam, strength: see `vldebias.debias`; lam is that of the methods that have none of their
    own, as "default"
        has, and None the paper's.
    reference: images for the methods that use some, with labels for those that need them (else the
        model's own zero-shot labels). Images that are measured too are left out of them.
    """

    data: Data
    methods: Methods = (NONE, "orth", "orth-cali", "cali")  # the rows of the paper's tables
    lam: Lam | None = None
    strength: Share = 1.0
    reference: Data | None = None

    @classmethod
    def of_given(cls, session: Session, fields: Mapping[str, Any]) -> Self:
        """Return the task for the images given from Python, with a reference and splits where there
        are some."""
        splits: dict[str, Any] = {
            one: Data(name=one) for one in ("reference", "train", "val") if one in session.given
        }
        return super().of_given(session, {**fields, "data": Data(name="images"), **splits})

    def inputs(self, session: Session) -> dict[str, Any]:
        """Return images, the texts of the same model, splits that the task names, and edits that
        were fitted before."""
        specs = {"images": self.data} | {
            name: getattr(self, name, None) for name in ("reference", "train", "val")
        }
        splits = {name: session.embedded(name, spec) for name, spec in specs.items()}
        return splits | {
            "texts": session.texts,
            "edits": session.edits,
            "progress": session.progress,
        }

    def fit(
        self,
        texts: Host,
        sets: Sequence[PromptSet],
        *,
        neutral: Sequence[str] = (),
        reference: Any = None,
        edits: Mapping[str, Edit] | None = None,
    ) -> dict[str, Edit | None]:
        """Fit every method of the task and return name -> edit: "none", which has None, first, then
        the given edits.

        neutral: texts whose change is bounded where the sets have no class prompts of their own.
        """
        how = {
            "reference": reference,
            "neutral": () if any(one.classes for one in sets) else tuple(neutral),
        }
        found = {
            one.name: fit_method(texts, sets, one, self.lam, **how)
            for one in map(get_method, self.methods)
        }
        for name, edit in (edits or {}).items():
            if name in METHODS:
                raise InvalidInputError(
                    f"edits: got {name!r}, the name of a method; expected another name"
                )
            texts.check(TEXT, edit)
            found[name] = edit
        return found

    def about(self, edit: Edit | None) -> dict[str, Any]:
        """Return the entry of a method in the provenance, from which its rows have lam, strength
        and uses_labels."""
        if edit is None:
            return {}
        origin = edit.provenance
        lam, *other = {*origin.lam} if isinstance(origin.lam, tuple) else (origin.lam,)
        about = {
            name: getattr(origin, name) for name in ("method", "prompts", "prompts_hash", "labels")
        }
        about |= {"lam": lam if lam > 0 and not other else None, "strength": self.strength}
        about |= {"uses_labels": origin.labels == "given" or None, "side": edit.side}
        choice = origin.choice and origin.choice.model_dump(mode="json")
        about |= {"rank": getattr(edit, "rank", None), "choice": choice}
        return {name: one for name, one in about.items() if one is not None}

    def rows(self, texts: Host, prompts: Sequence[str], edit: Edit | None) -> Tensor:
        """Return the normalised rows (n, d) of prompts from a model with the edit; stated
        attributes are kept."""
        on_texts = edit if edit is not None and TEXT in SIDES[edit.side] else None
        return texts.under(prompts, TEXT, on_texts, strength=self.strength)

    def images(self, features: UnitRows, edit: Edit | None) -> UnitRows:
        """Return the unit rows (n, d) of images from a model with the edit; images state no
        attribute."""
        if edit is None or IMAGE not in SIDES[edit.side]:
            return features
        return features.changed(lambda rows: normalize(edit.image(rows, self.strength), dim=1))

    def provenance(
        self,
        name: str,
        images: Embeddings,
        texts: Host,
        sets: Sequence[PromptSet],
        methods: Mapping[str, Mapping[str, Any]],
        *,
        settings: Mapping[str, Any] | None = None,
        reference: Embeddings | None = None,
        **fields: Any,
    ) -> TaskProvenance:
        """Return what was measured with which model, prompts and images; fields: title,
        description, n.

        methods: name -> `about`. settings: what only measuring knows; the task's own fields are
        among them.
        """
        about = images.about
        data = {"images": about, "reference": {} if reference is None else reference.about}
        digests = {
            part: one.get("digest") or one.get("data_fingerprint") for part, one in data.items()
        }
        digests["texts"] = getattr(texts, "digest", None)
        return TaskProvenance(
            task=name,
            model=str(about.get("model") or texts.model_id or "unnamed model"),
            fingerprint=texts.weights,
            prompts="+".join(one.name for one in sets),
            prompts_hash="+".join(one.hash for one in sets),
            split=" ".join(str(about[key]) for key in ("data", "split") if about.get(key))
            or "unnamed split",
            methods={method: dict(one) for method, one in methods.items()},
            seeds=[self.seed],
            data={part: str(one) for part, one in digests.items() if one},
            settings=self.settings(settings),
            **fields,
        )

    @staticmethod
    def check_images(images: Embeddings, texts: Host, prompt: str) -> None:
        """Warn of few different rows, and of no negative entry; InvalidInputError: texts of another
        width."""
        width = texts.embed([prompt]).shape[1]
        if width != images.dim:
            raise InvalidInputError(
                f"images: got features of width {images.dim}, and texts of width {width}; expected"
                " both from one model"
            )
        sample = images.features[_spaced(len(images))]
        different = len({row.tobytes() for row in sample})
        if different <= max(1, len(sample) // 10) < len(sample):
            tied = (
                "so that scores are tied and ranked by row number; expected a row of its own for"
                " each image"
            )
            warn(
                f"features: got {different} different rows among {len(sample)}, {tied}",
                SuspectInputWarning,
            )
        if not (sample < 0).any():
            expected = "expected what the image tower of a model gives, numbers of both signs"
            warn(
                f"features: got no number below 0, as in pixels or after a ReLU; {expected}",
                SuspectInputWarning,
            )


def fit_method(
    texts: Host,
    prompts: PromptSet | Sequence[PromptSet],
    method: str | Method,
    lam: float | None = None,
    **how: Any,
) -> Edit | None:
    """Fit a method on texts; "none" gives None. lam: for methods that take one. how: arguments of
    `Problem`."""
    chosen = get_method(method)
    if chosen.name == NONE:
        return None
    return Problem(texts, prompts, lam=lam if chosen.has_lam else None, **how).fit(chosen, TEXT)


def sets_by_column(given: Any) -> dict[str, tuple[PromptSet, ...]]:
    """Return column -> prompt sets of a mapping, or of sets by their names; InvalidInputError:
    there is none."""

    def several(of: Any) -> tuple[PromptSet, ...]:
        return tuple(
            map(load_prompts, of if isinstance(of, (list, tuple)) else () if of is None else (of,))
        )

    if not isinstance(given, Mapping):
        given = {one.name: one for one in several(given)}
    if not given:
        raise InvalidInputError("prompts: expected a prompt set, by name or as an object")
    return {column: several(of) for column, of in given.items()}


def disjoint(
    reference: Embeddings | None, images: Embeddings, methods: Iterable[str | Method] | None = None
) -> tuple[Embeddings | None, dict[str, int]]:
    """Return the reference without the images that are measured, and the numbers of reference
    images kept and removed.

    A reference that lies in the gallery as a whole is kept, without its labels: the images of a
    gallery are available when it is searched, so a method without labels learns nothing from them
    that it could not learn in use.

    methods: those that are fitted to it; None: a reference that is measured itself is refused
    whatever it is for.

    Raises:
        InvalidInputError: nothing is left, and a method would learn from labels of what is
            measured.
    """
    if reference is None:
        return None, {}
    theirs, ours = np.sort(_hashes(images.unit)), _hashes(reference.unit)
    new = (
        theirs[np.searchsorted(theirs, ours) % len(theirs)] != ours
    )  # np.isin makes ten arrays of both
    left, held = int(new.sum()), int((~new).sum())
    if left:
        kept = reference.picked(new) if held else reference
        return kept, {"reference images": left, "left out of the reference, measured too": held}
    learning = [
        one.name
        for one in map(get_method, methods or ())
        if Need.LABELS in one.needs and reference.labels
    ]
    if methods is None or learning:
        why = f", so that {', '.join(learning)} would learn from their labels" if learning else ""
        raise InvalidInputError(
            f"reference: got {held} images, and all of them are measured{why}; expected others,"
            " such as another split. Or measure every second image: evaluate(model,"
            " features[1::2], reference=features[::2], ...)"
        )
    return replace(reference, labels={}), {
        "reference images": held,
        "of the reference, measured too": held,
    }


def _hashes(rows: UnitRows) -> NDArray[np.int64]:
    """Return a hash of 64 bits (n,) of the bytes of each row."""
    return np.fromiter(
        (hash(row.tobytes()) for block in rows.split() for row in block.numpy()),
        np.int64,
        len(rows),
    )


# ---- do images, texts and labels belong together?
# ------------------------------------------------------------


def _spaced(n: int) -> NDArray[np.int64]:
    """Return at most a thousand indices of n rows, evenly spaced."""
    return np.unique(np.linspace(0, max(n - 1, 0), min(n, 1000)).astype(np.int64))


def doubt_labels(images: Embeddings, columns: Sequence[str], sets: Sequence[PromptSet]) -> None:
    """Warn of columns that look mistyped, of values spelled unlike those of a prompt set, of small
    intersections."""
    found: dict[str, list[str]] = {}
    for column in columns:
        labels = images.column(column)
        names, problems = [name for name, n in labels.counts.items() if n], odd_values(labels)
        for prompts in sets:
            values = {value.casefold(): value for value in prompts.attributes}
            strangers = [name for name in names if place_of(name, prompts) is None]
            for name in strangers if len(strangers) < len(names) else ():
                for near in difflib.get_close_matches(name.casefold(), values, n=1, cutoff=0.8):
                    problems.append(
                        f"{name!r} is no value of {prompts.name}; did you mean {values[near]!r}?"
                    )
        found[repr(column)] = problems
    if len(columns) > 1 and not any(found.values()):
        found[" x ".join(columns)] = odd_values(cross(*map(images.column, columns)))
    for what, problems in found.items():
        if problems:
            warn(f"labels {what}: " + "; also ".join(problems), SuspectInputWarning)


def doubt_space(images: UnitRows, texts: Host, prompts: Sequence[str]) -> None:
    """Warn where images and texts look unaligned, as those of different models do.

    Two signs have to agree: images vary along the differences of the texts no more than along any
    direction, and their mean is no nearer to the mean of the texts than a random direction is. A
    few queries may differ in directions that images do not vary in; the means of one model still
    share a direction (cosines around .3 in CLIP).
    """
    read = [
        prompt for prompt in dict.fromkeys(prompts) if (TEXT, prompt) in texts.memory
    ]  # embedded already
    if len(read) < 2 or len(images) < 2 * ENOUGH:
        return
    seen, rows = images[_spaced(len(images))].double(), texts.embed(read)
    spread, deviations = spread_along(seen, rows)
    shared = abs(float(normalize(seen.mean(0), dim=0) @ normalize(rows.mean(0), dim=0)))
    if spread and deviations < FOREIGN and shared < FOREIGN / sqrt(seen.shape[1]):
        said = (
            f"image and text features look unaligned (variance ratio {spread:.2g}, cosine of means"
            f" {shared:.2f})"
        )
        warn(f"{said}; are both of the same model? Embed both with one", SuspectInputWarning)


def doubt_chance(
    nearest: NDArray[np.integer], own: NDArray[np.integer], values: Sequence[str], what: str
) -> None:
    """Warn where texts predict values no better than chance, or better in another order, in the
    mean over values.

    nearest, own: (n,) places in `values`: of the text that is nearest to an image, and of its own
    label. what: which texts, for the message.
    """
    k = len(values)
    counts = np.bincount(own * k + nearest, minlength=k * k).reshape(k, k)
    shown = np.flatnonzero(counts.sum(1) >= ENOUGH)
    if len(shown) < 2:
        return
    n = counts.sum(1)[shown]
    recall = counts[shown] / n[:, None]
    right = float(recall[np.arange(len(shown)), shown].mean())
    error = sqrt((1 - 1 / k) / k * float((1 / n).sum())) / len(shown)
    if right > 1 / k + 2 * error:
        return
    pairs = need("scipy.optimize").linear_sum_assignment(-recall)
    reason = "no more than chance: are images, texts and labels of one model, and in one order?"
    if (best := float(recall[pairs].mean())) > max(right, 1 / k) + 4 * error:
        order = ", ".join(
            f"{values[a]!r} as {values[b]!r}"
            for a, b in zip(shown[pairs[0]], pairs[1], strict=True)
        )
        reason = (
            f"and about {best:.0%} with {order}: give the labels by name, or in the order of the"
            " texts"
        )
    warn(
        f"{what} are right about {right:.0%} of {int(counts.sum())} images, {reason}",
        SuspectInputWarning,
    )


def doubt_values(images: Embeddings, column: str, texts: Host, prompts: PromptSet) -> None:
    """Apply `doubt_chance` to the texts that name an attribute's values, where a column has these
    values."""
    labels = images.column(column)
    places = [place_of(name, prompts) for name in labels.names]
    if not labels.names or None in places or prompts.parts or len(prompts.attributes) < 2:
        return
    for some in (prompts.spurious, chain(*prompts.groups)):
        by_value = prompts.by_value([prompt for prompt in some if (TEXT, prompt) in texts.memory])
        if all(by_value.values()):
            rows = np.flatnonzero(labels.known)
            rows = rows[_spaced(len(rows))]
            means = torch.stack([texts.embed(own).mean(0) for own in by_value.values()])
            nearest = (images[rows].unit[:].double() @ normalize(means, dim=1).T).argmax(1).numpy()
            own = np.array(places)[labels.codes[rows]]
            doubt_chance(
                nearest,
                own,
                list(by_value),
                f"{prompts.name}: the texts of the values of {column!r}",
            )
            return
