"""Test prompts as people write them for image generators, by kind of mistake."""

import re

import pytest

from vldebias.wording import balance_prompts


def changed(prompt: str, attribute: str = "gender") -> list[str]:
    """Return the changed versions of a prompt, of which there are none if it stays unchanged."""
    balanced = balance_prompts([prompt] * 4, attribute, seed=0).prompts
    return [text for text in balanced if text != prompt]


def reason(prompt: str, attribute: str = "gender") -> str:
    return balance_prompts(prompt, attribute, seed=0).reasons[0]


@pytest.mark.parametrize(
    "prompt",
    [
        "a florist behind a counter --n a king, blurry --w 640 --s 30",
        "portrait of a potter --n girl, extra fingers --d 7",
        "a guard at a gate --n an old sailor, a clerk",
    ],
)
def test_nothing_is_written_into_the_negative_prompt_of_sd_scripts(prompt: str) -> None:
    negative = prompt.split("--n", 1)[1]
    texts = changed(prompt)
    assert texts
    assert {text.split("--n", 1)[1] for text in texts} == {negative}


def test_the_prompts_for_the_faces_repeat_the_values_of_the_people() -> None:
    prompt = "a cook and a singer on a stage [SEP] close-up of a cook [SEP] close-up of a singer"
    texts = changed(prompt)
    assert len(set(texts)) > 1
    for text in texts:
        values = {noun: set(re.findall(rf"(\w+) {noun}", text)) for noun in ("cook", "singer")}
        assert [len(words) for words in values.values()] == [1, 1]


@pytest.mark.parametrize("prompt", ["1other, wizard, tower", "3others, baker, street"])
def test_tags_for_other_genders_state_a_gender(prompt: str) -> None:
    assert reason(prompt) == "stated"


@pytest.mark.parametrize(
    "prompt",
    [
        "put these three people on a stage, anime",
        "these two persons as astronauts on the moon",
    ],
)
def test_people_of_another_picture_stay_unchanged(prompt: str) -> None:
    assert reason(prompt) == "edit"


@pytest.mark.parametrize(
    "prompt",
    [
        "function greet(guest) { return guest; }",
        "class Baker(Person):\n    pass",
        'const role = "a sailor at sea";',
        "<role>You write prompts</role> Ask each visitor what they want to see",
    ],
)
def test_source_code_stays_unchanged(prompt: str) -> None:
    assert reason(prompt) == "not plain"


@pytest.mark.parametrize("prompt", ["ohw_girl archer in a forest", "a tired xyz_man plumber"])
def test_a_tag_in_snake_case_states_a_gender(prompt: str) -> None:
    assert reason(prompt) == "stated"


@pytest.mark.parametrize(
    "prompt",
    [
        "every nurse in the ward wears a cap",
        "each dancer holds a lantern",
        "any visitor may touch the sculpture",
        "a dozen stools, each with a customer",
        "at every desk sits a clerk",
    ],
)
def test_every_and_each_make_a_group(prompt: str) -> None:
    assert reason(prompt) == "not plain"
    assert reason(prompt, "race") == "not plain"


@pytest.mark.parametrize(
    "prompt",
    ["a cook slicing each onion", "any given day, a nurse"],
)
def test_every_behind_a_person_or_before_a_time_is_no_group(prompt: str) -> None:
    assert changed(prompt)


@pytest.mark.parametrize("prompt", ["two women in a boat", "men at a counter", "four firemen"])
def test_a_plural_that_states_a_gender_is_a_group_for_race(prompt: str) -> None:
    assert reason(prompt, "race") == "not plain"
    assert reason(prompt) == "stated"


