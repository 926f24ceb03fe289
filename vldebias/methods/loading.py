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
        directory_or_repo: a folder, or the name of a hub repository.
        revision: branch, tag or commit of the repository; None: the newest.

    Returns:
        The edit; or role -> edit if the folder has one folder per role.

    Raises:
        InvalidInputError: no such folder or repository, damaged files, or a kind that no installed
            package defines.
    """
    list(METHODS)  # importing all methods, including other packages', registers their kinds
    folder = find_folder(directory_or_repo, revision)
    # A single edit is in the folder itself, the edits of a pipeline are in one folder per role.
    if (folder / WEIGHTS).exists():
        return Edit.from_pretrained(folder)
    parts = sorted(path.parent for path in folder.glob(f"*/{WEIGHTS}"))
    if not parts:
        return Edit.from_pretrained(folder)  # raises, with the name of the missing file
    return {part.name: Edit.from_pretrained(part) for part in parts}
