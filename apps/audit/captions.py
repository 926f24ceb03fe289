"""Measure which attribute values training captions state about people."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vldebias.errors import InvalidInputError, shortened
from vldebias.prompts import PromptSet, load_prompts
from vldebias.report.result import Result

from ..captions.people import describe_captions


def audit_captions(captions: Sequence[Sequence[str]], attribute: str | Path | PromptSet) -> Result:
    """Measure which values training captions state about people, overall and by noun.

    For example, captions with "nurse" may state "female" in 91% of cases.

    See also docs/how-to/audit-captions.md.

    Args:
        captions: captions for each image.
        attribute: the attribute's prompt set, such as "gender".

    Returns:
        Rows `stated` (the share of people with a stated value) and `stated_share` (the share of
        each value among them) for all people, and for the most frequent nouns that do not state a
        value themselves. The rows have 95% Wilson intervals over images.

    Raises:
        InvalidInputError: If no English caption describes a person.

    >>> captions = [["A female nurse."]] * 6 + [["A nurse with his patient."]] * 2
    >>> result = audit_captions(captions, "gender")
    >>> result.row("captions", "stated_share", "none", subset="nurse").value
    0.25
    """
    if isinstance(captions, str | Path) or any(isinstance(texts, str) for texts in captions):
        raise InvalidInputError(
            f"captions: got {shortened(repr(captions), 60)}; expected a list of captions for each"
            " image, such as [['a nurse', 'a woman'], ['a man']]; for a table: vldebias audit"
            " --attribute gender --captions FILE"
        )
    part = describe_captions(captions, load_prompts(attribute))
    return Result.from_tasks("captions", [part], seconds=None)
