"""Does an edit do on this very model what it should? Three states, saving, merging, cost, and the paper's cosines.

What is checked is the model that is given; nothing is compared with other machines. A pipeline is asked for its
embeddings, and draws if it can from a prompt alone.
"""

from __future__ import annotations

import inspect
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vldebias.api import debias, fit_projections, make_problem
from vldebias.edit import Edit
from vldebias.errors import VldebiasError
from vldebias.evaluation.result import Measurement, Result, TaskProvenance, TaskResult
from vldebias.hosts import Host, resolve
from vldebias.hosts.diffusers import DiffusersHost
from vldebias.hosts.images import JointHost
from vldebias.hosts.reach import same_tensors, tensors_in
from vldebias.loading import Loaded
from vldebias.methods import load_edits
from vldebias.prompts import load_prompts
from vldebias.shelf import text_evidence

TASK, REPEATS = "check", 7
PROMPTS = ("A photo of a doctor.", "A photo of a person in a garden.")


@dataclass(frozen=True)
class Finding:
    """One check. value: a figure, or 1 and 0 for right and wrong; None where it could not be tried, and `note` why."""

    name: str
    value: float | None
    note: str = ""
    figure: bool = False

    @property
    def failed(self) -> bool:
        """Was it tried and is it wrong?"""
        return not self.figure and self.value == 0

    @property
    def said(self) -> str:
        """The value in a table."""
        if self.value is None:
            return "not tried"
        return f"{self.value:.3f}" if self.figure else "ok" if self.value else "WRONG"


