"""Features, skews and precision against plain loops."""

import torch
from torch import Tensor, nn

from vldebias.evaluation.zero_shot import image_features, precision_at, query_skews
from vldebias.metrics import max_skew


class Encoder(nn.Module):
    def encode_image(self, images: Tensor, normalize: bool) -> Tensor:
        assert normalize
        return nn.functional.normalize(images.flatten(1), dim=-1)


def test_image_features_do_not_depend_on_the_batch() -> None:
    images, seen = torch.rand(7, 3, 2, 2), []
    small = image_features(Encoder(), images, lambda x: x * 2 - 1, batch_size=3, on_batch=seen.append)
    torch.testing.assert_close(small, image_features(Encoder(), images, lambda x: x * 2 - 1))
    assert seen == [3, 3, 1]


def test_precision_is_the_share_of_relevant_in_the_top() -> None:
    scores = torch.tensor([[0.9, 0.1, 0.8, 0.2], [0.1, 0.2, 0.3, 0.4]])
    relevant = torch.tensor([[True, True, False, False], [False, False, True, True]])
    assert precision_at(scores, relevant, 2).tolist() == [0.5, 1.0]


def test_query_skews_are_one_skew_per_row() -> None:
    scores, groups = torch.rand(4, 30), torch.randint(0, 2, (30,))
    assert query_skews(scores, groups, 10, 2).tolist() == [max_skew(row, groups, 10, n_groups=2) for row in scores]
