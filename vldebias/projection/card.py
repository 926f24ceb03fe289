"""Write an edit's model card."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from vldebias.projection.hub import WEIGHTS
from vldebias.projection.provenance import Provenance
from vldebias.utils.markup import code_span
from vldebias.version import __version__


def model_card(origin: Provenance, side: str, effect: str, roles: Sequence[str] = ()) -> str:
    """Return a model card that states what an edit was fitted on and how to attach it.

    Args:
        origin: how and on which model the edit was fitted.
        side: the edited embeddings, as in `Edit.side`.
        effect: what is known about the edit's effect, as markdown.
        roles: the roles whose edits share the repository, or an empty sequence for a single edit.
    """
    # Escape names, which may come from untrusted sources, because the hub renders the card as HTML.
    method = code_span(origin.method)
    prompt_set = code_span(origin.attribute or "None")
    kind = f"An edit of {side} embeddings ({method})"
    if side == "both":
        kind = f"An edit of text and image embeddings ({method})"
    elif side == "denoiser":
        kind = (
            f"An edit of a pipeline's denoiser ({method}): each image gets a sampled\nvalue,"
            " set in every cross-attention layer, and its prompt is not changed"
        )
    title = prompt_set if origin.attribute else "An edit"
    model = code_span(origin.model_id) if origin.model_id else "a model without a name"
    listed_roles = ", ".join(map(code_span, roles)) or "one"
    subject = "pipe" if side == "denoiser" else "model"
    base = ""
    hub_id = re.fullmatch(r"[\w.-]+/[\w.-]+", origin.model_id or "")
    if hub_id is not None and not Path(hub_id[0]).exists():
        base = f"""base_model: {origin.model_id}
license: other
license_name: license-of-the-base-model
license_link: https://huggingface.co/{origin.model_id}
"""
    task = "zero-shot-image-classification"
    if side == "denoiser" or (origin.space or "").startswith("diffusers"):
        task = "text-to-image"
    return f"""---
library_name: vldebias
pipeline_tag: {task}
{base}tags:
- fairness
- vision-language
---
# {title} for {model}

{kind}, created with vldebias {__version__}.
{effect}

    import vldebias
    attachment = vldebias.debias({subject}, vldebias.load_edit("this repository or folder"))

It can only be attached to the weights that it was fitted on. Roles: {listed_roles}. Prompt set:
{prompt_set} (hash {code_span(origin.attribute_hash or "None")}). See the header of `{WEIGHTS}` for
all settings.
"""
