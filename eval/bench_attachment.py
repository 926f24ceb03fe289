"""What an attachment costs a text tower: encode_text attached against bare, on one machine in one run.

python eval/bench_attachment.py                                           # print the table
python eval/bench_attachment.py --json eval/results/bench_attachment.json # and write it

The towers have the sizes of the named open_clip architectures and random weights: the cost does not depend on them.
"Stated kept" adds decoding the token ids, cached per prompt. Ratios are of medians over repetitions in turn.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import open_clip
import torch
from rich.console import Console
from rich.table import Table

import vldebias

SIZES = ("ViT-B-32", "ViT-L-14")


@dataclass(frozen=True)
class Row:
    model: str
    batch: int
    stated_kept: bool
    bare: float
    attached: float

    @property
    def ratio(self) -> float:
        """Attached over bare: 1 is free."""
        return self.attached / self.bare


def seconds(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def measure(name: str, batch: int, stated_kept: bool, repetitions: int) -> Row:
    torch.manual_seed(0)
    model = open_clip.create_model(name).eval()
    tokenizer = open_clip.get_tokenizer(name)
    ids = tokenizer([f"A photo of a doctor, number {i}." for i in range(batch)])
    attachment = vldebias.debias(model, "celeba", method="cali", keep_stated=stated_kept, tokenizer=tokenizer)
    times: dict[str, list[float]] = {"bare": [], "attached": []}
    with torch.no_grad():
        model.encode_text(ids)
        for _ in range(repetitions):
            with attachment.disabled():
                times["bare"].append(seconds(lambda: model.encode_text(ids)))
            times["attached"].append(seconds(lambda: model.encode_text(ids)))
    return Row(name, batch, stated_kept, *(statistics.median(t) for t in times.values()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--models", nargs="+", default=SIZES)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--repetitions", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = [
        measure(n, arguments.batch, kept, arguments.repetitions) for n in arguments.models for kept in (False, True)
    ]
    table = Table(
        "text tower", "batch", "stated kept", "bare, CPU s", "attached, CPU s", "ratio", title="cost of an attachment"
    )
    for row in rows:
        cells = (row.model, str(row.batch), str(row.stated_kept), f"{row.bare:.3f}", f"{row.attached:.3f}")
        table.add_row(*cells, f"{row.ratio:.3f}")
    Console().print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(r) | {"ratio": r.ratio} for r in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
