"""Measure how much time recording a call and deriving values from its seed take.

    python -m eval.benchmarks.calls                  # print the table
    python -m eval.benchmarks.calls --json FILE      # and write it

A call runs 4 steps of the miniature pipeline, which is faster than any real pipeline. All parts of
a row are timed alternately in one run, using CPU time on a single thread. Rows contain medians.
"record" creates and stores the record of a call. "seed rule" is the additional time when values are
derived from a generator instead of continuing the values of earlier calls.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from eval.benchmarks.doors import medians
from eval.tables import write_records

IMAGES = (1, 8)
STEPS = 4
PROMPT = "A photo of a doctor."


def measure(images: int, repetitions: int = 25) -> dict[str, Any]:
    """Return the row for calls with the given number of images."""
    import torch

    import vldebias
    from vldebias.hosts.records import CallLog, CallRecord
    from vldebias.hosts.seeds import indices_of
    from vldebias.miniature import load_pipeline

    torch.set_num_threads(1)
    pipe = load_pipeline()
    pipe.set_progress_bar_config(disable=True)
    attachment = vldebias.debias(pipe, "gender")
    balancer = attachment.balancer
    assert balancer is not None
    log = CallLog(on_call=CallRecord.to_json)
    prompts = [PROMPT] * images

    def call() -> None:
        pipe(
            PROMPT,
            num_images_per_prompt=images,
            num_inference_steps=STEPS,
            generator=torch.Generator().manual_seed(3),
        )

    def record() -> None:
        made = attachment.calls[-1]
        log.begin()
        log.add(CallRecord(made.prompts, made.written, made.values, made.reasons, made.people))

    def follow_seed() -> None:
        indices = indices_of(torch.Generator().manual_seed(3), prompts)
        balancer.at(prompts, indices)

    calls = {
        "call": call,
        "record": record,
        "values of a seed": follow_seed,
        "values of calls before": lambda: balancer.next(prompts),
    }
    seconds = medians(calls, repetitions, time.thread_time)
    added = seconds["record"] + seconds["values of a seed"] - seconds["values of calls before"]
    return {
        "what": "calls",
        "images": images,
        **{f"{name}, ms": 1000 * value for name, value in seconds.items()},
        "record and seed rule / call": added / seconds["call"],
    }


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--json", type=Path, help="also write the result here")
    arguments = options.parse_args()
    rows = [measure(images) for images in IMAGES]
    table = Table(*(name for name in rows[0] if name != "what"))
    for row in rows:
        values = [row["images"], *(f"{row[name]:.4g}" for name in list(row)[2:])]
        table.add_row(*map(str, values))
    Console(width=120).print(table)
    if arguments.json:
        description = f"medians in turn, calls of {STEPS} steps of the miniature pipeline"
        write_records(arguments.json, description, rows, "what", ("images",), steps=STEPS)


if __name__ == "__main__":
    main()
