"""Arabic: طبيب becomes طبيبة or رجل طبيب; شخص طموح becomes امرأة طموحة or رجل طموح."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from vldebias.prompts.language import Replacement
from vldebias.prompts.languages.base import Phrase, Reading, SpacedLanguage, Token

_MARKS = re.compile("[\u064b-\u0652\u0670\u0640]")  # short vowels, nunation and lengthening
# What is written together with a noun: "and", "for", "in", "as", and the article.
_PREFIX = re.compile(r"^(و|ف)?(لل|بال|كال|ال|[لبك])?(.+)$")
_PLACES = frozenset(("في", "أمام", "داخل", "مع", "خلف", "على", "بجانب"))
_NOT_POSSESSED = frozenset(
    (
        "وجه",
        "مياه",
        "اتجاه",
        "انتباه",
        "الوجه",
        "المياه",
        "فواكه",
        "شبه",
        "منتزه",
        "ترفيه",
        "تنبيه",
        "توجيه",
    )
)


class Form(NamedTuple):
    """Hold a phrase: what is written before its noun, the noun, what agrees with it."""

    prefix: str
    noun: str
    adjectives: tuple[int, ...]
    verb_before: int | None
    verb_behind: int | None
    of_several: int | None  # أحد of "one of the doctors"


class Arabic(SpacedLanguage):
    """Find persons in Arabic prompts, and write a value with all that agrees."""

    code = "ar"
    name = "Arabic"
    folder = Path(__file__).parent
    word = r"[\u0621-\u064a\u064b-\u0652\u0670\u0671-\u06d3]+|[A-Za-z]+|\d+"
    comma = "،"
    joiner = " و"

    def read(self, text: str) -> Reading:
        """Return the words of a prompt, in small letters without marks of vowels."""
        tokens = super().read(text)
        for i, token in enumerate(tokens):
            tokens[i] = token._replace(low=_MARKS.sub("", token.low))
        return tokens

    @cached_property
    def _nouns(self) -> dict[str, tuple[str, bool]]:
        """Return form -> masculine singular, and whether the form is a plural."""
        nouns: dict[str, tuple[str, bool]] = {}
        for entry in self.entries("person"):
            noun, *plurals = entry.split("/")
            plurals += [noun + "ون", noun + "ين"]
            for plural in plurals:
                nouns.setdefault(plural, (noun, True))
            nouns[noun] = (noun, False)
        nouns["شخص"] = ("شخص", False)
        return nouns

    @cached_property
    def _feminine_nouns(self) -> frozenset[str]:
        forms: set[str] = set()
        for noun, is_plural in self._nouns.values():
            if not is_plural:
                forms.update((feminine(noun), feminine(noun)[:-1] + "ات"))
        return frozenset(forms - set(self.entries("not-stated")))

    def _split(self, token: Token) -> tuple[str, str]:
        """Return what is written before a noun, and the noun."""
        if token.low in self._nouns or token.low in self._feminine_nouns:
            return "", token.low
        match = _PREFIX.match(token.low)
        if match is None:
            return "", token.low
        joined, article, noun = match.groups()
        for prefix, rest in (
            ((joined or "") + (article or ""), noun),
            (joined or "", (article or "") + noun),
            ("", token.low),
        ):
            if rest in self._nouns or rest in self._feminine_nouns:
                return prefix, rest
        return "", token.low

    def states_gender(self, tokens: Reading, i: int) -> bool:
        """Return whether word i states a gender."""
        token = tokens[i]
        plain = token.low.removeprefix("و")
        if plain == "عجوز" and self._follows_person(tokens, i):
            return False  # "old", of a man as well
        for word in (token.low, plain):
            if word in self.matcher("female").words or word in self.matcher("male").words:
                return True
        prefix, noun = self._split(token)
        if noun not in self._feminine_nouns or noun in self._nouns:
            return False
        # "الأنظمة الكهربائية", "منتجات": an adjective or a plural of things.
        is_sure = not noun.endswith(("ية", "ات"))
        return is_sure or prefix.startswith(("و", "ل", "ب")) or self._is_head(tokens, i)

    def _is_head(self, tokens: Reading, i: int) -> bool:
        """Return whether a noun opens a phrase: at the start, behind "face of" or "one of"."""
        if tokens[i].opens:
            return True
        return tokens[i - 1].low in ("وجه", "لوجه", "صورة", "هي", "مع", "و", "إحدى", "لإحدى", "من")

    def is_named(self, tokens: Reading, phrases: list[Phrase]) -> bool:
        """Return whether a prompt names a person; Arabic has no capitals that would say it."""
        if self.matcher("famous").find(tokens) is not None:
            return True
        for i, token in enumerate(tokens):
            if token.quoted:
                continue
            is_adjective = self.matcher("adjective").has(token)
            if self.matcher("given").has(token) and not is_adjective:
                return True
            if not self.matcher("title").has(token) or i + 1 == len(tokens):
                continue
            after = tokens[i + 1]
            is_word = self.matcher("no-adjective").has(after) or after.low.startswith("ال")
            if not after.opens and not is_word and not self._is_verb(after):
                return True
        return False

    # ---- phrases

    def phrase_at(self, tokens: Reading, i: int) -> Phrase | None:
        """Return the phrase whose noun is word i, or None where it is no person."""
        if self.states_gender(tokens, i):
            return Phrase(i, i, None, stated=True)
        prefix, noun = self._split(tokens[i])
        found = self._nouns.get(noun)
        if found is None or self._is_no_person(tokens, i, prefix, found[0]):
            return None
        masculine, is_plural = found
        before = tokens[i - 1] if i and not tokens[i].opens else None
        if is_plural and before is not None and before.low in ("أحد", "لأحد", "احد"):
            return Phrase(i - 1, i, Form(prefix, masculine, (), None, None, i - 1))
        size = self.number_before(tokens, i)
        if is_plural or size is not None:
            return Phrase(i - (size is not None), i, None, plural=True, size=size)
        adjectives = self._adjectives(tokens, i, prefix, masculine)
        last = adjectives[-1] if adjectives else i
        verb_before = i - 1 if before is not None and self._is_verb(before) else None
        verb_behind = None
        if (
            last + 1 < len(tokens)
            and not tokens[last + 1].opens
            and self._is_verb(tokens[last + 1])
        ):
            verb_behind = last + 1
        form = Form(prefix, masculine, adjectives, verb_before, verb_behind, None)
        return Phrase(i, i, form, last=last)

    def _is_no_person(self, tokens: Reading, i: int, prefix: str, noun: str) -> bool:
        """Return whether a noun is a thing here, or says of which kind a person before is."""
        if self.matcher("not-person").length_at(tokens, i):
            return True
        if self._follows_person(tokens, i) and not prefix.startswith("و"):
            return True
        return noun in self.matcher("not-person").words and not self._is_shown(tokens, i)

    def _follows_person(self, tokens: Reading, i: int) -> bool:
        """Return whether the word before is a person, of whom this one says the kind."""
        if not i or tokens[i].opens:
            return False
        _, noun = self._split(tokens[i - 1])
        return noun in self._nouns

    def _is_shown(self, tokens: Reading, i: int) -> bool:
        if not i or tokens[i].opens:
            return False
        return tokens[i - 1].low in ("وجه", "لوجه", "صورة")

    def _adjectives(self, tokens: Reading, i: int, prefix: str, noun: str) -> tuple[int, ...]:
        """Return the positions of the adjectives behind a noun; they have its article."""
        is_definite = prefix.endswith("ال") or prefix == "لل"
        adjectives: list[int] = []
        for j in range(i + 1, len(tokens)):
            token = tokens[j]
            if token.opens or self.matcher("no-adjective").has(token):
                break
            has_article = token.low.startswith("ال")
            word = token.low.removeprefix("ال") if is_definite else token.low
            if is_definite != has_article:
                break
            is_first_of_human = noun == "شخص" and not adjectives and not self._is_verb(token)
            is_first_of_human = is_first_of_human and not word.endswith("ه")
            if word not in self.matcher("adjective").words and not self._is_relation(word):
                if not is_first_of_human or word.startswith(("ب", "ل")) or word.endswith("ة"):
                    break
            adjectives.append(j)
        return tuple(adjectives)

    def _is_relation(self, word: str) -> bool:
        """Return whether a word ends like an adjective of relation: كهربائي, ألماني."""
        if word.startswith("ي") and word not in self.matcher("not-verb").words:
            return False  # "يلقي"
        return len(word) > 3 and word.endswith("ي") and word not in ("كرسي", "مقهى")

    def _is_verb(self, token: Token) -> bool:
        low = token.low.removeprefix("و")
        is_listed = low in self.matcher("not-verb").words
        return len(low) > 2 and low.startswith("ي") and not is_listed

    def is_role(self, tokens: Reading, person: Phrase, phrase: Phrase) -> bool:
        """Return whether a phrase says what a person is, by "as" before its noun: كطبيب."""
        if super().is_role(tokens, person, phrase):
            return True
        is_as = phrase.form is not None and phrase.form.prefix == "ك"
        return is_as and not person.plural

    def write_role(self, tokens: Reading, role: Phrase, gender: str) -> list[Replacement]:
        """Return "as a doctor" of a woman: كطبيبة."""
        form: Form | None = role.form
        if form is None or gender != "female":
            return []
        token = tokens[role.head]
        return [Replacement(token.start, token.end, form.prefix + feminine(form.noun))]

    # ---- writing

    def lacks_form(self, phrase: Phrase) -> bool:
        """Return whether no adjective can be written beside a person: أحد المهندسين."""
        return phrase.form is None or phrase.form.of_several is not None

    def write_one(
        self, tokens: Reading, phrase: Phrase, words: Mapping[str, str]
    ) -> list[Replacement]:
        """Return the replacements that say values of one person."""
        form: Form = phrase.form
        gender = words.get("gender", "")
        adjectives = [word for kind, word in words.items() if kind != "gender"]
        if form.of_several is not None:
            return self._of_several(tokens, phrase, gender)
        changes: dict[int, str] = {}
        is_definite = form.prefix.endswith("ال") or form.prefix == "لل"
        if gender == "female":
            noun = "امرأة" if form.noun == "شخص" else feminine(form.noun)
            if is_definite and form.noun == "شخص":
                noun = "مرأة"
            changes[phrase.head] = form.prefix + noun
            for i in form.adjectives:
                changes[i] = feminine(tokens[i].low)
            self._agree(tokens, phrase, changes)
        elif gender == "male":
            if form.noun == "شخص":
                changes[phrase.head] = form.prefix + "رجل"
            else:
                changes[phrase.head] = self._as_man(tokens, phrase, is_definite)
        if adjectives:
            texts: list[str] = []
            for word in adjectives:
                text = feminine(word) if gender == "female" else word
                texts.append(f"ال{text}" if is_definite else text)
            last = max(phrase.last, phrase.head)
            changes[last] = " ".join([changes.get(last, tokens[last].text), *texts])
        return [Replacement(tokens[i].start, tokens[i].end, text) for i, text in changes.items()]

    def _as_man(self, tokens: Reading, phrase: Phrase, is_definite: bool) -> str:
        """Return the noun in apposition: رجل طبيب, الرجل الطبيب, الرجل مدير المبيعات."""
        form: Form = phrase.form
        if is_definite:
            return f"{form.prefix}رجل ال{form.noun}"
        following = tokens[phrase.head + 1] if phrase.head + 1 < len(tokens) else None
        is_of_definite = False
        if following is not None and not following.opens:
            is_of_definite = following.low.startswith("ال")
        if is_of_definite:
            prefix = form.prefix[:-1] + "لل" if form.prefix.endswith("ل") else form.prefix + "ال"
            return f"{prefix}رجل {form.noun}"
        return f"{form.prefix}رجل {form.noun}"

    def _agree(self, tokens: Reading, phrase: Phrase, changes: dict[int, str]) -> None:
        """Change what agrees with a noun into the feminine, up to the next person: verbs, "who",
        "his", "himself" and what somebody looks like."""
        form: Form = phrase.form
        if form.verb_before is not None:
            changes[form.verb_before] = _feminine_verb(tokens[form.verb_before].text)
        is_subject = True  # of the next verb: no verb and no preposition stands between
        for i in range(phrase.head + 1, len(tokens)):
            token = tokens[i]
            if i > phrase.last and self._ends_clause(tokens, i):
                break
            if i in changes:
                continue
            before = tokens[i - 1]
            if self._is_verb(token) and before.low not in _PLACES:
                is_of_definite = before.low.startswith("ال") or _is_possessed(before.low)
                is_joined = token.low.startswith("و") or self._is_verb(before)
                if is_subject or is_joined or is_of_definite:
                    changes[i] = _feminine_verb(token.text)
                is_subject = False
            elif token.low in _PLACES:
                is_subject = False
            elif token.low == "الذي" and is_subject:
                changes[i] = "التي"
            elif token.low == "نفسه":
                changes[i] = "نفسها"
            elif token.low.endswith("ته") or self._is_his(tokens, i):
                changes[i] = token.text + "ا"  # "in his studio"
            elif is_subject and self._is_of_head(tokens, i):
                changes[i] = feminine(token.low)
            elif self._is_state(tokens, i):
                changes[i] = feminine(token.low.removesuffix("ا"))

    def _ends_clause(self, tokens: Reading, i: int) -> bool:
        """Return whether a sentence or another person begins with word i."""
        if re.search(r"[.;:!?\n\u061b\u061f]", tokens.gap(i)):
            return True
        return self.phrase_at(tokens, i) is not None

    def _is_his(self, tokens: Reading, i: int) -> bool:
        """Return whether a word is a thing of somebody, behind a verb or a preposition: كتابه."""
        before = tokens[i - 1]
        is_object = before.low in _PLACES or self._is_verb(before)
        return is_object and _is_possessed(tokens[i].low)

    def _is_of_head(self, tokens: Reading, i: int) -> bool:
        """Return whether a masculine adjective stands behind a feminine noun, and so belongs to the
        person before: لاعب كرة سلة طويل."""
        is_adjective = tokens[i].low.removeprefix("ال") in self.matcher("adjective").words
        return is_adjective and tokens[i - 1].low.endswith("ة")

    def _is_state(self, tokens: Reading, i: int) -> bool:
        """Return whether a word says in which state or trade somebody is: مبتسما, يعمل سباكا."""
        word = tokens[i].low
        if not word.endswith("ا"):
            return False
        stem = word.removesuffix("ا")
        if stem in self.matcher("state").words or stem in self.matcher("adjective").words:
            return True
        return tokens[i - 1].low in ("يعمل", "يشتغل") and stem in self._nouns

    def _of_several(self, tokens: Reading, phrase: Phrase, gender: str) -> list[Replacement]:
        """Return "one of the doctors" of a woman or man: إحدى الطبيبات, أحد الأطباء الرجال."""
        form: Form = phrase.form
        article = tokens[phrase.head - 1]
        noun = tokens[phrase.head]
        if gender != "female":
            text = f"{noun.text} الرجال" if gender else noun.text
            return [Replacement(noun.start, noun.end, text)] if gender else []
        pronoun = "لإحدى" if article.low.startswith("ل") else "إحدى"
        women = form.prefix + feminine(form.noun)[:-1] + "ات"
        return [
            Replacement(article.start, article.end, pronoun),
            Replacement(noun.start, noun.end, women),
        ]


def _is_possessed(word: str) -> bool:
    """Return whether a word ends with "his"."""
    return len(word) > 3 and word.endswith("ه") and word not in _NOT_POSSESSED


def _feminine_verb(verb: str) -> str:
    """Return a verb of the present in the feminine, with its "and": ويبتسم is وتبتسم."""
    joined = "و" if verb.startswith("و") else ""
    return f"{joined}ت{verb.removeprefix('و')[1:]}"


def feminine(word: str) -> str:
    """Return the feminine of a noun or adjective in the masculine singular.

    >>> feminine("طبيب"), feminine("قاض")
    ('طبيبة', 'قاضية')
    """
    if word.removeprefix("ال") in (
        "محام",
        "قاض",
        "طاه",
        "راع",
        "مغن",
        "ساع",
        "ساق",
        "مرب",
        "مشتر",
        "مسترخ",
        "منطو",
    ):
        return word + "ية"
    irregular = {
        "عجوز": "عجوز",
        "أبيض": "بيضاء",
        "أسود": "سوداء",
        "أسمر": "سمراء",
        "رحالة": "رحالة",
    }
    if word in irregular:
        return irregular[word]
    return word if word.endswith("ة") else word + "ة"


LANGUAGE = Arabic()
