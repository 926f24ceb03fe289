"""Balanced prompts in other languages: our own labelled prompts, and laws for all languages."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from eval.languages import measure_rated
from tests.wording.dutch import Dutch
from vldebias import balance_prompts
from vldebias.prompts import make_prompt_set
from vldebias.wording import languages
from vldebias.wording.languages import (
    CODES,
    ROMANCE,
    language_of,
    register_language,
    unregister_language,
)
from vldebias.wording.reasons import reason_in_words

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent / "languages"
IMAGES = 12
# A cook who is named can be of a stated gender as well; without a person the language may be open.
REASONS = {
    "stated": ("stated", "named"),
    "named": ("named", "stated"),
    "none": ("no person", "not understood", "language"),
    "group": ("group",),
    "context": ("context",),
}
READ = [code for code in CODES if code != "en"]


def labelled(code):
    rows = []
    for line in (FOLDER / f"{code}.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            label, prompt, *texts = [part.strip() for part in line.split(" | ")]
            rows.append((label, prompt, tuple(texts)))
    return rows


@pytest.mark.parametrize("code", READ)
def test_open_prompts_are_written_with_both_values(code):
    missed = []
    for label, prompt, texts in labelled(code):
        if label != "open":
            continue
        balanced = balance_prompts([prompt] * IMAGES, "gender", seed=0)
        written = set(balanced.prompts)
        is_mixed = any(isinstance(value, Mapping) for value in balanced.values)
        is_written = prompt not in written and (is_mixed or len(written) > 1)
        if not is_written or not set(texts) <= written:
            missed.append((prompt, sorted(written)))
    assert not missed


@pytest.mark.parametrize("code", READ)
def test_what_states_names_or_shows_nobody_is_left_unchanged(code):
    wrong = []
    for label, prompt, _ in labelled(code):
        if label == "open":
            continue
        balanced = balance_prompts(prompt, "gender", seed=0)
        if balanced.prompts != [prompt] or not balanced.reasons[0].startswith(REASONS[label]):
            wrong.append((label, prompt, balanced.prompts, balanced.reasons))
    assert not wrong


@pytest.mark.parametrize(
    ("threshold", "low", "high", "outside"),
    [("_SURE", 0.55, 0.7, 0.5), ("_LIKELY", 0.35, 0.7, 0.95), ("_ENGLISH_SHARE", 0.5, 1.0, 0.4)],
)
def test_no_labelled_prompt_hangs_on_the_last_digit_of_a_threshold(
    threshold, low, high, outside, monkeypatch
):
    prompts = [prompt for code in languages._LATIN for _, prompt, _ in labelled(code)]
    expected = list(map(language_of, prompts))
    for value in (low, high):
        monkeypatch.setattr(languages, threshold, value)
        assert list(map(language_of, prompts)) == expected
    monkeypatch.setattr(languages, threshold, outside)
    assert list(map(language_of, prompts)) != expected


@pytest.mark.parametrize("code", READ)
def test_sets_of_labelled_prompts_have_enough_of_each_kind(code):
    rows = labelled(code)
    assert len(rows) >= 60
    assert {"open", "stated", "named", "none", "group", "context"} <= {row[0] for row in rows}


@pytest.mark.parametrize("code", READ)
def test_every_prompt_is_read_by_its_language(code):
    for label, prompt, _ in labelled(code):
        if label == "open":
            assert language_of(prompt).code == code, prompt


@pytest.mark.parametrize("code", READ)
def test_what_was_written_is_stated_and_left_unchanged(code):
    for label, prompt, _ in labelled(code):
        if label != "open":
            continue
        for text in set(balance_prompts([prompt] * IMAGES, "gender", seed=0).prompts):
            again = balance_prompts(text, "gender", seed=0)
            assert again.prompts == [text], prompt


@pytest.mark.parametrize("code", READ)
def test_age_and_gender_are_written_together(code):
    written = 0
    for label, prompt, _ in labelled(code):
        if label != "open":
            continue
        ages = balance_prompts([prompt] * IMAGES, ["gender", "age"], seed=0)
        for text, (gender, age) in zip(ages.prompts, ages.values, strict=True):
            assert (text == prompt) == (gender is None and age is None)
        written += ages.values[0][1] is not None
    assert written >= 10


@pytest.mark.parametrize(
    ("prompt", "name"),
    [
        ("A nurse in 東京, film grain", "English"),
        ("一位护士, masterpiece, best quality, 4k, highly detailed", "Chinese"),
        ("een dokter in het ziekenhuis", "Dutch"),
        ("Лікар у лікарні", "Ukrainian"),
        ("پزشک در بیمارستان", "Persian"),
        ("Rio de Janeiro carnival dancer", "English"),
        ("doctor, 4k", "English"),
        ("red hat, CEO", "English"),
    ],
)
def test_the_language_is_that_of_the_person(prompt, name):
    assert language_of(prompt).name == name


def test_a_language_that_is_not_read_is_named():
    balanced = balance_prompts("een dokter in het ziekenhuis", "gender")
    assert balanced.reasons == ["language: Dutch"]


def test_a_german_clause_that_ends_with_its_pronoun_is_written():
    balanced = balance_prompts(["Ein Arzt, mit dem"] * 2, "gender", seed=0)
    assert set(balanced.prompts) == {"Eine Ärztin, mit dem", "Ein männlicher Arzt, mit dem"}


CHILDREN = [
    ("Drei Kinder spielen", "Drei Kinder, zwei Mädchen und ein Junge, spielen"),
    ("Trois enfants jouent", "Trois enfants, deux filles et un garçon, jouent"),
    ("Tres niños juegan", "Tres niños, dos chicas y un chico, juegan"),
    ("Tre bambini giocano", "Tre bambini, due femmine e un maschio, giocano"),
    ("Três crianças brincam", "Três crianças, duas meninas e um menino, brincam"),
    ("Три ребёнка играют", "Три ребёнка, две девочки и один мальчик, играют"),
    ("三个孩子在玩", "三个孩子，两女一男，在玩"),
    ("三人の子供", "三人の子供（女の子2人、男の子1人）"),
    ("세 명의 아이", "세 명의 아이(여자아이 두 명, 남자아이 한 명)"),
    ("ثلاثة أطفال يلعبون", "ثلاثة أطفال، بنتان وولد، يلعبون"),
]


@pytest.mark.parametrize(("prompt", "written"), CHILDREN)
def test_groups_of_children_are_girls_and_boys(prompt, written):
    balanced = balance_prompts([prompt] * 4, "gender", seed=0)
    assert written in balanced.prompts
    # What was written is read as stated: nobody is named twice.
    for text in set(balanced.prompts):
        assert balance_prompts(text, "gender").prompts == [text]


def test_children_who_are_not_counted_are_girls_and_boys():
    (text,) = set(balance_prompts(["아이들이 논다"] * 4, "gender", seed=0).prompts)
    assert "여자아이" in text
    assert "남자아이" in text
    (text,) = set(balance_prompts(["Les enfants jouent"] * 4, "gender", seed=0).prompts)
    assert text in {
        "Les enfants, garçons et filles, jouent",
        "Les enfants, filles et garçons, jouent",
    }
    assert balance_prompts("дети играют", "gender").reasons == ["group"]


@pytest.mark.parametrize(
    ("prompt", "woman", "man"),
    [
        (
            "Um músico de rua toca violão",
            "Uma música de rua toca violão",
            "Um músico de rua homem toca violão",
        ),
        (
            "портрет уличного музыканта, сидящего у стены",
            "портрет женщины — уличного музыканта, сидящей у стены",
            "портрет мужчины — уличного музыканта, сидящего у стены",
        ),
        (
            "Уставший главный врач",
            "Уставшая женщина — главный врач",
            "Уставший мужчина — главный врач",
        ),
        ("등대 관리인, 폭풍우", "여성 등대 관리인, 폭풍우", "남성 등대 관리인, 폭풍우"),
        ("늙은 수중 용접공", "늙은 여성 수중 용접공", "늙은 남성 수중 용접공"),
        ("한국 의사, 병원", "한국 여성 의사, 병원", "한국 남성 의사, 병원"),
        ("거리에서 노래하는 가수", "거리에서 노래하는 여성 가수", "거리에서 노래하는 남성 가수"),
    ],
)
def test_words_that_name_a_kind_of_trade_stay_with_it(prompt, woman, man):
    written = set(balance_prompts([prompt] * 2, "gender", seed=0).prompts)
    assert written == {woman, man}
    assert balance_prompts([woman, man], "gender").prompts == [woman, man]


def test_a_piece_of_music_is_no_person():
    assert balance_prompts("uma música alegre", "gender").reasons == ["no person"]


@pytest.mark.parametrize("code", READ)
@pytest.mark.parametrize("attribute", ["age", "race"])
def test_age_and_race_of_a_stated_woman_or_man_are_written_or_refused_with_a_reason(
    code, attribute
):
    for _, prompt, _ in labelled(code):
        balanced = balance_prompts([prompt] * 2, attribute, seed=0)
        for text, value, reason in zip(
            balanced.prompts, balanced.values, balanced.reasons, strict=True
        ):
            assert (text == prompt) == (value is None) == (reason is not None), prompt


def test_a_set_of_ones_own_gives_its_words():
    attribute = {"blind": ["blind"], "sighted": ["sighted"]}
    words = {"blind": "blind", "sighted": "sehend"}
    bare = make_prompt_set("sight", attribute, ["cook"], adjectives={v: v for v in attribute})
    assert balance_prompts("Ein Arzt im Krankenhaus", bare).reasons == ["no word"]
    adjectives = {value: value for value in attribute}
    made = make_prompt_set(
        "sight", attribute, ["cook"], adjectives=adjectives, languages={"de": words}
    )
    written = set(balance_prompts(["Ein Arzt im Krankenhaus"] * 2, made, seed=0).prompts)
    assert written == {"Ein blinder Arzt im Krankenhaus", "Ein sehender Arzt im Krankenhaus"}
    assert balance_prompts("Ein blind Arzt", made).reasons == ["stated"]


@pytest.mark.filterwarnings("ignore::vldebias.errors.UnseenValueWarning")
def test_a_third_gender_with_words_of_its_own_is_written():
    attribute = {value: [value] for value in ("female", "male", "nonbinary")}
    words = {"de": "nichtbinär", "zh": "非二元性别的"}
    languages = {
        code: {"female": "weiblich", "male": "männlich", "nonbinary": word}
        for code, word in words.items()
    }
    genders = make_prompt_set("genders", attribute, ["cook"], languages=languages)
    for prompt, written in (
        ("Das Foto eines Arztes", "Das Foto eines nichtbinären Arztes"),
        ("一位医生", "一位非二元性别的医生"),
    ):
        balanced = balance_prompts([prompt] * 3, genders, seed=0)
        assert written in balanced.prompts
        assert len(set(balanced.prompts)) == 3
    # Three genders cannot be mixed in a group, as in English.
    for prompt in ("drei Ärzte", "三名医生", "three doctors"):
        assert balance_prompts(prompt, genders).reasons == ["group"]


@pytest.mark.parametrize(
    ("prompt", "code"),
    [
        ("写真、医者", "ja"),
        ("運転手", "ja"),
        ("看護師、病院、昼", "ja"),
        ("写真、医生", "zh"),
        ("医者和病人", "zh"),  # a part of a clause says nothing
        ("医者，照片", "zh"),  # nor does a noun beside the comma of Chinese
        ("大工业，照片", "zh"),
    ],
)
def test_a_tag_that_is_a_japanese_noun_tells_japanese_without_kana(prompt, code):
    assert language_of(prompt).code == code
    if code == "ja":
        written = balance_prompts([prompt] * 2, "gender", seed=0)
        assert all("性の" in text for text in written.prompts)


def test_a_phrase_of_a_list_may_begin_with_a_stem():
    for prompt in ("швейцарский гвардеец у ворот", "солдат вьетнамской войны"):
        assert balance_prompts(prompt, "gender").reasons[0].startswith("context: ")


@pytest.mark.parametrize("number", ["²", "①", "1" * 5000])
@pytest.mark.parametrize("prompt", ["{} врача", "{} Ärzte", "{} médicos", "{}名医生", "의사 {} 명"])
def test_what_is_a_digit_and_no_number_of_persons_raises_nothing(prompt, number):
    balanced = balance_prompts([prompt.format(number)] * 2, "gender", seed=0)
    assert all(number in text for text in balanced.prompts)


def test_russian_nouns_with_a_stressed_ending_are_read_in_the_instrumental():
    written = balance_prompts(["Фото с продавцом"] * 2, "gender", seed=0).prompts
    assert set(written) == {"Фото с женщиной-продавцом", "Фото с мужчиной-продавцом"}


@pytest.mark.parametrize(
    ("prompt", "group"),
    [
        ("Старые учителя в классе", "Старые учителя, мужчины и женщины, в классе"),
        ("портрет судей", "портрет судей, мужчины и женщины"),
        ("разговор с сиротами", "разговор с сиротами, мужчины и женщины"),
        ("снимок левшей в парке", "снимок левшей, мужчины и женщины, в парке"),
        ("две старосты", "две старосты, одна женщина и один мужчина"),
        ("двое коллег за обедом", "двое коллег, одна женщина и один мужчина, за обедом"),
    ],
)
def test_russian_plurals_of_nouns_in_a_are_groups(prompt, group):
    assert group in balance_prompts([prompt] * 4, "gender", seed=0).prompts


@pytest.mark.parametrize(
    ("prompt", "woman", "man"),
    [
        ("портрет судьи", "портрет женщины-судьи", "портрет мужчины-судьи"),
        ("фото моего коллеги", "фото моей женщины-коллеги", "фото моего мужчины-коллеги"),
    ],
)
def test_russian_genitives_that_are_plurals_elsewhere_are_one_person(prompt, woman, man):
    assert set(balance_prompts([prompt] * 2, "gender", seed=0).prompts) == {woman, man}


@pytest.mark.parametrize(
    "prompt",
    [
        "портрет опытной судьи",
        "Опытная судья в зале",
        "фото с опытной коллегой",
        "записка моей коллеге",
        "молодая врач у окна",
    ],
)
def test_a_feminine_adjective_of_a_russian_noun_for_both_states_a_woman(prompt):
    assert balance_prompts(prompt, "gender", seed=0).reasons == ["stated"]
    assert balance_prompts(prompt, "age", seed=0).prompts == [prompt]


@pytest.mark.parametrize(
    ("prompt", "woman", "man"),
    [
        ("в ванной сантехник", "в ванной женщина-сантехник", "в ванной мужчина-сантехник"),
        ("молодой судья", "молодая женщина-судья", "молодой мужчина-судья"),
    ],
)
def test_russian_words_that_end_as_feminine_adjectives_state_nothing(prompt, woman, man):
    assert set(balance_prompts([prompt] * 2, "gender", seed=0).prompts) == {woman, man}


@pytest.mark.parametrize(
    ("prompt", "woman", "young"),
    [
        ("старшина у корабля", "женщина-старшина у корабля", "молодой старшина у корабля"),
        ("портрет воеводы", "портрет женщины-воеводы", "портрет молодого воеводы"),
        ("разговор с судьей", "разговор с женщиной-судьей", "разговор с молодым судьей"),
        ("портрет переплетчика", "портрет женщины-переплетчика", "портрет молодого переплетчика"),
    ],
)
def test_russian_ranks_and_forms_written_without_dots_are_read(prompt, woman, young):
    assert woman in balance_prompts([prompt] * 2, "gender", seed=0).prompts
    assert young in balance_prompts([prompt] * 2, "age", seed=0).prompts


@pytest.mark.parametrize(
    ("prompt", "woman"),
    [
        # "Чей" agrees with what is owned.
        ("Фото врача, чей голос слышен", "Фото женщины-врача, чей голос слышен"),
        ("врач, которого обнимает собака", "женщина-врач, которую обнимает собака"),
        ("врач, на которого смотрит собака", "женщина-врач, на которую смотрит собака"),
        ("врач, у которого есть книга", "женщина-врач, у которой есть книга"),
        ("врач, лицо которого видно", "женщина-врач, лицо которой видно"),
        ("врач, рядом с которым собака", "женщина-врач, рядом с которой собака"),
        (
            "врач сидит за столом, на котором книга",
            "женщина-врач сидит за столом, на котором книга",
        ),
    ],
)
def test_russian_relative_pronouns_agree_with_a_woman_in_their_own_case(prompt, woman):
    assert woman in balance_prompts([prompt] * 2, "gender", seed=0).prompts


@pytest.mark.parametrize(
    ("prompt", "woman"),
    [
        (
            "фото рыбака, сидящего в лодке и смотрящего на воду",
            "фото женщины-рыбака, сидящей в лодке и смотрящей на воду",
        ),
        ("врач, улыбающийся камере", "женщина-врач, улыбающаяся камере"),
        ("фото с улыбавшимся врачом", "фото с улыбавшейся женщиной-врачом"),
        ("Пекарь, вышедший из дома", "Женщина-пекарь, вышедшая из дома"),
        ("Шёл пастух по полю", "Шла женщина-пастух по полю"),
        (
            "рядом с врачами стоял пекарь",
            "рядом с врачами, мужчины и женщины, стояла женщина-пекарь",
        ),
        ("ЧИТАЛ ВРАЧ КНИГУ", "ЧИТАЛА ЖЕНЩИНА-ВРАЧ КНИГУ"),
    ],
)
def test_russian_participles_and_verbs_agree_with_a_woman(prompt, woman):
    assert woman in balance_prompts([prompt] * 2, "gender", seed=0).prompts


def test_a_russian_verb_agrees_with_the_person_before_it():
    texts = balance_prompts(["Пока врач читал пациент спал"] * 12, "gender", seed=0).prompts
    assert set(texts) == {
        "Пока женщина-врач читала женщина-пациент спала",
        "Пока женщина-врач читала мужчина-пациент спал",
        "Пока мужчина-врач читал женщина-пациент спала",
        "Пока мужчина-врач читал мужчина-пациент спал",
    }


@pytest.mark.parametrize(
    ("adjective", "woman", "with_man"),
    [
        ("средний", "средняя", "средним"),
        ("большой", "большая", "большим"),
        ("рыжий", "рыжая", "рыжим"),
        ("хаки", "хаки", "хаки"),
    ],
)
def test_russian_words_of_a_set_are_declined(adjective, woman, with_man):
    words = {"one": adjective, "other": "белый"}
    attribute = {value: [value] for value in words}
    own = make_prompt_set("own", attribute, ["cook"], adjectives=words, languages={"ru": words})
    shares = {"one": 0.9, "other": 0.1}
    balanced = balance_prompts(["с врачом"] * 10, own, shares=shares, seed=0)
    assert f"с {with_man} врачом" in balanced.prompts
    both = balance_prompts(["врач"] * 40, ["gender", own], seed=0)
    assert f"{woman} женщина-врач" in both.prompts


@pytest.mark.parametrize(
    ("prompt", "woman", "man"),
    [
        ("Dieses Kind lacht", "Dieses weibliche Kind lacht", "Dieses männliche Kind lacht"),
        (
            "Foto dieses Kindes",
            "Foto dieses weiblichen Kindes",
            "Foto dieses männlichen Kindes",
        ),
        (
            "Der Beamte am Schalter",
            "Die Beamtin am Schalter",
            "Der männliche Beamte am Schalter",
        ),
        ("mit einem Beamten", "mit einer Beamtin", "mit einem männlichen Beamten"),
        (
            "Ein Arzt, für den es regnet",
            "Eine Ärztin, für die es regnet",
            "Ein männlicher Arzt, für den es regnet",
        ),
        (
            "Ein Arzt, welcher liest",
            "Eine Ärztin, welche liest",
            "Ein männlicher Arzt, welcher liest",
        ),
    ],
)
def test_german_cases_and_relative_pronouns_are_those_of_the_noun(prompt, woman, man):
    assert set(balance_prompts([prompt] * 2, "gender", seed=0).prompts) == {woman, man}


@pytest.mark.parametrize(
    "prompt",
    [
        "Einer der Ärzte lacht",
        "Uno de los médicos sonríe",
        "Uno dei medici sorride",
        "Один из врачей улыбается",
        "Фото одного из врачей",
    ],
)
def test_one_of_several_people_is_no_group(prompt):
    balanced = balance_prompts(prompt, "gender", seed=0)
    assert balanced.prompts == [prompt]
    assert balanced.reasons == ["not understood"]


def test_german_officials_in_the_plural_are_a_group():
    (text,) = balance_prompts("die Beamten am Schalter", "gender", seed=0).prompts
    assert text == "die Beamten, Männer und Frauen, am Schalter"


@pytest.mark.parametrize(
    ("prompt", "woman"),
    [
        ("Le hockeyeur sourit", "La hockeyeuse sourit"),
        ("Le visage du hockeyeur", "Le visage de la hockeyeuse"),
        ("Mon infirmier sourit", "Mon infirmière sourit"),
        ("Un architetto sorride", "Un'architetta sorride"),
        ("Il volto dell'architetto", "Il volto dell'architetta"),
        ("Quell'architetto sorride", "Quell'architetta sorride"),
        ("El médico, el juez y el escritor", "La médica, la jueza y la escritora"),
        ("Zum Arzt", "Zur Ärztin"),
    ],
)
def test_articles_agree_with_a_woman_and_with_the_next_sound(prompt, woman):
    assert woman in balance_prompts([prompt] * 24, "gender", seed=0).prompts


@pytest.mark.parametrize(
    ("prompt", "woman"),
    [
        ("El médico es rico", "La médica es rica"),
        ("Un médico en la calle, vestido de azul", "Una médica en la calle, vestida de azul"),
        ("Um ladrão de bancos mascarado", "Uma ladra de bancos mascarada"),
        ("Врач стоит у окна, одетый", "Женщина-врач стоит у окна, одетая"),
    ],
)
def test_adjectives_apart_from_the_noun_agree_with_a_woman(prompt, woman):
    assert woman in balance_prompts([prompt] * 2, "gender", seed=0).prompts


@pytest.mark.parametrize(
    ("prompt", "attribute", "reason"),
    [
        ("طبيب يفحص مريضا", "gender", "not understood"),
        ("模特走秀，模特微笑", "gender", "not understood"),
    ],
)
def test_people_who_may_be_mentioned_twice_are_left_unchanged(prompt, attribute, reason):
    balanced = balance_prompts(prompt, attribute, seed=0)
    assert (balanced.prompts, balanced.reasons) == ([prompt], [reason])


@pytest.mark.parametrize(
    ("prompt", "written"),
    [
        ("两位厨师。厨房", "两位厨师，一女一男。厨房"),
        ("два учёных и собака", "два учёных, одна женщина и один мужчина, и собака"),
        ("рабочие у станка", "рабочие, мужчины и женщины, у станка"),
        ("jueces en la sala", "jueces, hombres y mujeres, en la sala"),
        ("gli operai al lavoro", "gli operai, uomini e donne, al lavoro"),
    ],
)
def test_numbers_of_a_group_are_written_behind_it(prompt, written):
    texts = balance_prompts([prompt] * 2, "gender", seed=0).prompts
    assert any(text.startswith(written) for text in texts)


@pytest.mark.parametrize("prompt", ["صورة لطبيب وهو يبتسم", "الممرض وهي تبتسم"])
def test_an_arabic_pronoun_states_the_gender_of_the_person_before_it(prompt):
    balanced = balance_prompts(prompt, "gender", seed=0)
    assert balanced.prompts == [prompt]
    assert balanced.reasons == ["stated"]


def test_a_russian_genitive_or_plural_behind_another_noun_is_left_open():
    written = {
        "врач и судьи": "женщина-врач и судьи",
        "три судьи и коллеги": "три судьи, две женщины и один мужчина, и коллеги",
        "портрет врача и судьи": "портрет женщины-врача и судьи",
        "портрет врача, судьи": "портрет женщины-врача, судьи",
        "портрет судьи и коллеги": "портрет женщины-судьи и коллеги",
    }
    for prompt, start in written.items():
        prompts = balance_prompts([prompt] * 8, "gender", seed=0).prompts
        assert start in prompts


@pytest.mark.parametrize(
    "prompt",
    [
        "на столе судьи лежат книги",  # of one judge, or several who sit there
        "молоток и судьи",
        "судьи в зале суда",
        "На фото судьи сидят",
        "решение судьи",
        "фото их коллеги",
        "вокруг коллеги",
        "дети-сироты",
        "Опытные коллеги в офисе",
        "два опытных судьи",
        "старые судьи и коллеги",
    ],
)
def test_russian_nouns_that_can_be_one_or_several_persons_are_left_unchanged(prompt):
    assert balance_prompts([prompt] * 2, "gender", seed=0).prompts == [prompt] * 2


@pytest.mark.parametrize(
    ("person", "woman", "other"),
    [("医生", "女医生", "，山" * 1200), ("의사", "여성 의사", ", 산" * 900)],
)
def test_what_no_encoder_reads_of_a_long_prompt_is_left_as_it_is(person, woman, other):
    rest = f"{other}, {person}"
    (prompt,) = balance_prompts(person + rest, "gender", shares={"female": 1}).prompts
    assert prompt == woman + rest
    assert balance_prompts(rest, "gender").prompts == [rest]


def test_markup_stays_as_it_is():
    prompt = "<lora:film:0.8> (ein Arzt:1.2) im Krankenhaus, masterpiece"
    written = set(balance_prompts([prompt] * 4, "gender", seed=0).prompts)
    assert written == {
        "<lora:film:0.8> (eine Ärztin:1.2) im Krankenhaus, masterpiece",
        "<lora:film:0.8> (ein männlicher Arzt:1.2) im Krankenhaus, masterpiece",
    }


def test_an_eleventh_language_is_a_class():
    prompt = "een foto van een dokter en een kok"
    assert balance_prompts(prompt, "gender").reasons == ["language: Dutch"]
    register_language(Dutch())
    try:
        written = set(balance_prompts([prompt] * 12, "gender", seed=0).prompts)
        stated = balance_prompts("een vrouwelijke dokter", "gender").reasons
        no_word = balance_prompts(prompt, "age").reasons
    finally:
        unregister_language("nl")
    assert written == {
        "een foto van een vrouwelijke dokter en een vrouwelijke kok",
        "een foto van een vrouwelijke dokter en een mannelijke kok",
        "een foto van een mannelijke dokter en een vrouwelijke kok",
        "een foto van een mannelijke dokter en een mannelijke kok",
    }
    assert (stated, no_word) == (["stated"], ["no word"])
    assert balance_prompts(prompt, "gender").reasons == ["language: Dutch"]


def test_the_rating_says_what_the_page_says():
    lines = (ROOT / "eval/results/languages/rating_300.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in lines.splitlines()]
    wrong = sum(not row["right"] for row in rows)
    page = (ROOT / "docs/explanation/accuracy-of-balanced-prompts.md").read_text(encoding="utf-8")
    assert (len(rows), wrong) == (300, 2)
    assert "300 of our own prompts, and called two wrong" in page


def test_ratings_of_new_prompts_are_of_the_prompts_that_were_committed():
    names = ("language", "prompt", "kind")
    prompts = ROOT / "tests/wording/languages_blind.jsonl"
    ratings = ROOT / "eval/results/languages/rating_blind.jsonl"
    written, rated = (
        [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        for path in (prompts, ratings)
    )
    assert written == [{name: row[name] for name in names} for row in rated]
    assert all(set(row["texts"]) == set(row["forms_right"]) for row in rated)


def test_a_rated_prompt_counts_once_and_is_right_where_both_texts_are(tmp_path):
    both, half = {"female": True, "male": True}, {"female": True, "male": False}
    rows = [
        {"kind": "open", "decision_right": True, "forms_right": both},
        {"kind": "open", "decision_right": True, "forms_right": half},
        {"kind": "open", "decision_right": False, "forms_right": {}},
        {"kind": "group", "decision_right": True, "forms_right": {"both": False}},
        {"kind": "none", "decision_right": True, "forms_right": {}},
        {"kind": "named", "decision_right": False, "forms_right": {"female": True}},
    ]
    path = tmp_path / "ratings.jsonl"
    lines = [json.dumps(row | {"language": "de", "rater": "a reader"}) for row in rows]
    path.write_text("\n".join(lines), encoding="utf-8")
    (part,) = measure_rated(path)
    shares = {row.metric: row.value for row in part.rows if row.subset == "de"}
    assert shares == pytest.approx(
        {
            "written": 2 / 3,
            "form_right": 1 / 2,
            "written_right": 1 / 3,
            "group_mixed": 0,
            "left_unchanged": 1 / 2,
        }
    )


@pytest.mark.parametrize("prompt", ["an elderly care worker", "a bag weaver", "a care worker"])
def test_words_that_english_shares_with_languages_that_are_not_read_are_english(prompt):
    assert language_of(prompt).code == "en"


def test_portuguese_plurals_of_ao_are_all_three() -> None:
    for stem in ("campe", "capit", "cidad"):
        plurals = {f"{stem}ões", f"{stem}ães", f"{stem}ãos"}
        assert set(ROMANCE["pt"].inflected(f"{stem}ão", "plural")) == plurals


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("Покажи последнего врача в офисе", "последнюю женщину-врача"),
        ("Фото последнего врача", "последней женщины-врача"),
        ("Последний врач в офисе", "Последняя женщина-врач"),
        ("Портрет со сторожем в парке", "женщиной-сторожем"),
    ],
)
def test_russian_adjectives_and_nouns_of_soft_stems_agree(prompt: str, expected: str) -> None:
    assert expected in " ".join(balance_prompts([prompt] * 2, "gender", seed=0).prompts)


@pytest.mark.parametrize(
    ("prompt", "woman", "man"),
    [
        (
            "une personne, métier : soudeur",
            "une femme, métier : soudeuse",
            "un homme, métier : soudeur",
        ),
        (
            "una persona, oficio: soldador",
            "una mujer, oficio: soldadora",
            "un hombre, oficio: soldador",
        ),
        (
            "una persona, mestiere: saldatore",
            "una donna, mestiere: saldatrice",
            "un uomo, mestiere: saldatore",
        ),
        (
            "uma pessoa, profissão: padeiro",
            "uma mulher, profissão: padeira",
            "um homem, profissão: padeiro",
        ),
        (
            "Porträt einer Person, Arzt von Beruf",
            "Porträt einer weiblichen Person, Ärztin von Beruf",
            "Porträt einer männlichen Person, Arzt von Beruf",
        ),
        (
            "портрет человека, по профессии сварщик",
            "портрет женщины, по профессии сварщик",
            "портрет мужчины, по профессии сварщик",
        ),
        ("человек-сварщик в цехе", "женщина-сварщик в цехе", "мужчина-сварщик в цехе"),
        ("人物，职业：焊工", "女性人物，职业：焊工", "男性人物，职业：焊工"),
        ("人物、職業：消防士", "女性の人物、職業：消防士", "男性の人物、職業：消防士"),
        ("인물, 직업: 목수", "여성 인물, 직업: 목수", "남성 인물, 직업: 목수"),
        ("شخص، المهنة: نجار", "امرأة، المهنة: نجارة", "رجل، المهنة: نجار"),
    ],
)
def test_a_neutral_noun_and_a_trade_are_one_person(prompt, woman, man):
    balanced = balance_prompts([prompt] * 4, "gender", seed=0)
    assert set(balanced.prompts) == {woman, man}
    assert all(len(people) == 1 for people in balanced.people)


def test_a_list_behind_a_neutral_noun_is_of_several_people():
    balanced = balance_prompts("une personne, un soudeur et un boulanger", "gender", seed=0)
    assert len(balanced.people[0]) > 1


@pytest.mark.parametrize(
    ("prompt", "woman"),
    [
        ("портрет кузнеца у горна", "портрет женщины-кузнеца у горна"),
        ("парикмахер рядом с послом", "женщина-парикмахер рядом с женщиной-послом"),
        ("добровольцу дали лопату", "женщине-добровольцу дали лопату"),
        ("парикмахер стрижёт клиента", "женщина-парикмахер стрижёт женщину-клиента"),
        ("سائق تاكسي متعب", "سائقة تاكسي متعبة"),
        ("photo d'un conseiller en crédit", "photo d'une conseillère en crédit"),
        ("ingegnere di sistemi informatici", "ingegnera di sistemi informatici"),
        ("um motoboy em São Paulo", "uma motogirl em São Paulo"),
    ],
)
def test_forms_of_women(prompt, woman):
    shares = {"female": 1, "male": 0}
    assert balance_prompts(prompt, "gender", shares=shares).prompts == [woman]


@pytest.mark.parametrize(
    ("prompt", "woman"),
    [
        ("Eine Lehrerin hilft einem Schüler", "Eine Lehrerin hilft einer Schülerin"),
        ("Un vendeur sourit à une cliente", "Une vendeuse sourit à une cliente"),
        ("معلمة تشرح الدرس لطالب", "معلمة تشرح الدرس لطالبة"),
        ("Frau verkleidet als Pilot", None),
        ("Eine Frau im Kostüm eines Arztes", None),
        ("la mujer, cansada, médico", None),
        ("امرأة تعمل طبيب", None),
        ("la hija de un médico", None),
    ],
)
def test_a_woman_beside_somebody_else_leaves_this_one_open(prompt, woman):
    shares = {"female": 1, "male": 0}
    assert balance_prompts(prompt, "gender", shares=shares).prompts == [woman or prompt]


@pytest.mark.parametrize(
    ("prompt", "female", "male"),
    [
        ("un agente de policía sonríe", "una agente de policía sonríe", None),
        ("un peintre peint un mur", "une peintre peint un mur", None),
        ("un médico, un pianista", None, "un médico varón, un pianista varón"),
        ("l'artiste sourit", "l'artiste femme sourit", "l'artiste homme sourit"),
        ("سائق حافلة متعب", "سائقة حافلة متعبة", "رجل سائق حافلة متعب"),
        ("طبيب متعب", "طبيبة متعبة", "طبيب رجل متعب"),
    ],
)
def test_a_value_is_stated_once_and_where_a_native_speaker_writes_it(prompt, female, male):
    for value, expected in (("female", female), ("male", male)):
        shares = {"female": float(value == "female"), "male": float(value == "male")}
        (written,) = balance_prompts(prompt, "gender", shares=shares).prompts
        assert expected is None or written == expected


@pytest.mark.parametrize("prompt", ["um técnico de enfermagem magro", "медали судьи на столе"])
def test_a_person_who_is_not_read_is_no_reason_to_say_that_there_is_none(prompt):
    balanced = balance_prompts(prompt, "gender")
    assert balanced.prompts == [prompt]
    assert balanced.reasons == ["not understood"]


@pytest.mark.parametrize(
    "prompt",
    [
        "빈 병원, 의사 없음",
        "医者がいない病院",
        "ein Krankenhaus, kein Arzt",
        "une rue vide, aucune personne",
        "una calle vacía, ninguna persona",
        "ни одного человека на улице",
    ],
)
def test_an_absent_person_gets_no_value(prompt):
    assert balance_prompts(prompt, "gender").prompts == [prompt]


def test_a_japanese_shop_before_its_keeper_is_no_second_person():
    prompts = balance_prompts(["パン屋の職人が働く"] * 2, "gender", seed=0).prompts
    assert set(prompts) == {"パン屋の女性の職人が働く", "パン屋の男性の職人が働く"}


@pytest.mark.parametrize(
    ("prompt", "woman"),
    [
        ("повар за столом, заваленным бумагами", "женщина-повар за столом, заваленным бумагами"),
        ("рыбак у реки, утренний туман", "женщина-рыбак у реки, утренний туман"),
        ("взрослый человек читает", "взрослая женщина читает"),
        ("усталый, но довольный повар", "усталая, но довольная женщина-повар"),
        ("повар готов начать", "женщина-повар готова начать"),
        ("по дороге шёл старый пастух", "по дороге шла старая женщина-пастух"),
        (
            "пекарь, который только что достал хлеб, улыбнулся",
            "женщина-пекарь, которая только что достала хлеб, улыбнулась",
        ),
        ("механик держит ключ, который блестит", "женщина-механик держит ключ, который блестит"),
        ("лесник, падающий снег, вечер", "лесник, падающий снег, вечер"),
        ("врач слушал, как пел хор", "врач слушал, как пел хор"),
        ("糖画师傅在街边", "糖画女师傅在街边"),
        ("악기 장인이 일한다", "여성 악기 장인이 일한다"),
    ],
)
def test_words_agree_with_a_woman_or_the_prompt_is_left_unchanged(prompt, woman):
    assert balance_prompts(prompt, "gender", shares={"female": 1, "male": 0}).prompts == [woman]


def test_a_japanese_number_behind_the_noun_counts_people():
    assert (
        balance_prompts(["料理人3人、湯気"] * 2, "gender", seed=0)
        .prompts[0]
        .startswith("料理人3人（")
    )


@pytest.mark.parametrize(
    ("prompt", "female", "male"),
    [
        # A value follows the complement of a noun.
        ("un souffleur de verre", "une souffleuse de verre", "un souffleur de verre homme"),
        ("un soplador de vidrio", "una sopladora de vidrio", "un soplador de vidrio varón"),
        ("un vigile del fuoco", "una vigile del fuoco", "un vigile del fuoco uomo"),
        ("um carteiro de pé", "uma carteira de pé", "um carteiro homem de pé"),
        ("سائق تاكسي نائم", "سائقة تاكسي نائمة", "رجل سائق تاكسي نائم"),
        # Later words agree with the person, or describe the picture.
        ("un chef, noir et blanc", "une cheffe, noir et blanc", "un chef homme, noir et blanc"),
        (
            "un chevalier sans armure assis",
            "une chevaleresse sans armure assise",
            "un chevalier homme sans armure assis",
        ),
        ("un ouvrier du bâtiment casqué", None, None),
        (
            "ein Imker und seine Bienen",
            "eine Imkerin und ihre Bienen",
            "ein männlicher Imker und seine Bienen",
        ),
        ("ein Koch und sein Lehrling", None, None),
        (
            "профессор у доски, исписанной мелом",
            "женщина-профессор у доски, исписанной мелом",
            "мужчина-профессор у доски, исписанной мелом",
        ),
        ("حلاق يقص شعر زبونه", "حلاقة تقص شعر زبونها", "حلاق رجل يقص شعر زبونه"),
        # A prefix keeps its lengthening sign.
        ("صورة لـخطاط", "صورة لـخطاطة", "صورة لـخطاط رجل"),
        # The role of a costume is not a second person.
        (
            "우주비행사로 분장한 아이",
            "우주비행사로 분장한 여자아이",
            "우주비행사로 분장한 남자아이",
        ),
        (
            "宇宙飛行士の格好をした子供",
            "宇宙飛行士の格好をした女の子",
            "宇宙飛行士の格好をした男の子",
        ),
    ],
)
def test_values_are_inserted_with_agreement_or_not_at_all(prompt, female, male):
    for value, expected in (("female", female), ("male", male)):
        shares = {name: float(name == value) for name in ("female", "male")}
        assert balance_prompts(prompt, "gender", shares=shares).prompts == [expected or prompt]


@pytest.mark.parametrize(
    "prompt",
    [
        "un astronauta solitario su Marte, cinematografico",  # Spanish or Italian
        "vor dem Kölner Dom",
    ],
)
def test_prompts_that_are_not_understood_are_left_unchanged(prompt):
    assert balance_prompts(prompt, "gender").prompts == [prompt]


def test_an_ambiguous_language_is_not_called_unsupported():
    (reason,) = balance_prompts("un pianista", "gender").reasons
    assert reason == "language: es or it"
    assert reason_in_words(reason).endswith("which the rules cannot tell apart in this prompt")
    assert reason_in_words("language: Dutch") == "in Dutch, which is not supported"
