"""`vldebias eval report`, `compare`, `gate` and `data`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from vldebias.cli import common
from vldebias.cli.common import (
    check_page,
    coloured,
    parse_pairs,
    piped,
    print_grid,
    print_json,
    print_list,
    print_message,
)
from vldebias.cli.flags import Json
from vldebias.errors import InvalidInputError, shortened
from vldebias.utils.phrases import quantity

Result = Annotated[
    Path,
    typer.Argument(exists=True, metavar="RESULT", help="A result.json file or its folder."),
]


def report(
    result: Result,
    page: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="HTML page, or LaTeX tables (.tex), to write. Default: a page next to the result.",
        ),
    ] = None,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Only check the run's files against its manifest."),
    ] = False,
    cite: Annotated[
        bool, typer.Option("--cite", help="Only print a BibTeX entry that names the result.")
    ] = False,
) -> None:
    """Render a result's page or LaTeX tables, cite it, or verify that its files are unchanged.

    --verify compares the SHA-256 of every file with manifest.json, and exits with code 1 if a file
    differs, is missing or was added. Anyone who can change a file can also change the manifest, so
    compare the printed SHA-256 of the manifest with a copy that you keep elsewhere.

    Examples:
      vldebias eval report vldebias-miniature --out page.html
      vldebias eval report vldebias-miniature --out table.tex
      vldebias eval report vldebias-miniature --cite
      vldebias eval report vldebias-miniature --verify
    """
    path = _file_of(result)
    check_page(page, (".html", ".htm", ".tex"))
    from vldebias.report.latex import bibtex
    from vldebias.report.page import render
    from vldebias.report.result import Result
    from vldebias.study import run_files
    from vldebias.utils.files import digest, write_atomically

    if cite:
        common.echo(bibtex(Result.read(path)))
        return
    if not verify:
        if page is None:
            # Copied results do not have a manifest, so name the page after the file.
            is_of_run = path.with_name(run_files.MANIFEST).is_file()
            page = path.with_name(run_files.PAGE) if is_of_run else path.with_suffix(".html")
        if page.suffix == ".tex":
            print_message(write_atomically(page, Result.read(path).to_latex()))
            return
        written = render(Result.read(path), page, run_folder=path.parent)
        # Add the page to the manifest, or `--verify` would report it as an added file.
        tables = written.parent.glob(f"{written.stem}-queries*.csv")
        run_files.record_pages(path.parent, (written, written.with_suffix(".csv"), *tables))
        print_message(written)
        return
    changes = run_files.verify(path).items()
    differences = [f"{change}: {name}" for change, names in changes for name in names]
    if differences:
        common.echo("\n".join(differences))
        raise typer.Exit(1)
    print_message(
        f"all files match {run_files.MANIFEST}, whose SHA-256 is"
        f" {digest(path.parent / run_files.MANIFEST)}"
    )


_OF_RUN = ("name", "sentence", "models", "date")  # printed as JSON


def compare(
    results: Annotated[
        list[Path],
        typer.Argument(
            exists=True,
            metavar="RESULT...",
            help="Results, or folders with results. Two results are compared value by value; one"
            " folder or several results are listed.",
        ),
    ],
    page: Annotated[Path | None, typer.Option("--out", help="HTML page to write.")] = None,
    as_json: Json = False,
) -> None:
    """Compare two results value by value, or list more with the first sentence of each.

    On the page of a list, tick runs to plot them. Results in subfolders are included. Files that
    cannot be read are listed, and the exit code is then 1.

    Examples:
      vldebias eval compare rn50/result.json vit-l-14/result.json
      vldebias eval compare before after --out compare.html
      vldebias eval compare results/ --out runs.html
      vldebias eval compare results/ --json
    """
    check_page(page)
    if len(results) != 2 or not all(_file_of(result).is_file() for result in results):
        _list_runs(results, page, as_json=as_json)
        return
    a, b = results
    from vldebias.report.compare import compare
    from vldebias.report.result import Result

    names = _names_of(a, b)
    comparison = compare(Result.read(_file_of(a)), Result.read(_file_of(b)), names)
    if as_json:
        print_json(comparison.to_dict())
    elif common.out().is_terminal:
        common.out().print(coloured(str(comparison)), soft_wrap=True)
    else:
        for sentence in (comparison.sentence, *comparison.warnings):
            common.echo(f"# {sentence}")
        # Print empty cells instead of "nan".
        frame = comparison.to_pandas()
        rows = frame.astype(object).where(frame.notna(), None).itertuples(index=False)
        piped(tuple(map(str, frame)), rows)
    if page is not None:
        print_message(f"page: {comparison.write_page(page)}")


def _list_runs(results: Sequence[Path], page: Path | None, *, as_json: bool) -> None:
    """List the runs in folders, each with the first sentence of its page."""
    from vldebias.report.page import short_date
    from vldebias.report.runs import read_runs, write_runs

    runs, unreadable = read_runs(results)
    for file, reason in unreadable.items():
        print_message(f"{file}: {reason}", "could not be read", "yellow")
    if as_json:
        rows = [{name: run._asdict()[name] for name in _OF_RUN} for run in runs]
        print_json({"runs": rows, "unreadable": unreadable})
    else:
        rows_of_grid = [(run.name, run.sentence, run.models, short_date(run.date)) for run in runs]
        print_grid(("run", "first sentence", "model", "date"), rows_of_grid)
    if page is not None:
        print_message(f"page: {write_runs(runs, unreadable, page)}")
    if unreadable:
        raise typer.Exit(1)


def _names_of(a: Path, b: Path) -> tuple[str, str]:
    """Return what a comparison calls two results: their paths, without a shared absolute start."""
    if a == b or not (a.is_absolute() and b.is_absolute()):
        return str(a), str(b)
    start = os.path.commonpath([a, b])
    return os.path.relpath(a, start), os.path.relpath(b, start)


def gate(
    result: Result,
    max_gap: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Largest allowed gap between groups, or from even shares: 0.3 is 30%.",
        ),
    ] = None,
    max_skew: Annotated[
        float | None, typer.Option(help="Largest allowed MaxSkew of a search.")
    ] = None,
    min_worst_group: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Smallest allowed worst-group accuracy, as a share."),
    ] = None,
    max_lighter: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Largest allowed share of edits that lighten skin (relative, if measured).",
        ),
    ] = None,
    limits: Annotated[
        list[str] | None,
        typer.Option(
            "--limit", metavar="METRIC=VALUE", help="Limit for a different metric; repeatable."
        ),
    ] = None,
    methods: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            metavar="[TASK=]NAME",
            help="Method to check, in all tasks or in one; repeatable. Default: the method that"
            " the task's conclusion is about.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check a result against limits, for continuous integration.

    Exits with code 1 if the entire 95% interval of a value is beyond its limit, with 2 if
    something was not checked, and with 0 otherwise. A value whose interval contains the limit is
    undecided and passes. See docs/how-to/gate.md for an example workflow.

    Examples:
      vldebias eval gate vldebias-miniature --max-gap 0.3 --max-skew 0.5
      vldebias eval gate result.json --min-worst-group 0.6 --method orth-cali
      vldebias eval gate result.json --max-gap 0.3 --method birds=paper
      vldebias eval gate vldebias-edits --max-lighter 0.1
      vldebias eval gate result.json --limit ndkl=0.1 --limit kept=0.8 --json
    """
    limit_of_metric: dict[str, float] = {}
    for text in limits or []:
        metric, _, number = text.partition("=")
        try:
            limit_of_metric[metric.strip()] = float(number)
        except ValueError:
            raise InvalidInputError(
                f"--limit: got {text!r}; expected METRIC=VALUE, such as ndkl=0.1"
            ) from None
    from vldebias.report.gate import check_limits
    from vldebias.report.result import Result

    read = Result.read(_file_of(result))
    present = {row.metric.partition("@")[0] for row in read.rows}
    for limit, metrics in (
        (max_gap, ("gap", "discrepancy")),
        (max_skew, ("max_skew",)),
        (min_worst_group, ("worst_group",)),
        (max_lighter, ("relative_lighter" if "relative_lighter" in present else "lighter",)),
    ):
        if limit is not None:
            # A result may contain gaps between groups, gaps from even shares, or both.
            measured = [metric for metric in metrics if metric in present]
            limit_of_metric |= dict.fromkeys(measured or metrics[:1], limit)
    outcome = check_limits(read, limit_of_metric, method=_method_of_task(methods or []))
    if as_json:
        rows = []
        for check in outcome.checks:
            names = ("task", "metric", "subset", "method", "lam", "value")
            figure = {name: getattr(check.row, name) for name in names}
            low, high = check.row.interval
            ends = {"low": low, "high": high, "limit": check.limit, "few": check.few}
            rows.append({"outcome": check.outcome, **figure, **ends})
        facts = {"status": outcome.status, "checks": rows, "not_checked": outcome.not_checked}
        print_json(facts)
    else:
        for check in outcome.checks:
            common.echo(str(check))
        for reason in outcome.not_checked:
            common.echo(f"not checked: {reason}")
        if outcome.status == 1:
            count = sum(check.outcome == "beyond" for check in outcome.checks)
            common.echo(f"failed: {quantity(count, 'value')} beyond the limit")
    if outcome.status:
        raise typer.Exit(outcome.status)


