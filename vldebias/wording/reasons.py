"""Describe the reasons why balancing leaves a prompt unchanged."""

from __future__ import annotations

STATED = "stated"
NAMED = "named"
CONTEXT = "context"  # prefix used if a fact fixes the value, followed by its words if known
NO_PERSON = "no person"  # prefix used if the prompt does not show anybody
NO_ANSWER = "find: "  # prefix used if the user's `find` failed, followed by its error
NOT_PLAIN = "not plain"  # a doubt about a person, a group or the syntax
EDIT = "edit"

WORDS = {
    STATED: "states the attribute",
    NAMED: "may name a person",
    CONTEXT: "a fact in it allows only one value",
    NOT_PLAIN: "not plain enough to be sure of every person in it",
    EDIT: "is about a given picture",
    "no word": "in a language without words for these values",
    "form": "an adjective would need an unknown form to agree with the value",
    "language": "in an unsupported language",
    "embeddings": "embeddings were passed instead of a prompt",
    "truncated": "the person is mentioned after the last token that the model reads",
}

_LANGUAGE_REASON = "language: "  # prefix followed by the name of an unsupported language


def reason_in_words(reason: str) -> str:
    """Describe an entry of `BalancedPrompts.reasons`, or return it unchanged if it is unknown.

    >>> reason_in_words("context: pregnant")
    'only one value fits "pregnant"'
    """
    if reason.startswith(f"{CONTEXT}: "):
        return f'only one value fits "{reason.removeprefix(f"{CONTEXT}: ")}"'
    if reason.startswith(NO_PERSON):
        return "no person is asked for"
    if reason.startswith(NO_ANSWER):
        return f"no answer about people ({reason.removeprefix(NO_ANSWER)})"
    if reason.startswith(_LANGUAGE_REASON):
        language = reason.removeprefix(_LANGUAGE_REASON)
        if " or " in language:  # such as "es or it"
            return f"in {language}, which the rules cannot tell apart in this prompt"
        return f"in {language}, which is not supported"
    return WORDS.get(reason, reason)


def context_reason(words: str) -> str:
    """Return the reason for a value that a fact fixes, given the words for the fact or ""."""
    return f"{CONTEXT}: {words}" if words else CONTEXT
