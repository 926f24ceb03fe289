"""Let people label generated images blind and in shuffled order (`vldebias label`).

Sections 7.6.3 and A.4.3 of the thesis describe such a study.
"""
