"""Base classes for languages: tokens with offsets, word lists, people and groups."""

from __future__ import annotations

import re
import unicodedata
from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from vldebias.prompts.english.words import read_lists
from vldebias.wording.groups import Group, Mixture
from vldebias.wording.language import Assignment, Language, Mention, Replacement
from vldebias.wording.reasons import context_reason

if TYPE_CHECKING:
    from vldebias.prompts.attribute import Attribute

_BREAK = re.compile(
    r"[,.;:!?()\[\]{}|\"\n\u2014\u2013\u201c\u201d\u201e\u00bb\u00ab\u060c\u061b\u061f\u2026/]"
)
_QUOTED = re.compile(
    r"\"[^\"]*\"|\u201c[^\u201c\u201d]*\u201d|\u201e[^\u201e\u201c\u201d]*[\u201c\u201d]"
    r"|\u00ab[^\u00ab\u00bb]*\u00bb|\u300c[^\u300c\u300d]*\u300d|\u300e[^\u300e\u300f]*\u300f"
)
WORD = r"[^\W\d_]+(?:['\u2019\u00b7-][^\W\d_]+)*['\u2019]?|\d+"
# English words for attribute values -> the word list that translates them in each language.
WORD_OF_LIST = {
    "female": "female", "woman": "female", "male": "male", "man": "male", "young": "young",
    "old": "old", "elderly": "old", "white": "white", "caucasian": "white", "black": "black",
    "african": "black", "asian": "asian", "indian": "indian", "latino": "latino",
    "hispanic": "latino", "east asian": "east-asian", "southeast asian": "southeast-asian",
    "middle eastern": "middle-eastern",
}  # fmt: skip
_SENTENCE_END = re.compile(r"[.;:!?\n\u061b\u061f]")
_IS_LINK = re.compile("[,:(\u060c\u2013\u2014-]?")
_LONGEST = 6  # words of a listed phrase
_LONGEST_CLAUSE = 50  # words
_STEM = 4  # number of letters shared by the masculine and feminine forms of a noun
_YOUTHS = {"female": "girl", "male": "boy"}
_KIND_OF_LISTS = {"gender": "gender", "age": "age", "origin": "race", "skin": "skin"}


# Position of a word in a prompt -> its replacement.
Changes = dict[int, str]


class Token(NamedTuple):
    """One word of a prompt.

    Attributes:
        start, end: the offsets of the word in the prompt.
        text: the word as it appears in the prompt.
        low: the word in lower case.
        opens: whether the word begins a clause.
        small: whether the entire prompt is in lower case.
    """

    start: int
    end: int
    text: str
    low: str
    opens: bool
    small: bool

    @property
    def is_capitalised(self) -> bool:
        """Whether the word begins with a capital and continues in lower case."""
        return self.text[:1].isupper() and not self.text.isupper()


NO_WORD = Token(0, 0, "", "", opens=True, small=False)


class Reading(list[Token]):
    """The tokens of a prompt, together with the prompt itself."""

    text: str = ""

    def before(self, i: int) -> Token:
        """Return the word before word i in the same clause, or `NO_WORD`."""
        return NO_WORD if self[i].opens else self[i - 1]

    def after(self, i: int) -> Token:
        """Return the word after word i in the same clause, or `NO_WORD`."""
        is_last = i + 1 >= len(self) or self[i + 1].opens
        return NO_WORD if is_last else self[i + 1]

    def clause_before(self, i: int) -> list[Token]:
        """Return the words before word i in the same clause, at most 50."""
        opening = i
        while not self[opening].opens and i - opening < _LONGEST_CLAUSE:
            opening -= 1
        return self[opening:i]

    def gap(self, i: int) -> str:
        """Return the characters between the previous word and word i."""
        end = self[i - 1].end if i else 0
        return self.text[end : self[i].start]

    def opens_sentence(self, i: int) -> bool:
        """Return whether word i begins a sentence."""
        return i == 0 or _SENTENCE_END.search(self.gap(i)) is not None


def blank_quotations(text: str) -> str:
    """Replace quoted text with spaces, unless the entire prompt is quoted.

    The quotation marks remain, because they end a clause. Offsets stay valid.
    """
    if _QUOTED.fullmatch(text.strip()):
        return text
    return _QUOTED.sub(lambda match: match[0][0] + " " * (len(match[0]) - 2) + match[0][-1], text)


