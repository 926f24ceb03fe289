"""Spanish: "un médico cansado" becomes "una médica cansada" or "un médico varón cansado"."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from vldebias.prompts.languages.base import Reading
from vldebias.prompts.languages.romance import GONE, RomanceLanguage


class Spanish(RomanceLanguage):
    """Find persons in Spanish prompts, and write a value with all that agrees."""

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

    def contract(self, tokens: Reading, article: int, changes: dict[int, str]) -> None:
        """Join "de el" and "a el"."""
        joined = {"de": "del", "a": "al"}
        before = tokens[article - 1] if article else None
        if before is not None and before.low in joined and changes.get(article) == "el":
            # The article goes with the space before it.
            changes[article - 1] = self.like(before, joined[before.low])
            changes[article] = GONE


LANGUAGE = Spanish()
