"""Run the nodes in a real ComfyUI on the CPU, and check their output.

    COMFYUI=DIR COMFYUI_PYTHON=DIR/.venv/bin/python python tests/integrations/comfyui/run_comfyui.py

COMFYUI is a checkout of Comfy-Org/ComfyUI. COMFYUI_PYTHON is a Python with its requirements,
pydantic and pyyaml; by default, the one that runs this script. Models are tiny and random: the
script shows that each picture gets its prompt, and nothing about the pictures of real models.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from safetensors.numpy import load_file

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from tests.integrations.comfyui.server import (  # noqa: E402
    CHECKPOINT,
    NODES,
    Comfy,
    Graph,
    RefusedError,
    as_graph,
    started,
)

CEO = "A photo of a CEO in an office"
SIZE = 64  # side length of a picture in pixels
STEPS = 2
# Rows of a batch and single pictures differ because float32 sums are computed in a different order.
CLOSE = 1e-3
FAMILIES = ("SD 2", "SDXL", "SD 3", "Flux")
# 74 tokens: "a pale nurse" keeps it within a block of 75, and "a dark-skinned nurse" exceeds it.
LONG = "a nurse" + ", a red roof under tall green trees" * 9


def check(is_true: bool, message: str) -> None:
    if not is_true:
        raise AssertionError(message)


def node(kind: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": kind, "inputs": inputs}


def text_node(**changed: Any) -> dict[str, Any]:
    inputs = {"prompt": CEO, "attribute": "gender", "images": 4, "shares": "", "seed": 7}
    return node("BalancedPromptsText", **(inputs | changed))


def shown(comfy: Comfy, text: dict[str, Any]) -> tuple[list[str], list[str], list[str]]:
    """Return prompts, values and reasons from a text node, as shown by Preview Any."""
    graph = {"1": text}
    for slot in (0, 1, 3):
        graph[str(10 + slot)] = node("PreviewAny", source=["1", slot])
    done = comfy.run(graph)
    check(not done.error, done.error)
    lists = [done.outputs[str(10 + slot)]["text"] for slot in (0, 1, 3)]
    return lists[0], lists[1], lists[2][0].splitlines()


def check_text(comfy: Comfy) -> None:
    prompts, values, reasons = shown(comfy, text_node())
    for row in zip(prompts, values, reasons, strict=True):
        print("  ", *row, sep=" | ")
    check(Counter(values) == {"female": 2, "male": 2}, f"{values}")
    expected = [f"A photo of a {value} CEO in an office" for value in values]
    check(prompts == expected, f"{prompts}")

    _, values, _ = shown(comfy, text_node(shares="female: 75, male: 25"))
    print("   shares female: 75, male: 25 ->", dict(Counter(values)))
    check(Counter(values) == {"female": 3, "male": 1}, f"{values}")

    syntax = "{red|blue} hat, (CEO:1.2), <lora:film:0.8> BREAK __colour__, embedding:soft"
    prompts, _, _ = shown(comfy, text_node(prompt=syntax))
    print("  ", syntax, "->")
    for text in prompts:
        print("      ", text)
        check("female CEO:1.2" in text or "male CEO:1.2" in text, text)
        rest = text.replace("female ", "").replace("male ", "")
        check(rest in (syntax.replace("{red|blue}", colour) for colour in ("red", "blue")), text)

    prompts, values, reasons = shown(comfy, text_node(prompt="Marie Curie in her laboratory"))
    print("  ", prompts[0], "->", reasons[0])
    check(set(prompts) == {"Marie Curie in her laboratory"} and set(values) == {""}, f"{prompts}")

    for attribute in ("gender", "age", "race", "fairface-race", "skin-tone"):
        _, values, _ = shown(comfy, text_node(attribute=attribute, images=35))
        counts = Counter(values)
        print(f"   {attribute}, 35 images:", dict(counts))
        check(max(counts.values()) - min(counts.values()) <= 1, f"{counts}")


def check_queue(comfy: Comfy) -> None:
    """Run single pictures, like a queue with "increment", with the same text and with changing
    text."""
    prompts = {"one text": [CEO] * 41, "another text in each": [f"{CEO}, {i}" for i in range(41)]}
    for name, texts in prompts.items():
        values = []
        for index, text in enumerate(texts):
            _, (value,), _ = shown(comfy, text_node(prompt=text, images=1, index=index))
            values.append(value)
        counts = Counter(values)
        print(f"   41 runs of one picture, {name}:", dict(counts))
        check(abs(counts["female"] - counts["male"]) <= 2, f"{counts}")


def check_lists(comfy: Comfy) -> None:
    """Send a list of prompts through two nodes: the first one assigns gender, and the node under
    test assigns race."""
    first = text_node(images=10)
    second = text_node(prompt=["1", 0], attribute="race", images=1)
    graph = {"1": first, "2": second, "3": node("PreviewAny", source=["1", 1])}
    for slot in (0, 1, 2):
        graph[str(10 + slot)] = node("PreviewAny", source=["2", slot])
    encode = second["inputs"] | {"clip": ["4", 1]}
    graph["4"] = node("CheckpointLoaderSimple", ckpt_name=CHECKPOINT)
    graph["5"] = node("BalancedPromptsEncode", **encode)
    graph["6"] = node("PreviewAny", source=["5", 1])
    graph["7"] = node("PreviewAny", source=["5", 2])
    done = comfy.run(graph)
    check(not done.error, done.error)
    prompts, races, seeds = (done.outputs[str(10 + slot)]["text"] for slot in (0, 1, 2))
    counts = Counter(done.outputs["3"]["text"] + races)
    print("   gender, then race, 10 images:", dict(counts))
    print("  ", prompts[0])
    print(f"   rows of one conditioning: {done.outputs['6']['text'][0]}")
    check(counts["female"] == counts["male"] == 5, f"{counts}")
    check({counts[race] for race in set(races)} == {2} and len(set(races)) == 5, f"{counts}")
    check(len(set(seeds)) == 10, f"{seeds}")
    check(done.outputs["6"]["text"] == ["10"], f"{done.outputs['6']}")
    check(done.outputs["7"]["text"] == prompts, f"{done.outputs['7']}")


def example(comfy: Comfy, name: str) -> Graph:
    """Return an example workflow with the tiny checkpoint, small pictures and few steps."""
    saved = json.loads((NODES / "example_workflows" / f"{name}.json").read_text())
    graph = as_graph(saved, comfy.call("/object_info"))
    small = {"ckpt_name": CHECKPOINT, "width": SIZE, "height": SIZE, "steps": STEPS}
    for part in graph.values():
        for key in small.keys() & part["inputs"].keys():
            part["inputs"][key] = small[key]
    return graph


def pictures(comfy: Comfy, graph: Graph, prefix: str) -> list[np.ndarray]:
    """Run a workflow and return the pictures it saved."""
    for part in graph.values():
        if part["class_type"] == "SaveImage":
            part["inputs"]["filename_prefix"] = prefix
    done = comfy.run(graph)
    check(not done.error, done.error)
    saved = []
    for path in comfy.output_files(prefix):
        with Image.open(path, formats=["PNG"]) as picture:
            saved.append(np.asarray(picture.convert("RGB")).astype(int))
    return saved


def check_pictures(comfy: Comfy) -> None:
    """Run the example workflows, and compare each picture with one generated from its prompt
    alone."""
    graph = example(comfy, "balance-prompt")
    made = pictures(comfy, graph, "list")
    check(len(made) == 4, f"{len(made)} images")
    balanced = graph["2"]["inputs"]
    prompts, values, _ = shown(comfy, node("BalancedPromptsText", **balanced))
    for row, (prompt, value) in enumerate(zip(prompts, values, strict=True)):
        graph["3"]["inputs"]["text"] = prompt
        graph["6"]["inputs"]["seed"] = balanced["seed"] + row
        (alone,) = pictures(comfy, graph | {"2": graph["2"]}, f"alone{row}")[:1]
        difference = int(np.abs(made[row] - alone).max())
        print(f"   picture {row + 1} ({value}): {difference} of 255 from its prompt alone")
        check(difference <= 1, f"{difference}")
    apart = np.abs(made[0] - made[1]).max()
    check(apart > 10, f"the pictures do not differ: {apart}")

    made = pictures(comfy, example(comfy, "one-sampler-call"), "batch")
    print(f"   one sampler call: {len(made)} images of {made[0].shape[1]} x {made[0].shape[0]}")
    check(len(made) == 4, f"{len(made)} images")


def sampled(graph: Graph, name: str, positive: Any, latent: Any, cfg: float) -> None:
    """Add a sampler and an output file for its latents to a graph."""
    graph[name] = node(
        "KSampler",
        model=["model", 0],
        positive=positive,
        negative=["negative", 0],
        latent_image=latent,
        seed=3,
        steps=STEPS,
        cfg=cfg,
        sampler_name="euler",
        scheduler="simple",
        denoise=1.0,
    )
    graph[f"save-{name}"] = node("SaveLatent", samples=[name, 0], filename_prefix=name)


def loader(family: str) -> dict[str, Any]:
    if family == "SD 1":
        return node("CheckpointLoaderSimple", ckpt_name=CHECKPOINT)
    return node("TinyModel", family=family)


def check_rows(comfy: Comfy, family: str, prompt: str = CEO, attribute: str = "gender") -> None:
    """Compare each row in a batch with the single picture generated for its prompt from the same
    noise."""
    text = text_node(prompt=prompt, attribute=attribute)
    prompts, values, _ = shown(comfy, text)
    name = f"{family} {len(prompt)}".replace(" ", "")
    encode = text["inputs"] | {"clip": ["model", 1]}
    graph: Graph = {
        "model": loader(family),
        "negative": node("CLIPTextEncode", clip=["model", 1], text="blurry"),
        "balanced": node("BalancedPromptsEncode", **encode),
        "latent": node("EmptyLatentImage", width=SIZE, height=SIZE, batch_size=["balanced", 1]),
    }
    graph["tokens"] = node("TokenCounts", conditioning=["balanced", 0])
    graph["show-tokens"] = node("PreviewAny", source=["tokens", 0])
    cfg = 1.0 if family == "Flux" else 4.0
    sampled(graph, f"{name}-batch", ["balanced", 0], ["latent", 0], cfg)
    for row, line in enumerate(prompts):
        graph[f"text{row}"] = node("CLIPTextEncode", clip=["model", 1], text=line)
        graph[f"tokens{row}"] = node("TokenCounts", conditioning=[f"text{row}", 0])
        graph[f"show-tokens{row}"] = node("PreviewAny", source=[f"tokens{row}", 0])
        graph[f"latent{row}"] = node(
            "LatentFromBatch", samples=["latent", 0], batch_index=row, length=1
        )
        sampled(graph, f"{name}-{row}", [f"text{row}", 0], [f"latent{row}", 0], cfg)
        # The same noise must give a different picture with the prompt for a different value,
        # otherwise the comparison would not show anything.
        other_text = f"text{next(i for i, value in enumerate(values) if value != values[row])}"
        sampled(graph, f"{name}-{row}-other", [other_text, 0], [f"latent{row}", 0], cfg)
    done = comfy.run(graph)
    check(not done.error, done.error)
    batch = latents(comfy, f"{name}-batch")
    check(len(batch) == len(prompts), f"{batch.shape}")
    lengths = [int(done.outputs[f"show-tokens{row}"]["text"][0]) for row in range(len(prompts))]
    length = int(done.outputs["show-tokens"]["text"][0])
    if attribute == "skin-tone":
        check(len(set(lengths)) > 1, f"the prompts have equal lengths: {lengths}")
    differences = []
    distances = []
    for row in range(len(prompts)):
        scale = batch[row].std()
        alone = latents(comfy, f"{name}-{row}")[0]
        other_value = latents(comfy, f"{name}-{row}-other")[0]
        differences.append(float(np.abs(batch[row] - alone).max() / scale))
        distances.append(float(np.abs(batch[row] - other_value).max() / scale))
    print(
        f"   {family}, {values}, states of {lengths} tokens in rows of {length}: rows differ from"
        f" single pictures by at most {max(differences):.1e} standard deviations, from those of"
        f" another value by at least {min(distances):.1e}"
    )
    check(max(differences) <= CLOSE, f"{differences}")
    check(min(distances) > 10 * CLOSE, f"{distances}")


def latents(comfy: Comfy, name: str) -> np.ndarray:
    (path,) = [file for file in comfy.output_files(name) if file.suffix == ".latent"]
    return load_file(path)["latent_tensor"].astype(np.float64)


def check_refused(comfy: Comfy) -> None:
    """Send invalid input of each kind, and check that it is rejected with an explanation before
    anything runs."""
    bad: dict[str, dict[str, Any]] = {
        "shares: no number": {"shares": "female 75"},
        "attribute": {"attribute": "gendre"},
        "images: 0": {"images": 0},
        "images: 65": {"images": 65},
        "index: -1": {"index": -1},
    }
    for name, inputs in bad.items():
        for kind in ("BalancedPromptsText", "BalancedPromptsEncode"):
            part = text_node(**inputs)
            part["class_type"] = kind
            graph = {"1": part, "2": node("PreviewAny", source=["1", 3])}
            if kind == "BalancedPromptsEncode":
                part["inputs"]["clip"] = ["3", 1]
                graph["3"] = node("CheckpointLoaderSimple", ckpt_name=CHECKPOINT)
            before = comfy.runs()
            try:
                comfy.send(graph)
            except RefusedError as error:
                sentence = str(error).splitlines()[-1]
            else:
                raise AssertionError(f"{name}: ran")
            check(comfy.runs() == before, f"{name}: queued")
        print(f"   {name}: {sentence}")


def check_refused_by_name(comfy: Comfy) -> None:
    """Request one row per image from a family that does not support it."""
    words = ", a red roof under tall green trees" * 40
    cases = {"Stable Audio": CEO, "Flux": "a nurse" + words}
    for family, prompt in cases.items():
        encode = text_node(prompt=prompt, attribute="skin-tone", images=5)["inputs"]
        graph = {
            "1": node("TinyModel", family=family),
            "2": node("BalancedPromptsEncode", clip=["1", 1], **encode),
            "3": node("PreviewAny", source=["2", 3]),
        }
        done = comfy.run(graph)
        print(f"   {family}: {done.error}")
        check("BalancedPromptsEncode" in done.error and "Balance Prompt" in done.error, done.error)


def run(comfyui: Path, python: str, folder: Path, words: Sequence[str] = ()) -> None:
    """Start ComfyUI once and run all checks, or those whose name contains one of the given
    words."""
    checks: dict[str, Callable[[Comfy], None]] = {
        "Balance Prompt": check_text,
        "A queue with increment": check_queue,
        "A list of prompts": check_lists,
        "Example workflows": check_pictures,
        "SD 1, a row per image": lambda comfy: check_rows(comfy, "SD 1"),
        "SD 1, prompts of one and of two blocks": lambda comfy: check_rows(
            comfy, "SD 1", LONG, "skin-tone"
        ),
    }
    for family in FAMILIES:
        checks[f"{family}, a row per image"] = lambda comfy, name=family: check_rows(comfy, name)
    checks["Refused before anything runs"] = check_refused
    checks["Refused by name"] = check_refused_by_name
    if words:
        checks = {name: checks[name] for name in checks if any(word in name for word in words)}
    with started(comfyui, python, folder) as comfy:
        stats = comfy.call("/system_stats")["system"]
        print(f"ComfyUI {stats['comfyui_version']}, torch {stats['pytorch_version']}")
        for name, function in checks.items():
            begin = time.monotonic()
            print(f"\n{name}")
            function(comfy)
            print(f"   passed, {time.monotonic() - begin:.0f} s", flush=True)


def main() -> None:
    place = os.environ.get("COMFYUI")
    if not place:
        sys.exit("COMFYUI is not set: the folder of a checkout of Comfy-Org/ComfyUI")
    python = os.environ.get("COMFYUI_PYTHON") or sys.executable
    with tempfile.TemporaryDirectory() as folder:
        run(Path(place).resolve(), python, Path(folder), sys.argv[1:])
    print("\nall passed")


if __name__ == "__main__":
    main()
