"""What features (n, d) hold: attributes that can be read, groups that suffer, labels that are wrong, margins.

`vldebias.diagnose` asks all of it at once; each question is a function of its own here.
"""

from vldebias.diagnostics.hidden import HiddenGroups, hidden_groups
from vldebias.diagnostics.labels import wrong_labels
from vldebias.diagnostics.margins import Margins, margins
from vldebias.diagnostics.probes import Readability, readable
from vldebias.diagnostics.spread import Geometry, geometry

__all__ = [
    "Geometry",
    "HiddenGroups",
    "Margins",
    "Readability",
    "geometry",
    "hidden_groups",
    "margins",
    "readable",
    "wrong_labels",
]
