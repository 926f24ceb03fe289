"""Weight the loss of a batch by group DRO: groups with a high loss gain weight from step to
step."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vldebias.errors import InvalidInputError
from vldebias.losses.checks import check_count, check_interval, check_labels
from vldebias.losses.processes import (
    gather_rows,
    mean_over_processes,
    sum_over_processes,
    world_size,
)


class GroupWeights(nn.Module):
    """Compute sum_g q_g L_g with q_g <- q_g exp(step L_g), normalised: Algorithm 1 of Sagawa et al.
    (2020), online.

    L_g is the mean loss of the rows of group g in the batch, 0 where it has none. The weights are
    in the buffer log_weights (G,); they move in training mode with gradients enabled, before they
    are used, and are only read otherwise. It helps the worst group with few steps or strong
    regularisation (the source, section 3).

    Args:
        groups: G >= 2, the number of groups.
        step: step size of the weights per unit of the loss, > 0; .01 in the source, for a
            cross-entropy.
        gather: batches of all processes count together; each calls it with its own rows.
    """

    log_weights: Tensor

    def __init__(self, groups: int, *, step: float = 0.01, gather: bool = False) -> None:
        super().__init__()
        check_count("groups", groups, 2)
        check_interval("step", step, "(0, inf)")
        self.step = step
        self.gather = gather
        self.register_buffer("log_weights", torch.full((groups,), 1 / groups).log())

    def forward(self, losses: Tensor, groups: Tensor) -> Tensor:
        """Return the weighted loss () of rows (n,), whose groups are (n,) integers; negative ones
        are not counted.

        Args:
            losses: (n,), the loss of each row.
            groups: (n,) integers, the group of each row; rows with negative ones are not counted.
        """
        check_labels("groups", groups, len(losses))
        size = len(self.log_weights)
        joint_groups = gather_rows(groups) if self.gather else groups
        highest = int(joint_groups.max())
        if highest >= size:
            raise InvalidInputError(f"groups: expected at most {size - 1}, got {highest}")
        # -1 is a row whose group is unknown.
        known = joint_groups[joint_groups >= 0]
        # (G,); a group without rows has the sum 0, so that dividing it by 1 gives its mean, 0.
        counts = torch.bincount(known, minlength=size).clamp(min=1).to(losses.dtype)
        has_group = groups >= 0
        sums = losses.new_zeros(size).index_add(0, groups[has_group], losses[has_group])
        if self.training and torch.is_grad_enabled():
            joint_sums = sum_over_processes(sums) if self.gather else sums.detach()
            means = joint_sums / counts
            self.log_weights += self.step * means.to(self.log_weights.dtype)
            # The weights sum to 1 again.
            self.log_weights -= self.log_weights.logsumexp(0)
        total = (self.log_weights.exp().to(losses.dtype) / counts * sums).sum()
        if self.gather:
            # Each process has the sums of its own rows over
            # the counts of all: together they are a sum.
            return mean_over_processes(total) * world_size()
        return total
