"""Weight losses with group DRO, which gives more weight to groups with a high loss."""

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
    """Weight each group's loss with online group DRO (Sagawa et al., 2020, Algorithm 1).

        sum_g q_g L_g,   q_g <- q_g exp(step L_g), normalised

    L_g is the mean loss over group g's rows in the batch, or 0 if there are none. The weights
    are stored in the buffer log_weights (G,). They are updated before use if the module is in
    training mode and gradients are enabled. Group DRO needs early stopping or strong regularisation
    to help the worst group (section 3 of the paper).

    Args:
        groups: number of groups G, at least 2.
        step: step size of the weights, > 0. The paper uses 0.01 with a cross-entropy loss.
        gather: whether to combine the losses of all processes, each of which passes its own rows.

    >>> import torch
    >>> weights = GroupWeights(groups=2, step=1.0)
    >>> losses, groups = torch.tensor([1.0, 0.0, 0.0]), torch.tensor([0, 1, 1])
    >>> weights(losses, groups)
    tensor(0.7311)
    >>> weights.log_weights.exp()  # higher for the group with the higher loss
    tensor([0.7311, 0.2689])
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
        """Return the weighted loss () for a batch.

        Args:
            losses: (n,), loss of each row.
            groups: (n,), group of each row. Rows with a negative group are ignored.
        """
        check_labels("groups", groups, len(losses))
        size = len(self.log_weights)
        joint_groups = gather_rows(groups) if self.gather else groups
        highest = int(joint_groups.max())
        if highest >= size:
            raise InvalidInputError(f"groups: expected numbers from 0 to {size - 1}, got {highest}")
        # Negative values mark rows whose group is unknown.
        known = joint_groups[joint_groups >= 0]
        # Counts are at least 1, so that the mean of an empty group is 0.
        counts = torch.bincount(known, minlength=size).clamp(min=1).to(losses.dtype)
        has_group = groups >= 0
        sums = losses.new_zeros(size).index_add(0, groups[has_group], losses[has_group])
        if self.training and torch.is_grad_enabled():
            joint_sums = sum_over_processes(sums) if self.gather else sums.detach()
            means = joint_sums / counts
            self.log_weights += self.step * means.to(self.log_weights.dtype)
            # Make the weights sum to 1.
            self.log_weights -= self.log_weights.logsumexp(0)
        total = (self.log_weights.exp().to(losses.dtype) / counts * sums).sum()
        if self.gather:
            # Each process divides the sums over its own rows by the joint counts, so the values of
            # all processes add up to the joint loss.
            return mean_over_processes(total) * world_size()
        return total
