"""Portuguese: "um médico cansado" becomes "uma médica cansada" or "um médico homem cansado"."""

from __future__ import annotations

from vldebias.wording.languages.romance import RomanceLanguage

LANGUAGE = RomanceLanguage("pt", "Portuguese", " e ")
