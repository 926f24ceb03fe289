"""Spanish: "un médico cansado" becomes "una médica cansada" or "un médico varón cansado"."""

from __future__ import annotations

from vldebias.wording.languages.romance import RomanceLanguage


class Spanish(RomanceLanguage):
    """Find people in Spanish prompts, and insert values with the required agreement."""

    code = "es"
    name = "Spanish"
    joiner = " y "

    def plurals_of(self, word: str) -> tuple[str, ...]:
        if word[-1] in "aeiouéáó":
            return (word + "s",)
        if word.endswith(("ón", "án", "ín", "és")):
            plain = word[-2].translate(str.maketrans("óáíé", "oaie"))
            return (word[:-2] + plain + word[-1] + "es",)
        if word.endswith("s"):
            return ()
        return (word[:-1] + "ces",) if word.endswith("z") else (word + "es", word + "s")


LANGUAGE = Spanish()
