"""Prompts rewritten by a language model: the user's prompt decides, and added values are
replaced."""

import re
from collections import Counter

import pytest

from vldebias.prompts.english.words import gendered
from vldebias.wording import Balancer, balance_prompts

# original, rewritten, as it is for women, as it is for men
TURNED = [
    (
        "a CEO in an office",
        "A CEO, a man in his fifties, sits at his desk; light falls on him. The view is his.",
        "A CEO, a woman in her fifties, sits at her desk; light falls on her. The view is hers.",
        "A CEO, a man in his fifties, sits at his desk; light falls on him. The view is his.",
    ),
    (
        "a nurse",
        "A young female nurse smiles, HER hair tied back, as she looks at herself.",
        "A young female nurse smiles, HER hair tied back, as she looks at herself.",
        "A young male nurse smiles, HIS hair tied back, as he looks at himself.",
    ),
    (
        "a leader on a stage",
        "An actress, the leader of a troupe. Her next play waits.",
        "An actress, the leader of a troupe. Her next play waits.",
        "A male actor, the leader of a troupe. His next play waits.",
    ),
    (
        "a farmer",
        "A bearded farmer with a grey beard, his boots muddy.",
        "A female farmer, her boots muddy.",
        "A bearded farmer with a grey beard, his boots muddy.",
    ),
    (
        "a gardener",
        "A gardener kneels among roses, her grandson beside her.",
        "A female gardener kneels among roses, her grandson beside her.",
        "A male gardener kneels among roses, his grandson beside him.",
    ),
    (
        "a guard",
        "A guard waves on her round.",
        "A female guard waves on her round.",
        "A male guard waves on his round.",
    ),
    (
        "a chef",
        "A chef leads a team of men and women.",
        "A female chef leads a team of men and women.",
        "A male chef leads a team of men and women.",
    ),
    (
        "a clerk",
        "A tall, clean-shaven clerk with red hair.",
        "A tall female clerk with red hair.",
        "A tall, clean-shaven clerk with red hair.",
    ),
    (
        "an artist",
        "An artist paints a portrait of a woman.",
        "A female artist paints a portrait of a woman.",
        "A male artist paints a portrait of a woman.",
    ),
]


@pytest.mark.parametrize(("original", "rewritten", "female", "male"), TURNED)
def test_what_was_added_becomes_the_assigned_value(original, rewritten, female, male):
    out = balance_prompts([rewritten] * 2, "gender", original=[original] * 2, seed=0)
    assert sorted(out.values) == ["female", "male"]
    assert dict(zip(out.values, out.prompts, strict=True)) == {"female": female, "male": male}


# original, rewritten, as it is for women, as it is for men
OTHER_PEOPLE = [
    (
        "a judge",
        "A judge listens to a woman who wrings her hands.",
        "A female judge listens to a woman who wrings her hands.",
        "A male judge listens to a woman who wrings her hands.",
    ),
    (
        "a soldier",
        "A soldier hugs his wife and two daughters.",
        "A female soldier hugs her wife and two daughters.",
        "A male soldier hugs his wife and two daughters.",
    ),
    (
        "a child on a swing",
        "A little girl swings high, her father pushing her. The girl laughs.",
        "A little girl swings high, her father pushing her. The girl laughs.",
        "A little boy swings high, his father pushing him. The boy laughs.",
    ),
    (
        "a driver",
        "A driver waves at a schoolgirl; his cap is crooked.",
        "A female driver waves at a schoolgirl; her cap is crooked.",
        "A male driver waves at a schoolgirl; his cap is crooked.",
    ),
    (
        "a politician",
        "A politician grips a lectern, his hand up. In the front row, an old woman sleeps.",
        "A female politician grips a lectern, her hand up. In the front row, an old woman sleeps.",
        "A male politician grips a lectern, his hand up. In the front row, an old woman sleeps.",
    ),
    (
        "a person with a cat",
        "A man pets a cat; she purrs, her tail curled.",
        "A woman pets a cat; she purrs, her tail curled.",
        "A man pets a cat; she purrs, her tail curled.",
    ),
    (
        "a nurse",
        "A nurse leans over the bed of an old woman and holds her hand.",
        "A female nurse leans over the bed of an old woman and holds her hand.",
        "A male nurse leans over the bed of an old woman and holds her hand.",
    ),
    (
        "a weaver",
        "A weaver with freckles holds up a shawl with a fringe, her braid over a coat.",
        "A female weaver with freckles holds up a shawl with a fringe, her braid over a coat.",
        "A male weaver with freckles holds up a shawl with a fringe, his braid over a coat.",
    ),
]