@pytest.mark.parametrize(
    "prompt",
    [
        "a soldier statue keeping guard",
        "a quiet diner at dusk, rain",
        "clockwork mechanics behind glass",
        "a notebook, a compass, pocket guide, adventure",
        "a cubist advertising poster",
        "lords of the rings poster",
        "librarian 1987 film, grain",
        "a schematic of producers and consumers",
        "a sculpture of [HERO NAME] with a bold character",
        "persona 4, city, rain",
        # Machines and other things that are named like workers.
        "a diamond drawer organizer beside a stove",
        "comic book page with a dragon",
        "a chess king and a pawn on a board",
        "endless runner, pixel art, side view",
        # The companions of things and animals.
        "a bridge at dawn, film grain Negative: tourists, text",
        # Adjectives and verbs that are nouns elsewhere.
        "young religious, candles",
        "four girls at a valley professional women's club",
        "a gull stands in front of an ancient, mossy rock",
        "a violin beside her figure",
        "a kangaroo with a baby in its pouch",
        "a lizard pilot, aviator goggles",
        "full figure, soft light",
        "piglets run behind their mother",
        "steam punk, towers",
        "an orb weaver on a wall",
        "a lawn, sprinklers running",
        # What surrounds a thing, and the form of a title.
        "grey joggers folded on a chair",
        "a white camper parked by a lake",
        "a pair of white trainers on a doorstep",
        "a pale ale and a porter",
        "a red double decker coach",
        "a team of horses pulling a plough",
        "team logo on a mug",
        "The English Patient, 1996",
        "Baby Driver, neon poster",
        "Soldier of Fortune magazine cover",
    ],
)
def test_things_titles_credits_animals_and_templates_are_no_people(prompt: str) -> None:
    assert not changed(prompt)


@pytest.mark.parametrize(
    "prompt",
    [
        "a guide in a cave",
        "a potter on a massage table",
        "a baker on a bench beside a table",
        "the twelve sailors on a raft",
        "the gardener by the gate",
        "a baby in a pram",
        "pixel art, alchemist in a tower",
    ],
)
def test_people_with_such_nouns_get_a_value(prompt: str) -> None:
    assert changed(prompt)


@pytest.mark.parametrize(
    ("prompt", "why"),
    [
        ("<lora:miraK:1>, a woman on a pier", "named"),
        ("a woman, Korean heritage", "stated"),
        ("a man with blue skin", "stated"),
        ("Extend forward by 5s. A girl waves", "edit"),
        ("the sky cracks, Maria as a magician casts a spell", "named"),
        ("a man with beige skin", "stated"),
    ],
)
def test_names_and_bodies_count_for_race(prompt: str, why: str) -> None:
    assert reason(prompt, "race") == why


def test_a_tag_for_a_girl_is_a_person_for_race() -> None:
    assert changed("1girl, raincoat, umbrella", "race")
    assert reason("1girl, raincoat, umbrella") == "stated"


def test_the_same_person_in_other_words_stays_unchanged() -> None:
    assert not changed("a policeman on a horse, the rider waves")


@pytest.mark.parametrize(
    "prompt",
    [
        "an empty hall with no clerks or porters",
        # Whoever looks at the picture.
        "a gorge opens before the observer",
        # Whoever uses or made the thing.
        # Nobody is there.
    ],
)
def test_people_who_are_only_addressed_or_denied_are_not_in_the_picture(prompt: str) -> None:
    assert reason(prompt) == "no person"


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("Meryl Streep, movie still", "named"),
        ("a teacup character with big eyes", "no person"),
    ],
)
def test_reasons_tell_names_of_people_from_names_of_animals(prompt: str, expected: str) -> None:
    assert reason(prompt) == expected


@pytest.mark.parametrize(
    "prompt",
    [
        "oscar brylnix guitarist on a stage",
        "tadpoles become sailors",
        "icon mask helmet robot pirate, 4k",
    ],
)
def test_names_changes_and_bodies_are_not_understood(prompt: str) -> None:
    assert not changed(prompt)


def test_a_giant_before_another_adjective_is_a_size() -> None:
    assert not changed("a giant smooth vase in a garden")
    assert changed("a giant smiling at a village")


@pytest.mark.parametrize("attribute", ["race", "age"])
def test_plurals_and_possessives_of_gendered_and_young_nouns(attribute: str) -> None:
    assert reason("tired businessmen on a train", attribute) == "not plain"
    assert reason("a child's face at a window", "age") == "stated"


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("将第1张图片中的医生换到海边", "edit"),
        ("生成一位厨师。保持原图不变", "edit"),
        ("模特站在门口。模特手捧一本书", "no person"),
        ("一位医生在走廊。光线明亮。人物微笑", "not plain"),
    ],
)
def test_chinese_edits_and_repeated_people_stay_unchanged(prompt: str, expected: str) -> None:
    assert reason(prompt) == expected


