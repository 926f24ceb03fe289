"""Spanish: "un médico cansado" becomes "una médica cansada" or "un médico varón cansado"."""

from __future__ import annotations

from vldebias.wording.languages.romance import RomanceLanguage

LANGUAGE = RomanceLanguage("es", "Spanish", " y ")
