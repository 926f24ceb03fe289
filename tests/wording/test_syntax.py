"""Test tool syntax: the word is inserted next to the noun, inside its bracket, and nothing else
changes."""

import itertools
import json
import re

import pytest

from tests.growth import growth
from vldebias.wording import Balancer, balance_prompts
from vldebias.wording.syntax import MOST_READINGS, picture_of, read_alternatives

FEMALE = {"female": 1, "male": 0}
WRITTEN = [
    "masterpiece, best quality, <female> welder, workshop",
    "(masterpiece:1.2), (best quality), <female> diver, reef",
    "score_9, score_8_up, <female> baker, bakery",
    "photo of a (<female> plumber:1.3) at a sink",
    "a ((<female> pilot)) in a cockpit, clouds",
    "a [<female> tailor] with a needle",
    "a photo of a <female> barista, latte art &lora:film_grain:0.8&",
    "&lora:nurse:0.8& a <female> gardener with a rake",
    "embedding:badhands, a <female> potter at the wheel",
    "a photo of a <female> drummer BREAK a stage in the background BREAK cinematic",
    "a <female> judge AND a courtroom",
    "a misty forest\na <female> hiker with a map",
    "a photo of a {<female> doctor|<female> nurse} in a clinic",
    "{<female> welder|<female> plumber|<female> roofer} at work",
    "a [<female> cook|<female> waiter] in a kitchen",
    "a {red|blue} bus and a <female> driver",
    "a {<female> pilot|robot} in a cockpit",
    "{a <female> teacher|a <female> librarian} with a book",
    "{2::<female> doctor|1::<female> nurse} on a bench",
    "{2$$<female> doctor|<female> nurse}",
    "{an oil painting|a photo} of a <female> farmer",
    "a __color__ van and a <female> courier",
    "{a {tall|short} <female> plumber|a <female> cook} at home",
    '{"subject": "a <female> doctor", "background": "a man\'s office"}'.replace("man's", "tidy"),
    '[{"scene": "a clinic", "characters": ["a <female> nurse in blue"]}]',
    "A <FEMALE> WELDER IN A WORKSHOP",
    "A <female> CEO",
    "<FEMALE> WELDER",
]


@pytest.mark.parametrize("line", WRITTEN)
def test_the_word_goes_where_it_is_marked(line):
    line = line.replace("&lora:film_grain:0.8&", "<lora:film_grain:0.8>")
    line = line.replace("&lora:nurse:0.8&", "<lora:nurse:0.8>")
    prompt = re.sub("<(?:female|FEMALE)> ", "", line)
    result = re.sub("<(female|FEMALE)>", r"\1", line)
    assert balance_prompts(prompt, "gender", shares=FEMALE).prompts == [result]


NOT_IN_PICTURE = [
    "a {} welder in a shipyard --no nurse, child --ar 3:2",
    "photo of a {} nurse. Negative prompt: child, old man",
    "a {} pilot at dawn\nNegative prompt: child, nurse\nSteps: 20, Sampler: Euler a, Seed: 2",
    "a {} cook without a waiter or a female guest in a kitchen",
    '{{"subject": "a {} doctor", "negative_prompt": "a man with six fingers, a nurse"}}',
    '{{"inputs": "a {} cook", "parameters": {{"negative_prompt": ["man", "guide"]}}}}',
    '{{"text_prompts": [{{"text": "a {} welder"}}, {{"text": "soldier", "weight": -1}}]}}',
    '--prompt "a {} beekeeper in a field" --negative_prompt "woman, soldier" --steps 30',
    "--neg 'girl, soldier' --prompt 'a {} roofer on a farmer's roof, dusk'",
    "prompt='a {} potter', negative_prompt='man', seed=1",
    "Prompt: a {} baker at dawn\nNegative: boy, extra fingers",
    "a {} florist in a shop [negative: man, blurry]",
    "a {} climber on an icefall | Negative: woman, worst quality",
    "You are an assistant who paints women. <Prompt Start> a {} nurse in a park",
    "You are a painter. Draw a {} farmer on a tractor.",
    "You are a prompt writer. You help an artist. Prompt: a {} farmer on a tractor",
    "You are a prompt writer. Never mention a celebrity.\n\nA {} nurse in a ward",
    "<|im_start|>system\nYou are a poet.<|im_end|>\n<|im_start|>user\na {} nurse<|im_end|>\n"
    "<|im_start|>assistant\n",
    "system: You are an artist. user: draw a {} clerk at a counter",
    "User: a photo of a {} nurse",
    "<start_of_turn>user\na {} shepherd on a hill<end_of_turn>\n<start_of_turn>model\n",
]


