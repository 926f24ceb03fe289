"""Test that the core handles text without other packages. `.ci/environments core` runs these tests
with nothing else installed."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import vldebias
from vldebias.errors import EXTRA_OF, MissingPackageError, need

# This runs in a separate process. Before vldebias is imported, it hides every package that an extra
# installs.
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
    """Run a script with only the core and the arguments of a command line."""
    command = [sys.executable, "-c", HIDE + script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", **settings)  # type: ignore[call-overload,no-any-return]


# Run commands one after another in a single process, and print their exit codes, outputs and
# messages as JSON.
RUN_EACH = """
import contextlib, io, json, sys
from vldebias.cli import main
answers = []
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["vldebias", *arguments.split()]
    output, message = io.StringIO(), io.StringIO()
    code = 0
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(message):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    answers.append([code, output.getvalue(), message.getvalue()])
print(json.dumps(answers))
"""


def answers_of(commands: list[str], **settings: object) -> dict[str, tuple[int, str, str]]:
    """Return the exit code, the output and the message of each command with only the core."""
    done = run_core(RUN_EACH, json.dumps(commands), **settings)
    assert done.returncode == 0, done.stderr
    return dict(zip(commands, map(tuple, json.loads(done.stdout)), strict=True))  # type: ignore[arg-type]


def run_command(*arguments: str, **settings: object) -> subprocess.CompletedProcess[str]:
    """Run `vldebias` with only the core."""
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


def test_prompt_sets_are_listed_shown_and_created(tmp_path: Path) -> None:
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


def test_help_only_needs_the_core_install() -> None:
    helps = ["--help", "debias --help", "train --help", "eval --help", "serve --help"]
    lists = ["--version", "eval list", "eval data", "methods", "losses"]
    for command, (code, output, message) in answers_of([*helps, *lists]).items():
        assert code == 0, (command, message)
        assert output, command


def test_a_function_that_needs_torch_names_the_extras() -> None:
    names = ["debias", "debias_queries", "evaluate", "metrics", "losses.rince", "load_host"]
    script = f"""
import json, operator, vldebias
refusals = {{}}
for name in {names!r}:
    try:
        operator.attrgetter(name)(vldebias)
    except vldebias.errors.MissingPackageError as error:
        refusals[name] = str(error)
print(json.dumps(refusals))
"""
    done = run_core(script)
    refusals = json.loads(done.stdout)
    assert [*refusals] == names, done.stderr
    for refusal in refusals.values():
        assert refusal.startswith(("torch is not installed", "numpy is not installed"))
        for extra in ("clip", "diffusers", "eval", "train", "torch"):
            assert f"'.[{extra}]'" in refusal


def test_a_command_that_needs_torch_names_the_extras_without_a_traceback(tmp_path: Path) -> None:
    commands = ["quickstart", "debias gender --model miniature", "eval miniature"]
    for command, (code, output, message) in answers_of(commands, cwd=tmp_path).items():
        assert code == 2, (command, message)
        assert output == ""
        assert message.startswith("error: ")
        assert "pip install '.[" in message
        assert "Traceback" not in message
    assert not (tmp_path / "vldebias-quickstart").exists()


@pytest.mark.parametrize("package", [*EXTRA_OF, "wandb"])
def test_a_missing_package_is_reported_with_the_install_command(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    extra = EXTRA_OF.get(package)
    expected = package if extra is None else rf"'\.\[{extra}\]'"
    with pytest.raises(
        MissingPackageError, match=rf"^{package} is not installed: pip install .*{expected}"
    ):
        need(package)


def test_a_broken_installation_raises_its_own_error() -> None:
    script = """
sys.modules["vldebias.api"] = None
import vldebias
vldebias.debias
"""
    done = run_core(script)
    assert "vldebias.api" in done.stderr.splitlines()[-1]


def test_every_module_of_wording_imports_without_torch() -> None:
    package = Path(vldebias.__file__).parent
    modules = []
    for path in sorted((package / "wording").rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        modules.append(".".join(parts).removesuffix(".__init__"))
    assert "vldebias.wording.english.reading" in modules
    script = "import importlib, sys\nfor name in sys.argv[1:]:\n    importlib.import_module(name)\n"
    done = run_core(script, *modules)
    assert done.returncode == 0, done.stderr
    needs_torch = run_core(script, "vldebias.projection.projection")
    assert needs_torch.returncode != 0
