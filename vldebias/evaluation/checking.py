"""Check that an edit works on a given model: attached, saved and loaded, and merged into the weights.

Only the given model is checked; nothing is compared with other machines. A pipeline is checked by an image if it can
generate one from a prompt alone, else by its embeddings.
"""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vldebias.api import debias, fit_projections
from vldebias.errors import VldebiasError
from vldebias.hosts import Host, resolve
from vldebias.hosts.diffusers import DiffusersHost
from vldebias.hosts.images import JointHost
from vldebias.loading import Loaded
from vldebias.methods import load_edits

PROMPTS = ["A photo of a doctor.", "A photo of a person in a garden."]


class Finding(NamedTuple):
    """Hold the outcome of one check: right is None where it could not be tried, and `note` says why."""

    name: str
    right: bool | None
    note: str = ""


def check(loaded: Loaded, prompts: str = "gender", **call: Any) -> Iterator[Finding]:
    """Yield the findings one by one; the last check merges the edit into the weights, so the model is changed for good.

    prompts: the prompt set that is fitted, by "cali": the default may attach no edit, and changes a pipeline's prompts.
    call: arguments of the call of a pipeline, where it takes them.
    """
    model, host, own = loaded.host, resolve(loaded.host, tokenizer=loaded.tokenizer), {"tokenizer": loaded.tokenizer}
    generates = isinstance(host, DiffusersHost) and hasattr(model, "encode_prompt")
    read = partial(_generated, model, call) if generates else partial(_embedded, host)
    try:
        bare = read()
    except Exception as error:
        if not generates:
            raise
        yield Finding("drawn", None, f"a call with a prompt alone fails ({type(error).__name__}: {str(error)[:150]})")
        read = partial(_embedded, host)
        bare = read()

    def as_before(tensors: list[Tensor]) -> bool:
        return all(map(torch.equal, tensors, read()))

    yield Finding("the same twice", as_before(bare))
    edits = fit_projections(model, prompts, method="cali", **own)
    attachment = debias(model, edits, **own)
    attached = read()
    yield Finding("attached: changed", not as_before(bare))
    attachment.strength = 0.0
    yield Finding("strength 0: as without", as_before(bare))
    attachment.strength = 1.0
    with attachment.disabled():
        yield Finding("disabled: as without", as_before(bare))
    yield Finding("attached again: the same", as_before(attached))
    attachment.remove()
    yield Finding("removed: as without", as_before(bare))
    with tempfile.TemporaryDirectory() as folder:
        for role, edit in edits.items():
            edit.save_pretrained(Path(folder) / role)
        with debias(model, load_edits(folder), **own):
            yield Finding("saved and loaded: the same", as_before(attached))
    # Weights that hold the edit against the attachment, all prompts changed alike: how far apart what is read is.
    attachment = debias(model, edits, keep_stated=False, negative=generates, **own)
    expected = read()
    try:
        attachment.merge()
    except VldebiasError as error:
        attachment.remove()
        yield Finding("merged: as attached", None, str(error))
        return
    merged = read()
    if generates and all(map(torch.equal, merged, bare)):
        yield Finding("merged: as attached", None, "the denoiser holds it now, and nothing was generated")
        return
    off, moved = (
        float(torch.cat([(a - b).float().flatten() for a, b in zip(one, expected, strict=True)]).norm())
        for one in (merged, bare)
    )
    yield Finding("merged: as attached", off <= 0.05 * moved, f"off by {off / max(moved, 1e-12):.1%} of the edit")


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of a nest of lists and mappings."""
    if isinstance(value, Tensor):
        yield value
    for one in value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ():
        yield from _tensors(one)


@torch.no_grad()
def _embedded(host: Host) -> list[Tensor]:
    """Return the embeddings of two prompts."""
    if isinstance(host, DiffusersHost):
        return list(_tensors([host.call(prompt) for prompt in PROMPTS]))
    return [host.encode(PROMPTS) if isinstance(host, JointHost) else host.embed(PROMPTS, role=host.roles[0])]


def _generated(pipe: Any, call: Mapping[str, Any]) -> list[Tensor]:
    """Return what a pipeline generates of a prompt from one seed, without decoding where that can be left out."""
    takes = inspect.signature(type(pipe).__call__).parameters
    given = {"output_type": "latent", "generator": torch.Generator().manual_seed(0), **call}
    known = {name: value for name, value in given.items() if name in takes}
    return list(_tensors(list(pipe(prompt=PROMPTS[0], return_dict=False, **known))))
