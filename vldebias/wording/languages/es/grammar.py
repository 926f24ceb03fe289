"""Spanish: "un médico cansado" becomes "una médica cansada" or "un médico varón cansado"."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from vldebias.wording.languages.romance import RomanceLanguage


class Spanish(RomanceLanguage):
    """Find persons in Spanish prompts, and write a value with the agreement that it needs."""

    code = "es"
    name = "Spanish"
    folder = Path(__file__).parent
    joiner = " y "
    endings: ClassVar[dict[str, str]] = {"or": "ora", "ín": "ina", "ón": "ona", "o": "a"}
    keeps: ClassVar[tuple[str, ...]] = ("ista", "e", "a", "al", "il", "el", "ar", "z", "ul", "és")
    not_adjectives: ClassVar[tuple[str, ...]] = ("ando", "endo", "ión", "azón", "mente")
    feminine_adjectives: ClassVar[tuple[str, ...]] = (
        "iva",
        "osa",
        "ada",
        "ida",
        "ble",
        "nte",
        "ora",
        "esta",
        "ura",
    )
    contracted: ClassVar[dict[tuple[str, str], str]] = {("de", "el"): "del", ("a", "el"): "al"}
    participles: ClassVar[tuple[str, ...]] = ("ado", "ido", "esto", "erto")
    feminine_participles: ClassVar[tuple[str, ...]] = ("ada", "ida", "esta", "erta")

    def plurals_of(self, word: str) -> tuple[str, ...]:
        """Return the plural of a word."""
        if word[-1] in "aeiouéáó":
            return (word + "s",)
        if word.endswith(("ón", "án", "ín", "és")):
            plain = word[-2].translate(str.maketrans("óáíé", "oaie"))
            return (word[:-2] + plain + word[-1] + "es",)
        if word.endswith("s"):
            return ()
        return (word[:-1] + "ces",) if word.endswith("z") else (word + "es", word + "s")


LANGUAGE = Spanish()