def _stem(word: str) -> str:
    """Return the first four letters of a noun, without accents: "Arzt" for "Ärztin"."""
    letters = unicodedata.normalize("NFD", word)
    return "".join(letter for letter in letters if not unicodedata.combining(letter))[:_STEM]


class WordList:
    """Match listed words ("arzt"), phrases ("in vitro"), stems ("prostata*") and endings ("*frau").

    Capitalised entries only match capitalised words.
    """

    def __init__(self, entries: Iterable[str]) -> None:
        self._phrases: dict[str, list[list[str]]] = {}  # keyed by first word, or "" for a stem
        words: list[str] = []
        for entry in entries:
            first, *later = entry.split()
            if later:
                key = "" if first.endswith("*") else first
                self._phrases.setdefault(key, []).append([first, *later])
            else:
                words.append(entry)
        self.words = {word for word in words if "*" not in word}
        self._stems = tuple(word[:-1] for word in words if word.endswith("*"))
        self._endings = tuple(word[1:] for word in words if word.startswith("*"))

    def has(self, token: Token) -> bool:
        """Return whether a word matches the list."""
        if token.low in self.words or token.text in self.words:
            return True
        if self._stems and token.low.startswith(self._stems):
            return True
        return bool(self._endings) and token.low.endswith(self._endings)

    def find(self, tokens: Sequence[Token]) -> int | None:
        """Return the position of the first match, or None."""
        return next((i for i in range(len(tokens)) if self.has_at(tokens, i)), None)

    def has_at(self, tokens: Sequence[Token], i: int) -> bool:
        """Return whether a listed word or phrase begins at word i.

        Args:
            tokens: the tokens of a prompt.
            i: the position of a word.
        """
        return self.has(tokens[i]) or self.length_at(tokens, i) > 0

    def length_at(self, tokens: Sequence[Token], i: int) -> int:
        """Return the number of words in the listed phrase that begins at word i, or 0.

        Args:
            tokens: the tokens of a prompt.
            i: the position of a word.
        """
        first = tokens[i].low if i < len(tokens) else ""
        for parts in (*self._phrases.get(first, ()), *self._phrases.get("", ())):
            words = [token.low for token in tokens[i : i + len(parts)]]
            if len(words) == len(parts) and all(map(fnmatchcase, words, parts)):
                return len(parts)
        return 0

    def ends_before(self, tokens: Sequence[Token], i: int) -> bool:
        """Return whether a listed phrase of several words ends directly before word i.

        Args:
            tokens: the tokens of a prompt.
            i: the position of a word.
        """
        return any(
            self.length_at(tokens, start) == i - start for start in range(max(0, i - _LONGEST), i)
        )


