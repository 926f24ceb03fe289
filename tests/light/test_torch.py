"""Test `vldebias[torch]` with embeddings from elsewhere. `.ci/environments core` runs these tests
with nothing else installed."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from test_core import HIDE
from typer.testing import CliRunner

import vldebias
from vldebias.cli import app
from vldebias.errors import EXTRA_OF

torch = pytest.importorskip("torch", reason="the core alone is there; see test_core.py")
np = pytest.importorskip("numpy")
from vldebias.data import Embeddings, load_embeddings, save_embeddings  # noqa: E402

# The dimension of random embeddings triggers a warning.
pytestmark = pytest.mark.filterwarnings("ignore::vldebias.errors.ClassSignalWarning")

DIM = 32


@pytest.fixture(scope="module")
def texts() -> dict[str, Any]:
    """Return an embedding for every prompt in a set, as a model behind an API would."""
    prompts = vldebias.load_prompts("professions-gender")
    rows = np.random.default_rng(0).standard_normal((len(prompts.texts), DIM))
    return dict(zip(prompts.texts, rows, strict=True))


def test_fit_save_load_and_inspect_work_on_embeddings(
    texts: dict[str, Any], tmp_path: Path
) -> None:
    fitted = vldebias.fit_projections(texts, "professions-gender", method="cali").only
    fitted.save_pretrained(tmp_path / "edit")
    loaded = vldebias.load_edit(tmp_path / "edit")
    row = torch.tensor(np.stack(list(texts.values())), dtype=torch.float32)
    assert torch.equal(loaded(row), fitted(row))
    assert not torch.allclose(loaded(row), row)
    assert vldebias.text_diagnostics(texts, "professions-gender", method="cali")


def test_image_embeddings_are_read_from_a_file(tmp_path: Path) -> None:
    rows = np.random.default_rng(1).standard_normal((5, DIM)).astype(np.float32)
    path = save_embeddings(tmp_path / "images.npz", Embeddings(rows, tuple("abcde"), {}))
    assert np.array_equal(load_embeddings(path)[0].features, rows)


@pytest.mark.parametrize(
    "command", ["--help", "methods", "prompts list", "eval list", "debias --help", "train --help"]
)
def test_commands_that_do_not_need_a_model_work(command: str) -> None:
    done = CliRunner().invoke(app, command.split(), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert done.output


IMPORT_ALL = """
import importlib, json, pkgutil
import vldebias.programs
missed = {}
modules = []
packages = ["vldebias"]
packages += [name for name in vldebias.programs.programs() if name.endswith((".audit", ".mcp"))]
for package in packages:
    folders = importlib.import_module(package).__path__
    modules += [module.name for module in pkgutil.walk_packages(folders, f"{package}.")]
assert "vldebias.api" in modules and "apps.audit.advice" in modules
for name in ["pandas", *modules]:
    if name.endswith(".__main__"):
        continue
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        missed[name] = error.name
print(json.dumps([missed, sorted(optional & {name.partition(".")[0] for name in sys.modules})]))
"""


def test_every_module_can_be_imported_with_only_torch() -> None:
    hidden = {package for package, extra in EXTRA_OF.items() if extra not in ("torch", "serve")}
    script = f"{HIDE}\noptional.intersection_update({hidden!r})\n{IMPORT_ALL}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    missed, heavy = json.loads(done.stdout)
    assert missed.pop("pandas") == "pandas"  # this shows that hiding works
    # A subclass needs its base class.
    assert missed == {"vldebias.miniature.autoencoder": "diffusers"}
    assert heavy == []
