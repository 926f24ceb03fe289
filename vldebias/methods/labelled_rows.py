"""Label the rows that a method is fitted to: images from columns or zero-shot, and stated texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from vldebias.data.label_values import CLASS
from vldebias.errors import InvalidInputError
from vldebias.methods.method import Problem
from vldebias.methods.reference import place_of, stating, zero_shot
from vldebias.prompts import PromptSet

if TYPE_CHECKING:
    from vldebias.data.labels import Labels
    from vldebias.typing import ColumnLike


@dataclass(frozen=True, eq=False)
class Labelled:
    """Store rows and their attribute values.

    Attributes:
        rows: (n, d) unit rows, float64.
        codes: (n, attributes), the index of each value, or -1 if unknown.
    """

    rows: Tensor
    codes: Tensor

    def one_hot(self) -> tuple[Tensor, Tensor]:
        """Return the rows (m, d) whose attributes are all known, and their values (m, all values).

        The values are one-hot encoded.
        """
        known = (self.codes >= 0).all(1)
        columns = [one_hot(codes).double() for codes in self.codes[known].T]
        return self.rows[known], torch.cat(columns, 1)

    def known(self) -> list[tuple[Tensor, Tensor]]:
        """Return, for each attribute, the rows with a known value and their codes."""
        return [(self.rows[codes >= 0], codes[codes >= 0]) for codes in self.codes.T]


def labelled(problem: Problem, role: str) -> Labelled:
    """Return a problem's reference images with their attribute values.

    A label column is used for an attribute if every name in the column is one of the attribute's
    values, or contains a word for one. If there are several such columns, the one named after the
    prompt set is used. Without labels, each image gets the value of the nearest text.

    Args:
        problem: the problem with reference images.
        role: the role of the text embeddings.

    Raises:
        InvalidInputError: If labels do not match an attribute, have the wrong length, or contain
            only one value.
    """
    rows = torch.cat([*problem.images.batches()])
    columns = []
    for prompt_set in problem.attributes:
        codes = _given_codes(problem.images.labels, prompt_set)
        if codes is None:
            codes = zero_shot(rows, problem.zero_shot(prompt_set, role))
        if len(codes) != len(rows):
            raise InvalidInputError(
                f"reference: expected a label for each of {len(rows)} images, got {len(codes)}"
            )
        # With only one value, there would be no difference to fit, and an eraser would fit noise.
        if len(codes[codes >= 0].unique()) < 2:
            raise InvalidInputError(
                "reference: expected labelled images of at least two of the values"
                f" {[*prompt_set.attributes]} of {prompt_set.name}"
            )
        columns.append(codes)
    return Labelled(rows, torch.stack(columns, 1))


def _given_codes(labels: Mapping[str, Labels | ColumnLike], prompt_set: PromptSet) -> Tensor | None:
    """Return each image's value (n,) according to the label column for an attribute.

    Returns None without labels.

    Raises:
        InvalidInputError: If there are labels, but none for the attribute.
    """
    # Labels of classes may contain a value, such as "old man", but do not describe the attribute.
    labels = {name: column for name, column in labels.items() if name != CLASS}
    if not labels:
        return None
    codes_of_column = {}
    for name, column_labels in labels.items():
        codes = _coded(column_labels, prompt_set)
        if codes is not None:
            codes_of_column[name] = codes
    if not codes_of_column:
        raise InvalidInputError(
            f"reference: expected a label column with the values {[*prompt_set.attributes]} of"
            f" {prompt_set.name}, got {[*labels]}; rename the labels, or omit them to use zero-shot"
            " labels"
        )
    # If both "race" and "race7" contain values of the set, use the column with the set's name.
    if prompt_set.name in codes_of_column:
        return codes_of_column[prompt_set.name]
    return next(iter(codes_of_column.values()))


def _coded(labels: Labels | ColumnLike, prompt_set: PromptSet) -> Tensor | None:
    """Return the value for each label in a column, or -1 if unknown.

    Returns None if the labels do not describe the attribute.
    """
    from vldebias.data.labels import Labels

    column = Labels.from_array(labels)
    places = []
    for name, count in column.counts.items():
        place = place_of(name, prompt_set) if count else -1  # ignore names without rows
        if place is None:
            return None
        places.append(place)
    # A column with only one of the attribute's values may describe a different attribute.
    if len({*places} - {-1}) < 2:
        return None
    return torch.tensor([*places, -1])[column.codes]


def stated_texts(problem: Problem, role: str) -> Labelled:
    """Return every attribute's group prompts, each with the single value that it names.

    Args:
        problem: what the method is fitted on.
        role: the role for which the prompts are embedded.
    """
    texts: list[str] = []
    columns = []
    for prompt_set in problem.attributes:
        stated, values, _ = stating(prompt_set)
        texts.extend(stated)
        # Add one, because zeros from block_diag become -1 below.
        columns.append(values[:, None] + 1)
    # Text about one attribute has unknown values (-1) in the columns for all other attributes.
    codes = torch.block_diag(*columns) - 1
    return Labelled(problem.host.embed(texts, role), codes)
