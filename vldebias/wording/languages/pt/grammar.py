"""Portuguese: "um médico cansado" becomes "uma médica cansada" or "um médico homem cansado"."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from vldebias.wording.languages.romance import RomanceLanguage


class Portuguese(RomanceLanguage):
    """Find persons in Portuguese prompts, and write a value with the agreement that it needs."""

    code = "pt"
    name = "Portuguese"
    folder = Path(__file__).parent
    joiner = " e "
    endings: ClassVar[dict[str, str]] = {"or": "ora", "ês": "esa", "eu": "eia", "o": "a"}
    keeps: ClassVar[tuple[str, ...]] = ("ista", "e", "a", "al", "il", "el", "ar", "z", "ul", "m")
    not_adjectives: ClassVar[tuple[str, ...]] = ("ndo", "ão", "mente", "eu")
    feminine_adjectives: ClassVar[tuple[str, ...]] = (
        *("iva", "osa", "ada", "ida", "vel", "nte", "ora", "esta", "ura", "eta", "ária"),
    )
    participles: ClassVar[tuple[str, ...]] = ("ado", "ido", "osto", "erto")
    feminine_participles: ClassVar[tuple[str, ...]] = ("ada", "ida", "osta", "erta")

    def plurals_of(self, word: str) -> tuple[str, ...]:
        """Return the plural of a word; of "-ão" all possible ones."""
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
