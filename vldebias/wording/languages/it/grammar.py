"""Italian: "un architetto stanco" becomes "un'architetta stanca" or "un architetto uomo stanco"."""

from __future__ import annotations

from vldebias.wording.languages.romance import RomanceLanguage


class Italian(RomanceLanguage):
    """Find people in Italian prompts, and insert values with the required agreement."""

    code = "it"
    name = "Italian"
    joiner = " e "


LANGUAGE = Italian()
