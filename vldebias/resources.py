"""Where the files that come with the package lie, in an installed wheel or in a checkout."""

import difflib
from pathlib import Path

from vldebias.errors import PromptSetError

__all__ = ["prompt_file", "prompt_names", "prompts_dir"]

_PACKAGE = Path(__file__).resolve().parent


def prompts_dir() -> Path:
    """The folder with the prompt sets, one YAML file each.

    An installed wheel has it inside the package; a checkout, or an editable install of one, beside it.

    Raises:
        PromptSetError: neither place has prompt sets.
    """
    places = (_PACKAGE / "_resources" / "prompts", _PACKAGE.parent / "prompts")
    for place in places:
        if any(place.glob("*.yaml")):
            return place
    raise PromptSetError(
        f"got no prompt sets (*.yaml) in {places[0]} or {places[1]}; expected them in one of the two; "
        "reinstall vldebias."
    )


def prompt_names() -> list[str]:
    """Names of the prompt sets that come with the package, sorted: the stems of their files."""
    return sorted(path.stem for path in prompts_dir().glob("*.yaml"))


def prompt_file(name: str) -> Path:
    """The file of the prompt set `name`.

    Raises:
        PromptSetError: there is none; the message lists the names, the likely ones first.
    """
    names = prompt_names()
    if name in names:
        return prompts_dir() / f"{name}.yaml"
    close = difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(map(repr, close))}?" if close else "choose one of them."
    raise PromptSetError(
        f"got the prompt set {name!r}; expected one of {', '.join(names)}, or the path of a .yaml file; {hint}"
    )
