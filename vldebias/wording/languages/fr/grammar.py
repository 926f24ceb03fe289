"""French: "un infirmier fatigué" becomes "une infirmière fatiguée" or "un infirmier homme"."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from vldebias.wording.languages.romance import RomanceLanguage

_VOWELS = tuple("aeiouyhéèêâàîôœ")


class French(RomanceLanguage):
    """Find persons in French prompts, and write a value with the agreement that it needs."""

    code = "fr"
    name = "French"
    folder = Path(__file__).parent
    joiner = " et "
    endings: ClassVar[dict[str, str]] = {
        "ien": "ienne",
        "ier": "ière",
        "cher": "chère",
        "ger": "gère",
        "yer": "yère",
        "eux": "euse",
        "oux": "ouse",
        "if": "ive",
        "el": "elle",
        "al": "ale",
        "ais": "aise",
        "ois": "oise",
        "ain": "aine",
        "in": "ine",
        "ant": "ante",
        "ent": "ente",
        "and": "ande",
        "at": "ate",
        "u": "ue",
        "é": "ée",
        "i": "ie",
    }
    keeps: ClassVar[tuple[str, ...]] = ("e",)
    not_adjectives: ClassVar[tuple[str, ...]] = (
        "ant",
        "ent",
        "at",
        "ment",
        "in",
        "ier",
        "ger",
        "i",
        "cher",
    )
    unsure: ClassVar[tuple[str, ...]] = ("ant",)
    feminine_adjectives: ClassVar[tuple[str, ...]] = (
        *("euse", "ée", "ante", "ente", "ive", "ienne", "elle", "ière", "ale", "aise", "oise"),
        *("able", "ible", "ique", "iste", "ère", "ète"),
    )
    contracted: ClassVar[dict[tuple[str, str], str]] = {("de", "le"): "du", ("à", "le"): "au"}
    participles: ClassVar[tuple[str, ...]] = ("é", "i", "u", "assis")
    feminine_participles: ClassVar[tuple[str, ...]] = ("ée", "ie", "ue", "assise", "euse")

    def plurals_of(self, word: str) -> tuple[str, ...]:
        """Return the plural of a word."""
        if word.endswith(("s", "x", "z")):
            return ()
        if word.endswith("al"):
            return (word[:-2] + "aux",)
        return (word + "x",) if word.endswith("eau") else (word + "s",)

    def feminine_article(self, article: str, following: str) -> str:
        """Return the feminine of an article: "la", "l'", "de la", "de l'", "ma", "mon"."""
        has_vowel = following.startswith(_VOWELS)
        if article in ("mon", "ton", "son"):
            return article if has_vowel else article[0] + "a"
        table = {"le": "l'", "du": "de l'", "au": "à l'"}
        if has_vowel and article in table:
            return table[article]
        if article == "l'" and not has_vowel:
            return "la"
        return {"du": "de la", "au": "à la"}.get(article, self.articles.get(article, article))

    def masculine_article(self, article: str, following: str) -> str:
        """Return the masculine of a feminine article before "homme" or an adjective."""
        has_vowel = following.startswith(_VOWELS)
        if article in ("ma", "ta", "sa"):
            return article[0] + "on"
        if article == "la":
            return "l'" if has_vowel else "le"
        if article == "cette":
            return "cet" if has_vowel else "ce"
        return {"une": "un", "l'": "l'", "quelle": "quel", "aucune": "aucun"}.get(article, article)


LANGUAGE = French()