@pytest.mark.parametrize(("original", "rewritten", "female", "male"), OTHER_PEOPLE)
def test_only_the_person_of_the_original_changes(original, rewritten, female, male):
    out = balance_prompts([rewritten] * 2, "gender", original=[original] * 2, seed=0)
    assert dict(zip(out.values, out.prompts, strict=True)) == {"female": female, "male": male}


def test_ages_of_others_stay():
    rewritten = "A young nurse in her thirties helps an old man in his eighties."
    shares = {"old": 1, "young": 0}
    (prompt,) = balance_prompts(rewritten, "age", original="a nurse", shares=shares).prompts
    assert prompt == "An old nurse helps an old man in his eighties."


def test_each_person_keeps_the_own_value():
    rewritten = "A male doctor, his hair grey, talks to a female nurse who holds her chart."
    original = "a doctor and a nurse"
    out = balance_prompts([rewritten] * 4, "gender", original=[original] * 4, seed=0)
    assert len(set(out.prompts)) == 4
    for prompt, people in zip(out.prompts, out.people, strict=True):
        (_, doctor), (_, nurse) = people
        assert f"A {doctor} doctor" in prompt
        assert f"a {nurse} nurse" in prompt


@pytest.mark.parametrize(
    ("original", "rewritten", "reason"),
    [
        ("a lady editor", "A lady editor at her desk.", "stated"),
        ("a Catholic priest", "A priest and his church.", "context"),
        ("a busy street", "A man on a busy street.", "no person"),
        ("a soldier", "A weary soldier, Sergeant John Miller.", "rewritten: names John Miller"),
        ("a boxer", "A shirtless boxer.", "rewritten: shirtless"),
        ("a boxer", "A ring under bright light.", "rewritten: no mention of the boxer"),
        ("a teacher", "A teacher helps a student with his homework.", "rewritten: not understood"),
        ("a driver", "A man waves at a man.", "rewritten: not understood"),
        ("a doctor", "Two men talk in a hallway.", "rewritten: not understood"),
        ("a clerk", "A clerk helps a guest who smiles at him.", "rewritten: not understood"),
        ("a clerk", "A clerk kneels before a guest, his head low.", "rewritten: not understood"),
        ("a clerk", "A woman in a coat, a clerk, at a desk.", "rewritten: not understood"),
        ("a mechanic", "mechanic, young woman, garage", "rewritten: not understood"),
        ("a nurse", "nurse, old man, hospital bed", "rewritten: not understood"),
        ("an agent", "A portrait of an agent, capturing a man.", "rewritten: not understood"),
        ("a cook", "A cook. A mother sits with her son, and he eats.", "rewritten: not understood"),
        ("two cooks", "Two cooks; one wipes his brow.", "rewritten: not understood"),
        ("a clerk", "A clerk hands a pitcher to a vlogger, his hair wet.", "rewritten: not"),
        ("a vet with an owner", "A vet waves at a plumber.", "rewritten: not understood"),
        ("a welder", "A man tilts a pitcher beside a climber.", "rewritten: not understood"),
        # "pitcher" may name somebody else.
        (
            "a barista",
            "A barista tilts a steel pitcher, his gaze low.",
            "rewritten: not understood",
        ),
        ("a barber", "A barber strokes his beard.", "rewritten: beard"),
        ("a barber", "A barber with a beard trimmer.", "rewritten: beard"),
        ("a chef", "A chef in his or her kitchen.", "rewritten: not understood"),
        ("an astronaut", "A <random:male|female> astronaut, cinematic.", "rewritten: stated"),
        ("an astronaut", "A photo of a {gender} astronaut, sharp.", "rewritten: stated"),
    ],
)
def test_what_cannot_be_replaced_stays_unchanged_with_a_reason(original, rewritten, reason):
    out = balance_prompts([rewritten] * 2, "gender", original=[original] * 2)
    assert out.prompts == [rewritten] * 2
    assert all(told.startswith(reason) for told in out.reasons)


