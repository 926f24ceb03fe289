"""A result for others: metadata of a model card as the Hugging Face hub reads it, and linked data of schema.org.

Formats: https://github.com/huggingface/hub-docs/blob/main/modelcard.md (`model-index`), https://schema.org/Dataset.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import yaml

from vldebias.evaluation.report.words import metric_title
from vldebias.evaluation.result import Measurement, Result, TaskProvenance

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
