"""Run evaluations: `evaluate` measures Python objects; `run_suite` runs a suite with files and
resumes task by task."""

from __future__ import annotations

import hashlib
import json
import os
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, SerializeAsAny, ValidationError, model_validator

import vldebias
from vldebias.data import Embeddings, digest_of, processes
from vldebias.edits.edit import Edit
from vldebias.errors import InvalidInputError, SuspectInputWarning, did_you_mean, warn
from vldebias.files import (
    LOCK,
    digest,
    explain,
    only_writer,
    packaged,
    read_json,
    read_yaml,
    write_atomically,
)
from vldebias.hosts import Host, TextTable, attachment_of, resolve
from vldebias.hosts.host import TEXT
from vldebias.hosts.loading import Loaded
from vldebias.measure.page import render
from vldebias.measure.result import Measurement, Result, TaskProvenance, TaskResult
from vldebias.measure.strip import write_strip
from vldebias.methods import METHODS, Method, get_method
from vldebias.miniature.words import WORLDS
from vldebias.options import Options
from vldebias.pictures import write_png
from vldebias.progress import SILENT, Progress
from vldebias.prompts import PromptSet
from vldebias.schema import Name, Strict, file_slug, one_of
from vldebias.study.images import ImageTask
from vldebias.study.task import TASKS, Session, Task

RESULT, PAGE, MANIFEST = "result.json", "index.html", "manifest.json"
LABELS = ("labels", "reference_labels", "train_labels", "val_labels")


