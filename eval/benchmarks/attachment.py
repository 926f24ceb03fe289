"""What an attachment costs a text tower: encode_text attached (ours) against bare (plain).

python -m eval.benchmarks.attachment                                            # print the table
python -m eval.benchmarks.attachment --json eval/results/bench_attachment.json  # and write it

The towers have the sizes of the named open_clip architectures and random weights: the cost does not depend on them.
"Stated kept" adds decoding the token ids, cached per prompt. A ratio of 1 is free.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import open_clip
import torch

import vldebias
from eval.benchmarks.timing import arguments, compared, report

SIZES = ("ViT-B-32", "ViT-L-14")
BATCH = 32


@torch.no_grad()
def measure(name: str, repetitions: int) -> Iterator[dict[str, Any]]:
    """A row without and a row with stated attributes kept."""
    torch.manual_seed(0)
    model, tokenizer = open_clip.create_model(name).eval(), open_clip.get_tokenizer(name)
    ids = tokenizer([f"A photo of a doctor, number {i}." for i in range(BATCH)])
    for kept in (False, True):
        attachment = vldebias.debias(model, "celeba", method="cali", keep_stated=kept, tokenizer=tokenizer)

        def bare(attachment: vldebias.Attachment = attachment) -> None:
            with attachment.disabled():
                model.encode_text(ids)

        size = f"{name}, batch {BATCH}" + ", stated kept" * kept
        yield compared("encode_text, attached / bare", size, lambda: model.encode_text(ids), bare, repetitions)
        attachment.remove()


if __name__ == "__main__":
    given = arguments(__doc__, repetitions=7)
    rows = [row for name in SIZES for row in measure(name, given.repetitions)]
    report("bench_attachment", rows, given.json)