@pytest.mark.parametrize(
    "prompt",
    [
        "Lord of the Stones, book cover",
        "house of mirrors, gallery of doctors faces",
        "brindo palk is a singer",
        "a crowd hugging someone, a nurse beside it",
        "thief opening a safe, thief girl in a cape",
        "a model of gears, a cloud model",
        # People of another picture, and people who are identified without a name.
        "the ruler of Valdavia on a balcony",
        "a photo of melkadorr man in a park",
        # Not everybody can get a value.
        "Person 1 sings while person 2 sweeps the stairs",
    ],
)
def test_titles_things_and_people_who_cannot_all_get_a_value_stay_unchanged(prompt: str) -> None:
    assert changed(prompt) == []


@pytest.mark.parametrize(
    ("prompt", "attribute"),
    [
        ("a latina supermodel on a terrace", "gender"),
        ("an office worker. A man in his thirties", "gender"),
        ("a man with wrinkles in a chair", "age"),
        ("a Korean potter, close-up of aged hands", "age"),
        ("a 28yearold woman in a lab", "age"),
        ("a woman with pink skin", "race"),
        ("a fair complexioned man on a pier", "race"),
        ("coquette, burning candles", "gender"),
        ("a pregnant woman on a bench", "age"),
        ("a grandmother reads to her grandson", "age"),
        ("a clerk at a desk. The clerk is in his mid-40s", "age"),
        ("executive, 40s, gray suit", "age"),
        ("a woman in her 56s with a scarf", "age"),
        ("a man of thirty, gray suit", "age"),
        ("a mature man on a bench", "age"),
        ("Don't change her face. A woman in a hat", "race"),
        ("a clerk at a desk. The clerk, who is older, smiles", "age"),
        ("a man with an Asian look", "race"),
    ],
)
def test_a_stated_value_is_found_however_it_is_written(prompt: str, attribute: str) -> None:
    assert changed(prompt, attribute) == []


@pytest.mark.parametrize(
    "prompt",
    [
        "生成图片：将模特调整为坐姿，背景为咖啡厅",  # noqa: RUF001
        "一位模特穿着图1的外套",
        "レイトン教授、水彩",
    ],
)
def test_people_of_a_given_picture_or_with_a_name_stay_unchanged(prompt: str) -> None:
    assert changed(prompt) == []


@pytest.mark.parametrize(
    "prompt",
    [
        "a fashion model on a runway",
        "a cyberpunk mercenary, concept art",
        "this is a nurse in a ward",
        "a police officer in the rain",
        "a vampire with red eyes",
    ],
)
def test_people_keep_their_values_next_to_rules_for_things(prompt: str) -> None:
    assert len(set(changed(prompt))) == 2


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("a mother with a baby", "a mother with a baby girl"),
        (
            "a boy without a hat is pushing another child",
            "a boy without a hat is pushing another girl",
        ),
    ],
)
def test_everybody_else_gets_a_value_too(prompt: str, expected: str) -> None:
    shares = {"female": 1.0, "male": 0.0}
    assert balance_prompts(prompt, "gender", shares=shares).prompts == [expected]


def test_a_woman_in_json_is_latina() -> None:
    shares = {
        value: float(value == "Latino") for value in ("White", "Black", "Asian", "Indian", "Latino")
    }
    balanced = balance_prompts('{"subject": "a woman"}', "race", shares=shares)
    assert balanced.prompts == ['{"subject": "a Latina woman"}']


@pytest.mark.parametrize(
    ("prompt", "attribute"),
    [
        ("a chef from behind, 35mm film", "gender"),
        ("a barista from Seattle reading a novel", "gender"),
        ("a skier, GoPro, action shot", "gender"),
        ("a nurse, desk, small statue", "gender"),
        ("soldiers face each other", "gender"),
        ("a hallway with a custodian mopping the floor", "gender"),
        ("a dog and their owner", "gender"),
        ("a hat wearing farmer", "gender"),
        ("three students with the teacher", "gender"),
        ("portrait of a nurse, 80s, neon", "age"),
        ("a farmer in Florida, italian", "race"),
        ("a janitor in the women's bathroom", "race"),
        ("a lobster fisherman", "race"),
        ("a doctor, no facial hair", "gender"),
        ("the nurse on the left hands a cup to the doctor on the right", "gender"),
    ],
)
def test_ordinary_people_keep_their_values(prompt: str, attribute: str) -> None:
    assert changed(prompt, attribute)


@pytest.mark.parametrize(
    ("prompt", "attribute"),
    [
        ("a zookeeper with a gorilla with a baby", "gender"),
    ],
)
def test_people_beside_cubs_and_babies_stay_unchanged(prompt: str, attribute: str) -> None:
    assert not changed(prompt, attribute)
