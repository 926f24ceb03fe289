"""Label reference images: by the labels that came with them, or by the model's zero-shot predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from vldebias.errors import InvalidInputError
from vldebias.methods.problem import Problem
from vldebias.prompts import PromptSet


@dataclass(frozen=True, eq=False)
class Labelled:
    """Hold unit rows (n, d) float64 and, for each attribute, the codes (n,) of their values; -1 is unknown.

    values: names of the values of each attribute, in the order of their codes.
    """

    rows: Tensor
    codes: tuple[Tensor, ...]
    values: tuple[tuple[str, ...], ...]

    def one_hot(self) -> tuple[Tensor, Tensor]:
        """Return the rows (m, d) whose attributes are all known, and their values one-hot encoded (m, all values)."""
        known = torch.stack([codes >= 0 for codes in self.codes]).all(0)
        columns = [one_hot(codes[known], len(own)).double() for codes, own in zip(self.codes, self.values, strict=True)]
        return self.rows[known], torch.cat(columns, 1)

    def known(self) -> list[tuple[Tensor, Tensor]]:
        """Return for each attribute the rows whose value is known, and their codes."""
        return [(self.rows[codes >= 0], codes[codes >= 0]) for codes in self.codes]


def labelled(problem: Problem, role: str) -> Labelled:
    """Return the reference images of a problem with the values of its attributes.

    A column of labels is used for an attribute if each of its names is a value of it, or contains one of its words.
    Without labels an image gets the value of the nearest text, if its probability reaches `Reference.confidence`.

    Raises:
        InvalidInputError: labels that fit no attribute, have another length, or have one value only.
    """
    reference = problem.reference
    assert reference is not None  # a method that needs labels has refused that
    rows, codes = torch.cat(list(reference.batches())), []
    for prompts in problem.attributes:
        if reference.labels:
            own = _given(reference.labels, prompts)
            if len(own) != len(rows):
                raise InvalidInputError(f"reference: expected a label for each of {len(rows)} images, got {len(own)}")
        else:
            value, probability = reference.read(rows, problem.zero_shot(prompts, role))
            own = torch.where(probability >= reference.confidence, value, -1)
        if len(own[own >= 0].unique()) < 2:
            raise InvalidInputError(
                f"{prompts.name}: expected labelled images of two or more of the values {list(prompts.attributes)}"
            )
        codes.append(own)
    return Labelled(rows, tuple(codes), tuple(tuple(prompts.attributes) for prompts in problem.attributes))


def _given(labels: Mapping[str, Any], prompts: PromptSet) -> Tensor:
    """Codes (n,) of the column that is about an attribute; of several the one that is called like its set."""
    fitting: dict[str, Tensor] = {}
    for column, given in labels.items():
        names, codes = _coded(given)
        places = [place_of(name, prompts) for name in names]
        if names and None not in places and len(set(places)) > 1:
            fitting[column] = torch.tensor([-1, *(place for place in places if place is not None)])[codes + 1]
    if not fitting:
        raise InvalidInputError(
            f"reference: none of its columns {list(labels)} has the values {list(prompts.attributes)} of "
            f"{prompts.name}; rename its labels, or leave them out, and the model labels the images itself"
        )
    return fitting.get(prompts.name, next(iter(fitting.values())))


def _coded(given: Any) -> tuple[Sequence[str], Tensor]:
    """Names and codes (n,) of a column; None, NaN and "" are unknown, -1."""
    if hasattr(given, "codes") and hasattr(given, "names"):
        return given.names, torch.as_tensor(given.codes)
    values = ["" if value is None or value != value else str(value) for value in given]
    names = sorted({*values} - {""})
    return names, torch.tensor([names.index(value) if value else -1 for value in values])


def place_of(name: str, prompts: PromptSet) -> int | None:
    """Return the index of the attribute value that a label names; None if it names none, or several."""
    values = list(prompts.attributes)
    alike = [value for value in values if value.casefold() == name.casefold()] or prompts.values_in(name)
    return values.index(alike[0]) if len(alike) == 1 else None


def stated_texts(problem: Problem, role: str) -> Labelled:
    """Return the texts of the groups of every attribute, each with the one value that it names."""
    attributes, rows, codes = problem.attributes, list[Tensor](), list[Tensor]()
    for k, prompts in enumerate(attributes):
        named = [(text, prompts.values_in(text)) for group in prompts.groups for text in group]
        stated = [(text, list(prompts.attributes).index(own[0])) for text, own in named if len(own) == 1]
        rows.append(problem.embed([text for text, _ in stated], role))
        codes.append(torch.full((len(attributes), len(stated)), -1))
        codes[-1][k] = torch.tensor([code for _, code in stated])
    return Labelled(torch.cat(rows), tuple(torch.cat(codes, 1)), tuple(tuple(s.attributes) for s in attributes))
