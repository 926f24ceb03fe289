"""Hold the image features that methods are fitted to, and label them: by given labels or by
zero-shot predictions."""

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

_ROWS = 1024  # of features that are read at once


@dataclass(frozen=True, eq=False)
class Reference:
    """Hold image features, and their labels if there are any.

    Attributes:
        features: (n, d) tensor or ndarray, or an iterable of batches (b, d); normalised or not.
        labels: column -> a value for each of the n images, as strings (None and "" are unknown) or
            `data.Labels`; only used by methods that need labelled images (`labelled`).
        within_classes: compare means within pseudo-classes, if the prompt set has at least two
            classes: groups score alike within a class (worst group). False: groups score alike
            overall (shares of a ranking).
    """

    features: Any
    labels: Mapping[str, Any] = field(default_factory=dict)
    within_classes: bool = True

    def batches(self) -> Iterator[Tensor]:
        """Yield the features as L2-normalised float64 batches (b, d).

        Raises:
            InvalidInputError: features are not floats (n, d), not finite, or zero in a row.
        """
        whole = getattr(
            self.features, "features", self.features
        )  # data.Embeddings hold them under that name
        parts = [whole] if hasattr(whole, "shape") else whole
        for some in (
            part[start : start + _ROWS]
            for part in parts
            for start in range(0, max(1, len(part)), _ROWS)
        ):
            rows = (
                some.detach().cpu() if isinstance(some, Tensor) else torch.from_numpy(some.copy())
            )
            if rows.ndim != 2 or not rows.is_floating_point():
                came = f"{rows.dtype} {tuple(rows.shape)}"
                raise InvalidInputError(f"reference: expected image features (n, d), got {came}")
            lengths = rows.double().norm(dim=1, keepdim=True)
            if bad := int((~lengths.isfinite() | (lengths == 0)).sum()):
                raise InvalidInputError(
                    f"reference: {bad} of {len(rows)} image features are zero or not finite"
                )
            yield rows.double() / lengths


def zero_shot(rows: Tensor, texts: Tensor) -> Tensor:
    """Return the zero-shot value (b,) of each unit row (b, d) among unit texts (a, d).

    Raises:
        InvalidInputError: rows and texts have different widths.
    """
    if rows.shape[1] != texts.shape[1]:
        raise InvalidInputError(
            f"reference: image features have width {rows.shape[1]}, texts {texts.shape[1]}; embed"
            " both with one model"
        )
    return (rows @ texts.T).argmax(1)


@dataclass(frozen=True, eq=False)
class Labelled:
    """Hold unit rows (n, d) float64, and the index (n, attributes) of their values; -1 is
    unknown."""

    rows: Tensor
    codes: Tensor

    def one_hot(self) -> tuple[Tensor, Tensor]:
        """Return the rows (m, d) whose attributes are all known, and their values one-hot encoded
        (m, all values)."""
        known = (self.codes >= 0).all(1)
        return self.rows[known], torch.cat(
            [one_hot(own).double() for own in self.codes[known].T], 1
        )

    def known(self) -> list[tuple[Tensor, Tensor]]:
        """Return for each attribute the rows whose value is known, and their codes."""
        return [(self.rows[codes >= 0], codes[codes >= 0]) for codes in self.codes.T]


def labelled(problem: Problem, role: str) -> Labelled:
    """Return the reference images of a problem with the values of its attributes.

    A column of labels is used for an attribute if each of its names is a value of it, or contains
    one of its words; of several columns the one that is called like the prompt set. Without labels
    an image gets the value of the nearest text.

    Raises:
        InvalidInputError: labels that fit no attribute, have another length, or have one value
            only.
    """
    given = problem.reference.labels
    rows = torch.cat([*problem.reference.batches()])
    columns = []
    for prompts in problem.attributes:
        values = f"the values {[*prompts.attributes]} of {prompts.name}"
        fitting = {
            name: codes
            for name, one in given.items()
            if (codes := _coded(one, prompts)) is not None
        }
        if given and not fitting:
            raise InvalidInputError(
                f"reference: expected a column of labels with {values}, got {[*given]}; rename the"
                " labels, or leave them out to use zero-shot labels"
            )
        own = fitting.get(prompts.name, next(iter(fitting.values()), None))
        own = zero_shot(rows, problem.zero_shot(prompts, role)) if own is None else own
        if len(own) != len(rows):
            raise InvalidInputError(
                f"reference: expected a label for each of {len(rows)} images, got {len(own)}"
            )
        if len(own[own >= 0].unique()) < 2:
            raise InvalidInputError(
                f"reference: expected labelled images of two or more of {values}"
            )
        columns.append(own)
    return Labelled(rows, torch.stack(columns, 1))


def _coded(given: Any, prompts: PromptSet) -> Tensor | None:
    """Return the value of each label of a column, -1 where it is unknown; None if no labels of the
    attribute."""
    from vldebias.data.tables import Labels

    column = Labels.of_array(given)
    places = [place_of(name, prompts) if n else -1 for name, n in column.counts.items()]
    if None in places or len({*places} - {-1}) < 2:
        return None
    return torch.tensor([*places, -1])[column.codes]


def place_of(name: str, prompts: PromptSet) -> int | None:
    """Return the index of the attribute value that a label names; None if it names none, or
    several."""
    values = list(prompts.attributes)
    alike = [value for value in values if value.casefold() == name.casefold()] or prompts.values_in(
        name
    )
    return values.index(alike[0]) if len(alike) == 1 else None


def stating(prompts: PromptSet) -> tuple[list[str], Tensor, Tensor]:
    """Return the n texts of the groups that name one value, and the indices (n,) of their values
    and groups."""
    values = [*prompts.attributes]
    texts = [(text, k) for k, group in enumerate(prompts.groups) for text in group]
    said = [
        (text, values.index(own[0]), k)
        for text, k in texts
        if len(own := prompts.values_in(text)) == 1
    ]
    codes = torch.tensor([codes for _, *codes in said], dtype=torch.long).view(-1, 2)
    return [text for text, *_ in said], codes[:, 0], codes[:, 1]


def stated_texts(problem: Problem, role: str) -> Labelled:
    """Return the texts of the groups of every attribute, each with the one value that it names."""
    said = [stating(prompts) for prompts in problem.attributes]
    codes = torch.block_diag(*(values[:, None] + 1 for _, values, _ in said)) - 1
    return Labelled(problem.host.embed([text for texts, *_ in said for text in texts], role), codes)
