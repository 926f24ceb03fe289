"""Spanish: "un médico cansado" becomes "una médica cansada" or "un médico varón cansado"."""

from __future__ import annotations

from vldebias.wording.languages.romance import RomanceLanguage


class Spanish(RomanceLanguage):
    """Find people in Spanish prompts, and insert values with the required agreement."""

    code = "es"
    name = "Spanish"
    joiner = " y "


LANGUAGE = Spanish()
