"""Run a suite, storing the result of each task so that an interrupted run can resume."""

from __future__ import annotations

import hashlib
import json
import os
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pydantic import BaseModel, ValidationError

import vldebias
from vldebias.data import Embeddings
from vldebias.data.parallel import processes
from vldebias.data.rows import digest_of
from vldebias.errors import InvalidInputError, ReferenceWarning, did_you_mean
from vldebias.hosts import Host, TextTable, resolve
from vldebias.hosts.loading import Loaded
from vldebias.measure.rows import WORSE_STRIP, Measurement, TaskProvenance, TaskResult
from vldebias.miniature.words import WORLDS
from vldebias.report.page import render
from vldebias.report.result import Result
from vldebias.report.strip import write_strip
from vldebias.study.inputs import Inputs
from vldebias.study.run_files import PAGE, RESULT, write_manifest
from vldebias.study.suite import Suite, load_suite
from vldebias.study.task import Task
from vldebias.utils.files import only_writer, write_atomically
from vldebias.utils.options import Options
from vldebias.utils.pictures import read_png, write_png
from vldebias.utils.progress import SILENT, Progress
from vldebias.utils.schema import file_slug

if TYPE_CHECKING:
    from rich.console import Console


class Finished(BaseModel, extra="forbid"):
    """Result of one task, as stored in <out>/tasks/, with its key from `key_of`."""

    key: str
    parts: list[tuple[TaskProvenance, list[Measurement]]]
    seconds: float

    @classmethod
    def read(cls, path: Path, key: str) -> Self | None:
        """Load a stored result, or return None if it is missing, invalid or has a different key.

        Args:
            path: the JSON file of the task.
            key: hash of everything that the result depends on, from `key_of`.
        """
        with suppress(FileNotFoundError, ValidationError):
            stored = cls.model_validate_json(path.read_bytes())
            # Compare the key instead of the date, because only changed inputs or settings require a
            # new measurement.
            return stored if stored.key == key else None
        return None


def run_suite(
    suite: Suite | str | Path,
    options: Options | None = None,
    *,
    progress: Progress | None = None,
    console: Console | None = None,
    only: Sequence[str] = (),
) -> Result:
    """Run every task in a suite, and write result.json, images and index.html.

    The output folder is `options.out`.

    result.json is written after every task. A later run reuses tasks that finished with the same
    settings, prompts, weights and data. Image features and generated images are reused even if
    their task was interrupted. An interrupted run still writes a page about the finished tasks.

    Args:
        suite: a suite, its name or its path.
        options: the user's inputs. By default, only the output folder is set, to
            "vldebias-<suite>".
        progress: object that shows progress bars. By default, they appear on stderr.
        console: rich console for the progress bars.
        only: names of the tasks to run. If empty, all tasks run.

    Raises:
        InvalidInputError: If a required input is missing, or another run is writing to the folder.
    """
    if not isinstance(suite, Suite):
        suite = load_suite(suite)
    options = options or Options(out=Path(f"vldebias-{suite.name}"))
    suite, options = _with_choices(suite, options, only)

    # If there are several processes, only the first one writes files and reports progress.
    is_first = processes().rank == 0
    shown = SILENT
    lock: AbstractContextManager[None] = nullcontext()
    if is_first:
        shown = progress or Progress(console)
        lock = only_writer(options.out, shown.print_line)
    with shown, lock, warnings.catch_warnings():
        if suite.host is not None:
            # The packaged images are fixed, so nobody could follow the advice to add some.
            warnings.simplefilter("ignore", ReferenceWarning)
        inputs = Inputs(options, needs=suite.needs, progress=shown)
        if (options.texts or options.embeddings) and isinstance(inputs.texts, TextTable):
            # If prompts are missing from the user's text embeddings, list them for all tasks at
            # once.
            inputs.texts.embed(suite.texts())
        finished_tasks: list[Finished] = []
        result = _result_of(suite, finished_tasks)
        try:
            for task in suite.tasks:
                finished_tasks.append(_finish(inputs, suite, task, is_first))
                result = _result_of(suite, finished_tasks)
                if is_first:
                    # Write the result after every task, in case a long run is killed.
                    result.write(options.out / RESULT)
        except KeyboardInterrupt:
            inputs.progress.print_line(
                f"{len(finished_tasks)} of {len(suite.tasks)} tasks are finished; run the same"
                " command to continue"
            )
            raise
        finally:
            # Write the page about the finished tasks even after Ctrl-C or an error in a later task.
            if result.rows and is_first:
                render(result, options.out / PAGE, run_folder=options.out)
                write_manifest(options.out)
    return result


def _with_choices(suite: Suite, options: Options, only: Sequence[str]) -> tuple[Suite, Options]:
    """Apply the user's settings to the suite, and the suite's default model to the options.

    Raises:
        InvalidInputError: If the suite has no task with a name in `only`.
    """
    if options.device == "cuda" and "LOCAL_RANK" in os.environ:
        # Each process has its own GPU.
        options = replace(options, device=f"cuda:{os.environ['LOCAL_RANK']}")
    if suite.host is not None:
        model = options.model
        if model is None and options.embeddings is None:
            model = suite.host
        options = replace(options, model=model, pipeline=options.pipeline or suite.host)
    names = [task.name for task in suite.tasks]
    for name in only:
        if name not in names:
            raise InvalidInputError(
                f"{suite.name}: got task {name!r}; expected one of {', '.join(names)};"
                f" {did_you_mean(name, names)}"
            )
    chosen = [task for task in suite.tasks if not only or task.name in only]
    tasks = tuple(task.with_options(options) for task in chosen)
    return suite.model_copy(update={"tasks": tasks}), options


