"""Test that advice can be followed: the commands, options and names in texts and messages exist,
and the command that an error or warning proposes works."""

import gc
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from PIL import Image
from typer.testing import CliRunner

import vldebias
from vldebias.cli import app
from vldebias.errors import REMOVED, SuspectInputWarning, VldebiasError, VldebiasWarning
from vldebias.miniature import load_clip, load_pipeline
from vldebias.training.settings import TrainSettings

ROOT = Path(__file__).parents[1]
COMMAND: Any = typer.main.get_command(app)
TEXTS = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "prompts/**/*.md", "eval/**/*.md", "apps/**/*.md")
    for path in ROOT.glob(pattern)
)
CODE = sorted(
    path
    for folder in ("vldebias", "apps")
    for ending in ("py", "html", "jinja", "yaml")
    for path in (ROOT / folder).rglob(f"*.{ending}")
)
# Options of other programs (git, pip, tar, torchrun, img2dataset, open_clip, ...), of prompts and
# of experiments, and options that the changelog calls removed.
OF_OTHERS = {
    *("--blocks", "--caption-column", "--caption_col", "--csv-caption-key", "--csv-img-key"),
    *("--enable_wildcard", "--impact-ratio", "--input_format", "--local-dir", "--minilm"),
    *("--name-only", "--no", "--nproc_per_node", "--num_processes", "--on", "--output_folder"),
    *("--output_format", "--preload", "--prompt", "--short", "--sort", "--upgrade", "--url_col"),
    *("--repo-type", "--url_list", "--use_safetensors"),
    "--output",  # a frequent guess, to which the answer is how to write a file
    *("--error", "--prompt-width", "--qualifier"),  # the changelog says that they were removed
}
# Groups of entry points, names of loggers and of files, which are not Python names.
NOT_PYTHON = {"vldebias.tasks", "vldebias.judges", "vldebias.json", "vldebias.images_api"}
NOT_PYTHON |= {"vldebias.apps"}


def options_below(node: Any) -> Iterator[str]:
    """Yield the options of a command and of its subcommands."""
    for parameter in node.params:
        yield from (*parameter.opts, *parameter.secondary_opts)
    for name in getattr(node, "commands", None) or ():
        yield from options_below(node.commands[name])


def shown(path: Path) -> str:
    """Return a text with continued lines and strings joined."""
    text = path.read_text(encoding="utf-8", errors="ignore")
    return re.sub(r"\\+\n\s*\"?|\"\n\s*f?\"", " ", text)


def problems_in(path: Path) -> Iterator[str]:
    """Yield the commands in a text that do not exist, or not with one of their options."""
    for match in re.finditer(
        r"(?:`|^\s*|\$ |\"|[Rr]un )vldebias ([a-z][^`\n\"#|]*)", shown(path), re.MULTILINE
    ):
        node = COMMAND
        words = match[1].split()
        while words and words[0] in (getattr(node, "commands", None) or ()):
            node = node.commands[words.pop(0)]
        if node is COMMAND:
            # A sentence may start with the name of the package.
            if match[0].startswith("`"):
                yield f"no command {match[0]}"
            continue
        # The name of a suite follows `vldebias eval`.
        known = {"--help", *options_below(node)}
        for word in words:
            option = re.match(r"--[a-z][a-z-]+", word)
            if option is not None and option[0] not in known:
                yield f"{match[0]}: no option {word}"


def test_commands_in_texts_exist_with_their_options() -> None:
    problems = [f"{path}: {problem}" for path in (*TEXTS, *CODE) for problem in problems_in(path)]
    assert problems == []


