"""What `vldebias demo` opens with: sixteen pairs of pictures of one profession under two methods, chosen by a rule.

    python -m eval.experiments.opening

Every profession that nothing was fitted on is drawn with the page's own settings: as the model is, with a value stated
for each image, and with the embedding alone changed. The profession that is the most one-sided as the model is, by
which no method is favoured, is kept as the page's downloads would be, in apps/compare/opening.zip and
opening-embedding.zip, and what became of all of them in eval/results/opening.json. It goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from vldebias.cli.apps import page
from vldebias.files import commit, versions, write_atomically
from vldebias.progress import Progress
from vldebias.prompts import load_prompts

PICTURES, STEPS, GUIDANCE = 16, 20, 3.0
FILES = {"stated-value": "opening.zip", "default": "opening-embedding.zip"}
RULE = (
    "the largest share of one gender in the pictures of the model as it is, then the most that can be told, then by "
    "name; over the professions that nothing was fitted on"
)


def most_one_sided(shown: dict[str, tuple[int, ...]]) -> str:
    """The profession that `RULE` names, from how many of its pictures show each value."""
    return min(shown, key=lambda name: (-max(shown[name]) / max(sum(shown[name]), 1), -sum(shown[name]), name))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--work", type=Path, default=Path("results/opening"), help="where the pictures of each are kept"
    )
    parser.add_argument("--to", type=Path, default=Path("apps/compare"), help="folder of the page")
    parser.add_argument("--out", type=Path, default=Path("eval/results/opening.json"))
    given = parser.parse_args()
    drawing, settings = page("compare.drawing"), page("compare.settings")
    engine = page("compare.engine").Engine()
    people = load_prompts("professions-gender")
    prompts = dict(zip(people.held_out_class_names, people.held_out_classes, strict=True))
    given.work.mkdir(parents=True, exist_ok=True)
    found: dict[str, dict[str, Any]] = {method: {} for method in FILES}
    with Progress.on() as progress, progress.bar("professions", len(FILES) * len(prompts)) as bar:
        for method in FILES:
            mitigation = settings.Mitigation.of(["gender"], method=method)
            for name, prompt in prompts.items():
                path = given.work / f"{name}, {method}.zip"
                if not path.is_file():
                    asked = settings.Drawing.of(prompt, PICTURES, 0, STEPS, GUIDANCE)
                    for now in drawing.compare(engine, asked, mitigation, threading.Event()):  # noqa: B007
                        pass
                    write_atomically(path, drawing.pack(now))
                found[method][name] = drawing.unpack(path.read_bytes())
                bar.advance()
    bare = {name: one.measured["none"][0] for name, one in found["stated-value"].items()}
    chosen = most_one_sided({name: tuple(s.count for s in one.shares[:-1]) for name, one in bare.items()})
    for method, file in FILES.items():
        write_atomically(given.to / file, (given.work / f"{chosen}, {method}.zip").read_bytes())
    told = {
        "rule": RULE,
        "chosen": chosen,
        "methods": {method: _summary(each) for method, each in found.items()},
        "settings": {"pictures": PICTURES, "steps": STEPS, "guidance": GUIDANCE},
        "versions": versions(),
        "commit": commit(),
    }
    write_atomically(given.out, json.dumps(told, indent=1) + "\n")


def _summary(each: dict[str, Any]) -> dict[str, Any]:
    """What became of every profession, and of all of them."""
    changes = {name: one.changes["gender"] for name, one in each.items()}
    shown = {side: sum(sum(one.recognised[side]) for one in each.values()) for side in ("none", "mitigated")}
    return {
        "method": next(iter(each.values())).method,
        "lam": list(next(iter(each.values())).lam),
        "verdicts": dict(Counter(change.verdict for change in changes.values())),
        "recognised": {side: count / (PICTURES * len(each)) for side, count in shown.items()},
        "professions": {name: change.to_dict() for name, change in changes.items()},
    }


if __name__ == "__main__":
    main()
