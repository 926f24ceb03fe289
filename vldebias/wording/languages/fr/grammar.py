"""French: "un infirmier fatigué" becomes "une infirmière fatiguée" or "un infirmier homme"."""

from __future__ import annotations

from vldebias.wording.languages.romance import RomanceLanguage


class French(RomanceLanguage):
    """Find people in French prompts, and insert values with the required agreement."""

    code = "fr"
    name = "French"
    joiner = " et "


LANGUAGE = French()
