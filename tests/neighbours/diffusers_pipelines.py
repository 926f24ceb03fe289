"""Run diffusers' own pipeline tests on unmodified pipelines, attached at strength 0, and attached.

    python tests/neighbours/diffusers_pipelines.py CHECKOUT [PLACE ...] [-- PYTEST-OPTIONS]

CHECKOUT is a checkout of github.com/huggingface/diffusers, which can also be set in
$DIFFUSERS_CHECKOUT. Its tests run with its own package, and require the packages parameterized and
requests_mock. PLACE is a folder or a file in tests/pipelines and defaults to `PLACES`.

The tests run offline: the two tokenizers that they would download are created here, and a test that
needs more fails in all three runs. A test that passes on an unmodified pipeline must also pass in
the other two runs, otherwise the script exits with code 1.

The counts and differences are written to stdout (eval/results/diffusers_pipelines.txt), and the
output of pytest to stderr.

The prompts in these tests do not mention people, so pictures must equal those of an unmodified
pipeline.

This file is also a pytest plugin, which attaches to each pipeline that is created and counts them.
"""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
ROOT = HERE.parents[2]
PLACES = (
    "stable_diffusion/test_stable_diffusion.py",
    "stable_diffusion/test_stable_diffusion_img2img.py",
    "stable_diffusion/test_stable_diffusion_inpaint.py",
    "stable_diffusion_xl/test_stable_diffusion_xl.py",
    "stable_diffusion_3/test_pipeline_stable_diffusion_3.py",
    "flux/test_pipeline_flux.py",
    "controlnet/test_controlnet.py",
    "pixart_alpha/test_pixart.py",
)
RUNS = ("bare", "strength 0", "attached")
CLIP, T5 = "hf-internal-testing/tiny-random-clip", "hf-internal-testing/tiny-random-t5"
attached: Counter[str] = Counter()
"""Number of pipelines of each class that were attached to in this process."""
RUN, OUTCOMES = "DIFFUSERS_PIPELINES_RUN", "DIFFUSERS_PIPELINES_OUTCOMES"


def make_stand_ins(folder: Path) -> dict[str, str]:
    """Write stand-ins for each hub name that the tests load from, and return their folders."""
    import tiny_tokenizers
    from transformers import T5Config

    # These are the vocabulary sizes of the originals, because the text encoders in the tests have
    # as many embeddings.
    tiny_tokenizers.MERGES = 1000 - 2 * 256 - 2
    tiny_tokenizers.clip_tokenizer().save_pretrained(folder / "clip")
    T5Config(
        vocab_size=1103, d_model=32, d_kv=8, d_ff=37, num_layers=5, num_heads=4
    ).save_pretrained(folder / "t5")
    tiny_tokenizers.t5_tokenizer().save_pretrained(folder / "t5")
    return {CLIP: str(folder / "clip"), T5: str(folder / "t5")}


def load_stand_ins(loader: Any, folders: dict[str, str]) -> None:
    """Make `from_pretrained` of a transformers class read the folders instead of the hub."""
    original = loader.from_pretrained.__func__

    @functools.wraps(original)
    def from_pretrained(cls: Any, name: Any, *arguments: Any, **options: Any) -> Any:
        return original(cls, folders.get(str(name), name), *arguments, **options)

    loader.from_pretrained = classmethod(from_pretrained)


def attach_when_made(pipeline_class: Any, strength: float) -> None:
    """Attach to each pipeline of a class at the end of its `__init__`, unless its modules are
    already attached.

    Pipelines that share a text encoder share the attachment.
    """
    import vldebias
    import vldebias.errors

    original = pipeline_class.__init__

    @functools.wraps(original)
    def make(self: Any, *arguments: Any, **components: Any) -> None:
        original(self, *arguments, **components)
        if type(self) is pipeline_class:
            try:
                vldebias.debias(self, "gender", strength=strength)
            except vldebias.errors.UnsupportedHostError:
                # Without text encoders, there is nothing to edit, so attaching is rejected and the
                # pipeline is unmodified.
                names = [name for name in self.components if "text_encoder" in name]
                if any(self.components[name] is not None for name in names):
                    raise
            else:
                attached[pipeline_class.__name__] += 1

    pipeline_class.__init__ = make


