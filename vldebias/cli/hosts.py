"""`vldebias debias` and `vldebias merge`: fit and save a projection, or fold it into plain weights."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from vldebias.cli.common import Device, Dtype, Json, Lam, Method, Model, Pipeline, Pretrained, err, out, print_json
from vldebias.errors import InvalidInputError, VldebiasWarning

__all__ = ["debias", "merge"]


def debias(
    prompts: Annotated[list[str], typer.Argument(help="Prompt sets by name or YAML path; several are solved jointly.")],
    save: Annotated[Path, typer.Option("--out", help="Folder to save the projection in.")],
    model: Model = None,
    pretrained: Pretrained = None,
    pipeline: Pipeline = None,
    method: Method = None,
    lam: Lam = None,
    device: Device = "cpu",
    dtype: Dtype = None,
    as_json: Json = False,
) -> None:
    """Fit a projection for a model or pipeline, save it, and say what it does to its own texts.

    One folder per projected tensor (role) of the host: `joint` for models, `sequence`, `pooled`, ... for pipelines.

    [bold]Examples[/bold]

    \b
      vldebias debias gender --model ViT-B-32 --pretrained openai --out gender-b32
      vldebias debias professions-gender professions-race --pipeline stabilityai/stable-diffusion-2-1 --out sd21
      vldebias debias waterbirds --model miniature --out birds --json
    """
    from vldebias.api import fit_projections, inspect
    from vldebias.loading import load_host

    loaded = load_host(model, pretrained, pipeline, device=device, dtype=dtype)
    projections = fit_projections(loaded.host, prompts, method=method, lam=lam, tokenizer=loaded.tokenizer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VldebiasWarning)  # said once by the fit above
        found = {p: inspect(loaded.host, p, tokenizer=loaded.tokenizer, method=method, lam=lam) for p in prompts}
    for role, projection in projections.items():
        projection.save_pretrained(save / role)
    rows = {
        role: {
            "folder": str(save / role),
            "projection": repr(projection),
            "diagnostics": {p: found[p][role].to_dict() for p in prompts},
        }
        for role, projection in projections.items()
    }
    if as_json:
        print_json({"host": loaded.name, "roles": rows})
        return
    for role, projection in projections.items():
        out.print(f"[bold]{role}[/bold] {projection!r} -> {save / role}", highlight=False)
        out.print(_diagnostics_table({p: found[p][role] for p in prompts}))


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
