"""Test whether values that a language model invents remain in rewritten prompts.

    python -m eval.experiments.rewritten_pairs DIR
    python -m eval.experiments.rewritten_pairs DIR --json FILE --texts FILE.csv

DIR is the `data` folder of FairPro (Park et al., 2025; github.com/nahyeonkaty/fairpro), which is
not part of this project. Two files are used: `prompts_occupations.txt` contains 256 prompts, and
`prompts_occupations_rewrite.txt` a version of each by Qwen2.5-7B-Instruct, one per line.

Words for women and men are counted with the simple lists below, which are independent of the rules
being tested. A value is invented if the rewritten prompt contains such a word and the original does
not. It remains if it is still present when the other value is assigned, or if no value is inserted.
`--texts` writes the prompts to a file for review.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from eval.tables import add_share, parser, run
from vldebias.errors import InvalidInputError
from vldebias.measure.metric import Metric
from vldebias.report.result import TaskProvenance, TaskResult
from vldebias.wording import balance_prompts
from vldebias.wording.balance import BalancedPrompts

ORIGINALS = "prompts_occupations.txt"
REWRITTEN = "prompts_occupations_rewrite.txt"
METHOD = "balanced-prompts"
_WOMEN = """
she her hers herself woman women female females girl girls lady ladies mother daughter sister wife
grandmother granddaughter aunt niece queen actress waitress stewardess hostess heroine seamstress
businesswoman saleswoman policewoman firewoman chairwoman spokeswoman housewife mom mum
"""
_MEN = """
he him his himself man men male males boy boys gentleman gentlemen father son brother husband
grandfather grandson uncle nephew king steward businessman salesman policeman fireman chairman
spokesman fisherman handyman craftsman cameraman repairman foreman dad beard bearded mustache
moustache goatee
"""
WORDS = {"female": frozenset(_WOMEN.split()), "male": frozenset(_MEN.split())}
INVENTED = Metric("invented", "rewritten prompts with a value that the original has not", "bias")
STAYS = Metric("stays", "invented values that stay", "bias", "lower", (0.0, 1.0))
REASON = Metric("left_unchanged", "left unchanged, by reason")


def count_words(text: str, value: str) -> int:
    """Return the number of words for a value in a text."""
    return sum(word in WORDS[value] for word in re.findall(r"[a-z]+", text.lower()))


def has_any(text: str) -> bool:
    """Return whether a text contains a word from either list."""
    return any(count_words(text, value) for value in WORDS)


def read_pairs(folder: Path) -> tuple[list[str], list[str]]:
    """Return the original and the rewritten prompts.

    Raises:
        InvalidInputError: If a file is missing, or if the numbers of lines differ.
    """
    columns: list[list[str]] = []
    for name in (ORIGINALS, REWRITTEN):
        path = folder / name
        if not path.is_file():
            raise InvalidInputError(f"expected {path} from FairPro's `data` folder")
        columns.append(path.read_text(encoding="utf-8").splitlines())
    originals, rewritten = columns
    if len(originals) != len(rewritten):
        raise InvalidInputError(
            f"{folder}: expected equally many original and rewritten prompts, got"
            f" {len(originals)} and {len(rewritten)}"
        )
    return originals, rewritten


def stays(original: str, text: str, written: dict[str, str]) -> bool:
    """Return whether an invented value remains.

    `written` maps each value to the prompt after this value is assigned.
    """
    for value, other in (("female", "male"), ("male", "female")):
        is_invented = count_words(text, other) > 0 and not has_any(original)
        if is_invented and count_words(written[value], other):
            return True
    return False


def measure(originals: Sequence[str], rewritten: Sequence[str]) -> Iterator[TaskResult]:
    """Yield the shares of invented and of remaining values, and why prompts are unchanged."""
    results: dict[str, BalancedPrompts] = {}
    for value, other in (("female", "male"), ("male", "female")):
        shares = {value: 1.0, other: 0.0}
        results[value] = balance_prompts(
            rewritten, "gender", shares=shares, original=originals, seed=0
        )
    part = TaskResult(
        TaskProvenance(
            task="pairs of FairPro",
            description="values that a language model wrote into prompts of occupations",
            seeds=[0],
        )
    )
    invented: list[bool] = []
    staying: list[bool] = []
    for number, (original, text) in enumerate(zip(originals, rewritten, strict=True)):
        is_invented = has_any(text) and not has_any(original)
        invented.append(is_invented)
        if is_invented:
            written = {value: result.prompts[number] for value, result in results.items()}
            staying.append(stays(original, text, written))
    add_share(part, INVENTED, METHOD, sum(invented), {"pairs": len(invented)})
    add_share(part, STAYS, METHOD, sum(staying), {"invented values": len(staying)})
    reasons = Counter(str(reason).partition(":")[0] for reason in results["female"].reasons)
    for reason, number_of_prompts in reasons.most_common():
        if reason != "None":
            share = number_of_prompts / len(invented)
            part.add(REASON, METHOD, share, n={"pairs": len(invented)}, subset=reason)
    yield part


def write_texts(path: Path, originals: Sequence[str], rewritten: Sequence[str]) -> None:
    """Write the original, rewritten and balanced prompts to a table."""
    balanced = balance_prompts(rewritten, "gender", original=originals, seed=0)
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(("original", "rewritten", "balanced", "value", "reason"))
        columns = (originals, rewritten, balanced.prompts, balanced.values, balanced.reasons)
        table.writerows(zip(*columns, strict=True))


def main() -> None:
    """Measure the prompt pairs in a folder."""
    options = parser(__doc__)
    options.add_argument("folder", type=Path, help="`data` of FairPro")
    options.add_argument("--texts", type=Path, help="write the prompts to this table for review")
    inputs = options.parse_args()
    originals, rewritten = read_pairs(inputs.folder)
    if inputs.texts is not None:
        write_texts(inputs.texts, originals, rewritten)
    run("rewritten_pairs", lambda: measure(originals, rewritten), inputs.json)


if __name__ == "__main__":
    main()