def pytest_configure(config: Any) -> None:
    """Create the stand-ins for this process and for those of pytest-xdist."""
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
    """Wrap the classes that the collected tests belong to."""
    if os.environ[RUN] == "bare":
        return
    classes = {getattr(item.cls, "pipeline_class", None) for item in session.items}
    for pipeline_class in classes - {None}:
        attach_when_made(pipeline_class, 0.0 if os.environ[RUN] == "strength 0" else 1.0)


def write_line(line: dict[str, Any]) -> None:
    """Append a line of JSON to the file that the script reads after the run."""
    with open(os.environ[OUTCOMES], "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def pytest_runtest_logreport(report: Any) -> None:
    """Write the outcome of each test and, if it failed, the class of the error."""
    if report.when != "call" and report.outcome == "passed":
        return
    error = ""
    crash = getattr(report.longrepr, "reprcrash", None)
    if report.outcome == "failed" and crash is not None:
        error = crash.message.split(":")[0].split("\n")[0]
    write_line({"test": report.nodeid, "outcome": report.outcome, "error": error})


def pytest_sessionfinish() -> None:
    """Write how many pipelines of each class were attached to. Each xdist process writes its own
    counts."""
    write_line({"attached": attached})


@dataclass
class Run:
    """Store the results of a pytest run.

    Attributes:
        outcomes: Test name -> outcome.
        errors: Test name -> class of the error, for each failed test.
        attached: Class -> how many of its pipelines were attached to.
    """

    outcomes: dict[str, str] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    attached: Counter[str] = field(default_factory=Counter)


def run_tests(run: str, checkout: Path, arguments: list[str]) -> Run:
    """Run the tests on unmodified pipelines, at strength 0 or attached."""
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
        # A file that needs a missing package does not prevent the others from running.
        options = ["-q", "--tb=short", "--continue-on-collection-errors", "-p", HERE.stem]
        command = [sys.executable, "-m", "pytest", *options, *arguments]
        subprocess.run(command, cwd=checkout, env=environment, stdout=sys.stderr, check=False)
        found = Run()
        for line in map(json.loads, file.read_text(encoding="utf-8").splitlines()):
            if "test" in line:
                found.outcomes[line["test"]] = line["outcome"]
                if line["error"]:
                    found.errors[line["test"]] = line["error"]
            else:
                found.attached.update(line["attached"])
        return found


def print_table(runs: dict[str, Run]) -> None:
    """Print how many tests in each file passed, failed and were skipped in each run."""
    print(f"{'passed / failed / skipped':72}" + "".join(f"{run:>16}" for run in runs))
    files = sorted({test.split("::")[0] for test in runs["bare"].outcomes})
    for file in [*files, ""]:
        cells = ""
        for found in runs.values():
            counts = Counter(
                outcome for test, outcome in found.outcomes.items() if test.startswith(file)
            )
            numbers = (counts[outcome] for outcome in ("passed", "failed", "skipped"))
            cells += f"{' / '.join(map(str, numbers)):>16}"
        print(f"{file or 'all':72}{cells}")
    pipelines = "".join(f"{found.attached.total():>16}" for found in runs.values())
    print(f"{'pipelines that were attached to':72}{pipelines}")


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
    places = [f"tests/pipelines/{name}" for name in arguments[1:] or PLACES]
    missing = [name for name in places if not (checkout / name).exists()]
    if missing:
        print(f"{checkout}: no {missing[0]}; expected a checkout of diffusers", file=sys.stderr)
        return 2
    runs = {run: run_tests(run, checkout, [*places, *options]) for run in RUNS}
    about = (checkout / "src/diffusers/__init__.py").read_text(encoding="utf-8")
    print("diffusers", re.findall(r'__version__ = "(.*)"', about)[0], end=" (the checkout)")
    for package in ("torch", "transformers", "vldebias"):
        print(f", {package} {version(package)}", end="")
    print("\n")
    print_table(runs)
    print("errors of tests that fail bare:", dict(Counter(runs["bare"].errors.values())))
    tests = sorted(set().union(*(found.outcomes for found in runs.values())))
    lost = 0
    for test in tests:
        outcomes = {run: found.outcomes.get(test, "not run") for run, found in runs.items()}
        if len(set(outcomes.values())) > 1:
            print(f"differs: {outcomes} {test}")
            lost += outcomes["bare"] == "passed"
    passed = list(runs["bare"].outcomes.values()).count("passed")
    print(f"{passed} pass bare, {passed - lost} of them also at strength 0 and attached")
    return int(lost > 0 or not passed)


if __name__ == "__main__":
    sys.exit(main())
