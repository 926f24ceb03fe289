"""`vldebias debias`, `merge`, `methods`: fit and save an edit, fold it into plain weights, list what can be fitted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vldebias.cli import complete
from vldebias.cli.common import (
    HOST_FLAGS,
    Json,
    Lam,
    Method,
    aside,
    check_method,
    check_names,
    check_out,
    device_of,
    err,
    load,
    out,
    piped,
    print_grid,
    print_json,
    say,
)
from vldebias.cli.flags import with_flags
from vldebias.errors import InvalidInputError

if TYPE_CHECKING:
    from vldebias.edit import Edit
    from vldebias.evaluation.judges import Judge
    from vldebias.loading import Loaded
    from vldebias.methods import Diagnostics, Problem, Reference
    from vldebias.methods import Method as EditMethod
    from vldebias.methods.equalise import MeansReport
    from vldebias.prompts import PromptSet

HEADINGS = {
    "pair_distance": "pair distance",
    "held_out_distance": "unseen pairs",
    "spurious_spread": "class spread over spurious",
    "signal_kept": "class signal kept",
    "class_cosine": "class cosine",
}


@with_flags(HOST_FLAGS)
def debias_command(
    prompts: Annotated[
        list[str],
        typer.Argument(
            help="Prompt sets by name or YAML path; several are solved jointly.",
            autocompletion=complete.complete_prompt_sets,
        ),
    ],
    save: Annotated[Path | None, typer.Option("--out", help="Folder to save the projection in.")] = None,
    projection: Annotated[
        Path | None, typer.Option(help="Instead of fitting one: the folder of a projection, to see what it does here.")
    ] = None,
    method: Method = None,
    lam: Lam = None,
    reference: Annotated[
        Path | None,
        typer.Option(help="Image features of this model (.npz, .safetensors) to equalise with or to learn from."),
    ] = None,
    images: Annotated[
        Path | None,
        typer.Option(help="Unlabelled features of images to classify: where the boundary between two classes moves."),
    ] = None,
    confidence: Annotated[
        float, typer.Option(help="Leave out reference images whose attribute is less probable than this.")
    ] = 0.0,
    max_loss: Annotated[
        float | None, typer.Option(help="Most that a class prompt may lose of its cosine with itself, such as 0.02.")
    ] = None,
    judge: Annotated[
        str | None,
        typer.Option(
            help="For methods that need judged images: the model that reads what is drawn, named as --model; "
            "or 'miniature', the classifier of that world."
        ),
    ] = None,
    judge_pretrained: Annotated[str | None, typer.Option(help="open_clip tag of the judge.")] = None,
    fit_images: Annotated[int, typer.Option(min=1, help="With --judge: images of each prompt and round.")] = 4,
    steps: Annotated[int, typer.Option(min=1, help="With --judge: denoising steps.")] = 50,
    guidance: Annotated[float, typer.Option(help="With --judge: guidance scale.")] = 7.5,
    as_json: Json = False,
    **named: Any,
) -> None:
    """Fit a projection for a model or pipeline, save it, and say what it does to its own texts.

    One folder per projected tensor (role) of the host: `joint` for models, `sequence`, `pooled`, ... for pipelines.
    With --judge, `readings` beside them has the images that were drawn for the fit; a second run goes on with them.

    [bold]Examples[/bold]

    \b
      vldebias debias gender --model ViT-B-32 --pretrained openai --out gender-b32
      vldebias debias gender --model ViT-B-32 --pretrained openai --reference images.npz --out gender-b32
      vldebias debias gender --model ViT-B-32 --pretrained openai --method auto --max-loss 0.02 --out gender-b32
      vldebias debias professions-gender professions-race --pipeline stabilityai/stable-diffusion-2-1 --out sd21
      vldebias debias professions-gender --pipeline DIR --method uce --judge openai/clip-vit-base-patch32 --out sd
      vldebias debias waterbirds --model miniature --out birds --json
      vldebias debias professions-gender --model ViT-B-32 --pretrained openai --projection gender-b32
      vldebias debias waterbirds --model ViT-B-32 --pretrained openai --projection birds --images test.npz
    """
    check_names([] if method is None else [method])
    from vldebias.api import make_problem
    from vldebias.hosts import resolve
    from vldebias.methods import load_edits

    fitting: dict[str, object] = {"--method": method, "--lam": lam, "--reference": reference, "--max-loss": max_loss}
    fitting |= {"--out": save, "--judge": judge}
    if (save is None) == (projection is None):
        raise InvalidInputError("expected either --out, a folder for what is fitted, or --projection, a fitted one")
    given = next((name for name, value in fitting.items() if value is not None), None)
    if projection is not None and given is not None:
        raise InvalidInputError(f"{given} is about fitting, and --projection names one that is fitted; leave one away")
    if images is not None and "pipeline" in named:
        raise InvalidInputError("--images are for a --model: a pipeline classifies none")
    if confidence and reference is None:
        raise InvalidInputError("--confidence is about the images of --reference; give that too")
    check_out(save)
    weight, fitted_on = _lam(lam), None if reference is None else _features(reference, confidence)
    seen = None if images is None else _features(images)
    check_method(method, images=fitted_on is not None, judge=judge is not None)
    if judge is not None:
        _check_judged(method, prompts, named.get("pipeline"), max_loss)
    saved = None if projection is None else load_edits(projection)
    loaded = load(**named, prompts=prompts)
    host = resolve(loaded.host, tokenizer=loaded.tokenizer)
    problem, chosen = make_problem(host, prompts, method, weight, fitted_on, max_loss)
    if judge is not None:
        drawing = {"images": fit_images, "steps": steps, "guidance": guidance}
        reader = open_judge(judge, judge_pretrained, problem.sets[0], device_of(named["device"]))
        assert save is not None
        chosen = _read(problem, chosen, loaded, reader, save / "readings", drawing)
    edits = {role: problem.fit(chosen, role) for role in host.roles} if saved is None else saved
    for role, edit in edits.items():
        if role not in host.roles:
            raise InvalidInputError(f"{projection}: holds the role {role!r}, here are {', '.join(host.roles)}")
        host.check(role, edit)
        if save is not None:
            edit.save_pretrained(save / role)
    folder = save or projection or Path()
    if as_json:
        print_json({"host": loaded.name, **_facts(problem, edits, folder, seen)})
    else:
        _show(problem, edits, folder, seen)


def _check_judged(method: str | None, prompts: list[str], pipeline: str | None, max_loss: float | None) -> None:
    """Refuse a judge where nothing is drawn, before anything is loaded."""
    from vldebias.methods import Need, get_method

    if method is None or Need.JUDGED not in get_method(method).needs:
        raise InvalidInputError(f"--judge is for methods that need {Need.JUDGED} (vldebias methods); leave it away")
    if pipeline is None or len(prompts) > 1 or max_loss is not None:
        raise InvalidInputError(
            f"--method {method} is fitted to what a --pipeline draws, on one prompt set and without --max-loss"
        )


def open_judge(name: str, pretrained: str | None, prompts: PromptSet, device: str) -> Judge:
    """The classifier of the miniature world, or a zero-shot judge that asks in the words of the prompt set."""
    from vldebias.evaluation.judges import ClipJudge, MiniatureJudge, Question
    from vldebias.loading import load_host

    if name == "miniature":
        return MiniatureJudge()
    model = load_host(name, pretrained, device=device)
    questions = {prompts.name: Question.about(prompts)}
    return ClipJudge(model.host, model.preprocess, model.tokenizer, questions=questions, name=model.name)


def _read(
    problem: Problem, method: EditMethod, loaded: Loaded, judge: Judge, folder: Path, drawing: Mapping[str, Any]
) -> EditMethod:
    """The method with what the judge read; says how many images that took."""
    from vldebias.evaluation.readings import Drawing, read_judged
    from vldebias.progress import Progress

    assert isinstance(problem.weight, float)
    how: dict[str, Any] = {"method": method, "lam": problem.weight, "drawing": Drawing(**drawing), "model": loaded.name}
    with Progress.on(err) as shown:
        fitted, images = read_judged(loaded.host, problem.sets[0], judge, folder, progress=shown, **how)
    say(f"{method.name}: fitted to {images} images, read by {judge.name}; they are in {folder}", err)
    return fitted


def _diagnosed(problem: Problem, role: str, edit: Edit, images: Reference | None) -> dict[str, Diagnostics]:
    """Prompt set -> diagnostics; none of an edit that draws or reads prompts, which embeddings alone do not show."""
    if edit.sampled or edit.reads_text:
        return {}
    return {s.name: problem.diagnose(role, edit, s, images) for s in problem.sets}


def _facts(problem: Problem, edits: Mapping[str, Edit], folder: Path, images: Reference | None) -> dict[str, Any]:
    """What `--json` prints: the edits by role, what "auto" chose, and the split of the reference images."""
    from vldebias.methods.closed_form import reference_splits

    rows: dict[str, dict[str, Any]] = {}
    for role, edit in edits.items():
        diagnostics = {name: one.to_dict() for name, one in _diagnosed(problem, role, edit, images).items()}
        rows[role] = {"folder": str(folder / role), "projection": repr(edit), "diagnostics": diagnostics}
        if edit.provenance.choice is not None:
            rows[role]["choice"] = edit.provenance.choice.to_dict()
    split = {name: report.to_dict() for name, report in reference_splits(problem).items()}
    return {"roles": rows, **({"reference": split} if split else {})}


def _show(problem: Problem, edits: Mapping[str, Edit], folder: Path, images: Reference | None) -> None:
    from vldebias.methods.closed_form import reference_splits

    for name, report in reference_splits(problem).items():
        aside(f"{name}, reference images: {_split(report)}")
    rows = []
    for role, edit in edits.items():
        if edit.provenance.choice is not None:
            aside(edit.provenance.choice)
        aside(f"{role}: {edit!r} -> {folder / role}")
        diagnosed = _diagnosed(problem, role, edit, images)
        for name, diagnostics in diagnosed.items():
            for key, heading in HEADINGS.items():
                value = getattr(diagnostics, key)
                pair = value if isinstance(value, tuple) else (None, value)  # of what compares the two one figure
                rows.append((heading, name, role, *("" if one is None else f"{one:.3f}" for one in pair)))
        for one in problem.sets if diagnosed and not problem.host.generative else ():
            if len(one.classes) == 2:
                said = diagnosed[one.name].boundary or "boundary between the classes: --images says where it moves"
                aside(f"{one.name}, {said}")
    if rows:
        print_grid(("measure", "prompt set", "role", "before", "after"), rows)


def _split(report: MeansReport) -> str:
    """How the images were split, in one line."""
    totals: dict[str, int] = {}
    for row in report.counts.values():
        for value, n in row.items():
            totals[value] = totals.get(value, 0) + n
    counted = ", ".join(f"{n} {value} ({report.expected_error[value]:.1%} doubtful)" for value, n in totals.items())
    return f"{counted}; {report.used} compared, {report.left_out} left out; stability {report.stability:.2f}"


def _lam(given: str | None) -> float | str | None:
    """A number, "auto" or None."""
    if given is None or given == "auto":
        return given
    try:
        weight = float(given)
    except ValueError:
        weight = math.nan
    if not 0 <= weight < math.inf:
        raise InvalidInputError(f"--lam: expected a number from 0 on, or auto, got {given!r}")
    return weight


def _features(path: Path, confidence: float = 0.0) -> Reference:
    from vldebias.data import load_embeddings
    from vldebias.methods import Reference

    embeddings, _ = load_embeddings(path)
    return Reference(embeddings.features, confidence, labels=embeddings.labels)


@with_flags(HOST_FLAGS)
def merge(
    prompts: Annotated[
        str,
        typer.Argument(
            help="A prompt set, or a folder that `vldebias debias` wrote.", autocompletion=complete.complete_prompt_sets
        ),
    ],
    save: Annotated[Path, typer.Option("--out", help="Folder for the merged checkpoint.")],
    method: Method = None,
    lam: Lam = None,
    strength: Annotated[float, typer.Option(min=0.0, max=1.0, help="Share of the projection, 0 to 1.")] = 1.0,
    **named: Any,
) -> None:
    """Fold a projection into plain weights: the checkpoint then runs without this package.

    Weights cannot hold the gate for stated attributes nor leave the negative prompt alone: both are lost.

    [bold]Examples[/bold]

    \b
      vldebias merge gender --model openai/clip-vit-base-patch32 --out clip-merged
      vldebias merge ./sd21 --pipeline stabilityai/stable-diffusion-2-1 --out sd21-merged
    """
    from vldebias.api import debias as attach
    from vldebias.methods import load_edits

    if save.exists() and any(save.iterdir()):
        raise InvalidInputError(
            f"{save}: is not empty; a merged checkpoint is never written over something else, choose another --out"
        )
    weight, folder = _lam(lam), Path(prompts)
    edits = load_edits(folder) if folder.is_dir() else None
    names = [] if edits is not None else [prompts]
    check_method(method, images=edits is not None)
    loaded = load(**named, prompts=names)
    how: dict[str, Any] = {"method": method, "lam": weight, "strength": strength, "tokenizer": loaded.tokenizer}
    attachment = attach(loaded.host, edits or prompts, **how)
    attachment.merge()
    save.mkdir(parents=True, exist_ok=True)
    if hasattr(loaded.host, "save_pretrained"):
        loaded.host.save_pretrained(save)
    else:  # open_clip: the state dict that `--pretrained FILE` reads
        from safetensors.torch import save_file

        state = {key: value.contiguous() for key, value in loaded.host.state_dict().items()}
        save_file(state, save / "open_clip_model.safetensors")
    say(f"{attachment!r}\nsaved to {save}", err)


def methods(
    everything: Annotated[bool, typer.Option("--all", help="Those too that another does as well or better.")] = False,
    as_json: Json = False,
) -> None:
    """List the methods that --method takes, by what they need; what each is for, and where it comes from.

    Those that need least come first. Methods of other packages (entry points "vldebias.methods") are among them.

    [bold]Examples[/bold]

    \b
      vldebias methods
      vldebias methods --all
      vldebias methods --json
    """
    from vldebias.methods import METHODS, Need

    groups = {
        "prompts alone": None,
        "unlabelled images": Need.IMAGES,
        "labelled images": Need.LABELS,
        "judged draws": Need.JUDGED,
        "training": Need.TRAINING,
    }
    rows: list[dict[str, Any]] = [
        {
            "name": method.name,
            "title": method.title,
            "source": method.source,
            "group": max((name for name, need in groups.items() if need in {None, *method.needs}), key=[*groups].index),
            "needs": sorted(method.needs),
            "lam": method.has_lam,
            "pipelines": method.pipelines,
            "models": method.models,
            "side": method.side,
            "listed": method.listed,
        }
        for method in METHODS.values()
    ]
    if as_json:
        print_json(rows)
        return
    rows.sort(key=lambda row: [*groups].index(row["group"]))
    shown = [row for row in rows if everything or row["listed"]]
    head = ("name", "group", "title", "models", "pipelines", "needs", "lam", "source")
    cells = ([", ".join(row[key]) if key == "needs" else row[key] for key in head] for row in shown)
    if piped(head, cells):
        return
    for group, own in groupby(shown, key=lambda row: row["group"]):
        out.print(f"{group}:", style="bold underline")
        print_grid(("", ""), [(row["name"], _about(row)) for row in own])
    if rest := len(rows) - len(shown):
        out.print(f"{rest} more: --all", style="dim")


def _about(row: Mapping[str, Any]) -> str:
    """ "calibration: for models and pipelines; needs prompt pairs; takes lam (Chuang et al., 2023, Lemma 7.2)" """
    hosts = " and ".join(kind for kind in ("models", "pipelines") if row[kind])
    needs = f"needs {', '.join(row['needs'])}" if row["needs"] else ""
    facts = "; ".join(filter(None, (f"for {hosts}", needs, "takes lam" if row["lam"] else "")))
    return f"{row['title']}: {facts}" + (f" ({row['source']})" if row["source"] else "")
