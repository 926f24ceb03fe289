"""Fit methods on text and reference images, and apply them to text and image embeddings."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, InstanceOf, PlainSerializer
from torch import Tensor
from torch.nn.functional import normalize

from vldebias.data import Embeddings
from vldebias.data.folders import left_out_of
from vldebias.data.label_values import CLASS
from vldebias.data.labels import UNKNOWN, Labels
from vldebias.data.rows import UnitRows
from vldebias.errors import InvalidInputError, warn_of_input
from vldebias.hosts import Host, resolve
from vldebias.hosts.edits import IMAGE, SIDES, TEXT
from vldebias.measure.rows import NONE, TaskProvenance
from vldebias.methods import (
    METHODS,
    Compared,
    Method,
    Need,
    Problem,
    Rerank,
    get_compared,
    get_edit_method,
    get_method,
)
from vldebias.methods.method import refuse_reranking
from vldebias.miniature.photograph_model import load_encoder
from vldebias.miniature.photographs import NAME as PHOTOGRAPHS
from vldebias.projection.edit import Edit
from vldebias.prompts import PromptSet, load_prompts
from vldebias.study.inputs import SPLITS, Inputs
from vldebias.study.split import Data
from vldebias.study.task import Task
from vldebias.utils.schema import Lam, Share

NOT_MEASURED = "labelled for the reference, not measured"
"""How a result calls its number of images whose labels methods learn from."""

if TYPE_CHECKING:
    from vldebias.methods.reference import Reference
    from vldebias.typing import Features


def _read_methods(methods: object) -> tuple[Compared, ...]:
    """Look up methods by name, and put the baseline "none" first."""
    listed = [methods] if isinstance(methods, (str, Method, Rerank)) else methods
    if not isinstance(listed, Iterable):
        raise InvalidInputError(
            f"methods: got {methods!r}; expected method names, such as [none, default]"
        )
    method_of_name = {get_compared(method).name: method for method in (NONE, *listed)}
    return tuple(method_of_name.values())


Methods = Annotated[
    tuple[str | InstanceOf[Method] | InstanceOf[Rerank], ...],
    BeforeValidator(_read_methods),
    PlainSerializer(lambda methods: [get_compared(method).name for method in methods]),
]


class ImageTask(Task):
    """Base class for tasks that compare methods on image embeddings.

    Attributes:
        data: images to measure in a suite; in Python, images are passed as an input.
        methods: names in `vldebias.methods.METHODS`; "none" is always measured first.
        lam: weight of the prompt pairs for methods that take one. If None, the method's default.
        strength: strength of the edits.
        reference: images for methods that use them, with labels for methods that need them (the
            model's zero-shot predictions by default). Images that are also measured are excluded.
    """

    ranks_results: ClassVar[bool] = False  # whether results can be re-ranked

    data: Data | None = None
    methods: Methods = (NONE, "orth", "orth-cali", "cali")  # the rows in the paper's tables
    lam: Lam | None = None
    strength: Share = 1.0
    reference: Data | None = None

    def splits(self) -> dict[str, Data]:
        """Return the data set split for each input, by input name."""
        # The measured images are called `data` in a suite, but "images" as an input.
        settings = {**dict(self), "images": self.data}
        splits = {name: settings.get(name) for name in SPLITS}
        return {name: split for name, split in splits.items() if isinstance(split, Data)}

    def prepare(self, inputs: Inputs) -> dict[str, object]:
        """Return the text encoder for the packaged photographs if they are measured.

        These photographs are shipped as embeddings, from a different model than the suite's.
        """
        is_replaced = "images" in inputs.sources or inputs.options.embeddings is not None
        if self.data is None or self.data.name != PHOTOGRAPHS or is_replaced:
            return {}
        return {"texts": resolve(load_encoder())}

    def check_sources(self, names: Container[str]) -> None:
        """Raise InvalidInputError if there are no images."""
        if "images" not in names:
            raise InvalidInputError(
                f"{self.name}: got no images; specify them under `data`, or pass features (n, d), a"
                " file, a folder or a data set"
            )

    def compared_methods(self) -> list[Compared]:
        """Return the task's methods, including unregistered ones."""
        return [get_compared(method) for method in self.methods]

    def fit(
        self,
        texts: Host,
        sets: Sequence[PromptSet],
        *,
        neutral: Sequence[str] = (),
        reference: Features | Reference | None = None,
        edits: Mapping[str, Edit] | None = None,
    ) -> dict[str, Edit | None]:
        """Fit every method that the task compares.

        Args:
            texts: the host that embeds the prompts.
            sets: prompt sets to fit the methods on, solved jointly.
            neutral: prompts whose change is bounded if the sets have no class prompts.
            reference: images for methods that use them.
            edits: name -> fitted edit.

        Returns:
            The edit for each method name, starting with "none", whose edit is None, and ending
            with `edits`.

        Raises:
            InvalidInputError: If an edit has the name of a method.
        """
        # If there are class prompts, bound the change in these instead of the neutral prompts.
        if any(prompt_set.classes for prompt_set in sets):
            neutral = ()
        fitted: dict[str, Edit | None] = {}
        for method in self.compared_methods():
            fitted_method = method
            if isinstance(method, Rerank) and self.ranks_results:
                fitted_method = get_method(method.edit)
            if fitted_method.name in fitted:
                # Re-ranking the results of a method uses that method's edit.
                fitted[method.name] = fitted[fitted_method.name]
                continue
            fitted[method.name] = fit_method(
                texts, sets, fitted_method, self.lam, reference=reference, neutral=tuple(neutral)
            )
        for name, edit in (edits or {}).items():
            # Otherwise, the rows of the edit and of the method would have the same name.
            if name in METHODS:
                raise InvalidInputError(
                    f"edits: got {name!r}, which is the name of a method; choose a different name"
                )
            # A saved edit may belong to a different model of the same width, so compare
            # fingerprints.
            texts.check(TEXT, edit)
            fitted[name] = edit
        return fitted

    def about(self, edit: Edit | None) -> dict[str, object]:
        """Return a method's provenance entry, with lam, strength and uses_labels."""
        if edit is None:
            return {}
        origin = edit.provenance
        lams = set(origin.lam) if isinstance(origin.lam, tuple) else {origin.lam}
        lam = lams.pop()
        # There is no single lambda to report if the method's parts use different ones.
        has_lam = not lams and lam > 0
        facts = {
            "method": origin.method,
            "attribute": origin.attribute,
            "attribute_hash": origin.attribute_hash,
            "labels": origin.labels,
            "lam": lam if has_lam else None,
            "strength": self.strength,
            "uses_labels": origin.labels == "given" or None,
            "side": edit.side,
            "rank": getattr(edit, "rank", None),
            "choice": origin.choice and origin.choice.model_dump(mode="json"),
        }
        return {name: value for name, value in facts.items() if value is not None}

    def rows(self, texts: Host, prompts: Sequence[str], edit: Edit | None) -> Tensor:
        """Return normalised prompt embeddings (n, d), edited unless the prompt states a value.

        Args:
            texts: the host that embeds text.
            prompts: n prompts to embed.
            edit: the edit, or None for no edit.
        """
        # An edit that only applies to images leaves text unchanged.
        edits_texts = edit is not None and TEXT in SIDES[edit.side]
        return texts.under(prompts, TEXT, edit if edits_texts else None, strength=self.strength)

    def images(self, features: UnitRows, edit: Edit | None) -> UnitRows:
        """Return normalised image features (n, d) with an edit applied.

        Args:
            features: unit rows (n, d).
            edit: the edit, or None for no edit.
        """
        if edit is None or IMAGE not in SIDES[edit.side]:
            return features
        return features.changed(lambda rows: normalize(edit.image(rows, self.strength), dim=1))

    def provenance(
        self,
        name: str,
        images: Embeddings,
        texts: Host,
        sets: Sequence[PromptSet],
        methods: Mapping[str, Mapping[str, object]],
        *,
        settings: Mapping[str, object] | None = None,
        reference: Embeddings | None = None,
        **fields: object,
    ) -> TaskProvenance:
        """Return the provenance of a block.

        Args:
            name: name of the block.
            images: the measured images.
            texts: the host of the model.
            sets: prompt sets that the methods are fitted on.
            methods: result of `about` for each method name.
            settings: settings only known after measuring; the task's own settings are added.
            reference: images used to fit methods.
            fields: `title`, `description` and `n` for `TaskProvenance`.
        """
        model = images.about.get("model") or texts.model_id or "unnamed model"
        known = dict(settings or {})
        left_out = left_out_of(images.about)
        if left_out:
            # Findings are shown first in the terminal and on the page.
            known["findings"] = left_out
        # Record the digest of each input that has one.
        digests = {"images": _digest_of(images.about)}
        if reference is not None:
            digests["reference"] = _digest_of(reference.about)
        digests["texts"] = getattr(texts, "digest", None)
        known_digests = {part: str(digest) for part, digest in digests.items() if digest}
        return TaskProvenance.model_validate(
            {
                "task": name,
                "model": str(model),
                "fingerprint": texts.weights,
                "attribute": "+".join(prompt_set.name for prompt_set in sets),
                "attribute_hash": "+".join(prompt_set.hash for prompt_set in sets),
                "split": split_of(images),
                "methods": {method: dict(facts) for method, facts in methods.items()},
                "seeds": [self.seed],
                "data": known_digests,
                "settings": self.settings(known),
                **fields,
            }
        )


def _digest_of(facts: Mapping[str, object]) -> object:
    return facts.get("digest") or facts.get("data_fingerprint")


def split_of(images: Embeddings) -> str:
    """Return the name of the images' data set and split, for the provenance."""
    words = [str(images.about[key]) for key in ("data", "split") if images.about.get(key)]
    return " ".join(words) or "unnamed split"


def facts_of(images: Embeddings) -> dict[str, object]:
    """Return metadata about the images for the provenance, without local paths."""
    return {key: value for key, value in images.about.items() if key not in ("cache", "file")}


def fit_method(
    texts: Host,
    prompt_set: PromptSet | Sequence[PromptSet],
    method: str | Compared,
    lam: float | None = None,
    *,
    reference: Features | Reference | None = None,
    neutral: tuple[str, ...] = (),
) -> Edit | None:
    """Fit a method on text, or return None if the method is "none".

    Args:
        texts: the host that embeds text.
        prompt_set: prompt sets that the method is fitted on.
        method: the method or its name.
        lam: weight of the prompt pairs, for methods that take one.
        reference: images for methods that use them.
        neutral: prompts whose change is bounded.
    """
    if isinstance(method, Rerank):
        refuse_reranking(method.name)
    chosen = get_edit_method(method)
    if chosen.name == NONE:
        return None
    if not chosen.declaration.has_lam:
        lam = None
    problem = Problem(texts, prompt_set, lam=lam, reference=reference, neutral=neutral)
    return problem.fit(chosen, TEXT)


def sets_by_column(attribute: object) -> dict[str, tuple[PromptSet, ...]]:
    """Return the prompt sets for each column.

    `attribute` may be a mapping from columns to sets. For sets without a mapping, the set names are
    used as columns.

    Raises:
        InvalidInputError: If there is no prompt set.
    """
    if isinstance(attribute, Mapping):
        sets_of_column = {column: _load_several(value) for column, value in attribute.items()}
    else:
        sets_of_column = {loaded.name: (loaded,) for loaded in _load_several(attribute)}
    if not sets_of_column:
        raise InvalidInputError(
            "attribute: expected a prompt set, by name or as an object, got none"
        )
    return sets_of_column


def _load_several(attribute: object) -> tuple[PromptSet, ...]:
    """Load one or several prompt sets. None gives an empty tuple."""
    if attribute is None:
        return ()
    listed = attribute if isinstance(attribute, (list, tuple)) else (attribute,)
    return tuple(map(load_prompts, listed))


def disjoint(
    reference: Embeddings | None,
    images: Embeddings,
    methods: Iterable[str | Compared] | None = None,
) -> tuple[Embeddings | None, dict[str, int]]:
    """Remove measured images from the reference, and count the images that were kept and removed.

    If all reference images are measured, they are kept without their labels. The gallery is
    available at search time, so a method that does not need labels may use it.

    Args:
        reference: images used to fit methods.
        images: images that the task measures.
        methods: methods that are fitted to the reference. If None, a reference that is measured in
            full is rejected.

    Raises:
        InvalidInputError: If all images of the reference are measured, and a method would learn
            from their labels.
    """
    if reference is None:
        return None, {}
    if reference.unit.shape[1] != images.unit.shape[1]:
        raise InvalidInputError(
            f"reference: got features (n, {reference.unit.shape[1]}); expected"
            f" (n, {images.unit.shape[1]}), the width of the measured images"
        )
    is_new = ~_are_in(_hashes(reference.unit), _hashes(images.unit))
    n_new = int(is_new.sum())
    n_measured = int((~is_new).sum())
    if n_new:
        new_images = reference.select(is_new) if n_measured else reference
        return new_images, {
            "reference images": n_new,
            "left out of the reference, measured too": n_measured,
        }
    # Refuse methods that use labels, which would be evaluated on their training data.
    learning = []
    for method in map(get_compared, methods or ()):
        if Need.LABELS in method.declaration.needs and reference.labels:
            learning.append(method.name)
    if methods is None or learning:
        reason = ""
        if learning:
            reason = f", so that {', '.join(learning)} would learn from their labels"
        raise InvalidInputError(
            f"reference: got {n_measured} images, and all of them are measured{reason}; expected"
            " different images, such as a different split. Alternatively, measure every second"
            " image: evaluate(model, features[1::2], reference=features[::2], ...)"
        )
    # Remove the labels, so that no method can learn from them by mistake.
    if CLASS in reference.labels and reference.column(CLASS).known.any():
        warn_of_input(
            f"reference: the labels under {CLASS!r} of {int(reference.column(CLASS).known.sum())}"
            f" of {n_measured} images are not used, because all of these images are measured; pass"
            " a folder with other images as reference"
        )
    return replace(reference, labels={}), {
        "reference images": n_measured,
        "of the reference, measured too": n_measured,
    }


def taught_apart(
    reference: Embeddings | None, images: Embeddings, methods: Iterable[str | Compared], seed: int
) -> tuple[Embeddings | None, Embeddings, dict[str, int]]:
    """Apply `disjoint`, unless measured images must be left out so that their labels can be used.

    If all reference images are measured and the classes of some are labelled, these are used to fit
    methods and are not measured. At least half of the images are still measured: if more are
    labelled, the seed selects the labels that are used.

    Args:
        reference: images used to fit methods, with the column "class" if classes are labelled.
        images: images that the task measures.
        methods: methods that are fitted to the reference.
        seed: seed of the selection.

    Returns:
        The reference, the images to measure, and the numbers of reference images.
    """
    learns = any(Need.LABELS in get_compared(method).declaration.needs for method in methods)
    if reference is not None and CLASS in reference.labels and not learns:
        classes = reference.column(CLASS)
        labelled = np.flatnonzero(classes.known)
        hashes = _hashes(reference.unit)
        measured = _hashes(images.unit)
        if len(labelled) and _are_in(hashes, measured).all():
            most = len(images) // 2
            if len(labelled) > most:
                labelled = np.random.default_rng(seed).choice(labelled, most, replace=False)
            codes = np.full(len(reference), UNKNOWN)
            codes[labelled] = classes.codes[labelled]
            labels = {CLASS: Labels(codes, classes.names)}
            images = images.select(~_are_in(measured, hashes[labelled]))
            counts = {"reference images": len(reference), NOT_MEASURED: len(labelled)}
            return replace(reference, labels=labels), images, counts
    reference, counts = disjoint(reference, images, methods)
    return reference, images, counts


def _are_in(hashes: NDArray[np.int64], known: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return a mask (n,) of the hashes that are known; at least one hash must be known."""
    # np.isin would allocate about ten arrays of this size.
    ordered = np.sort(known)
    return ordered[np.searchsorted(ordered, hashes) % len(ordered)] == hashes


def _hashes(rows: UnitRows) -> NDArray[np.int64]:
    """Return 64-bit hashes (n,) of the bytes in each row.

    Content is compared instead of names, because the same image may have several names.
    """
    hashes = np.empty(len(rows), np.int64)
    place = 0
    for block in rows.split():
        for row in block.numpy():
            hashes[place] = hash(row.tobytes())
            place += 1
    return hashes
