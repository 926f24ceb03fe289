"""What an attachment costs a text tower of the size of ViT-L/14: its own seconds beside those of the tower.

python -m eval.benchmarks.attachment                                            # print the table
python -m eval.benchmarks.attachment --json eval/results/bench_attachment.json  # and write it

An attachment costs less than what two runs of a tower differ by. So its seconds are taken with towers whose layers hand
on what they are given: attached - never attached, side by side, the median of many. "Plain" is the call with all layers
without an attachment, "ours" that and the attachment's own seconds, "share" these as a part of plain. Weights are
random; the cost does not depend on them.

Open_clip's ViT-L-14: "stated kept" adds decoding the token ids, cached per prompt; "using" chooses a strength for the
call, or a method and a strength for each of its prompts. A Stable Diffusion pipeline with a text encoder of that size,
from prompts to latents in ten steps of a tiny denoiser: attached; of a class that nobody listed (whose asking is a row
of its own, once for each pipeline); a part of the steps; carried over with follow=True; called through bind.
"""

from __future__ import annotations

import copy
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import open_clip
import torch

import vldebias
from eval.benchmarks.timing import arguments, medians, report
from eval.experiments.records import rows_of
from eval.tables import Cells, shows
from vldebias.errors import VldebiasWarning
from vldebias.evaluation.result import Result
from vldebias.hosts.diffusers import DiffusersHost
from vldebias.hosts.probe import propose_family

