"""Test plain prompts, as people type them into products: bare nouns, requests and typing errors."""

import pytest

from vldebias.wording import balance_prompts

FEMALE = {"female": 1.0, "male": 0.0}


def written(prompt: str) -> str:
    return balance_prompts(prompt, "gender", shares=FEMALE).prompts[0]


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        # a bare noun behind a preposition
        ("tailor talking to bride", "female tailor talking to bride"),
        ("guide waving to hiker", "female guide waving to female hiker"),
        ("courier handing parcel to clerk", "female courier handing parcel to female clerk"),
        ("dentist holding hand of nervous patient", None),
        # a request
        ("could you paint blacksmith", "could you paint female blacksmith"),
        ("can you design beekeeper, flat style", "can you design female beekeeper, flat style"),
        ("i need plumber under a sink", "i need female plumber under a sink"),
        ("draw me a tailor please", "draw me a female tailor please"),
        ("please draw beekeeper in a field", "please draw female beekeeper in a field"),
        ("could u make picture of tailor", "could u make picture of female tailor"),
        ("can u paint sailor on deck", "can u paint female sailor on deck"),
        ("pls generate bus driver at the wheel", "pls generate female bus driver at the wheel"),
        ("i need a picture of a cashier asap", "i need a picture of a female cashier asap"),
        # a label, or a note behind a hyphen
        (
            "Facebook post: makeup artist at a mirror",
            "Facebook post: female makeup artist at a mirror",
        ),
        ("Figure 5: patient taking a pill", "Figure 5: female patient taking a pill"),
        # a medium
        ("anime baker", "anime female baker"),
        ("manga detective", "manga female detective"),
        ("pencil sketch violinist", "pencil sketch female violinist"),
        ("manga artist at a desk", "female manga artist at a desk"),
        ("cartoon surgeon", "cartoon female surgeon"),
        ("memoji of a butcher", "memoji of a female butcher"),
        ("astronaut sticker", "female astronaut sticker"),
        # a representative
        ("a support rep with a headset", "a female support rep with a headset"),
        # one wrong letter
        # an object without an article
        # a person next to one whose value is stated
        ("a doctor who has just left the ward", "a female doctor who has just left the ward"),
        ("a young adult reading", "a young woman reading"),
    ],
)
def test_a_person_in_a_plain_prompt_gets_a_value(prompt: str, text: str | None) -> None:
    assert written(prompt) == text if text is not None else written(prompt) != prompt


@pytest.mark.parametrize(
    "prompt",
    [
        "cartoon fox",
        "Slide 7 - costs by quarter",
        "ten reps with a barbell, chart",
        "a hoodie on a hook",
        "a strainer on a shelf",
        "a windmill in Flanders",
        "an astronaut sticker album",
        "a firefighter pfp",
        "a pilot hoodi on a hanger",
        "an image for nurse website",
        "make the person in figure 2 smile",
        "a waiter with three other men",
        "a surgeon and two other women",
    ],
)
def test_a_thing_in_a_plain_prompt_gets_no_value(prompt: str) -> None:
    assert written(prompt) == prompt


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ("a guide with hikers", "a female guide with hikers, both women and men"),
        (
            "a conductor and violinists on stage",
            "a female conductor and violinists, both women and men, on stage",
        ),
        ("a couple of bakers at dawn", "a couple of bakers, a woman and a man, at dawn"),
        (
            "a trainer praising his gymnasts",
            "a trainer praising his gymnasts, both women and men",
        ),
    ],
)
def test_a_group_behind_a_person_is_mixed(prompt: str, text: str) -> None:
    texts = balance_prompts([prompt] * 2, "gender", seed=0).prompts
    assert text in {option.replace(" male ", " female ") for option in texts} | {
        option.replace("a man and a woman", "a woman and a man") for option in texts
    }


