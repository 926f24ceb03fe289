"""Label reference images: by the labels that came with them, or by the model's zero-shot predictions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from vldebias.errors import InvalidInputError
from vldebias.methods.method import Problem
from vldebias.prompts import PromptSet


@dataclass(frozen=True, eq=False)
class Labelled:
    """Hold unit rows (n, d) float64 and codes (n, attributes) of their values; -1 is unknown.

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
    text, if its probability reaches `Reference.confidence`.

    Raises:
        InvalidInputError: labels that fit no attribute, have another length, or have one value only.
    """
    reference = problem.reference
    assert reference is not None  # a method that needs labels has refused that
    rows, codes = torch.cat(list(reference.batches())), []
    for prompts in problem.attributes:
        values = list(prompts.attributes)
        if reference.labels:
            fitting = {column: found for column, given in reference.labels.items() if (found := _coded(given, prompts))}
            if not fitting:
                raise InvalidInputError(
                    f"reference: none of the columns {list(reference.labels)} has the values {values} of "
                    f"{prompts.name}; rename its labels, or leave them out, and the model labels the images itself"
                )
            own = torch.tensor(fitting.get(prompts.name, next(iter(fitting.values()))))
            if len(own) != len(rows):
                raise InvalidInputError(f"reference: expected a label for each of {len(rows)} images, got {len(own)}")
        else:
            value, probability = reference.read(rows, problem.zero_shot(prompts, role))
            own = torch.where(probability >= reference.confidence, value, -1)
        if len(own[own >= 0].unique()) < 2:
            raise InvalidInputError(f"{prompts.name}: expected labelled images of two or more of the values {values}")
        codes.append(own)
    return Labelled(rows, torch.stack(codes, 1), tuple(len(prompts.attributes) for prompts in problem.attributes))


def _coded(given: Any, prompts: PromptSet) -> list[int]:
    """Return the value of each label of a column, -1 if it is None, NaN or ""; [] if no labels of the attribute."""
    if hasattr(given, "codes") and hasattr(given, "names"):
        given = [given.names[code] if code >= 0 else None for code in torch.as_tensor(given.codes).tolist()]
    names = ["" if value is None or value != value else str(value) for value in given]
    places = {name: place_of(name, prompts) for name in {*names} - {""}}
    known = {name: place for name, place in places.items() if place is not None}
    if len(known) < len(places) or len({*known.values()}) < 2:
        return []
    return [known.get(name, -1) for name in names]


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
    sizes = tuple(len(prompts.attributes) for prompts in problem.attributes)
    return Labelled(problem.embed([text for text, _, _ in said], role), codes, sizes)
