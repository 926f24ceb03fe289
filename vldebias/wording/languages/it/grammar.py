"""Italian: "un architetto stanco" becomes "un'architetta stanca" or "un architetto uomo stanco"."""

from __future__ import annotations

from vldebias.wording.languages.romance import RomanceLanguage

_VOWELS = tuple("aeiouàèéìòù")


class Italian(RomanceLanguage):
    """Find people in Italian prompts, and insert values with the required agreement."""

    code = "it"
    name = "Italian"
    joiner = " e "

    def plurals_of(self, word: str) -> tuple[str, ...]:
        """Return the possible plural forms of a word, such as "-ci" and "-chi" for "-co"."""
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
        feminine = self.pairs("article").get(article, article)
        if following.startswith(_VOWELS):
            if feminine in ("una", "la", "questa", "quella") or feminine.endswith("lla"):
                return feminine[:-1] + "'"
            return feminine
        full_forms = {
            "l'": "la", "un'": "una", "d'un": "d'una", "quest'": "questa", "quell'": "quella",
        }  # fmt: skip
        return full_forms.get(article, full_forms.get(feminine, feminine))


LANGUAGE = Italian()
