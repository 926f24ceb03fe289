"""Check an edit on a model: that it is attached, comes off without a trace, is saved and merged."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vldebias.api import debias, fit_projections
from vldebias.errors import VldebiasError
from vldebias.hosts import Host, resolve
from vldebias.hosts.clip.images import JointHost
from vldebias.hosts.loading import Loaded
from vldebias.hosts.pipelines.diffusers import DiffusersHost
from vldebias.methods import load_edit

# Prompts by which an edit is checked.
PROMPTS = ["A photo of a doctor.", "A photo of a person in a garden."]
Reader = Callable[[], list[Tensor]]
TOLERANCE = 0.05  # of the edit, between merged weights and an attachment


# A check, whether it passed (None where it could not be tried), and a note that says why.
Finding = tuple[str, bool | None, str]


def check(loaded: Loaded, prompts: str = "gender", **call: Any) -> Iterator[Finding]:
    """Yield the findings one by one; the last check merges the edit into the weights, so the model
    is changed for good.

    A pipeline is checked by an image if it can generate one from a prompt alone, else by its
    embeddings.

    Args:
        loaded: the model or pipeline.
        prompts: the prompt set that is fitted, by "cali": the default may attach no edit, and
            changes a pipeline's prompts.
        call: arguments of the call of a pipeline, where it takes them.
    """
    model = loaded.host
    tokenizer = loaded.tokenizer
    host = resolve(model, tokenizer=tokenizer)
    generates = isinstance(host, DiffusersHost) and hasattr(model, "encode_prompt")
    read = partial(_read, host, model if generates else None, call)
    try:
        bare = read()
    except Exception as error:
        # A model that cannot even embed is an error of its own; a pipeline may need more than a
        # prompt (an image, a mask) and is checked by its embeddings then.
        if not generates:
            raise
        problem = f"{type(error).__name__}: {str(error)[:150]}"
        yield "generated", None, f"a call with a prompt alone fails ({problem})"
        read = partial(_read, host)
        bare = read()

    # First of all: where two bare calls differ, nothing that follows means anything.
    yield "the same twice", _are_equal(bare, read()), ""
    edits = fit_projections(model, prompts, method="cali", tokenizer=tokenizer)
    attachment = debias(model, edits, tokenizer=tokenizer)
    attached = read()
    yield "attached: changed", not _are_equal(bare, attached), ""
    # Bit-identical, not merely close: strength 0 must not go through a product with the identity.
    attachment.strength = 0.0
    yield "strength 0: as without", _are_equal(bare, read()), ""
    attachment.strength = 1.0
    with attachment.disabled():
        yield "disabled: as without", _are_equal(bare, read()), ""
    yield "attached again: the same", _are_equal(attached, read()), ""
    attachment.remove()
    yield "removed: as without", _are_equal(bare, read()), ""
    with tempfile.TemporaryDirectory() as folder:
        for role, edit in edits.items():
            edit.save_pretrained(Path(folder) / role)
        with debias(model, load_edit(folder), tokenizer=tokenizer):
            yield "saved and loaded: the same", _are_equal(attached, read()), ""
    # All prompts are changed alike, as merged weights do.
    attachment = debias(model, edits, keep_stated=False, negative=generates, tokenizer=tokenizer)
    expected = read()
    name = "merged: as attached"
    try:
        attachment.merge()
    except VldebiasError as error:
        attachment.remove()
        yield name, None, str(error)
        return
    merged = read()
    if generates and _are_equal(merged, bare):
        yield name, None, "the denoiser holds it now, and nothing was generated"
        return
    # Relative to the edit: in half precision merged weights round, and an absolute limit would be
    # of the model's scale.
    difference = _distance(merged, expected)
    size = _distance(bare, expected)
    note = f"off by {difference / max(size, 1e-12):.1%} of the edit"
    yield name, difference <= TOLERANCE * size, note


def _are_equal(before: list[Tensor], after: list[Tensor]) -> bool:
    """Return whether all tensors are equal, bit for bit."""
    return all(map(torch.equal, before, after))


def _distance(before: list[Tensor], after: list[Tensor]) -> float:
    """Return how far apart two lists of tensors are."""
    differences = []
    for first, second in zip(before, after, strict=True):
        differences.append((first - second).float().flatten())
    return float(torch.cat(differences).norm())


@torch.no_grad()
def _read(host: Host, pipe: Any = None, call: Mapping[str, Any] | None = None) -> list[Tensor]:
    """Return what a pipeline generates from one seed, not decoded where that can be; else
    embeddings of two prompts."""
    if pipe is not None:
        options = {
            "output_type": "latent",
            "generator": torch.Generator().manual_seed(0),
            **(call or {}),
        }
        names = inspect.signature(type(pipe).__call__).parameters
        # Pipelines differ in what they take: some have no output_type, others no generator.
        options = {name: value for name, value in options.items() if name in names}
        return list(_tensors(pipe(prompt=PROMPTS[0], return_dict=False, **options)))
    if isinstance(host, DiffusersHost):
        return list(_tensors([host.call([prompt]) for prompt in PROMPTS]))
    if isinstance(host, JointHost):
        return [host.encode(PROMPTS)]
    return [host.embed(PROMPTS, role=host.roles[0])]


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of a nest of lists and mappings."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
