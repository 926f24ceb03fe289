"""Portuguese: "um médico cansado" becomes "uma médica cansada" or "um médico homem cansado"."""

from __future__ import annotations

from vldebias.wording.languages.romance import RomanceLanguage


class Portuguese(RomanceLanguage):
    """Find people in Portuguese prompts, and insert values with the required agreement."""

    code = "pt"
    name = "Portuguese"
    joiner = " e "


LANGUAGE = Portuguese()
