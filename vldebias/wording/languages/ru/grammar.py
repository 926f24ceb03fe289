"""Russian: "врач" becomes "женщина-врач" or "мужчина-врач", in the same case.

An adjective that specifies the trade stays next to its noun: "женщина — уличный музыкант".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cached_property

from vldebias.wording.languages.base import Changes, Noun, Phrase, Reading, SpacedLanguage, Token

CASES = ("nominative", "genitive", "dative", "accusative", "instrumental", "prepositional")
DASH = " \u2014 "
_HUMANS_OF_GENDER = ("женщин", "мужчин")
# Masculine participles. The ending "-ой" is feminine here: "у доски, исписанной формулами".
_ACTIVE_PARTICIPLE = re.compile(".{2,}(?:щ|[бвгдкпрсх]ш)(?:ий|его|ему|им|ем)(?:ся)?")
_PASSIVE_PARTICIPLE = re.compile(".{2,}(?:нн|.[тм])(?:ый|ого|ому|ым|ом)")
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
                forms = self.inflected(word, "singular")
                self._add(nouns, "noun", forms, self.inflected(word, plural))
        # Nouns that are declined like adjectives: "учёный".
        adjectives = self.matcher("adjective-alone").words
        for word in self.entries("person-adjectival"):
            kind = "adjective" if word in adjectives else "noun"
            forms = self.inflected(word, "adjective")
            self._add(nouns, kind, forms, self.inflected(word, "plural-of-adjective"))
        for word in self.entries("person-still"):
            nouns[word] = Noun(word, word, kind="noun")
        for kind, word in (("human", "человек"), ("child", "ребёнок")):
            self._add(nouns, kind, self.inflected(word, "singular"), ())
        return nouns

    def _add(
        self, nouns: dict[str, Noun], kind: str, forms: Sequence[str], plurals: Sequence[str]
    ) -> None:
        """Add a noun under its singular forms in the six cases and under its plural forms."""
        word = forms[0]
        for form in plurals:
            nouns.setdefault(form, Noun(word, word, number="many"))
        for form in forms:
            cases = tuple(case for case, other in zip(CASES, forms, strict=True) if other == form)
            # The genitive singular can also be the nominative plural: "учителя", "судьи".
            number = "any" if kind == "noun" and cases[0] == "genitive" else "one"
            nouns[form] = Noun(word, word, number=number, kind=kind, cases=cases)
            # Texts are often written without ё: "с судьей".
            nouns.setdefault(form.replace("ё", "е"), nouns[form])

    def _in_case(self, word: str, declension: str, case: str) -> str:
        """Return a word in a case, or the word itself if the declension has no such ending."""
        forms = self.inflected(word, declension)
        return forms[CASES.index(case)] if forms else word

    def _feminine(self, word: str, case: str) -> str:
        """Return the feminine form of an adjective or pronoun, given its masculine in this case."""
        pronoun = self.pairs("pronoun-form").get(word.replace("ё", "е"))
        if pronoun:
            nominative, oblique, accusative = pronoun.split(",")
            return {"nominative": nominative, "accusative": accusative}.get(case, oblique)
        plain = word.removesuffix("ся")
        return self._in_case(plain, "feminine", case) + word.removeprefix(plain)

    def _cases_of_adjective(self, word: str) -> tuple[str, ...]:
        """Return the cases of a masculine adjective according to its ending, or ()."""
        for ending, cases in self.pairs("adjective-ending").items():
            if word.endswith(ending):
                return tuple(cases.split(","))
        return ()

    def noun_of(self, token: Token) -> Noun | None:
        # The last part of a compound declines, unless the first is a group: "инженер-механик".
        first, _, last = token.low.rpartition("-")
        is_group = first in self.matcher("group-left-unchanged").words
        return self._nouns.get(token.low) or (None if is_group else self._nouns.get(last))

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
            return Phrase(self._first_adjective(tokens, i, ()), i, stated=True)
        noun = self.noun_of(token)
        is_adjectival = self._cases_of_adjective(token.low) != ()
        if noun is None or (is_adjectival and self.noun_of(tokens.after(i)) is not None):
            return None  # A noun before another noun is its adjective: "дежурный врач".
        first = self._first_adjective(tokens, i, noun.cases)
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
        if "nominative" in noun.cases:
            return word.low.endswith(("ая", "яя"))
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
        if number == "any" and noun.cases == ("genitive", "accusative"):
            # The ending of the adjective shows the plural: "старые учителя".
            is_plural = tokens.before(i).low.endswith(self.entries("plural-ending"))
            number = "many" if tokens[first].opens or is_plural else "one"
        if number == "many":
            return Phrase(first, i, plural=True)
        # "судьи" is singular in "портрет судьи" and "моего судьи", but may otherwise be plural.
        is_of_picture = self.is_listed(tokens.before(i), "before-genitive")
        if number == "any" and first == i and not (is_of_picture and tokens[i - 1].opens):
            return None
        return Phrase(first, i, noun, case=self._case_of(tokens, first, noun.cases))

    def _first_adjective(self, tokens: Reading, i: int, cases: tuple[str, ...]) -> int:
        """Return the position of the first adjective that precedes a noun and agrees with it.

        cases: the cases that the noun can have, or () if any.
        """
        first = i
        while first and (first < i or not tokens[i].opens):
            # A conjunction may join two adjectives: "усталый, но довольный повар".
            is_linked = 1 < first < i and tokens[first - 1].low in ("и", "но")
            following = first - is_linked
            is_apart = tokens[following].opens and tokens.gap(following) != ", "
            if is_apart or not self._describes(tokens[following - 1]):
                break
            # In "работающий официантом", the participle does not agree with the noun.
            own_cases = self._cases_of_adjective(tokens[following - 1].low)
            if cases and own_cases and set(cases).isdisjoint(own_cases):
                break
            first = following - 1
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
        """Return whether a word before a noun is an adjective or pronoun: "взрослый человек"."""
        is_active = _ACTIVE_PARTICIPLE.fullmatch(token.low) is not None
        low = token.low.removesuffix("ся") if is_active else token.low
        if low.replace("ё", "е") in self.pairs("pronoun-form"):
            return True
        if len(low) < 5 or not self._cases_of_adjective(low):
            return False
        noun = self.noun_of(token)
        is_noun = noun is not None and noun.masculine not in self.entries("person-adjectival")
        return not is_noun and not self.is_listed(token, "no-adjective")

    def _case_of(self, tokens: Reading, first: int, cases: tuple[str, ...]) -> str:
        """Return the case of a phrase, using the preceding word if the noun is ambiguous."""
        if len(cases) == 1:
            return cases[0]
        before = tokens.before(first)
        if not cases and not before.text:
            return "nominative"
        if not cases or {"genitive", "accusative"} <= set(cases):
            # After a verb, the noun is an object: "приветствует велосипедиста".
            is_past = _PAST.fullmatch(before.low) and before.low not in self.entries("no-verb")
            is_object = is_past or before.low.endswith(self.entries("verb-ending"))
            is_object = is_object or self.is_listed(before, "accusative-behind")
            return "accusative" if is_object else "genitive"
        is_prepositional = before.low in self.entries("before-prepositional")
        return "prepositional" if is_prepositional and "prepositional" in cases else cases[0]

    # ---- writing

    def write_one(
        self, tokens: Reading, phrase: Phrase, gender: str, adjectives: Sequence[str]
    ) -> Changes:
        is_woman = gender == "female"
        place = self._start_of_noun(tokens, phrase)
        declension = "feminine" if is_woman else "adjective"
        words = " ".join(self._in_case(word, declension, phrase.case) for word in adjectives)
        text = tokens[place].text
        if gender:
            text = self._gendered(tokens, place, phrase, is_woman)
        if words:
            text = self._like(tokens[place], f"{words} {_inside(text)}")
        changes = {place: text}
        if is_woman:
            for position in range(phrase.first, place):
                token = tokens[position]
                changes[position] = self._like(token, self._feminine(token.low, phrase.case))
            changes |= self._agreeing(tokens, phrase) or {}
        return changes

    def _start_of_noun(self, tokens: Reading, phrase: Phrase) -> int:
        """Return the start of a noun including classifying adjectives: "уличный музыкант"."""
        place = phrase.head
        is_of_kind = self.matcher("adjective-of-kind").has
        while phrase.noun.kind == "noun" and place > phrase.first and is_of_kind(tokens[place - 1]):
            place -= 1
        return place

    def _gendered(self, tokens: Reading, place: int, phrase: Phrase, is_woman: bool) -> str:
        """Return the replacement for the first word of a noun, which adds "woman" or "man"."""
        token = tokens[place]
        is_child = self.is_listed(tokens[phrase.head], "child")
        female, male = ("девочка", "мальчик") if is_child else ("женщина", "мужчина")
        human = self._in_case(female if is_woman else male, "singular", phrase.case)
        if phrase.noun.kind in ("child", "human"):
            return self._like(token, human)
        first, hyphen, trade = token.text.partition("-")
        if first.lower() in self.inflected("человек", "singular"):
            # A hyphen joins the trade: "человек-сварщик".
            return self._like(token, human) + hyphen + trade
        if phrase.noun.kind == "adjective":
            word = self._feminine(token.low, phrase.case) if is_woman else token.low
            # A nominalized adjective precedes the noun: "бездомная женщина".
            return f"{self._like(token, word)} {human}"
        # One word is joined by a hyphen, several by a dash: "женщина-врач".
        link = DASH if place < phrase.head else "-"
        return f"{self._like(token, human)}{link}{_inside(token.text)}"

    def is_unsure(self, tokens: Reading, phrase: Phrase) -> bool:
        is_unclear = phrase.is_open and self._agreeing(tokens, phrase) is None
        return is_unclear or super().is_unsure(tokens, phrase)

    def _agreeing(self, tokens: Reading, phrase: Phrase) -> Changes | None:
        """Return the changes that make participles, "который" and past-tense verbs feminine.

        Return None if a word may agree with this noun or with another one.
        """
        changes = self._inverted_verb(tokens, phrase)
        is_subject = phrase.case == "nominative"  # of the next verb
        has_verb = is_inserted = False
        for i in self._up_to_next_subject(tokens, phrase.head):
            token = tokens[i]
            if token.opens:
                is_subject, is_inserted = is_inserted, False
            form: str | None = self._past(tokens, i)
            is_verb = form != "" or token.low.endswith(self.entries("verb-ending"))
            relative = "" if has_verb else self._feminine_relative(tokens, i)
            has_verb |= is_verb
            if form and not is_subject:
                return None
            if relative:
                form = relative
                is_subject = is_inserted = token.low in self.pairs("relative-nominative")
            elif not form:
                form = self._feminine_participle(tokens, i, phrase, is_inserted)
                is_inserted |= token.opens and bool(form)
            if form is None:
                return None
            if form:
                changes[i] = form
        return changes

    def _inverted_verb(self, tokens: Reading, phrase: Phrase) -> Changes:
        """Return the change to a verb directly before its subject: "шёл старый пастух"."""
        if phrase.case != "nominative" or tokens[phrase.first].opens:
            return {}
        i = phrase.first - 1
        verb = self._past(tokens, i)
        # Another person before the verb may be its subject: "пока врач читал пациент спал".
        nouns = filter(None, map(self.noun_of, tokens.clause_before(i)))
        has_subject = any("nominative" in noun.cases for noun in nouns)
        return {i: verb} if verb and not has_subject else {}

    def _up_to_next_subject(self, tokens: Reading, head: int) -> Iterator[int]:
        """Yield the words after a noun in its sentence, up to a person who may be a subject."""
        for i in range(head + 1, len(tokens)):
            noun = self.noun_of(tokens[i])
            is_subject = noun and (noun.number != "one" or "nominative" in noun.cases)
            if is_subject or tokens.opens_sentence(i):
                break
            yield i

    def _feminine_relative(self, tokens: Reading, i: int) -> str:
        """Return the feminine form of "который" if it is word i, or ""."""
        token, before = tokens[i], tokens.before(i)
        if token.opens and token.low in self.pairs("relative-nominative"):
            return self.pairs("relative-nominative")[token.low]
        # "Которого" is an object in ", которого" and ", на которого", but not in ", лицо которого".
        if token.opens or before.low in self.entries("before-accusative"):
            accusative = self.pairs("relative-accusative").get(token.low)
            if accusative:
                return accusative
        return self.pairs("relative-oblique").get(token.low, "")

    def _past(self, tokens: Reading, i: int) -> str:
        """Return the feminine form of a past-tense verb or short adjective ("готов"), or ""."""
        token = tokens[i]
        form = self.pairs("predicate").get(token.low, "")
        if not form and token.low not in self.entries("no-verb") and _PAST.fullmatch(token.low):
            (form,) = self.inflected(token.low, "past")
        return form and self._like(token, form)

    def _feminine_participle(
        self, tokens: Reading, i: int, phrase: Phrase, is_inserted: bool
    ) -> str | None:
        """Return the feminine form of a participle that follows its noun.

        Return None if it may agree with the next noun instead, and "" if it certainly does.

        is_inserted: whether the word is in a clause that begins with a participle of the noun.
        """
        low = tokens[i].low
        is_active = _ACTIVE_PARTICIPLE.fullmatch(low) is not None
        # "И" joins participles: "сидящего в лодке и смотрящего на воду".
        is_joined = is_inserted and tokens[i - 1].low in self.entries("and")
        is_attribute = tokens[i].opens or is_joined or i == phrase.head + 1
        if not is_attribute or not self._is_participle(tokens[i], phrase.case):
            return ""
        if not tokens.after(i).text or self._has_complement(tokens, i, phrase.case):
            return self._feminine(low, phrase.case)
        return None if is_active else ""

    def _has_complement(self, tokens: Reading, i: int, case: str) -> bool:
        """Return whether the word after a participle depends on it: "держащий книгу"."""
        following = tokens.after(i)
        is_instrumental = following.low.endswith(self.entries("instrumental-ending"))
        if is_instrumental or self.is_listed(following, "preposition"):
            return True
        # A noun in "-а" is an object, unless the participle is in the genitive.
        objects = self.entries("object-ending") + (("а", "я") if case == "nominative" else ())
        low = tokens[i].low
        is_object = following.low.endswith(objects) or low.startswith(self.entries("takes-object"))
        return is_object and _ACTIVE_PARTICIPLE.fullmatch(low) is not None

    def _is_participle(self, token: Token, case: str) -> bool:
        """Return whether a word may be a masculine participle in a case."""
        agrees = case in self._cases_of_adjective(token.low.removesuffix("ся"))
        form = _ACTIVE_PARTICIPLE.fullmatch(token.low) or _PASSIVE_PARTICIPLE.fullmatch(token.low)
        return agrees and form is not None and self.noun_of(token) is None


def _inside(text: str) -> str:
    """Return a word as it is written in the middle of a sentence."""
    return text if text.isupper() else text[0].lower() + text[1:]


LANGUAGE = Russian()
