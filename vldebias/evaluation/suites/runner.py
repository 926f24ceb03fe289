"""Run a suite: task by task, each kept as soon as it is done, so that a run that was stopped goes on where it was."""

from __future__ import annotations

import os
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from rich.console import Console

from vldebias.data.embed_processes import processes
from vldebias.errors import VldebiasWarning
from vldebias.evaluation.part import Part
from vldebias.evaluation.report.charts import slug
from vldebias.evaluation.report.pages import draw_charts, pictures_beside, write_page
from vldebias.evaluation.report.pictures import save_png
from vldebias.evaluation.result import Figure, Protocol, Result, commit, versions, write_atomically
from vldebias.evaluation.suites.schema import GenerationTask, Suite, Task
from vldebias.evaluation.suites.session import Options, Session, progress_on
from vldebias.evaluation.suites.steps import STEPS, key_of

__all__ = ["PAGE", "RESULT", "run_suite"]

RESULT, PAGE = "result.json", "index.html"


class Finished(BaseModel):
    """What one task gave, as kept in <out>/tasks/. key: changes whenever its figures may; pictures: file names."""

    model_config = ConfigDict(extra="forbid")

    key: str
    figures: list[Figure]
    protocols: list[Protocol]
    pictures: list[str]
    seconds: float

    @classmethod
    def read(cls, path: Path) -> Finished | None:
        """None where there is no such file, or one of another version."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except (FileNotFoundError, ValidationError):
            return None


def run_suite(suite: Suite, options: Options, *, console: Console, only: Sequence[str] = ()) -> Result:
    """Measure every task of a suite and write result.json, pictures and index.html into `options.out`.

    result.json is written after every task. A second run takes over each task that a run before has finished with the
    same settings, prompts, weights and data, and says so; image features and drawn images are resumed even inside a
    task. An interrupt leaves all of it, with a page about what is done.

    Args:
        suite: from `load_suite`.
        options: what the user brings; `options.out` is made where it is missing.
        console: for progress and messages (stderr, where stdout is for JSON).
        only: names of tasks; none: all of them.

    Raises:
        InvalidInputError: something that the suite needs was not given, or does not fit.
    """
    suite = suite.only(only)
    options = with_host(suite, replace(options, device=own_device(options.device)))
    tasks = [with_options(task, options) for task in suite.tasks]
    options.out.mkdir(parents=True, exist_ok=True)
    kept = {task.name: None if options.fresh else Finished.read(_path(options, task)) for task in tasks}
    done: list[Finished] = []
    first = processes().rank == 0
    try:
        with progress_on(console) as progress:
            session = Session(options, suite.needs, progress)
            for task in tasks:
                done.append(_task(session, suite, task, kept[task.name], first))
                if first:
                    _result(suite, done).write(options.out / RESULT)
    finally:
        if done and first:
            _write_page(_result(suite, done), options.out)
    return _result(suite, done)


def own_device(device: str) -> str:
    """The GPU of this process where several were launched: plain "cuda" would put all of them on the first."""
    rank = os.environ.get("LOCAL_RANK")
    return f"cuda:{rank}" if device == "cuda" and rank is not None else device


def with_host(suite: Suite, options: Options) -> Options:
    """The suite's own weights where the user names none."""
    if suite.host is None:
        return options
    alone = options.embeddings is None
    return replace(
        options,
        model=options.model or (suite.host if alone else None),
        pipeline=options.pipeline or suite.host,
    )


def with_options(task: Task, options: Options) -> Task:
    """The task with the user's lambda, resamples, images and seeds in the place of its own."""
    changed: dict[str, Any] = {}
    if options.resamples is not None:
        changed["resamples"] = options.resamples
    if isinstance(task, GenerationTask):
        if options.images is not None:
            changed["images"] = options.images
        if options.seeds is not None:
            changed["seeds"] = list(options.seeds)
        if options.lam is not None:
            lam = {"lam": options.lam}
            changed["variants"] = {name: spec.model_copy(update=lam) for name, spec in task.variants.items()}
    elif options.lam is not None and hasattr(task, "lam"):
        changed["lam"] = options.lam
    return task.model_copy(update=changed)


