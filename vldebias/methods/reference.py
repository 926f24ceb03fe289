"""Store image features for fitting methods, and match labels and texts to an attribute."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor

from vldebias.errors import InvalidInputError, check_kind
from vldebias.prompts import PromptSet, StatedWords
from vldebias.utils.vectors import read_vectors

if TYPE_CHECKING:
    from vldebias.data import Labels
    from vldebias.typing import ColumnLike, Features

_ROWS = 1024  # number of feature rows read at once


@dataclass(frozen=True, eq=False)
class Reference:
    """Store image features, with their labels if available.

    See also docs/explanation/the-default.md.

    Attributes:
        features: (n, d) tensor or ndarray, or an iterable of batches (b, d); normalised or not.
        labels: for each column, a value for each of the n images, as strings (None and "" mean
            unknown) or `data.Labels`. The column "class" contains names of the prompt set's
            classes; 20 labelled images are enough for the default to move a classifier's boundary.
            Other columns are only used by methods that need labelled images (`labelled`).
        within_classes: whether to compare means within pseudo-classes if the prompt set has at
            least two classes, so that groups get similar scores within a class (worst group). If
            False, groups get similar scores overall (shares in a ranking).

    >>> import torch
    >>> features = torch.eye(4)  # image features of the model, one row for each image
    >>> reference = Reference(features, labels={"gender": ["male", "female", "female", "male"]})
    >>> [tuple(batch.shape) for batch in reference.batches()]
    [(4, 4)]
    """

    features: Features
    labels: Mapping[str, Labels | ColumnLike] = field(default_factory=dict)
    within_classes: bool = True

    def __post_init__(self) -> None:
        first = self.features
        if isinstance(first, list | tuple) and first:
            first = first[0]
        is_read = hasattr(first, "shape") or hasattr(first, "features")
        if isinstance(first, str | Path) or not (is_read or isinstance(first, Iterable)):
            _refuse(first)
        # Batches have no length until they are read.
        n = getattr(self.features, "shape", (None,))[0]
        check_kind(
            "labels", self.labels, Mapping, "a mapping from column to labels, as {'race': [...]}"
        )
        for column, labels in self.labels.items():
            if isinstance(labels, Sized) and n not in (None, len(labels)):
                raise InvalidInputError(
                    f"reference: labels {column!r}: got {len(labels)} for {n} rows of features"
                )

    def batches(self) -> Iterator[Tensor]:
        """Yield the features as L2-normalised float64 batches (b, d).

        Raises:
            InvalidInputError: If features are not floats (n, d), are not finite, or contain a zero
                row.
        """
        # `data.Embeddings` stores its features in the attribute `features`.
        features = getattr(self.features, "features", self.features)
        # An array is a single part. For an iterable, only one part is in memory at a time.
        parts: Iterable[Any] = [features]
        if isinstance(features, Iterable) and not hasattr(features, "shape"):
            parts = features
        for part in parts:
            if not getattr(part, "shape", ()):
                _refuse(part)
            # An empty part yields one empty batch, so that its width and dtype are also checked.
            for start in range(0, max(1, len(part)), _ROWS):
                yield _unit_rows(part[start : start + _ROWS])


def _refuse(features: object) -> NoReturn:
    """Raise an error for an object that contains no features."""
    raise InvalidInputError(
        "reference: expected image features (n, d), a tensor or an ndarray, got"
        f" {type(features).__name__}; pass vldebias.data.load_embeddings(FILE)[0], or the output of"
        " model.encode_image"
    )


def _unit_rows(features: object) -> Tensor:
    """Return L2-normalised features (b, d) in float64.

    Raises:
        InvalidInputError: If the features are not floats (b, d), are not finite, or contain a zero
            row.
    """
    read = read_vectors(features, "reference")
    if read.is_single:
        raise InvalidInputError(
            f"reference: got {len(read.rows[0])} numbers; expected image features (n, d)"
        )
    rows = read.rows.detach().cpu()
    lengths = rows.double().norm(dim=1, keepdim=True)
    bad = int((~lengths.isfinite() | (lengths == 0)).sum())
    if bad:
        raise InvalidInputError(
            f"reference: {bad} of {len(rows)} image features are zero or not finite; remove them"
        )
    return rows.double() / lengths


def zero_shot(rows: Tensor, texts: Tensor) -> Tensor:
    """Return the zero-shot value (b,) of each row.

    Args:
        rows: unit rows (b, d).
        texts: unit text embeddings (a, d), one per value.

    Raises:
        InvalidInputError: If rows and texts have different widths.
    """
    if rows.shape[1] != texts.shape[1]:
        raise InvalidInputError(
            f"reference: image features have width {rows.shape[1]}, but text embeddings have"
            f" {texts.shape[1]}; embed both with the same model"
        )
    # For unit rows, the largest product identifies the nearest text.
    return (rows @ texts.T).argmax(1)


def place_of(name: str, prompt_set: PromptSet) -> int | None:
    """Return the index of the value that a label names, or None if it names none or several.

    Args:
        name: the label.
        prompt_set: the prompt set of the attribute.
    """
    values = list(prompt_set.attributes)
    # "White" is the value itself; "white men" contains one of its words.
    matches = tuple(value for value in values if value.casefold() == name.casefold())
    if not matches:
        matches = prompt_set.values_in(name)
    if len(matches) != 1:
        return None
    return values.index(matches[0])


def stating(prompt_set: PromptSet) -> tuple[list[str], Tensor, Tensor]:
    """Return the group prompts that name exactly one value, with the indices of value and group.

    Returns:
        The n prompts, and the indices (n,) of their values and of their groups.
    """
    values = list(prompt_set.attributes)
    texts = []
    value_codes = []
    group_codes = []
    for group_code, group in enumerate(prompt_set.variants):
        for text in group:
            named_values = prompt_set.values_in(text)
            if len(named_values) == 1:
                texts.append(text)
                value_codes.append(values.index(named_values[0]))
                group_codes.append(group_code)
    return (
        texts,
        torch.tensor(value_codes, dtype=torch.long),
        torch.tensor(group_codes, dtype=torch.long),
    )


def class_of(labels: tuple[str, ...], prompt_set: PromptSet) -> list[int]:
    """Return, for each label, the index of the class prompt that names it.

    The list is empty unless each label names a different class. Labels are matched by name,
    ignoring case: the class with that name ("landbird"), or the only class whose name contains the
    label as a word ("dark" in "dark hair"). Labels made up of digits are indices. Positions are not
    used, because labels in alphabetical order ("blond", "dark") could be silently swapped.

    Args:
        labels: the labels in a column.
        prompt_set: the prompt set with the classes.
    """
    names = [name.casefold() for name in prompt_set.class_names]
    chosen: list[int] = []
    for label in labels:
        matches = _classes_named_by(label.casefold(), names)
        # A number may be out of range, such as "7" with two classes.
        if len(matches) == 1 and matches[0] < len(names):
            chosen += matches
    # Labels such as "dark" and "hair" both name the class "dark hair" and must not be merged.
    is_one_to_one = len(labels) == len(set(chosen))
    return chosen if len(names) > 1 and is_one_to_one else []


def _classes_named_by(label: str, names: Sequence[str]) -> list[int]:
    """Return the indices of the classes that a lowercase label may name."""
    # An exact match takes precedence: with classes "bird" and "land bird", the label "bird" means
    # the former.
    if label in names:
        return [names.index(label)]
    if label.isdecimal():
        return [int(label)]
    has_letters = any(map(str.isalnum, label))
    word = StatedWords([label] if has_letters else [])
    return [i for i, name in enumerate(names) if word.find(name)]
