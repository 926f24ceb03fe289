"""Run a suite with files, and resume it task by task."""

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
from typing import Any, Self

from pydantic import BaseModel, ValidationError

import vldebias
from vldebias.data import Embeddings, digest_of, processes
from vldebias.errors import InvalidInputError, did_you_mean
from vldebias.hosts import Host, TextTable, resolve
from vldebias.hosts.loading import Loaded
from vldebias.measure.rows import WORSE_STRIP
from vldebias.miniature.words import WORLDS
from vldebias.report.page import render
from vldebias.report.result import Measurement, Result, TaskProvenance, TaskResult
from vldebias.report.strip import write_strip
from vldebias.study.inputs import Inputs
from vldebias.study.manifest import PAGE, RESULT, write_manifest
from vldebias.study.suite import Suite, load_suite
from vldebias.study.task import Task
from vldebias.utils.files import only_writer, write_atomically
from vldebias.utils.options import Options
from vldebias.utils.pictures import read_png, write_png
from vldebias.utils.progress import SILENT, Progress
from vldebias.utils.schema import file_slug


class Finished(BaseModel, extra="forbid"):
    """Hold the result of one task, as stored in <out>/tasks/; key: see `key_of`."""

    key: str
    parts: list[tuple[TaskProvenance, list[Measurement]]]
    seconds: float

    @classmethod
    def read(cls, path: Path, key: str) -> Self | None:
        """Return what a file holds; None where there is none, or one of another version or key.

        Args:
            path: the file.
            key: hash of what the task's figures depend on, `key_of`.
        """
        with suppress(FileNotFoundError, ValidationError):
            kept = cls.model_validate_json(path.read_bytes())
            # The key, not the date, decides: a run with another k or other weights measures again
            # by itself.
            return kept if kept.key == key else None
        return None


def run_suite(
    suite: Suite | str | Path,
    options: Options | None = None,
    *,
    progress: Progress | None = None,
    console: Any = None,
    only: Sequence[str] = (),
    loaded: Loaded | None = None,
) -> Result:
    """Measure every task of a suite and write result.json, pictures and index.html into
    `options.out`.

    result.json is written after every task. A second run reuses each task that a run before has
    finished with the same settings, prompts, weights and data, and says so; image features and
    generated images are resumed even inside a task. An interrupted run keeps all of it, with a page
    about the finished tasks.

    Args:
        suite: a name, a path, or from `load_suite`.
        options: what the user brings; by default the folder "vldebias-<suite>" and nothing else.
        progress: where progress is shown; default: stderr.
        console: a rich console to show progress on.
        only: names of tasks; none: all of them.
        loaded: the model or pipeline that the options name, if it is loaded already.

    Raises:
        InvalidInputError: something that the suite needs is lacking, or another run writes there.
    """
    if not isinstance(suite, Suite):
        suite = load_suite(suite)
    options = options or Options(out=Path(f"vldebias-{suite.name}"))
    suite, options = _with_choices(suite, options, only)

    # Of several processes only the first writes and reports progress.
    is_first = processes().rank == 0
    shown = SILENT
    lock: AbstractContextManager[None] = nullcontext()
    if is_first:
        shown = progress or Progress(console)
        lock = only_writer(options.out, shown.say)
    with shown, lock:
        sources = {} if loaded is None else {"model": loaded, "pipeline": loaded}
        inputs = Inputs(options, sources, needs=suite.needs, progress=shown)
        if (options.texts or options.embeddings) and isinstance(inputs.texts, TextTable):
            # Where the user's file of texts lacks prompts, the message names those of all tasks.
            inputs.texts.embed(suite.texts())
        done: list[Finished] = []
        result = _result_of(suite, done)
        try:
            for task in suite.tasks:
                done.append(_finish(inputs, suite, task, is_first))
                result = _result_of(suite, done)
                if is_first:
                    # After every task: a run of hours that is killed leaves what it has measured.
                    result.write(options.out / RESULT)
        finally:
            # Also after Ctrl-C or an error in a later task: the finished ones have their page.
            if result.rows and is_first:
                render(result, options.out / PAGE, beside=options.out)
                write_manifest(options.out)
    return result


def _with_choices(suite: Suite, options: Options, only: Sequence[str]) -> tuple[Suite, Options]:
    """Return the suite with the tasks that the user names and the user's choices in them, and the
    options with the suite's own weights where the user names none.

    Raises:
        InvalidInputError: no such task.
    """
    if options.device == "cuda" and "LOCAL_RANK" in os.environ:
        # Each of several processes has a GPU to itself.
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
    tasks = []
    for task in suite.tasks:
        if not only or task.name in only:
            tasks.append(task.with_options(options))
    return suite.model_copy(update={"tasks": tuple(tasks)}), options