def _result_of(suite: Suite, finished_tasks: Sequence[Finished]) -> Result:
    """Combine the finished tasks into one result."""
    parts = []
    seconds = 0.0
    for finished in finished_tasks:
        parts += [TaskResult(*part) for part in finished.parts]
        seconds += finished.seconds
    return Result.from_tasks(suite.name, parts, seconds=round(seconds, 1))


def _finish(inputs: Inputs, suite: Suite, task: Task, is_first: bool) -> Finished:
    """Return a task's stored result, or measure the task if anything it depends on has changed."""
    start = time.monotonic()
    folder = inputs.options.out
    path = folder / "tasks" / f"{file_slug(task.name)}.json"
    opened = task.open_inputs(inputs)
    key = key_of(task, inputs.options, opened)
    stored = Finished.read(path, key)
    if stored is not None and not inputs.options.fresh:
        inputs.progress.print_line(
            f"{task.name}: reused from an earlier run; use --fresh (fresh=True) to measure it again"
        )
        return stored

    # Use the filter "always", since Python suppresses warnings that an earlier task already issued.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results = task.measured(opened)
    # Show one warning per kind, since a sweep may issue dozens.
    first_of_kind: dict[type[Warning], warnings.WarningMessage] = {}
    for warning in caught:
        first_of_kind.setdefault(warning.category, warning)
    if is_first:
        for kind, warning in first_of_kind.items():
            warnings.warn_explicit(warning.message, kind, warning.filename, warning.lineno)
    parts = []
    # Write images before the task's JSON, which marks the task as finished.
    for part in results:
        if is_first:
            _write_pictures(part, suite, folder)
        provenance = _as_shown(part.provenance, task, inputs.options.pipeline)
        parts.append((provenance, part.rows))
    seconds = round(time.monotonic() - start, 1)
    content = Finished(key=key, parts=parts, seconds=seconds).model_dump_json(indent=1) + "\n"
    if is_first:
        write_atomically(path, content)
    inputs.progress.print_line(f"{task.name}: done in {seconds:.0f} s")
    # Return exactly what a later run will load. For example, tuples in settings become lists.
    return Finished.model_validate_json(content)


def _write_pictures(part: TaskResult, suite: Suite, folder: Path) -> None:
    """Write a result's images and strips to the folder of the page."""
    metadata = {"run": suite.name, "task": part.provenance.task}
    # Remove earlier images of prompts that got worse, since they may no longer apply.
    for file in folder.glob(f"*{WORSE_STRIP}.png"):
        with suppress(OSError):  # not a PNG file
            known = read_png(file, pixels=False)[1]
            if known.items() >= metadata.items():
                file.unlink()
    for stem, (caption, plot) in part.pictures.items():
        path = folder / f"{file_slug(stem)}.png"
        write_png(plot, path, {**metadata, "caption": caption}, small=True)
    for stem, strip in part.strips.items():
        write_strip(strip, folder / f"{file_slug(stem)}.png", metadata)


def _as_shown(provenance: TaskProvenance, task: Task, pipeline: str | None) -> TaskProvenance:
    """Add titles, the user's pipeline name, and the miniature flag to the provenance for pages."""
    model = provenance.model
    if (
        provenance.split == "generated"
        and pipeline is not None
        and pipeline not in provenance.model
    ):
        # A pipeline may only know its folder or class, so start with the name that the user gave.
        model = f"{pipeline} ({provenance.model})"
    first_of_split = provenance.split.split(" ")[0]
    is_miniature = first_of_split in WORLDS or model.split(" ")[0] == "miniature"
    update = {
        "title": f"{task.title}: {provenance.title}" if provenance.title else task.title,
        "model": model,
        "is_miniature": is_miniature,
    }
    return provenance.model_copy(update=update)


def key_of(task: Task, options: Options, inputs: Mapping[str, object]) -> str:
    """Hash everything that the results depend on, so that earlier measurements can be reused.

    Args:
        task: the task to measure, with its settings.
        options: the user's inputs.
        inputs: the task's inputs by name.
    """
    files = [options.table, options.texts, options.reference, *options.label_file]
    for folder in options.projections:
        files += sorted(folder.rglob("*.safetensors"))
    # The device, the batch size of the encoder and the folder are excluded, so that a run can be
    # resumed on a different machine. The version is included, since the code may have changed.
    content = [
        task.model_dump(mode="json"),
        inputs,
        [file and digest_of(file) for file in files],
        options.limit,
        options.unknown,
        vldebias.__version__,
    ]
    text = json.dumps(content, sort_keys=True, default=_mark)
    return hashlib.sha256(text.encode()).hexdigest()


def _mark(value: object) -> object:
    """Return a value that identifies an input, such as a data digest or a weight fingerprint."""
    if isinstance(value, Embeddings):
        # The cache folder is named after a hash of the encoder and the images.
        return {**value.about, "source": None, "cache": Path(value.about.get("cache", "")).name}
    if isinstance(value, Path):
        return digest_of(value) if value.is_file() else None
    if isinstance(value, Loaded):
        value = resolve(value.host, tokenizer=value.tokenizer)
    if isinstance(value, Host):
        return value.weights or getattr(value, "digest", None)
    return getattr(value, "fingerprint", None)
