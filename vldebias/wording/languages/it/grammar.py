"""Italian: "un architetto stanco" becomes "un'architetta stanca" or "un architetto uomo stanco"."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from vldebias.wording.languages.romance import RomanceLanguage

_VOWELS = tuple("aeiouàèéìòù")
_BEFORE_UOMO = {
    "una": "un",
    "la": "l'",
    "della": "dell'",
    "alla": "all'",
    "dalla": "dall'",
    "nella": "nell'",
    "sulla": "sull'",
    "questa": "quest'",
    "quella": "quell'",
}
_BEFORE_CONSONANT = {
    "una": "un",
    "la": "il",
    "della": "del",
    "alla": "al",
    "dalla": "dal",
    "nella": "nel",
    "sulla": "sul",
    "questa": "questo",
    "quella": "quel",
}


class Italian(RomanceLanguage):
    """Find persons in Italian prompts, and write a value with the agreement that it needs."""

    code = "it"
    name = "Italian"
    folder = Path(__file__).parent
    joiner = " e "
    endings: ClassVar[dict[str, str]] = {"tore": "trice", "iere": "iera", "o": "a"}
    keeps: ClassVar[tuple[str, ...]] = ("ista", "e", "a", "i", "u")
    not_adjectives: ClassVar[tuple[str, ...]] = ("ando", "endo", "mente", "tore", "iere")
    feminine_adjectives: ClassVar[tuple[str, ...]] = (
        *(
            "iva",
            "osa",
            "ata",
            "uta",
            "ita",
            "evole",
            "ante",
            "ente",
            "abile",
            "ibile",
            "esta",
            "ura",
            "era",
            "ace",
            "nea",
            "ica",
            "ana",
        ),
    )
    participles: ClassVar[tuple[str, ...]] = ("ato", "uto", "ito", "eso", "tto", "sto", "lto")
    feminine_participles: ClassVar[tuple[str, ...]] = ("ata", "uta", "ita", "esa", "sta")

    def plurals_of(self, word: str) -> tuple[str, ...]:
        """Return the plural of a word; of "-co" and "-go" both possible ones."""
        if word.endswith(("co", "go")):
            return (word[:-1] + "i", word[:-1] + "hi")
        if word.endswith("io"):
            return (word[:-1], word[:-1] + "i")
        if word.endswith(("ca", "ga")):
            return (word[:-1] + "he", word[:-1] + "hi")
        if word.endswith(("essa", "ora", "era", "aia", "ana", "ina", "ata", "ita", "uta", "tta")):
            return (word[:-1] + "e",)
        if word.endswith("a"):
            return (word[:-1] + "i", word[:-1] + "e")
        return (word[:-1] + "i",) if word[-1] in "eo" else ()

    def feminine_article(self, article: str, following: str) -> str:
        """Return the feminine of an article: "una", "un'", "della", "dell'"."""
        feminine = self.articles.get(article, article)
        if following.startswith(_VOWELS):
            if feminine in ("una", "la", "questa", "quella") or feminine.endswith("lla"):
                return feminine[:-1] + "'"
            return feminine
        full_forms = {
            "l'": "la", "un'": "una", "d'un": "d'una", "quest'": "questa", "quell'": "quella",
        }  # fmt: skip
        return full_forms.get(article, full_forms.get(feminine, feminine))

    def masculine_article(self, article: str, following: str) -> str:
        """Return the masculine of a feminine article, before "uomo" or an adjective."""
        if following.startswith(_VOWELS):
            return _BEFORE_UOMO.get(article, article)
        return _BEFORE_CONSONANT.get(article, article)


LANGUAGE = Italian()
