"""Test that heavy libraries are only imported where needed, and that `import vldebias` costs little
more than importing torch."""

import ast
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import vldebias
from tests.processes import run_python

ROOT = Path(vldebias.__file__).parent
HEAVY = {
    "open_clip",
    "transformers",
    "diffusers",
    "datasets",
    "gradio",
    "matplotlib",
    "pandas",
    "pyarrow",
    "scipy",
}
ABOVE_API = {"cli", "measure", "judge", "study", "training"}
# A subclass needs its base class; the module itself is imported inside functions.
ON_A_HEAVY_BASE = {"autoencoder.py"}


def imported(tree: ast.AST) -> Iterator[str]:
    """Return the libraries that are imported with the module, excluding imports inside functions or
    for type checkers."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (name.name.partition(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0]
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield from imported(node)


def printed_by(script: str) -> list[str]:
    """Run a script in a new process and return the words that it prints."""
    return run_python(script).stdout.split()


def test_modules_below_the_api_do_not_import_heavy_libraries_at_module_level() -> None:
    paths = list(ROOT.rglob("*.py"))
    for program in ("audit", "mcp", "inspect"):
        paths += (ROOT.parent / "apps" / program).rglob("*.py")
    for path in paths:
        if path.relative_to(ROOT.parent).parts[1] in ABOVE_API:
            continue
        if path.name not in ON_A_HEAVY_BASE:
            heavy = HEAVY & set(imported(ast.parse(path.read_text(encoding="utf-8"))))
            assert not heavy, f"{path} imports {heavy}"


def test_importing_the_package_is_cheap() -> None:
    """As a control, check that importing a submodule does load a heavy library."""
    loaded = [
        f"import {name}; print(*(set(sys.modules) - before), sep=',')"
        for name in ("vldebias", "vldebias.data.cache")
    ]
    script = "\n".join(["import torch, sys", "before = set(sys.modules)", *loaded])
    package, store = (
        {name.split(".")[0] for name in line.split(",")} for line in printed_by(script)
    )
    assert "vldebias" in package
    expensive = HEAVY | {"accelerate", "PIL", "safetensors", "sklearn", "tokenizers", "torchvision"}
    assert package & expensive == set()
    assert "safetensors" in store


def test_every_public_name_exists() -> None:
    for name in vldebias.__all__:
        assert getattr(vldebias, name) is not None
    modules = {"losses", "methods", "metrics"}
    assert {*dir(vldebias)} == {*vldebias.__all__, *modules, "__version__"}
    assert not hasattr(vldebias, "nosuch")


def test_prompts_are_loaded_without_the_english_rules() -> None:
    """Mistakes in a prompt file are reported immediately. Balancing needs the rules, so this test
    can fail."""
    script = (
        "import sys, vldebias.data.prompt_file, vldebias.wording\n"
        "print({'pyarrow', 'datasets', 'numpy', 'torch'} & {*sys.modules}, end=' ')\n"
        "print(any('.english' in name for name in sys.modules), end=' ')\n"
        "vldebias.wording.balance_prompts\n"
        "print(any('.english' in name for name in sys.modules))"
    )
    assert printed_by(script) == ["set()", "False", "True"]


def test_a_task_on_features_does_not_load_judges_or_grammars() -> None:
    heavy = {f"vldebias.{name}" for name in ("judge.judges", "training.run", "wording.balance")}
    heavy.add("apps.audit.advice")
    loaded = {}
    for task in ("groups", "generation"):
        script = f"import sys, vldebias.study.tasks.{task}; print(*sys.modules)"
        loaded[task] = heavy & set(printed_by(script))
    assert loaded["groups"] == set()
    assert "vldebias.judge.judges" in loaded["generation"]


@pytest.mark.parametrize(
    ("script", "absent"),
    [
        # Torch takes 500 MB, while `vldebias mcp` and `vldebias label` only read prompts and files.
        ("import apps.mcp.tools", {"torch", "gradio"}),
        ("import apps.label.session", {"torch", "gradio"}),
        ("import apps.serving", {"torch", "gradio"}),
        ("import apps.demo.engine", {"torch", "gradio"}),
        ("from apps.demo import engine, page; page.build_demo(engine.Engine())", {"torch"}),
        (
            "from apps.comfyui.balancing import balance; balance(['A CEO'], 'gender', 2)",
            {"torch", "transformers", "diffusers", "numpy"},
        ),
        # torch.compile takes seconds to import, and edits need it only for compiled models.
        ("import vldebias.hosts, vldebias.hosts.pipelines.steering", {"torch._dynamo"}),
    ],
)
def test_code_imports_nothing_heavy_that_it_does_not_need(script: str, absent: set[str]) -> None:
    loaded = printed_by(f"{script}\nimport sys\nprint(*sys.modules)")
    assert "vldebias" in loaded
    assert absent.isdisjoint(loaded)


# Commands on tables and results, with the options that make them do their work.
ON_TABLES = {
    "eval shares": "eval shares table.csv --prompt-column prompt --value-column gender"
    " --out shares",
    "eval compare": "eval compare shares shares",
    "eval compare FOLDER": "eval compare shares",
    "eval gate": "eval gate shares --max-gap 0.9",
    "eval report": "eval report shares",
    "eval show --texts": "eval show fairface --texts",
    "records check": "records check record.json",
    "rerank": "rerank table.csv --k 4 --attribute gender",
    "eval captions": "eval captions table.csv --column caption=prompt --out captions",
    "audit": "audit table.csv --column prompt --attribute gender --out audited",
}
NEEDED_BY_A_MODEL = ("torch", "open_clip", "transformers", "diffusers", "datasets", "safetensors")
OWN_MODULES_OF_MODELS = ("vldebias.hosts", "vldebias.miniature", "vldebias.training")


def test_commands_on_tables_and_results_import_nothing_that_a_model_needs(tmp_path: Path) -> None:
    rows = []
    for number in range(40):
        gender = ("female", "male")[number % 2]
        race = ("White", "Black")[number // 2 % 2]
        hired = ("yes", "no")[number % 3 == 0]
        rows.append(f"{number},{1 - number / 50},a photo of a nurse,{gender},{race},{hired}")
    head = "id,score,prompt,gender,race,hired"
    (tmp_path / "table.csv").write_text("\n".join([head, *rows]))
    texts = [*vldebias.load_prompts("gender").texts, "a photo of a nurse"]
    embeddings = np.random.default_rng(0).normal(size=(len(texts), 8))
    np.savez(tmp_path / "texts.npz", text=embeddings, prompts=np.array(texts))
    record = next((ROOT.parent / "eval" / "records").glob("*.json"))
    (tmp_path / "record.json").write_bytes(record.read_bytes())
    script = (
        "import runpy, sys\n"
        "sys.argv = ['vldebias', *sys.argv[1:]]\n"
        "try:\n"
        "    runpy.run_module('vldebias', run_name='__main__')\n"
        "except SystemExit as end:\n"
        "    assert not end.code, end.code\n"
        "print('MODULES', *sys.modules)"
    )
    for name, command in ON_TABLES.items():
        done = run_python(script, *command.split(), check=False, cwd=tmp_path)
        assert done.returncode == 0, f"{name}: {done.stderr}"
        loaded = set(done.stdout.rpartition("MODULES ")[2].split())
        assert "vldebias.cli" in loaded
        assert not loaded & {*NEEDED_BY_A_MODEL, *OWN_MODULES_OF_MODELS}, name
