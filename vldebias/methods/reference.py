"""Hold the image features that methods are fitted to, and label them: by given labels or by zero-shot predictions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from vldebias.errors import InvalidInputError
from vldebias.prompts import PromptSet

if TYPE_CHECKING:
    from vldebias.methods.method import Problem

LOGIT_SCALE = 100.0  # inverse temperature of zero-shot probabilities, as in CLIP models


@dataclass(frozen=True, eq=False)
class Reference:
    """Hold image features, and their labels if there are any.

    Attributes:
        features: (n, d) tensor or ndarray, or an iterable of batches (b, d); normalised or not.
        labels: column -> a value for each of the n images, as strings (None and "" are unknown) or an object with
            `codes` and `names`; only used by methods that need labelled images (`labelled`).
        within_classes: compare means within pseudo-classes, if the prompt set has at least two classes: groups score
            alike within a class (worst group). False: groups score alike overall (shares of a ranking).
    """

    features: Any
    labels: Mapping[str, Any] = field(default_factory=dict)
    within_classes: bool = True

    def batches(self, size: int = 1024) -> Iterator[Tensor]:
        """Yield the features as L2-normalised float64 batches (b, d).

        Raises:
            InvalidInputError: features are not floats (n, d), not finite, or zero in a row.
        """
        whole = getattr(self.features, "features", self.features)  # data.Embeddings hold them under that name
        parts = [whole] if hasattr(whole, "shape") else whole
        for some in (part[start : start + size] for part in parts for start in range(0, len(part), size)):
            rows = some.detach().cpu() if isinstance(some, Tensor) else torch.from_numpy(some.copy())
            if rows.ndim != 2 or not rows.is_floating_point():
                came = f"{rows.dtype} {tuple(rows.shape)}"
                raise InvalidInputError(f"reference: expected image features (n, d), got {came}")
            lengths = rows.double().norm(dim=1, keepdim=True)
            if bad := int((~lengths.isfinite() | (lengths == 0)).sum()):
                raise InvalidInputError(f"reference: {bad} of {len(rows)} image features are zero or not finite")
            yield rows.double() / lengths


def zero_shot(rows: Tensor, texts: Tensor) -> tuple[Tensor, Tensor]:
    """Return the zero-shot value (b,) of each unit row (b, d) among unit texts (a, d), and its probability (b,).

    Raises:
        InvalidInputError: rows and texts have different widths.
    """
    if rows.shape[1] != texts.shape[1]:
        raise InvalidInputError(
            f"reference: image features have width {rows.shape[1]}, texts {texts.shape[1]}; embed both with one model"
        )
    probability, value = (LOGIT_SCALE * rows @ texts.T).softmax(1).max(1)
    return value, probability


@dataclass(frozen=True, eq=False)
class Labelled:
    """Hold unit rows (n, d) float64, and the index (n, attributes) of their values; -1 is unknown.

    sizes: the number of values of each attribute.
    """

    rows: Tensor
    codes: Tensor
    sizes: tuple[int, ...]

    def one_hot(self) -> tuple[Tensor, Tensor]:
        """Return the rows (m, d) whose attributes are all known, and their values one-hot encoded (m, all values)."""
        known = (self.codes >= 0).all(1)
        columns = [one_hot(own, size).double() for own, size in zip(self.codes[known].T, self.sizes, strict=True)]
        return self.rows[known], torch.cat(columns, 1)

    def known(self) -> list[tuple[Tensor, Tensor]]:
        """Return for each attribute the rows whose value is known, and their codes."""
        return [(self.rows[codes >= 0], codes[codes >= 0]) for codes in self.codes.T]


def labelled(problem: Problem, role: str) -> Labelled:
    """Return the reference images of a problem with the values of its attributes.

    A column of labels is used for an attribute if each of its names is a value of it, or contains one of its words; of
    several columns the one that is called like the prompt set. Without labels an image gets the value of the nearest
    text.

    Raises:
        InvalidInputError: labels that fit no attribute, have another length, or have one value only.
    """
    reference = problem.reference
    assert reference is not None  # `Method.check` refuses that
    rows, codes = torch.cat(list(reference.batches())), []
    for prompts in problem.attributes:
        values = list(prompts.attributes)
        if reference.labels:
            fitting = {column: found for column, given in reference.labels.items() if (found := _coded(given, prompts))}
            if not fitting:
                raise InvalidInputError(
                    f"reference: expected a column of labels with the values {values} of {prompts.name}, got "
                    f"{list(reference.labels)}; rename the labels, or leave them out to use zero-shot labels"
                )
            own = torch.tensor(fitting.get(prompts.name, next(iter(fitting.values()))))
            if len(own) != len(rows):
                raise InvalidInputError(f"reference: expected a label for each of {len(rows)} images, got {len(own)}")
        else:
            own = zero_shot(rows, problem.zero_shot(prompts, role))[0]
        if len(own[own >= 0].unique()) < 2:
            raise InvalidInputError(f"{prompts.name}: expected labelled images of two or more of the values {values}")
        codes.append(own)
    return Labelled(rows, torch.stack(codes, 1), tuple(len(s.attributes) for s in problem.attributes))


def _coded(given: Any, prompts: PromptSet) -> list[int]:
    """Return the value of each label of a column, -1 if it is None, NaN or ""; [] if no labels of the attribute."""
    if hasattr(given, "codes") and hasattr(given, "names"):
        given = [given.names[code] if code >= 0 else None for code in torch.as_tensor(given.codes).tolist()]
    names = ["" if value is None or value != value else str(value) for value in given]
    places: dict[str, Any] = {name: place_of(name, prompts) for name in {*names} - {""}}
    seen = {*places.values()}
    return [places.get(name, -1) for name in names] if len(seen) > 1 and None not in seen else []


def place_of(name: str, prompts: PromptSet) -> int | None:
    """Return the index of the attribute value that a label names; None if it names none, or several."""
    values = list(prompts.attributes)
    alike = [value for value in values if value.casefold() == name.casefold()] or prompts.values_in(name)
    return values.index(alike[0]) if len(alike) == 1 else None


def stating(prompts: PromptSet) -> list[tuple[str, int, int]]:
    """Return the texts of the groups that name one value, each with the index of its value and of its group."""
    values, named = list(prompts.attributes), prompts.values_in
    texts = [(text, k) for k, group in enumerate(prompts.groups) for text in group]
    return [(text, values.index(own[0]), k) for text, k in texts if len(own := named(text)) == 1]


def stated_texts(problem: Problem, role: str) -> Labelled:
    """Return the texts of the groups of every attribute, each with the one value that it names."""
    said = [(text, k, value) for k, prompts in enumerate(problem.attributes) for text, value, _ in stating(prompts)]
    codes = torch.full((len(said), len(problem.attributes)), -1)
    for row, (_, k, value) in enumerate(said):
        codes[row, k] = value
    rows = problem.host.embed([text for text, _, _ in said], role)
    return Labelled(rows, codes, tuple(len(s.attributes) for s in problem.attributes))
