"""Test that the answer to a first mistake says what to do, and that doing so works.

Each case is what somebody types, a part of the answer, and what they type next if they follow the
answer literally, with files in place that the answer asks for. The mistakes were written from the
signatures and `--help`, before anybody read the code that answers them.
"""

import shlex
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import pandas as pd
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import vldebias
from tests.transformers_clip import load_transformers_clip
from vldebias.cli import app
from vldebias.data import open_data
from vldebias.errors import VldebiasError
from vldebias.hosts import Attachment
from vldebias.miniature import load_clip, load_pipeline

PIPELINE = 'debias(load_host(pipeline="miniature"), "gender")'
ATTACHED = 'debias(pipe, "gender")'
EDITED = 'debias(model, "gender", method="difference", tokenizer=tokenizer)'
EVALUATED = (
    'evaluate(model, features, attribute="gender", tokenizer=tokenizer, labels=labels,'
    " methods='none', resamples=20)"
)
BALANCED = 'balance_prompts(["A photo of a doctor."], "gender").prompts'
GRID = 'grid(pipe, "gender", prompts=["a nurse"], seeds=range(1), steps=1)'
RERANKED = 'rerank([0.9, 0.8, 0.7], 2, labels=["a", "b", "a"])'
HATS = 'make_prompt_set("hat", {"with": ["hatted"], "without": ["bare"]}, ["doctor", "nurse"])'
GENERATE = 'vldebias generate "A photo of a doctor."'
SHORT = "--images 1 --steps 1"

