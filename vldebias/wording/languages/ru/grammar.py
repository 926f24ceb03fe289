"""Russian: "врач" becomes "женщина-врач" or "мужчина-врач", in the same case.

An adjective that specifies the trade stays next to its noun: "женщина — уличный музыкант".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property

from vldebias.wording.languages.base import Changes, Noun, Phrase, Reading, SpacedLanguage, Token

CASES = ("nominative", "genitive", "dative", "accusative", "instrumental", "prepositional")
DASH = " \u2014 "
_HUMANS_OF_GENDER = ("женщин", "мужчин")
_SIBILANTS = "жшчщ"
_GUTTURALS = "гкх"
# Masculine adjective endings.
_ADJECTIVE_ENDINGS = ("ого", "его", "ому", "ему", "ый", "ий", "ой", "ым", "им", "ом", "ем")
# Masculine adjective ending -> possible cases, as indices into `CASES`.
_CASES_OF_ENDING = {
    "ого": (1, 3), "его": (1, 3), "ому": (2,), "ему": (2,), "ый": (0,), "ий": (0,), "ой": (0,),
    "ым": (4,), "им": (4,), "ом": (5,), "ем": (5,), "ём": (5,),
}  # fmt: skip
_PAST = re.compile(".+[аиеяуёы]л|.+лся")


class Russian(SpacedLanguage):
    """Find people in Russian prompts, and insert values with the required agreement.

    The noun classes are "noun" (врач), "adjective" (бездомный), "human" and "child".
    """

    code = "ru"
    name = "Russian"
    joiner = " и "

    # ---- nouns

    @cached_property
    def _nouns(self) -> dict[str, Noun]:
        """Return a mapping from forms to nouns, which list the possible cases of the form."""
        nouns: dict[str, Noun] = {}
        for name, plural in (("person", "plural"), ("person-a", "plural-of-a")):
            for word in self.entries(name):
                singular = self._inflected(word, "singular")
                self._add(nouns, "noun", singular, self._inflected(word, plural))
                if word[-1] in _SIBILANTS:
                    # After a sibilant, the instrumental is often misspelled: "сторожом".
                    nouns[word + "ом"] = Noun(word, word, kind="noun", cases=(4,))
        # Nouns that are declined like adjectives: "учёный".
        adjectives = self.matcher("adjective-alone").words
        for word in self.entries("person-adjectival"):
            stem = word[:-1] if word.endswith("ий") else word[:-2] + "ы"
            kind = "adjective" if word in adjectives else "noun"
            forms = [_adjective_form(word, case, False) for case in range(len(CASES))]
            self._add(nouns, kind, forms, [stem + ending for ending in ("е", "х", "ми")])
        for word in self.entries("person-still"):
            nouns[word] = Noun(word, word, kind="noun")
        for kind, word in (("human", "человек"), ("child", "ребёнок")):
            self._add(nouns, kind, self._inflected(word, "singular"), ())
        return nouns

    def _add(
        self, nouns: dict[str, Noun], kind: str, forms: Sequence[str], plurals: Sequence[str]
    ) -> None:
        """Add a noun under its singular forms in the six cases and under its plural forms."""
        word = forms[0]
        for form in plurals:
            nouns.setdefault(form, Noun(word, word, number="many"))
        for form in forms:
            cases = tuple(case for case, other in enumerate(forms) if other == form)
            # The genitive singular can also be the nominative plural: "учителя", "судьи".
            number = "any" if kind == "noun" and cases in ((1, 3), (1,)) else "one"
            nouns[form] = Noun(word, word, number=number, kind=kind, cases=cases)
            # Texts are often written without ё: "с судьей".
            nouns.setdefault(form.replace("ё", "е"), nouns[form])

    def _inflected(self, word: str, list_name: str) -> list[str]:
        """Inflect a noun according to the first entry in a list that matches its ending."""
        for entry in self.entries(list_name):
            endings, dropped, forms = entry.split("/")
            if word.endswith(tuple(endings.split(","))):
                stem = word[: len(word) - int(dropped)]
                return [stem + form for form in forms.split(",")]
        return []

    def noun_of(self, token: Token) -> Noun | None:
        # The last part of a compound declines, unless the first is a group: "инженер-механик".
        first, _, last = token.low.rpartition("-")
        is_group = first in self.matcher("group-left-unchanged").words
        return self._nouns.get(token.low) or (None if is_group else self._nouns.get(last))

    def states_gender(self, tokens: Reading, i: int) -> bool:
        token = tokens[i]
        is_human = self.is_listed(token, "female", "male") or token.low.startswith(
            _HUMANS_OF_GENDER
        )
        return is_human and not self.is_listed(token, "not-stated")

    # ---- phrases

    def phrase_at(self, tokens: Reading, i: int) -> Phrase | None:
        token = tokens[i]
        # The noun is a science, not a person: "учебник физики".
        is_science = self.is_listed(token, "science") and not token.opens
        if is_science or self.matcher("thing").has_at(tokens, i):
            return None
        is_adjective = self.is_listed(token, "gendered-adjective")
        if len(token.low) > 3 and not is_adjective and self.states_gender(tokens, i):
            # A word for a woman states the gender: "женщина".
            return Phrase(self._first_adjective(tokens, i, None), i, stated=True)
        noun = self.noun_of(token)
        is_adjectival = token.low.endswith(_ADJECTIVE_ENDINGS)
        if noun is None or (is_adjectival and self.noun_of(tokens.after(i)) is not None):
            return None  # A noun before another noun is its adjective: "дежурный врач".
        first = self._first_adjective(tokens, i, noun)
        if self._is_behind_feminine(tokens, i, noun):
            # The ending of the adjective states the gender: "опытной судьи".
            return Phrase(first - 1, i, stated=True)
        if first and tokens.gap(first) == DASH:
            if tokens[first - 1].low.startswith(_HUMANS_OF_GENDER):
                # A word for a woman is linked by a dash: "женщина — уличный музыкант".
                return Phrase(first, i, stated=True)
        return self._counted_phrase(tokens, first, i, noun)

    def _is_behind_feminine(self, tokens: Reading, i: int, noun: Noun) -> bool:
        """Return whether a feminine adjective before the noun shows that it refers to a woman."""
        word = tokens.before(i)
        if len(word.low) < 3 or self.is_listed(word, "no-adjective") or self.noun_of(word):
            return False  # Some endings of adjectives are those of nouns: "герой".
        if 0 in noun.cases:
            return word.low in self.entries("feminine-pronoun") or word.low.endswith(("ая", "яя"))
        # Only nouns in "-а" take other feminine adjectives: "с опытной коллегой".
        return noun.masculine[-1] in "ая" and word.low.endswith(("ой", "ей", "ую", "юю"))

    def _counted_phrase(self, tokens: Reading, first: int, i: int, noun: Noun) -> Phrase | None:
        """Return the phrase for one or several people, or None if the number is unclear.

        first: the position of the first singular adjective before noun i, or i.
        """
        size = self.number_of(tokens.before(first).low)
        if size is not None:
            # After a number, the form is a plural: "три судьи".
            return Phrase(first - 1, i, plural=True, size=size)
        number = noun.number
        if number == "any" and noun.cases == (1, 3):
            # The ending of the adjective shows the plural: "старые учителя".
            is_plural = tokens.before(i).low.endswith(self.entries("plural-ending"))
            number = "many" if tokens[first].opens or is_plural else "one"
        if number == "many":
            return Phrase(first, i, plural=True)
        # "судьи" is singular in "портрет судьи" and "моего судьи", but may otherwise be plural.
        is_of_picture = self.is_listed(tokens.before(i), "before-genitive")
        if number == "any" and first == i and not (is_of_picture and tokens[i - 1].opens):
            return None
        return Phrase(first, i, noun, case=CASES[self._case_of(tokens, first, noun.cases)])

    def _first_adjective(self, tokens: Reading, i: int, noun: Noun | None) -> int:
        """Return the position of the first adjective that precedes a noun and agrees with it."""
        first = i
        while first and (first < i or not tokens[i].opens):
            is_linked = first > 1 and tokens[first - 1].low in ("и", "но") and first < i
            # A conjunction may join two adjectives: "усталый, но довольный повар".
            last = first - 1 - is_linked
            gap = tokens.gap(first - is_linked)
            is_apart = tokens[first - is_linked].opens and gap != ", "
            if is_apart or not self._describes(tokens[last]):
                break
            first = last + 1
            low = tokens[last].low
            ending = next((ending for ending in _CASES_OF_ENDING if low.endswith(ending)), "")
            # In "работающий официантом", the participle does not agree with the noun.
            if noun and noun.cases and ending:
                if set(noun.cases).isdisjoint(_CASES_OF_ENDING[ending]):
                    break
            first -= 1
        return first

    def is_genitive(self, before: Sequence[Token], phrase: Phrase) -> bool:
        # The noun is the owner of a thing: "нож повара".
        is_owner = phrase.case == "genitive" and len(before) < 3
        return is_owner and not self.is_listed(before[-1], "preposition")

    def is_role(self, tokens: Reading, person: Phrase, phrase: Phrase) -> bool:
        is_instrumental = phrase.case == "instrumental" and not person.plural
        is_behind_verb = self.is_listed(tokens[phrase.first - 1], "role-verb")
        return (is_instrumental and is_behind_verb) or super().is_role(tokens, person, phrase)

    def _describes(self, token: Token) -> bool:
        low = token.low.removesuffix("ся") if is_participle(token.low) else token.low
        noun = self.noun_of(token)
        # The word before the noun is an adjective: "взрослый человек".
        is_noun = noun is not None and noun.masculine not in self.entries("person-adjectival")
        is_noun = is_noun or self.is_listed(token, "no-adjective")
        is_adjective = len(low) > 4 and low.endswith(_ADJECTIVE_ENDINGS) and not is_noun
        return is_adjective or low.replace("ё", "е") in self.pairs("pronoun-form")

    def _case_of(self, tokens: Reading, first: int, cases: tuple[int, ...]) -> int:
        """Return the case of a phrase, using the preceding word if the noun is ambiguous."""
        if len(cases) == 1:
            return cases[0]
        before = tokens.before(first)
        if not cases:
            cases = (0, 1, 3) if before.text else (0,)
        if {1, 3} <= set(cases):
            # After a verb, the noun is an object: "приветствует велосипедиста".
            is_past = _PAST.fullmatch(before.low) and before.low not in self.entries("no-verb")
            is_object = is_past or before.low.endswith(self.entries("verb-ending"))
            return 3 if is_object or self.is_listed(before, "accusative-behind") else 1
        if 5 in cases and before.low in self.entries("before-prepositional"):
            return 5
        return cases[0]

    # ---- writing

    def write_one(
        self, tokens: Reading, phrase: Phrase, gender: str, adjectives: Sequence[str]
    ) -> Changes:
        assert phrase.noun is not None
        case = CASES.index(phrase.case)
        is_woman = gender == "female"
        place = self._start_of_noun(tokens, phrase, phrase.noun)
        words = " ".join(_adjective_form(word, case, is_woman) for word in adjectives)
        text = tokens[place].text
        if gender:
            text = self._gendered(tokens, place, phrase, is_woman)
        if words:
            text = self._like(tokens[place], f"{words} {_inside(text)}")
        changes = {place: text}
        if is_woman:
            for position in range(phrase.first, place):
                token = tokens[position]
                changes[position] = self._like(token, feminine_adjective(token.low, case))
            changes |= self._agreeing(tokens, phrase) or {}
        return changes

    def _start_of_noun(self, tokens: Reading, phrase: Phrase, noun: Noun) -> int:
        """Return the start of a noun including classifying adjectives: "уличный музыкант"."""
        place = phrase.head
        is_of_kind = self.matcher("adjective-of-kind").has
        while noun.kind == "noun" and place > phrase.first and is_of_kind(tokens[place - 1]):
            place -= 1
        return place

    def _gendered(self, tokens: Reading, place: int, phrase: Phrase, is_woman: bool) -> str:
        """Return the replacement for the first word of a noun, which adds "woman" or "man"."""
        assert phrase.noun is not None
        token = tokens[place]
        case = CASES.index(phrase.case)
        is_child = self.is_listed(tokens[phrase.head], "child")
        female, male = ("девочка", "мальчик") if is_child else ("женщина", "мужчина")
        human = self._inflected(female if is_woman else male, "singular")[case]
        if phrase.noun.kind in ("child", "human"):
            return self._like(token, human)
        first, hyphen, trade = token.text.partition("-")
        if first.lower() in self._inflected("человек", "singular"):
            # A hyphen joins the trade: "человек-сварщик".
            return self._like(token, human) + hyphen + trade
        if phrase.noun.kind == "adjective":
            word = feminine_adjective(token.low, case) if is_woman else token.low
            # A nominalized adjective precedes the noun: "бездомная женщина".
            return f"{self._like(token, word)} {human}"
        # One word is joined by a hyphen, several by a dash: "женщина-врач".
        link = DASH if place < phrase.head else "-"
        return f"{self._like(token, human)}{link}{_inside(token.text)}"

    def is_unsure(self, tokens: Reading, phrase: Phrase) -> bool:
        is_unclear = phrase.noun is not None and self._agreeing(tokens, phrase) is None
        return is_unclear or super().is_unsure(tokens, phrase)

    def _agreeing(self, tokens: Reading, phrase: Phrase) -> Changes | None:
        """Return the changes that make participles, "который" and past-tense verbs feminine.

        Return None if a word may agree with this noun or with another one.
        """
        changes: Changes = {}
        before = phrase.first - 1
        is_subject = phrase.case == "nominative" and not tokens[phrase.first].opens
        if is_subject and self._feminine_predicate(tokens, before):
            # The verb may precede the noun: "шёл старый пастух".
            changes[before] = self._feminine_predicate(tokens, before)
        relative, oblique = self.pairs("relative-nominative"), self.pairs("relative-oblique")
        has_verb = is_inserted = False
        is_own = phrase.case == "nominative"  # whether it is the subject of the next verb
        for i in range(phrase.head + 1, len(tokens)):
            token = tokens[i]
            noun = self.noun_of(token)
            if tokens.opens_sentence(i) or (noun and (noun.number != "one" or 0 in noun.cases)):
                break
            if token.opens:
                is_own, is_inserted = is_inserted, False
            predicate = self._feminine_predicate(tokens, i)
            # A preposition may precede the relative pronoun: "с которым".
            pronoun = tokens.after(i).low
            if token.opens and token.low in relative and not has_verb:
                changes[i] = relative[token.low]
                is_own = is_inserted = True
            elif token.opens and pronoun in oblique and len(token.low) < 4:
                changes[i + 1] = oblique[pronoun]
            elif predicate and not is_own:
                return None
            elif predicate:
                changes[i] = predicate
            elif token.opens or i == phrase.head + 1:
                participle = self._feminine_participle(tokens, i, phrase.case)
                if participle is None:
                    return None
                if participle:
                    changes[i] = participle
                    is_inserted = token.opens
            has_verb = (
                has_verb or bool(predicate) or token.low.endswith(self.entries("verb-ending"))
            )
        return changes

    def _feminine_predicate(self, tokens: Reading, i: int) -> str:
        """Return the feminine form of a past-tense verb or short adjective ("готов"), or ""."""
        token = tokens[i]
        following = tokens.after(i)
        irregular = self.pairs("predicate").get(token.low, "")
        is_last = not following.text or self.is_listed(following, "preposition")
        if token.low in ("один", "весь") and not is_last:
            return ""
        if irregular:
            return self._like(token, irregular)
        if token.low in self.entries("no-verb") or not _PAST.fullmatch(token.low):
            return ""
        stem = re.sub("ш[её]л$", "шл", token.text.removesuffix("ся")).replace("ёл", "ел")
        return stem + ("ась" if token.low.endswith("ся") else "а")

    def _feminine_participle(self, tokens: Reading, i: int, case: str) -> str | None:
        """Return the feminine form of a participle that does not follow its noun directly.

        Return None if it may agree with the next noun instead, and "" if it certainly does.
        """
        low = tokens[i].low
        following = tokens.after(i).low
        plain = low.removesuffix("ся")
        # In participles, "-ой" is a feminine ending: "у доски, исписанной формулами".
        endings = [end for end in _CASES_OF_ENDING if plain.endswith(end) and end != "ой"]
        agrees = endings and CASES.index(case) in _CASES_OF_ENDING[endings[0]]
        if not agrees or not is_participle(low) or self.noun_of(tokens[i]):
            return ""
        is_active = plain.removesuffix(endings[0]).endswith(("щ", "вш"))
        no_masculine = "уюиыое" + ("ая" if case == "nominative" else "")
        is_object = following.endswith(tuple(no_masculine))
        takes_object = is_active and (is_object or low.startswith(self.entries("takes-object")))
        is_sure = takes_object and plain == low
        is_instrumental = following.endswith(self.entries("instrumental-ending"))
        if is_instrumental or self.is_listed(tokens.after(i), "preposition"):
            is_sure = True
        if is_sure or (not following and (is_active or i + 1 == len(tokens))):
            return feminine_adjective(low, CASES.index(case))
        is_series = not following and tokens[i + 1].low.endswith(_ADJECTIVE_ENDINGS)
        is_attribute = bool(following) and not is_active
        return "" if is_series or is_attribute or plain != low else None


def is_participle(word: str) -> bool:
    """Return whether a word looks like a masculine participle."""
    if word.endswith(("щийся", "щегося", "щемуся", "щимся", "вшийся", "вшегося")):
        return True
    stems = [word.removesuffix(ending) for ending in _ADJECTIVE_ENDINGS if word.endswith(ending)]
    return len(word) > 5 and any(stem.endswith(("щ", "вш", "нн", "т", "м")) for stem in stems)


def feminine_adjective(word: str, case: int) -> str:
    """Return the feminine form of a masculine adjective or pronoun.

    Args:
        word: the masculine form in the given case.
        case: the index of the case in `CASES`.

    >>> feminine_adjective("опытного", 1), feminine_adjective("синий", 0)
    ('опытной', 'синяя')
    """
    pronoun = LANGUAGE.pairs("pronoun-form").get(word.replace("ё", "е"))
    if pronoun:
        return pronoun.split(",")[{0: 0, 3: 2}.get(case, 1)]
    reflexive = "ся" if word.endswith("ся") else ""
    word = word.removesuffix("ся")
    for ending in _ADJECTIVE_ENDINGS:
        if word.endswith(ending):
            stem = word.removesuffix(ending)
            is_hissing = stem[-1] in _SIBILANTS
            is_soft = (
                ending in ("ий", "его", "ему", "ем") and stem[-1] not in _SIBILANTS + _GUTTURALS
            )
            is_soft = is_soft or (ending == "им" and stem[-1] in "не")
            has_e = is_soft or (is_hissing and ending not in ("ой", "ого", "ому", "ом"))
            feminine = "ей" if has_e else "ой"
            if case in (0, 3):
                hard, soft = ("ая", "яя") if case == 0 else ("ую", "юю")
                feminine = soft if is_soft else hard
            return stem + feminine + reflexive
    return word + reflexive


def _adjective_form(word: str, case: int, is_feminine: bool) -> str:
    """Inflect an adjective that is given in the masculine nominative."""
    if is_feminine:
        return feminine_adjective(word, case)
    stem = word[:-2]
    ending = (word[-2:], "ого", "ому", "ого", "ым", "ом")[case]
    if word.endswith("ий"):
        ending = ending.replace("ы", "и")
        if stem[-1] in _SIBILANTS:
            ending = ending.replace("о", "е", 1)
    return stem + ending


def _inside(text: str) -> str:
    """Return a word as it is written in the middle of a sentence."""
    return text if text.isupper() else text[0].lower() + text[1:]


LANGUAGE = Russian()