@pytest.mark.parametrize("text", NOT_IN_PICTURE)
def test_only_the_description_of_the_picture_is_parsed(text):
    prompt = text.format("{}").replace(" {}", "")
    assert balance_prompts(prompt, "gender", shares=FEMALE).prompts == [text.format("female")]


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [
        ("<lora:soldier_v2:0.7> a castle on a hill", "no person"),
        ("<my-nurse> in a garden", "no person"),
        ("solo, 1person, kitchen", "no person"),
        ("police_officer, city street", "no person"),
        ("__profession__ in an office", "no person"),
        ("a [cat:dog walker:0.5] in a park", "no person"),
        ("a bakery counter --no baker, customer --ar 3:2", "no person"),
        ("a ward without a nurse or a patient", "no person"),
        ("You are a prompt writer. You help an artist. Answer in one line.", "no person"),
        ("someone cooking dinner", "not plain"),
        ("somebody reading on a bench", "not plain"),
        ("change the driver's jacket to red", "edit"),
        ("make the person in the photo smile", "edit"),
        ("remove the tourist on the left", "edit"),
        ("Erase every sticker from the photo. The cooks stay as they are", "edit"),
        ("The character sings like the voice in the reference clip", "edit"),
        ("let the boy wave at the camera", "edit"),
        ("The person in the photo wears a hat", "edit"),
        ("Add a dog next to the child", "edit"),
        ("please make her smile", "edit"),
        ("replace the nurse with a cook", "edit"),
        ("a nurse, (insert a hero)", "not plain"),
        ("remove background, keep the chef", "edit"),
        ("put the person in the first image on a beach", "edit"),
        ('{"setting": "a kitchen with a chef"}', "no person"),
        ("a {doctor|male nurse} in a clinic", "stated"),
    ],
)
def test_unchanged_prompts_have_a_reason(prompt, reason):
    out = balance_prompts(prompt, "gender")
    assert (out.prompts, out.values, out.reasons) == ([prompt], [None], [reason])


def test_prompts_that_sound_like_instructions_are_not_edits():
    prompts = [
        "make a photo of a doctor",
        "a chef adding salt to the soup",
        "show a nurse",
        "a crop duster pilot over the fields",
        "turn of the century, a baker in the street",
        "zoom call with a manager in the office",
        "the light in the photo is soft, a nurse",
        "keep calm, a pilot in the storm",
    ]
    assert balance_prompts(prompts, "gender").reasons == [None] * len(prompts)


@pytest.mark.parametrize(
    ("prompt", "written"),
    [
        ('a nurse, "tired"', 'a female nurse, "tired"'),
        ("un pianista en el escenario", "una pianista en el escenario"),
    ],
)
def test_json_stays_json(prompt, written):
    content = {"subject": prompt, "style": {"light": "soft"}, "negative": "blur"}
    (balanced,) = balance_prompts(json.dumps(content), "gender", shares=FEMALE).prompts
    assert json.loads(balanced) == content | {"subject": written}


def test_either_every_branch_is_parsed_or_none():
    names = [f"nurse {i}" for i in range(MOST_READINGS)]
    readings = read_alternatives("a {" + "|".join(names) + "} in a hall")
    for name in names:
        assert sum(bool(re.search(rf"{name}(?!\d)", text)) for text in readings) == 1
    prompt = "a {" + "|".join(["nurse"] * 1000) + "} in a hall"
    out = balance_prompts(prompt, "gender")
    assert (out.prompts, out.reasons) == ([prompt], ["too many alternatives"])


