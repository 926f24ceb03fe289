"""Write an edit's model card."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vldebias.utils.markup import code_span
from vldebias.version import __version__

if TYPE_CHECKING:
    from vldebias.projection.edit import Edit

WEIGHTS = "projection.safetensors"
"""Name of the file that contains an edit's tensors, with its config in the header."""


def model_card(edit: Edit, roles: Sequence[str] = ()) -> str:
    """Return a model card that states what the edit was fitted on and how to attach it.

    Args:
        edit: the fitted edit.
        roles: the roles whose edits share the repository, or an empty sequence for a single edit.
    """
    origin = edit.provenance
    # Escape names, which may come from untrusted sources, because the hub renders the card as HTML.
    method = code_span(origin.method)
    prompts = code_span(origin.prompts or "None")
    kind = f"An edit of {edit.side} embeddings ({method})"
    if edit.side == "both":
        kind = f"An edit of text and image embeddings ({method})"
    elif edit.side == "denoiser":
        kind = (
            f"An edit of a pipeline's denoiser ({method}): each image gets a sampled\nvalue,"
            " set in every cross-attention layer, and its prompt is not changed"
        )
    # A fit does not show that an edit helps, so the card does not say so.
    effect = (
        "It is meant to reduce the bias that its prompt set describes. Whether it does depends on\n"
        "the model and the data, so measure before and after on your own data."
    )
    if clarity := getattr(edit, "clarity_in_words", ""):
        effect += (
            f"\n\nHow clearly the model responds to each value: {code_span(clarity)}. Below"
            f" 0.13,\nit hardly follows the words for the value."
        )
    if getattr(edit, "rank", None) == 0:
        effect = "It removes no direction, so it changes nothing and reduces no bias."
    title = prompts if origin.prompts else "An edit"
    model = code_span(origin.model_id) if origin.model_id else "a model without a name"
    listed_roles = ", ".join(map(code_span, roles)) or "one"
    subject = "pipe" if edit.side == "denoiser" else "model"
    return f"""---
library_name: vldebias
tags:
- fairness
- vision-language
---
# {title} for {model}

{kind}, created with vldebias {__version__}.
{effect}

    import vldebias
    attachment = vldebias.debias({subject}, vldebias.load_edit("this repository or folder"))

It can only be attached to the weights that it was fitted on. Roles: {listed_roles}. Prompt set:
{prompts} (hash {code_span(origin.prompts_hash or "None")}). See the header of `{WEIGHTS}` for all
settings.
"""