class ListedLanguage(Language):
    """Provide a language's word lists, which are loaded from `words.txt` in its folder."""

    @cached_property
    def lists(self) -> dict[str, dict[str, None]]:
        """Return the word lists by name."""
        return read_lists(Path(__file__).parent / self.code / "words.txt")

    @cache  # noqa: B019 - languages are kept as long as the program runs
    def entries(self, name: str) -> tuple[str, ...]:
        """Return the entries in a list, or an empty tuple if there is no list with this name."""
        return tuple(self.lists.get(name, ()))

    @cache  # noqa: B019
    def pairs(self, name: str) -> dict[str, str]:
        """Return a list with "first/second" entries as a mapping from first to second."""
        return dict(entry.split("/") for entry in self.entries(name))

    def inflected(self, word: str, list_name: str) -> list[str]:
        """Return a word's forms according to the first entry in a list that matches its ending.

        Entries are "endings/number of letters to remove/endings of the forms".
        """
        for entry in self.entries(list_name):
            endings, dropped, forms = entry.split("/")
            if word.endswith(tuple(endings.split(","))):
                stem = word[: len(word) - int(dropped)]
                return [stem + form for form in forms.split(",")]
        return []

    @cache  # noqa: B019
    def matcher(self, name: str) -> WordList:
        """Return the matcher for a word list."""
        return WordList(self.entries(name))

    def is_listed(self, token: Token, *names: str) -> bool:
        """Return whether a word matches any of the word lists."""
        for name in names:
            if self.matcher(name).has(token):
                return True
        return False

    def number_of(self, word: str) -> int | None:
        """Return the number for a word between "two" and "twelve", or for its digits, or None."""
        for number, names in enumerate(self.entries("number"), 2):
            if word in (str(number), *names.split("/")):
                return number
        return None

    def _word_of(self, value: Any, attribute: Attribute) -> str:
        """Return the word for a value, or "" if the language does not have one."""
        own_words = attribute.set.languages.get(self.code, {})
        if value in own_words:
            return own_words[value]
        name = WORD_OF_LIST.get(attribute.words[value].lower(), "")
        words = self.entries(f"say-{name}")
        return words[0] if words else ""

    def _gender_of(self, value: Any, attribute: Attribute) -> str:
        """Return "female" or "male" for a gender value."""
        return WORD_OF_LIST.get(attribute.words[value].lower(), "")

    def lacks_words(self, attribute: Attribute) -> bool:
        """Return whether the word lists do not cover an attribute and all of its values."""
        is_own = self.code in attribute.set.languages
        if not self.kind_of(attribute) or (attribute.has_phrases and not is_own):
            return True
        return not all(self._word_of(value, attribute) for value in attribute.words)

    def words_of(self, assignments: Sequence[Assignment]) -> tuple[str, list[str]]:
        """Return a person's gender, or "", and the adjectives for values of other attributes."""
        gender = ""
        adjectives: list[str] = []
        for _, attribute, value in assignments:
            value_gender = self._gender_of(value, attribute)
            if self.kind_of(attribute) == "gender" and value_gender:
                gender = value_gender
            else:
                adjectives.append(self._word_of(value, attribute))
        return gender, adjectives

    def nouns_of_gender(self, list_name: str) -> dict[str, dict[str, str]]:
        """Return noun -> gender -> form for a list with "noun/female/male" entries."""
        nouns: dict[str, dict[str, str]] = {}
        for entry in self.entries(list_name):
            noun, female, male = entry.split("/")
            nouns[noun] = {"female": female, "male": male}
        return nouns

    def leaves_groups(self, attribute: Attribute) -> bool:
        """Return whether groups stay unchanged, because only gender can be mixed in a group."""
        if attribute.people != "mixed" or 1 in attribute.shares.values():
            return True
        genders = [self._gender_of(value, attribute) for value in attribute.words]
        return sorted(genders) != ["female", "male"]

    def parts_of_group(self, group: Group, attribute: Attribute, counts: Mixture) -> list[str]:
        """Return the words for the women and men, or girls and boys, in a group: "two women".

        Args:
            group: the group.
            attribute: the gender attribute.
            counts: the number of people for each value, or None if the prompt does not state it.
        """
        parts: list[str] = []
        for value, count in counts.items():
            gender = self._gender_of(value, attribute)
            nouns = self.entries(f"count-{_YOUTHS[gender] if group.young else gender}")
            parts.append(nouns[0] if count is None else nouns[count])
        return parts

    @abstractmethod
    def write_person(self, text: str, assignments: Sequence[Assignment]) -> list[Replacement]:
        """Return the replacements that insert the values for one person.

        Args:
            text: the prompt.
            assignments: the assigned values, all for the same mention.
        """

    @abstractmethod
    def write_group(self, text: str, end: int, parts: list[str], is_counted: bool) -> Replacement:
        """Return the replacement that inserts the numbers of women and men in a group.

        Args:
            text: the prompt.
            end: the end of the group's noun.
            parts: the words for the women and men, from `parts_of_group`.
            is_counted: whether the prompt states the number of people.
        """

    def write(self, text: str, assignments: Sequence[Assignment]) -> list[Replacement]:
        assignments_of_end: dict[int, list[Assignment]] = {}
        for assignment in assignments:
            person, _, _ = assignment
            assignments_of_end.setdefault(person.end, []).append(assignment)
        replacements: list[Replacement] = []
        for assignments_of_one in assignments_of_end.values():
            of_person: list[Assignment] = []
            for person, attribute, value in assignments_of_one:
                if not person.noun:
                    # It replaces a placeholder, or goes to the place returned by a custom `find`.
                    word = self._word_of(value, attribute)
                    replacements.append(Replacement(*person.place, word))
                elif person.group is not None and isinstance(value, Mapping):
                    parts = self.parts_of_group(person.group, attribute, value)
                    is_counted = None not in value.values()
                    replacements.append(self.write_group(text, person.end, parts, is_counted))
                else:
                    of_person.append((person, attribute, value))
            if of_person:
                replacements += self.write_person(text, of_person)
        return replacements

    def kind_of(self, attribute: Attribute) -> str:
        """Return the part of list names that identifies an attribute, or "" if it has no lists."""
        kind = _KIND_OF_LISTS.get(attribute.kind, "")
        return kind or ("own" if self.code in attribute.set.languages else "")


