import pytest

from tests.study.made_figures import DOWN, STILL, UP, bias, protocol, result
from vldebias.report.result import Result


@pytest.fixture
def made() -> Result:
    """Return the result of a search that the default improves, with labels, cost, chance level, and
    a query that got worse."""
    values = {
        "none": (0.5, None),
        "default": (0.3, DOWN),
        "cali": (0.2, (-0.3, -0.4, -0.2)),
        "random": (0.1, None),
    }
    recalls = {"none": (0.9, None), "default": (0.8, (-0.1, -0.2, -0.05)), "cali": (0.9, STILL)}
    rows = [bias(m, value, change=change) for m, (value, change) in values.items()]
    rows += [bias("dfr-up", 0.1, change=(-0.4, -0.5, -0.3), uses_labels=True)]
    rows += [
        bias(m, value, change=c, metric="recall@5", better="higher")
        for m, (value, c) in recalls.items()
    ]
    for job, change_of_job in (("a nurse", UP), ("a doctor", STILL)):
        changes = {"none": None, "default": change_of_job}
        rows += [bias(m, 0.5, subset=job, change=c, n={"images": 7}) for m, c in changes.items()]
    return result(rows, protocol("search", title="Search"))
