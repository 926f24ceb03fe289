"""Arabic: طبيب becomes طبيبة or طبيب رجل; شخص طموح becomes امرأة طموحة or رجل طموح."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property

from vldebias.wording.languages.base import Changes, Noun, Phrase, Reading, SpacedLanguage, Token

_MARKS = re.compile("[\u064b-\u0652\u0670\u0640]")  # short vowels, nunation and lengthening
# Prefixes of a noun: "and", "for", "in", "as", and the article.
_PREFIX = re.compile(r"^(و|ف)?(لل|بال|كال|ال|[لبك])?(.*)$")
# Common adjective patterns: مجنون, غريب, ضائع, أشقر, عطشان.
_LIKE_ADJECTIVE = re.compile("(?:م.{2,}|..ي.|.ا..|أ...|.{3}ان)(?<![ةه])(?<!ات)")
_HUMAN = "شخص"


class Arabic(SpacedLanguage):
    """Find people in Arabic prompts, and insert values with the required agreement."""

    code = "ar"
    name = "Arabic"
    word = r"[\u0621-\u064a\u064b-\u0652\u0670\u0671-\u06d3]+|[A-Za-z]+|\d+"
    comma = "،"
    joiner = " و"

    def plain(self, word: str) -> str:
        return _MARKS.sub("", word)

    @cached_property
    def _nouns(self) -> dict[str, Noun]:
        """Return a mapping from masculine forms, singular or plural, to nouns."""
        nouns: dict[str, Noun] = {}
        for entry in self.entries("person"):
            masculine, *plurals = entry.split("/")
            noun = Noun(masculine, feminine(masculine))
            for plural in (*plurals, masculine + "ون", masculine + "ين"):
                nouns.setdefault(plural, noun._replace(number="many"))
            nouns[masculine] = noun
        nouns[_HUMAN] = Noun(_HUMAN, feminine(_HUMAN))
        return nouns

    @cached_property
    def _feminine_nouns(self) -> frozenset[str]:
        singular = {noun.feminine for noun in self._nouns.values()}
        return frozenset(singular | {noun[:-1] + "ات" for noun in singular})

    @cached_property
    def _people(self) -> frozenset[str]:
        return frozenset(self.entries("female") + self.entries("male"))

    def _split(self, token: Token) -> tuple[str, str]:
        """Split a word into prefix and noun."""
        ((joined, article, noun),) = _PREFIX.findall(token.low)
        for prefix, rest in (("", token.low), (joined + article, noun), (joined, article + noun)):
            if rest in self._nouns or rest in self._feminine_nouns or rest in self._people:
                # Keep the lengthening sign after a prefix: "لـخطاط".
                return prefix + "\u0640" * (prefix != "" and "\u0640" in token.text), rest
        return "", token.low

    def noun_of(self, token: Token) -> Noun | None:
        _, form = self._split(token)
        return self._nouns.get(form)

    def states_gender(self, tokens: Reading, i: int) -> bool:
        token = tokens[i]
        plain = token.low.removeprefix("و")
        if plain == "عجوز" and self._follows_person(tokens, i):
            return False  # here "old", which can also describe a man
        if self._people & {token.low, plain}:
            return True
        _, noun = self._split(token)
        if noun not in self._feminine_nouns or noun in self._nouns:
            return False
        # Such words may also be adjectives, things or trades: "الأنظمة الكهربائية", "ورشة نجارة".
        is_sure = not noun.endswith(("ية", "ات")) and noun not in self.entries("trade-or-woman")
        return is_sure or not tokens.before(i).low

    def _is_name(self, tokens: Reading, i: int) -> bool:
        return not (self._ends_noun(tokens[i]) or tokens[i].low.startswith("ال"))

    # ---- phrases

    def phrase_at(self, tokens: Reading, i: int) -> Phrase | None:
        if self.states_gender(tokens, i):
            # A pronoun refers to the person before it: "طبيب وهو يبتسم".
            is_pronoun = tokens[i].low.removeprefix("و") in self.entries("personal-pronoun")
            return None if is_pronoun else Phrase(i, i, stated=True)
        prefix, form = self._split(tokens[i])
        noun = self._nouns.get(form)
        # A noun directly after a person describes that person, unless "and" separates them.
        is_kind = self._follows_person(tokens, i) and not prefix.startswith("و")
        things = self.matcher("not-person")
        if noun is None or is_kind or noun.masculine in things.words:
            return None
        if things.length_at(tokens, i) > 0:
            return None
        size = self.number_of(tokens.before(i).low)
        if noun.number == "many" or size is not None:
            return Phrase(i if size is None else i - 1, i, plural=True, size=size)
        return Phrase(i, i, noun, behind=self._adjectives(tokens, i, prefix, noun))

    def _are_apart(self, tokens: Reading, phrase: Phrase, following: Phrase) -> bool:
        # A description follows a group: "three doctors, two women and a man".
        is_group = phrase.plural or following.plural
        is_joined = self._is_joined_person(tokens[following.head]) and not is_group
        return is_joined or super()._are_apart(tokens, phrase, following)

    def _is_joined_person(self, token: Token) -> bool:
        """Return whether a noun for people has the prefix "and": "وامرأة", but not "وزير"."""
        return self._split(token)[0].startswith("و")

    def _follows_person(self, tokens: Reading, i: int) -> bool:
        """Return whether this word describes the person or medium before it: "تصوير رياضي"."""
        before = tokens.before(i)
        is_of_medium = self.is_listed(before, "medium") and self._is_relation(tokens[i].low)
        return is_of_medium or self.noun_of(before) is not None

    def _adjectives(self, tokens: Reading, i: int, prefix: str, noun: Noun) -> tuple[int, ...]:
        """Return the positions of the adjectives after a noun, which must agree in definiteness."""
        article = _article_in(prefix)
        first = i + 1
        if self.is_listed(tokens.after(i), "of-kind"):
            first += 1  # The adjective follows a compound: "سائق تاكسي متعب".
        last = first
        while last < len(tokens) and not tokens[last].opens:
            token = tokens[last]
            word = token.low.removeprefix(article)
            is_adjective = word in self.matcher("adjective").words or self._is_relation(word)
            if noun.masculine == _HUMAN and last == i + 1:
                is_other_word = word.startswith(("ب", "ل")) or word.endswith(("ة", "ه"))
                is_adjective = is_adjective or not (is_other_word or self._ends_noun(token))
            if token.low.startswith("ال") != bool(article) or not is_adjective:
                break
            last += 1
        return tuple(range(first, last))

    def _is_relation(self, word: str) -> bool:
        """Return whether a word looks like a relational adjective: كهربائي, ألماني."""
        if word.startswith("ي") and word not in self.matcher("not-verb").words:
            return False  # A present-tense verb begins with the same letter: "يلقي".
        return len(word) > 3 and word.endswith("ي") and word != "كرسي"

    def _is_verb(self, token: Token) -> bool:
        low = token.low.removeprefix("و")
        return len(low) > 2 and low[0] == "ي" and low not in self.matcher("not-verb").words

    def is_unsure(self, tokens: Reading, phrase: Phrase) -> bool:
        if any(self._is_unread(tokens, i) for i in range(len(tokens))):
            return True
        is_joined = self._is_joined_person(tokens[phrase.first])
        if super().is_unsure(tokens, phrase) and not is_joined:
            return True
        following = tokens.after(phrase.last)
        if not phrase.is_open or not following.text:
            return False
        # The next word may be an unlisted adjective, which would have to agree: "طبيب مجنون".
        is_listed = self._ends_noun(following) or self.is_listed(following, "of-noun")
        return _LIKE_ADJECTIVE.fullmatch(following.low) is not None and not is_listed

    def _is_unread(self, tokens: Reading, i: int) -> bool:
        """Return whether a word is a verb in the dual or a noun in the accusative.

        They are not supported ("يتحدثان", "يفحص مريضا"), except in roles ("يعمل سباكا").
        """
        low = tokens[i].low
        if low.endswith("ان") and self._is_verb(tokens[i]):
            return True
        is_accusative = low.endswith("ا") and low[:-1] in self._nouns
        return is_accusative and not self.is_listed(tokens.before(i), "role-verb")

    def is_genitive(self, before: Sequence[Token], phrase: Phrase) -> bool:
        is_other_word = self.is_listed(before[0], "place") or self._is_verb(before[0])
        return len(before) == 1 and not is_other_word

    def is_role(self, tokens: Reading, person: Phrase, phrase: Phrase) -> bool:
        is_like = phrase.is_open and self._split(tokens[phrase.head])[0] == "ك"
        return (is_like and not person.plural) or super().is_role(tokens, person, phrase)

    def write_role(self, tokens: Reading, role: Phrase, gender: str) -> Changes:
        if not role.is_open or gender != "female":
            return {}
        prefix, _ = self._split(tokens[role.head])
        return {role.head: prefix + role.noun.feminine}

    # ---- writing

    def lacks_form(self, phrase: Phrase) -> bool:
        return not phrase.is_open

    def write_one(
        self, tokens: Reading, phrase: Phrase, gender: str, adjectives: Sequence[str]
    ) -> Changes:
        prefix, _ = self._split(tokens[phrase.head])
        article = _article_in(prefix)
        changes: Changes = {}
        if gender == "female":
            noun = phrase.noun.feminine
            if phrase.noun.masculine == _HUMAN:
                noun = "مرأة" if article else "امرأة"
            changes[phrase.head] = prefix + noun
            for i in phrase.behind:
                changes[i] = feminine(tokens[i].low)
            self._agree(tokens, phrase, changes)
            adjectives = [feminine(word) for word in adjectives]
        elif gender == "male":
            changes |= self._as_man(tokens, phrase, prefix)
        if adjectives:
            last_word = changes.get(phrase.last, tokens[phrase.last].text)
            changes[phrase.last] = " ".join([last_word, *(article + word for word in adjectives)])
        return changes

    def _as_man(self, tokens: Reading, phrase: Phrase, prefix: str) -> Changes:
        """Return the changes that add "man": طبيب رجل متعب, الطبيب الرجل, الرجل مدير المبيعات."""
        if phrase.noun.masculine == _HUMAN:
            return {phrase.head: f"{prefix}رجل"}
        article = _article_in(prefix)
        following = tokens.after(phrase.head)
        is_apart = phrase.head + 1 in phrase.behind or not following.text
        if is_apart or self._ends_noun(following):
            place = phrase.head
            # A relational adjective is part of the job title: مهندس معماري رجل.
            while place + 1 in phrase.behind and self._is_relation(tokens[place + 1].low):
                place += 1
            man = "ذكر" if phrase.noun.masculine in self.entries("child") else "رجل"
            return {place: f"{tokens[place].text} {article}{man}"}
        # No word can separate the two nouns in "bus driver", so "man" comes first. The first of
        # the two nouns is definite if the second is.
        is_next_definite = following.low.startswith("ال")
        if is_next_definite and not article:
            prefix = prefix[:-1] + "لل" if prefix.endswith("ل") else prefix + "ال"
        article = "" if is_next_definite else article
        return {phrase.head: f"{prefix}رجل {article}{phrase.noun.masculine}"}

    def _ends_noun(self, following: Token) -> bool:
        """Return whether a word cannot belong to the noun before it."""
        is_function_word = not following.text or self.is_listed(following, "no-adjective")
        return is_function_word or self._is_verb(following) or self._is_joined_person(following)

    def _agree(self, tokens: Reading, phrase: Phrase, changes: Changes) -> None:
        """Make the words that agree with a noun feminine, up to the next person."""
        verb = tokens.before(phrase.head)
        if self._is_verb(verb):
            changes[phrase.head - 1] = _feminine_verb(verb.text)
        is_subject = True  # whether no verb or preposition has followed the noun so far
        for i in range(phrase.last + 1, len(tokens)):
            if tokens.opens_sentence(i) or self.phrase_at(tokens, i) is not None:
                break
            if self.is_listed(tokens[i], "place"):
                is_subject = False
            elif self._is_verb(tokens[i]) and not self.is_listed(tokens[i - 1], "place"):
                changes[i] = _feminine_verb(tokens[i].text)
                is_subject = False
            else:
                word = self._feminine_behind(tokens, i, is_subject)
                if word:
                    changes[i] = word

    def _is_possessed(self, word: str) -> bool:
        """Return whether a word has the suffix "his"."""
        ((_, _, noun),) = _PREFIX.findall(word)
        known = self.entries("not-possessed")
        return len(word) > 3 and word.endswith("ه") and noun not in known and word not in known

    def _feminine_behind(self, tokens: Reading, i: int, is_subject: bool) -> str:
        """Return the feminine form of a word if it agrees with the person, else ""."""
        token = tokens[i]
        before = tokens[i - 1]
        if token.low == "الذي" and is_subject:
            return "التي"
        if self._is_possessed(token.low):
            return token.text + "ا"  # The possessive is a suffix, as "his" in "in his studio".
        # A masculine adjective after a feminine noun describes the person: لاعب كرة سلة طويل.
        adjectives = self.matcher("adjective").words
        if is_subject and before.low.endswith("ة") and token.low.removeprefix("ال") in adjectives:
            return feminine(token.low)
        # The accusative expresses a state or a trade: مبتسما, يعمل سباكا.
        stem = token.low.removesuffix("ا")
        states = self.matcher("state").words | adjectives
        if before.low in ("يعمل", "يشتغل"):
            states = states | self._nouns.keys()
        return feminine(stem) if stem != token.low and stem in states else ""


def _article_in(prefix: str) -> str:
    """Return the definite article if a noun's prefix contains it, else ""."""
    return "ال" if prefix.endswith("ال") or prefix == "لل" else ""


def _feminine_verb(verb: str) -> str:
    """Return the feminine form of a present-tense verb: ويبتسم becomes وتبتسم."""
    joined = "و" if verb.startswith("و") else ""
    return f"{joined}ت{verb.removeprefix('و')[1:]}"


def feminine(word: str) -> str:
    """Return the feminine form of a masculine singular noun or adjective.

    >>> feminine("طبيب"), feminine("قاض")
    ('طبيبة', 'قاضية')
    """
    stem = word.removeprefix("ال")
    if stem in LANGUAGE.entries("defective"):
        return word + "ية"
    irregular = LANGUAGE.pairs("irregular")
    if stem in irregular:
        return word.removesuffix(stem) + irregular[stem]
    return word if word.endswith("ة") else word + "ة"


LANGUAGE = Arabic()
