"""Use the result that tests of reports share."""

from tests.report.conftest import made as made
