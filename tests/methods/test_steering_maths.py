"""Test the closed forms behind cross-attention on constructed responses: the gate's readings, the
span, and the EquiSteer baseline against loops."""

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from vldebias.errors import InvalidInputError
from vldebias.methods.cross_attention import (
    Readings,
    _auroc,
    _threshold,
    discriminant,
    stated_texts,
)
from vldebias.projection.cross_attention import CrossAttentionEdit, Form, span, steer
from vldebias.projection.edit import Provenance
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


def test_auroc_matches_scikit_learn() -> None:
    positive = made(23).round(decimals=1) + 0.3
    negative = made(31, seed=1).round(decimals=1)
    labels = np.repeat([1, 0], [23, 31])
    expected = roc_auc_score(labels, torch.cat([positive, negative]).numpy())
    assert _auroc(positive, negative) == pytest.approx(expected)


def test_values_that_sum_to_their_center_span_one_direction_fewer() -> None:
    effects = made(5, 12)
    effects -= effects.mean(0)
    basis = span(effects)
    assert basis.shape == (12, 4)
    torch.testing.assert_close(basis.T @ basis, torch.eye(4).double())
    torch.testing.assert_close(effects @ basis @ basis.T, effects)
    assert span(effects, 2).shape == (12, 2)
    assert span(torch.zeros(3, 4)).shape == (4, 0)


def test_set_replaces_shift_preserves_variation_and_add_removes_nothing() -> None:
    output = made(2, 5, 8)
    basis = span(made(2, 8, seed=1))
    target = made(2, 8, seed=2) @ basis @ basis.T
    placed = steer(output, basis, target, "set", 1.0)
    torch.testing.assert_close(placed @ basis, (target @ basis)[:, None].expand(2, 5, -1))
    moved = steer(output, basis, target, "shift", 1.0)
    torch.testing.assert_close(moved.mean(1) @ basis, target @ basis)
    varying = output - output.mean(1, keepdim=True)
    torch.testing.assert_close(moved - moved.mean(1, keepdim=True), varying)
    added = steer(output, basis, target, "add", 1.0)
    torch.testing.assert_close(added - output, target[:, None].expand_as(output))
    half = steer(output, basis, target, "set", 0.5)
    torch.testing.assert_close(half, (output + placed) / 2)


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


def edit_of(form: Form, center: Tensor, effects: Tensor) -> CrossAttentionEdit:
    """Return an edit of one layer of width 3, with the same center and effects at both times."""
    return CrossAttentionEdit(
        times=torch.tensor([0.0, 1.0]),
        center=center.expand(2, 3).contiguous(),
        effects=effects.float().expand(2, 2, 3).contiguous(),
        amounts=torch.ones(2, 2, 1),
        gate=torch.eye(3),
        gate_offsets=torch.full((3,), 0.5),
        auroc={"stated": {"layer": 1.0}, "person": {"layer": 1.0}},
        layers=(("layer", 3),),
        form=form,
        rank=0,
        attribute="gender",
        words={"female": ("female",), "male": ("male",)},
        adjectives={},
        phrase={},
        stated=("female", "male"),
        provenance=Provenance("cross-attention"),
    )


@pytest.mark.parametrize("form", ["add", "shift", "set"])
def test_a_target_includes_the_center_unless_nothing_is_removed(form: Form) -> None:
    """A shift of all responses changes the part that is replaced, but not the part that is
    added."""
    effects = made(2, 3, seed=4)
    effects -= effects.mean(0)
    edits = [edit_of(form, center, effects) for center in (torch.zeros(3), torch.ones(3))]
    targets = []
    for edit in edits:
        layer_map = edit.at(0.5)["layer"]
        targets.append(layer_map.center + layer_map.effects[0])
    inside = span(effects) @ span(effects).T
    expected = torch.zeros(3) if form == "add" else torch.ones(3).double() @ inside
    torch.testing.assert_close(targets[1] - targets[0], expected.float())


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
    edit = edit_of("shift", torch.zeros(3), torch.zeros(2, 3))
    assert edit.reading(torch.tensor(response).double()) == expected


def test_an_unknown_form_of_steering_is_rejected() -> None:
    with pytest.raises(InvalidInputError, match=r"expected one of .*'add'.*, got 'sett'"):
        edit_of("sett", torch.zeros(3), torch.zeros(2, 3))  # type: ignore[arg-type]
