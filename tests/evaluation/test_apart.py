"""A reference that is unlike what is measured is told; parts of one collection are not."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from any_method_parts import images

from vldebias.errors import ReferenceWarning
from vldebias.evaluation.images import UNLIKE, apart, disjoint


class TestApart:
    def rows(self, n: int, seed: int) -> torch.Tensor:
        draw = torch.Generator().manual_seed(seed)
        return torch.randn(n, 32, generator=draw) + 2 * torch.eye(32)[0]

    @pytest.mark.parametrize("n", [10, 50, 500])
    def test_parts_of_one_collection_are_not_apart_on_average(self, n: int) -> None:
        found = [apart(self.rows(n, seed), self.rows(400, seed + 1000)) for seed in range(60)]
        assert abs(float(np.mean(found))) < 0.01
        assert max(found) < UNLIKE + 1 / n

    def test_a_move_is_seen_in_units_of_the_variance(self) -> None:
        move = 32**0.5 * 0.5 * torch.eye(32)[3]  # half of how far images are from their mean
        assert apart(self.rows(500, 1) + move, self.rows(500, 2)) == pytest.approx(0.25, abs=0.03)

    def test_evaluators_warn_of_it_and_of_nothing_else(self) -> None:
        gallery = images()
        turned = replace(images()[np.arange(100)], features=-images().features[:100])
        with pytest.warns(ReferenceWarning, match="reference: its images are unlike those that are measured"):
            disjoint(turned, gallery[np.arange(100, 400)])
        with warnings.catch_warnings():
            warnings.simplefilter("error", ReferenceWarning)
            disjoint(gallery[np.arange(150)], gallery[np.arange(150, 400)])