class Noun(NamedTuple):
    """An inflected form of a noun for people.

    Attributes:
        masculine, feminine: the singular forms, which are equal for nouns with only one form.
        gender: "m", "f", "n", "mf" (one form for both genders) or "m!" (masculine for everyone,
            such as "un individu").
        number: whether the form is singular ("one"), plural ("many") or either ("any").
        kind: the noun class in a grammar, such as "neutral" in German.
        cases: the cases that the form can have (Russian only).
    """

    masculine: str
    feminine: str
    gender: str = "m"
    number: str = "one"
    kind: str = ""
    cases: tuple[str, ...] = ()


NO_NOUN = Noun("", "", gender="")


class Phrase(NamedTuple):
    """A noun phrase for a person or a group.

    Attributes:
        first: the position of the first word.
        head: the position of the noun.
        noun: the noun if `is_open`, else `NO_NOUN`.
        plural: whether the phrase is for several people.
        size: the number of people, if the prompt states it.
        stated: whether the phrase states a gender.
        article: the position of the article.
        before, behind: the positions of the adjectives before and directly after the noun.
        apart: the positions of words elsewhere in the sentence that agree with the noun.
        case: the grammatical case.
        declension: the kind of determiner, which selects the adjective endings in German.
    """

    first: int
    head: int
    noun: Noun = NO_NOUN
    plural: bool = False
    size: int | None = None
    stated: bool = False
    article: int | None = None
    before: tuple[int, ...] = ()
    behind: tuple[int, ...] = ()
    apart: tuple[int, ...] = ()
    case: str = ""
    declension: str = ""

    @property
    def is_open(self) -> bool:
        """Whether the phrase is for one person whose gender is not stated."""
        return self.noun != NO_NOUN

    @property
    def last(self) -> int:
        """Position of the last adjective after the noun, or of the noun."""
        return self.behind[-1] if self.behind else self.head


