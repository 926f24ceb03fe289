"""Load saved edits of any kind."""

from __future__ import annotations

from pathlib import Path

from vldebias.errors import check_arguments
from vldebias.methods.method import METHODS
from vldebias.projection.edit import Edit
from vldebias.projection.hub import WEIGHTS, find_folder


@check_arguments("directory_or_repo")
def load_edit(
    directory_or_repo: str | Path, *, revision: str | None = None
) -> Edit | dict[str, Edit]:
    """Load any edit saved by `save_pretrained` or `push_to_hub`.

    See also docs/how-to/merge.md.

    Args:
        directory_or_repo: a folder, or the name of a hub repository.
        revision: branch, tag or commit of the repository. If None, the latest is loaded.

    Returns:
        The edit, or a mapping from role to edit if there is one subfolder per role.

    Raises:
        InvalidInputError: If the folder or repository does not exist, files are damaged, or no
            installed package defines this kind of edit.

    >>> import tempfile
    >>> import vldebias
    >>> loaded = vldebias.load_host("miniature")
    >>> edits = vldebias.fit_projections(
    ...     loaded.host, "gender", method="cali", tokenizer=loaded.tokenizer
    ... )
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     edit = load_edit(edits.only.save_pretrained(folder))
    >>> edit.method  # attach it with vldebias.debias(model, edit)
    'cali'
    """
    list(METHODS)  # importing all methods, including other packages', registers their kinds
    folder = find_folder(directory_or_repo, revision)
    # A pipeline has one subfolder per role; a single edit is stored in the folder itself.
    parts = sorted(path.parent for path in folder.glob(f"*/{WEIGHTS}"))
    if not parts or (folder / WEIGHTS).exists():
        return Edit.from_pretrained(folder)  # raises an error that names a missing file
    return {part.name: Edit.from_pretrained(part) for part in parts}
