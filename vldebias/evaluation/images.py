"""What the tasks on image embeddings share: any method, fitted on texts and perhaps on a reference, and its traces.

A method acts on the texts, on the images, or on both (`side`); whatever it is, its rows are compared with those of
"none" on the same images. A reference is other images, and like them: both are checked in blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field
from torch import Tensor
from torch.nn.functional import normalize

from vldebias.data import BLOCK, Embeddings, UnitRows, digest_of
from vldebias.errors import InvalidInputError, ReferenceWarning, warn
from vldebias.evaluation.plausible import doubt_features
from vldebias.evaluation.result import NONE, TaskProvenance
from vldebias.evaluation.task import Data, Lam, Number, Options, Prompts, Session, Share, Task
from vldebias.evaluation.texts import Texts
from vldebias.hosts.base import IMAGE, TEXT, roles_of
from vldebias.methods import METHODS, Method, Need, get_method
from vldebias.metrics.rankings import Items
from vldebias.progress import SILENT, Progress
from vldebias.prompts import PromptSet, load_prompts

if TYPE_CHECKING:
    from vldebias.edit import Edit

PAPER = (NONE, "orth", "orth-cali", "cali")  # the rows of the paper's tables
IMAGES = Data(name="images")  # those that were handed to `vldebias.evaluate`
UNLIKE = 0.05  # of the variance: how far apart means of a reference and the images may be before it is said


def _known(given: Any) -> tuple[Method | str, ...]:
    """Names of the registry, checked, and Method objects; "none", the base of every change, first."""
    listed = [given] if isinstance(given, (str, Method)) else list(given)
    return tuple({get_method(one).name: one for one in (NONE, *listed)}.values())


Methods = Annotated[tuple[Any, ...], BeforeValidator(_known)]


@dataclass(frozen=True, eq=False)
class Fitted:
    """A method as one evaluation measures it; edit None changes nothing.

    details: lam and strength of its rows. about: what the provenance says of it, with what "auto" chose.
    """

    edit: Edit | None
    details: Mapping[str, Any]
    about: Mapping[str, Any]


class ImageTask(Task):
    """Fields of the tasks that compare methods on image embeddings.

    data: what is measured. methods: names in `vldebias.methods.METHODS`; "none" is always measured first.
    lam, strength, max_loss, keep_stated, side: see `vldebias.debias`; lam is that of the methods that have none of
        their own, as "default" and "auto" have, and None the paper's; side None is what each method is for.
    reference: images for the methods that use some, with labels for those that need them (else the model's own
        zero-shot labels). Images that are measured too are left out of them.
    """

    data: Data
    methods: Methods = PAPER
    lam: Lam | None = None
    strength: Share = 1.0
    max_loss: Annotated[float, Field(gt=0, lt=1), Number] | None = None
    keep_stated: bool = True
    side: Literal["text", "image", "both"] | None = None
    reference: Data | None = None

    @property
    def splits(self) -> tuple[Data | None, ...]:
        """Return the splits whose images the figures depend on."""
        return self.data, self.reference

    def with_options(self, options: Options) -> Self:
        """Return the task with the user's methods, lam, bound and side in the place of its own."""
        names = ("methods", "lam", "max_loss", "side")
        changed = {name: value for name in names if (value := getattr(options, name)) is not None}
        task = super().with_options(options)
        return type(self).build({**dict(task), **changed}) if changed else task

    @classmethod
    def of_given(cls, session: Session, fields: Mapping[str, Any]) -> Self:
        """Return the task of the images that were handed over, with a reference and splits where there are some."""
        beside = {name: Data(name=name) for name in ("reference", "train", "val") if name in session.given}
        return super().of_given(session, {**beside, **fields, "data": IMAGES})

    def inputs(self, session: Session) -> dict[str, Any]:
        """Return images, the texts of the same model, a reference, and edits that were fitted before."""
        return {
            "images": session.embedded(self.data),
            "texts": session.texts,
            "reference": session.reference(self.reference),
            "edits": session.edits,
            "progress": session.progress,
        }

    def fingerprints(self, session: Session) -> dict[str, Any]:
        """Return those of both towers, the images of every split, the files that the user brought."""
        options = session.options
        images = options.embeddings is None
        saved = [file for folder in options.projections for file in sorted(folder.rglob("*.safetensors"))]
        files = [options.texts, options.reference, *saved]
        return {
            "texts": session.texts.fingerprint,
            "images": [session.encoder.digest, session.encoder.preprocessing] if images else None,
            "dtype": options.feature_dtype if images else None,
            "data": [session.fingerprint(split) for split in self.splits if split is not None],
            "files": [file and digest_of(file) for file in files],
        } | ({"unknown": list(options.unknown)} if options.unknown else {})

    # ---- methods ---------------------------------------------------------------------------------------------

    def fit(
        self,
        texts: Texts,
        sets: Sequence[PromptSet],
        *,
        neutral: Sequence[str] = (),
        reference: Any = None,
        edits: Mapping[str, Edit] | None = None,
    ) -> dict[str, Fitted]:
        """Fit every method of the task: name -> Fitted, "none" first, then the given edits.

        neutral: texts that a bound looks after where the sets have no class prompts of their own.
        """
        kept = () if any(s.classes for s in sets) else tuple(neutral)
        how: dict[str, Any] = {"reference": reference, "max_loss": self.max_loss, "neutral": kept}
        fitted = {m.name: self.fitted(texts.fit(sets, m, self.lam, **how)) for m in map(get_method, self.methods)}
        taken = [name for name in edits or {} if name in METHODS]
        if taken:
            raise InvalidInputError(f"edits: {taken} are names of methods; call them otherwise")
        for name, edit in (edits or {}).items():
            texts.host.check(texts.host.roles[0], edit)
            fitted[name] = self.fitted(edit)
        return fitted

    def fitted(self, edit: Edit | None, lam: float | None = None) -> Fitted:
        """Return an edit with what its rows say of it; lam: where it is swept over."""
        if edit is None and lam is None:
            return Fitted(None, {}, {})
        about: dict[str, Any] = {}
        if edit is not None:
            origin = edit.provenance
            lams = origin.lam if isinstance(origin.lam, tuple) else (origin.lam,)
            about = {"method": origin.method, "prompts": origin.prompts, "prompts_hash": origin.prompts_hash}
            about |= {"side": self.side or edit.side} | ({"labels": origin.labels} if origin.labels else {})
            about |= {"rank": edit.rank} if hasattr(edit, "rank") else {}
            about |= {"choice": origin.choice.to_dict()} if origin.choice else {}
            if lam is None and len(set(lams)) == 1 and lams[0] > 0:
                lam = lams[0]
        labelled = edit is not None and edit.provenance.labels == "given"
        details = {"lam": lam, "strength": self.strength} | ({"uses_labels": True} if labelled else {})
        return Fitted(edit, details, {**details, **about})

    def rows(self, texts: Texts, prompts: Sequence[str], edit: Edit | None) -> Tensor:
        """Return normalised rows (n, d) of prompts as a model with the edit gives them."""
        on_texts = edit if self._acts(edit, TEXT) else None
        return texts.under(prompts, on_texts, strength=self.strength, keep_stated=self.keep_stated)

    def images(self, features: UnitRows, edit: Edit | None) -> UnitRows:
        """Return unit rows (n, d) of images as a model with the edit gives them; images state nothing."""
        if edit is None or not self._acts(edit, IMAGE):
            return features
        return features.changed(lambda rows: normalize(edit.image(rows, self.strength), dim=1))

    def _acts(self, edit: Edit | None, role: str) -> bool:
        """Whether an edit acts on texts, or on images."""
        return edit is not None and role in roles_of(self.side or edit.side)

    # ---- provenance ------------------------------------------------------------------------------------------

    @staticmethod
    def check_images(images: Embeddings, texts: Texts, prompt: str) -> None:
        """Refuse features and texts of different widths; warn of features that rank nothing (`doubt_features`)."""
        width = texts.embed([prompt]).shape[1]
        if width != images.dim:
            raise InvalidInputError(
                f"image features have width {images.dim}, text embeddings {width}; expected both from one model"
            )
        doubt_features(images)

    def provenance(
        self,
        name: str,
        images: Embeddings,
        texts: Texts,
        sets: Sequence[PromptSet],
        methods: Mapping[str, Mapping[str, Any]],
        *,
        reference: Embeddings | None = None,
        **fields: Any,
    ) -> TaskProvenance:
        """Say what was measured with which model, prompts and images; fields: title, description, n, settings."""
        about = images.about
        data = {"images": about, "reference": {} if reference is None else reference.about, "texts": texts.about}
        digests = {part: one.get("digest") or one.get("data_fingerprint") for part, one in data.items()}
        side = self.side or "what each method is for"
        bounds = {} if self.max_loss is None else {"max_loss": self.max_loss}
        return TaskProvenance(
            task=name,
            model=str(about.get("model") or texts.host.model_id or "unnamed model"),
            fingerprint=texts.fingerprint,
            prompts="+".join(one.name for one in sets),
            prompts_hash="+".join(one.hash for one in sets),
            split=" ".join(str(about[key]) for key in ("data", "split") if about.get(key)) or "unnamed split",
            methods={method: dict(one) for method, one in methods.items()},
            seeds=[self.seed],
            data={part: str(one) for part, one in digests.items() if one},
            settings={**fields.pop("settings"), "side": side, "keep_stated": self.keep_stated, **bounds},
            **fields,
        )


