"""German: "ein Arzt" becomes "eine Ärztin" or "ein männlicher Arzt", in the case that it has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from vldebias.prompts.language import Replacement
from vldebias.prompts.languages.base import Phrase, Reading, SpacedLanguage, Token

# A noun with a sign for all genders: "Ärzt*in", "Arzt/Ärztin", "Ärzt:innen", "ÄrztInnen".
_STAR = r"(?:[*:·]|/-?)"
_WORD = (
    r"(?:[^\W\d_]+-)*[^\W\d_]+(?:"
    + _STAR
    + r"(?:innen|in|r|n|s|m|e|er|en|em)\b|\((?:in|innen|r|n)\)|['’-][^\W\d_]+)*"
    r"(?:" + _STAR + r"(?:innen|in|r|n|s|m|e)\b|\((?:in|innen|r|n)\))?|\d+"
)
_IN = re.compile(r"(?:[*:·]|/-?)in$|\(in\)$|(?<=[a-zäöüß])In$")
_INNEN = re.compile(r"(?:[*:·]|/-?)innen$|\(innen\)$|(?<=[a-zäöüß])Innen$")
_STAR_ENDING = re.compile(r"(?:(?:[*:·]|/-?)(?:r|n|s|m|e)$)|\((?:r|n)\)$")

# Determiner -> the cases that it can have before a masculine noun in the singular.
_ENDINGS = {"": "nominative", "en": "accusative", "em": "dative", "es": "genitive"}
_DER = {"der": "nominative", "den": "accusative", "dem": "dative", "des": "genitive"}
_CONTRACTED = {"vom": "von", "zum": "zu", "beim": "bei", "im": "in", "am": "an"}
_FEMININE_CONTRACTED = {"zum": "zur"}
_DATIVE = frozenset(
    "mit von bei nach aus zu seit gegenüber neben hinter vor zwischen über auf in an".split()  # noqa: SIM905
)
_FEMININE_DER = {"nominative": "die", "accusative": "die", "dative": "der", "genitive": "der"}
_FEMININE_ENDING = {"nominative": "e", "accusative": "e", "dative": "er", "genitive": "er"}
# Endings of an adjective: by what stands before it, then by gender and case.
_STRONG = {
    "m": {"nominative": "er", "accusative": "en", "dative": "em", "genitive": "en"},
    "f": {"nominative": "e", "accusative": "e", "dative": "er", "genitive": "er"},
    "n": {"nominative": "es", "accusative": "es", "dative": "em", "genitive": "en"},
}
_MIXED = {
    "m": {"nominative": "er", "accusative": "en", "dative": "en", "genitive": "en"},
    "f": {"nominative": "e", "accusative": "e", "dative": "en", "genitive": "en"},
    "n": {"nominative": "es", "accusative": "es", "dative": "en", "genitive": "en"},
}
_WEAK = {
    "m": {"nominative": "e", "accusative": "en", "dative": "en", "genitive": "en"},
    "f": {"nominative": "e", "accusative": "e", "dative": "en", "genitive": "en"},
    "n": {"nominative": "e", "accusative": "e", "dative": "en", "genitive": "en"},
}
_DECLENSIONS = {"none": _STRONG, "ein": _MIXED, "der": _WEAK}
_RELATIVE = {"der": "die", "den": "die", "dem": "der", "dessen": "deren"}
_NEUTER_ARTICLES = {"das": "nominative", "ein": "nominative", "dem": "dative", "des": "genitive"}
_FEMININE_ARTICLES = {"die": "nominative", "eine": "nominative", "einer": "dative", "der": "dative"}
_THEY = frozenset(["sie", "ihr", "ihre", "ihren", "ihrem", "ihrer", "ihres"])
_ACCUSATIVE = frozenset(
    ["für", "ohne", "gegen", "um", "zeige", "zeichne", "male", "zeigt", "erstelle", "generiere"]
)
_HIS = re.compile("sein(?:e|en|em|er|es)?")
_SENTENCE_END = re.compile(r"[.;:!?\n]")
_PREPOSITIONS = frozenset(["mit", "an", "in", "bei", "von", "auf", "über"])
_SHORTEST_PART = 5  # letters of a noun that ends a compound
_SHORT_PARTS = frozenset(["arzt", "koch", "wirt", "held", "gast", "coach"])
_LONGEST_PHRASE = 5


class Noun(NamedTuple):
    """Hold a noun as it stands: its masculine and feminine, its gender and what it may be.

    number: "one", "many" or "any". kind: "pair", "neutral", "adjectival" or "star".
    """

    masculine: str
    feminine: str
    gender: str
    numbers: str
    kind: str


class Form(NamedTuple):
    """Hold a phrase: its noun, positions of its article and adjectives, case and declension."""

    noun: Noun
    determiner: int | None
    adjectives: tuple[int, ...]
    case: str
    declension: str


class German(SpacedLanguage):
    """Find persons in German prompts, and write a value with all that agrees."""

    code = "de"
    name = "German"
    word = _WORD
    joiner = " und "
    folder = Path(__file__).parent

    # ---- nouns

    @cached_property
    def _nouns(self) -> dict[str, Noun]:
        """Return form in small letters -> noun."""
        nouns: dict[str, Noun] = {}
        for masculine, feminine, genitive, plural in self._pairs:
            noun = Noun(masculine, feminine, "m", "one", "pair")
            is_weak = genitive == plural and plural != masculine
            dative_plural = plural if plural.endswith(("n", "s")) else plural + "n"
            nouns.setdefault(dative_plural.lower(), noun._replace(numbers="many"))
            if not is_weak:
                nouns.setdefault(genitive.lower(), noun)
                if genitive.endswith("es"):
                    nouns.setdefault(genitive[:-2].lower() + "s", noun)
            # "Bäcker" is the plural as well, "Patienten" all but the nominative.
            number = "any" if plural in (masculine, genitive) else "many"
            nouns[plural.lower()] = noun._replace(numbers=number)
            if plural != masculine:
                nouns[masculine.lower()] = noun
        return nouns

    @cached_property
    def _pairs(self) -> list[tuple[str, str, str, str]]:
        """Return masculine, feminine, genitive and plural of the nouns for persons."""
        gendered = self.matcher("male").words | self.matcher("female").words
        things = self.matcher("thing").words | gendered
        lines = (self.folder / "persons.txt").read_text(encoding="utf-8").splitlines()
        pairs: list[tuple[str, str, str, str]] = []
        for line in [*lines, *self.entries("pair")]:
            if line.startswith("#"):
                continue
            masculine, feminine, genitive, plural = re.split(r"[ /]", line)
            if masculine.lower() in things:
                continue
            forms = [masculine, feminine]
            for form in (genitive, plural):
                forms.append(masculine + form[1:] if form.startswith("-") else form)
            pairs.append((forms[0], forms[1], forms[2], forms[3]))
        return pairs

    @cached_property
    def _feminine_nouns(self) -> frozenset[str]:
        return frozenset(noun.feminine.lower() for noun in self._nouns.values())

    @cached_property
    def _neutral_nouns(self) -> dict[str, Noun]:
        nouns: dict[str, Noun] = {}
        for gender, name in (("m", "male"), ("f", "female"), ("n", "neuter")):
            for word in self.entries(f"person-{name}-noun"):
                noun = Noun(word, word, gender, "one", "neutral")
                nouns[word] = noun
                if gender != "f":
                    nouns.setdefault(word + "s", noun)
                    nouns.setdefault(word + "es", noun)
                many = noun._replace(numbers="many")
                plurals: tuple[str, ...] = {"m": ("e", "en"), "f": ("en", "n"), "n": ("er", "ern")}[
                    gender
                ]
                if word.endswith("kraft"):
                    plurals = ()
                    nouns[word[:-5] + "kräfte"] = many
                    nouns[word[:-5] + "kräften"] = many
                for ending in plurals:
                    nouns.setdefault(word + ending, many)
        for form in (
            "menschen",
            "babys",
            "models",
            "stars",
            "fans",
            "teenager",
            "azubis",
            "profis",
        ):
            nouns[form] = Noun(
                form, form, "n" if form in ("babys", "models") else "m", "many", "neutral"
            )
        nouns["menschen"] = nouns["mensch"]._replace(numbers="any")
        nouns["gäste"] = nouns["gästen"] = nouns["gast"]._replace(numbers="many")
        return nouns

    def noun_of(self, token: Token) -> Noun | None:
        """Return the noun of a person that a word is a form of, or None."""
        low = token.low
        has_sign = _IN.search(token.text) or _INNEN.search(token.text)
        if has_sign:
            return self._noun_with_sign(token.text)
        # Nouns have capitals; in a prompt without any, small letters say nothing.
        if not token.text[0].isupper() and not token.small:
            return None
        if self.matcher("thing").has(token):
            return None
        if low in self._neutral_nouns:
            return self._neutral_nouns[low]
        if low in self._nouns:
            return self._nouns[low]
        return self._adjectival(low) or self._compound(token.text)

    def _noun_with_sign(self, text: str) -> Noun | None:
        number = "many" if _INNEN.search(text) else "one"
        stem = _INNEN.sub("", _IN.sub("", text))
        feminine = stem + "in"
        masculine = self._masculine_of(feminine)
        return Noun(masculine, feminine, "m", number, "star") if masculine else None

    def _masculine_of(self, feminine: str) -> str:
        low = feminine.lower()
        for start in range(len(low) - 4):
            noun = self._masculine_of_feminine.get(low[start:])
            if noun:
                if start == 0:
                    return noun
                return feminine[:start] + (noun if feminine[start].isupper() else noun.lower())
        return feminine[:-2]

    @cached_property
    def _masculine_of_feminine(self) -> dict[str, str]:
        return {noun.feminine.lower(): noun.masculine for noun in self._nouns.values()}

    def _adjectival(self, low: str) -> Noun | None:
        for ending in ("er", "en", "em", "e"):
            stem = low.removesuffix(ending)
            if stem != low and self.matcher("adjectival").words & {stem}:
                stem = stem.capitalize()
                return Noun(stem, stem, "m" if ending != "e" else "mf", "any", "adjectival")
        return None

    def _compound(self, text: str) -> Noun | None:
        """Return the noun of a compound by its last part: "Raumfahrtingenieurs"."""
        low = text.lower()
        if low.endswith(("leute", "leuten")):
            return Noun(low, low, "m", "many", "neutral")  # "Feuerwehrleute"
        for start in range(2, len(low) - 3):
            part = low[start:]
            if len(part) < _SHORTEST_PART and part.rstrip("es") not in _SHORT_PARTS:
                continue
            noun = self._nouns.get(part) or self._neutral_nouns.get(part)
            if noun is None:
                continue
            is_capital = text[start].isupper()  # behind a hyphen
            before = text[:start]
            masculine = noun.masculine if is_capital else noun.masculine.lower()
            feminine = noun.feminine if is_capital else noun.feminine.lower()
            return noun._replace(masculine=before + masculine, feminine=before + feminine)
        return None

    def is_feminine(self, token: Token) -> bool:
        """Return whether a word is a noun for a woman: "Ärztin", "Raumfahrtingenieurinnen"."""
        if _IN.search(token.text) or _INNEN.search(token.text):
            return False
        low = token.low.removesuffix("nen")
        if not low.endswith(("in", "ess")):
            return False
        if not token.text[0].isupper() and not token.small:
            return False
        if low in self._feminine_nouns:
            return True
        return any(low[start:] in self._feminine_nouns for start in range(2, len(low) - 5))

    def states_gender(self, tokens: Reading, i: int) -> bool:
        """Return whether word i states a gender."""
        token = tokens[i]
        if token.low in _THEY:
            # "Zeigen Sie mir ...": the polite form has a capital inside of a sentence.
            if token.text[0].isupper() and i and not token.opens:
                return False
        if token.low == "sein" and (i + 1 == len(tokens) or tokens[i + 1].opens):
            return False  # the verb
        if _HIS.fullmatch(token.low) and self._follows_neutral(tokens, i):
            return False
        if self.matcher("female").has(token) or self.matcher("male").has(token):
            return not self.matcher("not-stated").has(token)
        return self.is_feminine(token) or self._is_feminine_adjectival(tokens, i)

    def _is_feminine_adjectival(self, tokens: Reading, i: int) -> bool:
        """Return whether an adjective that is a noun is of a woman: "eine junge Studierende"."""
        if not tokens[i].low.endswith("e") or not tokens[i].text[0].isupper():
            return False
        if self._adjectival(tokens[i].low) is None:
            return False
        j = i
        while j and not tokens[j].opens and i - j < _LONGEST_PHRASE:
            j -= 1
            if self._determines(tokens[j]):
                return tokens[j].low in ("die", "eine", "diese", "keine", "meine", "ihre", "seine")
            if not self._is_adjective(tokens[j]):
                return False
        return False

    def _follows_neutral(self, tokens: Reading, i: int) -> bool:
        """Return whether "sein" agrees with a neutral noun: "ein Kind mit seinem Hund"."""
        for j in range(i - 1, -1, -1):
            if _SENTENCE_END.search(tokens.gap(j + 1)):
                return False
            phrase = self.phrase_at(tokens, j)
            if phrase is not None:
                return phrase.form is not None and phrase.form.noun.kind == "neutral"
        return False

    # ---- phrases

    def phrase_at(self, tokens: Reading, i: int) -> Phrase | None:
        """Return the phrase whose noun is word i, or None where it is no person."""
        token = tokens[i]
        is_stated = self.is_feminine(token) or self._is_gendered_noun(token)
        is_stated = is_stated or self._is_feminine_adjectival(tokens, i)
        noun = (
            Noun(token.text, token.text, "f", "one", "stated") if is_stated else self.noun_of(token)
        )
        if noun is None or self._is_modifier(tokens, i):
            return None
        adjectives: list[int] = []
        first = i
        while self._goes_on(tokens, first) and i - first < _LONGEST_PHRASE:
            before = tokens[first - 1]
            if self._determines(before):
                if is_stated:
                    # "seine" of "ein Koch und seine Frau" says that the cook is a man.
                    is_possessed = _HIS.fullmatch(before.low) is not None
                    return Phrase(first if is_possessed else first - 1, i, None, stated=True)
                return self._with_determiner(tokens, first - 1, adjectives, i, noun)
            if not self._describes(tokens, first - 1):
                break
            is_inflected = self._is_adjective(before) and not self.matcher("adverb").has(before)
            if (
                is_inflected
                and not self._has_hyphen_behind(tokens, first - 1)
                and before.low != "und"
            ):
                adjectives.insert(0, first - 1)
            first -= 1
        if is_stated:
            return Phrase(first, i, None, stated=True)
        return self._bare(tokens, first, adjectives, i, noun)

    def _goes_on(self, tokens: Reading, first: int) -> bool:
        """Return whether a phrase can begin before word `first`: "ein alter, müder Arzt"."""
        if not tokens[first].opens:
            return True
        is_comma = first > 0 and tokens.gap(first).strip() == ","
        return (
            is_comma and self._is_adjective(tokens[first]) and self._is_adjective(tokens[first - 1])
        )

    def _is_gendered_noun(self, token: Token) -> bool:
        if token.low in _THEY or token.low.startswith(
            ("sein", "ihr", "ihm", "männlich", "weiblich")
        ):
            return False
        if not token.text[0].isupper():
            return False
        return self.matcher("female").has(token) or self.matcher("male").has(token)

    def _is_modifier(self, tokens: Reading, i: int) -> bool:
        """Return whether a noun stands before its head: "der Berliner Arzt"."""
        token = tokens[i]
        if i + 1 == len(tokens) or tokens[i + 1].opens or token.small:
            return False
        after = tokens[i + 1]
        is_noun_behind = after.text[0].isupper() and self.noun_of(after) is not None
        return is_noun_behind and token.low.endswith("er")

    def _article(self, token: Token) -> tuple[str, str]:
        """Return the stem and ending of an article: "dies", "em"; two empty texts for none."""
        low = _STAR_ENDING.sub("", token.low)
        if low in _DER or low in ("die", "das", "zur") or low in _CONTRACTED:
            return low, ""
        for name in ("ein-word", "der-word"):
            for word in self.entries(name):
                ending = low.removeprefix(word)
                is_form = low.startswith(word) and ending in ("", "e", "en", "em", "er", "es")
                if is_form and (ending or name == "ein-word"):
                    return word, ending
        return "", ""

    def _determines(self, token: Token) -> bool:
        stem, _ = self._article(token)
        return bool(stem)

    def _has_hyphen_behind(self, tokens: Reading, i: int) -> bool:
        return tokens.text[tokens[i].end : tokens[i].end + 1] == "-"

    def _describes(self, tokens: Reading, i: int) -> bool:
        """Return whether a word belongs to the phrase behind it, as adjectives do."""
        token = tokens[i]
        if self._has_hyphen_behind(tokens, i) or self.matcher("adverb").has(token):
            return True
        if token.low == "und":
            # "alter und müder", "Luft- und Raumfahrtingenieur".
            if token.opens or not i:
                return False
            return self._has_hyphen_behind(tokens, i - 1) or self._is_adjective(tokens[i - 1])
        if token.text[0].isupper() and not token.small and not token.opens:
            if token.text.isupper() or token.low.endswith("er"):
                return True  # "IT", "Berliner"
            # "eines Community Managers": a noun directly behind an article and before a noun.
            return bool(i) and self._determines(tokens[i - 1]) and self.noun_of(token) is None
        return self._is_adjective(token)

    def _is_adjective(self, token: Token) -> bool:
        if self.matcher("no-adjective").has(token) or token.low.isdigit():
            return False
        if token.low in self._numbers:
            return False  # "vier"
        if token.text[0].isupper() and not token.small and not token.opens:
            return False
        return len(token.low) > 3 and token.low.endswith(("e", "en", "er", "es", "em"))

    @cached_property
    def _numbers(self) -> frozenset[str]:
        return frozenset("/".join(self.entries("number")).split("/"))

    def _with_determiner(
        self, tokens: Reading, determiner: int, adjectives: list[int], i: int, noun: Noun
    ) -> Phrase | None:
        if noun.numbers == "many":
            return Phrase(determiner, i, None, plural=True)
        case = self._case_of(tokens, determiner, noun)
        low = tokens[determiner].low
        if noun.numbers == "any" and noun.kind != "star":
            # "die Bäcker", "meine Bäcker"; "eine Leiter" is a thing.
            is_plural = case is None and low.endswith("e") and low not in ("eine", "keine")
            if low == "der" and noun.gender == "m":
                is_plural = self._is_plural_genitive(tokens, determiner, adjectives)
            if low == "den" or low.endswith(("seinen", "ihren", "meinen", "unseren")):
                # "mit den Patienten", "den Bäckern", "mit seinen Patienten".
                is_plural = not tokens[determiner].opens and tokens[determiner - 1].low in _DATIVE
            if is_plural:
                return Phrase(determiner, i, None, plural=True)
        if case is None:
            return None
        stem, _ = self._article(tokens[determiner])
        declension = "ein" if stem in self.entries("ein-word") else "der"
        form = Form(noun, determiner, tuple(adjectives), case, declension)
        return Phrase(determiner, i, form)

    def _is_plural_genitive(self, tokens: Reading, determiner: int, adjectives: list[int]) -> bool:
        """Return whether "der" is of a genitive in the plural: "das Foto der Bäcker"."""
        if adjectives:
            return tokens[adjectives[-1]].low.endswith("en")
        return not tokens[determiner].opens and tokens[determiner - 1].text[0].isupper()

    def _case_of(self, tokens: Reading, determiner: int, noun: Noun) -> str | None:
        """Return the case of a phrase in the singular; None where the article does not fit."""
        token = tokens[determiner]
        if _STAR_ENDING.search(token.low) or noun.kind == "star":
            return self._case_by_place(tokens, determiner)
        stem, ending = self._article(token)
        if stem in _CONTRACTED:
            return None if noun.gender == "f" else "dative"
        case = _ENDINGS.get(ending)
        if noun.gender == "f":
            is_dative = stem in ("zur", "der") or ending == "er"
            is_nominative = stem == "die" or ending == "e"
            case = "dative" if is_dative else "nominative" if is_nominative else None
        elif stem in ("die", "das", "zur", "der", "den", "dem", "des"):
            fits = {"m": _DER, "n": {"das": "nominative", "dem": "dative", "des": "genitive"}}
            case = fits[noun.gender[0]].get(stem)
        elif stem in self.entries("der-word") and ending == "er":
            case = "nominative"
        return case

    def _case_by_place(self, tokens: Reading, position: int) -> str:
        """Return the case of "eine*r Ärzt*in", which its article does not show."""
        if tokens[position].opens:
            return "nominative"
        before = tokens[position - 1]
        if before.low in _DATIVE or before.low in _CONTRACTED:
            return "dative"
        if before.low in _ACCUSATIVE:
            return "accusative"
        return "genitive" if before.text[0].isupper() else "nominative"

    def _bare(
        self, tokens: Reading, first: int, adjectives: list[int], i: int, noun: Noun
    ) -> Phrase | None:
        """Return a phrase without an article: "alter Arzt, 4k", "müde Bäcker", "drei Ärzte"."""
        size = self.number_before(tokens, first)
        plural = Phrase(first, i, None, plural=True, size=size)
        if size is not None or noun.numbers == "many":
            return plural
        before = None if tokens[first].opens else tokens[first - 1]
        if before is not None and self.matcher("plural-word").has(before):
            return plural
        if noun.kind == "adjectival" and not tokens[i].low.endswith("er"):
            return plural if tokens[i].low.endswith("e") else None
        is_base_form = tokens[i].low == noun.masculine.lower()
        if noun.kind == "pair" and not is_base_form:
            return plural if noun.numbers == "any" else None
        if adjectives and noun.gender == "m" and not tokens[adjectives[-1]].low.endswith("er"):
            return plural if noun.numbers == "any" else None
        is_dative = before is not None and before.low in _DATIVE
        case = "dative" if is_dative else "nominative"
        return Phrase(first, i, Form(noun, None, tuple(adjectives), case, "none"))

    # ---- writing

    def write_one(
        self, tokens: Reading, phrase: Phrase, words: Mapping[str, str]
    ) -> list[Replacement]:
        """Return the replacements that say values of one person."""
        form: Form = phrase.form
        gender = words.get("gender", "")
        is_feminine = gender == "female" and form.noun.kind != "neutral"
        adjectives = [word for kind, word in words.items() if kind != "gender"]
        if gender and not is_feminine:
            adjectives += self.entries(f"say-{gender}")[:1]
        changes: list[Replacement] = []
        if is_feminine:
            changes += self._feminine(tokens, phrase, form)
        elif form.noun.kind == "star" and gender:
            changes += self._without_sign(tokens, phrase, form)
        if adjectives:
            noun_gender = "f" if is_feminine else form.noun.gender[0]
            changes += self._adjectives_before(tokens, phrase, adjectives, noun_gender)
            changes = _joined(changes)
        return changes

    def _adjectives_before(
        self, tokens: Reading, phrase: Phrase, words: list[str], gender: str
    ) -> list[Replacement]:
        """Return adjectives written before the noun, and before what is part of it: "Luft- und"."""
        form: Form = phrase.form
        ending = _DECLENSIONS[form.declension][gender][form.case]
        texts: list[str] = []
        for word in words:
            texts.append(word + ending)
        if form.adjectives:
            position = form.adjectives[-1] + 1
        else:
            position = phrase.first + (form.determiner is not None)
            while self.matcher("adverb").has(tokens[position]):
                position += 1
        return [self.insert(tokens, position, " ".join(texts))]

    def is_role(self, tokens: Reading, person: Phrase, phrase: Phrase) -> bool:
        """Return whether a phrase says what the person before it is: "..., der Pilot ist" too."""
        if super().is_role(tokens, person, phrase):
            return True
        return not person.plural and self._is_in_relative_clause(tokens, phrase)

    def _is_in_relative_clause(self, tokens: Reading, phrase: Phrase) -> bool:
        """Return whether a noun stands between a relative pronoun and "ist": ", der Pilot ist"."""
        behind = phrase.head + 1
        first = phrase.first
        if behind >= len(tokens) or phrase.head != first + 1:
            return False
        is_behind_comma = first > 0 and tokens.gap(first).strip() == ","
        is_pronoun = self.matcher("relative").has(tokens[first])
        is_last = behind + 1 == len(tokens) or tokens[behind + 1].opens
        is_verb = self.matcher("copula").has(tokens[behind]) and not tokens[behind].opens
        return is_behind_comma and is_pronoun and is_verb and is_last

    def write_role(self, tokens: Reading, role: Phrase, gender: str) -> list[Replacement]:
        """Return "als Pilotin" of a woman, and "als Pilot" of a man, whatever sign it has."""
        form: Form | None = role.form
        if form is None or form.noun.kind == "neutral":
            return []
        if self._is_in_relative_clause(tokens, role):
            # The pronoun agrees with the person: "ein weiblicher Mensch, der Pilotin ist".
            form = form._replace(determiner=None)
        if gender == "female":
            return self._feminine(tokens, role, form)
        return self._without_sign(tokens, role, form) if form.noun.kind == "star" else []

    def keeps_capital(self, token: Token) -> bool:
        """Return True: nouns and adjectives before them keep what they have."""
        return True

    def _without_sign(self, tokens: Reading, phrase: Phrase, form: Form) -> list[Replacement]:
        """Return the masculine noun and article in the place of those with a sign."""
        token = tokens[phrase.head]
        noun = self._declined(form.noun.masculine, form.case)
        changes = [Replacement(token.start, token.end, noun)]
        if form.determiner is not None:
            article = tokens[form.determiner]
            stem, _ = self._article(article)
            if stem in _DER or stem == "die":
                text = {case: word for word, case in _DER.items()}[form.case]
            else:
                text = stem + {case: ending for ending, case in _ENDINGS.items()}[form.case]
                if stem in self.entries("der-word") and form.case == "nominative":
                    text = stem + "er"
            changes.append(Replacement(article.start, article.end, self.like(article, text)))
        return changes

    def _declined(self, masculine: str, case: str) -> str:
        """Return a masculine noun in the singular in a case."""
        if case == "nominative":
            return masculine
        for start in range(len(masculine) - 2):
            forms = self._forms_of_noun.get(masculine[start:].lower())
            if forms is None:
                continue
            genitive, plural = forms
            is_weak = genitive == plural and genitive != masculine[start:].lower()
            if is_weak:
                return masculine + genitive[len(masculine) - start :]
            return (
                masculine + genitive[len(masculine) - start :] if case == "genitive" else masculine
            )
        return masculine + "s" if case == "genitive" else masculine

    @cached_property
    def _forms_of_noun(self) -> dict[str, tuple[str, str]]:
        """Return noun -> its genitive and plural, all in small letters."""
        forms_of_noun: dict[str, tuple[str, str]] = {}
        for masculine, _, genitive, plural in self._pairs:
            forms_of_noun[masculine.lower()] = (genitive.lower(), plural.lower())
        return forms_of_noun

    def _feminine(self, tokens: Reading, phrase: Phrase, form: Form) -> list[Replacement]:
        """Return the phrase in the feminine: noun, adjectives, article, relative pronoun."""
        token = tokens[phrase.head]
        endings = _DECLENSIONS[form.declension]["f"]
        noun = form.noun.feminine
        if form.noun.kind == "adjectival":
            noun += endings[form.case]
        changes = [Replacement(token.start, token.end, self.like(token, noun))]
        for position in form.adjectives:
            word = tokens[position]
            stem = re.sub(r"(?:er|en|em|es|e)$", "", word.text)
            changes.append(Replacement(word.start, word.end, stem + endings[form.case]))
        if form.determiner is not None:
            article = tokens[form.determiner]
            text = self.like(article, self._feminine_article(article, form.case))
            changes.append(Replacement(article.start, article.end, text))
        return changes + self._relative(tokens, phrase.head)

    def _feminine_article(self, article: Token, case: str) -> str:
        stem, _ = self._article(article)
        if stem in _DER or stem in ("die", "das"):
            return _FEMININE_DER[case]
        if stem in _CONTRACTED:
            return _FEMININE_CONTRACTED.get(stem, f"{_CONTRACTED[stem]} der")
        return stem + _FEMININE_ENDING[case]

    def _relative(self, tokens: Reading, head: int) -> list[Replacement]:
        """Return the change of a relative pronoun behind a noun: "ein Arzt, der lacht"."""
        i = head + 1
        if i + 1 >= len(tokens) or tokens.gap(i).strip() != ",":
            return []
        if tokens[i].low in _PREPOSITIONS:
            i += 1  # "ein Arzt, mit dem ..."
        token = tokens[i]
        if token.low not in _RELATIVE or tokens[i + 1].opens:
            return []
        return [Replacement(token.start, token.end, self.like(token, _RELATIVE[token.low]))]


def _joined(changes: list[Replacement]) -> list[Replacement]:
    """Return changes in which words written at the start of a replaced word stand before it."""
    joined: list[Replacement] = []
    for change in sorted(changes):
        if joined and joined[-1].start == change.start:
            inserted = joined.pop()
            change = Replacement(change.start, change.end, inserted.text + change.text)
        joined.append(change)
    return joined


LANGUAGE = German()
