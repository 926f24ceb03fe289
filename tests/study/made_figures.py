"""Provide constructed figures and results with the structure of real ones."""

from typing import Any

from vldebias.measure.rows import Measurement, TaskProvenance, TaskResult
from vldebias.report.result import Result

# Changes with their intervals: two exclude zero, and one includes it.
DOWN = (-0.2, -0.3, -0.1)
UP = (0.2, 0.1, 0.3)
STILL = (0.01, -0.1, 0.1)
# What a suite contains next to its tasks, and a task.
SUITE: dict[str, Any] = {"title": "t", "description": "d", "source": "s", "needs": "nothing"}
BIRDS: dict[str, Any] = {"task": "groups", "name": "birds", "title": "Birds"}
BIRDS |= {"attribute": "waterbirds", "data": {"name": "birds"}}
BIRDS |= {"label": "label", "spurious": "place"}


def figure(method: str = "none", value: float = 0.5, **fields: Any) -> Measurement:
    defaults: dict[str, Any] = {
        "task": "birds",
        "metric": "average",
        "better": "higher",
        "n": {"images": 100},
    }
    defaults |= {"interval": (value - 0.1, value + 0.1), "change": None}
    return Measurement(method=method, value=value, **(defaults | fields))


def bias(method: str, value: float, **fields: Any) -> Any:
    return figure(
        method, value, **{"metric": "max_skew@10", "better": "lower", "task": "search", **fields}
    )


def protocol(task: str = "birds", **fields: Any) -> TaskProvenance:
    defaults: dict[str, Any] = {
        "description": "what was done",
        "model": "ViT-L-14/openai",
        "fingerprint": None,
    }
    defaults |= {
        "attribute": "waterbirds",
        "attribute_hash": "0" * 64,
        "split": "test",
        "seeds": [0],
    }
    defaults |= {"methods": {"none": {}}, "n": {"images": 100}}
    return TaskProvenance(task=task, **(defaults | fields))


def result(figures: list[Measurement], *protocols: TaskProvenance, **fields: Any) -> Result:
    defaults: dict[str, Any] = {
        "name": "x",
        "versions": {"vldebias": "1"},
        "commit": None,
        "seconds": 1.0,
    }
    return Result(rows=figures, provenance=list(protocols), **(defaults | fields))


def cell(
    part: TaskResult, metric: str, method: str, subset: str = "", lam: float | None = None
) -> Measurement:
    """Return the only row with these names, with any lambda if there is one."""
    names = (metric, method, subset)
    rows = part.rows
    (row,) = (r for r in rows if (r.metric, r.method, r.subset) == names and lam in (None, r.lam))
    return row
