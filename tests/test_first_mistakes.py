"""Test what the package says about mistakes of a newcomer: what came, and what to do."""

import gc
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import vldebias
from vldebias.cli import app
from vldebias.errors import REMOVED, SuspectInputWarning, VldebiasError
from vldebias.methods.reference import Reference
from vldebias.miniature import load_clip, load_pipeline
from vldebias.wording import Balancer


def strength_after_removal() -> None:
    model, _, tokenizer = load_clip()
    attachment = vldebias.debias(model, "gender", method="cali", tokenizer=tokenizer)
    attachment.remove()
    attachment.strength = 0.5


def edit_of_another_library() -> None:
    model, _, tokenizer = load_clip()
    edits = vldebias.fit_projections(model, "gender", method="cali", tokenizer=tokenizer)
    vldebias.debias(load_pipeline(), edits.only)


ORIGINAL: Any = {"original": ["a"]}


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (
            lambda: Reference(np.eye(4), labels={"gender": ["female"]}),
            r"^reference: labels 'gender': got 1 for 4 rows of features$",
        ),
        (strength_after_removal, r"^strength: this attachment was removed; attach again$"),
        (edit_of_another_library, r"was fitted on a model of open_clip, .*debias\(host, attribute"),
    ],
)
def test_a_mistake_in_python_is_named(mistake: Callable[[], object], words: str) -> None:
    with pytest.raises(VldebiasError, match=words):
        mistake()


@pytest.mark.parametrize(
    "mistake",
    [
        lambda: vldebias.balance_prompts(["a"], "gender", **ORIGINAL),
        lambda: Balancer("gender").next(["a"], **ORIGINAL),
        lambda: Balancer("gender").at("a", 0, **ORIGINAL),
        lambda: Balancer("gender").write(["a"], [None], **ORIGINAL),
    ],
)
def test_a_removed_parameter_says_what_to_do_instead(mistake: Callable[[], object]) -> None:
    with pytest.raises(TypeError, match=r"argument 'original'; balance the user's prompt first"):
        mistake()


@pytest.mark.parametrize("name", ["audit_captions", "fit_shares", "keep_person"])
def test_a_removed_function_says_what_to_do_instead(name: str) -> None:
    with pytest.raises(AttributeError, match=re.escape(REMOVED[name])):
        getattr(vldebias, name)


@pytest.mark.parametrize("name", ["rerank-fair", "target-shares"])
def test_a_removed_method_says_what_to_do_instead(name: str) -> None:
    with pytest.raises(VldebiasError, match=re.escape(REMOVED[name])):
        vldebias.debias(load_clip()[0], "gender", method=name)


def test_a_removed_option_says_what_to_do_instead(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("A photo of a nurse\n")
    call = ["prompts", "balance", str(prompts), "--attribute", "gender"]
    for removed in (["--original-column", "user"], ["--original-column=user"]):
        done = CliRunner().invoke(app, [*call, *removed])
        assert done.exit_code == 2
        assert "No such option: --original-column; balance the user's prompt first" in done.output
    # An unknown option still gets a suggestion, and values are no options.
    assert "Possible options: --seed" in CliRunner().invoke(app, [*call, "--sed", "1"]).output
    assert CliRunner().invoke(app, [*call, "--seed", "1"]).exit_code == 0


def test_a_file_name_is_not_balanced_silently() -> None:
    with pytest.warns(SuspectInputWarning, match=r"got the file name 'prompts\.txt'"):
        vldebias.balance_prompts("prompts.txt", "gender")
    vldebias.balance_prompts("A photo of a nurse, png", "gender", seed=0)


# `datasets` does not close the files that it reads.
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("train --data captions --label specie", "did you mean 'species'?"),
        ("rerank bad.json --attribute gender", "expected an object for each row"),
        (
            "debias gender --method cali+equalise --model miniature --reference f.npy",
            "image features have width 4",
        ),
        (
            "rerank r.jsonl --attribute gender --shares woman=1,man=0",
            "the groups are ['female', 'male']; use these names",
        ),
        ("eval report empty --verify", "empty: found no manifest.json"),
        ("records check broken.json", "broken.json: expected JSON, but it is not valid"),
        ("prompts balance prompts.txt --attribute waterbirds", "if the set is about people"),
    ],
)
def test_a_mistake_on_the_command_line_is_named(
    command: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("prompts.txt").write_text("A photo of a nurse.\n")
    Path("broken.json").write_text("{")
    Path("bad.json").write_text('{"prompts": ["a nurse"]}')
    Path("r.jsonl").write_text(
        '{"id":1,"score":2,"gender":"female"}\n{"id":2,"score":1,"gender":"male"}'
    )
    features = np.eye(4, dtype="float32")
    np.save("f.npy", features)
    Path("empty").mkdir()
    Path("captions").mkdir()
    rows = "".join(f"{row}.png,a photo of a gull.,gull,land\n" for row in range(6))
    Path("captions/metadata.csv").write_text(f"file_name,text,species,place\n{rows}")
    for row in range(6):
        Image.new("RGB", (32, 32)).save(f"captions/{row}.png")
    run = CliRunner().invoke(app, command.split())
    assert run.exit_code != 0
    assert words in f"{run.exception} {run.output}"
    # Collect the open files here, where the warning about them is ignored.
    del run
    gc.collect()