# ---- prompt sets ---------------------------------------------------------------------------------------------


def sets_by_column(given: Any) -> dict[str, tuple[PromptSet, ...]]:
    """Return column -> prompt sets, from such a mapping; a set alone is about the column of its name.

    Raises:
        InvalidInputError: there is none.
    """
    if not isinstance(given, Mapping):
        several = () if given is None else given if isinstance(given, (list, tuple)) else (given,)
        given = {one.name: one for one in map(load_prompts, several)}
    if not given:
        raise InvalidInputError("prompts: expected a prompt set, by name or as an object")
    listed = {column: of if isinstance(of, (list, tuple)) else (of,) for column, of in given.items()}
    return {column: tuple(map(load_prompts, of)) for column, of in listed.items()}


def names_of(sets: Iterable[Prompts]) -> tuple[str, ...]:
    """Return names and files of prompt sets; those given as objects stand in the fields with their hash."""
    return tuple(str(one) for one in sets if not isinstance(one, PromptSet))


def prompts_of(sets: Iterable[Prompts]) -> tuple[str, ...]:
    """Return every text that fitting on some prompt sets embeds."""
    texts: list[str] = []
    for one in map(load_prompts, sets):
        texts += [*one.classes, *one.spurious, *chain(*one.groups), *prompts_of(one.parts or ())]
    return tuple(dict.fromkeys(texts))


