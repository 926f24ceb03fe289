"""The `vldebias` command: results on stdout, progress and messages on stderr."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Annotated, Any, Never

import typer
from rich.console import Console
from rich.table import Table

import vldebias
from vldebias.errors import InvalidInputError, VldebiasError, VldebiasWarning

__all__ = ["app", "main"]

app = typer.Typer(
    help="Mitigate and measure bias in vision-language models, in closed form, without training or labels.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
prompts_app = typer.Typer(help="Prompt sets: what describes a bias.", no_args_is_help=True, rich_markup_mode="rich")
miniature_app = typer.Typer(
    help="The embedded world of small, real, biased models.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
app.add_typer(prompts_app, name="prompts")
app.add_typer(miniature_app, name="miniature")

out = Console()
err = Console(stderr=True)

Json = Annotated[bool, typer.Option("--json", help="Print JSON alone on stdout.")]
Model = Annotated[
    str | None,
    typer.Option(help="open_clip architecture (with --pretrained), transformers id or folder, or 'miniature'."),
]
Pretrained = Annotated[str | None, typer.Option(help="open_clip tag or checkpoint file.")]
Pipeline = Annotated[str | None, typer.Option(help="diffusers id or folder, or 'miniature'.")]
Device = Annotated[str, typer.Option(help="Where to run: cpu, cuda, mps.")]
Dtype = Annotated[str | None, typer.Option(help="float32, float16 or bfloat16.")]
Method = Annotated[str | None, typer.Option(help="orth, orth-cali or cali. Default: the paper's for the kind of host.")]
Lam = Annotated[
    float | None,
    typer.Option("--lam", help="Weight of the prompt pairs. Default: 1000 for models, 500 for pipelines."),
]


def main() -> None:
    """Run the command; an error that vldebias raises on purpose is one message and exit code 2, no traceback."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", VldebiasWarning)
        setattr(warnings, "showwarning", _show_warning)  # noqa: B010  (mypy takes a plain assignment for an error)
        try:
            app()
        except VldebiasError as error:
            _stop(str(error))
        except KeyboardInterrupt:
            err.print("[yellow]interrupted[/yellow]")
            raise SystemExit(130) from None


def _show_warning(message: Any, category: type[Warning], *_: Any) -> None:
    if issubclass(category, VldebiasWarning):
        err.print(f"[yellow]warning:[/yellow] {message}", highlight=False)


def _stop(message: str) -> Never:
    err.print("[red]error:[/red] ", end="")
    err.print(message, markup=False, highlight=False)
    raise SystemExit(2)


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=1, ensure_ascii=False))


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(vldebias.__version__)
        raise typer.Exit


@app.command()
def quickstart(
    as_json: Json = False,
    out_dir: Annotated[Path, typer.Option("--out", help="Folder for the page, the pictures and the JSON.")] = Path(
        "vldebias-quickstart"
    ),
    images: Annotated[int, typer.Option(min=1, max=100, help="Generated images per profession and seed.")] = 12,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds.")] = 3,
) -> None:
    """Bias and utility before and after, on the embedded miniature world; offline, a few minutes on two cores.

    Measures worst-group accuracy (birds), MaxSkew of retrieval (portraits) and discrepancy of generated images, with
    intervals, and writes a page with side-by-side pictures of the same seeds.

    [bold]Examples[/bold]

    \b
      vldebias quickstart
      vldebias quickstart --json --out /tmp/page > figures.json
    """
    from vldebias.evaluation.quickstart import run
    from vldebias.evaluation.report import print_table

    result, page = run(out_dir, images=images, seeds=range(seeds), console=err)
    if as_json:
        _print_json(result.model_dump())
    else:
        print_table(result, out)
        out.print(f"page: {page}", highlight=False)


@app.command()
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
        _print_json({"host": loaded.name, "roles": rows})
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


@app.command()
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


def _first(words: tuple[str, ...], n: int) -> str:
    return ", ".join(words[:n]) + (f", and {len(words) - n} more" if len(words) > n else "")