def test_originals_are_counted_whatever_a_rewriter_makes_of_them():
    balancer = Balancer("gender", seed=0)
    values = []
    for number in range(10):
        rewritten = f"A man, a nurse in room {number}."
        values += balancer.next([rewritten], original=["a nurse"]).values
    assert Counter(values) == {"female": 5, "male": 5}


def test_ages_and_origins_that_were_added_give_way():
    rewritten = "A young Asian nurse in her early thirties, of Korean descent, in a ward."
    out = balance_prompts(
        rewritten,
        ["age", "race"],
        original="a nurse",
        shares={"old": 1, "young": 0, "Black": 1},
    )
    (prompt,) = out.prompts
    assert out.values == [("old", "Black")]
    assert not re.search("young|Asian|Korean|thirties", prompt)
    assert prompt.startswith("An old black nurse")


def test_each_word_has_a_counterpart_of_the_other_side():
    for _, _, female, male in TURNED:
        for text, other in ((female, "male"), (male, "female")):
            rest = re.sub("men and women|portrait of a woman|grandson|granddaughter", "", text)
            words = [word for word in re.findall(r"\w+", rest.lower()) if gendered(word)]
            assert other not in words


def test_originals_have_to_be_as_many():
    with pytest.raises(ValueError, match=r"original: got 1 texts for 2 prompts"):
        balance_prompts(["a", "b"], "gender", original=["a"])


def test_given_values_are_written_into_rewritten_prompts():
    rewritten = [
        "A man, a doctor, talks to a nurse, who nods.",
        "A quiet soldier, Sergeant John Miller, reads by lamplight.",
    ]
    original = ["a doctor and a nurse", "a soldier"]
    out = Balancer("gender").write(rewritten, [["female", "male"], ["female"]], original)
    assert out == ["A woman, a doctor, talks to a male nurse, who nods.", rewritten[1]]


@pytest.mark.parametrize(
    ("rewritten", "reason"),
    [
        ("Five engineers at a table.", None),
        ("Fünf Ingenieure an einem Tisch.", None),
        ("Five engineers, three men and two women, at a table.", "rewritten: not understood"),
        ("An engineer at a table.", "rewritten: group"),
        ("Four engineers at a table.", "rewritten: group"),
        ("Ein Ingenieur an einem Tisch.", "rewritten: group"),
    ],
)
def test_numbers_of_a_group_are_reported_only_where_they_are_written(rewritten, reason):
    out = balance_prompts([rewritten] * 2, "gender", original=["five engineers"] * 2, seed=0)
    assert out.reasons == [reason] * 2
    assert [value is None for value in out.values] == [reason is not None] * 2
    assert [prompt == rewritten for prompt in out.prompts] == [reason is not None] * 2


def test_a_group_is_left_unchanged_whether_its_image_gets_numbers_or_one_value():
    rewritten = "Two doctors, a man and a woman."
    shares = {"female": 0.9, "male": 0.1}  # most images are to show two women
    out = balance_prompts([rewritten] * 9, "gender", original=["two doctors"] * 9, shares=shares)
    assert out.prompts == [rewritten] * 9
    assert out.reasons == ["rewritten: not understood"] * 9
