"""A result for others: metadata of a model card as the Hugging Face hub reads it, and linked data of schema.org.

Formats: https://github.com/huggingface/hub-docs/blob/main/modelcard.md (`model-index`), https://schema.org/Dataset.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import yaml

from vldebias.evaluation.report.tables import Block, blocks
from vldebias.evaluation.report.words import metric_title, number
from vldebias.evaluation.result import Measurement, Result, TaskProvenance

_TEX = {sign: f"\\{sign}" for sign in "&%$#_{}"} | {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "λ": r"$\lambda$",
    "†": r"$\dagger$",
}  # fmt: skip
_LATEX_NOTE = "values with 95 % intervals, an asterisk where that of the change from none leaves out zero."
LICENCE = "https://spdx.org/licenses/MIT"  # of the software


def model_card(result: Result, *, parts: bool = False) -> str:
    """A model card: what was measured as `model-index` in its head, a table in its text.

    Every figure has its 95 % interval, the change to the model without a method and what was counted as `args`.

    parts: figures of parts too, such as one query each; they may be thousands.
    """
    from vldebias.evaluation.report.pages import markdown_table

    index: dict[str, list[dict[str, Any]]] = {}
    for about, rows in _by_task(result, parts):
        index.setdefault(about.model or result.name, []).append(
            {
                "task": {"type": "other", "name": about.title or about.task},
                "dataset": {"type": "other", "name": about.split or ", ".join(about.data) or about.prompts or "given"},
                "metrics": [
                    {
                        "type": row.metric,
                        "name": _title(row),
                        "value": row.value,
                        "args": {"interval": list(row.interval), "change": row.change and list(row.change), **row.n},
                    }
                    for row in rows
                ],
            }
        )
    head = {"tags": ["bias", "fairness"], "model-index": [{"name": n, "results": all_} for n, all_ in index.items()]}
    shown = list(dict.fromkeys((row.task, row.metric) for _, rows in _by_task(result, False) for row in rows))
    lines = [
        f"# Bias and utility: {result.name}",
        *(f"{about.title or about.task}: {about.description}" for about in result.provenance),
        markdown_table(result, shown),
        f"Values with 95 % intervals; measured with vldebias {result.versions.get('vldebias', '')} on "
        f"{(result.date or 'an unknown date')[:10]}.",
    ]
    text = yaml.dump(head, Dumper=_Plain, sort_keys=False, allow_unicode=True)
    return f"---\n{text}---\n\n" + "\n\n".join(line.strip() for line in lines if line.strip()) + "\n"


def json_ld(result: Result, *, parts: bool = False) -> str:
    """Linked data of schema.org: a Dataset whose variables are the figures, with their 95 % intervals. parts: see
    `model_card`."""
    figures = [
        {
            "@type": "PropertyValue",
            "name": _title(row),
            "propertyID": "/".join(filter(None, (row.task, row.metric, row.method, row.subset))),
            "value": row.value,
            "minValue": row.interval[0],
            "maxValue": row.interval[1],
            "description": f"95 % interval; {row.better} is better"
            + "".join(f"; {n:,} {what}" for what, n in row.n.items()),
        }
        for _, rows in _by_task(result, parts)
        for row in rows
    ]
    about = {
        "@context": "https://schema.org",
        "@type": "Dataset",
        "name": f"vldebias: {result.name}",
        "description": " ".join(f"{one.title or one.task}: {one.description}" for one in result.provenance),
        "dateCreated": result.date,
        "creativeWorkStatus": "measured",
        "isBasedOn": [one for one in dict.fromkeys(one.model for one in result.provenance) if one],
        "measurementTechnique": list(dict.fromkeys(one.title or one.task for one in result.provenance)),
        "instrument": {
            "@type": "SoftwareApplication",
            "name": "vldebias",
            "softwareVersion": result.versions.get("vldebias"),
            "license": LICENCE,
        },
        "variableMeasured": figures,
    }
    return json.dumps({key: value for key, value in about.items() if value}, indent=1, ensure_ascii=False) + "\n"


def latex(result: Result) -> str:
    """The tables of the page for a paper, each a `table` with booktabs; tables of parts are left to the page.

    Values with 95 % intervals; an asterisk where the paired interval of the change from none leaves out zero.
    """
    lines = [f"% vldebias {result.versions.get('vldebias', '')}: {_one_line(result.command or result.name)}",
             "% \\usepackage{booktabs}"]  # fmt: skip
    for block in blocks(result):
        for table in (one for one in block.tables if not one.detail):
            heads = [table.corner, *map(str, table.columns)]
            body = [[row.title, *(_latex_cell(cell, block) for cell in row.cells)] for row in table.rows]
            caption = _tex(f"{block.title}: {table.caption.lower()}; {_LATEX_NOTE}")
            lines += [
                "",
                "\\begin{table}",
                f"\\caption{{{caption}}}",
                f"\\begin{{tabular}}{{l{'r' * len(table.columns)}}}",
                "\\toprule",
                " & ".join(map(_tex, heads)) + r" \\",
                "\\midrule",
                *(" & ".join(map(_tex, row)) + r" \\" for row in body),
                "\\bottomrule",
                "\\end{tabular}",
                "\\end{table}",
            ]
    return "\n".join(lines) + "\n"


def _latex_cell(row: Measurement | None, block: Block) -> str:
    return "" if row is None else number(row) + "*" * (block.verdict(row) in ("better", "worse", "changed"))


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _tex(text: str) -> str:
    """Text in which LaTeX reads nothing as its own."""
    return "".join(_TEX.get(sign, sign) for sign in _one_line(text))


class _Plain(yaml.SafeDumper):
    """Every list is written out, and none refers to another: people read the head of a card."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _by_task(result: Result, parts: bool) -> Iterator[tuple[TaskProvenance, list[Measurement]]]:
    """Every task that has rows, with its provenance."""
    for about in result.provenance:
        rows = [row for row in result.rows if row.task == about.task and (parts or not row.subset)]
        if rows:
            yield about, rows


def _title(row: Measurement) -> str:
    return ", ".join(filter(None, (metric_title(row.metric), row.subset, row.method)))
