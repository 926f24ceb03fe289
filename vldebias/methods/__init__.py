"""Fit edits of embeddings to prompts, and for some methods to images.

`METHODS` maps names to methods. Add one with `register_method`, or an entry point of the group
"vldebias.methods".
"""

from pathlib import Path
from typing import Any

# The closed forms come first wherever methods are listed.
from vldebias.methods import closed_form as closed_form  # isort: split

from vldebias.methods import baselines as baselines
from vldebias.methods.baselines.queries import Lian as Lian
from vldebias.methods.closed_form import ClosedForm as ClosedForm
from vldebias.methods.closed_form import Term as Term
from vldebias.methods.cross_attention import CrossAttention as CrossAttention
from vldebias.methods.cross_attention import prompt_set_of as prompt_set_of
from vldebias.methods.diagnostics import Diagnostics as Diagnostics
from vldebias.methods.method import METHODS as METHODS
from vldebias.methods.method import Method as Method
from vldebias.methods.method import Need as Need
from vldebias.methods.method import Problem as Problem
from vldebias.methods.method import Prompts as Prompts
from vldebias.methods.method import get_method as get_method
from vldebias.methods.method import register_method as register_method
from vldebias.methods.presets import Balanced as Balanced
from vldebias.methods.reference import Reference as Reference
from vldebias.methods.reference import labelled as labelled
from vldebias.methods.results import Rerank as Rerank
from vldebias.methods.target_shares import RankShares as RankShares
from vldebias.methods.target_shares import TargetShares as TargetShares
from vldebias.projection.edit import Edit
from vldebias.projection.hub import WEIGHTS, find_folder


def load_edit(directory_or_repo: str | Path, *, revision: str | None = None) -> Any:
    """Load an edit of any kind from a folder or a hub repository; of one folder per role, a mapping
    role -> edit.

    Raises:
        InvalidInputError: no such folder or repository, damaged files, or a kind that no installed
            package knows.
    """
    list(METHODS)  # those of other packages bring their own kinds
    folder = find_folder(directory_or_repo, revision)
    # An edit lies in the folder itself; those of a pipeline lie in one folder per role.
    parts = (
        []
        if (folder / WEIGHTS).exists()
        else sorted(path.parent for path in folder.glob(f"*/{WEIGHTS}"))
    )
    return {part.name: Edit.from_pretrained(part) for part in parts} or Edit.from_pretrained(folder)
