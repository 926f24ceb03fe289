"""A value drawn for each image, and said in the prompt that the image is drawn from.

The draw is that of steering (`vldebias.methods.steer`), and the image gets the states of the prompt with the drawn
value in it, "A photo of a male nurse." in the place of "A photo of a nurse.", encoded anew in every call as all other
wordings are (`vldebias.methods.rivals.wording`).

Of several attributes a combination is drawn and every value stated, "A photo of a dark-skinned male nurse.". A prompt
that states one of them itself keeps it, and is given a value of the others, from their shares whatever that one is.

The attribute is sampled: the model itself is as biased as before, and what it draws beside a value comes with the word.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import product

from vldebias.edit import Provenance, Rows
from vldebias.errors import InvalidInputError
from vldebias.methods.method import Need, Problem, register_method
from vldebias.methods.rivals.wording import ATTRIBUTES, PromptRewrite, attribute_of, refuse_masked, rewrite_prompt
from vldebias.methods.shares import Shares
from vldebias.methods.steer import SampledEdit, SamplingMethod
from vldebias.prompts import PromptSet, StatedWords


@dataclass(frozen=True)
class Attribute:
    """How prompts state one attribute.

    names, words: of each value its name and what is said for it. stated: words and phrases by which a prompt states
    the attribute itself. rank: of several, the lowest stands next to the noun, "old dark-skinned male nurse".
    """

    names: tuple[str, ...]
    words: tuple[str, ...]
    stated: tuple[str, ...]
    rank: int

    @classmethod
    def of(cls, prompts: PromptSet) -> Attribute:
        """The first word of every value; ranked as English has it where the set tells what it is about, else last."""
        about, values = attribute_of(prompts), prompts.attributes
        rank = len(ATTRIBUTES) if about is None else ATTRIBUTES.index(about)
        return cls(tuple(values), tuple(words[0] for words in values.values()), prompts.stated_words, rank)

    @cached_property
    def gate(self) -> StatedWords:
        """Finds the words of `stated`."""
        return StatedWords(self.stated)


@dataclass(frozen=True, eq=False, repr=False)
class Stated(SampledEdit, PromptRewrite):
    """The states of a prompt in the words of the values that are drawn for each row.

    attributes: in the order of the values of a combination. shares, stratify: see `SampledEdit`.
    """

    kind = "stated"

    attributes: tuple[Attribute, ...]
    shares: Shares
    stratify: int | None
    width: int
    provenance: Provenance = field(default_factory=lambda: Provenance("stated-value"))

    def leaves(self, text: str) -> bool:
        """True unless the prompt states some of the attributes and leaves others open."""
        return len(self._open(text)) in (0, len(self.attributes))

    def targets(self, rows: Rows) -> list[Shares]:
        """Those of the attributes that each prompt leaves open, whatever the others are."""
        names = [attribute.names for attribute in self.attributes]
        return [self.shares.over(self._open(text, rows.kept), names) for text in rows.texts]

    def wordings(self, rows: Rows) -> list[tuple[str, ...]]:
        """For each row its prompt with the values that it is given."""
        prompts = zip(rows.texts, self.targets(rows), self.codes(rows), strict=True)
        return [(self._stating(text, shares.codes[code], rows.kept),) for text, shares, code in prompts]

    def _open(self, text: str, kept: bool = True) -> tuple[int, ...]:
        """Places of the attributes that are drawn for a prompt: those that it does not state."""
        return tuple(i for i, one in enumerate(self.attributes) if not (kept and one.gate.match(text)))

    def _stating(self, text: str, code: tuple[int, ...], kept: bool) -> str:
        """A prompt with a value of each open attribute, farther ones before nearer ones, phrases last."""
        drawn = [(self.attributes[i], value) for i, value in zip(self._open(text, kept), code, strict=True)]
        for own, value in sorted(drawn, key=lambda one: " " in one[0].words[one[1]]):
            farther = [other for other in self.attributes if other.rank > own.rank]
            words = {word.casefold() for one in farther for word in (*one.words, *one.stated)}
            text = rewrite_prompt(text, own.words[value], words)
        return text

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = [len(one.words) for one in self.attributes]
        if self.shares.codes != tuple(product(*map(range, sizes))) or sizes != [len(x.names) for x in self.attributes]:
            raise InvalidInputError(
                f"shares: expected one of every combination of {sizes} values, got {self.shares.codes}"
            )


class StatedValue(SamplingMethod):
    """Give each image of a pipeline an attribute value, drawn from target shares, by stating it in the prompt.

    Args:
        shares, stratify: see `SamplingMethod`.

    Raises:
        InvalidInputError: a value outside its range.
    """

    name, title = "stated-value", "a value drawn for each image and stated in its prompt"
    source, color = "prompt augmentation; this package", "#31708f"
    needs = frozenset({Need.VALUES})

    def check(self, problem: Problem) -> None:
        """Refuse what `SamplingMethod` refuses, and pipelines whose states go with a mask of the prompt as it was."""
        super().check(problem)
        refuse_masked(problem, self.name)

    def fit(self, problem: Problem, role: str) -> Stated:
        """The words and the shares."""
        attributes, width = tuple(map(Attribute.of, problem.attributes)), problem.host.dim(role)
        return Stated(attributes, self.wanted(problem), self.stratify, width)


register_method(StatedValue())
