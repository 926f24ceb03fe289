"""Run diffusers' own tests of pipelines on pipelines that are bare, attached at strength 0 and
attached.

    python tests/neighbours/diffusers_pipelines.py CHECKOUT [FOLDER ...] [-- PYTEST-OPTIONS]

CHECKOUT: of github.com/huggingface/diffusers, also in $DIFFUSERS_CHECKOUT; its tests run with its
own package, and many need the package parameterized. FOLDER: or file, of tests/pipelines; those of
`FOLDERS` where none is named. Offline: the two tokenizers that the tests get from the hub are made
here, and a test that needs more fails in all three runs alike. A test that passes bare has to pass
in the other two: else the script ends with 1.

The prompts of these tests name nobody, so that pictures have to stay those of a bare pipeline.
The file is the plugin of pytest too: it attaches to each pipeline when it is made, and says to how
many.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
ROOT = HERE.parents[2]
FOLDERS = ("stable_diffusion", "stable_diffusion_xl", "stable_diffusion_3", "pixart_alpha")
RUNS = ("bare", "strength 0", "attached")
CLIP, T5 = "hf-internal-testing/tiny-random-clip", "hf-internal-testing/tiny-random-t5"
attached: Counter[str] = Counter()
"""Pipelines of each class that were attached to in this process."""
RUN, OUTCOMES = "DIFFUSERS_PIPELINES_RUN", "DIFFUSERS_PIPELINES_OUTCOMES"


def make_stand_ins(folder: Path) -> dict[str, str]:
    """Return a folder for each name of the hub that the tests load from, and write them."""
    import tiny_tokenizers
    from transformers import T5Config

    # Both vocabularies of the originals: the text encoders of the tests have as many embeddings.
    tiny_tokenizers.MERGES = 1000 - 2 * 256 - 2
    tiny_tokenizers.clip_tokenizer().save_pretrained(folder / "clip")
    T5Config(
        vocab_size=1103, d_model=32, d_kv=8, d_ff=37, num_layers=5, num_heads=4
    ).save_pretrained(folder / "t5")
    tiny_tokenizers.t5_tokenizer().save_pretrained(folder / "t5")
    return {CLIP: str(folder / "clip"), T5: str(folder / "t5")}


def load_stand_ins(loader: Any, folders: dict[str, str]) -> None:
    """Have `from_pretrained` of a class of transformers read the folders in place of the hub."""
    original = loader.from_pretrained.__func__

    @functools.wraps(original)
    def from_pretrained(cls: Any, name: Any, *arguments: Any, **options: Any) -> Any:
        return original(cls, folders.get(str(name), name), *arguments, **options)

    loader.from_pretrained = classmethod(from_pretrained)


def attach_when_made(pipeline_class: Any, strength: float) -> None:
    """Attach to each pipeline of a class at the end of its `__init__`, where its modules are free.

    Pipelines that share a text encoder share what is attached to it.
    """
    import vldebias

    original = pipeline_class.__init__

    @functools.wraps(original)
    def make(self: Any, *arguments: Any, **components: Any) -> None:
        original(self, *arguments, **components)
        if type(self) is pipeline_class:
            vldebias.debias(self, "gender", strength=strength)
            attached[pipeline_class.__name__] += 1

    pipeline_class.__init__ = make


def pytest_configure(config: Any) -> None:
    """Make the stand-ins, for this process and those of pytest-xdist alike."""
    import transformers

    config.vldebias_folder = tempfile.TemporaryDirectory()
    folders = make_stand_ins(Path(config.vldebias_folder.name))
    for loader in (
        transformers.PreTrainedTokenizerBase,
        transformers.AutoTokenizer,
        transformers.AutoConfig,
    ):
        load_stand_ins(loader, folders)


def pytest_collection_finish(session: Any) -> None:
    """Wrap the classes that the collected tests are of."""
    if os.environ[RUN] == "bare":
        return
    classes = {getattr(item.cls, "pipeline_class", None) for item in session.items}
    for pipeline_class in classes - {None}:
        attach_when_made(pipeline_class, 0.0 if os.environ[RUN] == "strength 0" else 1.0)


def pytest_runtest_logreport(report: Any) -> None:
    """Write the outcome of each test as a line."""
    if report.when == "call" or report.outcome != "passed":
        with open(os.environ[OUTCOMES], "a", encoding="utf-8") as file:
            file.write(json.dumps([report.nodeid, report.outcome]) + "\n")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say how many pipelines were attached to."""
    terminalreporter.write_line(f"attached to {attached.total()} pipelines: {dict(attached)}")


def outcomes_of(run: str, checkout: Path, arguments: list[str]) -> dict[str, str]:
    """Return the outcome of each test of one run."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "outcomes")
        file.touch()
        paths = (ROOT, HERE.parent, ROOT / "tests/hosts", os.environ.get("PYTHONPATH", ""))
        environment = os.environ | {
            RUN: run,
            OUTCOMES: str(file),
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "HF_HUB_OFFLINE": "1",
        }
        # A file that needs what is not installed does not keep the others from running.
        options = ["-q", "--tb=short", "--continue-on-collection-errors", "-p", HERE.stem]
        command = [sys.executable, "-m", "pytest", *options, *arguments]
        subprocess.run(command, cwd=checkout, env=environment, check=False)
        return dict(json.loads(line) for line in file.read_text(encoding="utf-8").splitlines())


def main() -> int:
    arguments = sys.argv[1:]
    options: list[str] = []
    if "--" in arguments:
        place = arguments.index("--")
        options = arguments[place + 1 :]
        arguments = arguments[:place]
    if not arguments and os.environ.get("DIFFUSERS_CHECKOUT"):
        arguments = [os.environ["DIFFUSERS_CHECKOUT"]]
    if not arguments:
        print(
            "!!!!!!!! NOT TRIED: diffusers' own tests of pipelines: name a checkout of"
            " github.com/huggingface/diffusers, or set DIFFUSERS_CHECKOUT",
            file=sys.stderr,
        )
        return 0
    checkout = Path(arguments[0]).resolve()
    folders = [f"tests/pipelines/{name}" for name in arguments[1:] or FOLDERS]
    missing = [name for name in folders if not (checkout / name).exists()]
    if missing:
        print(f"{checkout}: no {missing[0]}; expected a checkout of diffusers", file=sys.stderr)
        return 2
    outcomes = {run: outcomes_of(run, checkout, [*folders, *options]) for run in RUNS}
    for run, found in outcomes.items():
        counts = Counter(found.values())
        print(f"{run}: {dict(sorted(counts.items()))}")
    passed = [test for test, outcome in outcomes["bare"].items() if outcome == "passed"]
    differing = 0
    for test in passed:
        others = {run: outcomes[run].get(test, "not run") for run in RUNS[1:]}
        if set(others.values()) != {"passed"}:
            differing += 1
            print(f"passes bare, but: {others} {test}")
    print(f"{len(passed)} pass bare, {len(passed) - differing} of them also in the other two runs")
    return int(differing > 0 or not passed)


if __name__ == "__main__":
    sys.exit(main())
