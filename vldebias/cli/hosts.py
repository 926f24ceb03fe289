"""`vldebias debias` and `vldebias merge`: fit and save a projection, or fold it into plain weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from vldebias.cli.common import Device, Dtype, Json, Lam, Method, Model, Pipeline, Pretrained, err, out, print_json
from vldebias.equalise import MeansReport, Reference
from vldebias.errors import InvalidInputError

if TYPE_CHECKING:
    from vldebias.fitting import Fit
    from vldebias.projection import CalibratedProjection

__all__ = ["debias", "merge"]


AnyMethod = Annotated[
    str | None,
    typer.Option(
        help="orth, orth-cali, cali, difference, equalise (needs --reference) or auto. Default: the paper's for the "
        "kind of host; cali with --reference."
    ),
]
AnyLam = Annotated[
    str | None,
    typer.Option("--lam", help="Weight of the prompt pairs, or auto. Default: 1000 for models, 500 for pipelines."),
]
ReferenceFile = Annotated[
    Path | None,
    typer.Option("--reference", help="Unlabelled image features of this model (.npz, .safetensors) to equalise with."),
]


def debias(
    prompts: Annotated[list[str], typer.Argument(help="Prompt sets by name or YAML path; several are solved jointly.")],
    save: Annotated[Path, typer.Option("--out", help="Folder to save the projection in.")],
    model: Model = None,
    pretrained: Pretrained = None,
    pipeline: Pipeline = None,
    method: AnyMethod = None,
    lam: AnyLam = None,
    reference: ReferenceFile = None,
    confidence: Annotated[
        float, typer.Option(help="Leave out reference images whose attribute is less probable than this.")
    ] = 0.0,
    max_loss: Annotated[
        float | None, typer.Option(help="Most that a class prompt may lose of its cosine with itself, such as 0.02.")
    ] = None,
    device: Device = "cpu",
    dtype: Dtype = None,
    as_json: Json = False,
) -> None:
    """Fit a projection for a model or pipeline, save it, and say what it does to its own texts.

    One folder per projected tensor (role) of the host: `joint` for models, `sequence`, `pooled`, ... for pipelines.

    [bold]Examples[/bold]

    \b
      vldebias debias gender --model ViT-B-32 --pretrained openai --out gender-b32
      vldebias debias gender --model ViT-B-32 --pretrained openai --reference images.npz --out gender-b32
      vldebias debias gender --model ViT-B-32 --pretrained openai --method auto --max-loss 0.02 --out gender-b32
      vldebias debias professions-gender professions-race --pipeline stabilityai/stable-diffusion-2-1 --out sd21
      vldebias debias waterbirds --model miniature --out birds --json
    """
    from vldebias.bounded import Bound
    from vldebias.fitting import Fit
    from vldebias.hosts import resolve
    from vldebias.loading import load_host

    given = _reference(reference, confidence)
    loaded = load_host(model, pretrained, pipeline, device=device, dtype=dtype)
    host = resolve(loaded.host, tokenizer=loaded.tokenizer)
    fit = Fit.of(host, prompts, method, _lam(lam), given, None if max_loss is None else Bound.of(max_loss))
    projections = {role: fit.solve(role) for role in host.roles}
    for role, projection in projections.items():
        projection.save_pretrained(save / role)
    if as_json:
        print_json({"host": loaded.name, **_facts(fit, projections, save)})
    else:
        _show(fit, projections, save)


def _splits(fit: Fit) -> dict[str, MeansReport]:
    """Prompt set -> how its values split the reference images."""
    if fit.reference is None:
        return {}
    return {s.name: fit.means(s, fit.host.roles[0]).report() for s in fit.attributes}


def _facts(fit: Fit, projections: Mapping[str, CalibratedProjection], save: Path) -> dict[str, Any]:
    """What `--json` prints: the projections by role, what "auto" chose, and the split of the reference images."""
    rows: dict[str, dict[str, Any]] = {}
    for role, projection in projections.items():
        diagnostics = {s.name: fit.diagnose(role, projection, s).to_dict() for s in fit.sets}
        rows[role] = {"folder": str(save / role), "projection": repr(projection), "diagnostics": diagnostics}
        if role in fit.choices:
            rows[role]["choice"] = fit.choices[role].to_dict()
    split = {name: report.to_dict() for name, report in _splits(fit).items()}
    return {"roles": rows, **({"reference": split} if split else {})}


def _show(fit: Fit, projections: Mapping[str, CalibratedProjection], save: Path) -> None:
    for name, report in _splits(fit).items():
        out.print(f"[bold]{name}[/bold], reference images: {_told(report)}", highlight=False)
    for role, projection in projections.items():
        if role in fit.choices:
            out.print(str(fit.choices[role]), markup=False, highlight=False)
        out.print(f"[bold]{role}[/bold] {projection!r} -> {save / role}", highlight=False)
        out.print(_diagnostics_table({s.name: fit.diagnose(role, projection, s) for s in fit.sets}))


def _lam(given: str | None) -> float | str | None:
    """A number, "auto" or None."""
    if given is None or given == "auto":
        return given
    try:
        return float(given)
    except ValueError:
        raise InvalidInputError(f"--lam: expected a number or auto, got {given!r}") from None


def _reference(path: Path | None, confidence: float) -> Reference | None:
    if path is None:
        if confidence:
            raise InvalidInputError("--confidence is about the images of --reference; give that too")
        return None
    from vldebias.data.embedding_files import load_embeddings

    embeddings, _ = load_embeddings(path)
    return Reference(embeddings.features, confidence)


def _told(report: MeansReport) -> str:
    """The split of the images, in one line."""
    totals: dict[str, int] = {}
    for row in report.counts.values():
        for value, n in row.items():
            totals[value] = totals.get(value, 0) + n
    counted = ", ".join(f"{n} {value} ({report.expected_error[value]:.1%} doubtful)" for value, n in totals.items())
    return f"{counted}; {report.used} compared, {report.left_out} left out; stability {report.stability:.2f}"


def _diagnostics_table(found: dict[str, Any]) -> Table:
    table = Table(
        "prompt set",
        "pair distance",
        "unseen pairs",
        "class spread over spurious",
        "class signal kept",
        "class cosine",
    )
    for name, d in found.items():
        table.add_row(
            name,
            _change(d.pair_distance),
            _change(d.held_out_distance),
            _change(d.spurious_spread),
            _value(d.signal_kept),
            _value(d.class_cosine),
        )
    return table


def _change(values: tuple[float, float] | None) -> str:
    return "-" if values is None else f"{values[0]:.3f} -> {values[1]:.3f}"


def _value(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def merge(
    prompts: Annotated[str, typer.Argument(help="A prompt set, or a folder that `vldebias debias` wrote.")],
    save: Annotated[Path, typer.Option("--out", help="Folder for the merged checkpoint.")],
    model: Model = None,
    pretrained: Pretrained = None,
    pipeline: Pipeline = None,
    method: Method = None,
    lam: Lam = None,
    strength: Annotated[float, typer.Option(min=0.0, max=1.0)] = 1.0,
    device: Device = "cpu",
    dtype: Dtype = None,
) -> None:
    """Fold a projection into plain weights: the checkpoint then runs without this package.

    Weights cannot hold the gate for stated attributes nor leave the negative prompt alone: both are lost.

    [bold]Examples[/bold]

    \b
      vldebias merge gender --model openai/clip-vit-base-patch32 --out clip-merged
      vldebias merge ./sd21 --pipeline stabilityai/stable-diffusion-2-1 --out sd21-merged
    """
    from vldebias.api import debias as attach
    from vldebias.loading import load_host

    if save.exists() and any(save.iterdir()):
        raise InvalidInputError(
            f"{save}: is not empty; a merged checkpoint is never written over something else, choose another --out"
        )
    loaded = load_host(model, pretrained, pipeline, device=device, dtype=dtype)
    folder = Path(prompts)
    given: Any = _saved_projections(folder) if folder.is_dir() else prompts
    attachment = attach(loaded.host, given, method=method, lam=lam, strength=strength, tokenizer=loaded.tokenizer)
    attachment.merge()
    _save_checkpoint(loaded.host, save)
    err.print(f"{attachment!r}\nsaved to {save}", markup=False, highlight=False)


def _saved_projections(folder: Path) -> dict[str, Any]:
    from vldebias.projection import CalibratedProjection

    roles = sorted(p.parent for p in folder.glob("*/config.json"))
    if not roles:
        raise InvalidInputError(
            f"{folder}: expected one folder per role with a config.json, as `vldebias debias --out` writes"
        )
    return {path.name: CalibratedProjection.from_pretrained(path) for path in roles}


def _save_checkpoint(host: Any, folder: Path) -> None:
    """save_pretrained where the host has it; open_clip models as the state dict that `--pretrained FILE` reads."""
    folder.mkdir(parents=True, exist_ok=True)
    if hasattr(host, "save_pretrained"):
        host.save_pretrained(folder)
        return
    from safetensors.torch import save_file

    save_file({k: v.contiguous() for k, v in host.state_dict().items()}, folder / "open_clip_model.safetensors")
