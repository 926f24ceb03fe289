"""What is timed for each kind of user is there: a block of a page, found by words that no other block has."""

import pytest

from tests.robust.first_minutes import STEPS, Step


@pytest.mark.parametrize("step", STEPS, ids=lambda step: f"{step.user}, {step.does}")
def test_every_step_can_be_called(step: Step) -> None:
    assert len(step.call) > 1
