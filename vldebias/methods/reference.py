"""Store the image features that methods are fitted to, and label them by columns or zero-shot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import one_hot

from vldebias.errors import InvalidInputError
from vldebias.prompts import PromptSet, StatedWords

if TYPE_CHECKING:
    from vldebias.methods.method import Problem

_ROWS = 1024  # rows of features that are read at once

Array = Tensor | NDArray[np.floating]
Features = object
"""Image features (n, d): a tensor or an ndarray, an iterable of batches (b, d), or an object with
such `features`, such as `data.Embeddings`."""


@dataclass(frozen=True, eq=False)
class Reference:
    """Store image features, and their labels if there are any.

    Attributes:
        features: (n, d) tensor or ndarray, or an iterable of batches (b, d); normalised or not.
        labels: column -> a value for each of the n images, as strings (None and "" are unknown) or
            `data.Labels`; only used by methods that need labelled images (`labelled`).
        within_classes: compare means within pseudo-classes, if the prompt set has at least two
            classes, so that groups score alike within a class (worst group). False: groups score
            alike overall (shares of a ranking).

    >>> import torch
    >>> features = torch.eye(4)  # image features of the model, one row for each image
    >>> reference = Reference(features, labels={"gender": ["male", "female", "female", "male"]})
    >>> [tuple(batch.shape) for batch in reference.batches()]
    [(4, 4)]
    """

    features: Features
    labels: Mapping[str, object] = field(default_factory=dict)
    within_classes: bool = True

    def batches(self) -> Iterator[Tensor]:
        """Yield the features as L2-normalised float64 batches (b, d).

        Raises:
            InvalidInputError: features are not floats (n, d), not finite, or a row is zero.
        """
        # `data.Embeddings` has its features under that name.
        features = getattr(self.features, "features", self.features)
        # An array is a single part. Of an iterable, only one part is in memory at a time.
        parts: Iterable[Any] = [features]
        if isinstance(features, Iterable) and not hasattr(features, "shape"):
            parts = features
        for part in parts:
            if not getattr(part, "shape", ()):
                raise InvalidInputError(
                    "reference: expected image features (n, d), a tensor or an ndarray, got"
                    f" {type(part).__name__}"
                )
            # An empty part yields one empty batch, so that its width and dtype are checked too.
            for start in range(0, max(1, len(part)), _ROWS):
                yield _unit_rows(part[start : start + _ROWS])


def _unit_rows(features: Array) -> Tensor:
    """Return L2-normalised features (b, d) in float64.

    Raises:
        InvalidInputError: see `Reference.batches`.
    """
    if isinstance(features, Tensor):
        is_float = features.is_floating_point()
    else:
        is_float = np.issubdtype(features.dtype, np.floating)
    if features.ndim != 2 or not is_float:
        raise InvalidInputError(
            "reference: expected image features (n, d) of floats, got"
            f" {features.dtype} {tuple(features.shape)}"
        )
    if isinstance(features, Tensor):
        rows = features.detach().cpu()
    else:
        rows = torch.from_numpy(features.copy())
    lengths = rows.double().norm(dim=1, keepdim=True)
    bad = int((~lengths.isfinite() | (lengths == 0)).sum())
    if bad:
        raise InvalidInputError(
            f"reference: {bad} of {len(rows)} image features are zero or not finite"
        )
    return rows.double() / lengths


def zero_shot(rows: Tensor, texts: Tensor) -> Tensor:
    """Return the zero-shot value (b,) of each row.

    Args:
        rows: unit rows (b, d).
        texts: unit texts (a, d), one for each value.

    Raises:
        InvalidInputError: rows and texts have different widths.
    """
    if rows.shape[1] != texts.shape[1]:
        raise InvalidInputError(
            f"reference: image features have width {rows.shape[1]}, texts {texts.shape[1]}; embed"
            " both with one model"
        )
    # Unit rows: the largest product is the nearest text.
    return (rows @ texts.T).argmax(1)


@dataclass(frozen=True, eq=False)
class Labelled:
    """Store rows and the values of their attributes.

    Attributes:
        rows: (n, d) unit rows, float64.
        codes: (n, attributes), the index of each value; -1 is unknown.
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
        """Return for each attribute the rows whose value is known, and their codes."""
        return [(self.rows[codes >= 0], codes[codes >= 0]) for codes in self.codes.T]


def labelled(problem: Problem, role: str) -> Labelled:
    """Return the reference images of a problem with the values of its attributes.

    A column of labels is used for an attribute if each of its names is a value of the attribute, or
    contains one of its words. If there are several such columns, the one with the name of the
    prompt set is used. Without labels, an image gets the value of the nearest text.

    Args:
        problem: the problem with reference images.
        role: the role of the texts.

    Raises:
        InvalidInputError: labels that do not match an attribute, have another length, or have only
            one value.
    """
    rows = torch.cat([*problem.images.batches()])
    columns = []
    for prompts in problem.attributes:
        codes = _given_codes(problem.images.labels, prompts)
        if codes is None:
            codes = zero_shot(rows, problem.zero_shot(prompts, role))
        if len(codes) != len(rows):
            raise InvalidInputError(
                f"reference: expected a label for each of {len(rows)} images, got {len(codes)}"
            )
        # With only one value there is no difference to fit, and an eraser would fit noise.
        if len(codes[codes >= 0].unique()) < 2:
            raise InvalidInputError(
                "reference: expected labelled images of two or more of the values"
                f" {[*prompts.attributes]} of {prompts.name}"
            )
        columns.append(codes)
    return Labelled(rows, torch.stack(columns, 1))


