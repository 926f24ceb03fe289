"""Widen a trained network by duplicating features, and move its embeddings into cones.

Layer norms are not affected by duplicating features. Each copy of a feature has half the outgoing
weight, so that the wide network has the same outputs as the narrow one (exactly, if every feature
is duplicated equally often). Random towers start in two narrow, distant cones, where contrastive
training with a low temperature leaves them (Liang et al. 2022). Towers whose cones have opened are
moved back to such cones.
"""

from collections.abc import Mapping

import numpy as np
import torch

from eval.miniature.world import shuffled
from vldebias.miniature.architectures import HEAD_WIDTH as HEAD

Weights = dict[str, torch.Tensor]
# The share of each image or text embedding that is common to all. With CLIP's temperature of 1/100,
# the remainder leads to the logits of the narrow model with its own temperature:
# 100 * (1 - 0.81^2)^0.5 * (1 - 0.953^2)^0.5 = 17.7.
CONES = (0.81, 0.953)
CONES_COSINE = 0.36


def widened(old: Mapping[str, torch.Tensor], new: Mapping[str, torch.Tensor]) -> Weights:
    """Return weights with the shapes of `new` that continue from `old`.

    Args:
        old: The state dict of a narrower open_clip CLIP model.
        new: The state dict of a new model with the same vocabulary.
    """
    result: Weights = {}
    for tower, projection, final in (
        ("", "text_projection", "ln_final"),
        ("visual.", "visual.proj", "visual.ln_post"),
    ):
        result |= _tower(tower, projection, old, new)
        _begin_cone(result, projection, final, old, text=not tower)
    words, table = old["token_embedding.weight"], new["token_embedding.weight"].clone() * 0.5
    table[: len(words)] = words[:, _copies(words.shape[1], table.shape[1])]
    return result | {
        "token_embedding.weight": table,
        "logit_scale": torch.tensor(float(np.log(100.0))),
    }


def _copies(narrow: int, wide: int) -> torch.Tensor:
    """Return the old feature that each new feature copies (wide,). Heads are copied in full."""
    heads = [k % (narrow // HEAD) for k in range(wide // HEAD)]
    return torch.cat([torch.arange(HEAD) + HEAD * head for head in heads])


def _tower(
    prefix: str, projection: str, old: Mapping[str, torch.Tensor], new: Mapping[str, torch.Tensor]
) -> Weights:
    others = ("logit_scale", "token_embedding.weight")
    names = [
        name for name in old if name.startswith("visual.") == bool(prefix) and name not in others
    ]
    final = f"{prefix}ln_post.weight" if prefix else "ln_final.weight"
    narrow, wide = old[final].numel(), new[final].numel()
    columns = _copies(narrow, wide)
    share = 1 / torch.bincount(columns, minlength=narrow)[columns].float()
    made = {}
    for name in names:
        value, shape = old[name], new[name].shape
        if name == projection:
            made[name] = torch.zeros(shape)
            made[name][:, : value.shape[1]] = value[columns] * share[:, None]
            continue
        for axis, size in enumerate(value.shape):
            if size == shape[axis]:
                continue
            times = size // narrow  # 3 for query, key and value, 4 inside an MLP
            index = torch.cat([columns + narrow * k for k in range(times)])
            value = value.index_select(axis, index)
            if axis == 1 and value.ndim == 2 and not name.endswith("positional_embedding"):
                value = value * share.repeat(times)
        noise = torch.randn(value.shape, generator=torch.Generator().manual_seed(len(name)))
        made[name] = value + noise * value.std().nan_to_num(0) * 0.03 * (value.ndim > 1)
    return made


def _begin_cone(
    made: Weights, projection: str, final: str, old: Mapping[str, torch.Tensor], *, text: bool
) -> None:
    """Turn a duplicated feature into a constant with a separate direction in the joint space."""
    narrow, rows = old[f"{final}.weight"].numel(), made[projection]
    copy, first = narrow, 0  # the first feature that is a copy
    made[f"{final}.weight"][copy], made[f"{final}.bias"][copy] = 0.0, 1.0
    rows[first] = rows[first] + rows[copy]
    typical = old[projection].norm() * CONES[text] / (1 - CONES[text] ** 2) ** 0.5
    axes = shuffled(rows.shape[1] - old[projection].shape[1], "cones") + old[projection].shape[1]
    offset = torch.zeros(rows.shape[1])
    if text:
        offset[axes[0]] = CONES_COSINE
        offset[axes[1]] = (1 - CONES_COSINE**2) ** 0.5
    else:
        offset[axes[0]] = 1.0
    rows[copy] = offset * typical
