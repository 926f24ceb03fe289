"""Say in words why balanced prompts leave a prompt alone."""

from __future__ import annotations

WORDS = {
    "stated": "states the attribute",
    "named": "names a person",
    "context": "facts leave one value",
    "group": "a group whose values cannot be mixed",
    "not understood": "has a word for a person, but not certainly for somebody in the picture",
    "several people": "shows several people, but one value would apply to all of them",
    "pronoun": "a pronoun stands for the person",
    "edit": "edits a picture that has its person",
    "no word": "in a language without words for these values",
    "form": "a phrase in which an adjective would have to agree in a way that is not known",
    "language": "in a language that is not read",
    "embeddings": "embeddings were passed in place of a prompt",
    "truncated": "the person stands after the last token that is read",
}
REWRITTEN = "rewritten: "  # how reasons begin where a rewriter stated what cannot be replaced
NO_PERSON_REASON = "no person"  # how reasons begin where nobody is asked for

LANGUAGE_REASON = "language: "  # before the name of a language that is not read


def reason_in_words(reason: str) -> str:
    """Return a reason of `BalancedPrompts.reasons` in words; one that has none as it is.

    >>> reason_in_words("context")
    'facts leave one value'
    """
    if reason.startswith(REWRITTEN):
        return f"the rewritten prompt cannot take the value ({reason.removeprefix(REWRITTEN)})"
    if reason.startswith(NO_PERSON_REASON):
        return "no person is asked for"
    if reason.startswith(LANGUAGE_REASON):
        return f"in {reason.removeprefix(LANGUAGE_REASON)}, which is not read"
    return WORDS.get(reason, reason)
