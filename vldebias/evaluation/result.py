"""One typed result for every evaluator: figures with intervals and all that is needed to repeat them."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vldebias.errors import InvalidInputError

__all__ = ["Figure", "Protocol", "Result", "commit", "versions", "write_atomically"]


class _Typed(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Figure(_Typed):
    """One number. `interval` is the 95 % interval of `value`, `change` that of the paired difference to method "none".

    task: birds, portraits, generation, ...; metric: worst_group, average, max_skew, ...; method: none, orth, cali, ...
    better: "higher" or "lower", for reading; n: what was resampled and how many of it.
    subset: the part that it is about, such as a group, a query or "unseen professions"; "" for the whole.
    lam, strength: of the method, where it has them. uses_labels: the method was given labels of images.
    """

    task: str
    metric: str
    method: str
    value: float
    interval: tuple[float, float]
    change: tuple[float, float, float] | None = Field(None, description="difference to none: value, low, high")
    better: str
    n: dict[str, int]
    subset: str = ""
    lam: float | None = None
    strength: float | None = None
    uses_labels: bool = False


class Protocol(_Typed):
    """What a task did: enough to repeat it.

    title: what a report calls the task, with the table of the paper that it repeats; settings: conventions and
    parameters that change the figures (k, prior, ties, floor, thresholds, resampling).
    """

    task: str
    description: str
    model: str
    fingerprint: dict[str, Any] | None
    prompts: str
    prompts_hash: str
    split: str
    methods: dict[str, dict[str, Any]]
    seeds: list[int]
    n: dict[str, int]
    title: str = ""
    settings: dict[str, Any] = Field(default_factory=dict)


class Result(_Typed):
    """Figures and protocols of one run."""

    name: str
    figures: list[Figure]
    protocols: list[Protocol]
    versions: dict[str, str]
    commit: str | None
    seconds: float

    def figure(self, task: str, metric: str, method: str, *, subset: str = "", lam: float | None = None) -> Figure:
        """The one figure with these names; without `lam` the first of any. KeyError lists what there is."""
        for figure in self.figures:
            found = (figure.task, figure.metric, figure.method, figure.subset)
            if found == (task, metric, method, subset) and lam in (None, figure.lam):
                return figure
        there = [(f.task, f.metric, f.method, f.subset) for f in self.figures]
        raise KeyError(f"no figure {task}/{metric}/{method}/{subset or 'all'}; there are {there}")

    @classmethod
    def read(cls, path: Path) -> Result:
        """A result from its JSON file.

        Raises:
            InvalidInputError: no such file, or not a result; the message names the first field that does not fit.
        """
        if not path.is_file():
            raise InvalidInputError(
                f"{path}: no such file; expected a result of `vldebias eval` or `vldebias quickstart`"
            )
        try:
            return cls.model_validate_json(path.read_bytes())
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the file"
            raise InvalidInputError(
                f"{path}: not a result of `vldebias eval` or `vldebias quickstart`: {where}: {first['msg']}"
            ) from error

    def write(self, path: Path) -> Path:
        """Write as JSON, atomically: a reader never sees half a file."""
        return write_atomically(path, self.model_dump_json(indent=1) + "\n")


def write_atomically(path: Path, text: str) -> Path:
    """Write a file that is whole or not there, and make its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)
    return path


def versions() -> dict[str, str]:
    """Versions of what the figures depend on."""
    names = ("vldebias", "torch", "open_clip_torch", "transformers", "diffusers", "numpy")
    return {"python": platform.python_version(), **{name: version(name) for name in names}}


def commit() -> str | None:
    """Commit of the checkout this package runs from, None for an installed wheel."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    done = subprocess.run(
        ["git", "-C", str(root), "rev-parse", "--short=12", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or None