@pytest.mark.parametrize(
    ("start", "unit", "end"),
    [
        ("", "{", ""),
        ("", "[", "nurse]"),
        ("", "(", " a nurse"),
        ("", "{a|", ""),
        ("", "<", ""),
        ('{"subject": "', "[", '"}'),
        ("", "a_", ""),
        ("", "change ", ""),
    ],
)
def test_hostile_prompts_are_parsed_in_linear_time(start: str, unit: str, end: str) -> None:
    numbers = itertools.count()

    def balance(n: int) -> None:
        # The number makes each prompt a new one, which is not cached.
        out = balance_prompts(f"{start}{unit * n}{end} {next(numbers)}", "gender")
        assert len(out.prompts) == 1

    assert growth(balance, 8_000 // len(unit)) < 2.8


@pytest.mark.parametrize(
    "prompt",
    [
        "<random:male|female> astronaut",
        "a <wildcard:gender> baker",
        "a __hair/female__ nurse",
        "a [lady::0.4] librarian",
        "<lora:woman_portrait:0.8> a photo of a judge",
        *(f"a {name} cook" for name in ("${gender}", "{$gender}", "$gender", "%gender%")),
        *(f"a {name} cook" for name in ("@gender@", "#gender#", "[[gender]]", "{{ gender }}")),
        "a {{sex}} cook",
        "@gender lawyer leaving the court",
    ],
)
@pytest.mark.filterwarnings("ignore:.* is not filled")
def test_a_value_inside_markup_is_stated(prompt: str) -> None:
    out = balance_prompts(prompt, "gender")
    assert (out.prompts, out.reasons) == ([prompt], ["stated"])


@pytest.mark.parametrize(
    ("prompt", "result"),
    [
        ("<random:young,old> welder", "<random:young,old> female welder"),
        ("a __place__ $job, a cook", "a __place__ $job, a female cook"),
        ('"a judge in court"', '"a female judge in court"'),
        ('a guard by a sign "nurse wanted"', 'a female guard by a sign "nurse wanted"'),
        (
            '("a photo of a judge", "a photo of a baker").blend(0.6, 0.4)',
            '("a photo of a female judge", "a photo of a female baker").blend(0.6, 0.4)',
        ),
    ],
)
def test_words_that_are_not_values_of_the_attribute_stay_in_place(prompt: str, result: str) -> None:
    assert balance_prompts(prompt, "gender", shares={"female": 1}).prompts == [result]


@pytest.mark.parametrize("style", ["in the style of Rembrandt", "oil painting by Monet"])
def test_an_artist_in_a_second_prompt_is_not_a_person_in_the_picture(style: str) -> None:
    written, _ = Balancer("gender", shares={"female": 1}).next_texts([["a cook", style]])
    assert written == [["a female cook", style]]


@pytest.mark.parametrize("text", ["\n", " ", "\t", "#", "\n#", "system:\n", ": you are "])
def test_the_time_to_find_the_picture_is_linear_in_the_length(text: str) -> None:
    """Spaces before a word used to be searched again from each line, which took minutes."""
    assert growth(lambda n: picture_of(text * n), 4000) < 2.8


@pytest.mark.parametrize(
    ("messages", "written"),
    [
        (
            '[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "%s"}]',
            True,
        ),
        (
            '{"messages": [{"role": "user", "content": [{"type": "text", "text": "%s"}]}]}',
            True,
        ),
        ('[{"role": "assistant", "content": "%s"}]', False),
        ('[{"role": "system", "content": "%s"}, {"role": "user", "content": "a lake"}]', False),
    ],
)
def test_only_user_messages_in_a_chat_describe_the_picture(messages, written):
    person = "a female welder at work" if written else "a welder at work"
    out = balance_prompts(messages % "a welder at work", "gender", shares=FEMALE)
    assert out.prompts == [messages % person]


@pytest.mark.parametrize("before", ["", "A photo of ", '{argument name="style" default="oil"}, '])
@pytest.mark.parametrize("after", ["", " in a ward", ' {argument name="place" default="Rome"}'])
def test_the_default_of_an_argument_keeps_its_place(before: str, after: str) -> None:
    prompt = f'{before}{{argument name="job" default="a nurse"}}{after}'
    reading = picture_of(prompt)
    start = prompt.index("a nurse")
    assert len(reading) == len(prompt)
    assert reading[start : start + len("a nurse")] == "a nurse"
    assert "argument" not in reading
