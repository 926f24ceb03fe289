"""The paper's figures beside those that were measured: Tables 7.2, 7.4 and 7.5 of the thesis, by suite and model."""

from __future__ import annotations

from dataclasses import dataclass

from vldebias.evaluation.report.words import metric_title
from vldebias.evaluation.result import Measurement, Result

WORST, METRICS = ("worst_group", "average", "gap"), ("max_skew@1000",)
# Suite -> model -> task, metrics, and method -> values. Baselines as Table 7.2 has them from Zhang and Ré (2022).
FIGURES = {
    "waterbirds": {
        "rn50": ("waterbirds", WORST, {
            "none": (0.396, 0.773, 0.377), "orth": (0.481, 0.836, 0.354), "orth-cali": (0.740, 0.787, 0.047),
            "cali": (0.556, 0.816, 0.260), "erm-linear": (0.079, 0.935, 0.856), "erm-adapter": (0.608, 0.960, 0.352),
            "wise-ft": (0.498, 0.910, 0.412), "dfr-sub": (0.639, 0.918, 0.279), "dfr-up": (0.513, 0.924, 0.411),
            "contrastive-adapter": (0.837, 0.894, 0.057),
        }),
        "vitl14": ("waterbirds", WORST, {
            "none": (0.453, 0.844, 0.391), "orth": (0.614, 0.864, 0.250), "orth-cali": (0.688, 0.845, 0.157),
            "erm-linear": (0.659, 0.976, 0.317), "erm-adapter": (0.784, 0.978, 0.194), "wise-ft": (0.659, 0.976, 0.317),
            "dfr-sub": (0.519, 0.957, 0.438), "dfr-up": (0.659, 0.961, 0.302),
            "contrastive-adapter": (0.869, 0.962, 0.093),
        }),
    },
    "celeba": {
        "rn50": ("celeba", WORST, {
            "none": (0.759, 0.823, 0.064), "orth": (0.614, 0.864, 0.250), "orth-cali": (0.822, 0.844, 0.022),
            "cali": (0.816, 0.847, 0.031), "erm-linear": (0.119, 0.947, 0.828), "erm-adapter": (0.361, 0.942, 0.581),
            "wise-ft": (0.856, 0.886, 0.030), "dfr-sub": (0.769, 0.925, 0.156), "dfr-up": (0.896, 0.918, 0.022),
            "contrastive-adapter": (0.900, 0.907, 0.007),
        }),
        "vitl14": ("celeba", WORST, {
            "none": (0.728, 0.876, 0.149), "orth": (0.711, 0.870, 0.159), "orth-cali": (0.761, 0.862, 0.101),
            "erm-linear": (0.283, 0.947, 0.664), "erm-adapter": (0.367, 0.942, 0.575), "wise-ft": (0.800, 0.874, 0.074),
            "dfr-sub": (0.763, 0.921, 0.158), "dfr-up": (0.837, 0.912, 0.075),
            "contrastive-adapter": (0.846, 0.904, 0.058),
        }),
    },
}  # fmt: skip
SKEWS = {  # of FairFace: gender, race, age
    "vitb32": {"none": (0.206, 0.743, 0.797), "orth": (0.146, 0.755, 0.635), "orth-cali": (0.102, 0.638, 0.641)},
    "vitl14": {"none": (0.206, 0.768, 0.703), "orth": (0.349, 0.605, 0.706), "orth-cali": (0.200, 0.461, 0.662)},
}
SOURCE = "Tables 7.2 and 7.4 of the thesis (worst group, average, gap) and 7.5 (MaxSkew@1000 on FairFace)"
HEAD = ("figure", "method", "published", "measured [95 %]", "difference")


@dataclass(frozen=True)
class Beside:
    """One published figure and the row that repeats it; `row` is None where it was not measured."""

    task: str
    metric: str
    method: str
    value: float
    row: Measurement | None

    def cells(self) -> tuple[str, ...]:
        """A line under `HEAD`."""
        about = (f"{self.task}: {metric_title(self.metric)}", self.method, f"{self.value:.3f}")
        if self.row is None:
            return *about, "not measured", ""
        low, high = self.row.interval
        return *about, f"{self.row.value:.3f} [{low:.3f}, {high:.3f}]", f"{self.row.value - self.value:+.3f}"


def published(result: Result) -> list[Beside]:
    """The paper's figures for the suite and the model of a result, with the rows that repeat them; none for others."""
    model = _model(result.provenance[0].model) if result.provenance else ""
    others: list[tuple[str, str, str, float]] = []
    if result.name == "fairface" and model in SKEWS:
        for method, values in SKEWS[model].items():
            named = zip(("gender", "race", "age"), values, strict=True)
            others += [(f"fairface {attribute}", METRICS[0], method, value) for attribute, value in named]
    elif model in FIGURES.get(result.name, {}):
        task, metrics, table = FIGURES[result.name][model]
        for method, values in table.items():
            others += [(task, metric, method, value) for metric, value in zip(metrics, values, strict=True)]
    rows = {(r.task, r.metric, r.method): r for r in result.rows if not r.subset and r.lam in (None, 1000.0)}
    beside = [
        Beside(task, metric, method, value, rows.get((task, metric, method))) for task, metric, method, value in others
    ]
    return beside if any(one.row is not None for one in beside) else []


def _model(name: str) -> str:
    """RN50, ViT-B/32 or ViT-L/14 of OpenAI, however it is written; "" for any other."""
    plain = "".join(filter(str.isalnum, name.lower()))
    if "laion" in plain or "datacomp" in plain or "336" in plain:
        return ""
    for key, spellings in {
        "rn50": ("rn50openai",), "vitb32": ("vitb32", "vitbasepatch32"), "vitl14": ("vitl14", "vitlargepatch14")
    }.items():  # fmt: skip
        if any(one in plain for one in spellings) or plain == key:
            return key
    return ""