def evaluate(
    model: Any,
    images: Any = None,
    *,
    prompts: str | PromptSet | Mapping[str, Any] | None = None,
    labels: Any = None,
    unknown: Any = (),
    task: str = "retrieval",
    methods: str | Method | Edit | Sequence[Any] | Mapping[str, Any] | None = None,
    reference: Any = None,
    reference_labels: Any = None,
    split: str = "test",
    root: str | Path | None = None,
    tokenizer: Any = None,
    pretrained: str | None = None,
    device: str = "cpu",
    progress: Progress | bool | None = None,
    **options: Any,
) -> Result:
    """Measure methods on images and the texts of one model, or with any other task: bias and
    utility, with intervals.

    Args:
        model: an open_clip or transformers model, a name that `vldebias.load_host` opens, or a
            mapping from prompt to embedding (d,). tokenizer, pretrained, device: of the model,
            where they are needed.
        images: features (n, d), as an array, a tensor or a list; in files (.npz, .npy, or a pattern
            such as "shards/*.npy") or `vldebias.data.Shards`; `Embeddings`; or a folder of images
            or the name of a data set (`vldebias eval data`), which the model embeds. split, root:
            of a data set, its part and its folder.
        prompts: a prompt set, by name or as an object. For retrieval also column -> set, where a
            column has another name than the attribute of its set, or for several columns.
        labels: column -> values of the n images, or one column alone: strings or integers; None,
            NaN and "" are unknown. None: those that come with the images.
        unknown: values of labels that mean "not known", such as -1. Results count these rows;
            groups leave them out.
        task: a name in `vldebias.study.TASKS`: "retrieval" (skew of the first k results),
            "groups" (accuracy of the worst group), "generation", "texts" (distance of prompt
            pairs), or one that was registered.
        methods: names in `vldebias.methods.METHODS`, methods, edits that were fitted before (also
            name -> edit), or several; by default "none", "default" and the attachment that the
            model carries ("attached cali"), all at its strength. "none" is always measured, without
            any attachment; changes are differences to it.
        reference: image features (m, d), or whatever `images` may be. Methods are then what
            `vldebias.debias` attaches with these images: a closed form such as "cali" is equalised
            against them ("cali+equalise").
        reference_labels: as labels, of these m images, for the methods that need labels. None:
            those that come with the reference, else what the model's texts say.
        progress: True to show it on stderr.
        options: fields of the task, and inputs of its `measure`.

            - of retrieval: `queries`, texts, or a prompt set whose class prompts are asked for
              (default: the class prompts); `k`, one or several (default: a twentieth of the images,
              at least 10); prior, classes, resample.
            - of groups: `label` and `spurious`, columns (by default those that the class prompts
              and the attribute's values name); `train`, `train_labels`, `val`, `val_labels` for
              `baselines=`; lams, group_weights.
            - of both: lam, strength, resamples, seed.
            - of generation: `model` is a pipeline; `judge` reads the images, generated into the
              folder `images`; attributes and the other fields of `GenerationTask`.
            - of texts: `model` is a model or a pipeline; `method` (one) and lam.

    What does not fit raises InvalidInputError or UnsupportedHostError, by name.

    >>> texts = {prompt: model.encode(prompt) for prompt in prompts_to_embed}  # doctest: +SKIP
    >>> labels = {"gender": gender}  # doctest: +SKIP
    >>> evaluate(texts, features, prompts="gender", labels=labels, k=50)  # doctest: +SKIP
    """
    kind = TASKS[str(task)]
    takes, compares = kind.takes(), issubclass(kind, ImageTask)
    known = sorted(
        {*kind.model_fields, *takes, *(name for name in LABELS if name.partition("_")[0] in takes)}
    )
    given = {
        "model": model,
        "pipeline": model,
        "tokenizer": tokenizer,
        "images": images,
        "reference": reference,
    }
    given |= {"labels": labels, "reference_labels": reference_labels}
    fields: dict[str, Any] = {"name": task, "title": task} | (
        {} if prompts is None else {"prompts": prompts}
    )
    for name, value in options.items():
        if name not in known:
            expected = f"{', '.join(known)}; {did_you_mean(name, known)}"
            raise InvalidInputError(
                f"evaluate: got {name!r}, which is no option of {task}; expected one of {expected}"
            )
        is_field = name in kind.model_fields and (
            name not in takes or isinstance(value, (Strict, Mapping))
        )
        (fields if is_field else given)[name] = value
    column = (
        next(iter(prompts), "")
        if isinstance(prompts, Mapping)
        else str(getattr(prompts, "name", prompts))
    )
    alone = [name for name in LABELS if not isinstance(given.get(name), (Mapping, type(None)))]
    given |= {name: {column: given[name]} for name in alone}
    shown = progress if isinstance(progress, Progress) else Progress() if progress else SILENT
    own = Options(Path(), pretrained=pretrained, device=device, data_root=root, unknown=unknown)
    session = Session(own, f"task {task!r}", shown, given, split)
    modules = (
        session.texts.exclusive_modules
        if compares and not isinstance(model, (str, type(None)))
        else ()
    )
    carried = next(filter(None, map(attachment_of, modules)), None)
    if carried is not None and methods is not None:
        expected = "expected no methods= (it is measured then), or its edit among them"
        warn(
            f"model: got one with an attachment, which is not among the methods; {expected}",
            SuspectInputWarning,
        )
    elif carried is not None:  # what the user has, at the strength that it has
        methods = {
            "default": None,
            f"attached {carried.projections[TEXT].method}": carried.projections[TEXT],
        }
        fields.setdefault("strength", carried.strength)
    elif compares and methods is None:
        methods = "default"
    if methods is not None:
        listed: Any = [methods] if isinstance(methods, (str, Method, Edit)) else methods
        pairs = list(
            methods.items() if isinstance(methods, Mapping) else ((None, one) for one in listed)
        )
        session.given["edits"] = {
            name or f"fitted {one.method}": one for name, one in pairs if isinstance(one, Edit)
        }
        fields["methods"] = [
            get_method(one, reference=reference) for _, one in pairs if not isinstance(one, Edit)
        ]
    began = time.monotonic()
    with shown:
        measured = kind.of_given(session, fields)
        parts = measured.measured(session.given | measured.inputs(session))
    return Result.of(task, parts, seconds=round(time.monotonic() - began, 3))


class Suite(Strict):
    """Hold the content of one YAML file. needs: what the user has to provide, for `eval list` and
    for messages.

    host: weights that are used unless the command line names others: "miniature" for the embedded
    world.
    headline: (task, metric) of the rows that the terminal shows; all wholes where there are none.
    """

    name: Name
    title: str
    description: str
    source: str
    needs: str
    host: Literal["miniature"] | None = None
    headline: tuple[tuple[str, str], ...] = ()
    tasks: Annotated[
        tuple[Annotated[SerializeAsAny[Task], one_of(TASKS, "task")], ...], Field(min_length=1)
    ]

    @model_validator(mode="after")
    def _different_names(self) -> Suite:
        names = [task.name for task in self.tasks]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"got two tasks with the name {twice[0]!r}; give each its own")
        return self

    def texts(self) -> tuple[str, ...]:
        """Return every prompt that an image-text model embeds for the suite."""
        return tuple(dict.fromkeys(text for task in self.tasks for text in task.texts()))


def load_suite(name_or_path: str | Path) -> Suite:
    """Return a suite by name, or from a YAML file; InvalidInputError names a key that does not
    follow the schema."""
    path = suite_path(name_or_path)
    try:
        return Suite.model_validate({"name": path.stem.lower(), **read_yaml(path)})
    except ValidationError as error:
        raise InvalidInputError(f"{path}: {explain(error)}") from error


