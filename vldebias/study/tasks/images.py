"""Fit methods on texts and a reference, and apply them to texts and image embeddings."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, PlainSerializer
from torch import Tensor
from torch.nn.functional import normalize

from vldebias.data import Embeddings, UnitRows
from vldebias.data.folders import left_out_of
from vldebias.errors import InvalidInputError
from vldebias.hosts import Host, resolve
from vldebias.hosts.host import IMAGE, SIDES, TEXT
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
from vldebias.report.result import NONE, TaskProvenance
from vldebias.study.inputs import SPLITS, Data, Inputs
from vldebias.study.task import Task
from vldebias.utils.schema import Lam, Share


def _read_methods(methods: Any) -> tuple[Compared | str, ...]:
    """Read names of the registry and Method objects; "none", the base of every change, comes
    first."""
    listed = [methods] if isinstance(methods, (str, Method, Rerank)) else methods
    if not isinstance(listed, Iterable):
        raise InvalidInputError(f"methods: got {methods!r}; expected names, as [none, default]")
    method_of_name = {get_compared(method).name: method for method in (NONE, *listed)}
    return tuple(method_of_name.values())


Methods = Annotated[
    tuple[Any, ...],
    BeforeValidator(_read_methods),
    PlainSerializer(lambda methods: [get_compared(method).name for method in methods]),
]


class ImageTask(Task):
    """Hold the settings that tasks comparing methods on image embeddings share.

    data: what a suite measures; images passed from Python are an input. methods: names in
    `vldebias.methods.METHODS`; "none" is always measured first. lam, strength: see
    `vldebias.debias`; lam is that of the methods that have none, as "default" has, and None the
    paper's. reference: images for the methods that use some, with labels for those that need them
    (else the model's zero-shot labels). Images that are measured too are left out of them.
    """

    ranks_results: ClassVar[bool] = False  # whether it has results to re-rank

    data: Data | None = None
    methods: Methods = (NONE, "orth", "orth-cali", "cali")  # the rows of the paper's tables
    lam: Lam | None = None
    strength: Share = 1.0
    reference: Data | None = None

    def splits(self) -> dict[str, Data]:
        """Return name of an input -> the split of a data set that the settings name."""
        # A suite calls the measured images `data`, inputs call them "images".
        settings = {**dict(self), "images": self.data}
        splits = {name: settings.get(name) for name in SPLITS}
        return {name: split for name, split in splits.items() if isinstance(split, Data)}

    def prepare(self, inputs: Inputs) -> dict[str, Any]:
        """Return the text encoder of the packaged photographs if they are what is measured.

        They ship as embeddings of their own model, so the suite's model cannot embed their texts.
        """
        is_replaced = "images" in inputs.sources or inputs.options.embeddings is not None
        if self.data is None or self.data.name != PHOTOGRAPHS or is_replaced:
            return {}
        return {"texts": resolve(load_encoder())}

    def check_sources(self, names: Container[str]) -> None:
        """Raise InvalidInputError where no images are named."""
        if "images" not in names:
            raise InvalidInputError(
                f"{self.name}: got no images; name them under `data`, or give features (n, d), a"
                " file, a folder or a data set"
            )

    def compared_methods(self) -> list[Compared]:
        """Return the methods of the task, among them objects that nobody registered."""
        return [get_compared(method) for method in self.methods]

    def fit(
        self,
        texts: Host,
        sets: Sequence[PromptSet],
        *,
        neutral: Sequence[str] = (),
        reference: Any = None,
        edits: Mapping[str, Edit] | None = None,
    ) -> dict[str, Edit | None]:
        """Fit every method of the task.

        Args:
            texts: what embeds the prompts.
            sets: what the methods are fitted on, solved jointly.
            neutral: texts whose change is bounded where the sets have no class prompts.
            reference: images for the methods that use some.
            edits: name -> an edit that was fitted before.

        Returns:
            Name -> edit: "none", which has None, first, and the given edits last.

        Raises:
            InvalidInputError: an edit is called like a method.
        """
        # Class prompts bound a method where there are some: they are what the set is about.
        if any(prompts.classes for prompts in sets):
            neutral = ()
        fitted: dict[str, Edit | None] = {}
        for method in self.compared_methods():
            fitted_method = method
            if isinstance(method, Rerank) and self.ranks_results:
                fitted_method = get_method(method.edit)
            if fitted_method.name in fitted:
                # A re-ranking of what another method found: the edit is fitted once for both.
                fitted[method.name] = fitted[fitted_method.name]
                continue
            fitted[method.name] = fit_method(
                texts, sets, fitted_method, self.lam, reference=reference, neutral=tuple(neutral)
            )
        for name, edit in (edits or {}).items():
            # Rows of both would have the same name.
            if name in METHODS:
                raise InvalidInputError(
                    f"edits: got {name!r}, the name of a method; expected another name"
                )
            # A saved edit may be of another model of the same width: its fingerprint is compared.
            texts.check(TEXT, edit)
            fitted[name] = edit
        return fitted

    def about(self, edit: Edit | None) -> dict[str, Any]:
        """Return the entry of a method in the provenance, from which its rows have lam, strength
        and uses_labels."""
        if edit is None:
            return {}
        origin = edit.provenance
        lams = set(origin.lam) if isinstance(origin.lam, tuple) else {origin.lam}
        lam = lams.pop()
        # Parts with lambdas of their own have no single one to show.
        has_lam = not lams and lam > 0
        facts = {
            "method": origin.method,
            "prompts": origin.prompts,
            "prompts_hash": origin.prompts_hash,
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
        """Return the normalised rows (n, d) of prompts from a model with the edit; stated
        attributes are kept.

        Args:
            texts: the model, which embeds texts.
            prompts: n texts.
            edit: the edit; None: none.
        """
        # An edit of images alone leaves the texts as they are.
        edits_texts = edit is not None and TEXT in SIDES[edit.side]
        return texts.under(prompts, TEXT, edit if edits_texts else None, strength=self.strength)

    def images(self, features: UnitRows, edit: Edit | None) -> UnitRows:
        """Return the unit rows (n, d) of images from a model with the edit; images state no
        attribute.

        Args:
            features: unit rows (n, d).
            edit: the edit; None: none.
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
        methods: Mapping[str, Mapping[str, Any]],
        *,
        settings: Mapping[str, Any] | None = None,
        reference: Embeddings | None = None,
        **fields: Any,
    ) -> TaskProvenance:
        """Return what was measured with which model, prompts and images.

        Args:
            name: of the block. images, texts, sets, reference: what was measured.
            images: images that were measured.
            texts: the model.
            sets: prompt sets.
            methods: name -> `about`.
            settings: what only measuring knows; the task's own settings are among them.
            reference: images that methods were fitted to.
            fields: title, description and n of `TaskProvenance`.
        """
        model = images.about.get("model") or texts.model_id or "unnamed model"
        known = dict(settings or {})
        left_out = left_out_of(images.about)
        if left_out:
            # Which the terminal and the page say first.
            known["findings"] = [*known.get("findings", ()), *left_out]
        # The digest of each input, as far as it has one.
        digests = {"images": _digest_of(images.about)}
        if reference is not None:
            digests["reference"] = _digest_of(reference.about)
        digests["texts"] = getattr(texts, "digest", None)
        known_digests = {part: str(digest) for part, digest in digests.items() if digest}
        return TaskProvenance(
            task=name,
            model=str(model),
            fingerprint=texts.weights,
            prompts="+".join(prompts.name for prompts in sets),
            prompts_hash="+".join(prompts.hash for prompts in sets),
            split=split_of(images),
            methods={method: dict(facts) for method, facts in methods.items()},
            seeds=[self.seed],
            data=known_digests,
            settings=self.settings(known),
            **fields,
        )