class SpacedLanguage(ListedLanguage):
    """Parse a language that separates words, with noun phrases defined by subclasses."""

    word = WORD

    @abstractmethod
    def phrase_at(self, tokens: Reading, i: int) -> Phrase | None:
        """Return the phrase whose head is word i, or None if the word is not a noun for people.

        Args:
            tokens: the tokens of a prompt.
            i: the position of a word.
        """

    @abstractmethod
    def noun_of(self, token: Token) -> Noun | None:
        """Look up a word, in any form, among the nouns for people."""

    def states_gender(self, tokens: Reading, i: int) -> bool:
        """Return whether word i states a gender.

        Args:
            tokens: the tokens of a prompt.
            i: the position of a word.
        """
        is_stated = self.is_listed(tokens[i], "female", "male")
        return is_stated and not self.is_listed(tokens[i], "not-stated")

    @abstractmethod
    def write_one(
        self, tokens: Reading, phrase: Phrase, gender: str, adjectives: Sequence[str]
    ) -> Changes:
        """Return the changes that insert the values for one person.

        Args:
            tokens: the tokens of a prompt.
            phrase: the person's phrase.
            gender: "female", "male", or "" if no gender is inserted.
            adjectives: the words for the other values.
        """

    # ---- finding

    def states(self, text: str, attribute: Attribute) -> bool:
        tokens = self.read(text)
        return self._states_at(tokens, range(len(tokens)), attribute)

    def stated_values(self, text: str, attribute: Attribute) -> list[str]:
        tokens = self.read(text)
        stating = [tokens[i] for i in range(len(tokens)) if self.states_gender(tokens, i)]
        values: list[str] = []
        for value in attribute.words if attribute.gender else ():
            gender = self._gender_of(value, attribute)
            if any(self.is_listed(token, gender) for token in stating):
                values.append(value)
        return values

    def _states_at(self, tokens: Reading, positions: Collection[int], attribute: Attribute) -> bool:
        """Return whether a word at any of the positions states a value."""
        kind = self.kind_of(attribute)
        if kind == "gender":
            return any(self.states_gender(tokens, i) for i in positions)
        words = self.matcher(f"stated-{kind}")
        own_words = set(attribute.set.languages.get(self.code, {}).values())
        return any(words.has_at(tokens, i) or tokens[i].low in own_words for i in positions)

    def reads(self, text: str) -> bool:
        tokens = self.read(text)
        return any(self.phrase_at(tokens, i) for i in range(len(tokens)))

    def knows(self, text: str) -> bool:
        tokens = self.read(blank_quotations(text))
        names = ("female", "male", "group-left-unchanged", "fixed-gender")
        return any(self.matcher(name).find(tokens) is not None for name in names)

    def read(self, text: str) -> Reading:
        """Split a prompt into tokens."""
        reading = Reading()
        reading.text = text
        is_small = text.islower()
        end = 0
        for match in re.finditer(self.word, text):
            opens = not reading or bool(_BREAK.search(text[end : match.start()]))
            low = self.plain(match[0].lower().replace("\u2019", "'"))
            reading.append(Token(*match.span(), match[0], low, opens, is_small))
            end = match.end()
        return reading

    def plain(self, word: str) -> str:
        """Return a word in lower case without signs that the word lists do not contain."""
        return word

    def find(self, text: str, attribute: Attribute) -> tuple[Mention, ...] | str:
        tokens = self.read(blank_quotations(text))
        kind = self.kind_of(attribute)
        if self.lacks_words(attribute):
            return "no word"
        phrases = self.phrases(tokens)
        if self._states_for_all(tokens, phrases, attribute):
            return "stated"
        if self.is_named(tokens, phrases):
            return "named"
        facts = self.matcher(f"fixed-{kind}")
        place = facts.find(tokens)
        fixed = ""
        if place is not None:
            last = tokens[place + max(facts.length_at(tokens, place), 1) - 1]
            fixed = context_reason(tokens.text[tokens[place].start : last.end])
        if not phrases:
            return fixed or self._why_nobody(tokens)
        if any(self.is_unsure(tokens, phrase) for phrase in phrases):
            return fixed or "not understood"
        return tuple(self._person(tokens, phrase, attribute, fixed) for phrase in phrases)

    def lacks_form(self, phrase: Phrase) -> bool:
        """Return whether no adjective can be added to a phrase."""
        return phrase.stated

    def _why_nobody(self, tokens: Reading) -> str:
        """Return the reason why nothing is inserted into a prompt without people."""
        for list_name, reason in (("group-left-unchanged", "group"), ("pronoun", "pronoun")):
            if self.matcher(list_name).find(tokens) is not None:
                return reason
        for i, token in enumerate(tokens):
            is_thing = self.matcher("thing").has_at(tokens, i)
            if self.noun_of(token) and not is_thing and not self.phrase_at(tokens, i):
                return "not understood"
        return "no person"

    def phrases(self, tokens: Reading) -> list[Phrase]:
        """Return the phrases for all people in the picture, in order."""
        phrases: list[Phrase] = []
        end = -1
        for i in range(len(tokens)):
            phrase = self.phrase_at(tokens, i) if i > end else None
            if phrase is None or self._is_out_of_picture(tokens, phrase):
                continue
            if phrases and self.is_role(tokens, phrases[-1], phrase):
                continue
            phrases.append(phrase)
            end = phrase.last
        return phrases

    def is_unsure(self, tokens: Reading, phrase: Phrase) -> bool:
        """Return whether a phrase may be unsafe to edit.

        The phrase may not be for a person, its agreement may be unclear, or it may name an owner
        who is not shown: "el cuchillo de un chef" shows a knife.

        Args:
            tokens: the tokens of a prompt.
            phrase: a phrase in the prompt.
        """
        if phrase.stated:
            return False
        # One person of several is no group: "uno de los médicos", "einer der Ärzte".
        is_one = self.is_listed(tokens.before(phrase.first), "one-of")
        if phrase.plural and (is_one or self.matcher("one-of").ends_before(tokens, phrase.first)):
            return True
        if tokens[phrase.first].opens:
            return False
        before = tokens.clause_before(phrase.first)
        is_shown = any(self.is_listed(token, "shows") or self.noun_of(token) for token in before)
        # In "il coltello dello chef", the article is contracted with "of".
        is_contracted = self.is_listed(tokens[phrase.first], "owner-link")
        return not is_shown and (is_contracted or self.is_genitive(before, phrase))

    def is_genitive(self, before: Sequence[Token], phrase: Phrase) -> bool:
        """Return whether a phrase names the owner of something.

        Args:
            before: the words before the phrase in the same clause.
            phrase: the phrase.
        """
        return len(before) > 1 and self.is_listed(before[-1], "owner-link")

    def is_role(self, tokens: Reading, person: Phrase, phrase: Phrase) -> bool:
        """Return whether a phrase describes the previous person's role: "als Pilot".

        Args:
            tokens: the tokens of a prompt.
            person: the person's phrase.
            phrase: the phrase that may describe a role.
        """
        if person.plural or phrase.plural or not phrase.first:
            return False
        if self._has_trade(tokens, person, phrase):
            return True
        between = range(person.head + 1, phrase.first + 1)
        words = self.matcher("role-behind")
        if len(between) > 1 and words.has(tokens[phrase.first - 1]):
            return True
        # Words of a role precede the noun: "en tant que médecin".
        return words.ends_before(tokens, phrase.first)

    def _has_trade(self, tokens: Reading, person: Phrase, phrase: Phrase) -> bool:
        """Return whether a phrase states a person's trade: "une personne, métier : soudeur"."""
        if person.noun.masculine not in self.entries("anybody"):
            return False
        between = range(person.last + 1, phrase.first)
        if not all(self.is_listed(tokens[i], "trade") for i in between):
            return False
        signs = [tokens.gap(i).strip() for i in (*between, phrase.first)]
        # A noun with an article begins a list: "une personne, un soudeur et un boulanger".
        is_list = signs == [","] and (phrase.article is not None or phrase.stated)
        return signs[0] != "" and all(map(_IS_LINK.fullmatch, signs)) and not is_list

    def write_role(self, tokens: Reading, role: Phrase, gender: str) -> Changes:
        """Return the changes that make a role agree with a person's gender: "als Pilotin".

        Args:
            tokens: the tokens of a prompt.
            role: the phrase for the role.
            gender: "female" or "male".
        """
        return {}

    def _is_out_of_picture(self, tokens: Reading, phrase: Phrase) -> bool:
        """Return whether a person is not shown: "a uniform for nurses", "a statue of a soldier"."""
        first = phrase.first
        if tokens[first].opens:
            return False
        if self.matcher("about-picture").ends_before(tokens, first):
            return False  # A portrait of a person shows the person: "gros plan sur un horloger".
        if self.is_listed(tokens[first - 1], "not-subject"):
            return True
        # A thing that shows or belongs to the person: "die Statue eines jungen Soldaten", "la
        # estatua de un soldado".
        for i in range(first - 1, max(first - 4, -1), -1):
            if self.is_listed(tokens[i], "thing-of"):
                return i == first - 1 or self.is_listed(tokens[first - 1], "of")
            if not self.is_listed(tokens[i], "of") or tokens[i].opens:
                break
        return False

    def _states_for_all(self, tokens: Reading, phrases: list[Phrase], attribute: Attribute) -> bool:
        """Return whether a stated value applies to everyone and not just to one person."""
        positions = set(range(len(tokens)))
        if self.kind_of(attribute) == "gender":
            for phrase, following in pairwise(phrases):
                if phrase.stated == following.stated:
                    continue
                link = tokens[max(0, following.first - 1)]
                is_same_noun = _stem(tokens[phrase.head].low) == _stem(tokens[following.head].low)
                if is_same_noun and self.is_listed(link, "or"):
                    return True  # One person in both genders: "ein Arzt oder eine Ärztin".
                # One person's gender does not apply to another person: "ein Arzt und eine Frau",
                # "una persona que ayuda a las enfermeras".
                is_joined = self.is_listed(link, "joining")
                is_relative = self.is_listed(tokens[phrase.last + 1], "relative")
                is_apart = self._are_apart(tokens, phrase, following)
                if is_joined or is_apart or (is_relative and following.stated):
                    stated = phrase if phrase.stated else following
                    positions.difference_update(range(stated.first, stated.last + 1))
        return self._states_at(tokens, positions, attribute)

    def _are_apart(self, tokens: Reading, phrase: Phrase, following: Phrase) -> bool:
        """Return whether two phrases name two people: "eine Lehrerin hilft einem Schüler"."""
        between = tokens[phrase.last + 1 : following.first]
        if any(self.is_listed(x, "copula", "role-behind", "role-verb", "trade") for x in between):
            return False
        genders = self.entries("say-female") + self.entries("say-male")
        is_bare = tokens[following.first].opens or tokens[following.head].low in genders
        if following.article is None and is_bare:
            # The word describes the person in other words: "un director de orquesta varón".
            return False
        is_of = bool(between) and self.is_listed(between[-1], "owner-link")
        # A description follows a group: "three doctors, two women and a man".
        is_group = phrase.plural or following.plural
        return len(between) > 0 and not (is_of or is_group) and following.case != "genitive"

    def is_named(self, tokens: Reading, phrases: list[Phrase]) -> bool:
        """Return whether a prompt mentions someone by name.

        Args:
            tokens: the tokens of the prompt.
            phrases: the phrases for people in the prompt.
        """
        if self.matcher("famous").find(tokens) is not None:
            return True
        for i, token in enumerate(tokens):
            if self.is_listed(token, "title") and i + 1 < len(tokens):
                # The period may belong to a title: "Dr. Meier".
                is_followed = not tokens[i + 1].opens or tokens.gap(i + 1) == ". "
                if is_followed and self._is_name(tokens, i + 1):
                    return True
            # A saint names a place: "São Paulo".
            is_place = self.is_listed(tokens.before(i), "saint")
            is_word = token.text[0].islower() or self.is_listed(token, "adjective")
            if self.is_listed(token, "given") and not is_word and not is_place:
                return True
        return False

    def _is_name(self, tokens: Reading, i: int) -> bool:
        """Return whether word i may be a surname, judging by its capital."""
        return tokens[i].is_capitalised

    def _person(self, tokens: Reading, phrase: Phrase, attribute: Attribute, fixed: str) -> Mention:
        """Return the mention for a phrase, with the reason if no value is inserted.

        fixed: the reason if the context implies a value, or "".
        """
        is_gender = self.kind_of(attribute) == "gender"
        reason = "stated" if is_gender and phrase.stated else fixed
        if not reason and not is_gender and self.lacks_form(phrase):
            reason = "form"
        if not reason and phrase.plural and self.leaves_groups(attribute):
            reason = "group"
        span = (tokens[phrase.head].start, tokens[phrase.last].end)
        is_young = self.is_listed(tokens[phrase.head], "child")
        group = Group(span[1], phrase.size, is_young, mixes=True) if phrase.plural else None
        start = span[0]
        return Mention(tokens.text[slice(*span)], *span, (start, start), reason, group)

    # ---- writing

    def write_person(self, text: str, assignments: Sequence[Assignment]) -> list[Replacement]:
        tokens = self.read(text)  # with quotations, because the values of JSON are quoted
        person, _, _ = assignments[0]
        phrases = [self.phrase_at(tokens, i) for i in range(len(tokens))]
        of_person = [
            phrase for phrase in phrases if phrase and tokens[phrase.last].end == person.end
        ]
        if not of_person:
            return []
        # In "un médico varón", choose "médico", although "varón" is also a noun.
        phrase = next((phrase for phrase in of_person if not phrase.stated), of_person[0])
        if phrase.plural:
            return []
        gender, adjectives = self.words_of(assignments)
        changes = self.write_one(tokens, phrase, gender, adjectives)
        # The person's roles agree with the gender, up to the next person.
        for other in phrases[phrase.last + 1 :] if gender else ():
            if other and not other.stated:
                if not self.is_role(tokens, phrase, other):
                    break
                changes |= self.write_role(tokens, other, gender)
        return self._replace_words(tokens, changes)

    def write_group(self, text: str, end: int, parts: list[str], is_counted: bool) -> Replacement:
        is_closed = re.match(r"\s*(?:[^\w\s'\"(<-]|$)", text[end:])
        words = f"{self.comma} {self.joiner.join(parts)}{'' if is_closed else self.comma}"
        return Replacement(end, end, words)

    def _replace_words(self, tokens: Reading, changes: Changes) -> list[Replacement]:
        """Convert changes by word position to replacements by offset."""
        return [Replacement(tokens[i].start, tokens[i].end, text) for i, text in changes.items()]

    comma = ","
    joiner = " and "

    # ---- letters

    def _like(self, token: Token, form: str) -> str:
        """Apply a word's capitalisation to the form that replaces it."""
        if token.text.isupper() and len(token.text) > 1:
            return form.upper()
        return form[0].upper() + form[1:] if token.text[0].isupper() else form
