"""Write the model card of an edit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vldebias.version import __version__

if TYPE_CHECKING:
    from vldebias.projection.edit import Edit

WEIGHTS = "projection.safetensors"
"""Name of the file that holds an edit: its tensors, and its config in the header."""


def model_card(edit: Edit, roles: Sequence[str] = ()) -> str:
    """Return the text of the model card: which model the edit was fitted on, and how to attach
    it."""
    origin = edit.provenance
    kind = f"An edit of {edit.side} embeddings ({origin.method}) that mitigates"
    if edit.side == "both":
        kind = f"An edit of text and image embeddings ({origin.method}) that mitigates"
    elif edit.side == "denoiser":
        kind = (
            f"An edit of a pipeline's denoiser ({origin.method}): each image gets a sampled\nvalue,"
            " set in every cross-attention, and no word is written into its prompt. It mitigates"
        )
    subject = "pipe" if edit.side == "denoiser" else "model"
    return f"""---
library_name: vldebias
tags:
- fairness
- vision-language
---
# {origin.prompts or "An edit"} for {origin.model_id or "a model without a name"}

{kind} what its prompt set describes, made
with vldebias
{__version__}. It mitigates and does not remove bias: measure before and after on your own data.

    import vldebias
    attachment = vldebias.debias({subject}, vldebias.load_edit("this repository or folder"))

It is refused for weights other than those it was fitted on. Roles: {", ".join(roles) or "one"}.
Prompt set:
`{origin.prompts}` (hash `{origin.prompts_hash}`). The header of `{WEIGHTS}` has the rest.
"""
