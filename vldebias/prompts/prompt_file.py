"""Read a list of prompts from a text file."""

from __future__ import annotations

from pathlib import Path

from vldebias.errors import InvalidInputError


def read_prompts(path: str | Path) -> tuple[str, ...]:
    """Read prompts from a text file, one per line; empty lines and those that begin with # are left
    out.

    Raises:
        InvalidInputError: no text file in UTF-8, or no prompt in it.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(
            f"{path!s:.200}: expected a text file in UTF-8, one prompt a line: {error}"
        ) from error
    prompts: dict[str, None] = {}
    for line in lines:
        if line.strip() and not line.startswith("#"):
            prompts[line.strip()] = None
    if not prompts:
        raise InvalidInputError(f"{path}: got no prompts; expected one a line")
    return tuple(prompts)
