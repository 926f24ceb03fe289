"""Replace a prompt by one that names the attribute, or by the mean over a wording for each value.

The wordings are embedded whenever a prompt is used, so the edit needs the model and cannot be
merged into weights. A pipeline gets their token states instead of the prompt's; several wordings
are averaged at each token position.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from torch import Tensor

from vldebias.errors import InvalidInputError
from vldebias.methods.declared import DECLARED
from vldebias.methods.method import EditMethod, Problem, register_method
from vldebias.projection.edit import Edit, Provenance, Rewording
from vldebias.prompts import PromptSet

ATTRIBUTES = ("gender", "race", "skin tone", "age", "background")
# Nouns for a picture, which do not have the attribute themselves.
_PICTURE = "photo|photograph|picture|image|portrait|painting|drawing|headshot"
# "a photo of a |nurse at work": the last article before a noun that is not a picture.
NOUN = re.compile(rf"\b(a|an|the)\s+(?!(?:{_PICTURE})\b)(?=\w[^.,]*$)", re.IGNORECASE)


def rewrite_prompt(prompt: str, words: str) -> str:
    """Return a prompt with the words of a value.

    A single word is written before the noun, several are appended after a comma.

    Args:
        prompt: the prompt.
        words: words of a value; or a template with {text}, which is replaced by the prompt without
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
    # "A photo of a doctor": the first article may belong to the picture.
    place = places[-1]
    article = _article(place[1], words)
    return f"{text[: place.start()]}{article} {words} {text[place.end() :]}{stop}"


def _article(written: str, words: str) -> str:
    """Return the article before `words` instead of the original one.

    "the" and an upper-case first letter are preserved.
    """
    if written.lower() == "the":
        return written
    article = "an" if words[0].lower() in "aeiou" else "a"
    if written[0].isupper():
        return article.capitalize()
    return article


@dataclass(frozen=True, eq=False, repr=False)
class FixedRewrite(Rewording):
    """Replace a prompt's embedding by the mean over several wordings.

    Attributes:
        words: for each wording the words of a value, see `rewrite_prompt`.
        dim: width of the embeddings.
    """

    kind = "wording"

    words: tuple[str, ...]
    dim: int
    provenance: Provenance

    def __call__(self, z: Tensor, strength: float = 1.0) -> Tensor:
        """Refuse a strength above 0, because the prompts cannot be recovered from embeddings."""
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
    """Take the mean over one wording for each value of an attribute.

    For example, "A photo of a male nurse." and "A photo of a female nurse.". It takes one
    attribute.
    """

    declaration = DECLARED["each-value"]

    def words(self, prompts: PromptSet) -> tuple[str, ...]:
        """Return the words of each wording for `rewrite_prompt`: the first word of every value."""
        return tuple(words[0] for words in prompts.attributes.values())

    def fit(self, problem: Problem, role: str) -> Edit:
        words = self.words(self._only_attribute(problem))
        return FixedRewrite(words, problem.host.dim(role), Provenance(self.name))


class Suffix(EachValue):
    """Add a neutral suffix: "A photo of a nurse of any gender.".

    The name of the prompt set has to end in one of `ATTRIBUTES`.
    """

    declaration = DECLARED["suffix"]

    def words(self, prompts: PromptSet) -> tuple[str, ...]:
        """Return the template of the suffix."""
        name = prompts.name.replace("-", " ").casefold()
        for attribute in ATTRIBUTES:
            if name.endswith(attribute):
                return (f"{{text}} of any {attribute}",)
        raise InvalidInputError(
            f"prompt set {prompts.name!r}: method 'suffix' writes the name of the attribute, so the"
            f" set's name has to end in one of {', '.join(ATTRIBUTES)}; rename the set"
        )


register_method(EachValue())
register_method(Suffix())
