"""Italian: "un architetto stanco" becomes "un'architetta stanca" or "un architetto uomo stanco"."""

from __future__ import annotations

from vldebias.wording.languages.romance import RomanceLanguage

LANGUAGE = RomanceLanguage("it", "Italian", " e ")