_TEMPLATES = ["A photo of a {attribute} {concept}."]


@prompts_app.command("list")
def prompts_list(as_json: Json = False) -> None:
    """List the prompt sets that come with the package.

    [bold]Examples[/bold]

    \b
      vldebias prompts list
    """
    from vldebias.prompts import list_prompts, load_prompts

    sets = [load_prompts(name) for name in list_prompts()]
    if as_json:
        _print_json([_summary(s) for s in sets])
        return
    table = Table("name", "pairs", "held out", "spurious", "classes", "what for")
    for s in sets:
        table.add_row(
            s.name,
            str(len(s.pairs)),
            str(len(s.held_out_pairs)),
            str(len(s.spurious)),
            str(len(s.classes)),
            s.description,
        )
    out.print(table)


def _summary(s: Any) -> dict[str, Any]:
    return {
        "name": s.name,
        "description": s.description,
        "source": s.source,
        "hash": s.hash,
        "pairs": len(s.pairs),
        "held_out_pairs": len(s.held_out_pairs),
        "spurious": len(s.spurious),
        "classes": len(s.classes),
    }


@prompts_app.command("show")
def prompts_show(
    name: Annotated[str, typer.Argument(help="Name of a set or path of a YAML file.")],
    as_json: Json = False,
    every: Annotated[bool, typer.Option("--all", help="Every pair, not the first ten.")] = False,
) -> None:
    """Show one prompt set, with its source and limits.

    [bold]Examples[/bold]

    \b
      vldebias prompts show waterbirds
      vldebias prompts show my-set.yaml --json
    """
    from vldebias.prompts import load_prompts

    s = load_prompts(name)
    if as_json:
        lists = {
            key: getattr(s, key)
            for key in ("classes", "spurious", "pairs", "held_out_pairs", "templates", "stated_words")
        }
        _print_json({**_summary(s), **lists, "limits": s.limits})
        return
    shown = s.pairs if every else s.pairs[:10]
    sections = {
        "what for": [s.description],
        "source": [s.source],
        "limits": [s.limits],
        "classes": list(s.classes),
        "spurious": list(s.spurious),
        f"pairs ({len(shown)} of {len(s.pairs)})": [f"{a}  |  {b}" for a, b in shown],
        f"stated words ({len(s.stated_words)})": [_first(s.stated_words, 60)],
    }
    out.print(f"[bold]{s.name}[/bold]  {s.hash[:12]}", highlight=False)
    for title, lines in sections.items():
        if any(lines):
            out.print(f"[bold]{title}[/bold]")
            out.print("\n".join(f"  {line}" for line in lines), markup=False, highlight=False)


@prompts_app.command("new")
def prompts_new(
    path: Annotated[Path, typer.Argument(help="YAML file to write; its stem is the name of the set.")],
    attribute: Annotated[list[str], typer.Option(help="value=word,word; give it once per value.")],
    concept: Annotated[list[str], typer.Option(help="What the pairs are about; several, or comma-separated.")],
    template: Annotated[list[str], typer.Option(help="With {attribute} and {concept}.")] = _TEMPLATES,
    test_concept: Annotated[list[str] | None, typer.Option(help="Unseen concepts, to measure on.")] = None,
) -> None:
    """Make a prompt set from a short word list: attribute words x templates x concepts.

    [bold]Examples[/bold]

    \b
      vldebias prompts new glasses.yaml --attribute with=bespectacled --attribute without=clear-eyed
          --concept doctor,nurse,teacher --test-concept pilot
    """
    from vldebias.prompts import make_prompt_set

    if path.exists():
        raise InvalidInputError(f"{path}: exists; choose another name or delete it first")
    values = dict(_attribute(text) for text in attribute)
    made = make_prompt_set(path.stem, values, _words(concept), template, test_concepts=_words(test_concept or []))
    made.to_yaml(path)
    err.print(f"{path}: {len(made.pairs)} pairs, {len(made.held_out_pairs)} held out", highlight=False)


