"""What the core does: text alone. `.ci/environments core` runs it with nothing else installed."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import vldebias
from vldebias.errors import EXTRA_OF, MissingPackageError, need

# Run in another process: hides every package that an extra brings, before vldebias is imported.
HIDE = f"""
import sys
optional = {set(EXTRA_OF)!r}

class Without:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in optional:
            return None
        return self.finder.find_spec(name, path, target)

sys.meta_path[:] = map(Without, sys.meta_path)
"""


def run_core(script: str, *arguments: str, **settings: object) -> subprocess.CompletedProcess[str]:
    """Run a script with the core alone, and the arguments of a command line."""
    command = [sys.executable, "-c", HIDE + script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", **settings)  # type: ignore[call-overload,no-any-return]


def run_command(*arguments: str, **settings: object) -> subprocess.CompletedProcess[str]:
    """Run `vldebias` with the core alone."""
    return run_core("from vldebias.cli import main; main()", *arguments, **settings)


def test_prompts_are_balanced_in_even_shares() -> None:
    prompts = ["A photo of a doctor", "A CEO in an office", "A nurse at work", "A bowl of fruit"]
    script = f"""
import json, vldebias
balanced = vldebias.balance_prompts({prompts!r} * 2, "gender", seed=0)
loaded = sorted({{name.partition(".")[0] for name in sys.modules}} & optional)
print(json.dumps([balanced.prompts, balanced.values, loaded]))
"""
    done = run_core(script)
    assert done.returncode == 0, done.stderr
    balanced, values, loaded = json.loads(done.stdout)
    assert Counter(values) == {"female": 3, "male": 3, None: 2}
    assert balanced[3] == balanced[7] == "A bowl of fruit"
    assert loaded == []


def test_a_balancer_goes_on_over_calls() -> None:
    script = """
from vldebias.prompts import Balancer
balancer = Balancer("gender", seed=0)
values = [balancer.next(["A photo of a doctor"]).values[0] for _ in range(6)]
print(*sorted(values))
"""
    done = run_core(script)
    assert done.stdout.split() == ["female"] * 3 + ["male"] * 3, done.stderr


def test_prompt_sets_are_listed_shown_and_made(tmp_path: Path) -> None:
    assert run_command("prompts", "list").stdout.count("\n") > 5
    assert "source:" in run_command("prompts", "show", "waterbirds").stdout
    made = tmp_path / "glasses.yaml"
    options = ["--attribute", "with=bespectacled", "--attribute", "without=clear-eyed"]
    done = run_command("prompts", "new", str(made), *options, "--concept", "doctor,nurse,teacher")
    assert done.returncode == 0, done.stderr
    assert len(vldebias.load_prompts(str(made)).pairs) == 3


def test_prompts_are_balanced_in_the_shell() -> None:
    prompts = "A CEO in an office\nA photo of a doctor\n"
    arguments = ["prompts", "balance", "-", "--attribute", "gender", "--images", "2"]
    done = run_command(*arguments, "--seed", "0", input=prompts)
    assert done.returncode == 0, done.stderr
    values = [line.split("\t")[1] for line in done.stdout.splitlines()[1:]]
    assert Counter(values) == {"female": 2, "male": 2}


@pytest.mark.parametrize(
    "command",
    [
        "--help",
        "--version",
        "debias --help",
        "train --help",
        "eval list",
        "methods",
        "eval --help",
        "serve --help",
    ],
)
def test_help_needs_the_core_alone(command: str) -> None:
    done = run_command(*command.split())
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize(
    "name", ["debias", "debias_queries", "evaluate", "metrics", "losses", "load_host"]
)
def test_a_function_that_needs_torch_names_the_extras(name: str) -> None:
    script = f"""
import vldebias
try:
    vldebias.{name}
except vldebias.errors.MissingPackageError as error:
    print(error)
"""
    done = run_core(script)
    assert done.stdout.startswith(("torch is not installed", "numpy is not installed")), done
    for extra in ("clip", "diffusers", "eval", "train", "torch"):
        assert f"'vldebias[{extra}]'" in done.stdout


@pytest.mark.parametrize(
    "command", ["quickstart", "debias gender --model miniature", "eval miniature"]
)
def test_a_command_that_needs_torch_names_the_extras_without_a_traceback(
    command: str, tmp_path: Path
) -> None:
    done = run_command(*command.split(), cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert "pip install 'vldebias[" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "vldebias-quickstart").exists()


@pytest.mark.parametrize("package", [*EXTRA_OF, "wandb"])
def test_a_missing_package_is_a_sentence_with_the_command(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    extra = EXTRA_OF.get(package)
    expected = package if extra is None else rf"'vldebias\[{extra}\]'"
    with pytest.raises(
        MissingPackageError, match=rf"^{package} is not installed: pip install .*{expected}"
    ):
        need(package)


def test_a_broken_installation_keeps_its_own_error() -> None:
    script = """
sys.modules["vldebias.api"] = None
import vldebias
vldebias.debias
"""
    done = run_core(script)
    assert "vldebias.api" in done.stderr.splitlines()[-1]
