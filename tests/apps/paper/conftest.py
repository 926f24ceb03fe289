"""Use the stand-ins for the paper's data sets."""

from tests.data.conftest import stand_ins as stand_ins
