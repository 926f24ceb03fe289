"""Portuguese: "um médico cansado" becomes "uma médica cansada" or "um médico homem cansado"."""

from __future__ import annotations

from vldebias.wording.languages.romance import RomanceLanguage


class Portuguese(RomanceLanguage):
    """Find people in Portuguese prompts, and insert values with the required agreement."""

    code = "pt"
    name = "Portuguese"
    joiner = " e "

    def plurals_of(self, word: str) -> tuple[str, ...]:
        """Return the possible plural forms of a word, of which "-ão" has three."""
        if word.endswith("ão"):
            return (word[:-2] + "ões", word[:-2] + "ães", word[:-2] + "ãos")
        if word.endswith(("r", "z", "ês")):
            return (word.replace("ês", "es") + "es",)
        if word.endswith("l"):
            return (word[:-1] + "is",)
        if word.endswith("m"):
            return (word[:-1] + "ns",)
        return () if word.endswith("s") else (word + "s",)


LANGUAGE = Portuguese()