MISTAKES = [
    # Wrong objects in place of a model or pipeline.
    (
        'debias("runwayml/stable-diffusion-v1-5", "gender")',
        "vldebias.load_host(pipeline='runwayml/stable-diffusion-v1-5')",
        "debias(load_host(pipeline='runwayml/stable-diffusion-v1-5'), 'gender')",
    ),
    ('debias("clip", "gender")', "vldebias.load_host('clip')", 'load_host("clip")'),
    ('debias(pipe.unet, "gender")', "pass the pipeline", ATTACHED),
    # A cell of a notebook that runs twice.
    (
        '[debias(pipe, "gender"), debias(pipe, "gender")]',
        "call .remove() on it first (vldebias.attachment_of(model) returns it)",
        'attachment_of(pipe).remove() or debias(pipe, "gender")',
    ),
    ('debias((model, None, tokenizer), "gender")', "pass its first item, the model", EDITED),
    ('debias(model.state_dict(), "gender")', "load it into the model and pass that", EDITED),
    ('debias(None, "gender")', "load_host(pipeline='miniature')", PIPELINE),
    ('debias(type(pipe), "gender")', "expected an instance", ATTACHED),
    ('debias(load_host, "gender")', "load_host(pipeline='miniature')", PIPELINE),
    ('debias([], "gender")', "expected pipelines", 'debias([pipe], "gender")'),
    ('fit_projections([model], "gender", method="cali")', "pass the model", EDITED),
    (
        'debias_queries("ViT-B-32", "gender")',
        "expected a function from a list of texts",
        'debias_queries(embed_texts, "gender")',
    ),
    ('debias_queries(model, "gender")', "vldebias.debias(model, attribute)", EDITED),
    (
        'rerank([0.9, 0.8], 2, features=features[:2], attribute="gender", model="clip")',
        "vldebias.load_host('clip')",
        'load_host("clip")',
    ),
    ("load_host(model)", "passed to vldebias.debias as it is", EDITED),
    ("load_edit(model)", "expected a folder written by save_pretrained", 'load_edit("edit")'),
    ('attachment_of("pipe")', "expected the model or pipeline", "attachment_of(pipe)"),
    ("compare(1, 2)", "expected two results or paths of results", "compare(result, result)"),
    (
        'debias(model, "edit", tokenizer=tokenizer)',
        "load_edit('edit')",
        "debias(model, load_edit('edit'), tokenizer=tokenizer)",
    ),
    ('debias(load_edit("edit"), "gender")', "debias(model, edit)", EDITED),
    ('debias("gender", model)', "the order is (host, attribute)", EDITED),
    (
        'debias_queries(model.encode_text, "gender", method="difference")',
        "lambda texts: model.encode_text(tokenizer(texts))",
        'debias_queries(lambda texts: model.encode_text(tokenizer(texts)), "gender")',
    ),
    ('evaluate(pipe, features, attribute="gender")', '"generation"', EVALUATED),
    # Wrong attributes.
    ('debias(pipe, ["male", "female"])', "expected the prompt set, 'gender'", ATTACHED),
    (
        'debias(pipe, {"male": ["man"], "female": ["woman"]})',
        "vldebias.make_prompt_set('custom', {'male': ['man'], 'female': ['woman']}",
        "vldebias.make_prompt_set('custom', {'male': ['man'], 'female': ['woman']},"
        " concepts=['doctor', 'nurse'])",
    ),
    (
        'debias(pipe, "gender,age")',
        "pass a list, ['gender', 'age']",
        "debias(pipe, ['gender', 'age'])",
    ),
    ('debias(pipe, "male")', "expected the prompt set, 'gender'", ATTACHED),
    ('debias(pipe, "sex")', "did you mean 'gender'?", ATTACHED),
    ("debias(pipe, 2)", "such as 'gender'", ATTACHED),
    ("debias(pipe, [])", "expected at least one prompt set", ATTACHED),
    (
        'debias(pipe, "prompts.txt")',
        "vldebias prompts balance prompts.txt --attribute gender",
        "vldebias prompts balance prompts.txt --attribute gender",
    ),
    ('debias(pipe, "A photo of a doctor.")', "vldebias.balance_prompts(prompts", BALANCED),
    (
        'balance_prompts(["A photo of a doctor."], ["woman", "man"])',
        "expected the prompt set, 'gender'",
        BALANCED,
    ),
    ('balance_prompts(["A photo of a doctor."], "genders")', "did you mean 'gender'?", BALANCED),
    ('neutral_texts(["a man"], "man")', "set, 'gender'", 'neutral_texts(["a man"], "gender")'),
    ('load_prompts(["gender", "age"])', "such as 'gender'", 'load_prompts("gender")'),
    # Wrong settings.
    (
        'debias(pipe, "gender", shares=[0.5, 0.5])',
        "such as {'female': 0.5, 'male': 0.5}",
        "debias(pipe, 'gender', shares={'female': 0.5, 'male': 0.5})",
    ),
    ('debias(pipe, "gender", keep_stated="false")', "expected True or False", ATTACHED),
    (
        'debias(pipe, "gender", shares={"women": 0.5, "men": 0.5})',
        "['female', 'male']",
        "debias(pipe, 'gender', shares={'female': 0.5, 'male': 0.5})",
    ),
    (
        'debias(pipe, "gender", strength="0.5")',
        "a number in [0, 1]",
        'debias(pipe, "gender", method="cali", strength=0.5)',
    ),
    (
        'debias(pipe, "gender", method=["balanced-prompts"])',
        "did you mean 'balanced-prompts'?",
        "debias(pipe, 'gender', method='balanced-prompts')",
    ),
    (
        'debias(pipe, "gender", on_call="print")',
        "expected a function that takes one record",
        'debias(pipe, "gender", on_call=print)',
    ),
    (
        'debias(model, "gender", method="difference", tokenizer="openai/clip-vit-base-patch32")',
        "expected a tokenizer",
        EDITED,
    ),
    ('debias(model, "gender", method="difference")', "pass tokenizer=", EDITED),
    (
        'debias(model, "gender", tokenizer=tokenizer, reference="features.npz")',
        "vldebias.data.load_embeddings(FILE)[0]",
        'debias(model, "gender", tokenizer=tokenizer,'
        ' reference=vldebias.data.load_embeddings("features.npz")[0])',
    ),
    (
        'debias(model, "gender", method="cali", tokenizer=tokenizer, lam="high")',
        "expected finite numbers >= 0",
        'debias(model, "gender", method="cali", tokenizer=tokenizer, lam=100.0)',
    ),
    (
        'debias(pipe, prompts="gender")',
        "did you mean 'attribute'?",
        'debias(pipe, attribute="gender")',
    ),
    # Wrong prompts.
    ('balance_prompts({"prompt": ["A doctor."]}, "gender")', "a list of strings", BALANCED),
    (
        'balance_prompts(table, "gender")',
        "such as frame['prompt']",
        "balance_prompts(table['prompt'], 'gender').prompts",
    ),
    ('balance_prompts([1, 2], "gender")', "a list of strings", BALANCED),
    ('balance_prompts(["A photo of a doctor."], pipe)', "such as 'gender'", BALANCED),
    ('balance_prompts([["A photo of a doctor."]], "gender")', "a list of strings", BALANCED),
    (
        'balance_prompts(["A photo of a doctor."], "gender", seed="42")',
        "expected a whole number",
        'balance_prompts(["A photo of a doctor."], "gender", seed=42).prompts',
    ),
    ('list(balance_prompts(["A photo of a doctor."], "gender"))', "`.prompts`", BALANCED),
    ("neutral_texts(3)", "a list of strings", 'neutral_texts(["a man"])'),
    ('grid(pipe, "gender", prompts=["a nurse"], seeds=4)', "seeds=range(4)", GRID),
    ('grid(pipe, "gender", texts=["a nurse"])', "did you mean 'prompts'?", GRID),
    ('grid(pipe, "gender", prompts=["a nurse"], steps="1")', "a whole number", GRID),
    ('grid(pipe, "gender", prompts=3)', "a list of strings", GRID),
    (
        'grid(pipe, "gender", methods="balanced-prompt", prompts=["a nurse"])',
        "did you mean 'balanced-prompts'?",
        'grid(pipe, "gender", methods="balanced-prompts", prompts=["a nurse"], seeds=[0], steps=1)',
    ),
    # Searches, evaluation, data.
    ('rerank([0.9, 0.8, 0.7], "2", labels=["a", "b", "a"])', "a whole number", RERANKED),
    ('rerank([0.9, 0.8, 0.7], 2, labels="gender")', "a group for each candidate", RERANKED),
    ("rerank([0.9, 0.8], 2, features=features[:2], index=features)", "queries.index", RERANKED),
    (
        'rerank([0.9, 0.8, 0.7], 2, labels=["a", "b", "a"], shares=[0.5, 0.5])',
        "such as {'a': 0.5, 'b': 0.5}",
        "rerank([0.9, 0.8, 0.7], 2, labels=['a', 'b', 'a'], shares={'a': 0.5, 'b': 0.5})",
    ),
    (
        'evaluate(model, "shop.csv", attribute="gender", tokenizer=tokenizer)',
        "the model has no preprocessing; pass features (n, d)",
        EVALUATED,
    ),
    (
        'evaluate(model, photo, attribute="gender")',
        "the output of a model's image tower",
        EVALUATED,
    ),
    (
        'evaluate(model, features, attribute="gender", methods=3)',
        "['none', 'default']",
        EVALUATED.replace("'none'", "['none', 'default']"),
    ),
    ('open_data("shop.csv")', "with 'manifest'", "open_data('manifest', 'shop.csv')"),
    (
        'compare("before.json", "after.json")',
        "expected a result, which `vldebias eval run` writes, or its folder",
        'compare("first", "second/result.json")',
    ),
    (
        'diagnose("shop.csv")',
        "pass vldebias.data.load_embeddings(FILE)[0]",
        'diagnose(vldebias.data.load_embeddings("features.npz")[0], "gender")',
    ),
    (
        'diagnose(features, groups="gender")',
        "pass its values in place of its name",
        'diagnose(features, groups=labels["gender"])',
    ),
    (
        'vldebias.data.save_embeddings("saved.npz", features)',
        "Embeddings.from_arrays(features, labels)",
        'vldebias.data.save_embeddings("a.npz", vldebias.data.Embeddings.from_arrays(features))',
    ),
    ('make_prompt_set("hat", {"hat": ["hatted"]}, ["doctor", "nurse"])', "at least 2", HATS),
    ('make_prompt_set("hat", ["hatted", "bare"], ["doctor"])', "expected a mapping", HATS),
    (
        'PromptSet(name="hat", groups=[["a man", "a woman"]])',
        "did you mean 'variants'?",
        'PromptSet(name="hat", variants=[["a man", "a woman"]])',
    ),
    (
        "losses.info_nce([1, 2], [3, 4], temperature=0.1)",
        "expected a tensor (n, d)",
        "losses.info_nce(torch.eye(4), torch.eye(4), temperature=0.1)",
    ),
    # Files and folders.
    ('load_host("sd")', "load_host(pipeline='sd')", "load_host(pipeline='sd')"),
    ('load_host(pipeline="clip")', "load_host('clip')", "load_host('clip')"),
    ('load_host("clipp")', "did you mean 'clip'?", 'load_host("clip")'),
    ('load_host("clip/model.safetensors")', "pass its folder, 'clip'", "load_host('clip')"),
    (
        'load_host("notok")',
        "tokenizer.save_pretrained('notok')",
        "clip_tokenizer.save_pretrained('notok') and load_host('notok')",
    ),
    ('load_host("tiny", "page.pt")', "download the file itself", 'load_host("tiny", "tiny.pt")'),
    ('load_host("tiny", "pointer.pt")', "run `git lfs pull`", 'load_host("tiny", "tiny.pt")'),
    # "clip" is the folder to which the model was downloaded.
    (
        'load_host("someone/some-model")',
        "hf download someone/some-model --local-dir DIR",
        'load_host("clip")',
    ),
    ('load_host("miniature", device="gpu")', "auto, cpu", 'load_host("miniature", device="cpu")'),
    (
        'load_host("miniature", dtype="fp16")',
        "float16",
        'load_host("miniature", dtype="float16")',
    ),
    ('load_edit("photos")', "expected the folder of a saved edit", 'load_edit("edit")'),
    ('load_edit("clip")', "load_host('clip')", "load_host('clip')"),
    # On the command line.
    (GENERATE, "Missing option '--attribute'", f"{GENERATE} --attribute gender {SHORT}"),
    (
        "vldebias generate prompts.txt --attribute gender",
        "vldebias prompts balance prompts.txt --attribute gender",
        "vldebias prompts balance prompts.txt --attribute gender",
    ),
    (
        f"{GENERATE} --attribute gender,age",
        "--attribute gender --attribute age",
        f"{GENERATE} --attribute gender --attribute age {SHORT}",
    ),
    (f"{GENERATE} --attribute gender --pipeline clip", "load_host('clip')", "load_host('clip')"),
    (
        f"{GENERATE} --attribute gender --pipeline sdd",
        "did you mean 'sd'?",
        f"{GENERATE} --attribute gender --pipeline sd {SHORT}",
    ),
    (
        "vldebias audit prompts.txt --attribute gender --model sd",
        "--pipeline DIR --measure 8",
        "vldebias audit prompts.txt --attribute gender --pipeline sd",
    ),
    (
        "vldebias prompts balance prompts.txt --attribute gender --out b.txt",
        "add > FILE",
        "vldebias prompts balance prompts.txt --attribute gender",
    ),
    (
        "vldebias train --data s3://bucket/pairs --model miniature",
        "download them, and pass their folder",
        "vldebias train --data pairs --model miniature --tune heads --batch-size 2 --steps 1"
        " --out run",
    ),
    (
        "vldebias eval compare before after",
        "before: no such file or folder",
        "vldebias eval compare first second",
    ),
    (
        "vldebias diagnose shop.csv",
        "numpy.savez",
        "vldebias diagnose features.npz --label-column gender --out d",
    ),
    (
        "vldebias debias waterbirds --model miniature --reference photos/0.png --out e",
        "expected a folder, a table of images, a feature file",
        "vldebias debias waterbirds --model miniature --reference features.npz --out e",
    ),
    (
        "vldebias debias gender --model miniature --method difference --out first",
        "choose another folder",
        "vldebias debias gender --model miniature --method difference --out another",
    ),
    (
        "vldebias eval edits shop.csv",
        "--column before=NAME",
        "vldebias eval edits turns.csv --column before=original --column after=edited",
    ),
    (
        "vldebias label photo --attribute gender",
        "did you mean 'photos'?",
        "vldebias label photos --attribute gender",
    ),
]


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Write the files of the cases to the working directory, and yield the names that they use."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the features are random
        patch.chdir(tmp_path_factory.mktemp("user"))
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        features = np.random.default_rng(0).normal(size=(40, 256)).astype("float32")
        photo = Image.new("RGB", (32, 32))
        Path("prompts.txt").write_text("A photo of a doctor.\nA photo of a nurse.\n")
        Path("shop.csv").write_text("file,colour\nphotos/0.png,red\nphotos/1.png,blue\n")
        Path("photos").mkdir()
        Path("pairs").mkdir()
        for number in range(6):
            photo.save(f"photos/{number}.png")
            photo.save(f"pairs/{number}.png")
            Path(f"pairs/{number}.txt").write_text(f"A photo of person {number}.")
        pairs = [f"photos/{number}.png,photos/{5 - number}.png\n" for number in range(6)]
        Path("turns.csv").write_text("".join(["original,edited\n", *pairs]))
        Path("page.pt").write_text("<!DOCTYPE html><html>Sign in</html>")
        Path("pointer.pt").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\n")
        model, tokenizer, processor = load_transformers_clip()
        for folder, parts in {
            "clip": (model, tokenizer, processor),
            "notok": (model, processor),
            "sd": (load_pipeline(),),
            "runwayml/stable-diffusion-v1-5": (load_pipeline(),),  # a clone of a repository
        }.items():
            for part in parts:
                part.save_pretrained(folder)
        clip, _, tokenize = load_clip()
        labels = {"gender": ["female", "male"] * 20}
        columns: dict[str, Any] = {"features": features, "label.gender": labels["gender"]}
        np.savez("features.npz", **columns)
        fit = vldebias.fit_projections(clip, "gender", method="difference", tokenizer=tokenize)
        fit.only.save_pretrained("edit")
        result = vldebias.evaluate(
            clip,
            features,
            attribute="gender",
            tokenizer=tokenize,
            labels=labels,
            methods="none",
            resamples=20,
        )
        for name in ("first", "second"):
            result.write(f"{name}/result.json")
        register_tiny_architecture(patch)
        torch.save(open_clip.create_model("tiny").state_dict(), "tiny.pt")
        # The page for labelling would be served until somebody stops it.
        patch.setattr("apps.label.page.serve", lambda *_, **__: None)
        yield {
            **{name: getattr(vldebias, name) for name in vldebias.__all__},
            **{"vldebias": vldebias, "losses": vldebias.losses, "open_data": open_data},
            **{"model": clip, "tokenizer": tokenize, "pipe": load_pipeline()},
            **{"features": features, "photo": photo, "labels": labels, "result": result},
            **{"torch": torch, "clip_tokenizer": tokenizer},
            "embed_texts": lambda texts: clip.encode_text(tokenize(texts)),
            "table": pd.DataFrame({"prompt": ["A photo of a doctor."]}),
        }