def suite_path(name_or_path: str | Path) -> Path:
    """Return the file of a suite: a Path or a text with a folder or .yaml is a path; a name is
    looked up."""
    path = Path(name_or_path)
    if isinstance(name_or_path, Path) or path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        return path.expanduser()
    if name_or_path not in (files := packaged("suites")):
        known, hint = ", ".join(files), did_you_mean(name_or_path, files)
        raise InvalidInputError(
            f"got the suite {name_or_path!r}; expected one of {known}, or a .yaml file; {hint}"
        )
    return files[name_or_path]


class Finished(BaseModel, extra="forbid"):
    """Hold what one task gave, as stored in <out>/tasks/; key: see `key_of`."""

    key: str
    parts: list[tuple[TaskProvenance, list[Measurement]]]
    seconds: float


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

    suite: a name, a path, or from `load_suite`. only: names of tasks; none: all of them.
    options: what the user brings; by default the folder "vldebias-<suite>" and nothing else.
    progress: where it shows how far it is; default: on stderr. console: a rich console for it.
    loaded: the model or pipeline that the options name, if it is loaded already.

    Something that the suite needs and lacks, and another run that writes there, raise
    InvalidInputError.
    """
    suite = suite if isinstance(suite, Suite) else load_suite(suite)
    options, there = (
        options or Options(out=Path(f"vldebias-{suite.name}")),
        [task.name for task in suite.tasks],
    )
    if unknown := [name for name in only if name not in there]:
        expected = f"expected one of {', '.join(there)}; {did_you_mean(unknown[0], there)}"
        raise InvalidInputError(f"{suite.name}: got task {unknown[0]!r}; {expected}")
    if (
        options.device == "cuda" and "LOCAL_RANK" in os.environ
    ):  # each of several processes has a GPU of its own
        options = replace(options, device=f"cuda:{os.environ['LOCAL_RANK']}")
    if suite.host is not None:  # the suite's own weights where the user names none
        model = options.model or (suite.host if options.embeddings is None else None)
        options = replace(options, model=model, pipeline=options.pipeline or suite.host)
    tasks = tuple(
        task.with_options(options) for task in suite.tasks if not only or task.name in only
    )
    suite = suite.model_copy(update={"tasks": tasks})
    first = processes().rank == 0  # of several processes it alone writes and says how far it is
    out, done, result = options.out, list[Finished](), Result.of(suite.name, [], seconds=0.0)
    shown = progress or Progress(console) if first else SILENT
    with shown, only_writer(out, shown.say) if first else nullcontext():
        session = Session(
            options, suite.needs, shown, {"model": loaded, "pipeline": loaded} if loaded else {}
        )
        try:
            if (options.texts or options.embeddings) and isinstance(session.texts, TextTable):
                session.texts.embed(
                    suite.texts()
                )  # all prompts that the user's file lacks are named at once
            for task in tasks:
                done.append(_finished(session, suite, task, first))
                parts = [TaskResult(*part) for one in done for part in one.parts]
                result = Result.of(
                    suite.name, parts, seconds=round(sum(one.seconds for one in done), 1)
                )
                if first:
                    result.write(out / RESULT)
        finally:
            if result.rows and first:
                render(result, out / PAGE, beside=out)
                write_manifest(out)
    return result


def _finished(session: Session, suite: Suite, task: Task, first: bool) -> Finished:
    """Return what a run before has finished, if nothing it depends on has changed; else measure
    now."""
    started, folder, say = time.monotonic(), session.options.out, session.progress.say
    inputs, path = task.inputs(session), folder / "tasks" / f"{file_slug(task.name)}.json"
    key = key_of(task, session.options, inputs)
    with suppress(FileNotFoundError, ValidationError):  # not measured yet, or by another version
        kept = Finished.model_validate_json(path.read_bytes())
        if kept.key == key and not session.options.fresh:
            say(f"{task.name}: reused from an earlier run; to measure it again, delete {path}")
            return kept
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        parts = task.measured(session.given | inputs)
    for one in (
        {one.category: one for one in reversed(caught)}.values() if first else ()
    ):  # a sweep issues dozens
        warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
    stored, pipeline = [], session.options.pipeline
    for part in parts:
        about = part.provenance
        for stem, (caption, plot) in part.pictures.items() if first else ():
            metadata = {"run": suite.name, "task": about.task, "caption": caption}
            write_png(plot, folder / f"{file_slug(stem)}.png", metadata, small=True)
        for stem, strip in part.strips.items() if first else ():
            metadata = {"run": suite.name, "task": about.task}
            write_strip(strip, folder / f"{file_slug(stem)}.png", metadata)
        drawn = about.split == "generated" and pipeline is not None and pipeline not in about.model
        model = f"{pipeline} ({about.model})" if drawn else about.model  # as the user named it
        title = f"{task.title}: {about.title}" if about.title else task.title
        described = about.model_copy(update={"title": title, "model": model})
        stored.append((_shown(described), part.rows))
    finished = Finished(key=key, parts=stored, seconds=round(time.monotonic() - started, 1))
    content = finished.model_dump_json(indent=1) + "\n"
    if first:
        write_atomically(path, content)
    say(f"{task.name}: done in {finished.seconds:.0f} s")
    return Finished.model_validate_json(
        content
    )  # as a later run will read it: tuples in settings become lists


def _shown(about: TaskProvenance) -> TaskProvenance:
    """Return what a task was measured with, and what pages show of it: the colour of each method,
    and whether the pictures are those of the miniature world."""
    methods = {}
    for name, facts in about.methods.items():
        methods[name] = {**facts, "color": METHODS[name].color} if name in METHODS else facts
    is_miniature = about.split.split(" ")[0] in WORLDS or about.model.split(" ")[0] == "miniature"
    return about.model_copy(update={"methods": methods, "is_miniature": is_miniature})


def key_of(task: Task, options: Options, inputs: Mapping[str, Any]) -> str:
    """Return a hash of what figures depend on; a restarted run reuses what a run before has
    measured with it."""
    files = [options.table, options.texts, options.reference, *options.labels]
    files += [
        file for folder in options.projections for file in sorted(folder.rglob("*.safetensors"))
    ]
    digests = [file and digest_of(file) for file in files]
    content = [
        task.model_dump(mode="json"),
        inputs,
        digests,
        options.limit,
        options.unknown,
        vldebias.__version__,
    ]
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=_mark).encode()).hexdigest()


def _mark(value: Any) -> Any:
    """Return what identifies an input: the digest of data, or the fingerprint of weights."""
    if isinstance(
        value, Embeddings
    ):  # the name of the cache's folder is a hash of encoder and images
        return {**value.about, "source": None, "cache": Path(value.about.get("cache", "")).name}
    if isinstance(value, Path):
        return digest_of(value) if value.is_file() else None
    if isinstance(value, Loaded):
        value = resolve(value.host, tokenizer=value.tokenizer)
    if isinstance(value, Host):
        return value.weights or getattr(value, "digest", None)
    return getattr(value, "fingerprint", None)


def _digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of the files of a run; not of cached features, which are checked where
    they are read."""
    files = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    own = [
        name
        for name in files
        if name.parts[0] != "cache" and name not in (Path(MANIFEST), Path(LOCK))
    ]
    return {name.as_posix(): digest(folder / name) for name in own}