def _digest_of(facts: Mapping[str, Any]) -> Any:
    return facts.get("digest") or facts.get("data_fingerprint")


def split_of(images: Embeddings) -> str:
    """Return the data set and the split of images, as a provenance names them."""
    words = [str(images.about[key]) for key in ("data", "split") if images.about.get(key)]
    return " ".join(words) or "unnamed split"


def facts_of(images: Embeddings) -> dict[str, Any]:
    """Return what a provenance tells of images: not where this machine keeps them."""
    return {key: value for key, value in images.about.items() if key not in ("cache", "file")}


def fit_method(
    texts: Host,
    prompts: PromptSet | Sequence[PromptSet],
    method: str | Compared,
    lam: float | None = None,
    **options: Any,
) -> Edit | None:
    """Fit a method on texts; "none" gives None. lam: for methods that take one. options: arguments
    of `Problem`.

    Args:
        texts: the model, which embeds texts.
        prompts: what the method is fitted on.
        method: the method or its name.
        lam: for methods that take one.
        options: keywords of `Problem`.
    """
    if isinstance(method, Rerank):
        refuse_reranking(method.name)
    chosen = get_edit_method(method)
    if chosen.name == NONE:
        return None
    if not chosen.declaration.has_lam:
        lam = None
    problem = Problem(texts, prompts, lam=lam, **options)
    return problem.fit(chosen, TEXT)


