"""`vldebias eval`: run a suite by name, compare and render results, look at data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table
from typer.core import TyperGroup

from vldebias.cli.common import Device, Dtype, Json, Model, Pipeline, Pretrained, err, out, print_json
from vldebias.errors import InvalidInputError

__all__ = ["app"]


class SuiteGroup(TyperGroup):
    """A group in which a name that is no command is a suite: `vldebias eval waterbirds` is `vldebias eval run ...`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # of click, or of the copy that typer brings
        """The command of that name, else `run` with the name as its suite."""
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            args = ["run", *args]
        return super().resolve_command(ctx, args)


app = typer.Typer(
    help="Measure bias and utility before and after, with error bars: [bold]vldebias eval SUITE[/bold].\n\n"
    "[bold]Examples[/bold]\n\n\b\n"
    "  vldebias eval list\n"
    "  vldebias eval miniature\n"
    "  vldebias eval waterbirds --model ViT-L-14 --pretrained openai --data-root DIR\n"
    "  vldebias eval compare a/result.json b/result.json",
    cls=SuiteGroup,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

Results = Annotated[Path, typer.Argument(help="A result.json of `vldebias eval`, or the folder that holds one.")]


@app.command("run")
def run(
    suite: Annotated[str, typer.Argument(help="Name of a suite (vldebias eval list) or path of a YAML file.")],
    folder: Annotated[Path | None, typer.Option("--out", help="Folder for results. Default: vldebias-SUITE.")] = None,
    model: Model = None,
    pretrained: Pretrained = None,
    pipeline: Pipeline = None,
    judge: Annotated[str | None, typer.Option(help="Model that reads generated images, named as --model.")] = None,
    judge_pretrained: Annotated[str | None, typer.Option(help="open_clip tag of the judge.")] = None,
    data_root: Annotated[str | None, typer.Option(help="Folder of the data set (a file for a manifest).")] = None,
    embeddings: Annotated[
        Path | None, typer.Option(help="Image features of your own (.npz, .safetensors) instead of images.")
    ] = None,
    key: Annotated[
        list[str] | None, typer.Option(help="ours=theirs: where the embeddings file has another name for a field.")
    ] = None,
    labels: Annotated[list[Path] | None, typer.Option(help="File of an annotator; give it once per file.")] = None,
    drawn: Annotated[Path | None, typer.Option(help="Folder of the generated images that were labelled.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Only this task; several by repeating it.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many images of each split, at random.")] = None,
    lam: Annotated[float | None, typer.Option("--lam", min=0, help="Lambda instead of the suite's.")] = None,
    images: Annotated[int | None, typer.Option(min=1, help="Generated images per prompt and seed.")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Seed of generated images; several by repeating it.")] = None,
    resamples: Annotated[int | None, typer.Option(min=1, help="Bootstrap resamples instead of 2000.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at an image that cannot be read.")] = False,
    cache: Annotated[
        Path | None, typer.Option(help="Embedding cache. Default: $VLDEBIAS_CACHE or ~/.cache/vldebias.")
    ] = None,
    feature_dtype: Annotated[str, typer.Option(help="How features are kept: float16, bfloat16, float32.")] = "float16",
    fresh: Annotated[
        bool, typer.Option("--fresh/--resume", help="Measure again, or take over the tasks that are finished.")
    ] = False,
    device: Device = "cpu",
    dtype: Dtype = None,
    as_json: Json = False,
) -> None:
    """Run a suite and write result.json, pictures and one page; a second run goes on where the first stopped.

    [bold]Examples[/bold]

    \b
      vldebias eval run miniature
      vldebias eval waterbirds --model ViT-L-14 --pretrained openai --data-root DIR
      vldebias eval fairface --model openai/clip-vit-base-patch32 --data-root DIR --limit 2000
      vldebias eval waterbirds --embeddings features.npz --model ViT-B-32 --pretrained openai
      vldebias eval generation --pipeline stabilityai/stable-diffusion-2-1 --device cuda --out sd21
      vldebias eval human --labels anna.jsonl --labels ben.jsonl --drawn sd21/images/gender
    """
    from vldebias.evaluation.report.pages import print_table
    from vldebias.evaluation.suites.load import load_suite
    from vldebias.evaluation.suites.runner import PAGE, run_suite
    from vldebias.evaluation.suites.session import Options

    loaded = load_suite(suite)
    options = Options(
        out=folder or Path(f"vldebias-{loaded.name}"),
        model=model,
        pretrained=pretrained,
        pipeline=pipeline,
        device=device,
        dtype=dtype,
        judge=judge,
        judge_pretrained=judge_pretrained,
        data_root=data_root,
        embeddings=embeddings,
        keys=dict(_pair(text) for text in key or []),
        labels=tuple(labels or ()),
        drawn=drawn,
        cache=cache,
        feature_dtype=feature_dtype,
        strict=strict,
        limit=limit,
        lam=lam,
        images=images,
        seeds=tuple(seed) if seed else None,
        resamples=resamples,
        fresh=fresh,
    )
    result = run_suite(loaded, options, console=err, only=only or ())
    if as_json:
        print_json(result.model_dump(mode="json"))
        return
    print_table(result, out, loaded.headline)
    out.print(f"\npage: {options.out / PAGE}", markup=False, highlight=False)


def _pair(text: str) -> tuple[str, str]:
    ours, equals, theirs = text.partition("=")
    if not (ours and equals and theirs):
        raise InvalidInputError(f"--key: expected ours=theirs (such as features=image_embeds), got {text!r}")
    return ours, theirs


@app.command("list")
def list_all(as_json: Json = False) -> None:
    """List the suites that come with the package, and what each needs.

    [bold]Examples[/bold]

    \b
      vldebias eval list
      vldebias eval list --json
    """
    from vldebias.evaluation.suites.load import list_suites, load_suite

    suites = [load_suite(name) for name in list_suites()]
    if as_json:
        keys = ("name", "title", "description", "source", "needs")
        print_json([{k: getattr(s, k) for k in keys} | {"tasks": [t.name for t in s.tasks]} for s in suites])
        return
    table = Table(box=None, show_header=False, padding=(0, 2, 1, 0))
    for s in suites:
        tasks = ", ".join(task.name for task in s.tasks)
        table.add_row(f"[bold]{s.name}[/bold]", escape(f"{s.title}: {s.source}\nneeds {s.needs}\ntasks: {tasks}"))
    out.print(table)


@app.command("show")
def show(
    suite: Annotated[str, typer.Argument(help="Name of a suite or path of a YAML file.")],
    as_json: Json = False,
) -> None:
    """Print a suite as YAML, to be read or changed: save it under another name and run that.

    --json prints it with every default filled in.

    [bold]Examples[/bold]

    \b
      vldebias eval show waterbirds
      vldebias eval show fairface > mine.yaml
      vldebias eval show miniature --json
    """
    from vldebias.evaluation.suites.load import load_suite, suite_path

    loaded = load_suite(suite)
    if as_json:
        print_json(loaded.model_dump(mode="json"))
        return
    typer.echo(suite_path(suite).read_text(encoding="utf-8"), nl=False)


@app.command("report")
def report(
    result: Results,
    page: Annotated[Path | None, typer.Option("--out", help="HTML page to write. Default: beside the result.")] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown on stdout instead.")] = False,
) -> None:
    """Render a result again: tables and charts from its figures, with the pictures that lie beside it.

    [bold]Examples[/bold]

    \b
      vldebias eval report vldebias-miniature --out page.html
      vldebias eval report result.json --markdown > result.md
    """
    from vldebias.evaluation.report.pages import markdown, render

    path = _result_path(result)
    found = _read(result)
    if as_markdown:
        typer.echo(markdown(found), nl=False)
        return
    written = render(found, page or path.with_suffix(".html"), beside=path.parent)
    err.print(f"{written}", markup=False, highlight=False)


@app.command("compare")
def compare(
    a: Results,
    b: Results,
    page: Annotated[Path | None, typer.Option("--out", help="Also write an HTML page.")] = None,
    as_json: Json = False,
) -> None:
    """Compare two results figure by figure, and warn of everything else that differs between them.

    [bold]Examples[/bold]

    \b
      vldebias eval compare rn50/result.json vit-l-14/result.json
      vldebias eval compare before after --out compare.html
      vldebias eval compare before after --json
    """
    from vldebias.evaluation.report.comparison import compare as compare_results
    from vldebias.evaluation.report.comparison import print_comparison, write_comparison

    comparison = compare_results(_read(a), _read(b), (str(a), str(b)))
    if page is not None:
        err.print(f"{write_comparison(comparison, page)}", markup=False, highlight=False)
    if as_json:
        print_json(comparison.to_dict())
    else:
        print_comparison(comparison, out)


def _result_path(given: Path) -> Path:
    return given / "result.json" if given.is_dir() else given


def _read(given: Path) -> Any:
    from vldebias.evaluation.result import Result

    return Result.read(_result_path(given))


@app.command("data")
def data(
    name: Annotated[str, typer.Argument(help="waterbirds, celeba, fairface, utkface, manifest, huggingface, ...")],
    root: Annotated[str | None, typer.Option(help="Its folder (a file for a manifest).")] = None,
    split: Annotated[str | None, typer.Option(help="train, val, test or all. Default: the one to measure on.")] = None,
    option: Annotated[list[str] | None, typer.Option(help="name=value for the reader, such as image=path.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Read every image and list those that cannot be read.")
    ] = False,
    sample: Annotated[int | None, typer.Option(min=1, help="With --check: read only so many, at random.")] = None,
    as_json: Json = False,
) -> None:
    """What is in a data set: images, labels and their intersections; whether its images can be read.

    Exit code 1 where --check finds images that cannot be read.

    [bold]Examples[/bold]

    \b
      vldebias eval data waterbirds --root DIR
      vldebias eval data fairface --root DIR --split train --check --sample 1000
      vldebias eval data birds
      vldebias eval data manifest --root my.csv --option image=path --option labels=gender
    """
    from vldebias.data.summary import check_images, describe
    from vldebias.evaluation.suites.session import open_split

    opened = open_split(name, root, split, dict(_option(text) for text in option or []))
    told = describe(opened)
    bad = check_images(opened, sample=sample) if check else None
    if bad is not None:
        told["unreadable"] = [{"id": one, "reason": reason} for one, reason in bad]
    if as_json:
        print_json(told)
    else:
        _print_data(told)
    if bad:
        raise typer.Exit(1)


def _option(text: str) -> tuple[str, Any]:
    """name=value; a value with commas is a list, digits are a number, true and false are what they say."""
    import yaml

    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise InvalidInputError(f"--option: expected name=value (such as image=path), got {text!r}")
    if name in ("labels", "columns") and not value.startswith(("[", "{")):
        return name, value.split(",")
    return name, yaml.safe_load(value)


def _print_data(told: dict[str, Any]) -> None:
    title = f"{told['name']} {told['split']}: {told['images']} images, {told.get('captions', 0)} captions"
    out.print(title, markup=False, highlight=False, style="bold")
    for kind in ("columns", "intersections"):
        table = Table(kind[:-1], "images", "unknown", box=None, padding=(0, 2, 0, 0))
        for name, found in told.get(kind, {}).items():
            table.add_row(name, _first(found["counts"]), str(found["unknown"]))
        if table.row_count:
            out.print(table)
    for name, value in (told.get("about") or {}).items():
        out.print(f"{name}: {_short(value)}", markup=False, highlight=False)
    bad = told.get("unreadable")
    if bad is not None:
        out.print(f"{len(bad)} images cannot be read", style="red" if bad else "green", highlight=False)
        for one in bad[:20]:
            out.print(f"  {one['id']}: {one['reason']}", markup=False, highlight=False)


def _first(counts: dict[str, int], n: int = 12) -> str:
    shown = ", ".join(f"{name} {count:,}" for name, count in list(counts.items())[:n])
    return shown + (f", and {len(counts) - n} more" if len(counts) > n else "")


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 160 else text[:157] + "..."
