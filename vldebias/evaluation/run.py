"""Run a suite: task by task, each kept as soon as it is done, so that a run that was stopped goes on where it was."""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from vldebias.data import processes
from vldebias.errors import InvalidInputError, VldebiasWarning
from vldebias.evaluation.report.charts import file_slug
from vldebias.evaluation.report.pages import draw_charts, pictures_beside, write_page
from vldebias.evaluation.result import Measurement, Result, TaskProvenance
from vldebias.evaluation.suite import Suite, load_suite
from vldebias.evaluation.task import Options, Session, Task
from vldebias.files import LOCK, digest, only_writer, read_json, write_atomically
from vldebias.pictures import save_png
from vldebias.progress import Progress
from vldebias.prompts import load_prompts

RESULT, PAGE, MANIFEST = "result.json", "index.html", "manifest.json"


class Finished(BaseModel):
    """What one task gave, as kept in <out>/tasks/. key: see `Task.key`; pictures: file names."""

    model_config = ConfigDict(extra="forbid")

    key: str
    rows: list[Measurement]
    provenance: list[TaskProvenance]
    pictures: list[str]
    seconds: float

    @classmethod
    def read(cls, path: Path) -> Finished | None:
        """None where there is no such file, or one of another version."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except (FileNotFoundError, ValidationError):
            return None


def run_suite(
    suite: Suite | str | Path,
    options: Options | None = None,
    *,
    progress: Progress | None = None,
    console: Any = None,
    only: Sequence[str] = (),
) -> Result:
    """Measure every task of a suite and write result.json, pictures and index.html into `options.out`.

    result.json is written after every task. A second run takes over each task that a run before has finished with the
    same settings, prompts, weights and data, and says so; image features and drawn images are resumed even inside a
    task. An interrupt leaves all of it, with a page about what is done.

    Args:
        suite: a name, a path, or from `load_suite`.
        options: what the user brings; by default the folder "vldebias-<suite>" and nothing else.
        progress: where it shows how far it is; default: on stderr. console: a rich console for it.
        only: names of tasks; none: all of them.

    Raises:
        InvalidInputError: something that the suite needs was not given, or does not fit; another run writes there.
    """
    suite = suite if isinstance(suite, Suite) else load_suite(suite)
    options = options or Options(out=Path(f"vldebias-{suite.name}"))
    suite = suite.only(only)
    options = with_host(suite, replace(options, device=own_device(options.device)))
    tasks = [task.with_options(options) for task in suite.tasks]
    for name in dict.fromkeys(name for task in tasks for name in task.prompt_sets):
        load_prompts(name)  # a wrong name is told before anything is loaded
    first = processes().rank == 0
    with progress or Progress.on(console) as shown, only_writer(options.out, shown.say) if first else nullcontext():
        return _measured(suite, tasks, options, shown, first)


def _measured(suite: Suite, tasks: Sequence[Task], options: Options, shown: Progress, first: bool) -> Result:
    """The tasks in their order; the first of several processes writes."""
    # Before any is written: processes that share the folder are to decide alike.
    kept = {task.name: None if options.fresh else Finished.read(_path(options, task)) for task in tasks}
    done: list[Finished] = []
    result = _result(suite, done)
    try:
        session = Session(options, suite.needs, shown)
        tasks = [task.fitting(session) for task in tasks]
        _check_texts(session, suite, tasks)
        for task in tasks:
            done.append(_task(session, suite, task, kept[task.name], first))
            result = _result(suite, done)
            if first:
                result.write(options.out / RESULT)
    finally:
        if done and first:
            charts = draw_charts(result, options.out / "charts")
            write_page(result, charts + pictures_beside(result, options.out), options.out / PAGE)
            write_manifest(options.out)
    return result


def write_manifest(folder: Path) -> Path:
    """The SHA-256 of every file of a run but those of the embedding cache, for `verify`."""
    files = {path.relative_to(folder).as_posix(): digest(path) for path in _evidence(folder)}
    return write_atomically(folder / MANIFEST, json.dumps({"files": files}, indent=1) + "\n")


def verify(result: str | Path) -> dict[str, list[str]]:
    """Whether the files of a run are those that it left: names of those that are "changed", "missing" and "added".

    Args:
        result: the folder of the run, or its result.json.

    Raises:
        InvalidInputError: no such folder, or no manifest in it.
    """
    place = Path(result)
    folder = place if place.is_dir() else place.parent
    if not place.exists() or not (folder / MANIFEST).is_file():
        raise InvalidInputError(
            f"{place}: expected the folder of a run, with its {MANIFEST}; without one nothing can be verified: "
            "ask for the whole folder, or run the suite again"
        )
    manifest = read_json(folder / MANIFEST)
    files = manifest.get("files") if isinstance(manifest, dict) else None
    if not isinstance(files, dict) or not all(isinstance(one, str) for one in files.values()):
        raise InvalidInputError(f"{folder / MANIFEST}: expected `files`, a SHA-256 for every name; run the suite again")
    there = {path.relative_to(folder).as_posix(): path for path in _evidence(folder)}
    return {
        "changed": sorted(name for name, path in there.items() if name in files and digest(path) != files[name]),
        "missing": sorted(set(files) - set(there)),
        "added": sorted(set(there) - set(files)),
    }


def _evidence(folder: Path) -> list[Path]:
    """Files of a run by name; not the cached features, which are checked where they are read, nor the run's lock."""
    inside = (path for path in folder.rglob("*") if path.is_file() and path not in (folder / MANIFEST, folder / LOCK))
    return sorted(path for path in inside if path.relative_to(folder).parts[0] != "cache")


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


