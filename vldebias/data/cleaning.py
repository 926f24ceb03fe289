"""Remove HTML entities, tags and URL escapes from captions."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from contextlib import suppress
from urllib.parse import unquote_plus

from vldebias.errors import warn

_ENTITY = re.compile(r"&(#\d{1,7}|#x[0-9a-f]{1,6}|[a-z][a-z0-9]{1,31});", re.IGNORECASE)
# Match only HTML tags: in CC12M, "<PERSON>" is a placeholder for names, and "<3" is a heart.
_TAG = re.compile(
    r"<!--(?:(?!<!--).)*?-->|</?(a|abbr|b|big|blockquote|body|br|button|center|cite|code|dd|del|div|dl|dt|em|font"
    r"|h[1-6]|head|hr|html|i|img|input|ins|label|li|mark|nobr|ol|p|pre|q|s|script|small|span|strike"
    r"|strong|style|sub|sup|table|tbody|td|th|title|tr|tt|u|ul|wbr)(\s[^<>]{0,500})?/?>",
    re.IGNORECASE | re.DOTALL,
)
_ESCAPE = re.compile(r"%[0-9a-f]{2}", re.IGNORECASE)
# In captions with spaces, match only characters that URLs must escape, not "50%de" or "100%25".
_ESCAPE_IN_TEXT = re.compile(r"(?<=[a-z,.!?'\")])(%2[0-9a-c]|%3[abf])+", re.IGNORECASE)


def cleaned(caption: str) -> str:
    """Return a caption without entities (&amp;), tags (<b>) and URL escapes (%27s+).

    >>> cleaned("Tom &amp; Jerry%27s <b>house</b>")
    "Tom & Jerry's house"
    """
    text = caption
    if "&" in text:
        # Some pages escape twice, as in "&amp;amp;".
        for _ in range(2):
            text = _ENTITY.sub(lambda match: html.unescape(match.group()), text)
    if "<" in text:
        text = _TAG.sub(" ", text)
    # Decode URL escapes only if the result is valid UTF-8.
    if "%" in text and "://" not in text:
        if " " in text.strip():
            text = _ESCAPE_IN_TEXT.sub(lambda match: unquote_plus(match.group()), text)
        elif _ESCAPE.search(text):
            # A caption without spaces, such as "denise%27s+chicken", is part of a URL.
            with suppress(UnicodeDecodeError):
                text = unquote_plus(text, errors="strict")
    return caption if text == caption else " ".join(text.split())


def clean_captions(
    source: str, captions: Sequence[str], more_captions: Sequence[tuple[str, ...]] = ()
) -> tuple[list[str], list[tuple[str, ...]]]:
    """Clean captions and further captions, with a warning about the number of changes.

    Args:
        source: name of the data in messages.
        captions: caption in each row.
        more_captions: further captions per row; empty if there are none.

    Returns:
        The captions and the further captions; the latter are empty if no row has any.
    """
    first = [cleaned(caption) for caption in captions]
    further = [tuple(map(cleaned, texts)) for texts in more_captions]
    changed = [before for before, after in zip(captions, first, strict=True) if before != after]
    for texts, texts_after in zip(more_captions, further, strict=True):
        changed += [a for a, b in zip(texts, texts_after, strict=True) if a != b]
    if changed:
        number = len(captions) + sum(map(len, more_captions))
        warn(
            f"{source}: removed HTML entities, tags or URL escapes from {len(changed)} of {number}"
            f" captions, such as {changed[0][:60]!r} -> {cleaned(changed[0])[:60]!r}"
        )
    return first, further if any(further) else []
