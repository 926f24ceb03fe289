"""Test that a parser reads any file or rejects it with a message, for arbitrary structures and a
fixed budget."""

import pytest
from hypothesis import HealthCheck, given, settings

from tests.robust.fuzzed import PARSERS

CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


def check(name: str, examples: int) -> dict[str, int]:
    """Try a parser, and return how often each outcome occurred."""
    parser = PARSERS[name]
    ends = {"read": 0, "refused": 0}

    # The contents are the same each time, so that a failure is caused by the change under test.
    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=CHECKS,
    )
    @given(parser.content)
    def attempt(content: bytes) -> None:
        end = parser.tried(content)
        assert end in ends, (name, end, content)
        ends[end] += 1

    attempt()
    return ends


@pytest.mark.parametrize("name", PARSERS)
@pytest.mark.parametrize("examples", [25, pytest.param(400, marks=pytest.mark.slow)])
def test_any_structure_is_read_or_rejected_with_a_message(name: str, examples: int) -> None:
    ends = check(name, examples)
    if examples > 25:
        assert ends["refused"] > 20
        # If nothing was read at all, the code behind the parser's first check was never reached.
        assert ends["read"] > 0 or name in ("tables, parquet", "pictures")