def check(
    loaded: Loaded, prompts: str = "gender", *, draw: Mapping[str, Any] | None = None, merge: bool = True
) -> Iterator[Finding]:
    """One finding after another; the last merges the edit into the weights of the model, which is then spent.

    Args:
        prompts: the prompt set that is fitted. draw: arguments of the call of a pipeline; None: its embeddings alone.
        merge: also the last.
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
    yield Finding("the same twice", float(same_tensors(bare, read())))
    edits = fit_projections(loaded.host, prompts, tokenizer=loaded.tokenizer)
    attachment = debias(loaded.host, edits, tokenizer=loaded.tokenizer)
    attached = read()
    yield Finding("attached: changed", float(not same_tensors(bare, attached)))
    attachment.strength = 0.0
    yield Finding("strength 0: as without", float(same_tensors(bare, read())))
    attachment.strength = 1.0
    with attachment.disabled():
        yield Finding("disabled: as without", float(same_tensors(bare, read())))
    yield Finding("attached again: the same", float(same_tensors(attached, read())))
    yield Finding("seconds, attached / without", _cost(read, attachment.disabled), f"{REPEATS} by turns", figure=True)
    attachment.remove()
    yield Finding("removed: as without", float(same_tensors(bare, read())))
    with tempfile.TemporaryDirectory() as folder:
        for role, edit in edits.items():
            edit.save_pretrained(Path(folder) / role)
        with debias(loaded.host, load_edits(folder), tokenizer=loaded.tokenizer):
            yield Finding("saved and loaded: the same", float(same_tensors(attached, read())))
    yield from _cosines(loaded, prompts, edits)
    if merge:
        yield _merged(loaded, edits, read, bare)


def result_of(findings: list[Finding], loaded: Loaded, prompts: str, seconds: float) -> Result:
    """The findings as a result, which says the model, its fingerprint, versions and the device."""
    host = resolve(loaded.host, tokenizer=loaded.tokenizer)
    mark = host.fingerprint()
    about = TaskProvenance(
        task=TASK,
        title="An edit on one model",
        description="Three states, saving, merging, cost and the paper's cosines; 1: as it should be, 0: not.",
        model=loaded.name,
        fingerprint=None if mark is None else mark.to_dict(),
        prompts=prompts,
        prompts_hash=load_prompts(prompts).hash,
        settings={"class": host.name, "device": _device(host), "notes": {f.name: f.note for f in findings if f.note}},
    )
    result = TaskResult(about)
    result.rows = [
        Measurement(
            task=TASK, metric=one.name, method="default", value=one.value, interval=(one.value, one.value), change=None,
            better="neither", n={"models": 1},
        )
        for one in findings
        if one.value is not None
    ]  # fmt: skip
    return Result.of("check", [result], seconds=round(seconds, 1))


def _device(host: Host) -> str:
    modules = [one for one in host.text_modules() if isinstance(one, torch.nn.Module)]
    first = next((p for one in modules for p in one.parameters()), None)
    if first is None:
        return "unknown"
    name = torch.cuda.get_device_name(first.device) if first.device.type == "cuda" else first.device.type
    return f"{name}, {str(first.dtype).removeprefix('torch.')}"


def _reader(host: Host, loaded: Loaded, draw: Mapping[str, Any] | None) -> Callable[[], list[Tensor]]:
    """What the model gives for two prompts, as whoever uses it asks for it."""
    if isinstance(host, DiffusersHost):
        pipe = loaded.host
        if draw is None or not hasattr(pipe, "encode_prompt"):

            def encoded() -> list[Tensor]:
                turns = dict.fromkeys(part.when for part in host._parts)
                with torch.no_grad():
                    return list(
                        tensors_in([host._encode([prompt], None, when) for prompt in PROMPTS for when in turns])
                    )

            return encoded
        takes = inspect.signature(type(pipe).__call__).parameters
        call = {"output_type": "latent", **draw}
        known = {name: value for name, value in call.items() if name in takes}

        def drawn() -> list[Tensor]:
            made = {"generator": torch.Generator().manual_seed(0)} if "generator" in takes else {}
            return list(tensors_in(list(pipe(prompt=PROMPTS[0], return_dict=False, **known, **made))))

        return drawn
    if isinstance(host, JointHost):

        def embedded() -> list[Tensor]:
            with torch.no_grad():
                return [host.encode(list(PROMPTS))]

        return embedded
    return lambda: [host.embed(list(PROMPTS), host.roles[0])]


def _cost(read: Callable[[], Any], without: Callable[[], Any]) -> float:
    """Median over repeats of the ratio of two times that stand beside each other."""
    ratios = []
    for _ in range(REPEATS):
        times = []
        for context in (nullcontext, without):
            with context():
                _wait()
                start = time.perf_counter()
                read()
                _wait()
                times.append(time.perf_counter() - start)
        ratios.append(times[0] / times[1])
    return statistics.median(ratios)


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _cosines(loaded: Loaded, prompts: str, edits: Mapping[str, Edit]) -> Iterator[Finding]:
    """Of the texts of the set: what is left of the distance within pairs, and what a class prompt keeps of itself."""
    target, one = resolve(loaded.host, tokenizer=loaded.tokenizer), load_prompts(prompts)
    problem, _ = make_problem(target, one, None, None, None, None)
    for role, edit in edits.items():
        if edit.sampled or edit.reads_text:
            continue
        diagnostics = problem.diagnose(role, edit, one)
        if diagnostics.spurious_spread is not None:
            for when, value in zip(("before", "after"), diagnostics.spurious_spread, strict=True):
                yield Finding(f"{role}: spread of class cosines over the spurious texts, {when}", value, figure=True)
    for told in text_evidence(target, one, edits):
        for when, (mean, _, _) in (("before", told.before), ("after", told.after)):
            yield Finding(f"{told.part}: {told.metric}, {when}", mean, figure=True)


def _merged(loaded: Loaded, edits: Mapping[str, Edit], read: Callable[[], list[Tensor]], bare: list[Tensor]) -> Finding:
    """Weights that hold the edit against the attachment, all prompts changed alike: how far apart what is read is."""
    draws = hasattr(loaded.host, "encode_prompt")
    attachment = debias(loaded.host, edits, tokenizer=loaded.tokenizer, keep_stated=False, negative=draws)
    expected = read()
    try:
        attachment.merge()
    except VldebiasError as error:
        attachment.remove()
        return Finding("merged: as attached", None, str(error))
    now = read()
    if same_tensors(now, bare) and draws:
        return Finding("merged: as attached", None, "the denoiser holds it now, and nothing was drawn")
    off = _norm([a - b for a, b in zip(now, expected, strict=True)])
    moved = _norm([a - b for a, b in zip(expected, bare, strict=True)])
    return Finding(
        "merged: as attached", float(off <= 0.05 * moved), f"off by {off / max(moved, 1e-12):.1%} of the edit"
    )


def _norm(tensors: list[Tensor]) -> float:
    return float(sum(one.float().square().sum() for one in tensors)) ** 0.5
