"""Test that no regular expression takes quadratic time on the texts of strangers."""

import pytest

from tests.robust.patterns import LIMIT, Pattern, patterns, worst_growth

_LOCAL = 11  # patterns that are built from local variables


@pytest.mark.parametrize(
    ("text", "method"),
    [
        (r"\s+$", "search"),
        (r"(?:COCO_\w+_)?0*(\d+)(?:\.\w+)?", "fullmatch"),
        (r"\[[^\]]*\]", "search"),
        (r"\w*\d*error", "match"),
        (r"(.*?)[^~]*~", "match"),
        (rb"<.*>", "findall"),
    ],
)
def test_a_quadratic_pattern_is_found(text: str | bytes, method: str) -> None:
    assert worst_growth(Pattern("here", text, 0, (method,)))[0] > LIMIT


def test_nearly_all_patterns_are_listed_with_their_methods() -> None:
    """A pattern that cannot be read would not be measured."""
    listed = list(patterns())
    read = [pattern for pattern in listed if isinstance(pattern, Pattern)]
    assert len(read) > 200
    assert len(listed) - len(read) <= _LOCAL
    assert all(pattern.methods for pattern in read)


@pytest.mark.slow
def test_the_time_of_no_pattern_grows_faster_than_its_text() -> None:
    quadratic = []
    for pattern in patterns():
        if isinstance(pattern, Pattern):
            ratio, text = worst_growth(pattern)
            if ratio > LIMIT:
                quadratic.append(f"{pattern.place} grows by {ratio:.1f} on {text}")
    assert quadratic == []
