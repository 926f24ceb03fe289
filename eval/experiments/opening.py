"""What `vldebias demo` opens with: sixteen pictures of one profession, and of the same noise under two methods.

    python -m eval.experiments.opening

Every profession that nothing was fitted on is drawn as the model is, with the page's own settings. The one that is the
most one-sided, in which no method has a say, is then drawn with a value stated for each image and, beside it, with the
embedding alone changed, and kept as the page's downloads would be, in apps/compare/opening.zip; what became of it, and
what the model draws of every profession, is in eval/results/opening.json.
"""

from __future__ import annotations

import argparse
import threading
from pathlib import Path

import torch

from eval.experiments.records import write_records
from vldebias.cli.apps import page
from vldebias.evaluation.judges import decide, predict
from vldebias.files import write_atomically
from vldebias.progress import Progress
from vldebias.prompts import load_prompts

PICTURES, STEPS, GUIDANCE = 16, 20, 3.0
METHOD, BESIDE, FILE = "stated-value", ("default",), "opening.zip"
RULE = (
    "the largest share of one gender in the pictures of the model as it is, then the most that can be told, then by "
    "name; over the professions that nothing was fitted on"
)


def most_one_sided(shown: dict[str, dict[str, int]]) -> str:
    """The profession that `RULE` names, from how many of its pictures show each value."""

    def order(name: str) -> tuple[float, int, str]:
        counts = shown[name].values()
        return -max(counts) / max(sum(counts), 1), -sum(counts), name

    return min(shown, key=order)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=Path, default=Path("apps/compare"), help="folder of the page")
    parser.add_argument("--out", type=Path, default=Path("eval/results/opening.json"))
    given = parser.parse_args()
    drawing, settings, engines = (page(f"compare.{name}") for name in ("drawing", "settings", "engine"))
    packing = page("compare.packing")
    engine, people = engines.Engine(), load_prompts("professions-gender")
    prompts = dict(zip(people.held_out_class_names, people.held_out_classes, strict=True))
    judge, (attribute,) = engine.judge(settings.Mitigation.of(["gender"]))
    bare: dict[str, dict[str, int]] = {}
    with Progress.on() as progress, progress.bar("professions", len(prompts) + 1) as bar:
        for name, prompt in prompts.items():
            noise = [torch.Generator("cpu").manual_seed(seed) for seed in range(PICTURES)]
            options = {"generator": noise, "num_inference_steps": STEPS, "guidance_scale": GUIDANCE}
            said = predict(judge, engine.pipe()([prompt] * PICTURES, **options).images)[attribute]
            codes = decide(said, judge.names[attribute], engines.SURE).codes
            bare[name] = {value: int((codes == i).sum()) for i, value in enumerate(judge.names[attribute])}
            bar.advance()
        chosen = most_one_sided(bare)
        asked = settings.Drawing.of(prompts[chosen], PICTURES, 0, STEPS, GUIDANCE, BESIDE)
        how = settings.Mitigation.of(["gender"], method=METHOD)
        *_, found = drawing.compare(engine, asked, how, threading.Event())
        write_atomically(given.to / FILE, packing.pack(found))
        bar.advance()
    rows = [{"profession": name, **counts} for name, counts in bare.items()]
    write_records(given.out, RULE, rows, "profession", chosen=chosen, drawn=packing.summary(found))


if __name__ == "__main__":
    main()
