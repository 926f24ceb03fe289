"""Test that sets with values that image models are known not to show issue a warning."""

import warnings
from typing import Any

import pytest

import vldebias
from vldebias.errors import UnseenValueWarning
from vldebias.prompts import PromptSet, make_prompt_set
from vldebias.wording import balance_prompts

NURSES = ["A photo of a nurse"] * 3


def genders(third: str) -> PromptSet:
    attribute = {value: [value] for value in ("female", "male", third)}
    return make_prompt_set("genders", attribute, ["cook"])


@pytest.mark.parametrize("word", ["non-binary", "nonbinary", "Non-binary"])
def test_a_set_with_non_binary_values_warns_at_the_users_line(word: str) -> None:
    with pytest.warns(UnseenValueWarning, match=f"'genders': '{word}'.* 0 of 120") as record:
        balance_prompts(NURSES, genders(word), seed=0)
    assert [warning.filename for warning in record] == [__file__]


def test_a_value_without_a_share_is_not_stated_and_does_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        balance_prompts(NURSES, genders("non-binary"), shares={"female": 0.5, "male": 0.5})
        balance_prompts(NURSES, "gender")
        balance_prompts(NURSES, "race")


def test_attaching_to_a_pipeline_warns_once_and_its_calls_do_not() -> None:
    pipe: Any = vldebias.load_host(pipeline="miniature").host
    pipe.set_progress_bar_config(disable=True)
    with pytest.warns(UnseenValueWarning) as record:
        attachment = vldebias.debias(pipe, genders("non-binary"))
    assert len(record) == 1
    pipe(NURSES[:1], num_inference_steps=1)
    assert set(attachment.sampled) <= {"male", "female", "non-binary"}


def test_counts_behind_the_warning_match_the_measurement() -> None:
    from eval.tables import read

    (row,) = [
        row
        for row in read("stated_values").rows
        if row.task == "stated" and row.subset == "Non-binary, with a profession"
    ]
    assert (row.value, row.n["images"]) == (0, 120)