def sets_by_column(prompts: Any) -> dict[str, tuple[PromptSet, ...]]:
    """Return column -> prompt sets of a mapping, or of sets by their names.

    Raises:
        InvalidInputError: there is none.
    """
    if isinstance(prompts, Mapping):
        sets_of_column = {column: _load_several(value) for column, value in prompts.items()}
    else:
        sets_of_column = {loaded.name: (loaded,) for loaded in _load_several(prompts)}
    if not sets_of_column:
        raise InvalidInputError("prompts: expected a prompt set, by name or as an object")
    return sets_of_column


def _load_several(prompts: Any) -> tuple[PromptSet, ...]:
    """Return the prompt sets of None, a set, or a list of them."""
    if prompts is None:
        return ()
    listed = prompts if isinstance(prompts, (list, tuple)) else (prompts,)
    return tuple(map(load_prompts, listed))


def disjoint(
    reference: Embeddings | None, images: Embeddings, methods: Iterable[str | Method] | None = None
) -> tuple[Embeddings | None, dict[str, int]]:
    """Return the reference without the images that are measured, and the numbers of reference
    images kept and removed.

    A reference that lies in the gallery as a whole is kept, without its labels: the images of a
    gallery are available when it is searched, so a method without labels learns nothing from them
    that it could not learn in use.

    Args:
        reference: images that methods are fitted to.
        images: images that are measured.
        methods: those that are fitted to it; None: a reference that is measured itself is refused
            for any purpose.

    Raises:
        InvalidInputError: nothing is left, and a method would learn from labels of what is
            measured.
    """
    if reference is None:
        return None, {}
    # Sorted hashes of the measured images, in which the reference is looked up. By
    # content, since files of one picture have many names.
    measured = np.sort(_hashes(images.unit))
    hashes = _hashes(reference.unit)
    # np.isin makes ten arrays of both.
    is_new = measured[np.searchsorted(measured, hashes) % len(measured)] != hashes
    n_new = int(is_new.sum())
    n_measured = int((~is_new).sum())
    if n_new:
        kept = reference.picked(is_new) if n_measured else reference
        return kept, {
            "reference images": n_new,
            "left out of the reference, measured too": n_measured,
        }
    # A method that uses labels would be tested on what it was taught. Without labels, images of the
    # gallery may be used: they are there when it is searched.
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
            " others, such as another split. Or measure every second image: evaluate(model,"
            " features[1::2], reference=features[::2], ...)"
        )
    # Without its labels, so that nothing can learn from them by mistake.
    return replace(reference, labels={}), {
        "reference images": n_measured,
        "of the reference, measured too": n_measured,
    }


def _hashes(rows: UnitRows) -> NDArray[np.int64]:
    """Return a hash of 64 bits (n,) of the bytes of each row."""
    hashes = np.empty(len(rows), np.int64)
    place = 0
    for block in rows.split():
        for row in block.numpy():
            hashes[place] = hash(row.tobytes())
            place += 1
    return hashes
