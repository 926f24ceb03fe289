"""German: "ein Arzt" becomes "eine Ärztin" or "ein männlicher Arzt", in the same case."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path

from vldebias.wording.languages.base import Changes, Noun, Phrase, Reading, SpacedLanguage, Token

# Separators in gender-inclusive nouns: "Ärzt*in", "Ärzt:innen", "Ärzt/-in".
_STAR = r"(?:[*:·]|/-?)"
_SIGNED_ENDING = rf"{_STAR}(?:innen|in|r|n|s|m|e|er|en|em)\b|\((?:in|innen|r|n)\)"
# "Luft- und Raumfahrtingenieur" is one word.
_WORD = rf"(?:[^\W\d_]+- und )?[^\W\d_]+(?:{_SIGNED_ENDING}|['’-][^\W\d_]+)*|\d+(?:er)?"
_IN = re.compile(rf"{_STAR}in(nen)?$|\(in(nen)?\)$|(?<=[a-zäöüß])In(nen)?$")
_STAR_ENDING = re.compile(rf"(?:{_STAR}(?:r|n|s|m|e)$)|\((?:r|n)\)$")

# Ending of a determiner -> its case before a masculine singular noun.
_ENDINGS = {"": "nominative", "en": "accusative", "em": "dative", "es": "genitive"}
_CASES = ("nominative", "accusative", "dative", "genitive")
_PLURAL_ENDINGS = {"m": ("e", "en"), "f": ("en", "n"), "n": ("er", "ern")}
_HIS = re.compile("sein(?:e|en|em|er|es)?")
_SHORTEST_PART = 5  # minimum number of letters in the last part of a compound
_SHORT_PARTS = frozenset(["arzt", "koch", "wirt", "held", "gast", "coach"])
_LONGEST_PHRASE = 5


class German(SpacedLanguage):
    """Find people in German prompts, and insert values with the required agreement.

    The noun classes are "pair" (Arzt, Ärztin), "neutral" (Mensch), "adjectival" (Studierende) and
    "star" (Ärzt*in).
    """

    code = "de"
    name = "German"
    word = _WORD
    joiner = " und "

    # ---- nouns

    @cached_property
    def _nouns(self) -> dict[str, Noun]:
        """Return a mapping from lower-case forms to nouns."""
        nouns: dict[str, Noun] = {}
        gendered = self.matcher("male").words | self.matcher("female").words
        things = self.matcher("thing").words | gendered
        lines = Path(__file__).with_name("persons.txt").read_text(encoding="utf-8").splitlines()
        for line in [*lines, *self.entries("pair")]:
            if line.startswith("#"):
                continue
            masculine, feminine, *forms = re.split(r"[ /]", line)
            if masculine.lower() in things:
                continue
            # The genitive and plural may be given as endings: "Bäcker Bäckerin -s -".
            genitive, plural = (re.sub("^-", masculine, form) for form in forms)
            noun = Noun(masculine, feminine, "m", "one", "pair")
            is_weak = genitive == plural and plural != masculine
            dative_plural = plural if plural.endswith(("n", "s")) else plural + "n"
            # "Beamten" can be a genitive: "Beamter" is declined like an adjective.
            number = "any" if dative_plural == genitive else "many"
            nouns.setdefault(dative_plural.lower(), noun._replace(number=number))
            if not is_weak:
                nouns.setdefault(genitive.lower(), noun)
            # "Bäcker" can also be plural, "Patienten" any form but the nominative singular, and
            # "Beamte" the nominative after "der".
            number = "any" if plural in (masculine, masculine[:-1], genitive) else "many"
            nouns[plural.lower()] = noun._replace(number=number)
            if plural != masculine:
                nouns[masculine.lower()] = noun
        return nouns

    @cached_property
    def _masculine_of_feminine(self) -> dict[str, str]:
        """Return a mapping from lower-case feminine nouns to masculine nouns."""
        return {noun.feminine.lower(): noun.masculine for noun in self._nouns.values()}

    @cached_property
    def _neutral_nouns(self) -> dict[str, Noun]:
        nouns: dict[str, Noun] = {}
        for gender, name in (("m", "male"), ("f", "female"), ("n", "neuter")):
            for word in self.entries(f"person-{name}-noun"):
                noun = Noun(word, word, gender, "one", "neutral")
                nouns[word] = noun
                for ending in ("s", "es") if gender != "f" else ():
                    nouns.setdefault(word + ending, noun)
                for ending in _PLURAL_ENDINGS[gender]:
                    nouns.setdefault(word + ending, noun._replace(number="many"))
        for form in self.entries("person-plural"):
            nouns[form] = Noun(form, form, "m", "many", "neutral")
        nouns["menschen"] = nouns["mensch"]._replace(number="any")
        return nouns

    def noun_of(self, token: Token) -> Noun | None:
        low = token.low
        sign = _IN.search(token.text)
        if sign:
            # A gender-inclusive form: "Ärzt*in", "Kinderärzt:innen".
            stem = token.text[: sign.start()]
            number = "many" if any(sign.groups()) else "one"
            return Noun(self._masculine(stem + "in") or stem, stem + "in", "m", number, "star")
        # Nouns are capitalised, unless the entire prompt is in lower case.
        if not token.text[0].isupper() and not token.small:
            return None
        if self.is_listed(token, "thing"):
            return None
        if low in self._neutral_nouns:
            return self._neutral_nouns[low]
        if low in self._nouns:
            return self._nouns[low]
        return self._adjectival(low) or self._compound(token.text)

    def _masculine(self, feminine: str) -> str:
        """Return the masculine form of a noun or compound for a woman, or ""."""
        for start in (0, *range(2, len(feminine) - 4)):
            noun = self._masculine_of_feminine.get(feminine[start:].lower(), "")
            if noun:
                is_small = start > 0 and not feminine[start].isupper()
                return feminine[:start] + (noun.lower() if is_small else noun)
        return ""

    def _adjectival(self, low: str) -> Noun | None:
        for ending in ("er", "en", "em", "e"):
            stem = low.removesuffix(ending)
            if stem != low and self.matcher("adjectival").words & {stem}:
                stem = stem.capitalize()
                return Noun(stem, stem, "m" if ending != "e" else "mf", "any", "adjectival")
        return None

    def _compound(self, text: str) -> Noun | None:
        """Return the noun for a compound, based on its last part: "Raumfahrtingenieurs"."""
        low = text.lower()
        if low.endswith(("leute", "leuten")):
            # Plurals in -leute are neutral: "Feuerwehrleute".
            return Noun(low, low, "m", "many", "neutral")
        for start in range(2, len(low) - 3):
            part = low[start:]
            if len(part) < _SHORTEST_PART and part.rstrip("es") not in _SHORT_PARTS:
                continue
            noun = self._neutral_nouns.get(part) or self._nouns.get(part)
            if noun is None:
                continue
            is_capital = text[start].isupper()  # after a hyphen
            before = text[:start]
            masculine = noun.masculine if is_capital else noun.masculine.lower()
            feminine = noun.feminine if is_capital else noun.feminine.lower()
            return noun._replace(masculine=before + masculine, feminine=before + feminine)
        return None

    def is_feminine(self, token: Token) -> bool:
        """Return whether a word is a noun for a woman: "Ärztin", "Raumfahrtingenieurinnen"."""
        low = token.low.removesuffix("nen")
        is_noun = token.text[0].isupper() or token.small
        if not is_noun or not low.endswith(("in", "ess")) or _IN.search(token.text):
            return False
        return bool(self._masculine(low))

    def states_gender(self, tokens: Reading, i: int) -> bool:
        token = tokens[i]
        is_capital_inside = token.text[0].isupper() and not token.opens
        if is_capital_inside and self.is_listed(token, "polite"):
            return False  # A capital inside a sentence is polite: "Zeigen Sie mir ...".
        if _HIS.fullmatch(token.low) and self._owner_of(tokens, i) is not None:
            return False
        return super().states_gender(tokens, i) or self.is_feminine(token)

    def _owner_of(self, tokens: Reading, i: int) -> Phrase | None:
        """Return the only person before "sein" in its sentence: "ein Imker und seine Bienen"."""
        if tokens.after(i).low in self.entries("partner"):
            return None
        phrases = [phrase for j in range(len(tokens)) if (phrase := self.phrase_at(tokens, j))]
        # The other noun can be a woman too: "ein Koch und sein Lehrling".
        is_shared = any(phrase.article == i and phrase.is_open for phrase in phrases)
        owners = [phrase for phrase in phrases if phrase.head < i]
        return owners[0] if len(owners) == 1 and owners[0].is_open and not is_shared else None

    # ---- phrases

    def phrase_at(self, tokens: Reading, i: int) -> Phrase | None:
        is_stated = self._names_gender(tokens, i)
        noun = None if is_stated else self.noun_of(tokens[i])
        is_person = is_stated or noun is not None
        if not is_person or self._is_before_noun(tokens, i):
            return None
        phrase = self._phrase_before(tokens, i)
        if noun is None:
            # In "ein Koch und seine Frau", "seine" refers to the cook, so leave it out.
            is_possessed = phrase.article is not None and _HIS.fullmatch(tokens[phrase.first].low)
            return Phrase(phrase.first + bool(is_possessed), i, stated=True)
        if phrase.article is None:
            return self._bare(tokens, phrase, noun)
        return self._with_determiner(tokens, phrase, phrase.article, noun)

    def _is_before_noun(self, tokens: Reading, i: int) -> bool:
        """Return whether a word ending in "-er" modifies the next noun: "vor dem Kölner Dom"."""
        is_adjective = tokens[i].low.endswith("er") and not tokens[i].small
        return is_adjective and tokens.after(i).is_capitalised

    def _phrase_before(self, tokens: Reading, i: int) -> Phrase:
        """Return a phrase with a noun, its article and the adjectives before it."""
        adjectives: list[int] = []
        first = i
        while self._goes_on(tokens, first) and i - first < _LONGEST_PHRASE:
            before = tokens[first - 1]
            stem, _ = self._article(before)
            if stem:
                return Phrase(first - 1, i, article=first - 1, before=tuple(adjectives))
            if not self._describes(tokens, first - 1):
                break
            is_inflected = self._is_adjective(before) and not self.is_listed(before, "adverb")
            if is_inflected and before.low != "und":
                adjectives.insert(0, first - 1)
            first -= 1
        return Phrase(first, i, before=tuple(adjectives))

    def _goes_on(self, tokens: Reading, first: int) -> bool:
        """Return whether a phrase can continue before word `first`: "ein alter, müder Arzt"."""
        if not tokens[first].opens:
            return True
        is_comma = first > 0 and tokens.gap(first).strip() == ","
        return is_comma and all(map(self._is_adjective, tokens[first - 1 : first + 1]))

    def _names_gender(self, tokens: Reading, i: int) -> bool:
        """Return whether word i is a noun that states a gender: "Frau", "Ärztin"."""
        token = tokens[i]
        if self.is_feminine(token):
            return True
        # The lists also contain pronouns and adjectives.
        is_noun = not self.is_listed(token, "polite", "gendered-modifier")
        return is_noun and token.text[0].isupper() and self.is_listed(token, "female", "male")

    @cached_property
    def _articles(self) -> frozenset[str]:
        """Return the definite articles, including those that are contracted with a preposition."""
        return frozenset(chain(*(self.pairs(f"article-{gender}") for gender in "mfn")))

    def _article(self, token: Token) -> tuple[str, str]:
        """Split a determiner into stem and ending ("dies", "em"), which are "" for other words."""
        low = _STAR_ENDING.sub("", token.low)
        if low in self._articles:
            return low, ""
        for name in ("ein-word", "der-word"):
            for word in self.entries(name):
                ending = low.removeprefix(word)
                is_form = low.startswith(word) and ending in ("", "e", "en", "em", "er", "es")
                if is_form and (ending or name == "ein-word"):
                    return word, ending
        return "", ""

    def _describes(self, tokens: Reading, i: int) -> bool:
        """Return whether a word modifies the noun in the phrase after it."""
        token = tokens[i]
        if token.low == "und":  # as in "ein alter und müder Arzt"
            return self._is_adjective(tokens.before(i))
        if _is_capital_inside(token):
            # Abbreviations and adjectives of cities modify a noun: "IT", "Berliner".
            return token.text.isupper() or token.low.endswith("er")
        return self.is_listed(token, "adverb") or self._is_adjective(token)

    def _is_adjective(self, token: Token) -> bool:
        # Numbers are digits or words: "vier".
        is_number = token.low.isdigit() or self.number_of(token.low) is not None
        if is_number or self.is_listed(token, "no-adjective") or _is_capital_inside(token):
            return False
        return len(token.low) > 3 and token.low.endswith(("e", "en", "er", "es", "em"))

    def _with_determiner(
        self, tokens: Reading, phrase: Phrase, determiner: int, noun: Noun
    ) -> Phrase | None:
        """Return a phrase with its case, or None if the article does not fit the noun."""
        case = self._case_of(tokens[determiner], tokens[phrase.head], noun)
        is_plural = noun.number == "many"
        if noun.number == "any" and noun.kind != "star":
            low = tokens[determiner].low
            before = tokens.before(determiner)
            # The article may be a plural: "mit den Patienten", "das Foto der Bäcker".
            if case == "accusative" and self.is_listed(before, "dative-preposition"):
                return None
            if low == "der" and noun.gender == "m" and before.text[:1].isupper():
                return None
            # Other plural articles end in "-e", but "eine" is singular: "die Bäcker".
            is_plural = case is None and low.endswith("e") and low not in ("eine", "keine")
        if is_plural:
            return Phrase(determiner, phrase.head, plural=True)
        if case is None:
            return None
        stem, _ = self._article(tokens[determiner])
        declension = "ein" if stem in self.entries("ein-word") else "der"
        return phrase._replace(noun=noun, case=case, declension=declension)

    def _case_of(self, determiner: Token, head: Token, noun: Noun) -> str | None:
        """Return the case of a singular phrase, or None if the determiner does not fit."""
        if _STAR_ENDING.search(determiner.low) or noun.kind == "star":
            # The case of "eine*r Ärzt*in" is only certain at the start of a clause.
            return "nominative" if determiner.opens else None
        stem, ending = self._article(determiner)
        case_of_article = self.pairs(f"article-{noun.gender[0]}")
        if stem in case_of_article:
            return case_of_article[stem]
        if stem in self._articles:
            return None
        if noun.gender == "f":
            return {"er": "dative", "e": "nominative"}.get(ending)
        if stem in self.entries("der-word"):
            # "dieser Arzt" and "dieses Kind" are nominative, but "dieses Kindes" is a genitive.
            is_neuter = noun.gender == "n" and ending == "es" and not head.low.endswith("s")
            if ending == "er" or is_neuter:
                return "nominative"
        return _ENDINGS.get(ending)

    def _bare(self, tokens: Reading, phrase: Phrase, noun: Noun) -> Phrase | None:
        """Return a phrase without an article: "alter Arzt, 4k", "müde Bäcker", "drei Ärzte"."""
        low = tokens[phrase.head].low
        before = tokens.before(phrase.first)
        size = self.number_of(tokens.before(phrase.first).low)
        plural = Phrase(phrase.first, phrase.head, plural=True, size=size)
        is_counted = size is not None or self.is_listed(before, "plural-word")
        if is_counted or noun.number == "many":
            return plural
        if noun.kind == "adjectival" and not low.endswith("er"):
            return plural if low.endswith("e") else None
        # "Patienten" and "müde Bäcker" are not a singular in the nominative.
        is_inflected = noun.kind == "pair" and low != noun.masculine.lower()
        if phrase.before and noun.gender == "m":
            is_inflected = is_inflected or not tokens[phrase.before[-1]].low.endswith("er")
        if is_inflected:
            return plural if noun.number == "any" else None
        case = "dative" if self.is_listed(before, "dative-preposition") else "nominative"
        return phrase._replace(noun=noun, case=case, declension="none")

    # ---- writing

    def write_one(
        self, tokens: Reading, phrase: Phrase, gender: str, adjectives: Sequence[str]
    ) -> Changes:
        is_feminine = gender == "female" and phrase.noun.kind != "neutral"
        changes: Changes = {}
        if is_feminine:
            changes = self._feminine(tokens, phrase)
        elif gender:
            adjectives = [*adjectives, self.entries(f"say-{gender}")[0]]
            changes = self._without_sign(tokens, phrase)
        if not adjectives:
            return changes
        noun_gender = "f" if is_feminine else phrase.noun.gender[0]
        ending = self._ending(phrase.declension, noun_gender, phrase.case)
        position = phrase.first + (phrase.article is not None)
        position = phrase.before[-1] + 1 if phrase.before else position
        words = " ".join(word + ending for word in adjectives)
        token = tokens[position]
        is_sentence = tokens.text.rstrip().endswith((".", "!"))
        if (position == 0 and is_sentence) or tokens.text.isupper():
            words = self._like(token, words)
        changes[position] = f"{words} {changes.get(position, token.text)}"
        return changes

    def _ending(self, declension: str, gender: str, case: str) -> str:
        """Return the ending of an adjective after a kind of determiner."""
        endings = self.pairs(f"declension-{declension}")[gender]
        return endings.split(",")[_CASES.index(case)]

    def is_unsure(self, tokens: Reading, phrase: Phrase) -> bool:
        if super().is_unsure(tokens, phrase) or self._is_in_relative_clause(tokens, phrase):
            return True
        if phrase.noun.kind != "pair":
            return False
        # An unlisted compound may refer to a thing: "Scheinwerfer".
        low = phrase.noun.masculine.lower()
        is_sure = low in self._nouns or low.endswith(self.entries("sure-part"))
        return low.endswith("er") and not is_sure

    def is_genitive(self, before: Sequence[Token], phrase: Phrase) -> bool:
        return phrase.case == "genitive" or super().is_genitive(before, phrase)

    def _is_in_relative_clause(self, tokens: Reading, phrase: Phrase) -> bool:
        """Return whether a noun stands between a relative pronoun and "ist": ", der Pilot ist"."""
        is_behind_comma = tokens.gap(phrase.first).strip() == ","
        is_pronoun = self.is_listed(tokens[phrase.first], "relative")
        is_before_verb = self.is_listed(tokens.after(phrase.head), "copula")
        return is_behind_comma and is_pronoun and is_before_verb

    def write_role(self, tokens: Reading, role: Phrase, gender: str) -> Changes:
        if role.noun.kind in ("", "neutral"):
            return {}
        write = self._feminine if gender == "female" else self._without_sign
        return write(tokens, role)

    def _without_sign(self, tokens: Reading, phrase: Phrase) -> Changes:
        """Return the changes that make a gender-inclusive noun and its article masculine."""
        if phrase.noun.kind != "star":
            return {}
        changes = {phrase.head: phrase.noun.masculine}
        if phrase.article is not None:
            article = tokens[phrase.article]
            stem, _ = self._article(article)
            text = "der" if stem in self._articles else stem
            text += "er" if stem in self.entries("der-word") else ""
            changes[phrase.article] = self._like(article, text)
        return changes

    def _feminine(self, tokens: Reading, phrase: Phrase) -> Changes:
        """Return the changes that make a phrase and its relative pronoun feminine."""
        ending = self._ending(phrase.declension, "f", phrase.case)
        noun = phrase.noun.feminine
        if phrase.noun.kind == "adjectival":
            noun += ending
        changes = {phrase.head: self._like(tokens[phrase.head], noun)}
        for position in phrase.before:
            stem = re.sub(r"(?:er|en|em|es|e)$", "", tokens[position].text)
            changes[position] = stem + ending
        if phrase.article is not None:
            article = self._feminine_article(tokens[phrase.article], phrase.case)
            changes[phrase.article] = article
        for i in range(phrase.head + 1, len(tokens)):
            owner = self._owner_of(tokens, i) if _HIS.fullmatch(tokens[i].low) else None
            if owner is not None and owner.head == phrase.head:
                changes[i] = self._like(tokens[i], "ihr" + tokens[i].low.removeprefix("sein"))
        # A relative pronoun follows a comma, with or without a preposition: ", mit dem er lacht".
        i = phrase.head + 1
        if i + 1 >= len(tokens) or tokens.gap(i).strip() != ",":
            return changes
        i += self.is_listed(tokens[i], "dative-preposition", "accusative-preposition")
        feminine = self.pairs("relative-pair").get(tokens[i].low)
        if feminine and tokens.after(i).text:
            changes[i] = self._like(tokens[i], feminine)
        return changes

    def _feminine_article(self, article: Token, case: str) -> str:
        """Return a masculine determiner in the feminine: "zum" becomes "zur"."""
        stem, _ = self._article(article)
        ending = self._ending("none", "f", case)
        text = stem + ending
        if stem in self._articles:
            text = self.pairs("contracted").get(stem) or ("die" if ending == "e" else "der")
        return self._like(article, text)


def _is_capital_inside(token: Token) -> bool:
    """Return whether a word is capitalised other than at the start of a clause."""
    return token.text[0].isupper() and not token.small and not token.opens


LANGUAGE = German()
