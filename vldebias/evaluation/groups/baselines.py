"""Baselines of Table 7.2 on the same features: methods that, unlike a projection, are given labels of images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict

from torch import Tensor

from vldebias.errors import InvalidInputError
from vldebias.evaluation.groups.figures import Classified
from vldebias.evaluation.groups.split import GroupSplit

__all__ = ["train_baselines"]


def train_baselines(
    names: Sequence[str],
    test: GroupSplit,
    train: GroupSplit | None,
    val: GroupSplit | None,
    zero_shot: Tensor,
    *,
    true_groups: bool = False,
    seed: int = 0,
    on_step: Callable[[str], None] = lambda step: None,
) -> list[Classified]:
    """Train each baseline on `train`, select on `val` where it is given, and classify `test`.

    names: of `vldebias.baselines.BASELINES`. zero_shot: (k, d) normalised class texts, where some of them start.
    true_groups: let them see the groups of `train` too. By default those that balance groups go by the zero-shot
    predictions, as in Table 7.2 (section 7.4.1); the groups of `val` serve to select settings in any case.

    Raises:
        InvalidInputError: an unknown name, or no training split.
    """
    if not names:
        return []
    from vldebias.baselines import get_baseline

    chosen = {name: get_baseline(name) for name in names}
    if train is None:
        raise InvalidInputError(f"baselines {list(chosen)} are trained; expected train=, a split with labels")
    groups = test.groups.names
    held_out = None if val is None else (val.features, val.target, val.codes_in(groups))
    found = []
    for name, baseline in chosen.items():
        on_step(name)
        known = train.codes_in(groups) if true_groups else None
        predict = baseline.fit(train.features, train.target, zero_shot, groups=known, val=held_out, seed=seed)
        about = {**asdict(baseline), "chosen": dict(predict.chosen), "uses_labels": True, "true_groups": true_groups}
        found.append(Classified(name, test.right(predict(test.features)), {"uses_labels": True}, about))
    return found
