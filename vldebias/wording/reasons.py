"""Describe the reasons why balancing leaves a prompt unchanged."""

from __future__ import annotations

WORDS = {
    "stated": "states the attribute",
    "named": "names a person",
    "context": "a fact in it allows only one value",
    "group": "a group whose values cannot be mixed",
    "not understood": "has a word for a person, who may not be shown in the picture",
    "several people": "shows several people, but one value would apply to all of them",
    "pronoun": "refers to the person only by a pronoun",
    "edit": "edits a picture that already shows the person",
    "no word": "in a language without words for these values",
    "form": "an adjective would need an unknown form to agree with the value",
    "language": "in an unsupported language",
    "embeddings": "embeddings were passed instead of a prompt",
    "truncated": "the person is mentioned after the last token that the model reads",
}
CONTEXT = "context"  # prefix used if a fact fixes the value, followed by its words if known
NO_PERSON_REASON = "no person"  # prefix used if the prompt does not show anybody

_LANGUAGE_REASON = "language: "  # prefix followed by the name of an unsupported language


def reason_in_words(reason: str) -> str:
    """Describe an entry of `BalancedPrompts.reasons`, or return it unchanged if it is unknown.

    >>> reason_in_words("context: pregnant")
    'only one value fits "pregnant"'
    """
    if reason.startswith(f"{CONTEXT}: "):
        return f'only one value fits "{reason.removeprefix(f"{CONTEXT}: ")}"'
    if reason.startswith(NO_PERSON_REASON):
        return "no person is asked for"
    if reason.startswith(_LANGUAGE_REASON):
        language = reason.removeprefix(_LANGUAGE_REASON)
        if " or " in language:  # such as "es or it"
            return f"in {language}, which the rules cannot tell apart in this prompt"
        return f"in {language}, which is not supported"
    return WORDS.get(reason, reason)


def context_reason(words: str) -> str:
    """Return the reason for a value that a fact fixes, given the words for the fact or ""."""
    return f"{CONTEXT}: {words}" if words else CONTEXT