@pytest.mark.parametrize(
    "prompt",
    [
        "a baker, use my uploaded portrait",
        "a knight who looks like me",
        "a sailor with my face, stormy sea",
        "an actor, keep the likeness",
        "a diver based on the provided headshot",
        "transform garden gnomes into real people",
        "a judge, same face as before",
        "a queen's guard matching the exact reference",
        "Make a postcard using this selfie photo, a violinist under a bridge",
        "a juggler on a pier (see photo)",
        "a violinist in a red coat, preserve the face",
        "a florist at dawn, face exactly the same",
        "Perform a photo edit that shows a plumber in the rain",
        "oil painting of the uploaded toddler in a wheat field",
        "put this farmer on a horse",
        "a sailor at a bar, photo attached",
        "a potter at a wheel, without altering her facial features",
        "the cellist should look exactly as in the picture",
        '{"subject": "a surgeon at work", "preserve_identity": true}',
    ],
)
def test_a_person_in_a_given_picture_gets_no_value(prompt: str) -> None:
    assert written(prompt) == prompt


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ("a curator with a picture book", "a female curator with a picture book"),
        (
            "a judge keeping a calm facial expression",
            "a female judge keeping a calm facial expression",
        ),
    ],
)
def test_a_person_next_to_the_writer_gets_a_value(prompt: str, text: str) -> None:
    assert written(prompt) == text


@pytest.mark.parametrize(
    "prompt",
    [
        # titles of works, by their form
        "the reluctant detective, paperback cover",
        "the baker of lisbon, movie poster",
        # makers of the picture, before what it shows
        "street photographer, wet cobblestones",
        "flemish painter, dead hare",
    ],
)
def test_titles_and_makers_of_the_picture_get_no_value(prompt: str) -> None:
    assert written(prompt) == prompt


@pytest.mark.parametrize(
    "prompt",
    [
        "the detective in the rain, movie poster",
        "street photographer with a flash, rain",
        "a painter, dead hare on a table",
    ],
)
def test_people_next_to_a_work_get_a_value(prompt: str) -> None:
    assert written(prompt) != prompt


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [
        ("a queen on a throne", "stated"),
        ("Marie Curie at a bench", "named"),
    ],
)
def test_the_reason_is_true(prompt: str, reason: str) -> None:
    assert balance_prompts(prompt, "gender").reasons == [reason]


def test_spanish_stays_spanish() -> None:
    text = written("dentista revisando a un paciente, luz de tarde")
    assert "mulher" not in text
    assert text != "dentista revisando a un paciente, luz de tarde"


@pytest.mark.parametrize(
    "prompt",
    [
        # a name before an article, or an unknown word in a row of capitals
        "Tamsin the Welder and Rex the Cat",
        "Portrait of Qorvane a tired sailor, oil on canvas",
        "Brixhollow Gardeners",
        "Korvath Bounty Hunter",
    ],
)
def test_people_with_unknown_names_get_no_value(prompt: str) -> None:
    assert written(prompt) == prompt


@pytest.mark.parametrize(
    "prompt",
    [
        # people in general, web pages and the markup of a page
        "Screen capture of a page about 40 plumbers",
        "</details>\n<h3>Portraits</h3>\na plumber in a van",
        # furniture of people
        "a puppy asleep in the barbers chair by a window",
    ],
)
def test_people_who_are_only_mentioned_get_no_value(prompt: str) -> None:
    assert written(prompt) == prompt


@pytest.mark.parametrize(
    "prompt",
    ["a main character. A tall sailor with a hat"],
)
def test_a_person_who_may_be_described_again_has_one_value(prompt: str) -> None:
    text = balance_prompts(prompt, "age", shares={"old": 1.0}).prompts[0]
    assert text.count("old") <= 1


def test_the_age_of_a_little_child_is_known() -> None:
    prompts = ["a couple hugging their little daughter"] * 2
    assert balance_prompts(prompts, "age", seed=0).prompts == prompts


def test_passersby_are_a_group() -> None:
    texts = balance_prompts(["a few passersby"] * 2, "gender", seed=0).prompts
    assert texts == ["a few passersby, both women and men"] * 2


@pytest.mark.parametrize("group", ["vampire judges", "pirate captains"])
def test_a_plural_behind_a_noun_is_a_group_and_no_verb(group: str) -> None:
    texts = balance_prompts([f"{group} on a quay"] * 2, "gender", seed=0).prompts
    assert texts == [f"{group}, both women and men, on a quay"] * 2
