"""Check that an edit works on a given model: attached, saved and loaded, and merged into the weights.

Only the given model is checked; nothing is compared with other machines. A pipeline is checked by its embeddings,
and by an image if it can generate one from a prompt alone.
"""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable, Iterator, Mapping
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

METHOD = "cali"  # the default may attach no edit to a model, and changes the prompts of a pipeline
PROMPTS = ("A photo of a doctor.", "A photo of a person in a garden.")


class Finding(NamedTuple):
    """Hold the outcome of one check: right is None where it could not be tried, and `note` says why."""

    name: str
    right: bool | None
    note: str = ""


def check(
    loaded: Loaded, prompts: str = "gender", *, draw: Mapping[str, Any] | None = None, merge: bool = True
) -> Iterator[Finding]:
    """Yield the findings one by one; the last check merges the edit into the weights, so the model is changed for good.

    Args:
        prompts: the prompt set that is fitted. draw: arguments of the call of a pipeline; None: its embeddings alone.
        merge: also run the last check.
    """
    host = resolve(loaded.host, tokenizer=loaded.tokenizer)
    read = _reader(host, loaded, draw)
    try:
        bare = read()
    except Exception as error:
        if draw is None or not isinstance(host, DiffusersHost):
            raise
        yield Finding("drawn", None, f"a call with a prompt alone fails ({type(error).__name__}: {str(error)[:150]})")
        read = _reader(host, loaded, None)
        bare = read()

    def as_before(tensors: list[Tensor]) -> bool:
        return all(map(torch.equal, tensors, read()))

    yield Finding("the same twice", as_before(bare))
    edits = fit_projections(loaded.host, prompts, method=METHOD, tokenizer=loaded.tokenizer)
    attachment = debias(loaded.host, edits, tokenizer=loaded.tokenizer)
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
        with debias(loaded.host, load_edits(folder), tokenizer=loaded.tokenizer):
            yield Finding("saved and loaded: the same", as_before(attached))
    if not merge:
        return
    # Weights that hold the edit against the attachment, all prompts changed alike: how far apart what is read is.
    name, draws = "merged: as attached", hasattr(loaded.host, "encode_prompt")
    attachment = debias(loaded.host, edits, tokenizer=loaded.tokenizer, keep_stated=False, negative=draws)
    expected = read()
    try:
        attachment.merge()
    except VldebiasError as error:
        attachment.remove()
        yield Finding(name, None, str(error))
        return
    if draws and as_before(bare):
        yield Finding(name, None, "the denoiser holds it now, and nothing was generated")
        return
    off, moved = (
        float(torch.cat([(a - b).float().flatten() for a, b in zip(one, expected, strict=True)]).norm())
        for one in (read(), bare)
    )
    yield Finding(name, off <= 0.05 * moved, f"off by {off / max(moved, 1e-12):.1%} of the edit")


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of a nest of lists and mappings."""
    if isinstance(value, Tensor):
        yield value
    for one in value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ():
        yield from _tensors(one)


def _reader(host: Host, loaded: Loaded, draw: Mapping[str, Any] | None) -> Callable[[], list[Tensor]]:
    """Return a function that reads what the model gives for two prompts, as a user asks for it."""
    if not isinstance(host, DiffusersHost):
        encode = host.encode if isinstance(host, JointHost) else partial(host.embed, role=host.roles[0])
        return torch.no_grad()(lambda: [encode(list(PROMPTS))])
    pipe = loaded.host
    if draw is None or not hasattr(pipe, "encode_prompt"):
        return torch.no_grad()(lambda: list(_tensors([host.call(prompt) for prompt in PROMPTS])))
    takes = inspect.signature(type(pipe).__call__).parameters
    known = {name: value for name, value in {"output_type": "latent", **draw}.items() if name in takes}

    def drawn() -> list[Tensor]:
        made = {"generator": torch.Generator().manual_seed(0)} if "generator" in takes else {}
        return list(_tensors(list(pipe(prompt=PROMPTS[0], return_dict=False, **known, **made))))

    return drawn
