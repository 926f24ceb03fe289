"""What the tests of evaluators share."""

import pytest


@pytest.fixture
def no_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs leave their charts out, which take longer than the measuring; the tests of runs and pages draw them."""
    monkeypatch.setattr("vldebias.evaluation.run.draw_charts", lambda *_: [])
