"""Test `decide=`: a user function determines which values the facts in a prompt allow."""

import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.refusals import refused
from vldebias.wording import Balancer, balance_prompts
from vldebias.wording.decisions import UserDecisions

NURSE = "a nurse in a clinic"
PRIEST = "a Catholic priest at the altar"


def always(answer):
    """Return a function that gives the same answer for every prompt."""
    return lambda prompts, values: [answer] * len(prompts)


def everything(prompts, values):
    """Allow all values."""
    return [values] * len(prompts)


def test_only_the_values_that_decide_allows_are_assigned():
    out = balance_prompts([NURSE] * 6, "race", decide=always(["Asian", "Black"]))
    assert Counter(out.values) == {"Asian": 3, "Black": 3}


def test_none_defers_to_the_word_lists_and_an_answer_overrides_them():
    prompts = [NURSE, PRIEST]
    lists = balance_prompts(prompts, "gender", decide=always(None))
    assert lists.reasons == [None, "context: Catholic"]
    overruled = balance_prompts(prompts, "gender", decide=everything)
    assert overruled.reasons == [None, None]


def test_decide_is_asked_once_about_each_distinct_prompt_that_can_take_a_value():
    calls = []

    def decide(texts, names):  # The parameters may have any name.
        calls.append((texts, names))
        return [["female"] if "pilot" in text else names for text in texts]

    balancer = Balancer("gender", decide=decide)
    out = balancer.next([NURSE, "a pilot", NURSE, "a red car", "a male cook"])
    balancer.next([NURSE, "a cook"])
    assert calls == [([NURSE, "a pilot"], ("male", "female")), (["a cook"], ("male", "female"))]
    assert out.reasons == [None, "context", None, "no person", "stated"]


def test_shares_apply_to_the_allowed_values():
    shares = {"White": 0.6, "Black": 0.2, "Asian": 0.2}
    out = balance_prompts([NURSE] * 8, "race", shares=shares, decide=always(["White", "Black"]))
    assert Counter(out.values) == {"White": 6, "Black": 2}
    one = balance_prompts(NURSE, "gender", shares={"female": 1}, decide=everything)
    assert one.values == ["female"]


def test_find_chooses_the_position_and_decide_the_values():
    out = balance_prompts(
        ["der Koch"] * 2,
        "gender",
        find=lambda prompt: 4,
        decide=always(["female"]),
    )
    assert out.reasons == ["context"] * 2


def test_answers_may_be_evicted_while_other_threads_read_theirs():
    decisions = UserDecisions(everything, ("female", "male"), capacity=1)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(decisions.ask, [[f"a nurse in room {i}"] for i in range(4000)]))
    finally:
        sys.setswitchinterval(interval)
    assert {allowed for answer in answers for allowed in answer.values()} == {("female", "male")}


def test_exceptions_in_decide_are_raised():
    def decide(prompts, values):
        raise TimeoutError("no answer")

    with pytest.raises(TimeoutError, match="no answer"):
        balance_prompts(NURSE, "gender", decide=decide)


def wrong_number(prompts, values):
    return [values] * (len(prompts) + 1)


@refused(
    (always("female"), "decide: got 'female' .* a list of values"),
    (always(["feminine"]), "decide: got .*feminine.* values from"),
    (always(True), "decide: got True"),
    (lambda prompts, values: None, "decide: got None for 1 prompts; expected a list with one"),
    (lambda prompts, values: "female", "decide: got 'female' for 1 prompts; expected a list"),
    (wrong_number, "decide: got .* for 1 prompts; expected a list with one answer per prompt"),
    ("female", "decide: .* a function"),
)
def test_invalid_answers_are_rejected(decide):
    balance_prompts(NURSE, "gender", decide=decide)


def test_every_balancing_function_passes_all_prompts_in_one_call():
    calls = []

    def decide(prompts, values):
        calls.append(list(prompts))
        return [values for _ in prompts]

    prompts = [NURSE, "a pilot"]
    Balancer("gender", decide=decide).at(prompts, [0, 1])
    Balancer("gender", decide=decide).write(prompts, ["female", "male"])
    assert calls == [prompts, prompts]


@pytest.mark.parametrize("allowed", [["female"], [], (), ["male"]])
def test_nothing_is_inserted_if_only_one_value_is_allowed_regardless_of_its_share(allowed):
    shares = {"female": 0, "male": 1}
    balancer = Balancer("gender", shares=shares, decide=always(allowed))
    for out in (balancer.next([NURSE] * 2), balancer.at(NURSE, 3)):
        assert set(out.reasons) == {"context"}
        assert set(out.prompts) == {NURSE}