# ---- a reference ---------------------------------------------------------------------------------------------


def disjoint(
    reference: Embeddings | None,
    images: Embeddings,
    progress: Progress = SILENT,
    methods: Iterable[str | Method] | None = None,
) -> tuple[Embeddings | None, dict[str, int]]:
    """Return the reference without the images that are measured, and how many of both there are.

    A reference that lies in the gallery as a whole is kept, without its labels: whoever searches a gallery has its
    images, and a method without labels learns nothing from them that it would not have when it is used.

    progress: where the counts are said. methods: those that are fitted to it; None: a reference that is measured
    itself is refused whatever it is for.

    Raises:
        InvalidInputError: another width; or nothing is left, and a method would learn from labels of what is measured.

    Warns:
        ReferenceWarning: they are unlike those that are measured (`apart`).
    """
    if reference is None:
        return None, {}
    if reference.dim != images.dim:
        raise InvalidInputError(
            f"reference: features have width {reference.dim}, those that are measured {images.dim}; "
            "expected both from one model"
        )
    new = ~_among(reference.unit, images.unit)
    counts = {"reference images": int(new.sum()), "left out of the reference, measured too": int((~new).sum())}
    if not new.any():
        fitted = None if methods is None else [get_method(one) for one in methods]
        learning = [one.name for one in fitted or () if Need.LABELS in one.needs and reference.labels]
        if fitted is not None and not learning:
            progress.say(f"reference: {len(reference)} images of the gallery itself, without labels")
            n = len(reference)
            return replace(reference, labels={}), {"reference images": n, "of the reference, measured too": n}
        raise InvalidInputError(
            f"reference: all {len(reference)} images are among those that are measured"
            + (f", and {', '.join(learning)} would learn from their labels" if learning else "")
            + "; expected others, such as those of another split; of one set of images measure the odd rows and give "
            "the even ones: evaluate(model, features[1::2], reference=features[::2], ...)"
        )
    progress.say(f"reference: {int(new.sum())} images; {int((~new).sum())} left out, since they are measured too")
    kept = reference if new.all() else reference.picked(new)
    by = apart(kept.unit, images.unit)
    if by > UNLIKE + 1 / len(kept):
        warn(
            "reference: its images are unlike those that are measured: the squared distance of the means is "
            f"{by:.2f} of the variance, within one collection hardly above 0.02; what is fitted may not carry over",
            ReferenceWarning,
        )
    return kept, counts