def _task(session: Session, suite: Suite, task: Task, kept: Finished | None, first: bool) -> Finished:
    """What a run before has finished, if nothing it depends on has changed; else measured now."""
    started, folder = time.monotonic(), session.options.out
    key = key_of(session, task)
    if kept is not None and kept.key == key and all((folder / name).is_file() for name in kept.pictures):
        session.say(f"{task.name}: taken over from a run before (--fresh measures again)")
        return kept
    with _warnings_said(session):
        parts = STEPS[task.task].run(session, task)
    found = Finished(
        key=key,
        figures=[figure for part in parts for figure in part.figures],
        protocols=[_told(part.protocol, task.title, session.options.pipeline) for part in parts],
        pictures=_save_pictures(suite, parts, folder) if first else [],
        seconds=round(time.monotonic() - started, 1),
    )
    text = found.model_dump_json(indent=1) + "\n"
    if first:
        write_atomically(_path(session.options, task), text)
    session.say(f"{task.name}: done in {found.seconds:.0f} s")
    return Finished.model_validate_json(text)  # as a later run will read it: tuples in settings become lists


def _path(options: Options, task: Task) -> Path:
    return options.out / "tasks" / f"{slug(task.name)}.json"


def _told(protocol: Protocol, title: str, pipeline: str | None) -> Protocol:
    """The title of the suite's task before that of the part, and of drawn images the pipeline as the user named it."""
    full = f"{title}: {protocol.title}" if protocol.title else title
    drawn = protocol.split == "generated" and pipeline is not None and pipeline not in protocol.model
    model = f"{pipeline} ({protocol.model})" if drawn else protocol.model
    return protocol.model_copy(update={"title": full, "model": model})


def _save_pictures(suite: Suite, parts: Iterable[Part], folder: Path) -> list[str]:
    """The plots of the evaluators, such as image strips, which no figure can give back."""
    names = []
    for part in parts:
        for stem, (caption, plot) in part.plots.items():
            told = {"run": suite.name, "task": part.protocol.task, "caption": caption}
            names.append(save_png(plot, folder / f"{slug(stem)}.png", told).name)
    return names


def _result(suite: Suite, done: Sequence[Finished]) -> Result:
    return Result(
        name=suite.name,
        figures=[figure for one in done for figure in one.figures],
        protocols=[protocol for one in done for protocol in one.protocols],
        versions=versions(),
        commit=commit(),
        seconds=round(sum(one.seconds for one in done), 1),
    )


def _write_page(result: Result, folder: Path) -> Path:
    """The page, and its charts as files beside it."""
    return write_page(result, draw_charts(result, folder / "charts") + pictures_beside(result, folder), folder / PAGE)


@contextmanager
def _warnings_said(session: Session) -> Iterator[None]:
    """The first warning of each kind above the progress display instead of through it, and how many were like it.

    A sweep fits dozens of projections, and what they cost is measured: one warning is news, dozens hide it.
    """
    counts: Counter[str] = Counter()
    with warnings.catch_warnings():
        warnings.simplefilter("always", VldebiasWarning)
        before = warnings.showwarning

        def show(message: Any, category: type[Warning], *rest: Any, **named: Any) -> None:
            if not issubclass(category, VldebiasWarning):
                before(message, category, *rest, **named)
                return
            if not counts[category.__name__]:
                session.say(f"warning: {message}")
            counts[category.__name__] += 1

        setattr(warnings, "showwarning", show)  # noqa: B010  (mypy takes a plain assignment for an error)
        yield
    for name, count in counts.items():
        if count > 1:
            session.say(f"{count - 1} more warnings like the last {name}: what it warns of is among the figures")