def write_manifest(folder: Path) -> Path:
    """Write the SHA-256 of every file of a run except those of the embedding cache, for
    `verify`."""
    return write_atomically(
        folder / MANIFEST, json.dumps({"files": _digests(folder)}, indent=1) + "\n"
    )


def record_pages(folder: Path, pages: Sequence[Path]) -> None:
    """Write the SHA-256 of pages that were rendered again into the manifest, and of no other file.

    A file that somebody changed stays a difference for `verify`. Without a manifest, and for pages
    outside the folder, nothing is written.
    """
    manifest = read_json(folder / MANIFEST) if (folder / MANIFEST).is_file() else None
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        return
    for page in pages:
        if page.resolve().is_relative_to(folder.resolve()):
            name = page.resolve().relative_to(folder.resolve()).as_posix()
            manifest["files"][name] = digest(page)
    write_atomically(folder / MANIFEST, json.dumps(manifest, indent=1) + "\n")


def verify(result: str | Path) -> dict[str, list[str]]:
    """Return the names of the files of a run that are "changed", "missing" and "added" since it
    ended.

    result: the folder of the run, or its result.json; without a manifest there it raises
    InvalidInputError.
    """
    folder = Path(result) if Path(result).is_dir() else Path(result).parent
    there = Path(result).exists() and (folder / MANIFEST).is_file()
    manifest = read_json(folder / MANIFEST) if there else None
    if not isinstance(manifest, dict) or not isinstance(files := manifest.get("files"), dict):
        raise InvalidInputError(
            f"{result}: got no {MANIFEST}; expected the whole folder of a run: run the suite again"
        )
    now = _digests(folder)
    changed = [name for name, one in now.items() if name in files and one != files[name]]
    return {
        "changed": changed,
        "missing": sorted(set(files) - set(now)),
        "added": sorted(set(now) - set(files)),
    }
