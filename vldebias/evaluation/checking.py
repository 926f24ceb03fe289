"""Check that an edit works on a given model: attached, saved and loaded, and merged into the weights.

Only the given model is checked; nothing is compared with other machines. A pipeline is checked by its embeddings,
and by an image if it can generate one from a prompt alone.
"""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vldebias.api import debias, fit_projections
from vldebias.edit import Edit
from vldebias.errors import VldebiasError
from vldebias.evaluation.result import Result, TaskProvenance, TaskResult
from vldebias.hosts import Host, resolve
from vldebias.hosts.diffusers import DiffusersHost
from vldebias.hosts.images import JointHost
from vldebias.hosts.pipelines import same_values
from vldebias.loading import Loaded
from vldebias.methods import load_edits
from vldebias.metrics.metric import Metric
from vldebias.prompts import load_prompts

METHOD = "cali"  # the default may attach no edit to a model, and changes the prompts of a pipeline
PROMPTS = ("A photo of a doctor.", "A photo of a person in a garden.")


@dataclass(frozen=True)
class Finding:
    """Hold the outcome of one check: value is 1 (right), 0 (wrong) or None (could not be tried; `note` says why)."""

    name: str
    value: float | None
    note: str = ""

    @property
    def failed(self) -> bool:
        """Return whether the check was tried and failed."""
        return self.value == 0

    @property
    def said(self) -> str:
        """Return the outcome as a table shows it."""
        return "not tried" if self.value is None else "ok" if self.value else "WRONG"


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

    def same(name: str, as_before: list[Tensor], expected: bool = True) -> Finding:
        return Finding(name, float(same_values(as_before, read()) == expected))

    yield same("the same twice", bare)
    edits = fit_projections(loaded.host, prompts, method=METHOD, tokenizer=loaded.tokenizer)
    attachment = debias(loaded.host, edits, tokenizer=loaded.tokenizer)
    attached = read()
    yield same("attached: changed", bare, expected=False)
    attachment.strength = 0.0
    yield same("strength 0: as without", bare)
    attachment.strength = 1.0
    with attachment.disabled():
        yield same("disabled: as without", bare)
    yield same("attached again: the same", attached)
    attachment.remove()
    yield same("removed: as without", bare)
    with tempfile.TemporaryDirectory() as folder:
        for role, edit in edits.items():
            edit.save_pretrained(Path(folder) / role)
        with debias(loaded.host, load_edits(folder), tokenizer=loaded.tokenizer):
            yield same("saved and loaded: the same", attached)
    if merge:
        yield _merged(loaded, edits, read, bare)


def result_of(findings: list[Finding], loaded: Loaded, prompts: str, seconds: float) -> Result:
    """Return the findings as a result with the model, its fingerprint, the versions and the device."""
    host = resolve(loaded.host, tokenizer=loaded.tokenizer)
    mark = host.fingerprint()
    weights = [p for one in host.text_modules() if isinstance(one, torch.nn.Module) for p in one.parameters()]
    device = f"{weights[0].device}, {str(weights[0].dtype).removeprefix('torch.')}" if weights else "unknown"
    about = TaskProvenance(
        task="check",
        title="An edit on one model",
        description="Three states, saving and merging; 1: as it should be, 0: not.",
        model=loaded.name,
        fingerprint=None if mark is None else mark.to_dict(),
        prompts=prompts,
        prompts_hash=load_prompts(prompts).hash,
        settings={"class": host.name, "device": device, "notes": {f.name: f.note for f in findings if f.note}},
    )
    done = TaskResult(about)
    for one in findings:
        if one.value is not None:
            done.add(Metric(one.name, one.name), METHOD, one.value, n={"models": 1})
    return Result.of("check", [done], seconds=round(seconds, 1))


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors of a nest of lists and mappings."""
    if isinstance(value, Tensor):
        yield value
    for one in value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ():
        yield from _tensors(one)


def _reader(host: Host, loaded: Loaded, draw: Mapping[str, Any] | None) -> Callable[[], list[Tensor]]:
    """What the model gives for two prompts, as whoever uses it asks for it."""
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


def _merged(loaded: Loaded, edits: Mapping[str, Edit], read: Callable[[], list[Tensor]], bare: list[Tensor]) -> Finding:
    """Weights that hold the edit against the attachment, all prompts changed alike: how far apart what is read is."""
    name, draws = "merged: as attached", hasattr(loaded.host, "encode_prompt")
    attachment = debias(loaded.host, edits, tokenizer=loaded.tokenizer, keep_stated=False, negative=draws)
    expected = read()
    try:
        attachment.merge()
    except VldebiasError as error:
        attachment.remove()
        return Finding(name, None, str(error))
    now = read()
    if same_values(now, bare) and draws:
        return Finding(name, None, "the denoiser holds it now, and nothing was generated")
    off, moved = (
        float(torch.cat([(a - b).float().flatten() for a, b in zip(one, other, strict=True)]).norm())
        for one, other in ((now, expected), (expected, bare))
    )
    return Finding(name, float(off <= 0.05 * moved), f"off by {off / max(moved, 1e-12):.1%} of the edit")