def apart(reference: Items, images: Items) -> float:
    """Return the squared distance of the means of two sets of features (n, d), in units of the variance of `images`.

    What sampling explains is taken off: around 0 for parts of one collection, above 0.6 where all images were moved by
    as much as they vary. It does not see that another attribute goes along.
    """
    (ours, _), (theirs, variance) = _mean_and_variance(reference), _mean_and_variance(images)
    distance = float((ours - theirs).square().sum())
    return distance / max(variance, 1e-12) - 1 / reference.shape[0] - 1 / images.shape[0]


def _mean_and_variance(rows: Items) -> tuple[Tensor, float]:
    """The mean (d,) and the mean squared distance from it, in blocks.

    They are summed about the mean of the first block, which loses no digits in a narrow cone; sums are of float64.
    """
    n, d = rows.shape
    about, total, squares = torch.empty(0), torch.zeros(d, dtype=torch.float64), 0.0
    for block in rows.split(BLOCK):
        about = about if len(about) else block.mean(0)
        off = block - about
        total += off.sum(0)
        squares += float(off.square_().sum())
    return about + total / n, squares / n - float((total / n).square().sum())


def _among(rows: UnitRows, others: UnitRows) -> NDArray[np.bool_]:
    """(n,) whether a row is one of the others, bit for bit: found by 64-bit hashes, confirmed by the rows."""
    hashes, theirs = _hashes(rows), _hashes(others)
    order = np.argsort(theirs, kind="stable")
    low, high = (np.searchsorted(theirs, hashes, side, sorter=order) for side in ("left", "right"))
    shared = np.zeros(len(rows), dtype=bool)
    undecided = np.flatnonzero(low < high)
    while len(undecided):
        for start in range(0, len(undecided), BLOCK):
            some = undecided[start : start + BLOCK]
            pair = (one.numpy().view(np.uint32) for one in (rows[some], others[order[low[some]]]))
            shared[some] = np.equal(*pair).all(axis=1)
        low[undecided] += 1
        undecided = undecided[~shared[undecided] & (low[undecided] < high[undecided])]
    return shared


def _hashes(rows: UnitRows) -> NDArray[np.uint64]:
    """(n,) the bits of each row times random odd numbers, summed: two different rows hardly ever have one sum."""
    width = rows.shape[1]
    words, size = ("u4", width) if width % 2 else ("u8", width // 2)  # two numbers at once: a fifth of the time
    by = np.random.default_rng(0).integers(1 << 63, size=size, dtype=np.uint64) * 2 + 1
    parts: list[NDArray[np.uint64]] = [np.dot(block.numpy().view(words), by) for block in rows.split()]
    return np.concatenate(parts)