def _given_codes(labels: Mapping[str, object], prompts: PromptSet) -> Tensor | None:
    """Return the value (n,) of each image by the column of labels for an attribute.

    It is None without labels.

    Raises:
        InvalidInputError: there are labels, but none for the attribute.
    """
    if not labels:
        return None
    codes_of_column = {}
    for name, column_labels in labels.items():
        codes = _coded(column_labels, prompts)
        if codes is not None:
            codes_of_column[name] = codes
    if not codes_of_column:
        raise InvalidInputError(
            f"reference: expected a column of labels with the values {[*prompts.attributes]} of"
            f" {prompts.name}, got {[*labels]}; rename the labels, or leave them out to use"
            " zero-shot labels"
        )
    # "race" and "race7" may both contain values of the set: the column of the same name is used.
    if prompts.name in codes_of_column:
        return codes_of_column[prompts.name]
    return next(iter(codes_of_column.values()))


def _coded(labels: object, prompts: PromptSet) -> Tensor | None:
    """Return the value of each label of a column, -1 if it is unknown.

    It is None if the labels are not about the attribute.
    """
    from vldebias.data.labels import Labels

    column = Labels.from_array(labels)
    places = []
    for name, count in column.counts.items():
        place = place_of(name, prompts) if count else -1  # names without a row are ignored
        if place is None:
            return None
        places.append(place)
    # A column with only one value of the attribute may be about something else.
    if len({*places} - {-1}) < 2:
        return None
    return torch.tensor([*places, -1])[column.codes]


def place_of(name: str, prompts: PromptSet) -> int | None:
    """Return the index of the attribute value that a label names; None unless it names exactly one.

    Args:
        name: the label.
        prompts: the attribute.
    """
    values = list(prompts.attributes)
    # "White" is the value itself; "white men" names it by one of its words.
    matches = tuple(value for value in values if value.casefold() == name.casefold())
    if not matches:
        matches = prompts.values_in(name)
    if len(matches) != 1:
        return None
    return values.index(matches[0])


def stating(prompts: PromptSet) -> tuple[list[str], Tensor, Tensor]:
    """Return the texts of the groups that name exactly one value.

    Returns:
        The n texts, and the indices (n,) of their values and of their groups.
    """
    values = list(prompts.attributes)
    texts = []
    value_codes = []
    group_codes = []
    for group_code, group in enumerate(prompts.groups):
        for text in group:
            named_values = prompts.values_in(text)
            if len(named_values) == 1:
                texts.append(text)
                value_codes.append(values.index(named_values[0]))
                group_codes.append(group_code)
    return (
        texts,
        torch.tensor(value_codes, dtype=torch.long),
        torch.tensor(group_codes, dtype=torch.long),
    )


def stated_texts(problem: Problem, role: str) -> Labelled:
    """Return the texts of the groups of every attribute, each with the one value that it names.

    Args:
        problem: the problem.
        role: the role in which they are embedded.
    """
    texts: list[str] = []
    columns = []
    for prompts in problem.attributes:
        stated, values, _ = stating(prompts)
        texts.extend(stated)
        # Shifted by one, since the zeros of block_diag become -1 below.
        columns.append(values[:, None] + 1)
    # A text of one attribute is unknown, -1, in the columns of all others.
    codes = torch.block_diag(*columns) - 1
    return Labelled(problem.host.embed(texts, role), codes)


def class_of(labels: tuple[str, ...], prompts: PromptSet) -> list[int]:
    """Return for each label the index of the class prompt that names it.

    The list is empty unless each label names a different class. Labels are matched by name, in any
    case: the class of that name ("landbird"), or the only class whose name contains it as a word
    ("dark" in "dark hair"). Labels that are all digits are indices. Positions are not used, because
    labels in alphabetical order ("blond", "dark") could be swapped without notice.

    Args:
        labels: the labels of a column.
        prompts: the prompt set with the classes.
    """
    names = [name.casefold() for name in prompts.class_names]
    chosen: list[int] = []
    for label in labels:
        matches = _classes_named_by(label.casefold(), names)
        # A number may be out of range, such as "7" with two classes.
        if len(matches) == 1 and matches[0] < len(names):
            chosen += matches
    # The class "dark hair" is named by both labels "dark" and "hair", which would be merged without
    # notice.
    is_one_to_one = len(labels) == len(set(chosen))
    return chosen if len(names) > 1 and is_one_to_one else []


def _classes_named_by(label: str, names: Sequence[str]) -> list[int]:
    """Return the indices of the classes that a label may name; both in lower case."""
    # The whole name takes precedence: with the classes "bird" and "land bird", the label "bird" is
    # the former.
    if label in names:
        return [names.index(label)]
    if label.isdecimal():
        return [int(label)]
    has_letters = any(map(str.isalnum, label))
    word = StatedWords([label] if has_letters else [])
    return [i for i, name in enumerate(names) if word.find(name)]
