"""Read prompts in a language that is described by a table of words.

A value is only written if a listed noun stands in one of a few plain places, in a form that the
table contains. Nothing is inflected: each noun is listed with its forms for women and men, and each
article with its forms before them. In any other place, the prompt is left unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from vldebias.prompts.english.words import read_lists
from vldebias.wording.english.text import with_capitals_of
from vldebias.wording.language import Assignment, Language, Mention, Replacement
from vldebias.wording.reasons import NO_PERSON, NOT_PLAIN, context_reason

if TYPE_CHECKING:
    from vldebias.prompts.attribute import Attribute

# English words for values -> the name of the value in the tables.
NAME_OF_WORD = {
    "female": "female", "woman": "female", "male": "male", "man": "male", "young": "young",
    "old": "old", "elderly": "old", "white": "white", "caucasian": "white", "black": "black",
    "african": "black", "asian": "asian", "indian": "indian", "latino": "latino",
    "hispanic": "latino", "east asian": "east-asian", "southeast asian": "southeast-asian",
    "middle eastern": "middle-eastern",
}  # fmt: skip
_SIDES = ("", "female", "male")  # what each text of a form states
_KINDS = {"gender": "gender", "age": "age", "origin": "race", "skin": "skin"}
# Where the forms in each list may stand, see `_stands_well`. The later ones state a value, or leave
# the prompt unchanged.
_FRAMES = ("frame", "start", "bare", "of", "subject")
# Letters may be followed by Arabic vowel signs.
_LETTERS = r"(?:[^\W\d_][\u064b-\u0652]*)+"
# The words before the noun, the noun with its ending, and the words behind it.
_PLACE_OF_NOUN = re.compile(r"^(.*?)(?<![^\s~'])([^\s~']*~[^\s]*)(.*)$")
_PLACE_WITHOUT_SPACES = re.compile("^(.*)(~)(.*)$")
_WORD = re.compile(rf"{_LETTERS}(?:-{_LETTERS})*['\u2019]?|\d+")
_VOWEL_SIGNS = dict.fromkeys(range(0x064B, 0x0653))
_SIGN = re.compile(r"[^\W\d_]|\d+")  # of a language without spaces
_LATIN = re.compile(r"[A-Za-z][A-Za-z0-9-]*")
_BREAK = re.compile(
    r"[,.;:!?()\[\]{}|\"\n/\u2014\u2013\u201c\u201d\u201e\u00bb\u00ab\u060c\u061b\u061f\u2026"
    r"\u3001\u3002\uff0c\uff1a\uff1b\uff01\uff1f\uff08\uff09\u300c\u300d\u300e\u300f]"
)
_SENTENCE_END = re.compile(r"[.:!?\n\u3002]")
_QUOTED = re.compile(
    r"\"[^\"]*\"|\u201c[^\u201c\u201d]*\u201d|\u201e[^\u201e\u201c\u201d]*[\u201c\u201d]"
    r"|\u00ab[^\u00ab\u00bb]*\u00bb|\u300c[^\u300c\u300d]*\u300d|\u300e[^\u300e\u300f]*\u300f"
)
# Lists of words that leave a prompt unchanged.
_DOUBTS = ("doubt", "further-person", "plural")
_LONGEST_PROMPT = 4000  # characters that are read
# Armies and offices were closed to women before this year.
_OPEN_SINCE = 1980


class Token(NamedTuple):
    """One word of a prompt, or one sign if the language has no spaces.

    Attributes:
        start, end: The offsets of the word in the prompt.
        text, low: The word as it appears in the prompt, and in lower case.
        opens: Whether the word begins a clause.
        is_name: Whether the word begins with a capital inside a sentence.
    """

    start: int
    end: int
    text: str
    low: str
    opens: bool
    is_name: bool


class Frame(NamedTuple):
    """A text in which a noun for people may stand, such as "einen ~/eine ~in/einen männlichen ~".

    Attributes:
        kind: Where it may stand: one of `_FRAMES`, "stated" and "other" (anywhere, but nothing is
            written), or "plural".
        texts: The text that states no gender, and the ones for a woman and a man. "~" marks the
            place of the noun and "{}" the place of other adjectives.
        side: Which of the texts this is.
        before, after: The words of this text before and after the noun.
    """

    kind: str
    texts: tuple[str, str, str]
    side: int
    before: tuple[str, ...]
    after: tuple[str, ...]


# The frame of a noun that stands in none of the listed ones.
_ELSEWHERE = Frame("other", ("", "", ""), 0, (), ())


class Noun(NamedTuple):
    """One form of a noun for people.

    Attributes:
        texts: The noun that states no gender, and the ones for a woman and a man.
        side: Which of them this form belongs to.
        frames: The frames in which this form may stand, with the longest first.
    """

    texts: tuple[str, str, str]
    side: int
    frames: tuple[Frame, ...]


class Person(NamedTuple):
    """A noun for people in a prompt.

    Attributes:
        frame: The frame in which it stands.
        nouns: The noun that states no gender, and the ones for a woman and a man.
        side: What the noun or its frame states: nothing (0), a woman (1) or a man (2).
        first, last: The positions of the first and the last word of the frame.
        has_pair: Whether the last word is one of `next-pair`, which agrees with the noun.
    """

    frame: Frame
    nouns: tuple[str, str, str]
    side: int
    first: int
    last: int
    has_pair: bool


class Words:
    """Match listed words ("arzt"), phrases ("in vitro"), stems ("prostata*") and endings ("*frau").

    Phrases are matched with `length_at`.
    """

    def __init__(self, entries: Sequence[str], split: Callable[[str], tuple[str, ...]]) -> None:
        single = [entry.lower() for entry in entries if "*" in entry or len(split(entry)) == 1]
        self._phrases: dict[str, list[tuple[str, ...]]] = {}
        for entry in entries:
            words = split(entry)
            if "*" not in entry and len(words) > 1:
                self._phrases.setdefault(words[0], []).append(words)
        self._words = {word for word in single if "*" not in word}
        self._stems = tuple(word[:-1] for word in single if word.endswith("*"))
        self._endings = tuple(word[1:] for word in single if word.startswith("*"))

    def has(self, token: Token) -> bool:
        """Return whether a word matches the list."""
        low = token.low
        has_part = low.startswith(self._stems) or low.endswith(self._endings)
        return has_part or low in self._words

    def length_at(self, tokens: Sequence[Token], i: int) -> int:
        """Return how many words from word i match an entry of the list, or 0."""
        for phrase in self._phrases.get(tokens[i].low, ()):
            if phrase == tuple(token.low for token in tokens[i : i + len(phrase)]):
                return len(phrase)
        return int(self.has(tokens[i]))

    def find(self, tokens: Sequence[Token]) -> Iterator[tuple[int, int]]:
        """Yield the first and last position of each match."""
        for i in range(len(tokens)):
            length = self.length_at(tokens, i)
            if length:
                yield i, i + length - 1


class Table(Language):
    """A language described by a file of word lists.

    A list is a line "name: words", which continues on indented lines. In words, "_" stands for a
    space, and "*" for any other beginning or end of a word.

    - name, default: the English name, and "yes" if prompts are balanced; with "no", the language is
      only detected
    - spaces, capital-nouns: "no" if words are not separated by spaces; "yes" if all nouns have a
      capital
    - noun-CLASS: nouns that take the same articles, such as "leraar/lerares" or
      "persoon/vrouw/man"; a missing form is the first one
    - frame-CLASS: articles with the noun "~", such as "een_~/een_~/een_mannelijke_~" (no gender,
      woman, man); "<" cuts off a letter, "{}" stands for other adjectives
    - start-CLASS, bare-CLASS, of-CLASS, subject-CLASS: the same at the start of a clause only,
      without an article, after a picture word only, and with a particle
    - stated-CLASS, plural-CLASS, other-CLASS: forms that state a gender, plurals, and other cases,
      which leave the prompt unchanged
    - picture, picture-adjective, article, request: words that may precede a person, such as "foto",
      "realistische", "een", "teken"
    - and: words for "and"
    - next, after: words after or before a person; words after a person only
    - next-pair: words after a noun that agree, such as "sentado/sentada"
    - plural-verb: verbs after two people
    - modifier: endings of words before a noun
    - agrees, does-not-agree: words that may have to agree with the person, and exceptions
    - adverb, relative: adverbs before words that agree, and relative pronouns
    - doubt, further-person, plural, group, person-name: words that leave the prompt unchanged
    - place: prepositions before the name of a place
    - female, male, stated-age, ...: words that state a value
    - not-stated: words that only look like them
    - fixed-gender, ...: words for facts that allow only one value
    - say-female, say-young, ...: the word for a value that replaces a placeholder or stands at "{}"

    Args:
        path: The file, named after the code of the language.

    Attributes:
        lists: The entries of each list.
        is_default: Whether prompts in this language are balanced. If not, they are only detected.
    """

    def __init__(self, path: Path) -> None:
        self.lists = read_lists(path)
        self.code = path.stem
        (self.name,) = self.lists["name"]
        self.is_default = "yes" in self.lists["default"]
        self._has_spaces = "no" not in self.lists.get("spaces", {})
        self._place_of_noun = _PLACE_OF_NOUN if self._has_spaces else _PLACE_WITHOUT_SPACES
        self._has_capital_nouns = "yes" in self.lists.get("capital-nouns", {})
        frames = [name for name in self.lists if name.startswith("bare-")]
        self._has_place_for_adjectives = any(
            "{}" in frame for n in frames for frame in self.lists[n]
        )
        self._words: dict[str, Words] = {}

    # ---- words

    def entries(self, name: str) -> list[str]:
        """Return the entries of a list, or an empty list if the table does not have it."""
        return list(self.lists.get(name, ()))

    def words(self, name: str) -> Words:
        """Return the matcher of a list."""
        if name not in self._words:
            self._words[name] = Words(self.entries(name), self._split)
        return self._words[name]

    def _split(self, text: str) -> tuple[str, ...]:
        """Split an entry of a list into words, as a prompt is split."""
        if not self._has_spaces:
            return tuple(text[start:end].lower() for start, end in self._spans(text))
        if text.isalpha():
            return (text.lower(),)
        return tuple(word.lower().translate(_VOWEL_SIGNS) for word in _WORD.findall(text))

    @cached_property
    def nouns(self) -> dict[tuple[str, ...], list[Noun]]:
        """All forms of all nouns, keyed by their words."""
        nouns: dict[tuple[str, ...], list[Noun]] = {}
        for name in self.lists:
            if not name.startswith("noun-"):
                continue
            frames_of_pattern = self._frames(name.removeprefix("noun-"))
            for entry in self.lists[name]:
                noun, female, male = (*entry.split("/"), "", "")[:3]
                texts = (noun, female or noun, male or noun)
                keys: dict[tuple[str, str], tuple[str, ...]] = {}  # most nouns are equal
                for (side, pattern), frames in frames_of_pattern.items():
                    text = texts[side]
                    if (pattern, text) not in keys:
                        keys[pattern, text] = self._split(_fill(pattern, text))
                    nouns.setdefault(keys[pattern, text], []).append(Noun(texts, side, frames))
        return nouns

    def _frames(self, class_of_noun: str) -> dict[tuple[int, str], tuple[Frame, ...]]:
        """Return the frames of a class of nouns.

        Returns:
            A mapping from the number of the text and the form of the noun, such as "~en", to the
            frames that contain it.
        """
        frames: dict[tuple[int, str], list[Frame]] = {}
        for kind in (*_FRAMES, "stated", "plural", "other"):
            for entry in self.entries(f"{kind}-{class_of_noun}"):
                parts = entry.split("/")
                neutral, female, male = parts if len(parts) == len(_SIDES) else parts * len(_SIDES)
                texts = (neutral, female, male)
                for side, text in enumerate(texts):
                    if kind == "stated" and side == 0:
                        continue  # an article that states the gender of a noun for both
                    match = self._place_of_noun.search(text.replace("{}", ""))
                    assert match is not None, entry
                    before, pattern, after = match.groups()
                    frame = Frame(kind, texts, side, self._split(before), self._split(after))
                    frames.setdefault((side, pattern), []).append(frame)
        ordered: dict[tuple[int, str], tuple[Frame, ...]] = {}
        for key, of_pattern in frames.items():
            of_pattern.sort(key=lambda frame: -len(frame.before) - len(frame.after))
            ordered[key] = tuple(of_pattern)
        return ordered

    @cached_property
    def _longest_noun(self) -> int:
        """The number of words in the longest noun."""
        return max(map(len, self.nouns))

    @cached_property
    def _pairs(self) -> dict[str, tuple[str, str]]:
        """The words of `next-pair`, each mapped to its forms for women and men."""
        pairs: dict[str, tuple[str, str]] = {}
        for entry in self.entries("next-pair"):
            male, female = entry.split("/")
            pairs[male] = pairs[female] = (female, male)
        return pairs

    @cached_property
    def _signs(self) -> frozenset[str]:
        """All words of a language without spaces."""
        signs: set[str] = set()
        for name, entries in self.lists.items():
            if name.startswith("noun-"):
                signs.update(noun for entry in entries for noun in entry.split("/"))
            elif name.startswith((*(f"{kind}-" for kind in _FRAMES), "plural-", "other-")):
                # The female and male texts consist of these words and of those that state a gender.
                for entry in entries:
                    neutral, *_ = entry.split("/")
                    signs.update(neutral.replace("{}", "").split("~"))
            elif not name.startswith("say-"):
                signs.update(word.lower() for word in entries)
        return frozenset(signs - {""})

    @cached_property
    def _longest_sign(self) -> int:
        return max(map(len, self._signs))

    # ---- reading

    def tokens(self, text: str) -> list[Token]:
        """Split a prompt into words, or into the longest listed words if it has no spaces."""
        text = text[:_LONGEST_PROMPT]
        tokens: list[Token] = []
        is_capital = text.isupper()
        end = 0
        for start, stop in self._spans(text):
            gap = text[end:start]
            word = text[start:stop]
            opens = not tokens or _BREAK.search(gap) is not None
            opens_sentence = not tokens or _SENTENCE_END.search(gap) is not None
            is_name = word[0].isupper() and not opens_sentence and not is_capital
            low = word.lower().replace("\u2019", "'").translate(_VOWEL_SIGNS)
            tokens.append(Token(start, stop, word, low, opens, is_name))
            end = stop
        return tokens

    def _spans(self, text: str) -> Iterator[tuple[int, int]]:
        if self._has_spaces:
            yield from (match.span() for match in _WORD.finditer(text))
            return
        # Offsets must stay valid, although a few capitals have two lower-case characters.
        low = text.lower() if len(text.lower()) == len(text) else text
        signs, longest = self._signs, self._longest_sign
        start = 0
        while start < len(low):
            length = min(longest, len(low) - start)
            while length and low[start : start + length] not in signs:
                length -= 1
            if not length:
                sign = _LATIN.match(low, start) or _SIGN.match(low, start)
                length = len(sign[0]) if sign else 0
            if length:
                yield start, start + length
            start += length or 1

    def people(self, tokens: Sequence[Token]) -> list[Person]:
        """Return all nouns for people in a prompt with their frames, in order."""
        lows = tuple(token.low for token in tokens)
        people: list[Person] = []
        i = 0
        while i < len(tokens):
            person = self._person_at(tokens, lows, i, people)
            i += 1
            if person is not None:
                # A shorter frame may end inside this one, as a word for a woman before a noun.
                if people and person.first <= people[-1].last:
                    people.pop()
                people.append(person)
                i = person.last + 1
        return people

    def _person_at(
        self, tokens: Sequence[Token], lows: tuple[str, ...], i: int, people: Sequence[Person]
    ) -> Person | None:
        """Return the person whose noun begins at word i, or None.

        Args:
            tokens: The words of the prompt.
            lows: The words in lower case.
            i: The position of the noun.
            people: The people before.
        """
        taken = people[-1].last if people else -1
        if people and people[-1].first == people[-1].last:
            taken -= 1
        for n in range(min(self._longest_noun, len(tokens) - i), 0, -1):
            nouns = self.nouns.get(lows[i : i + n])
            if nouns is None:
                continue
            best: Person | None = None
            for noun in nouns:
                for frame in noun.frames:
                    first, end = i - len(frame.before), i + n + len(frame.after)
                    if first <= taken or lows[first:i] != frame.before:
                        continue
                    if lows[i + n : end] != frame.after:
                        continue
                    if any(token.opens for token in tokens[first + 1 : end]):
                        continue
                    side = noun.side if frame.kind == "stated" else frame.side
                    if best is None or end - first > best.last + 1 - best.first:
                        best = Person(frame, noun.texts, side, first, end - 1, has_pair=False)
                    break
            if best is None:
                # In any other place, the noun is not plain.
                noun = min(nouns, key=lambda noun: noun.side)
                best = Person(_ELSEWHERE, noun.texts, noun.side, i, i + n - 1, has_pair=False)
            if best.first == best.last and best.side and self.words("not-stated").has(tokens[i]):
                return None
            end = best.last + 1
            if end < len(tokens) and not tokens[end].opens and lows[end] in self._pairs:
                return best._replace(last=end, has_pair=True)
            return best
        return None

    def reads(self, text: str) -> bool:
        return bool(self.people(self.tokens(text)))

    def knows(self, text: str) -> bool:
        tokens = self.tokens(blank_quotations(text))
        names = ("female", "male", "group", "fixed-gender")
        return any(next(self.words(name).find(tokens), None) is not None for name in names)

    def fit(self, text: str) -> tuple[int, int]:
        """Return how many words look foreign, as a negative number, and how many are read."""
        tokens = self.tokens(text)
        parts = self.entries("foreign-letters")
        n_foreign = sum(any(part in f" {token.low} " for part in parts) for token in tokens)
        n_read = sum(person.last - person.first + 1 for person in self.people(tokens))
        return -n_foreign, n_read

    # ---- stated values

    def states(self, text: str, attribute: Attribute) -> bool:
        tokens = self.tokens(text)
        if attribute.gender:
            people = self.people(tokens)
            return any(person.side for person in people) or bool(self._stating(tokens, people))
        if next(self.words(f"stated-{_kind_of(attribute)}").find(tokens), None) is not None:
            return True
        value_words = {word.lower() for word in attribute.set.languages.get(self.code, {}).values()}
        if not self._has_spaces:
            return any(word in text.lower() for word in value_words)
        return any(token.low in value_words for token in tokens)

    def stated_values(self, text: str, attribute: Attribute) -> list[str]:
        if not attribute.gender:
            return []
        tokens = self.tokens(text)
        people = self.people(tokens)
        stated = {_SIDES[person.side] for person in people}
        stated.update(self._stating(tokens, people))
        return [value for value in attribute.words if _name_of(value, attribute) in stated]

    def _stating(self, tokens: Sequence[Token], people: Sequence[Person]) -> list[str]:
        """Return what the words that are not part of a form state, "female" or "male"."""
        taken = _positions(people)
        stating: list[str] = []
        for name in ("female", "male"):
            for first, _ in self.words(name).find(tokens):
                if first not in taken and not self.words("not-stated").has(tokens[first]):
                    stating.append(name)
        return stating

    # ---- people who can get a value

    def find(self, text: str, attribute: Attribute) -> tuple[Mention, ...] | str:
        if reason := self._why_no_word(attribute):
            return reason
        tokens = self.tokens(blank_quotations(text))
        people = self.people(tokens)
        reason = self._why_closed(text, tokens, people, attribute)
        reason = reason or self._why_not_plain(text, tokens, people, attribute)
        if reason:
            return reason
        mentions: list[Mention] = []
        for person in people:
            span = (tokens[person.first].start, tokens[person.last].end)
            reason = "stated" if attribute.gender and person.side else ""
            mentions.append(Mention(person.nouns[0], *span, span, reason))
        return tuple(mentions)

    def _why_not_plain(
        self, text: str, tokens: Sequence[Token], people: Sequence[Person], attribute: Attribute
    ) -> str:
        """Return why the people in a prompt are not plain, or ""."""
        if not people:
            has_group = any(map(partial(self._has, tokens), ("group", "plural")))
            return NOT_PLAIN if has_group else NO_PERSON
        misplaced = [person for person in people if not self._stands_well(tokens, person)]
        if attribute.gender and any(person.side for person in misplaced):
            return "stated"
        has_doubt = any(map(partial(self._has_outside, tokens, people), _DOUBTS))
        has_sign = any(_has_sign(text, tokens, person) for person in people)
        is_plain = not (misplaced or has_doubt or has_sign) and self._are_linked(tokens, people)
        is_plain = is_plain and not self._has_doubtful_word(tokens, people)
        return "" if is_plain else NOT_PLAIN

    def _why_closed(
        self, text: str, tokens: Sequence[Token], people: Sequence[Person], attribute: Attribute
    ) -> str:
        """Return why nobody in a prompt gets a value, whoever is in it, or ""."""
        for first, _ in self.words("person-name").find(tokens):
            name = tokens[first].text
            # Some scripts have no capitals.
            if name[0].isupper() or name.upper() == name.lower():
                return "named"
        for first, last in self.words(f"fixed-{_kind_of(attribute)}").find(tokens):
            return context_reason(text[tokens[first].start : tokens[last].end])
        if not attribute.gender:
            return "stated" if self.states(text, attribute) else ""
        for token in tokens:
            if re.fullmatch("[0-9]{4}", token.low) and int(token.low) < _OPEN_SINCE:
                return context_reason(token.low)
        return "stated" if self._stating(tokens, people) else ""

    def _has(self, tokens: Sequence[Token], name: str) -> bool:
        """Return whether any word or phrase matches a list."""
        return next(self.words(name).find(tokens), None) is not None

    def _has_outside(self, tokens: Sequence[Token], people: Sequence[Person], name: str) -> bool:
        """Return whether any word or phrase matches a list and is not part of a person."""
        taken = _positions(people)
        return any(first not in taken for first, _ in self.words(name).find(tokens))

    def _why_no_word(self, attribute: Attribute) -> str:
        """Return why no value of an attribute can be written in this language, or ""."""
        if not self.is_default:
            return f"language: {self.name}"
        if attribute.gender and not attribute.has_phrases:
            names = {_name_of(value, attribute) for value in attribute.words}
            if names <= set(_SIDES):
                return ""
        if not self._has_place_for_adjectives:
            return "form"
        is_own = self.code in attribute.set.languages
        if (attribute.has_phrases and not is_own) or not (attribute.kind or is_own):
            return "no word"
        return (
            "" if all(self._word_of(value, attribute) for value in attribute.words) else "no word"
        )

    def _stands_well(self, tokens: Sequence[Token], person: Person) -> bool:
        """Return whether a noun stands in a plain place.

        It begins a clause, or follows a picture word, "and" or a preposition. Behind it, the clause
        ends or goes on with a listed word, such as a preposition or a verb.
        """
        opening = person.first
        while not tokens[opening].opens:
            opening -= 1
        before = tokens[opening : person.first]
        after = tokens[person.last + 1 : person.last + 2]
        is_end = not after or after[0].opens
        names = ["next", "after"]
        if before and self.words("and").has(before[-1]):
            names.append("plural-verb")
        is_followed = not is_end and any(self.words(name).has(after[0]) for name in names)
        kind = person.frame.kind
        if not (is_end or is_followed or person.has_pair or kind == "subject"):
            return False
        if kind in ("bare", "subject") and not before:
            earlier = tokens[: person.first]
            if earlier and self.words("article").has(earlier[-1]):
                return False  # markup stands between the article and the noun
            # A bare noun in a late clause is a tag, which may name a style or a role.
            return not is_end or all(map(self._is_about_picture, earlier))
        return self._begins_well(before, kind)

    def _begins_well(self, before: Sequence[Token], kind: str) -> bool:
        """Return whether a frame may follow these words of its clause.

        Args:
            before: The words.
            kind: The kind of the frame.
        """
        if kind not in (*_FRAMES, "stated"):
            return False
        if kind == "start" or not before:
            return not before and kind != "of"
        last = before[-1]
        is_picture = all(map(self._is_about_picture, before))
        if kind == "of":
            return is_picture and self.words("picture").has(last)
        if kind in ("bare", "subject"):
            # An adjective would have to agree, and an article is not listed with the noun.
            if self.words("article").has(last) or self.words("picture-adjective").has(last):
                return False
        is_joined = self.words("and").has(last) or self.words("modifier").has(last)
        is_behind = kind in ("frame", "stated") and self.words("next").has(last)
        return is_picture or is_joined or is_behind

    def _is_about_picture(self, token: Token) -> bool:
        names = ("picture", "picture-adjective", "article", "request")
        return any(self.words(name).has(token) for name in names)

    def _are_linked(self, tokens: Sequence[Token], people: Sequence[Person]) -> bool:
        """Return whether all people are different, and linked to each other and to nobody else."""
        nouns = {person.nouns[0] for person in people}
        if len(nouns) < len(people):
            return False  # "the other nurse", or the same nurse
        ends_of_people = {person.last for person in people}
        starts_of_people = {person.first for person in people}
        for number, person in enumerate(people):
            before = tokens[person.first - 1] if person.first else None
            is_apart = before is None or tokens[person.first].opens
            if number and is_apart:
                return False  # It may describe the same person: "une femme, médecin".
            if number and before is not None:
                names = ("and", "next", "modifier")
                if not any(self.words(name).has(before) for name in names):
                    return False
            # An unlisted word "and a violinist": it may be a person, too.
            is_joined = before is not None and not is_apart and self.words("and").has(before)
            if is_joined and not number and person.first - 1 not in ends_of_people:
                return False
            # "A violinist and" an unlisted word.
            link = person.last if self.words("and").has(tokens[person.last]) else person.last + 1
            is_behind = link < len(tokens) and self.words("and").has(tokens[link])
            if is_behind and (link == person.last or not tokens[link].opens):
                if link + 1 not in starts_of_people:
                    return False
        return True

    def _has_doubtful_word(self, tokens: Sequence[Token], people: Sequence[Person]) -> bool:
        """Return whether a word may have to agree with a person, or may be a name."""
        taken = _positions(people)
        clause_of_word = [0] * len(tokens)
        for i in range(1, len(tokens)):
            clause_of_word[i] = clause_of_word[i - 1] + tokens[i].opens
        clauses_of_people = {clause_of_word[person.first] for person in people}
        number = 0  # of words since the start of the clause
        is_place = False
        for i, token in enumerate(tokens):
            if token.opens:
                number = 0
            elif not self.words("adverb").has(tokens[i - 1]):
                number += 1
            # The name of a place may follow a preposition such as "in".
            is_place = i > 0 and (self.words("place").has(tokens[i - 1]) or is_place)
            is_place = is_place and token.is_name
            if i in taken:
                continue
            is_in_clause = clause_of_word[i] in clauses_of_people
            is_name = token.is_name and not is_place and not self._has_capital_nouns
            if is_in_clause and is_name:
                return True
            if i <= people[0].last:
                continue
            # A preposition may precede a relative pronoun.
            is_relative = number == 0 or (number == 1 and self.words("next").has(tokens[i - 1]))
            if is_relative and not is_in_clause and self.words("relative").has(token):
                return True
            if self._agrees(token, is_in_clause, number):
                return True
        return False

    def _agrees(self, token: Token, is_clause_of_person: bool, number: int) -> bool:
        """Return whether a word may have to agree with a person.

        Args:
            token: The word.
            is_clause_of_person: Whether there is a person in its clause.
            number: How many words precede it in its clause.
        """
        if self.words("does-not-agree").has(token):
            return False
        if is_clause_of_person and token.low in self._pairs:
            return True
        return (is_clause_of_person or number == 0) and self.words("agrees").has(token)

    # ---- writing

    def write(self, text: str, assignments: Sequence[Assignment]) -> list[Replacement]:
        assignments_of_place: dict[tuple[int, int], list[Assignment]] = {}
        for assignment in assignments:
            assignments_of_place.setdefault(assignment[0].place, []).append(assignment)
        replacements: list[Replacement] = []
        for (start, end), assignments_here in assignments_of_place.items():
            words: list[str] = []
            gender = ""
            for person, attribute, value in assignments_here:
                name = _name_of(value, attribute)
                if attribute.gender and person.noun and name in _SIDES[1:]:
                    gender = name
                else:
                    words.append(self._word_of(value, attribute))
            source = text[start:end]
            if assignments_here[0][0].noun:
                written = self._written(source, gender, "".join(words))
            else:
                # The word replaces a placeholder, or goes to the offset from the user's `find`.
                written = "".join(words).strip()
            replacements.append(Replacement(start, end, written))
        return replacements

    def _written(self, source: str, gender: str, words: str) -> str:
        """Return a form with values, spelled like the form that it replaces."""
        tokens = self.tokens(source)
        person = self.people(tokens)[0]
        side = _SIDES.index(gender) if gender else person.frame.side
        text = _fill(person.frame.texts[side], person.nouns[side]).replace("{}", words)
        own_side = person.frame.side
        listed = _fill(person.frame.texts[own_side], person.nouns[own_side]).replace("{}", "")
        last = person.last - person.has_pair
        head, tail = source[: tokens[last].end], source[tokens[last].end :]
        if tail and side:
            tail = f" {self._pairs[tail.strip().lower()][side - 1]}"
        if "\u2019" in source:
            text, listed = text.replace("'", "\u2019"), listed.replace("'", "\u2019")
        if head == listed:
            return text + tail
        if head.islower():
            return text.lower() + tail
        return with_capitals_of(source, text + tail)

    def _word_of(self, value: Any, attribute: Attribute) -> str:
        """Return the word for a value, or "" if the language does not have one."""
        word_of_value = attribute.set.languages.get(self.code, {})
        if value in word_of_value:
            return word_of_value[value]
        words = self.entries(f"say-{_name_of(value, attribute)}")
        return words[0] if words else ""


def _has_sign(text: str, tokens: Sequence[Token], person: Person) -> bool:
    """Return whether a form contains a sign, or an ending is apart from it: "un/a médico/a"."""
    for i in range(person.first, person.last):
        # Markup has been replaced by spaces.
        if text[tokens[i].end : tokens[i + 1].start] not in ("", " "):
            return True
    following = text[tokens[person.last].end :]
    preceding = text[: tokens[person.first].start]
    return bool(
        re.match(r"[/*:(_@\u00b7]\w*[^\W\d]", following) or re.search(r"\w[/*_@]$", preceding)
    )


def _fill(frame: str, noun: str) -> str:
    """Insert a noun for "~" in a frame, without its last letter for each "<" that follows."""
    start, _, end = frame.partition("~")
    ending = end.lstrip("<")
    return start + noun[: len(noun) - (len(end) - len(ending))] + ending


def _positions(people: Iterable[Person]) -> set[int]:
    """Return the positions of all words that belong to people."""
    return {i for person in people for i in range(person.first, person.last + 1)}


def _kind_of(attribute: Attribute) -> str:
    return _KINDS.get(attribute.kind, "own")


def _name_of(value: Any, attribute: Attribute) -> str:
    """Return the name that the tables use for a value, such as "female", or ""."""
    if isinstance(value, Mapping):
        return ""
    return NAME_OF_WORD.get(attribute.words[value].lower(), "")


def blank_quotations(text: str) -> str:
    """Replace quoted text with spaces, unless the entire prompt is quoted.

    The quotation marks remain, because they end a clause. Offsets stay valid.
    """
    if _QUOTED.fullmatch(text.strip()):
        return text
    return _QUOTED.sub(lambda match: match[0][0] + " " * (len(match[0]) - 2) + match[0][-1], text)