def _method_of_task(methods: Sequence[str]) -> str | dict[str, str] | None:
    """Return the argument `method` of `check_limits` for the values of --method.

    Raises:
        InvalidInputError: If a method for all tasks is combined with others.
    """
    if len(methods) == 1 and "=" not in methods[0]:
        return methods[0]
    method_of_task = {}
    for text in methods:
        task, is_for_task, name = text.rpartition("=")
        if not is_for_task:
            raise InvalidInputError(
                f"--method: got {text!r} and other methods; expected one method for all tasks, or"
                " TASK=NAME for each task"
            )
        method_of_task[task.strip()] = name.strip()
    return method_of_task or None


def _file_of(result: Path) -> Path:
    if not result.is_dir():
        return result
    file = result / "result.json"
    if not file.exists() and (result / "run.json").exists():
        raise InvalidInputError(
            f"{result}: contains a training run, whose scores are in run.json; expected a result."
            f" Measure the model first: vldebias eval SUITE --model {result / 'model'}"
        )
    return file


def data(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Data set or format. Default: list all."),
    ] = None,
    root: Annotated[
        str | None, typer.Option(help="Folder with the data, or a manifest file.")
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="train, val, test or all. Default: the evaluation split.")
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(help="Reader option, such as image=path; repeatable.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="List images that cannot be read.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Count the images and labels in a data set, and check whether its images can be read.

    Without a name, lists all data sets. Exits with code 1 if --check finds unreadable images.

    Examples:
      vldebias eval data
      vldebias eval data waterbirds --root DIR
      vldebias eval data fairface --root DIR --split train --check
      vldebias eval data manifest --root my.csv --option image=path \\
          --option labels=gender
    """
    if name is None:
        _list_data(as_json=as_json)
        return
    from vldebias.data import check_images, describe
    from vldebias.study.inputs import open_split

    options = parse_pairs(option or (), "--option", "image=path")
    for key in ("labels", "columns"):
        # Split comma-separated names, unless they were written as a YAML list.
        if isinstance(options.get(key), str):
            options[key] = options[key].split(",")
    opened = open_split(name, root, split, options)
    facts = describe(opened)
    if check:
        problems = check_images(opened)
        facts["unreadable"] = [{"id": row, "reason": reason} for row, reason in problems]
    unreadable = facts.get("unreadable")
    if as_json:
        print_json(facts)
    else:
        print_message(
            f"{facts['name']} {facts['split']}: {facts['images']} images, {facts['captions']}"
            " captions"
        )
        rows = []
        for column, labels in facts["columns"].items():
            counts = labels["counts"] | {"unknown": labels["unknown"]}
            rows += [("column", column, value, str(count)) for value, count in counts.items()]
        for image in unreadable or ():
            rows.append(("unreadable", image["id"], image["reason"], "1"))
        print_grid(("kind", "name", "value", "images"), rows)
        for key, value in facts["about"].items():
            # Shorten values, since they may list thousands of columns.
            print_message(f"{key}: {shortened(str(value), 160)}")
        if unreadable is not None:
            print_message(f"{len(unreadable)} images cannot be read")
    # Exit after printing, so that scripts get both the list and the exit code.
    if unreadable:
        raise typer.Exit(1)


def _list_data(*, as_json: bool) -> None:
    """Print the data sets with their labels and folder layouts."""
    from vldebias.data.catalog import DATA

    facts = []
    rows = []
    for name, data_set in DATA.items():
        fields = ("name", "training", "layout", "split", "columns", "is_format")
        facts.append({field: getattr(data_set, field) for field in fields})
        rows.append((name, ", ".join(data_set.columns), data_set.split or "", data_set.layout))
    print_list(("name", "labels", "split", "folder"), rows, facts, as_json=as_json)
