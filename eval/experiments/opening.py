"""What `vldebias demo` opens with: sixteen pairs of pictures of one profession, chosen by a rule.

    python -m eval.experiments.opening

Every profession that no projection was fitted on is drawn with the page's own settings; the one whose discrepancy
changes by the median (the lower of the two middle ones) is kept as the page's download would be, in
apps/compare/opening.zip, and the changes of all of them in eval/results/opening.json. It goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import threading
from pathlib import Path

from vldebias.cli.apps import page
from vldebias.files import commit, versions, write_atomically
from vldebias.progress import Progress
from vldebias.prompts import load_prompts

PICTURES, STEPS, GUIDANCE = 16, 20, 3.0
RULE = "the lower median of the change of the discrepancy of gender, over the professions that nothing was fitted on"


def median(changes: dict[str, float]) -> str:
    """The profession that `RULE` names; ties by name."""
    order = sorted(changes, key=lambda name: (changes[name], name))
    return order[(len(order) - 1) // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--work", type=Path, default=Path("results/opening"), help="where the pictures of each are kept"
    )
    parser.add_argument("--zip", type=Path, default=Path("apps/compare/opening.zip"))
    parser.add_argument("--out", type=Path, default=Path("eval/results/opening.json"))
    given = parser.parse_args()
    drawing, settings = page("compare.drawing"), page("compare.settings")
    engine, mitigation = page("compare.engine").Engine(), settings.Mitigation.of(["gender"])
    people = load_prompts("professions-gender")
    prompts = dict(zip(people.held_out_class_names, people.held_out_classes, strict=True))
    given.work.mkdir(parents=True, exist_ok=True)
    found = {}
    with Progress.on() as progress, progress.bar("professions", len(prompts)) as bar:
        for name, prompt in prompts.items():
            path = given.work / f"{name}.zip"
            if not path.is_file():
                asked = settings.Drawing.of(prompt, PICTURES, 0, STEPS, GUIDANCE)
                for now in drawing.compare(engine, asked, mitigation, threading.Event()):  # noqa: B007
                    pass
                write_atomically(path, drawing.pack(now))
            found[name] = drawing.unpack(path.read_bytes())
            bar.advance()
    chosen = median({name: one.changes["gender"][0] for name, one in found.items()})
    write_atomically(given.zip, (given.work / f"{chosen}.zip").read_bytes())
    told = {
        "rule": RULE,
        "chosen": chosen,
        "professions": {
            name: {"change": list(one.changes["gender"]), "lead": list(one.leads["gender"])}
            for name, one in found.items()
        },
        "settings": {"pictures": PICTURES, "steps": STEPS, "guidance": GUIDANCE, "method": found[chosen].method},
        "versions": versions(),
        "commit": commit(),
    }
    write_atomically(given.out, json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
