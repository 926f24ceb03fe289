"""Other wordings of a prompt in its place: one that names all values, or the mean over one for each value.

They cost nothing to fit. A prompt is embedded again in other words whenever it is used, so that they need the model
beside the embedding, and cannot become part of weights.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import normalize

from vldebias.edit import Edit, Provenance, Rows
from vldebias.errors import InvalidInputError
from vldebias.methods.method import Method, Need, Problem, register_method

__all__ = ["AllValues", "EachValue", "Wording", "worded"]

_PICTURE = "photo|photograph|picture|image|portrait|painting|drawing|headshot"  # which have no attribute themselves
_NOUN = re.compile(rf"\b(a|an|the)\s+(?!(?:{_PICTURE})\b)(?=\w[^.,]*$)", re.IGNORECASE)


def worded(prompt: str, words: str) -> str:
    """`prompt` with the words of a value: one before the noun, several after a comma.

    >>> worded("A photo of a engineer.", "female"), worded("This is a bird.", "in a forest")
    ('A photo of a female engineer.', 'This is a bird, in a forest.')
    """
    text = prompt.rstrip(" .")
    stop = prompt[len(text) :].strip()
    places = list(_NOUN.finditer(text))
    if " " in words or not places:
        return f"{text}, {words}{stop}"
    place = places[-1]
    article = "an" if words[0].lower() in "aeiou" else "a"
    article = place[1] if place[1].lower() == "the" else article.capitalize() if place[1][0].isupper() else article
    return f"{text[: place.start()]}{article} {words} {text[place.end() :]}{stop}"


@dataclass(frozen=True, eq=False, repr=False)
class Wording(Edit):
    """The mean of a prompt's embeddings in several wordings, normalised and as long as the prompt's own.

    words: for each wording the words of a value, put into the prompt by `worded`.
    """

    kind = "wording"
    reads_text = True

    words: tuple[str, ...]
    width: int
    provenance: Provenance = field(default_factory=lambda: Provenance("wording"))

    @property
    def dim(self) -> int:
        """Width d."""
        return self.width

    def __call__(self, z: Tensor, strength: float = 1.0, rows: Rows | None = None) -> Tensor:
        """Texts (b, d), each read again in its wordings.

        Raises:
            InvalidInputError: without the prompts, or nobody who could embed others.
        """
        self.check_strength(strength)
        if strength == 0:
            return z
        if rows is None or rows.embed is None:
            raise InvalidInputError(
                f"method {self.method!r} reads prompts in other words, and needs the model beside their embeddings: "
                "attach it with vldebias.debias"
            )
        asked = [worded(text, words) for text in rows.texts for words in self.words]
        read = rows.embed(asked).unflatten(0, (len(rows.texts), len(self.words)))
        mean = normalize(read.mean(1), dim=1).to(z)
        return torch.lerp(z, z.norm(dim=-1, keepdim=True) * mean, strength)

    def tensors(self) -> dict[str, Tensor]:
        """None but a placeholder, since the format asks for tensors."""
        return {"nothing": torch.zeros(1)}

    def settings(self) -> dict[str, Any]:
        """The words and the width."""
        return {"words": list(self.words), "width": self.width}

    @classmethod
    def build(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any], provenance: Provenance) -> Self:
        """From `settings`."""
        return cls(tuple(map(str, settings["words"])), int(settings["width"]), provenance)


class EachValue(Method):
    """The mean over one wording for each value: "A photo of a male nurse." and "A photo of a female nurse."."""

    name, title = "each-value", "mean over a wording for each value"
    source = "Berg et al., 2022, prompt ensembles; this package"
    color, needs, pipelines = "#17becf", frozenset({Need.VALUES}), False

    def fit(self, problem: Problem, role: str) -> Edit:
        """The words of every value; of several attributes all combinations would be needed, so one alone is taken."""
        return Wording(tuple(own[0] for own in _words(problem)), problem.host.dim(role))


class AllValues(Method):
    """One wording that names all values: "A photo of a nurse, male or female."."""

    name, title, source = "all-values", "suffix that names all values", "after Bansal et al., 2022 (ENTIGEN)"
    color, needs, pipelines = "#bcbd22", frozenset({Need.VALUES}), False

    def fit(self, problem: Problem, role: str) -> Edit:
        """The suffix."""
        return Wording((" or ".join(own[0] for own in _words(problem)),), problem.host.dim(role))


def _words(problem: Problem) -> list[tuple[str, ...]]:
    if len(problem.attributes) > 1:
        raise InvalidInputError(f"{problem.label}: expected one attribute whose values are put into prompts")
    return list(problem.attributes[0].attributes.values())


for _method in (EachValue(), AllValues()):
    register_method(_method)