def test_options_in_texts_exist() -> None:
    known = {"--help", "--version", "--install-completion", "--show-completion"}
    known |= {*options_below(COMMAND), *OF_OTHERS, *" ".join(REMOVED).split()}
    unknown = {}
    for path in (*TEXTS, *CODE):
        # Experiments have options of their own, and styles have names with two hyphens.
        if path.is_relative_to(ROOT / "eval") or path.suffix in (".html", ".jinja"):
            continue
        for option in re.findall(r"(?<![\w-])(--[a-z][a-z_-]+)(?![\w*])", shown(path)):
            if option.rstrip("-_") not in known:
                unknown[option] = str(path.relative_to(ROOT))
    assert unknown == {}


def test_settings_in_texts_exist() -> None:
    known = set(TrainSettings.model_fields)
    for loss in importlib.import_module("vldebias.losses").LOSSES.values():
        known |= set(loss.settings.model_fields)
    unknown = {}
    for path in (*TEXTS, *CODE):
        for name in re.findall(r"--set ([a-z]\w*)=", shown(path)):
            # "push" is a setting of the loss that the guide for extensions adds.
            if name not in {*known, "name", "push"}:
                unknown[name] = str(path.relative_to(ROOT))
    assert unknown == {}


def is_python_name(name: str) -> bool:
    """Return whether a dotted name is a module, or an attribute or field inside one."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        for part in parts[length:]:
            fields = {**getattr(found, "__annotations__", {}), **getattr(found, "model_fields", {})}
            if not hasattr(found, part):
                return part in fields
            found = getattr(found, part)
        return True
    return False


def test_dotted_names_in_texts_exist() -> None:
    unknown = {}
    for path in (*TEXTS, *CODE):
        for name in re.findall(r"(?<![\w./-])vldebias(?:\.[A-Za-z_]\w*)+(?![\w-])", shown(path)):
            if name not in NOT_PYTHON and not is_python_name(name):
                unknown[name] = str(path.relative_to(ROOT))
    assert unknown == {}


SHARES = "eval shares {} --prompt-column prompt --value-column gender"
TRAIN = "train --model miniature --batch-size 2 --set steps=1 --set workers=0 --data"
KINDS = f"{TRAIN} images/kinds.csv"
BALANCE = "prompts balance prompts.txt --attribute gender"
RERANK = "rerank scored.jsonl --attribute gender"
AUDIT = "audit prompts.txt --attribute gender"
DEBIAS = "debias gender --model miniature"
DIAGNOSE = "diagnose f.npz"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("one.csv").write_text("prompt,gender\n" + "a,F\n" * 12)
    Path("counts.csv").write_text("prompt,gender,count\n" + "a,male,3\na,female,2\n" * 6)
    spelt = "a,male\na,female\n" * 8 + "a,Female\n" * 8
    Path("spelt.csv").write_text(f"prompt,gender\n{spelt}")
    single = "".join(f"a nurse {i},{('male', 'female')[i % 2]},nurse\n" for i in range(20))
    Path("single.csv").write_text(f"prompt,gender,original\n{single}")
    strange = "a,male\na,female\na,both\n" * 8
    Path("strange.csv").write_text(f"prompt,gender\n{strange}")
    Path("prompts.csv").write_text("text,n\nA photo of a nurse.,1\n")
    Path("prompts.txt").write_text("A photo of a nurse.\n")
    scored = '{"id":"a","score":0.9,"gender":"female"}\n{"id":"b","score":0.8,"gender":"male"}\n'
    Path("scored.jsonl").write_text(scored)
    features = np.random.default_rng(0).normal(size=(60, 8)).astype("float32")
    np.savez("f.npz", features=features, **{"label.gender": np.array(["a", "b"] * 30)})
    Path("images").mkdir()
    rows = [f"{i}.png,a photo of a gull.,gull number {i}" for i in range(6)]
    for i in range(6):
        Image.new("RGB", (32, 32), (40 * i, 0, 0)).save(f"images/{i}.png")
    Path("images/same.csv").write_text("\n".join(["image,text,species", *rows]))
    kinds = "".join(f"{i}.png,a photo of a {('gull', 'wren')[i % 2]}.\n" for i in range(6))
    Path("images/kinds.csv").write_text(f"image,caption\n{kinds}")
    Path("images/answers.csv").write_text("image,reply\n0.png,a man\n1.png,a woman\n")
    rising = "".join(f'{{"id":{i},"score":{i},"gender":"{"fm"[i % 2]}"}}\n' for i in range(20))
    Path("rising.jsonl").write_text(rising)
    Path("unknown.csv").write_text("prompt,gender\n" + "a,N/A\n" * 6)
    Path("none.csv").write_text("prompt,gender\n" + "a,male\na,female\na,none\n" * 6)
    Path("faces.csv").write_text("image,prompt,gender\n" + "0.png,a,male\n0.png,a,female\n" * 6)
    Path("checked.csv").write_text("prompt,gender,human\n" + "a,male,Mann\na,female,female\n" * 9)
    Path("judged.csv").write_text("prompt,value\n" + "a photo of a nurse,White\n" * 4)
    labels = np.array(["female", "male"] * 30)
    wide = np.random.default_rng(0).normal(size=(60, 256)).astype("float32")
    np.savez("wide.npz", features=wide, **{"label.gender": labels})
    Path("tables").mkdir()
    outside = [f"{tmp_path}/images/{i}.png,gull {i}" for i in range(6)]
    Path("tables/outside.csv").write_text("\n".join(["image,caption", *outside]))
    return tmp_path


@pytest.mark.filterwarnings("ignore::Warning")
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("mistake", "advice", "follow"),
    [
        (SHARES.format("one.csv"), r"--groups F,OTHER", "+ --groups F,OTHER"),
        (SHARES.format("counts.csv"), r"--weight-column count,", "+ --weight-column count"),
        (SHARES.format("spelt.csv"), r"--rename Female=female", "+ --rename Female=female"),
        (
            SHARES.format("single.csv"),
            r"the column of the original prompt \(--prompt-column\)",
            "eval shares single.csv --prompt-column original --value-column gender",
        ),
        (
            f"{SHARES.format('strange.csv')} --groups male,female",
            r"\(--rename LABEL=GROUP\)",
            "+ --rename both=female",
        ),
        (
            SHARES.format("one.csv").replace("prompt-column prompt", "prompt-column promt"),
            r"did you mean 'prompt'\?",
            SHARES.format("counts.csv"),
        ),
        (DIAGNOSE, r"--label-column COLUMN", "+ --label-column gender"),
        (
            "prompts balance prompts.csv --attribute gender --column tekst",
            r"in \['text', 'n'\]; choose one with --column",
            "prompts balance prompts.csv --attribute gender --column text",
        ),
        (
            f"{RERANK} --columns score=similarity",
            r"--columns score=COLUMN",
            f"{RERANK} --columns score=score --k 1",
        ),
        (f"{AUDIT} --measure 1", r"--measure needs --pipeline", "+ --pipeline miniature --steps 1"),
        (f"{TRAIN} images/same.csv --out a", r"--caption-column;", "+ --caption-column species"),
        (
            f"{TRAIN} tables/outside.csv --out b",
            r"--set allow_outside=true",
            "+ --set allow_outside=true",
        ),
        (
            f"{BALANCE} --images 900000000",
            r"several times with different values of --seed",
            f"{BALANCE} --images 3 --seed 1",
        ),
        (
            f"{BALANCE} --shares female=most",
            r"such as female=0\.7,male=0\.3",
            f"{BALANCE} --shares female=0.7,male=0.3",
        ),
        (
            "debias --attribute gender --model miniature --method cali",
            r"omit the flag, as in vldebias debias gender",
            f"{DEBIAS} --method cali",
        ),
        (f"{DEBIAS} --method leace", r"pass reference= \(--reference\)", "+ --reference wide.npz"),
        (f"{DEBIAS} --method balanced-prompts", r"use method='cali'", f"{DEBIAS} --method cali"),
        ("rerank scored.jsonl --attribute country", r"--attribute COLUMN", RERANK),
        (f"{RERANK} --checked truth", r"--checked COLUMN", f"{RERANK} --checked gender"),
        (f"{RERANK} --method fair", r"one order, the quota; see fairsearch-core", RERANK),
        (
            f"{RERANK} --columns key=id",
            r"expected id, score, .* before =",
            f"{RERANK} --columns id=id",
        ),
        (
            "rerank rising.jsonl --attribute gender",
            r"--columns distance=COLUMN",
            "+ --columns distance=score",
        ),
        ("eval show generation --texts", r"omit --texts", "eval show generation"),
        (
            "eval human",
            r"expected --label-file and --image-dir",
            "+ --label-file a.jsonl --image-dir images",
        ),
        ("eval captions images/answers.csv", r"--column caption=NAME", "+ --column caption=reply"),
        (SHARES.format("unknown.csv"), r"\(--groups\)", "+ --groups female,male"),
        (
            f"{SHARES.format('counts.csv')} --groups female",
            r"such as female,male",
            f"{SHARES.format('counts.csv')} --groups female,male",
        ),
        (
            SHARES.format("none.csv"),
            r"if one of them is a group, list all groups \(--groups\)",
            "+ --groups male,female,none",
        ),
        (SHARES.format("faces.csv"), r"pass --faces", "+ --faces"),
        (
            f"{SHARES.format('checked.csv')} --people-column human",
            r"if two values mean the same, pass --rename A=B",
            "+ --rename Mann=male",
        ),
        (
            "audit --attribute gender --original prompts.txt",
            r"both --original and --rewritten",
            "+ --rewritten prompts.txt",
        ),
        (
            f"{DIAGNOSE} --group-column gender --image-dir images",
            r"--image-dir needs --label-column",
            f"{DIAGNOSE} --label-column gender --image-dir images",
        ),
        (
            f"{DIAGNOSE} --label-column gender --methods leace",
            r"add --attribute SET",
            "+ --attribute gender",
        ),
        (
            f"{KINDS} --out e --batch-size 64",
            r"lower --batch-size or add data",
            f"{KINDS} --out e --batch-size 4",
        ),
        (f"{KINDS} --out f --batch-size 6", r"--loss gce", "+ --loss gce"),
        (
            f"{KINDS} --out g --split tset",
            r"no column 'split'.*use all rows \(--split all\)",
            f"{KINDS} --out g --split all",
        ),
        (
            f"{KINDS} --out h --set loss.q=",
            r"expected name=value, such as ema=0\.999; the value is missing",
            f"{KINDS} --out h --set ema=0.999",
        ),
        (
            f"{KINDS} --out i --set loss.q=0.5",
            r"loss\.q: unknown key; did you mean 'q'\?",
            f"{KINDS} --out i --loss gce --set q=0.5",
        ),
        (
            f"{KINDS} --out j --image-column caption",
            r"both the images and the captions; .* set --image-column and --caption-column",
            "+ --image-column image --caption-column caption",
        ),
        (
            SHARES.format("prompts.txt"),
            r"is this a text file\? Expected a header line",
            SHARES.format("counts.csv"),
        ),
        (f"{TRAIN} tables/outside.csv --out c", r"--image-root", "+ --image-root {folder}/images"),
    ],
)
def test_advice_that_is_followed_leads_on(
    mistake: str, advice: str, follow: str, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    first = CliRunner().invoke(app, mistake.split(), input="A photo of a nurse.\n")
    messages = [str(warning.message) for warning in recwarn.list]
    message = " ".join(f"{first.exception} {first.output} {' '.join(messages)}".split())
    assert re.search(advice, message), message
    follow = follow.replace("+", mistake, 1).format(folder=tmp_path)
    second = CliRunner().invoke(app, follow.split())
    # Another sentence of the package may follow, but not a failure.
    assert second.exit_code == 0 or isinstance(second.exception, VldebiasError), second.output
    assert not re.search(advice, f"{second.exception}"), second.exception
    # Collect files that `datasets` leaves open.
    del first, second
    gc.collect()


def test_a_step_in_which_an_edit_does_nothing_is_named() -> None:
    pipe = load_pipeline()
    attachment = vldebias.debias(pipe, "gender", method="cross-attention")
    scheduler: Any = pipe.scheduler
    generator = torch.Generator().manual_seed(0)
    options: dict[str, Any] = {"num_inference_steps": 1, "output_type": "pt"}
    pipe.scheduler = scheduler.from_config(scheduler.config, timestep_spacing="leading")
    with pytest.warns(VldebiasWarning, match=r"timestep 1, .* timestep_spacing=\"trailing\""):
        pipe("A photo of a nurse.", generator=generator, **options)
    pipe.scheduler = scheduler.from_config(scheduler.config, timestep_spacing="trailing")
    pipe("A photo of a nurse.", generator=generator, **options)
    attachment.remove()


def test_ids_without_a_label_are_counted_once() -> None:
    labels: dict[str, str | None] = {"x": "a", "y": "b"}
    with pytest.warns(SuspectInputWarning, match=r"1 of 3 ids have no label, such as 'z'"):
        vldebias.rerank([0.9, 0.8, 0.7], 2, ids=["x", "y", "z"], labels=labels)
    vldebias.rerank([0.9, 0.8, 0.7], 2, ids=["x", "y", "z"], labels=labels | {"z": None})


EVALUATION = (
    "vldebias.evaluate(model, features, attribute='gender', tokenizer=tokenizer, methods='orth'"
)


@pytest.mark.filterwarnings("ignore::Warning")
@pytest.mark.parametrize(
    ("mistake", "advice", "follow"),
    [
        (
            f"{EVALUATION})",
            r"no column 'gender'.*; pass its values in place of its name, or labels=$",
            f"{EVALUATION}, k=5, labels={{'gender': ['female', 'male'] * 25}})",
        ),
        (
            "vldebias.rerank([0.9, 0.8, 0.7], 2, labels=[['a', 'x'], ['b', 'y'], ['a', 'y']])",
            r"got the list \['a', 'x'\].*mapping from column to labels",
            "vldebias.rerank([0.9, 0.8, 0.7], 2, labels={'one': list('aba'), 'two': list('xyy')})",
        ),
        (
            "vldebias.rerank([0.9, 0.8], 2, ids=[1, 2], labels={'1': 'a', '2': 'b'})",
            r"no id has a label; expected keys such as 1, got '1'",
            "vldebias.rerank([0.9, 0.8], 2, ids=[1, 2], labels={1: 'a', 2: 'b'})",
        ),
        (
            "vldebias.CalibratedProjection()(torch.eye(4))",
            r"call \.fit\(pairs, spurious\) first",
            "vldebias.CalibratedProjection().fit(torch.eye(4)[None, :2], None)(torch.eye(4))",
        ),
        (
            "vldebias.balance_prompts(['a nurse'], {'female': 0.5, 'male': 0.5})",
            r"got the shares .*; pass the shares as shares=$",
            "vldebias.balance_prompts(['a nurse'], 'gender', shares={'female': 0.5, 'male': 0.5})",
        ),
    ],
)
def test_advice_in_python_that_is_followed_leads_on(mistake: str, advice: str, follow: str) -> None:
    model, _, tokenizer = load_clip()
    features = np.random.default_rng(0).normal(size=(50, 256)).astype("float32")
    names = {"vldebias": vldebias, "torch": torch, "features": features}
    names |= {"model": model, "tokenizer": tokenizer}
    with pytest.raises(VldebiasError, match=advice):
        eval(mistake, names)
    eval(follow, names)
