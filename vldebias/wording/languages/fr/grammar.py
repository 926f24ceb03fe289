"""French: "un infirmier fatigué" becomes "une infirmière fatiguée" or "un infirmier homme"."""

from __future__ import annotations

from vldebias.wording.languages.romance import RomanceLanguage

_VOWELS = tuple("aeiouyhéèêâàîôœ")


class French(RomanceLanguage):
    """Find people in French prompts, and insert values with the required agreement."""

    code = "fr"
    name = "French"
    joiner = " et "

    def plurals_of(self, word: str) -> tuple[str, ...]:
        if word.endswith(("s", "x", "z")):
            return ()
        if word.endswith("al"):
            return (word[:-2] + "aux",)
        return (word + "x",) if word.endswith("eau") else (word + "s",)

    def feminine_article(self, article: str, following: str) -> str:
        has_vowel = following.startswith(_VOWELS)
        if article in ("mon", "ton", "son"):
            return article if has_vowel else article[0] + "a"
        table = {"le": "l'", "du": "de l'", "au": "à l'"}
        if has_vowel and article in table:
            return table[article]
        if article == "l'" and not has_vowel:
            return "la"
        return {"du": "de la", "au": "à la"}.get(
            article, self.pairs("article").get(article, article)
        )


LANGUAGE = French()
