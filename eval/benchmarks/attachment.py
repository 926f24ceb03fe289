"""What an attachment costs a text tower: encode_text attached (ours) against a model without any (plain).

python -m eval.benchmarks.attachment                                            # print the table
python -m eval.benchmarks.attachment --json eval/results/bench_attachment.json  # and write it

The towers have the sizes of the named open_clip architectures and random weights: the cost does not depend on them.
"Stated kept" adds decoding the token ids, cached per prompt; "using" chooses a strength for the call, or a method and a
strength for each of its prompts. A ratio of 1 is free.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import open_clip
import torch

import vldebias
from eval.benchmarks.timing import arguments, medians, report

SIZES = ("ViT-B-32", "ViT-L-14")
BATCH = 32
WAYS: dict[str, dict[str, Any]] = {
    "": {},
    "using one strength": {"strength": 0.5},
    "using one each": {
        "method": ["default", "other", "none", "other"] * (BATCH // 4),
        "strength": [1.0, 0.5, 1.0, 1.0] * (BATCH // 4),
    },
}


@torch.no_grad()
def measure(name: str, repetitions: int) -> Iterator[dict[str, Any]]:
    """A row for each way to call."""
    torch.manual_seed(0)
    model, tokenizer = open_clip.create_model(name).eval(), open_clip.get_tokenizer(name)
    plain = copy.deepcopy(model)  # never attached to
    ids = tokenizer([f"A photo of a doctor, number {i}." for i in range(BATCH)])
    for kept in (False, True):
        attachment = vldebias.debias(model, "celeba", method="cali", keep_stated=kept, tokenizer=tokenizer)
        attachment.add("other", attachment.projections, keep_stated=kept)

        def attached(**asked: Any) -> None:
            with attachment.using(**asked) if asked else nullcontext():  # noqa: B023 - called before the next one
                model.encode_text(ids)

        calls: dict[str, Callable[[], object]] = {"plain": partial(plain.encode_text, ids)}
        ways: dict[str, dict[str, Any]] = {"stated kept": {}} if kept else WAYS
        calls |= {way: partial(attached, **asked) for way, asked in ways.items()}
        seconds = medians(calls, repetitions)
        attachment.remove()
        for way in ways:
            size = f"{name}, batch {BATCH}" + (f", {way}" if way else "")
            both = {"ours": seconds[way], "plain": seconds["plain"]}
            yield {"what": "encode_text, attached / plain", "size": size, **both, "ratio": both["plain"] / both["ours"]}


if __name__ == "__main__":
    given = arguments(__doc__, repetitions=7)
    rows: list[dict[str, Any]] = []
    for name in SIZES:
        rows += measure(name, given.repetitions)
        report("bench_attachment", rows, given.json)  # as it goes