TINY = Path(__file__).parents[2] / "tests/hosts"  # tokenizers and denoisers of a few channels
BATCH, STEPS, WINDOW = 32, 10, (0.0, 0.4)
WAYS: dict[str, dict[str, Any]] = {
    "attached": {},
    "using one strength": {"strength": 0.5},
    "using one each": {
        "method": ["default", "other", "none", "other"] * (BATCH // 4),
        "strength": [1.0, 0.5, 1.0, 1.0] * (BATCH // 4),
    },
}
Call = Callable[[], object]


def beside(plain: Call, ours: Call, repetitions: int) -> float:
    """Processor seconds that ours takes more than plain: the median over calls next to each other."""
    differences = []
    for number in range(repetitions + 3):
        start = time.process_time()
        plain()
        middle = time.process_time()
        ours()
        if number > 2:
            differences.append(time.process_time() - middle - (middle - start))
    return statistics.median(differences)


def row(what: str, size: str, plain: float, own: float) -> dict[str, Any]:
    """Of the seconds of a call and those that the attachment adds."""
    return {"what": what, "size": size, "ours": plain + own, "plain": plain, "ratio": plain / (plain + own),
            "share": own / plain}  # fmt: skip


@torch.no_grad()
def tower(name: str, repetitions: int) -> Iterator[dict[str, Any]]:
    """An open_clip model."""
    torch.manual_seed(0)
    model, tokenizer = open_clip.create_model(name).eval(), open_clip.get_tokenizer(name)
    ids = tokenizer([f"A photo of a doctor, number {i}." for i in range(BATCH)])
    whole = medians({"": partial(model.encode_text, ids)}, 3)[""]
    edits = vldebias.fit_projections(model, "celeba", method="cali", tokenizer=tokenizer)
    plain = copy.deepcopy(model)  # never attached to
    for one in (model, plain):
        one.transformer.forward = lambda x, *args, **kwargs: x
    for kept in (False, True):
        attachment = _on(model, edits, keep_stated=kept, tokenizer=tokenizer)
        attachment.add("other", attachment.projections, keep_stated=kept)

        def attached(**asked: Any) -> None:
            with attachment.using(**asked) if asked else nullcontext():  # noqa: B023 - called before the next one
                model.encode_text(ids)

        ways: dict[str, dict[str, Any]] = {"attached, stated kept": {}} if kept else WAYS
        for way, asked in ways.items():
            own = beside(partial(plain.encode_text, ids), partial(attached, **asked), repetitions)
            yield row(way, f"{name}, batch {BATCH}", whole, own)
        attachment.remove()


def _on(host: Any, edits: Any, **settings: Any) -> vldebias.Attachment:
    """An attachment; the edits were fitted with all layers, so that a fingerprint says the same."""
    return vldebias.debias(host, edits, **settings)


@torch.no_grad()
def pipeline(repetitions: int) -> Iterator[dict[str, Any]]:
    """A pipeline from prompts to latents, its tower that of ViT-L/14."""
    sys.path.insert(0, str(TINY))
    import diffusers_tiny
    from diffusers_parts import make_unet
    from tiny_tokenizers import CLIP_IDS
    from transformers import CLIPTextConfig, CLIPTextModel

    torch.manual_seed(0)
    ids = {"bos_token_id": CLIP_IDS - 2, "eos_token_id": CLIP_IDS - 1, "pad_token_id": CLIP_IDS - 1}
    sizes = {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12, "num_hidden_layers": 12}
    encoder = CLIPTextModel(CLIPTextConfig(**sizes, **ids, vocab_size=CLIP_IDS)).eval()
    unet = make_unet(cross_attention_dim=768).eval()
    pipe, plain = (diffusers_tiny.sd(text_encoder=copy.deepcopy(encoder), unet=copy.deepcopy(unet)) for _ in range(2))
    prompts = [f"a photo of a doctor {i}" for i in range(BATCH)]
    edits = vldebias.fit_projections(pipe, diffusers_tiny.gender(), method="cali")
    size = f"a pipeline with that encoder, batch {BATCH}, {STEPS} steps"

    def draw(one: Any, call: Any = None) -> None:
        noise = torch.Generator().manual_seed(0)
        small = {"num_inference_steps": STEPS, "height": 16, "width": 16, "output_type": "latent"}
        (call or one)(prompts, generator=noise, guidance_scale=1.0, **small)

    whole = medians({"": partial(draw, plain)}, 3)[""]
    asking = medians({"": partial(propose_family, plain)}, 3)[""]
    one = medians({"": partial(plain.encode_prompt, prompts[:1], "cpu", 1, False)}, 3)[""]
    yield {"what": "asking one that nobody listed, once", "size": "against a prompt through its encoder",
           "ours": asking, "plain": one, "ratio": one / asking, "share": asking / one}  # fmt: skip
    family = propose_family(pipe)
    for each in (pipe, plain):
        for layer in each.text_encoder.modules():
            if type(layer).__name__.endswith("EncoderLayer"):
                layer.forward = lambda hidden, *args, **kwargs: hidden
    unlisted = DiffusersHost(pipe, family, negative=False)
    for way, host, settings in (
        ("attached", pipe, {}),
        ("found by asking", unlisted, {}),
        (f"steps={WINDOW}", pipe, {"steps": WINDOW}),
    ):
        with _on(host, edits, **settings):
            own = beside(partial(draw, plain), partial(draw, pipe), repetitions)
        yield row(way, size, whole, own)
    with _on(pipe, edits, follow=True) as attachment:
        other = type(pipe)(**pipe.components, requires_safety_checker=False)
        other.set_progress_bar_config(disable=True)
        yield row(
            "carried over by follow", size, whole, beside(partial(draw, plain), partial(draw, other), repetitions)
        )
        bound = attachment.bind(pipe)
        own = beside(partial(draw, plain), partial(draw, pipe, bound), repetitions)
        yield row("called through bind", size, whole, own)
        vldebias.attachment_of(other).remove()  # type: ignore[union-attr]


@shows("docs/how-to/serving.md", "bench_attachment")
def page_rows(result: Result) -> Cells:
    """A row for each way to be attached: the seconds that it adds to a call, and as a part of that."""
    head = ["what", "a call of", "which takes (s)", "its own (ms)", "part of the call"]

    def part(row: Mapping[str, Any]) -> str:
        return f"{row['share']:.0f} times" if row["share"] > 1 else f"{100 * row['share']:.2f} %"

    rows = rows_of(result, "what")
    own = [f"{1e3 * row['share'] * row['plain']:.1f}" for row in rows]
    return [head, *([r["what"], r["size"], f"{r['plain']:.2f}", ms, part(r)] for r, ms in zip(rows, own, strict=True))]


if __name__ == "__main__":
    given = arguments(__doc__, repetitions=11)
    warnings.simplefilter("ignore", VldebiasWarning)  # of random weights
    rows = [*tower("ViT-L-14", given.repetitions), *pipeline(given.repetitions)]
    report("bench_attachment", rows, given.json)
