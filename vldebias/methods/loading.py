"""Load edits of any kind."""

from __future__ import annotations

from pathlib import Path

from vldebias.methods.method import METHODS
from vldebias.projection.edit import Edit
from vldebias.projection.hub import WEIGHTS, find_folder


def load_edit(
    directory_or_repo: str | Path, *, revision: str | None = None
) -> Edit | dict[str, Edit]:
    """Load what `save_pretrained` or `push_to_hub` of any edit wrote.

    Args:
        directory_or_repo: a folder, or a hub repository.
        revision: of the repository.

    Returns:
        The edit; or role -> edit if the folder has one folder per role.

    Raises:
        InvalidInputError: no such folder or repository, damaged files, or a kind that no installed
            package knows.
    """
    list(METHODS)  # importing all methods, other packages' included, makes their kinds known
    folder = find_folder(directory_or_repo, revision)
    # An edit lies in the folder itself; those of a pipeline lie in one folder per role.
    if (folder / WEIGHTS).exists():
        return Edit.from_pretrained(folder)
    parts = sorted(path.parent for path in folder.glob(f"*/{WEIGHTS}"))
    if not parts:
        return Edit.from_pretrained(folder)  # raises, with the name of the missing file
    return {part.name: Edit.from_pretrained(part) for part in parts}
