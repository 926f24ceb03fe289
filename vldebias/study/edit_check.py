"""Check that an edit can be attached to a model, removed completely, saved and merged."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vldebias.api import debias, fit_projections
from vldebias.errors import VldebiasError
from vldebias.hosts import Host, resolve
from vldebias.hosts.clip.images import JointHost
from vldebias.hosts.loading import Loaded
from vldebias.hosts.pipelines.diffusers import DiffusersHost
from vldebias.methods import load_edit

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline

# Prompts whose outputs are compared with and without an edit.
PROMPTS = ["A photo of a doctor.", "A photo of a person in a garden."]
Reader = Callable[[], list[Tensor]]
TOLERANCE = 0.05  # relative difference allowed between merged and attached edits


# Name of the check, whether it passed (None if it could not be run), and a note with the reason.
Finding = tuple[str, bool | None, str]


def check(loaded: Loaded, attribute: str = "gender", **call: object) -> Iterator[Finding]:
    """Run all checks and yield their findings.

    The last check merges the edit into the weights, which cannot be undone. The checks compare
    generated images if the pipeline needs nothing but a prompt, and embeddings otherwise.

    Args:
        loaded: the model or pipeline.
        attribute: prompt set for fitting "cali", because the default method may not attach an edit.
        call: further arguments for calling the pipeline.
    """
    model = loaded.host
    tokenizer = loaded.tokenizer
    host = resolve(model, tokenizer=tokenizer)
    generates = isinstance(host, DiffusersHost) and hasattr(model, "encode_prompt")
    measure = partial(_outputs, host, model if generates else None, call)
    try:
        unedited = measure()
    except Exception as error:
        # Some pipelines need more than a prompt, such as an image or a mask. For these, compare
        # embeddings instead.
        if not generates:
            raise
        problem = f"{type(error).__name__}: {str(error)[:150]}"
        yield "generated", None, f"a call with a prompt alone fails ({problem})"
        measure = partial(_outputs, host)
        unedited = measure()

    # If two unedited calls give different outputs, the other checks are meaningless.
    yield "two unedited calls agree", _are_equal(unedited, measure()), ""
    edits = fit_projections(model, attribute, method="cali", tokenizer=tokenizer)
    attachment = debias(model, edits, tokenizer=tokenizer)
    attached = measure()
    yield "attaching changes the output", not _are_equal(unedited, attached), ""
    # Strength 0 must skip the edit instead of multiplying by the identity, which could change the
    # last bits.
    attachment.strength = 0.0
    yield "strength 0 changes nothing", _are_equal(unedited, measure()), ""
    attachment.strength = 1.0
    with attachment.disabled():
        yield "disabling restores the output", _are_equal(unedited, measure()), ""
    yield "enabling again restores the edit", _are_equal(attached, measure()), ""
    attachment.remove()
    yield "removing restores the output", _are_equal(unedited, measure()), ""
    with tempfile.TemporaryDirectory() as folder:
        for role, edit in edits.items():
            edit.save_pretrained(Path(folder) / role)
        with debias(model, load_edit(folder), tokenizer=tokenizer):
            yield "saving and loading changes nothing", _are_equal(attached, measure()), ""
    # Edit every prompt, because merged weights also affect every prompt.
    attachment = debias(model, edits, keep_stated=False, negative=generates, tokenizer=tokenizer)
    expected = measure()
    name = "merging changes nothing"
    try:
        attachment.merge()
    except VldebiasError as error:
        attachment.remove()
        yield name, None, str(error)
        return
    merged = measure()
    if generates and _are_equal(merged, unedited):
        yield name, None, "the edit is merged into the denoiser, and nothing was generated"
        return
    # Merged weights are rounded to half precision, so allow a difference relative to the edit.
    difference = _distance(merged, expected)
    size = _distance(unedited, expected)
    note = f"differs by {difference / max(size, 1e-12):.1%} of the edit's effect"
    yield name, difference <= TOLERANCE * size, note


def _are_equal(before: list[Tensor], after: list[Tensor]) -> bool:
    """Return whether all tensors are bit-identical."""
    return all(map(torch.equal, before, after))


def _distance(before: list[Tensor], after: list[Tensor]) -> float:
    """Return the Euclidean distance between two lists of tensors."""
    pairs = zip(before, after, strict=True)
    return float(torch.cat([(first - second).float().flatten() for first, second in pairs]).norm())


@torch.no_grad()
def _outputs(
    host: Host, pipe: DiffusionPipeline | None = None, call: Mapping[str, object] | None = None
) -> list[Tensor]:
    """Return a pipeline's output for a fixed seed, or a model's embeddings of two prompts."""
    if pipe is not None:
        options = {
            "output_type": "latent",
            "generator": torch.Generator().manual_seed(0),
            **(call or {}),
        }
        names = inspect.signature(type(pipe).__call__).parameters
        # Some pipelines do not take output_type, and others do not take a generator.
        options = {name: value for name, value in options.items() if name in names}
        return list(_tensors(pipe(prompt=PROMPTS[0], return_dict=False, **options)))
    if isinstance(host, DiffusersHost):
        return list(_tensors([host.call([prompt]) for prompt in PROMPTS]))
    if isinstance(host, JointHost):
        return [host.encode(PROMPTS)]
    return [host.embed(PROMPTS, role=host.roles[0])]


def _tensors(value: object) -> Iterator[Tensor]:
    """Yield the tensors in nested lists and mappings."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
