"""Labels are matched with class prompts by name; groups of another split by theirs."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from groups_parts import NAMES, PLACES, PROMPTS, birds

from vldebias.data import Labels
from vldebias.errors import InvalidInputError
from vldebias.evaluation.groups import GroupSplit, class_of
from vldebias.prompts import PromptSet, load_prompts

CELEBA = load_prompts("celeba")


@pytest.mark.parametrize(
    ("labels", "prompts", "expected"),
    [
        (("landbird", "waterbird"), PROMPTS, [0, 1]),
        (("waterbird", "landbird"), PROMPTS, [1, 0]),
        (("Waterbird",), PROMPTS, [1]),
        (("1", "0"), PROMPTS, [1, 0]),
        (("blond", "dark"), CELEBA, [1, 0]),  # a word of the class name
        *((labels, PROMPTS, None) for labels in (("robin", "waterbird"), ("bird",), ("0", "2"), ("landbird", "0"))),
        (("-", "0"), PROMPTS, None),
        (("hair",), CELEBA, None),  # two classes
    ],
)
def test_labels_name_classes(labels: tuple[str, ...], prompts: PromptSet, expected: list[int] | None) -> None:
    if expected is not None:
        assert class_of(labels, prompts) == expected
        return
    with pytest.raises(InvalidInputError, match="labels that each name one of the classes"):
        class_of(labels, prompts)


def test_groups_of_another_split_are_found_by_name() -> None:
    data = birds(50)
    split = GroupSplit.of(data, PROMPTS, "label", "place")
    turned = {
        "label": Labels(1 - data.column("label").codes, NAMES[::-1]),
        "place": Labels(1 - data.column("place").codes, PLACES[::-1]),
    }
    other = GroupSplit.of(replace(data, labels=turned), PROMPTS, "label", "place")
    np.testing.assert_array_equal(other.codes_in(split.groups.names), split.groups.codes)
    np.testing.assert_array_equal(other.target, split.target)
    with pytest.raises(InvalidInputError, match=r"expected those of the test split .* got \['landbird/land'"):
        split.codes_in(("landbird/meadow",))


def test_features_are_normalised_and_ties_go_to_the_first() -> None:
    split = GroupSplit.of(birds(5), PROMPTS, "label", "place")
    torch.testing.assert_close(split.features.norm(dim=1), torch.ones(5))
    np.testing.assert_array_equal(split.right(torch.zeros(5, 2)), split.target == 0)


def test_a_protocol_says_where_images_come_from_and_not_where_their_features_lie() -> None:
    data = birds(50)
    split = GroupSplit.of(
        replace(data, about={"data": "birds", "cache": "somewhere/private"}), PROMPTS, "label", "place"
    )
    assert split.facts["data"] == "birds"
    assert "private" not in str(split.facts)
