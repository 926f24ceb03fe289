"""Write the tables in the documentation from committed results.

python -m eval.readme          # update every page that contains a block
python -m eval.readme --check  # fail if a page is out of date

Markers in a page delimit each block, and `BLOCKS` maps each block to the function in `eval/pages`
that writes the text between the markers.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from eval import real
from eval.pages import (
    captions,
    evidence,
    front,
    generation,
    methods,
    mnist,
    photographs,
    promises,
    prompts,
    rivals,
    skin,
    sources,
    times,
    training,
)
from eval.tables import plain_parser

ROOT = Path(__file__).parents[1]

BLOCKS: dict[str, dict[str, Callable[[], str]]] = {
    "README.md": {
        "picture": partial(front.picture, "docs/"),
        "front": front.front,
        "needs": front.needs_of_commands,
    },
    "docs/index.md": {"picture": partial(front.picture, "")},
    "docs/explanation/results.md": {
        **{job: partial(front.window, job) for job in front.WINDOW},
        "cases": front.cases,
        "real_searches": front.real_searches,
        "promises": promises.promises,
        "by_texts": promises.by_texts,
        "simple_rivals": rivals.simple_rivals,
    },
    "docs/methods.md": {"declared": methods.declared},
    "docs/methods/search.md": {
        "rivals_real": partial(methods.rivals, "rivals_real", "celeba professions"),
    },
    "docs/methods/groups.md": {"rivals_groups": methods.groups},
    "docs/explanation/projection.md": {"closed_form": methods.closed_form},
    "docs/explanation/papers.md": {
        "projection": partial(sources.reported, "projection"),
        "rince": partial(sources.reported, "rince"),
        "negatives": partial(sources.reported, "negatives"),
        "others": partial(sources.reported, "others"),
        "not_built": sources.not_built,
        "states": sources.states,
        "real": real.measured,
    },
    "eval/other_data.md": {"other_data": training.other_data},
    "docs/explanation/accuracy-of-balanced-prompts.md": {
        "prompt_readings": prompts.prompt_readings,
        "in_turn": prompts.in_turn,
        "stated": prompts.stated,
    },
    "docs/how-to/balance-prompts.md": {"wrong_changes": prompts.wrong_changes},
    "docs/explanation/the-default.md": {"few_labels": methods.few_labels},
    "docs/how-to/captions.md": {"refusals": captions.refusals},
    "docs/how-to/languages.md": {"languages_plain": prompts.languages_plain},
    "docs/how-to/edited-images.md": {"skin": skin.errors},
    "docs/how-to/index-queries.md": {
        "search_range": methods.search_range,
        "searched": methods.searched,
    },
    "docs/how-to/rerank.md": {"reranked": methods.reranked, "toy_searches": front.toy_searches},
    "docs/generation.md": {
        "sampled": generation.sampled,
        "three_models": generation.three_models,
    },
    "docs/tutorials/audit-a-prompt-list.md": {},
    "docs/how-to/miniature.md": {"wordings": generation.wordings},
    "docs/explanation/losses.md": {"formulas": training.formulas},
    "eval/mnist.md": {
        "coarse": mnist.coarse,
        "strata": mnist.strata,
        "noisy": mnist.noisy,
        "ssa": mnist.ssa,
        "nuclr": mnist.nuclr,
    },
    "docs/fine-tuning.md": {
        "choices": training.choices,
        "saved": training.saved,
    },
    "docs/explanation/intervals.md": {
        "covered_by_kind": evidence.covered_by_kind,
        "enough": evidence.enough,
        "judged": evidence.verdicts,
    },
    "eval/README.md": {
        "encoder": photographs.encoder,
        "true_shares": methods.true_shares,
        "speed": times.speed,
    },
}
"""A mapping from pages (relative to the checkout) to mappings from blocks to functions."""


def render(page: str, root: Path = ROOT) -> str:
    """Return the text of a page with all blocks updated from the committed results."""
    text = (root / page).read_text(encoding="utf-8")
    for name, write in BLOCKS[page].items():
        begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->"
        pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        text, count = pattern.subn((begin + write() + end).replace("\\", r"\\"), text)
        if count != 1:
            raise SystemExit(f"{page}: expected one block {begin.strip()} ... {end}, found {count}")
    return text


def everything() -> dict[str, str]:
    """Return the text of every page that has a block."""
    return {page: render(page) for page in BLOCKS}


def main() -> int:
    options = plain_parser(__doc__)
    options.add_argument(
        "--check", action="store_true", help="write nothing, and exit with 1 if a page is outdated"
    )
    check = options.parse_args().check
    text_of_file = {ROOT / name: text for name, text in everything().items()}
    if check:
        changed = [file for file, text in text_of_file.items() if file.read_text("utf-8") != text]
        return int(bool(changed))
    for file, text in text_of_file.items():
        file.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
