"""French: "un infirmier fatigué" becomes "une infirmière fatiguée" or "un infirmier homme"."""

from __future__ import annotations

from vldebias.wording.languages.romance import RomanceLanguage

LANGUAGE = RomanceLanguage("fr", "French", " et ")
