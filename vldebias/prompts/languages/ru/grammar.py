"""Russian: "врач" becomes "женщина-врач" or "мужчина-врач", in the case that it has.

An adjective that names a kind of trade stays with its noun: "женщина — уличный музыкант".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from vldebias.prompts.language import Replacement
from vldebias.prompts.languages.base import Noun, Phrase, Reading, SpacedLanguage, Token

CASES = ("nominative", "genitive", "dative", "accusative", "instrumental", "prepositional")
# The words for a woman, a man, a girl and a boy in the six cases.
_WOMAN = ("женщина", "женщины", "женщине", "женщину", "женщиной", "женщине")
_MAN = ("мужчина", "мужчины", "мужчине", "мужчину", "мужчиной", "мужчине")
_GIRL = ("девочка", "девочки", "девочке", "девочку", "девочкой", "девочке")
_BOY = ("мальчик", "мальчика", "мальчику", "мальчика", "мальчиком", "мальчике")
_HUMAN = ("человек", "человека", "человеку", "человека", "человеком", "человеке")
_CHILD = ("ребёнок", "ребёнка", "ребёнку", "ребёнка", "ребёнком", "ребёнке")
DASH = " \u2014 "
_HUMANS_OF_GENDER = ("женщин", "мужчин")
_GENDERED_ADJECTIVES = ("женск", "мужск", "беременн", "бородат", "усат")
_SIBILANTS = "жшчщ"
_GUTTURALS = "гкх"
# Masculine ending of an adjective -> its case; what a genitive in "-ого" is says the place.
_ADJECTIVE_ENDINGS = ("ого", "его", "ому", "ему", "ый", "ий", "ой", "ым", "им", "ом", "ем")
_PRONOUNS = {
    "один": ("одна", "одной", "одной", "одну", "одной", "одной"),
    "одного": ("одна", "одной", "одной", "одну", "одной", "одной"),
    "этот": ("эта", "этой", "этой", "эту", "этой", "этой"),
    "этого": ("эта", "этой", "этой", "эту", "этой", "этой"),
    "наш": ("наша", "нашей", "нашей", "нашу", "нашей", "нашей"),
    "нашего": ("наша", "нашей", "нашей", "нашу", "нашей", "нашей"),
    "сам": ("сама", "самой", "самой", "саму", "самой", "самой"),
}
for _stem in ("сво", "мо", "тво"):
    for _ending in ("й", "его", "ему", "им", "ём", "ем"):
        _oblique = _stem + "ей"
        _PRONOUNS[_stem + _ending] = (
            _stem + "я", _oblique, _oblique, _stem + "ю", _oblique, _oblique,
        )  # fmt: skip
# Masculine ending of an adjective -> the cases that it can have.
_CASES_OF_ENDING = {
    "ого": (1, 3), "его": (1, 3), "ому": (2,), "ему": (2,), "ый": (0,), "ий": (0,), "ой": (0,),
    "ым": (4,), "им": (4,), "ом": (5,), "ем": (5,), "ём": (5,),
}  # fmt: skip
_GENITIVE_PREPOSITIONS = frozenset(("у", "от", "из", "возле", "около", "вокруг", "вместо", "кроме"))
_PREPOSITIONAL = frozenset(("о", "об", "на", "в", "при"))
_VERB_ENDINGS = ("ает", "яет", "ует", "еет", "ают", "яют", "уют", "еют")
_RELATIVE = {
    "который": "которая",
    "чей": "чья",
}
_BEHIND_PREPOSITION = {
    "которого": "которой",
    "которому": "которой",
    "которым": "которой",
    "котором": "которой",
}


class Russian(SpacedLanguage):
    """Find persons in Russian prompts, and write a value with all that agrees.

    Its nouns are of the kinds "noun" (врач), "adjective" (бездомный), "human" and "child".
    """

    code = "ru"
    name = "Russian"
    folder = Path(__file__).parent
    joiner = " и "

    # ---- nouns

    @cached_property
    def _nouns(self) -> dict[str, Noun]:
        """Return form -> noun with the cases that this form has."""
        nouns: dict[str, Noun] = {}
        for word in self.entries("person"):
            for form in _plurals(word):
                nouns.setdefault(form, Noun(word, word, number="many"))
            self._add(nouns, "noun", _declined(word))
            if word[-1] in _SIBILANTS:
                nouns[word + "ом"] = Noun(word, word, kind="noun", cases=(4,))  # "врачом"
        # Nouns that are declined as adjectives: "учёный".
        for word in self.entries("person-adjectival"):
            vowel = "и" if word.endswith("ий") else "ы"
            for ending in ("е", "х", "ми"):
                form = word[:-2] + vowel + ending
                nouns.setdefault(form, Noun(word, word, number="many"))
            is_noun = word not in self.matcher("adjective-alone").words
            forms = [adjective_form(word, case, False) for case in range(len(CASES))]
            self._add(nouns, "noun" if is_noun else "adjective", forms)
        for word in self.entries("person-a"):
            stem = word[:-1]
            soft = word.endswith("я")
            endings = ("я", "и", "е", "ю", "ёй", "е") if soft else ("а", "ы", "е", "у", "ой", "е")
            forms = [stem + ending for ending in endings]
            if stem[-1] in _GUTTURALS:
                forms[1] = stem + "и"
            self._add(nouns, "noun", forms)
        for word in self.entries("person-still"):
            nouns[word] = Noun(word, word, kind="noun")
        self._add(nouns, "human", _HUMAN)
        self._add(nouns, "child", _CHILD)
        self._add(nouns, "child", [form.replace("ё", "е") for form in _CHILD])
        return nouns

    def _add(self, nouns: dict[str, Noun], kind: str, forms: Sequence[str]) -> None:
        cases_of_form: dict[str, tuple[int, ...]] = {}
        for case, form in enumerate(forms):
            cases_of_form[form] = (*cases_of_form.get(form, ()), case)
        for form, cases in cases_of_form.items():
            # "учителя" is a genitive or, at the start of a sentence, a plural.
            number = "any" if kind == "noun" and cases == (1, 3) else "one"
            nouns[form] = Noun(forms[0], forms[0], number=number, kind=kind, cases=cases)

    def _noun_of(self, token: Token) -> Noun | None:
        noun = self._nouns.get(token.low)
        if noun is None and "-" in token.low:
            return self._nouns.get(token.low.rsplit("-", 1)[1])  # "инженер-механик"
        return noun

    def states_gender(self, tokens: Reading, i: int) -> bool:
        """Return whether word i states a gender."""
        token = tokens[i]
        if self.matcher("not-stated").has(token):
            return False
        if self.matcher("female").has(token) or self.matcher("male").has(token):
            return True
        return token.low.startswith(_HUMANS_OF_GENDER)

    # ---- phrases

    def phrase_at(self, tokens: Reading, i: int) -> Phrase | None:
        """Return the phrase whose noun is word i, or None where it is no person."""
        token = tokens[i]
        is_science = self.matcher("science").has(token) and not token.opens
        if is_science or self.matcher("thing").has_at(tokens, i):
            return None
        # Pronouns and adjectives state a gender as well.
        is_noun = len(token.low) >= 4 and not token.low.startswith(_GENDERED_ADJECTIVES)
        is_stated = is_noun and self.states_gender(tokens, i)
        noun = None if is_stated else self._noun_of(token)
        if not is_stated and (noun is None or self._is_before_noun(tokens, i)):
            return None
        first = self._first_adjective(tokens, i, noun)
        # What a woman or man is: "женщина — уличный музыкант".
        is_behind_human = tokens.gap(first) == DASH and first > 0
        is_behind_human = is_behind_human and tokens[first - 1].low.startswith(_HUMANS_OF_GENDER)
        if noun is None or is_behind_human:
            return Phrase(first, i, stated=True)
        size = self.number_before(tokens, first)
        if size is not None:
            return Phrase(first - 1, i, plural=True, size=size)
        if noun.number == "many" or (noun.number == "any" and tokens[first].opens):
            return Phrase(first, i, plural=True)  # "Учителя в классе"
        case = self._case_of(tokens, first, noun.cases)
        return Phrase(first, i, noun, case=CASES[case])

    def _first_adjective(self, tokens: Reading, i: int, noun: Noun | None) -> int:
        """Return where the adjectives begin that stand before a noun and agree with it."""
        first = i
        while not tokens[first].opens and self._describes(tokens[first - 1]):
            low = tokens[first - 1].low
            ending = next((ending for ending in _CASES_OF_ENDING if low.endswith(ending)), "")
            # "студент, работающий официантом": the participle is in another case.
            if noun and noun.cases and ending:
                if set(noun.cases).isdisjoint(_CASES_OF_ENDING[ending]):
                    break
            first -= 1
        return first

    def is_role(self, tokens: Reading, person: Phrase, phrase: Phrase) -> bool:
        """Return whether a phrase says what a person is: "в роли врача", "работает врачом"."""
        if super().is_role(tokens, person, phrase):
            return True
        if phrase.case != "instrumental" or person.plural:
            return False
        return self.matcher("role-verb").has(tokens[phrase.first - 1])

    def _is_before_noun(self, tokens: Reading, i: int) -> bool:
        """Return whether an adjective that can be a noun stands before its noun."""
        is_adjectival = tokens[i].low.endswith(_ADJECTIVE_ENDINGS) and i + 1 < len(tokens)
        if not is_adjectival or tokens[i + 1].opens:
            return False
        return self._noun_of(tokens[i + 1]) is not None

    def _describes(self, token: Token) -> bool:
        low = token.low
        if low in _PRONOUNS:
            return True
        if self._noun_of(token) and low not in ("молодой",):
            return False
        return (
            len(low) > 4
            and low.endswith(_ADJECTIVE_ENDINGS)
            and not self.matcher("no-adjective").has(token)
        )

    def _case_of(self, tokens: Reading, first: int, cases: tuple[int, ...]) -> int:
        """Return the case of a phrase: of its noun, and where that is not sure by its place."""
        if len(cases) == 1:
            return cases[0]
        before = None if tokens[first].opens else tokens[first - 1]
        if not cases:
            cases = (0, 1, 3)
            if before is None:
                return 0
        if 1 in cases and 3 in cases:
            # "приветствует велосипедиста": a verb has an object.
            is_object = before is not None and (
                before.low.endswith(_VERB_ENDINGS) or self.matcher("accusative-behind").has(before)
            )
            if is_object:
                return 3
            return 0 if before is None and 0 in cases else 1
        if 5 in cases and before is not None and before.low in _PREPOSITIONAL:
            return 5
        return cases[0]

    # ---- writing

    def write_one(
        self, tokens: Reading, phrase: Phrase, words: Mapping[str, str]
    ) -> list[Replacement]:
        """Return the replacements that say values of one person."""
        assert phrase.noun is not None
        case = CASES.index(phrase.case)
        gender = words.get("gender", "")
        is_woman = gender == "female"
        # A noun begins with the adjectives that name a kind of it: "уличный музыкант", "главный
        # врач" of "старый главный врач".
        place = phrase.head
        is_of_kind = self.matcher("adjective-of-kind").has
        while phrase.noun.kind == "noun" and place > phrase.first and is_of_kind(tokens[place - 1]):
            place -= 1
        changes: dict[int, str] = {}
        if gender:
            changes[place] = self._gendered(tokens, place, phrase, is_woman)
        if is_woman:
            for position in range(phrase.first, place):
                token = tokens[position]
                changes[position] = self.like(token, feminine_adjective(token.low, case))
            self._agree_behind(tokens, phrase.head, case, changes)
        adjectives: list[str] = []
        for kind, word in words.items():
            if kind != "gender":
                adjectives.append(adjective_form(word, case, is_woman))
        replacements: list[Replacement] = []
        for i, text in changes.items():
            if i == place and adjectives:
                words_before = " ".join(adjectives)
                noun = text if text.isupper() else text[0].lower() + text[1:]
                text = self.like(tokens[i], f"{words_before} {noun}")
            replacements.append(Replacement(tokens[i].start, tokens[i].end, text))
        if adjectives and not gender:
            replacements.append(self.insert(tokens, place, " ".join(adjectives)))
        return replacements

    def _gendered(self, tokens: Reading, place: int, phrase: Phrase, is_woman: bool) -> str:
        """Return the word where a noun begins with the word for a woman or man."""
        assert phrase.noun is not None
        token = tokens[place]
        case = CASES.index(phrase.case)
        human = (_WOMAN if is_woman else _MAN)[case]
        if phrase.noun.kind == "child":
            return self.like(token, (_GIRL if is_woman else _BOY)[case])
        if phrase.noun.kind == "human":
            return self.like(token, human)
        if phrase.noun.kind == "adjective":
            word = feminine_adjective(token.low, case) if is_woman else token.low
            return f"{self.like(token, word)} {human}"  # "бездомная женщина"
        # "женщина-врач", "женщина — уличный музыкант"
        link = DASH if place < phrase.head else "-"
        inside = token.text if token.text.isupper() else token.text[0].lower() + token.text[1:]
        return f"{self.like(token, human)}{link}{inside}"

    def _agree_behind(self, tokens: Reading, head: int, case: int, changes: dict[int, str]) -> None:
        """Change what agrees behind a noun: participles, "который", verbs of the past."""
        i = head + 1
        if i >= len(tokens):
            return
        token = tokens[i]
        if not token.opens:
            if token.low.endswith(("ал", "ил", "ел", "ял", "ул", "ёл")) and len(token.low) > 3:
                changes[i] = token.text + "а"
            elif token.low.endswith("лся"):
                changes[i] = token.text[:-2] + "ась"
        for i in range(head + 1, len(tokens)):
            token = tokens[i]
            if any(sign in tokens.gap(i) for sign in ".;:!?\n") or self._noun_of(token):
                return
            if not token.opens:
                continue
            if token.low in _RELATIVE:
                changes[i] = _RELATIVE[token.low]
                return
            after = tokens[i + 1] if i + 1 < len(tokens) else None
            if after is not None and after.low in _BEHIND_PREPOSITION and len(token.low) < 4:
                changes[i + 1] = _BEHIND_PREPOSITION[after.low]
                return
            if is_participle(token.low):
                changes[i] = feminine_adjective(token.low, case)

    def keeps_capital(self, token: Token) -> bool:
        """Return whether a word keeps its capital inside of a sentence."""
        return token.text.isupper()


def is_participle(word: str) -> bool:
    """Return whether a word behind a comma is a participle in the masculine."""
    for part in ("щ", "вш", "нн", "т", "м"):
        for ending in _ADJECTIVE_ENDINGS:
            if len(word) > 5 and word.endswith(part + ending):
                return True
    return word.endswith(("щийся", "щегося", "щемуся", "щимся", "вшийся", "вшегося"))


def feminine_adjective(word: str, case: int) -> str:
    """Return an adjective or pronoun of the masculine in the feminine, in a case.

    >>> feminine_adjective("опытного", 1), feminine_adjective("синий", 0)
    ('опытной', 'синяя')
    """
    if word in _PRONOUNS:
        return _PRONOUNS[word][case]
    reflexive = ""
    if word.endswith("ся"):
        word = word.removesuffix("ся")
        reflexive = "ся"
    for ending in _ADJECTIVE_ENDINGS:
        if word.endswith(ending):
            stem = word.removesuffix(ending)
            break
    else:
        return word + reflexive
    return stem + _feminine_ending(stem, ending, case) + reflexive


def _feminine_ending(stem: str, ending: str, case: int) -> str:
    is_soft = ending in ("ий", "его", "ему", "ем") and stem[-1] not in _GUTTURALS + _SIBILANTS
    if ending == "им" and stem[-1] == "н":
        is_soft = True
    if case == 0:
        return "яя" if is_soft else "ая"
    if case == 3:
        return "юю" if is_soft else "ую"
    has_e = is_soft or (stem[-1] in _SIBILANTS and ending not in ("ой", "ого", "ому", "ом"))
    return "ей" if has_e else "ой"


def adjective_form(word: str, case: int, is_feminine: bool) -> str:
    """Return an adjective, given in the nominative of the masculine, in a case."""
    if is_feminine:
        return feminine_adjective(word, case)
    stem = word[:-2]
    is_soft = word.endswith("ий") and stem[-1] in _SIBILANTS
    endings = ("", "ого", "ому", "ого", "ым", "ом")
    if is_soft:
        endings = ("", "его", "ему", "его", "им", "ем")
    elif word.endswith("ий"):
        endings = ("", "ого", "ому", "ого", "им", "ом")
    return word if case == 0 else stem + endings[case]


def _declined(word: str) -> tuple[str, ...]:
    """Return the six cases of a masculine noun for a person."""
    if word.endswith("ь"):
        stem, endings = word[:-1], ("ь", "я", "ю", "я", "ем", "е")
    elif word.endswith("й"):
        stem, endings = word[:-1], ("й", "я", "ю", "я", "ем", "е")
    elif word.endswith("ец"):
        before = word[:-2]
        stem = before[:-1] + "йц" if before[-1] in "аеиоу" else before + "ц"
        if before[-2:] in ("ть",):
            stem = before + "ц"
        e = "о" if word in ("певец", "борец", "боец", "жрец", "чтец", "кузнец") else "е"
        return (word, stem + "а", stem + "у", stem + "а", stem + e + "м", stem + "е")
    else:
        is_hushing = word[-1] in "жшщц"
        stem, endings = word, ("", "а", "у", "а", "ем" if is_hushing else "ом", "е")
    return tuple(stem + ending for ending in endings)


def _plurals(word: str) -> tuple[str, ...]:
    """Return the forms of the plural of a masculine noun."""
    if word.endswith(("ь", "й")):
        stem = word[:-1]
        genitive = "ей" if word.endswith("ь") else "ев"
        return tuple(stem + e for e in ("и", genitive, "ям", "ями", "ях", "я"))
    if word.endswith("ец"):
        stem = _declined(word)[1][:-1]
        return tuple(stem + e for e in ("ы", "ов", "ев", "ам", "ами", "ах"))
    if word.endswith(("анин", "янин")):
        stem = word[:-2]
        return tuple(stem + e for e in ("е", "", "ам", "ами", "ах"))
    nominative = "и" if word[-1] in _GUTTURALS + _SIBILANTS else "ы"
    genitive = "ей" if word[-1] in _SIBILANTS else "ов"
    return tuple(word + e for e in (nominative, genitive, "ам", "ами", "ах"))


LANGUAGE = Russian()
