"""Replace a prompt with one that names the attribute, or with a mean over one wording per value.

Wordings are embedded whenever a prompt is used, so the edit needs the model and cannot be merged
into weights. A pipeline receives the token states of the wordings instead of those of the prompt;
several wordings are averaged at each token position.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from torch import Tensor

from vldebias.errors import InvalidInputError
from vldebias.methods.declared import DECLARED
from vldebias.methods.method import EditMethod, Problem, register_method
from vldebias.projection.edit import Edit, Rewording
from vldebias.projection.provenance import Provenance
from vldebias.prompts import PromptSet
from vldebias.prompts.prompt_set import append_word

ATTRIBUTES = ("gender", "race", "skin tone", "age", "background")
# Nouns for an image, to which the attribute does not apply.
_PICTURE = "photo|photograph|picture|image|portrait|painting|drawing|headshot"
# Matches an article whose noun is not an image, such as the second in "a photo of a nurse at work".
NOUN = re.compile(rf"\b(a|an|the)\s+(?!(?:{_PICTURE})\b)(?=\w[^.,]{{0,300}}$)", re.IGNORECASE)


def rewrite_prompt(prompt: str, words: str) -> str:
    """Return a prompt with a value's words inserted.

    A single word is inserted before the noun; several words are appended after a comma.

    Args:
        prompt: a prompt that states no value.
        words: a value's words; or a template with {text}, which is replaced with the prompt without
            its full stop.

    >>> rewritten = rewrite_prompt("A photo of a engineer.", "female")
    >>> rewritten, rewrite_prompt("This is a bird.", "in a forest")
    ('A photo of a female engineer.', 'This is a bird, in a forest.')
    >>> rewrite_prompt("A photo of a nurse.", "{text} of any gender")
    'A photo of a nurse of any gender.'
    """
    text = prompt.rstrip(" .")
    stop = prompt[len(text) :].strip()
    if "{text}" in words:
        return words.format(text=text) + stop
    places = list(NOUN.finditer(text))
    if " " in words or not places:
        return f"{text}, {words}{stop}"
    # In "A photo of a doctor", the first article belongs to the image, so use the last one.
    place = places[-1]
    start = append_word(f"{text[: place.start()]}{place[1]} ", words)
    return f"{start} {text[place.end() :]}{stop}"


@dataclass(frozen=True, eq=False, repr=False)
class FixedRewrite(Rewording):
    """Replace a prompt's embedding with the mean over several wordings of the prompt.

    Attributes:
        words: for each wording, a value's words, as passed to `rewrite_prompt`.
        dim: width of the embeddings.
    """

    kind = "wording"

    words: tuple[str, ...]
    dim: int
    provenance: Provenance

    def __call__(self, z: Tensor, strength: float = 1.0) -> Tensor:
        """Reject a strength above 0, because prompts cannot be recovered from embeddings."""
        self.check_input(z, strength)
        if strength == 0 or not len(z):
            return z
        raise InvalidInputError(
            f"{self.method} rewrites prompts and cannot be applied to embeddings; attach it with"
            " vldebias.debias"
        )

    def wordings(self, prompt: str) -> tuple[str, ...]:
        return tuple(rewrite_prompt(prompt, words) for words in self.words)


class EachValue(EditMethod):
    """Average over one wording per attribute value.

    An example is the mean over "A photo of a male nurse." and "A photo of a female nurse." Only one
    attribute is supported.
    """

    declaration = DECLARED["each-value"]

    def words(self, prompt_set: PromptSet) -> tuple[str, ...]:
        """Return the words for `rewrite_prompt`, one per wording: the first word of every value."""
        return tuple(words[0] for words in prompt_set.attributes.values())

    def fit(self, problem: Problem, role: str) -> Edit:
        words = self.words(self._only_attribute(problem))
        return FixedRewrite(words, problem.host.dim(role), Provenance(self.name))


class Suffix(EachValue):
    """Add a neutral suffix, as in "A photo of a nurse of any gender."

    The name of the prompt set must end in one of `ATTRIBUTES`.
    """

    declaration = DECLARED["suffix"]

    def words(self, prompt_set: PromptSet) -> tuple[str, ...]:
        """Return the suffix template."""
        name = prompt_set.name.replace("-", " ").casefold()
        for attribute in ATTRIBUTES:
            if name.endswith(attribute):
                return (f"{{text}} of any {attribute}",)
        raise InvalidInputError(
            f"prompt set {prompt_set.name!r}: method 'suffix' adds the attribute's name to prompts,"
            f" so the set's name must end in one of {', '.join(ATTRIBUTES)}; rename the set"
        )


register_method(EachValue())
register_method(Suffix())
