"""Explain in words why balanced prompts leave a prompt unchanged."""

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
REWRITTEN = "rewritten: "  # prefix if a rewritten prompt cannot take the value
NO_PERSON_REASON = "no person"  # prefix if the prompt shows nobody

_LANGUAGE_REASON = "language: "  # prefix of the name of an unsupported language


def reason_in_words(reason: str) -> str:
    """Return a reason of `BalancedPrompts.reasons` in words, or as it is if it is unknown.

    >>> reason_in_words("context")
    'facts leave one value'
    """
    if reason.startswith(REWRITTEN):
        return f"the rewritten prompt cannot take the value ({reason.removeprefix(REWRITTEN)})"
    if reason.startswith(NO_PERSON_REASON):
        return "no person is asked for"
    if reason.startswith(_LANGUAGE_REASON):
        return f"in {reason.removeprefix(_LANGUAGE_REASON)}, which is not read"
    return WORDS.get(reason, reason)
