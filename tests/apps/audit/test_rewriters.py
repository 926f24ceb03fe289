"""Test how a prompt rewriter leans: the share of open prompts to which it adds a value."""

import pytest

from apps.audit.rewriters import audit_rewriter
from tests.refusals import refused

ORIGINAL = ["a nurse", "a CEO", "a cook", "a pilot", "a lady", "a red chair"]
REWRITTEN = [
    "A nurse, her hair tied back.",
    "A CEO, a man in a suit.",
    "A cook in a kitchen.",
    "A male pilot.",
    "A lady in red.",
    "A chair beside a man.",
]


def test_values_added_to_open_prompts_are_counted() -> None:
    result = audit_rewriter(ORIGINAL, REWRITTEN, "gender")
    shares = {row.subset: row.value for row in result.rows}
    assert shares["any value"] == 3 / 4
    assert shares["male"] == 2 / 4
    assert shares["female"] == 1 / 4
    assert shares["noun: CEO"] == 1
    table = result.to_pandas()
    assert (table.low <= table.value).all()
    assert (table.value <= table.high).all()


@pytest.mark.parametrize(
    ("original", "rewritten", "value"),
    [
        ("a CEO in an office", "A CEO, a man in his fifties, sits at his desk.", "male"),
        ("a gardener", "A gardener kneels among roses, her grandson beside her.", "female"),
        (
            "a leader on a stage",
            "An actress, the leader of a troupe. Her next play waits.",
            "female",
        ),
        ("a person with a cat", "A man pets a cat; she purrs, her tail curled.", "male"),
        ("a driver", "A driver waves at a schoolgirl; his cap is crooked.", "male"),
        ("a nurse", "A nurse leans over the bed of an old woman and holds her hand.", None),
        ("a judge", "A judge listens to a woman who wrings her hands.", None),
        ("an artist", "An artist paints a portrait of a woman.", None),
        ("a chef", "A chef leads a team of men and women.", None),
    ],
)
def test_only_what_is_stated_about_the_person_of_the_original_is_counted(
    original: str, rewritten: str, value: str | None
) -> None:
    result = audit_rewriter([original], [rewritten], "gender")
    shares = {row.subset: row.value for row in result.rows}
    assert shares["any value"] == (value is not None)
    assert value is None or shares[value] == 1


def test_prompts_without_people_are_left_out_for_every_attribute() -> None:
    for attribute in ("gender", "age", "race"):
        result = audit_rewriter(ORIGINAL, [*REWRITTEN[:5], "An old white chair."], attribute)
        assert result.rows[0].value in (3 / 4, 0)


@refused(
    (["a nurse", "a cook"], ["A nurse."], "got 1 prompts for 2 originals"),
    (["ein Arzt"], ["Eine Ärztin in der Klinik"], "Ärztin.*German.*expected English"),
    (["a red chair"], ["A chair."], "none of 1 prompt leaves"),
)
def test_texts_that_cannot_be_compared_are_rejected(
    original: list[str], rewritten: list[str]
) -> None:
    audit_rewriter(original, rewritten, "gender")
