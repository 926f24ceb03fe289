"""Compare attached text towers with plain ones.

`python -m eval.benchmarks.speed --only towers` runs this part. Times are CPU times on a single
thread, medians of rounds that call every variant once. `bare again` measures the plain code a
second time to show the noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

import vldebias
from eval.tables import medians

Row = dict[str, Any]
JOBS = ("doctor", "nurse", "pilot", "chef", "woman who codes", "male teacher")
NO_CHANGE = 1e-5


def towers(
    architecture: str = "ViT-B-32",
    rounds: Mapping[int, int] | None = None,
    modes: tuple[str, ...] = ("eager", "compiled"),
) -> Iterator[Row]:
    """Compare `encode_text` with and without an attachment, both compiled and not compiled.

    `rounds` maps numbers of prompts to numbers of rounds, in ascending order of prompts.
    """
    import open_clip

    # With 256 texts, a call takes a quarter of a minute.
    rounds = rounds or {1: 21, 32: 5, 256: 3}
    model = open_clip.create_model(architecture).eval()
    tokenizer = open_clip.get_tokenizer(architecture)
    for mode in modes:
        bare = model.encode_text
        attachment = vldebias.debias(
            model, "professions-gender", method="cali", lam=1000, tokenizer=tokenizer
        )
        attached = model.encode_text
        if mode == "compiled":
            # Use one graph for all numbers of prompts except 1, which torch always specialises.
            bare = torch.compile(bare, fullgraph=True, dynamic=True)
            attached = torch.compile(attached, fullgraph=True, dynamic=True)
        for count, repetitions in rounds.items():
            ids = tokenizer([f"A photo of a {JOBS[i % len(JOBS)]}, {i}." for i in range(count)])
            (edit,) = attachment.projections.values()
            row = _tower_row(bare, attached, ids, repetitions)
            features = row.pop("features")
            row["difference"] = _unlike(features, edit.matrix().float())
            row["within"] = NO_CHANGE
            yield {
                "what": f"attached / bare encode_text, {mode}",
                "size": f"ViT-B/32, {count} texts",
                **row,
                "ms of the edit alone": 1e3 * _edit_alone(model, ids),
            }
        attachment.remove()


@torch.no_grad()
def _tower_row(
    bare: Callable[[Tensor], Tensor],
    attached: Callable[[Tensor], Tensor],
    ids: Tensor,
    rounds: int,
) -> Row:
    """Compare both variants on the same texts, alternately."""
    features: dict[str, Tensor] = {}

    def encode(name: str, way: Callable[[Tensor], Tensor]) -> None:
        features[name] = way(ids)

    ways = {"plain": bare, "ours": attached, "bare again": bare}
    calls = {name: partial(encode, name, way) for name, way in ways.items()}
    seconds = medians(calls, rounds)
    changed = (features["ours"] - features["plain"]).norm(dim=1) > NO_CHANGE
    return {
        **seconds,
        "ratio": seconds["plain"] / seconds["ours"],
        "attached / bare": seconds["ours"] / seconds["plain"],
        "bare again / bare": seconds["bare again"] / seconds["plain"],
        "ms more a call": 1e3 * (seconds["ours"] - seconds["plain"]),
        "share of texts that are changed": float(changed.double().mean()),
        "features": features,
    }


def _unlike(features: Mapping[str, Tensor], matrix: Tensor) -> float:
    """Return the largest relative distance of attached rows from bare or edited rows."""
    bare = features["plain"]
    left_unchanged = (features["ours"] - bare).norm(dim=1)
    edited = (features["ours"] - bare @ matrix.T).norm(dim=1)
    return float((torch.minimum(left_unchanged, edited) / bare.norm(dim=1)).max())


@torch.no_grad()
def _edit_alone(model: Any, ids: Tensor, rounds: int = 15) -> float:
    """Return the seconds that an uncompiled attached call spends outside of the tower."""
    hook = model.encode_text
    tower = hook.original
    features = torch.randn(len(ids), model.text_projection.shape[1])
    hook.original = lambda text, normalize=False: features
    seconds = medians({"edit": partial(hook, ids)}, rounds)["edit"]
    hook.original = tower
    return seconds