def _check_texts(session: Session, suite: Suite, tasks: Sequence[Task]) -> None:
    """Name all prompts at once that the user's text embeddings lack."""
    rows = session.text_rows
    if rows is None:
        return
    prompts = list(dict.fromkeys(text for task in tasks for text in task.texts()))
    missing = [text for text in prompts if text not in rows]
    if missing:
        shown = ", ".join(map(repr, missing[:5])) + (", ..." if len(missing) > 5 else "")
        raise InvalidInputError(
            f"text embeddings: {len(missing)} of the {len(prompts)} prompts of {suite.name} are not there: {shown}; "
            f"`vldebias eval texts {suite.name}` prints them all, one a line: embed them with the model that made the "
            "image features"
        )


def _path(options: Options, task: Task) -> Path:
    return options.out / "tasks" / f"{file_slug(task.name)}.json"


def _task(session: Session, suite: Suite, task: Task, kept: Finished | None, first: bool) -> Finished:
    """What a run before has finished, if nothing it depends on has changed; else measured now."""
    started, folder = time.monotonic(), session.options.out
    key = task.key(session)
    if kept is not None and kept.key == key and all((folder / name).is_file() for name in kept.pictures):
        session.say(f"{task.name}: taken over from a run before (--fresh measures again)")
        return kept
    with _warnings_said(session):
        parts = task.measured(session)
    finished = Finished(
        key=key,
        rows=[row for part in parts for row in part.rows],
        provenance=[_titled(part.provenance, task.title, session.options.pipeline) for part in parts],
        pictures=[
            save_png(
                plot,
                folder / f"{file_slug(stem)}.png",
                {"run": suite.name, "task": part.provenance.task, "caption": caption},
            ).name
            for part in (parts if first else ())
            for stem, (caption, plot) in part.pictures.items()
        ],
        seconds=round(time.monotonic() - started, 1),
    )
    text = finished.model_dump_json(indent=1) + "\n"
    if first:
        write_atomically(_path(session.options, task), text)
    session.say(f"{task.name}: done in {finished.seconds:.0f} s")
    return Finished.model_validate_json(text)  # as a later run will read it: tuples in settings become lists


def _titled(provenance: TaskProvenance, title: str, pipeline: str | None) -> TaskProvenance:
    """The title of the suite's task before that of the part, and of drawn images the pipeline as the user named it."""
    full = f"{title}: {provenance.title}" if provenance.title else title
    drawn = provenance.split == "generated" and pipeline is not None and pipeline not in provenance.model
    model = f"{pipeline} ({provenance.model})" if drawn else provenance.model
    return provenance.model_copy(update={"title": full, "model": model})


def _result(suite: Suite, done: Sequence[Finished]) -> Result:
    return Result.now(
        suite.name,
        [row for one in done for row in one.rows],
        [provenance for one in done for provenance in one.provenance],
        seconds=round(sum(one.seconds for one in done), 1),
    )


@contextmanager
def _warnings_said(session: Session) -> Iterator[None]:
    """The first warning of each kind above the progress display instead of through it, and how many were like it.

    A sweep fits dozens of methods, and what they cost is measured: one warning is news, dozens hide it.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", VldebiasWarning)
        yield
    alike: dict[type[Warning], list[warnings.WarningMessage]] = {}
    for one in caught:
        if issubclass(one.category, VldebiasWarning):
            alike.setdefault(one.category, []).append(one)
        else:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
    for first, *more in alike.values():
        session.say(f"warning: {first.message}")
        if more:
            session.say(f"{len(more)} more warnings like this: what they warn of is among the figures")