def register_tiny_architecture(patch: pytest.MonkeyPatch) -> None:
    """Register a small architecture of open_clip until the patch ends."""
    vision = {"image_size": 32, "layers": 1, "width": 16, "head_width": 8, "patch_size": 16}
    text = {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1}
    facts = {"embed_dim": 16, "vision_cfg": vision, "text_cfg": text}
    patch.setitem(open_clip.factory._MODEL_CONFIGS, "tiny", facts)


def run(typed: str, names: dict[str, Any]) -> str:
    """Run a line of Python, or a command, which prints its error or raises it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if not typed.startswith("vldebias "):
            result = eval(typed, dict(names))
            if isinstance(result, Attachment):
                result.remove()
            return ""
        ran = CliRunner().invoke(app, shlex.split(typed)[1:])
    if isinstance(ran.exception, VldebiasError):
        raise ran.exception
    if ran.exit_code:
        assert isinstance(ran.exception, SystemExit)
        raise VldebiasError(" ".join(ran.output.split()))
    return ran.output


@pytest.mark.parametrize(("typed", "answer", "then"), MISTAKES)
def test_the_answer_to_a_mistake_says_what_to_do(
    typed: str, answer: str, then: str, names: dict[str, Any]
) -> None:
    # A wrong keyword is a TypeError, as in Python, with a hint.
    with pytest.raises((VldebiasError, TypeError)) as caught:
        run(typed, names)
    assert answer in str(caught.value)
    run(then, names)


def test_there_are_a_hundred_mistakes_and_no_two_are_the_same() -> None:
    assert len({typed for typed, *_ in MISTAKES}) == len(MISTAKES) >= 100