def _attribute(text: str) -> tuple[str, list[str]]:
    value, equals, words = text.partition("=")
    if not equals or not value or not words:
        raise InvalidInputError(f"--attribute: expected value=word,word (such as female=female,woman), got {text!r}")
    return value, _words([words])


def _words(texts: list[str]) -> list[str]:
    return [word.strip() for text in texts for word in text.split(",") if word.strip()]


@miniature_app.command("build")
def miniature_build(
    folder: Annotated[Path, typer.Option("--out", help="Folder for the build; resumed if it holds an unfinished one.")],
    seed: Annotated[int, typer.Option(help="Of the weights and of all training images.")] = 0,
    stage: Annotated[list[str] | None, typer.Option(help="Only these stages, in their order.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda. Default: a GPU where there is one.")] = None,
    scale: Annotated[float, typer.Option(help="Factor on the number of steps, for trying things out.")] = 1.0,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over instead of going on.")] = False,
) -> None:
    """Train the miniature models from scratch: under two hours on two cores, resumed where it was after an interrupt.

    [bold]Examples[/bold]

    \b
      vldebias miniature build --out my-world
      vldebias miniature build --out try --scale 0.01
      VLDEBIAS_MINIATURE=my-world vldebias quickstart
    """
    from vldebias.miniature import build

    made = build(folder, seed=seed, stages=stage, device=device, resume=not fresh, scale=scale)
    err.print(f"built {made}; set VLDEBIAS_MINIATURE={made} to use it", markup=False, highlight=False)


@miniature_app.command("info")
def miniature_info(as_json: Json = False) -> None:
    """Where the weights are, how large, and the bias that was measured in them.

    [bold]Examples[/bold]

    \b
      vldebias miniature info --json
    """
    from vldebias.miniature import weights_dir

    folder = weights_dir()
    files = {p.name: p.stat().st_size for p in sorted(folder.iterdir()) if p.is_file()}
    metrics = folder / "metrics.json"
    measured = json.loads(metrics.read_text(encoding="utf-8")) if metrics.is_file() else {}
    if as_json:
        _print_json({"folder": str(folder), "bytes": files, "metrics": measured})
        return
    table = Table("file", "kB", title=str(folder))
    for name, size in files.items():
        table.add_row(name, f"{size / 1000:.0f}")
    out.print(table)
    out.print_json(data=measured)


@miniature_app.command("render")
def miniature_render(
    world: Annotated[str, typer.Argument(help="portraits or birds.")],
    path: Annotated[Path, typer.Option("--out", help="PNG to write; captions and ground truth go beside it as JSON.")],
    n: Annotated[int, typer.Option("-n", min=1, max=4096, help="How many images.")] = 64,
    seed: Annotated[int, typer.Option(help="Names the stream: image i of a seed is always the same.")] = 0,
    balanced: Annotated[bool, typer.Option("--balanced", help="Without the bias.")] = False,
) -> None:
    """Render images of the world with their ground truth.

    [bold]Examples[/bold]

    \b
      vldebias miniature render portraits -n 100 --seed 7 --out portraits.png
    """
    from torchvision.transforms.functional import to_pil_image
    from torchvision.utils import make_grid

    from vldebias.miniature import birds, portraits

    worlds: dict[str, Any] = {"portraits": portraits, "birds": birds}
    if world not in worlds:
        raise InvalidInputError(f"world: expected one of {', '.join(worlds)}, got {world!r}")
    made = worlds[world].sample(n, seed=seed, balanced=balanced)
    path.parent.mkdir(parents=True, exist_ok=True)
    to_pil_image(make_grid(made.images, nrow=max(1, round(n**0.5)), padding=0)).save(path, format="PNG")
    fields = {k: v.tolist() for k, v in vars(made).items() if k not in ("images", "captions")}
    path.with_suffix(".json").write_text(json.dumps({"captions": made.captions, **fields}), encoding="utf-8")
    err.print(f"{path} and {path.with_suffix('.json')}", markup=False, highlight=False)
