"""Test the closed forms behind cross-attention on constructed responses: the gate's readings, and
how clearly a model responds to a value."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from vldebias.errors import InvalidInputError
from vldebias.methods.cross_attention import (
    Readings,
    _threshold,
    clarity_of_values,
    discriminant,
    stated_texts,
)
from vldebias.projection.cross_attention_edit import MIN_CLARITY, CrossAttentionEdit
from vldebias.projection.provenance import Provenance
from vldebias.prompts import load_prompts, make_prompt_set


def made(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def test_a_gate_reading_is_one_at_the_mean_of_its_kind_and_zero_at_the_open_mean() -> None:
    kinds = [made(30, 7, seed=seed) + 2 * made(7, seed=90 + seed) for seed in (1, 2, 3)]
    others = made(40, 7, seed=4)
    readings, mean = discriminant(kinds, others)
    scores = torch.stack([(kind.mean(0) - mean) @ readings.T for kind in kinds])
    torch.testing.assert_close(scores.diagonal(), torch.ones(3).double())
    torch.testing.assert_close(mean, others.mean(0))


def test_the_most_informative_layer_is_selected() -> None:
    """Only the second layer is informative."""
    others = made(40, 9, seed=1)
    kind = made(40, 9, seed=2)
    kind[:, 4:] += 3
    found = Readings([kind], others, [("first", 4), ("second", 5)])
    assert found.auroc["second"] > 0.95 > found.auroc["first"]
    assert not found.rows[:, :4].any()
    is_kind = kind @ found.rows[0] > found.offsets[0]
    is_other = others @ found.rows[0] > found.offsets[0]
    assert is_kind.double().mean() > 0.9 > 0.1 > is_other.double().mean()


def responses(effect: float, subject: float, noise: float = 0.0) -> Tensor:
    """Return responses (2 values, 10 subjects, 40) with effects and subjects of the given size."""
    effects, subjects = torch.zeros(2, 1, 40).double(), torch.zeros(10, 40).double()
    effects[0, 0, 0], effects[1, 0, 0] = effect, -effect
    subjects[torch.arange(10), torch.arange(10) + 1] = subject * (10 / 9) ** 0.5
    return 3 + effects + subjects + noise * made(2, 10, 40)


def test_the_clarity_is_the_size_of_a_consistent_effect_relative_to_the_subjects() -> None:
    torch.testing.assert_close(clarity_of_values(responses(0.5, 1)), torch.full((2,), 0.5).double())
    inconsistent = clarity_of_values(responses(0, 1, noise=0.1))
    assert float(inconsistent.abs().max()) < MIN_CLARITY


def test_fitted_texts_only_differ_in_the_value() -> None:
    texts = stated_texts(load_prompts("skin-tone"), 6)
    assert list(texts) == ["pale", "light", "tan", "brown", "dark"]
    rows = list(zip(*texts.values(), strict=True))
    assert len(rows) == 6
    for row in rows:
        assert len({text.split()[-1] for text in row}) == 1
    listed = make_prompt_set("age", {"young": ["young"], "old": ["old"]}, ["doctor"])
    assert len(stated_texts(listed, 20)["old"]) == 1
    with pytest.raises(InvalidInputError, match="states each of"):
        stated_texts(load_prompts("fairface"), 5)


def edit_of(clarity: dict[str, float]) -> CrossAttentionEdit:
    """Return an edit of one layer of width 3, whose gate reads one value per direction."""
    return CrossAttentionEdit(
        times=torch.tensor([0.0, 1.0]),
        effects=torch.zeros(2, 2, 3),
        amounts=torch.ones(2, 2),
        gate=torch.eye(3),
        gate_offsets=torch.full((3,), 0.5),
        auroc={"stated": {"layer": 1.0}, "person": {"layer": 1.0}},
        layers=(("layer", 3),),
        clarity=clarity,
        attribute="gender",
        words={"female": ("female",), "male": ("male",)},
        adjectives={},
        phrase={},
        stated=("female", "male"),
        provenance=Provenance("cross-attention"),
    )


def test_the_representation_shows_how_clearly_the_model_responds_to_each_value() -> None:
    edit = edit_of({"female": 0.42, "male": 0.05})
    assert "clarity: female 0.42, male 0.05" in repr(edit)
    assert edit.unclear_values == ["male"]
    assert "clarity" not in repr(edit_of({}))


@pytest.mark.parametrize("seed", range(5))
def test_the_threshold_separates_separable_scores(seed: int) -> None:
    negative = made(20, seed=seed)
    positive = made(30, seed=seed + 50).abs() + negative.max() + 1
    threshold = _threshold(positive, negative)
    assert negative.max() < threshold < positive.min()
    # Half-way between the two closest scores.
    assert threshold == pytest.approx(float(negative.max() + positive.min()) / 2)


def test_the_threshold_for_mixed_scores_maximises_the_mean_of_both_shares() -> None:
    positive, negative = made(25, seed=1) + 0.8, made(40, seed=2)
    threshold = _threshold(positive, negative)

    def right(cut: float) -> float:
        return float((positive > cut).double().mean() + (negative <= cut).double().mean())

    best = max(map(right, torch.cat([positive, negative]).tolist()))
    assert right(threshold) == pytest.approx(best)


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ([1.0, 0.0, 1.0], (True, "female")),
        ([0.0, 1.0, 1.0], (True, "male")),
        ([1.0, 0.0, 0.0], (False, "female")),
        ([0.0, 0.0, 1.0], (True, None)),
    ],
)
def test_the_last_row_of_the_gate_detects_people(
    response: list[float], expected: tuple[bool, str | None]
) -> None:
    edit = edit_of({})
    assert edit.reading(torch.tensor(response).double()) == expected


def test_every_response_shows_a_person_if_no_layer_detects_people() -> None:
    edit = replace(edit_of({}), auroc={"stated": {"layer": 1.0}, "person": {"layer": 0.5}})
    assert edit.reading(torch.zeros(3).double()) == (True, None)
    edit = replace(edit, auroc={"stated": {"layer": 1.0}, "person": {}})
    assert edit.reading(torch.zeros(3).double()) == (True, None)
    assert edit_of({}).reading(torch.zeros(3).double()) == (False, None)
