"""Romance languages, in which articles and adjectives agree with the noun.

"Un infirmier fatigué" becomes "une infirmière fatiguée" or "un infirmier homme fatigué".
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from vldebias.wording.language import Replacement
from vldebias.wording.languages.base import Changes, Noun, Phrase, Reading, SpacedLanguage, Token
from vldebias.wording.languages.detection import GENDER_SIGN, without_gender_sign

_LONGEST_PHRASE = 4


class RomanceLanguage(SpacedLanguage):
    """Find people in prompts in a Romance language, and insert values with the required agreement.

    Entries in the `person` list are "masculine/feminine", or a single form for both genders.

    Args:
        code: the ISO 639 code.
        name: the English name of the language.
        joiner: the word for "and", with spaces.
    """

    word = (
        r"[^\W\d_]+['\u2019](?=[^\W\d_])|[^\W\d_]+(?:-[^\W\d_]+)*"
        + rf"(?:{GENDER_SIGN}|[@*](?!\w))?|\d+"
    )

    def plain(self, word: str) -> str:
        """Return the masculine of a gender-inclusive form such as "médico/a" or "médic@"."""
        masculine = without_gender_sign(word)
        if masculine == word and word.endswith(("@", "*", "\u0259")):
            forms = (word[:-1], word[:-1] + "o", word[:-1] + "e")
            known = [form for form in forms if form in self.pairs("article") or form in self.nouns]
            masculine = known[0] if known else word
        return masculine

    def __init__(self, code: str, name: str, joiner: str) -> None:
        self.code = code
        self.name = name
        self.joiner = joiner

    # ---- words

    def feminine_of(self, word: str) -> str:
        """Return the feminine singular of an adjective or noun, or "" if it is uncertain."""
        listed = self.pairs("adjective-pair").get(word)
        if listed:
            return listed
        for ending, feminine in self.pairs("ending").items():  # the longest first
            if word.endswith(ending):
                return word.removesuffix(ending) + feminine
        return word if word.endswith(self.entries("same-ending")) else ""

    @cached_property
    def nouns(self) -> dict[str, Noun]:
        """Return a mapping from masculine forms, singular or plural, to nouns."""
        nouns: dict[str, Noun] = {}
        for entry in self.entries("person"):
            masculine, _, feminine = entry.partition("/")
            feminine = feminine or self.feminine_of(masculine) or masculine
            noun = Noun(masculine, feminine, "mf" if masculine == feminine else "m")
            self._add(nouns, masculine, noun)
        for name, gender in (("person-feminine", "f"), ("person-masculine", "m!")):
            for word in self.entries(name):
                self._add(nouns, word, Noun(word, word, gender))
        return nouns

    def _add(self, nouns: dict[str, Noun], form: str, noun: Noun) -> None:
        for plural in self.inflected(form, "plural"):
            nouns.setdefault(plural, noun._replace(number="many"))
        nouns[form] = noun

    @cached_property
    def feminine_nouns(self) -> frozenset[str]:
        """Return the nouns for women, in the singular and plural."""
        not_stated = self.matcher("not-stated").words
        forms: set[str] = set()
        for noun in self.nouns.values():
            if noun.gender == "m" and noun.number == "one" and noun.feminine not in not_stated:
                forms.update((noun.feminine, *self.inflected(noun.feminine, "plural")))
        return frozenset(forms - not_stated - self.nouns.keys())

    def noun_of(self, token: Token) -> Noun | None:
        return self.nouns.get(token.low)

    def states_gender(self, tokens: Reading, i: int) -> bool:
        token = tokens[i]
        if super().states_gender(tokens, i):
            return True
        if token.low in self.feminine_nouns and not self.matcher("thing").has_at(tokens, i):
            # In "la persona anziana", "anziana" is an adjective, and "persona" is always feminine.
            described = self.nouns.get(tokens.before(i).low)
            if described is None or described.gender != "f":
                return True
        noun = self.nouns.get(token.low)
        if noun is None or noun.gender != "mf":
            return False
        # In "una periodista", only the article states the gender.
        article = self._phrase_before(tokens, i).article
        return article is not None and self.is_listed(tokens[article], "feminine-article")

    def is_named(self, tokens: Reading, phrases: list[Phrase]) -> bool:
        heads = [phrase.head for phrase in phrases if tokens.after(phrase.head).text]
        # A name follows the title: "presidente Lincoln".
        is_title = any(self._is_name(tokens, head + 1) for head in heads)
        return is_title or super().is_named(tokens, phrases)

    # ---- phrases

    def phrase_at(self, tokens: Reading, i: int) -> Phrase | None:
        token = tokens[i]
        # A noun before another noun may be its adjective: "joven" in "un joven pintor".
        is_adjective = self.is_listed(token, "adjective-before") and self.noun_of(tokens.after(i))
        if is_adjective or self._is_thing(tokens, i):
            return None
        phrase = self._phrase_before(tokens, i)
        noun = self.noun_of(token)
        is_feminine = token.low in self.feminine_nouns
        is_for_one_gender = is_feminine or self.is_listed(token, "gendered-noun")
        if is_for_one_gender or (noun is not None and self.states_gender(tokens, i)):
            return Phrase(phrase.first, i, stated=True)
        if noun is None or self._says_kind(tokens, phrase):
            return None
        size = self.number_of(tokens.before(phrase.first).low)
        if noun.number == "many" or size is not None:
            return Phrase(phrase.first, i, plural=True, size=size)
        return self._single_phrase(tokens, phrase, noun)

    def _is_thing(self, tokens: Reading, i: int) -> bool:
        """Return whether a word refers to a thing: "une cuisinière à gaz"."""
        things = self.matcher("thing")
        return things.has_at(tokens, i) or (i > 0 and things.length_at(tokens, i - 1) > 1)

    def _phrase_before(self, tokens: Reading, i: int) -> Phrase:
        """Return a phrase with a noun, its article and the adjectives before it."""
        first = self._first_adjective(tokens, i)
        conjunctions = self.entries("and")
        adjectives = tuple(j for j in range(first, i) if tokens[j].low not in conjunctions)
        if self._is_article(tokens.before(first)):
            return Phrase(first - 1, i, article=first - 1, before=adjectives)
        return Phrase(first, i, before=adjectives)

    def _first_adjective(self, tokens: Reading, i: int) -> int:
        """Return the position of the first adjective before a noun: "un alto jugador"."""
        first = i
        while not tokens[first].opens and i - first < _LONGEST_PHRASE:
            word = tokens[first - 1]
            is_adjective = self.is_listed(word, "adjective-before")
            if not is_adjective and not word.opens and self._is_article(tokens[first - 2]):
                is_noun = self._is_article(word) or self.noun_of(word) is not None
                is_adjective = self.is_adjective(word) and not is_noun
            if not is_adjective:
                break
            first -= 1
            # A conjunction joins two adjectives before the noun: "un viejo y cansado pescador".
            is_joined = first > 1 and tokens[first - 1].low in self.entries("and")
            if is_joined and self.is_listed(tokens[first - 2], "adjective-before"):
                first -= 1
        return first

    def _single_phrase(self, tokens: Reading, phrase: Phrase, noun: Noun) -> Phrase | None:
        """Return the phrase for one person, or None if the article or position does not fit."""
        opening = tokens[phrase.first]
        if phrase.article is not None:
            is_feminine = self.is_listed(opening, "feminine-article")
            is_either = opening.low.endswith("'") or self.is_listed(opening, "any-article")
            if is_feminine != (noun.gender == "f") and not is_either:
                return None
        elif noun.gender == "f" and not tokens.after(phrase.head).text:
            return None  # The word means "nobody" here: "une rue vide, personne".
        elif not opening.opens and not self.is_listed(tokens[phrase.first - 1], "bare-after"):
            # Without an article, a noun inside a clause may not name a person ("pez payaso").
            return None
        fixed = self.matcher("fixed-complement").length_at(tokens, phrase.head + 1)
        behind = self._adjectives_behind(tokens, phrase.head + fixed)
        phrase = phrase._replace(noun=noun, behind=behind)
        return phrase._replace(apart=self._adjectives_apart(tokens, phrase.last))

    def _is_unsure_apart(self, tokens: Reading, phrase: Phrase) -> bool:
        """Return whether a later adjective may describe the person: "técnico de som cansado"."""
        for i in range(phrase.last + 1, len(tokens)):
            token = tokens[i]
            if token.opens or self.noun_of(token):
                break
            noun = tokens[i - 1]
            lists = ("behind-noun", "no-adjective", "adverb", "copula", "of")
            is_function_word = self._is_article(noun) or self.is_listed(noun, *lists)
            is_noun = not is_function_word and not noun.low.endswith(self.entries("gerund-ending"))
            is_kind = tokens[i - 2].low in self.entries("of-kind")
            may_agree = self._is_participle(token) or (is_kind and self.is_adjective(token))
            agrees = may_agree and self.feminine_of(token.low) != token.low
            # In "un ouvrier du bâtiment casqué", either noun may be described.
            is_behind_complement = i == phrase.last + 3
            is_own = is_behind_complement or not self._is_masculine_article(tokens[i - 2])
            is_own = is_own and i > phrase.last + 1
            if agrees and is_own and is_noun and i not in phrase.apart:
                return True
        return False

    def _says_kind(self, tokens: Reading, phrase: Phrase) -> bool:
        """Return whether a noun only modifies the noun before it: "agente de policía"."""
        link = tokens.before(phrase.first).low
        is_kind = phrase.article is None and link in self.entries("of-kind")
        return is_kind and self.noun_of(tokens.before(phrase.first - 1)) is not None

    def _is_article(self, token: Token) -> bool:
        is_other = self.is_listed(token, "any-article", "feminine-article")
        return is_other or token.low in self.pairs("article")

    def _is_masculine_article(self, token: Token) -> bool:
        return self._is_article(token) and not self.is_listed(token, "feminine-article")

    def _adjectives_behind(self, tokens: Reading, i: int) -> tuple[int, ...]:
        """Return the adjectives directly after a noun: "un médico cansado y solo"."""
        behind: list[int] = []
        while tokens.after(i).text:
            i += 1
            token = tokens[i]
            is_and = bool(behind) and token.low in self.entries("and")
            if is_and or self.is_listed(token, "adverb"):
                # Only continue if another adjective follows: "y solo".
                if self.is_adjective(tokens.after(i)):
                    continue
            if not self.is_adjective(token):
                break
            behind.append(i)
        return tuple(behind)

    def _adjectives_apart(self, tokens: Reading, last: int) -> tuple[int, ...]:
        """Return predicates, participles after a comma or "and", and words such as "sentado"."""
        apart: list[int] = []
        for i in range(last + 1, len(tokens)):
            token = tokens[i]
            if tokens.opens_sentence(i) or self.noun_of(token):
                break
            is_opening = token.opens and "," in tokens.gap(i)
            is_joined = tokens[i - 1].low in self.entries("and") and i - 2 in (last, *apart)
            is_apposition = (is_opening or is_joined) and self._is_participle(token)
            is_predicate = self._is_predicate(tokens, i, last)
            if is_apposition or is_predicate or self._follows_complement(tokens, i, last):
                apart.append(i)
        return tuple(apart)

    def _is_predicate(self, tokens: Reading, i: int, last: int) -> bool:
        """Return whether a copula links word i to the noun: "el médico está muy cansado"."""
        if not self.is_listed(tokens.after(last), "copula") or not self.is_adjective(tokens[i]):
            return False
        return i == last + 2 or (i == last + 3 and self.is_listed(tokens[i - 1], "adverb"))

    def _follows_complement(self, tokens: Reading, i: int, last: int) -> bool:
        """Return whether an adjective behind the noun's complement describes the person."""
        token = tokens[i]
        # The adjective agrees with the first noun: "um ladrão de bancos mascarado".
        if i == last + 3 and tokens[i - 1].low.endswith("s") and self._is_participle(token):
            return True
        # Only a person can be "assis": "un chevalier sans armure assis".
        is_own = token.opens or not self._is_masculine_article(tokens.before(i - 1))
        return is_own and self.is_listed(token, "of-person")

    def _is_participle(self, token: Token) -> bool:
        return token.low.endswith(self.entries("participle-ending")) and self.is_adjective(token)

    def is_adjective(self, token: Token) -> bool:
        """Return whether a word after a noun is an adjective."""
        if len(token.low) < 3 or token.low.isdigit() or token.is_capitalised:
            return False
        if self.is_listed(token, "no-adjective"):
            return False
        is_listed = self.is_listed(token, "adjective", "quality")
        if is_listed or token.low in self.pairs("adjective-pair"):
            return True
        if token.low.endswith(self.entries("no-adjective-ending")):
            return False
        masculine = self.entries("adjective-ending") or tuple(self.pairs("ending"))
        return token.low.endswith((*masculine, *self.entries("feminine-adjective-ending")))

    # ---- writing

    def write_one(
        self, tokens: Reading, phrase: Phrase, gender: str, adjectives: Sequence[str]
    ) -> Changes:
        changes: Changes = {}
        marker = ""
        if gender:
            changes, marker = self._write_gender(tokens, phrase, gender)
        is_feminine = gender == "female" if changes else phrase.noun.gender == "f"
        words = [self.feminine_of(word) or word if is_feminine else word for word in adjectives]
        words += [marker] if marker else []
        if words:
            place = self._place_behind(tokens, phrase)
            text = " ".join([changes.get(place, tokens[place].text), *words])
            changes[place] = text.upper() if tokens.text.isupper() else text
        return changes

    def _write_gender(self, tokens: Reading, phrase: Phrase, gender: str) -> tuple[Changes, str]:
        """Return the changes for a gender, and the word to add after the noun, if needed."""
        changes: Changes = {}
        marker = ""
        noun = phrase.noun
        if noun.gender in ("f", "m!"):
            changes = self._as_human(tokens, phrase, gender)
            marker = "" if changes else self.entries(f"sex-{gender}")[0]
        elif gender == "male":
            marker = self._word_behind(noun, "boy", "male")
        else:
            changes = self._agree(tokens, phrase) or {}
            # The article states the gender in "una pianista", but not in "l'artiste femme".
            if noun.gender == "mf" and phrase.article not in changes:
                marker = self._word_behind(noun, "girl", "female")
        self._drop_signs(tokens, phrase, changes)
        return changes, marker

    def _drop_signs(self, tokens: Reading, phrase: Phrase, changes: Changes) -> None:
        """Change "médico/a" to the masculine, unless it was changed to the feminine."""
        for i in (*range(phrase.first, phrase.last + 1), *phrase.apart):
            token = tokens[i]
            has_sign = token.low != token.text.lower().replace("\u2019", "'")
            if has_sign and i not in changes:
                changes[i] = self._like(token, token.low)

    def _word_behind(self, noun: Noun, young: str, grown: str) -> str:
        """Return the gender word for a noun: "un bambino maschio", "un medico uomo"."""
        children = self.matcher("child").words
        is_young = not children.isdisjoint(self.inflected(noun.masculine, "plural"))
        words = self.entries(f"say-{young}") if is_young else ()
        return (words or self.entries(f"say-{grown}"))[0]

    def write_role(self, tokens: Reading, role: Phrase, gender: str) -> Changes:
        if role.noun.gender != "m":
            return {}
        changes = (self._agree(tokens, role) or {}) if gender == "female" else {}
        self._drop_signs(tokens, role, changes)
        return changes

    def _replace_words(self, tokens: Reading, changes: Changes) -> list[Replacement]:
        replacements: list[Replacement] = []
        for i, text in changes.items():
            end = tokens[i].end
            # Remove the space if the new article is elided: "un architetto" -> "un'architetta".
            if text.endswith("'") and i + 1 < len(tokens):
                end = tokens[i + 1].start
            elif tokens[i].text.endswith(("'", "\u2019")) and not text.endswith("'"):
                text += " "
            replacements.append(Replacement(tokens[i].start, end, text))
        return replacements

    def _place_behind(self, tokens: Reading, phrase: Phrase) -> int:
        """Return the position of the word after which a value is inserted."""
        # In "vigile del fuoco", the complement is part of the noun.
        fixed = self.matcher("fixed-complement").length_at(tokens, phrase.head + 1)
        place = phrase.head + fixed
        is_fixed = phrase.noun.gender in ("f", "m!")
        for position in phrase.behind:
            # Keep classifying adjectives next to the noun: "un ingeniero industrial varón", but
            # "un médico varón cansado" and "una criança do sexo feminino vestida de bombeira".
            token = tokens[position]
            is_of_kind = self.is_listed(token, "adjective") or self.noun_of(token) is not None
            if is_fixed:
                is_of_kind = not token.low.endswith(self.entries("feminine-participle-ending"))
            is_quality = self.is_listed(token, "quality") and not is_fixed
            if position != place + 1 or is_quality or not is_of_kind:
                break
            place = position
        return place + self._length_of_kind(tokens, place + 1)

    def _length_of_kind(self, tokens: Reading, i: int) -> int:
        """Return the number of words from word i that belong to the noun: "souffleur de verre"."""
        if i >= len(tokens) or tokens[i].opens or tokens[i].low not in self.entries("of-kind"):
            return 0
        complement = tokens.after(i)
        if not complement.text or complement.is_capitalised or self._is_article(complement):
            return 0
        following = tokens.after(i + 1)
        # In "un profesor de educación física", the last word may describe either noun.
        is_plural = self.is_adjective(following._replace(low=following.low.removesuffix("s")))
        is_unclear = is_plural and not self._is_participle(following)
        is_number = complement.low.isdigit() or self.number_of(complement.low) is not None
        is_kind = not self.is_listed(complement, "not-of-kind")
        return 2 if is_kind and not (is_number or is_unclear) else 0

    def _agree(self, tokens: Reading, phrase: Phrase) -> Changes | None:
        """Return the changes to the feminine, or None if one of the forms is unknown."""
        changes: Changes = {}
        for position in (*phrase.before, *phrase.behind, *phrase.apart):
            token = tokens[position]
            feminine = self.feminine_of(token.low)
            if not feminine:
                return None
            if feminine != token.low:
                changes[position] = self._like(token, feminine)
        changes[phrase.head] = self._like(tokens[phrase.head], phrase.noun.feminine)
        if phrase.article is not None:
            self._change_article(tokens, phrase.article, changes)
            # Two words before the noun can agree: "al suo apprendista", "ao seu aprendiz".
            outer = phrase.article - 1
            if not tokens[phrase.article].opens and tokens[outer].low in self.pairs("article"):
                self._change_article(tokens, outer, changes)
        return changes

    def is_unsure(self, tokens: Reading, phrase: Phrase) -> bool:
        if super().is_unsure(tokens, phrase):
            return True
        if phrase.noun.gender in ("", "f", "m!"):
            return False
        is_unsure = self._is_unsure_apart(tokens, phrase) or self._agree(tokens, phrase) is None
        return is_unsure or self._is_unsure_behind(tokens, phrase.last)

    def _is_unsure_behind(self, tokens: Reading, last: int) -> bool:
        """Return whether the next word may be an unknown adjective: "un médecin ronflant"."""
        word = tokens.after(last)
        is_known = self.is_listed(word, "no-adjective", "behind-noun")
        if is_known or not word.low.endswith(self.entries("unsure-ending")):
            return False
        if self.entries("adjective-ending"):
            # Endings such as "-ando" are never adjectives: "un surfista esperando".
            return not word.low.endswith(self.entries("no-adjective-ending"))
        following = tokens.after(last + 1)
        return not following.text or self.is_listed(following, "behind-noun")

    def _change_article(self, tokens: Reading, article: int, changes: Changes) -> None:
        """Change an article to the feminine form required by the word after it."""
        token = tokens[article]
        following = changes.get(article + 1, tokens[article + 1].text).lower()
        forms = self.pairs("article")
        if following.startswith(self.entries("vowel")):
            forms = forms | self.pairs("article-before-vowel")
        text = forms.get(token.low, token.low)
        if text != token.low:
            changes[article] = self._like(token, text)

    def _as_human(self, tokens: Reading, phrase: Phrase, gender: str) -> Changes:
        """Return the changes that turn "una persona" into a woman or man.

        There are none for other nouns with a fixed gender, or if another word would have to agree.
        """
        nouns = self.nouns_of_gender("human").get(phrase.noun.masculine)
        if nouns is None or phrase.article is None:
            return {}
        changes = {phrase.head: self._like(tokens[phrase.head], nouns[gender])}
        if gender == "female":
            return changes
        article = self.pairs("article-of-man").get(tokens[phrase.article].low)
        endings = self.entries("feminine-participle-ending")
        later = [token.low for token in tokens[phrase.last + 1 :]]
        agrees = any(word.endswith(endings) and word not in self.nouns for word in later)
        following = tokens.after(phrase.last)
        is_unclear = following.text and not self.is_listed(following, "behind-noun")
        if phrase.before or phrase.behind or agrees or is_unclear or article is None:
            return {}
        if f"{tokens[phrase.article - 1].low}+{article}" in self.pairs("contracted"):
            return {}  # "de" and "el" would have to be contracted
        changes[phrase.article] = self._like(tokens[phrase.article], article)
        return changes


LANGUAGES = {
    "es": RomanceLanguage("es", "Spanish", " y "),
    "fr": RomanceLanguage("fr", "French", " et "),
    "it": RomanceLanguage("it", "Italian", " e "),
    "pt": RomanceLanguage("pt", "Portuguese", " e "),
}