def _result_of(suite: Suite, done: Sequence[Finished]) -> Result:
    """Return the result of the tasks that are done."""
    parts = []
    seconds = 0.0
    for finished in done:
        parts += [TaskResult(*part) for part in finished.parts]
        seconds += finished.seconds
    return Result.from_tasks(suite.name, parts, seconds=round(seconds, 1))


def _finish(inputs: Inputs, suite: Suite, task: Task, is_first: bool) -> Finished:
    """Return what a run before has finished, if nothing it depends on has changed; else measure
    now."""
    start = time.monotonic()
    folder = inputs.options.out
    path = folder / "tasks" / f"{file_slug(task.name)}.json"
    opened = inputs.of_task(task)
    key = key_of(task, inputs.options, opened)
    kept = Finished.read(path, key)
    if kept is not None and not inputs.options.fresh:
        inputs.progress.say(
            f"{task.name}: reused from an earlier run; --fresh (fresh=True) measures it again"
        )
        return kept

    # Recorded with “always”, since Python would stay silent about a line that has warned in an
    # earlier task.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results = task.measured(opened)
    # One warning of each kind is shown, as a sweep gives dozens.
    first_of_kind: dict[type[Warning], warnings.WarningMessage] = {}
    for warning in caught:
        first_of_kind.setdefault(warning.category, warning)
    if is_first:
        for kind, warning in first_of_kind.items():
            warnings.warn_explicit(warning.message, kind, warning.filename, warning.lineno)
    parts = []
    # Pictures are written before the task's JSON: a task counts as finished only when all of it is
    # there.
    for part in results:
        if is_first:
            _write_pictures(part, suite, folder)
        provenance = _as_shown(part.provenance, task, inputs.options.pipeline)
        parts.append((provenance, part.rows))
    seconds = round(time.monotonic() - start, 1)
    content = Finished(key=key, parts=parts, seconds=seconds).model_dump_json(indent=1) + "\n"
    if is_first:
        write_atomically(path, content)
    inputs.progress.say(f"{task.name}: done in {seconds:.0f} s")
    # As a later run will read it: tuples in settings become lists.
    return Finished.model_validate_json(content)


def _write_pictures(part: TaskResult, suite: Suite, folder: Path) -> None:
    """Write the pictures and strips of a result beside the page."""
    metadata = {"run": suite.name, "task": part.provenance.task}
    # An earlier measurement of the task may have shown harm that this one does not find.
    for file in folder.glob(f"*{WORSE_STRIP}.png"):
        with suppress(OSError):  # a file of somebody else that is no PNG
            known = read_png(file, pixels=False)[1]
            if known.items() >= metadata.items():
                file.unlink()
    for stem, (caption, plot) in part.pictures.items():
        path = folder / f"{file_slug(stem)}.png"
        write_png(plot, path, {**metadata, "caption": caption}, small=True)
    for stem, strip in part.strips.items():
        write_strip(strip, folder / f"{file_slug(stem)}.png", metadata)


def _as_shown(provenance: TaskProvenance, task: Task, pipeline: str | None) -> TaskProvenance:
    """Return what a task was measured with, and what pages show of it.

    These are the titles, the name that the user gave the pipeline, and whether the pictures are
    those of the miniature world.
    """
    model = provenance.model
    if (
        provenance.split == "generated"
        and pipeline is not None
        and pipeline not in provenance.model
    ):
        # A pipeline may know itself by its folder or its class alone; the user's name stands before
        # that.
        model = f"{pipeline} ({provenance.model})"
    first_of_split = provenance.split.split(" ")[0]
    is_miniature = first_of_split in WORLDS or model.split(" ")[0] == "miniature"
    update = {
        "title": f"{task.title}: {provenance.title}" if provenance.title else task.title,
        "model": model,
        "is_miniature": is_miniature,
    }
    return provenance.model_copy(update=update)


def key_of(task: Task, options: Options, inputs: Mapping[str, Any]) -> str:
    """Return a hash of what figures depend on; a restarted run reuses what a run before has
    measured with it.

    Args:
        task: the task.
        options: inputs of the user.
        inputs: what the task measures, by name.
    """
    files = [options.table, options.texts, options.reference, *options.labels]
    for folder in options.projections:
        files += sorted(folder.rglob("*.safetensors"))
    # What changes no figure (device, batch of an encoder, folder of the run) is left out on
    # purpose: another machine may go on with the run. The version is in, since code may have
    # changed.
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


def _mark(value: Any) -> Any:
    """Return what identifies an input: the digest of data, or the fingerprint of weights."""
    if isinstance(value, Embeddings):
        # The name of the cache's folder is a hash of encoder and images.
        return {**value.about, "source": None, "cache": Path(value.about.get("cache", "")).name}
    if isinstance(value, Path):
        return digest_of(value) if value.is_file() else None
    if isinstance(value, Loaded):
        value = resolve(value.host, tokenizer=value.tokenizer)
    if isinstance(value, Host):
        return value.weights or getattr(value, "digest", None)
    return getattr(value, "fingerprint", None)
