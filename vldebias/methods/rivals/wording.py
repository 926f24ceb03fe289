"""Other wordings of a prompt in its place: one that names the attribute, or the mean over one for each value.

They cost nothing to fit. A prompt is embedded again in other words whenever it is used, so that they need the model
beside the embedding, and cannot become part of weights. A pipeline reads the states of the other wordings, token by
token, in the place of the prompt's own: one wording is what drawing that prompt is, several are the mean at each place.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import chain, takewhile
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from vldebias.edit import Edit, Provenance, Rows
from vldebias.errors import InvalidInputError, UnsupportedHostError
from vldebias.methods.method import Method, Need, Problem, register_method
from vldebias.prompts import PromptSet

ATTRIBUTES = ("gender", "race", "skin tone", "age", "background")  # as English has their words, from the noun on
_PICTURE = "photo|photograph|picture|image|portrait|painting|drawing|headshot"  # which have no attribute themselves
_NOUN = re.compile(rf"\b(a|an|the)\s+(?!(?:{_PICTURE})\b)(?=\w[^.,]*$)", re.IGNORECASE)


def attribute_of(prompts: PromptSet) -> str | None:
    """The one of `ATTRIBUTES` that the name of a set ends in."""
    called = prompts.name.replace("-", " ").casefold()
    return next((name for name in ATTRIBUTES if called.endswith(name)), None)


def rewrite_prompt(prompt: str, words: str, farther: Collection[str] = ()) -> str:
    """`prompt` with the words of a value: one before the noun, several after a comma; or in a whole sentence of them.

    words: of a value; or a sentence with {text}, the prompt without its full stop, and perhaps {about}, its noun.
    farther: words, in lower case, that stay before the one that is put in, where the prompt has them before its noun.

    >>> rewrite_prompt("A photo of a engineer.", "female"), rewrite_prompt("This is a bird.", "in a forest")
    ('A photo of a female engineer.', 'This is a bird, in a forest.')
    >>> rewrite_prompt("A photo of a nurse.", "{text} of any gender, {about}")
    'A photo of a nurse of any gender, a nurse.'
    >>> rewrite_prompt("A photo of an old nurse.", "male", {"young", "old"})
    'A photo of an old male nurse.'
    """
    text = prompt.rstrip(" .")
    stop = prompt[len(text) :].strip()
    places = list(_NOUN.finditer(text))
    if "{text}" in words:
        return words.format(text=text, about=text[places[-1].start() :] if places else text) + stop
    if " " in words or not places:
        return f"{text}, {words}{stop}"
    place, after = places[-1], text[places[-1].end() :].split(" ")
    there = len(list(takewhile(lambda word: word.casefold() in farther, after[:-1])))
    phrase = " ".join((*after[:there], words, *after[there:]))
    article = "an" if phrase[0].lower() in "aeiou" else "a"
    article = place[1] if place[1].lower() == "the" else article.capitalize() if place[1][0].isupper() else article
    return f"{text[: place.start()]}{article} {phrase}{stop}"


class PromptRewrite(Edit):
    """The mean of a prompt's embeddings in several wordings, normalised and as long as the prompt's own.

    Of a pipeline's states it is the mean as it stands, at each place from the start. A subclass says the wordings.
    """

    reads_text = True

    width: int

    @property
    def dim(self) -> int:
        """Width d."""
        return self.width

    def __call__(self, z: Tensor, strength: float = 1.0, rows: Rows | None = None) -> Tensor:
        """Texts (b, d), or states of a pipeline (b, tokens, d), each read again in its wordings.

        Raises:
            InvalidInputError: without the prompts, nobody who could embed others, or states of other lengths.
        """
        self.check_strength(strength)
        if strength == 0 or not len(z):
            return z
        if rows is None or rows.embed is None:
            raise InvalidInputError(
                f"method {self.method!r} reads prompts in other words, and needs the model beside their embeddings: "
                "attach it with vldebias.debias"
            )
        texts = list(chain.from_iterable(self.wordings(rows)))
        if rows.states is not None:
            states = self.mean(rows.states(texts).unflatten(0, (len(rows.texts), -1)), rows).to(z)
            states = states[:, 0] if z.ndim == 2 else states
            if states.shape != z.shape:
                raise InvalidInputError(
                    f"method {self.method!r}: the other wordings have states {tuple(states.shape)}, the prompts "
                    f"{tuple(z.shape)}; write the words into the prompts instead"
                )
            return states if strength == 1 else torch.lerp(z, states, strength)
        read = rows.embed(texts).unflatten(0, (len(rows.texts), -1))
        mean = normalize(self.mean(read, rows), dim=1).to(z)
        return torch.lerp(z, z.norm(dim=-1, keepdim=True) * mean, strength)

    @abstractmethod
    def wordings(self, rows: Rows) -> list[tuple[str, ...]]:
        """For each row the prompts that it is the mean of; as many for every row."""

    def mean(self, each: Tensor, rows: Rows) -> Tensor:
        """(b, ...) over the wordings (b, wordings, ...) of each row, all of the same weight."""
        return each.mean(1)


@dataclass(frozen=True, eq=False, repr=False)
class FixedRewrite(PromptRewrite):
    """The same wordings for every prompt.

    words: for each wording the words of a value, put into the prompt by `rewrite_prompt`.
    """

    kind = "wording"

    words: tuple[str, ...]
    width: int
    provenance: Provenance = field(default_factory=lambda: Provenance("wording"))

    def wordings(self, rows: Rows) -> list[tuple[str, ...]]:
        """Each prompt with each of the words."""
        return [tuple(rewrite_prompt(text, words) for words in self.words) for text in rows.texts]


def refuse_masked(problem: Problem, method: str) -> None:
    """Refuse pipelines whose states go with a mask of the prompt as it was.

    Raises:
        UnsupportedHostError: with what to do.
    """
    if problem.host.masked:
        raise UnsupportedHostError(
            f"{problem.host.name}: method {method!r} puts states of other wordings in place of the prompt's, "
            "and here a mask goes with them, which would stay that of the prompt; write the words into the prompts"
        )


class _Rewriting(Method):
    """A method that puts other wordings in the place of a prompt."""

    needs = frozenset({Need.VALUES})

    def check(self, problem: Problem) -> None:
        """Refuse several attributes, and what `refuse_masked` does."""
        super().check(problem)
        if len(problem.attributes) > 1:
            raise InvalidInputError(f"{problem.label}: expected one attribute whose values are put into prompts")
        refuse_masked(problem, self.name)

    @abstractmethod
    def words(self, prompts: PromptSet) -> tuple[str, ...]:
        """For each wording what `rewrite_prompt` takes."""

    def fit(self, problem: Problem, role: str) -> Edit:
        """The words."""
        return FixedRewrite(self.words(problem.attributes[0]), problem.host.dim(role))


class EachValue(_Rewriting):
    """The mean over one wording for each value: "A photo of a male nurse." and "A photo of a female nurse."."""

    name, title = "each-value", "mean over a wording for each value"
    source, color = "Berg et al., 2022, prompt ensembles; this package", "#17becf"

    def words(self, prompts: PromptSet) -> tuple[str, ...]:
        """The first word of every value."""
        return tuple(own[0] for own in prompts.attributes.values())


class Suffix(_Rewriting):
    """A neutral suffix: "A photo of a nurse of any gender.".

    attribute: what it says; None: the attribute that the name of the prompt set ends in.
    """

    name, title, source, color = "suffix", "suffix that names the attribute", "users' habit", "#9c9ede"
    sentence = "{{text}} of any {attribute}"

    def __init__(self, attribute: str | None = None) -> None:
        self.attribute = attribute

    def settings(self) -> dict[str, Any]:
        """The attribute, where it was given."""
        return {} if self.attribute is None else {"attribute": self.attribute}

    def words(self, prompts: PromptSet) -> tuple[str, ...]:
        """The sentence.

        Raises:
            InvalidInputError: the name of the set does not say which attribute it is about.
        """
        attribute = self.attribute or attribute_of(prompts)
        if attribute is None:
            raise InvalidInputError(
                f"{prompts.name}: method {self.name!r} says the attribute, expected a name that ends in one of "
                f"{', '.join(ATTRIBUTES)}; or pass vldebias.methods.{type(self).__name__}('gender')"
            )
        return (self.sentence.format(attribute=attribute),)


class Entigen(Suffix):
    """An ethical intervention: "A photo of a nurse if all individuals can be a nurse irrespective of their gender."."""

    name, title, source = "entigen", "ethical intervention in the prompt", "Bansal et al., 2022 (ENTIGEN)"
    color, listed = "#ce6dbd", False  # "suffix" keeps nine subjects of ten where this keeps one
    sentence = "{{text}} if all individuals can be {{about}} irrespective of their {attribute}"


for _method in (EachValue(), Suffix(), Entigen()):
    register_method(_method)
