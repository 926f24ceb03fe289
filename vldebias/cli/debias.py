"""`vldebias debias`: fit a projection, say what it does, save it, merge it into the weights, check it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vldebias.cli import complete
from vldebias.cli.common import HOST_FLAGS, Json, aside, check_method, check_out, err, load, print_grid, print_json, say
from vldebias.cli.flags import with_flags
from vldebias.errors import InvalidInputError

if TYPE_CHECKING:
    from vldebias.edit import Edit
    from vldebias.loading import Loaded
    from vldebias.methods import Diagnostics, Problem, Reference
    from vldebias.methods.equalise import MeansReport

HEADINGS = {
    "pair_distance": "distance within pairs",
    "held_out_distance": "the same, held-out pairs",
    "spurious_spread": "spread of class cosines over spurious texts",
    "signal_kept": "class signal kept",
    "class_cosine": "cosine of a class prompt with itself",
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
    save: Annotated[Path | None, typer.Option("--out", help="Save the projection in this folder.")] = None,
    merge: Annotated[
        Path | None, typer.Option(help="Fold the projection into plain weights, saved in this empty folder.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Try the three states, saving, loading and merging on this model.")
    ] = False,
    projection: Annotated[Path | None, typer.Option(help="Folder of a saved projection, in place of a fit.")] = None,
    method: Annotated[
        str | None,
        typer.Option(autocompletion=complete.complete_methods, help="Default: default; see `vldebias methods`."),
    ] = None,
    lam: Annotated[
        str | None, typer.Option(help="Weight of the prompt pairs, for a --method that has one, such as cali.")
    ] = None,
    reference: Annotated[
        Path | None, typer.Option(help="Image features of this model (.npz, .safetensors) to fit on.")
    ] = None,
    confidence: Annotated[
        float, typer.Option(help="Leave out reference images whose attribute is less probable than this.")
    ] = 0.0,
    max_loss: Annotated[
        float | None, typer.Option(help="Most that a class prompt may lose of its cosine with itself, such as 0.02.")
    ] = None,
    strength: Annotated[float, typer.Option(min=0.0, max=1.0, help="With --merge: share of the projection.")] = 1.0,
    draw: Annotated[bool, typer.Option(help="With --check: also generate images with a pipeline.")] = True,
    steps: Annotated[int, typer.Option(min=1, help="With --check: denoising steps.")] = 2,
    size: Annotated[int | None, typer.Option(min=8, help="With --check: height and width of an image.")] = None,
    as_json: Json = False,
    **named: Any,
) -> None:
    """Fit a projection for a model or pipeline and say what it does to the model's own texts.

    --out saves one folder per projected tensor (role): `joint` for models, `sequence`, `pooled`, ... for pipelines.
    --merge writes a checkpoint that runs without this package; weights cannot hold the gate for stated attributes nor
    leave the negative prompt alone. --check ends with exit code 1 where something is not as it should be.

    [bold]Examples[/bold]

    \b
      vldebias debias gender --model ViT-B-32 --pretrained openai --out gender-b32
      vldebias debias gender --model ViT-B-32 --pretrained openai --reference images.npz --out gender-b32
      vldebias debias professions-gender --pipeline stable-diffusion-v1-5/stable-diffusion-v1-5 --out sd15
      vldebias debias gender --model openai/clip-vit-base-patch32 --method cali --merge clip-merged
      vldebias debias gender --model ViT-B-32 --pretrained openai --projection gender-b32
      vldebias debias gender --model ViT-B-32 --pretrained openai --check
    """
    fitting = {"--method": method, "--lam": lam, "--reference": reference, "--max-loss": max_loss}
    given = next((name for name, value in fitting.items() if value is not None), None)
    if given is not None and (projection is not None or check):
        other = "--check fits cali" if check else "--projection names one that is fitted"
        raise InvalidInputError(f"{given} is about fitting, and {other}; leave one away")
    if confidence and reference is None:
        raise InvalidInputError("--confidence is about the images of --reference; give that too")
    check_out(save)
    if merge is not None and merge.exists() and any(merge.iterdir()):
        raise InvalidInputError(f"--merge {merge}: is not empty; a merged checkpoint overwrites nothing, name another")
    weight, fitted_on = _lam(lam), None if reference is None else _features(reference, confidence)
    check_method(method, images=fitted_on is not None)
    if check:
        call = {"num_inference_steps": steps} | ({} if size is None else {"height": size, "width": size})
        return _check(load(**named, prompts=prompts), prompts[0], call if draw else None, as_json)
    from vldebias.methods import Problem, load_edits, resolved

    saved = None if projection is None else load_edits(projection)
    loaded = load(**named, prompts=prompts)
    how: dict[str, Any] = {"lam": weight, "reference": fitted_on}
    problem = Problem.of(loaded.host, prompts, tokenizer=loaded.tokenizer, max_loss=max_loss, **how)
    host, chosen = problem.host, resolved(method, **how)
    edits = {role: problem.fit(chosen, role) for role in host.roles} if saved is None else saved
    for role, edit in edits.items():
        if role not in host.roles:
            raise InvalidInputError(f"{projection}: holds the role {role!r}, here are {', '.join(host.roles)}")
        host.check(role, edit)
        if save is not None:
            edit.save_pretrained(save / role)
    if as_json:
        print_json({"host": loaded.name, **_facts(problem, edits, save)})
    else:
        _show(problem, edits, save)
    if merge is not None:
        _merge(loaded, edits, strength, merge)


def _diagnosed(problem: Problem, role: str, edit: Edit) -> dict[str, Diagnostics]:
    """Return diagnostics by prompt set; none of an edit that encodes several wordings."""
    from vldebias.methods import Diagnostics

    sets = () if hasattr(edit, "wordings") else problem.sets
    return {s.name: Diagnostics.of(problem.host, role, edit, s) for s in sets}


def _facts(problem: Problem, edits: Mapping[str, Edit], folder: Path | None) -> dict[str, Any]:
    from vldebias.methods.closed_form import reference_splits

    rows: dict[str, dict[str, Any]] = {}
    for role, edit in edits.items():
        diagnostics = {name: asdict(one) for name, one in _diagnosed(problem, role, edit).items()}
        rows[role] = {"folder": None if folder is None else str(folder / role), "projection": repr(edit)}
        rows[role]["diagnostics"] = diagnostics
        if edit.provenance.choice is not None:
            rows[role]["choice"] = edit.provenance.choice.to_dict()
    split = {name: asdict(report) for name, report in reference_splits(problem).items()}
    return {"roles": rows, **({"reference": split} if split else {})}


def _show(problem: Problem, edits: Mapping[str, Edit], folder: Path | None) -> None:
    from vldebias.methods.closed_form import reference_splits

    for name, report in reference_splits(problem).items():
        aside(f"{name}, reference images: {_split(report)}")
    rows = []
    for role, edit in edits.items():
        if edit.provenance.choice is not None:
            aside(edit.provenance.choice)
        aside(f"{role}: {edit!r}" + ("" if folder is None else f" -> {folder / role}"))
        for name, diagnostics in _diagnosed(problem, role, edit).items():
            for key, heading in HEADINGS.items():
                value = getattr(diagnostics, key)
                pair = value if isinstance(value, tuple) else (None, value)  # one figure compares before and after
                rows.append((heading, name, role, *("" if one is None else f"{one:.3f}" for one in pair)))
    if rows:
        print_grid(("measure", "prompt set", "role", "before", "after"), rows)


def _split(report: MeansReport) -> str:
    """Say in one line how the reference images were split."""
    totals: dict[str, int] = {}
    for row in report.counts.values():
        for value, n in row.items():
            totals[value] = totals.get(value, 0) + n
    counted = ", ".join(f"{n} {value} ({report.expected_error[value]:.1%} doubtful)" for value, n in totals.items())
    return f"{counted}; {report.used} compared, {report.left_out} left out; stability {report.stability:.2f}"


def _lam(given: str | None) -> float | None:
    """Read a number from 0 on, or None."""
    if given is None:
        return None
    try:
        weight = float(given)
    except ValueError:
        weight = math.nan
    if not 0 <= weight < math.inf:
        raise InvalidInputError(f"--lam: expected a number from 0 on, got {given!r}")
    return weight


def _features(path: Path, confidence: float) -> Reference:
    from vldebias.data import load_embeddings
    from vldebias.methods import Reference

    embeddings, _ = load_embeddings(path)
    return Reference(embeddings.features, confidence, labels=embeddings.labels)


def _merge(loaded: Loaded, edits: Mapping[str, Edit], strength: float, folder: Path) -> None:
    from vldebias.api import debias

    attachment = debias(loaded.host, dict(edits), strength=strength, tokenizer=loaded.tokenizer)
    attachment.merge()
    folder.mkdir(parents=True, exist_ok=True)
    if hasattr(loaded.host, "save_pretrained"):
        loaded.host.save_pretrained(folder)
    else:  # open_clip: the state dict that `--pretrained FILE` reads
        from safetensors.torch import save_file

        state = {key: value.contiguous() for key, value in loaded.host.state_dict().items()}
        save_file(state, folder / "open_clip_model.safetensors")
    say(f"{attachment!r}\nsaved to {folder}", err)


def _check(loaded: Loaded, prompts: str, call: Mapping[str, Any] | None, as_json: bool) -> None:
    """Print what `vldebias.evaluation.checking` finds; exit code 1 where something is wrong."""
    import time

    from vldebias.errors import VldebiasError
    from vldebias.evaluation.checking import Finding, check, result_of

    findings: list[Finding] = []
    started = time.monotonic()
    if hasattr(loaded.host, "set_progress_bar_config"):
        loaded.host.set_progress_bar_config(disable=True)
    try:
        findings += check(loaded, prompts, draw=call)
    except VldebiasError:
        raise
    except Exception as error:  # of the library, such as out of memory: what was found so far is still reported
        findings.append(Finding("to the end", 0.0, f"{type(error).__name__}: {str(error)[:300]}"))
    result = result_of(findings, loaded, prompts, time.monotonic() - started)
    if as_json:
        print_json(result.to_dict())
    else:
        about = result.provenance[0].settings
        aside(f"{loaded.name} ({about['class']}), {about['device']}")
        print_grid(("check", "result", "note"), [(one.name, one.said, one.note) for one in findings])
        libraries = ", ".join(f"{name} {version}" for name, version in result.versions.items())
        aside(f"{result.platform}; {libraries}; {prompts}")
    if any(one.failed for one in findings):
        raise typer.Exit(1)
