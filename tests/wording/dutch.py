"""Define a small Dutch grammar that is not part of the package, following
docs/how-to/languages.md."""

from __future__ import annotations

import re

from vldebias.wording.language import Language, Mention, Replacement

NOUNS = ("dokter", "verpleegkundige", "kok", "leraar", "bakker", "persoon")
STATED = re.compile(r"\b(?:vrouw|man|zij|hij|meisje|jongen|vrouwelijke?|mannelijke?)\b", re.I)
NOUN = re.compile(rf"\b(?:{'|'.join(NOUNS)})\b", re.I)
WORDS = {"female": "vrouwelijke", "male": "mannelijke"}


class Dutch(Language):
    """Find "een dokter" and write "een vrouwelijke dokter"."""

    code = "nl"
    name = "Dutch"

    def reads(self, text):
        """Return whether a Dutch article precedes a known noun."""
        return bool(re.search(r"\b(?:een|de|het)\b", text) and NOUN.search(text))

    def states(self, text, attribute):
        """Return whether a word states a value."""
        return bool(STATED.search(text))

    def find(self, text, attribute):
        """Return the people, or the reason why nobody gets a value."""
        if not set(attribute.words.values()) <= WORDS.keys():
            return "no word"
        if self.states(text, attribute):
            return "stated"
        persons = []
        for match in NOUN.finditer(text):
            start = match.start()
            persons.append(Mention(match[0], start, match.end(), (start, start)))
        return tuple(persons) or "no person"

    def write(self, text, assignments):
        """Return an insertion of the adjective before each noun."""
        replacements = []
        for person, attribute, value in assignments:
            word = WORDS[attribute.words[value]]
            replacements.append(Replacement(person.start, person.start, f"{word} "))
        return replacements
