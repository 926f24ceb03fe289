"""Provide stand-ins for what the documentation's commands need but a test machine lacks: weights,
data sets and users' own files.

They are small and have the names that the documentation prints.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle, islice, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import open_clip
import pandas as pd
import pytest
import transformers
import yaml
from diffusers import DDIMScheduler
from PIL import Image

from apps.shares.answers import AnnotationLog
from tests.data.data_parts import AGES, RACES, celeba, fairface, save, waterbirds
from tests.fewer import few
from tests.tiny_llava import load_llava
from tests.transformers_clip import load_transformers_clip
from vldebias import miniature
from vldebias.judge.judges import MiniatureJudge
from vldebias.miniature import open_world
from vldebias.miniature.words import WORLDS
from vldebias.prompts import load_prompts
from vldebias.study.suite import Suite, load_suite
from vldebias.study.tasks.generation import GenerationTask
from vldebias.study.tasks.groups import GroupsTask
from vldebias.training.settings import TrainSettings, load_settings

PEOPLE = list(product(AGES, ("Male", "Female"), RACES))
RANKED = 1026  # slightly more people than the 1,000 that FairFace's protocol ranks
DIM = 16


def use_embedded_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load the embedded models under other names: those that open_clip lists with such weights, and
    those that look like a hub id or a folder."""

    def clip(name: str, pretrained: str | None = None, **_: Any) -> tuple[Any, Any]:
        assert (name, pretrained) in open_clip.list_pretrained()
        return miniature.load_clip()[:2]

    def pipeline(name: str, **_: Any) -> Any:
        assert name == "DIR" or name.count("/") == 1
        pipe = miniature.load_pipeline()
        # This is always single precision, which suits CPUs and small models.
        monkeypatch.setattr(pipe, "to", lambda *_, **__: pipe, raising=False)
        return pipe

    model, tokenizer, images = load_transformers_clip()
    processor = SimpleNamespace(tokenizer=tokenizer, image_processor=images)
    load_processor = transformers.AutoProcessor.from_pretrained

    def processor_of(name: str, **named: Any) -> Any:
        return load_processor(name, **named) if name == "./smolvlm" else processor

    monkeypatch.setattr(open_clip, "create_model_from_pretrained", clip)
    monkeypatch.setattr(open_clip, "get_tokenizer", lambda name: miniature.load_clip()[2])
    monkeypatch.setattr("diffusers.DiffusionPipeline.from_pretrained", pipeline)
    monkeypatch.setattr("diffusers.DiffusionPipeline.load_config", lambda name, **_: {})
    monkeypatch.setattr("transformers.AutoModel.from_pretrained", lambda name, **_: model)
    monkeypatch.setattr("transformers.AutoProcessor.from_pretrained", processor_of)
    # The embedded CLIP is too unsure about its own small pictures, unlike the embedded judge.
    monkeypatch.setattr("apps.audit.pilot.suite_judge", lambda *_: MiniatureJudge().ready())


def use_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the CPU regardless of the requested device."""
    commands = ["vldebias.cli.debias", "vldebias.cli.evaluate", "apps.diagnose.commands"]
    commands += ["apps.audit.commands", "apps.demo.commands", "apps.paper.commands"]
    for module in commands:
        monkeypatch.setattr(f"{module}.device_of", lambda name: "cpu")


def use_two_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Generate pictures in two steps, because nobody looks at them."""
    set_timesteps = DDIMScheduler.set_timesteps

    def set_few(scheduler: Any, num_inference_steps: int, *arguments: Any, **named: Any) -> None:
        set_timesteps(scheduler, min(num_inference_steps, 2), *arguments, **named)

    monkeypatch.setattr(DDIMScheduler, "set_timesteps", set_few)


def shorten_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten measurements and training.

    Suites generate an image for every tenth prompt in two steps, read 300 pictures from an embedded
    world, try two values of lambda and a baseline, and resample 20 times. Training reads the same
    number of pictures and ends after two updates of at most 64 pictures.
    """

    def small(name: Any) -> Suite:
        suite = load_suite(name)
        tasks = []
        for task in suite.tasks:
            changes: dict[str, Any] = {"resamples": 20}
            if isinstance(task, GenerationTask):
                changes |= {"images": 1, "steps": 2, "stated": False, "as_written": False}
                changes["attribute"] = few(task.attribute, 10)
            if isinstance(task, GroupsTask):
                changes |= {"lams": task.lams[:2], "baselines": task.baselines[:1]}
            for name_of_data in ("data", "reference", "train", "val"):
                data = getattr(task, name_of_data, None)
                if data is not None and data.name in WORLDS:
                    options = data.options | {"n": min(data.options.get("n", 300), 300)}
                    changes[name_of_data] = data.model_copy(update={"options": options})
            tasks.append(task.model_copy(update=changes))
        return suite.model_copy(update={"tasks": tuple(tasks)})

    def short(config: Path | None, **values: Any) -> TrainSettings:
        settings = load_settings(config, **values)
        changes: dict[str, Any] = {"epochs": None, "steps": 2}
        changes["val_items"] = min(settings.val_items, 100)
        changes["batch_size"] = min(settings.batch_size, 64)
        if settings.data in WORLDS:
            changes["items"] = min(settings.items or 300, 300)
        return settings.model_copy(update=changes)

    monkeypatch.setattr("vldebias.study.suite.load_suite", small)
    monkeypatch.setattr("apps.paper.tables.load_suite", small)
    monkeypatch.setattr("vldebias.cli.train.load_settings", short)


@contextmanager
def collect_pages(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Build pages completely, but append them to a list instead of waiting for visitors."""
    from apps.demo import engine
    from apps.demo import page as demo_page
    from apps.images_api import server
    from apps.label import page as label_page

    served: list[Any] = []
    # Models loaded in the background would outlive the stand-ins.
    monkeypatch.setattr(engine.Engine, "warm", lambda engine: None)
    for module in (demo_page, label_page):
        monkeypatch.setattr(module, "serve", lambda page, **_: served.append(page))
    monkeypatch.setattr(server, "serve", lambda app, **_: served.append(app))
    yield served


def data_sets(root: Path) -> None:
    """Create the three data sets in the layouts of their releases, each in a separate folder."""
    # Training uses batches of 64.
    waterbirds(root / "waterbirds", [*product((0, 1), (0, 1, 2), (0, 1))] * 20)
    values = np.random.default_rng(0).integers(0, 2, (24, 40)) * 2 - 1
    celeba(root / "CelebA/Anno", root / "CelebA/Img/img_align_celeba", values, [0, 1, 2] * 8)
    (root / "CelebA/Eval").mkdir()
    partition = "list_eval_partition.txt"
    (root / "CelebA/Anno" / partition).rename(root / "CelebA/Eval" / partition)
    images = root / "FairFace/fairface-img-margin025-trainval"
    fairface(root / "FairFace", "val", list(islice(cycle(PEOPLE), RANKED)), images)


def features() -> None:
    """Create images.npz and texts.npz, the same people in shards with a table, and features.npz."""
    draw = np.random.default_rng(0)
    rows = draw.normal(size=(RANKED, DIM)).astype(np.float32)
    people = list(islice(cycle(PEOPLE), RANKED))
    columns = {"age": 0, "gender": 1, "race": 2}
    labels = {name: np.array([row[k] for row in people]) for name, k in columns.items()}
    np.savez("images.npz", features=rows, **{f"label.{name}": v for name, v in labels.items()})
    Path("img_emb").mkdir()
    Path("metadata").mkdir()
    for i, part in enumerate(np.array_split(rows, 3)):
        np.save(f"img_emb/img_emb_{i}.npy", part)
    pd.DataFrame(labels).to_parquet("metadata/metadata_0.parquet")
    texts = (*load_suite("fairface").texts(), *load_prompts("gender").texts)
    prompts = list(dict.fromkeys(texts))
    np.savez("texts.npz", text=draw.normal(size=(len(prompts), DIM)), prompts=np.array(prompts))
    seen = {name: draw.choice(["yes", "no"], 400) for name in ("smiling", "class")}
    seen["gender"] = draw.choice(["female", "male"], 400)
    ids = np.array([f"{i}.png" for i in range(400)])
    labelled = {f"label.{name}": values for name, values in seen.items()}
    np.savez("features.npz", features=draw.normal(size=(400, DIM)), ids=ids, **labelled)


def tables() -> None:
    """Create answers by people and judges about generated images, and a table of pictures."""
    draw = np.random.default_rng(0)
    rows = pd.DataFrame({"prompt": ["a nurse", "a pilot"] * 60})
    rows["gender"] = rows["judge"] = draw.choice(["female", "male"], 120)
    rows["method"] = ["none"] * 60 + ["balanced"] * 60
    rows["model"] = ["sd15"] * 60 + ["sd21"] * 60
    rows["label"] = rows.judge.where(draw.random(120) < 0.5, "")
    rows.to_csv("judged.csv", index=False)
    rows.to_csv("labelled.csv", index=False)
    Path("train.csv").write_text("image,caption\n1.png,A woman cooks.\n2.png,A nurse at work.\n")
    committed = Path(__file__).parents[2] / "eval" / "results" / "quickstart.json"
    for name in ("first", "second"):
        Path("results", name).mkdir(parents=True)
        shutil.copy(committed, Path("results", name, "result.json"))
    Path("people.csv").write_text("image,sex\n" + "".join(f"{i}.png,f\n" for i in range(6)))
    for i in range(6):
        save(Path(f"{i}.png"), i)
    Path("prompts.txt").write_text("A photo of a nurse.\nA photo of a pilot.\nA red chair.\n")


def captions() -> None:
    """Create captions and answers about images, an image-text model, and captions by people."""
    texts = ["A man riding a wave.", "A woman with her dog.", "A person at a desk.", "A boy runs."]
    images = [{"id": i, "file_name": f"{i}.jpg"} for i in range(4)]
    said = [{"image_id": i, "caption": text} for i, text in enumerate(texts)]
    Path("captions.txt").write_text("".join(f"{text}\n" for text in texts))
    labels = ["male", "female", "unclear", "female"]
    rows = pd.DataFrame({"image": range(4), "caption": texts, "label": labels})
    rows.to_csv("captions.csv", index=False)
    rows.to_json("before.jsonl", orient="records", lines=True)
    neutral = rows.assign(caption="A person.")
    neutral.to_json("after.jsonl", orient="records", lines=True)
    answered = rows.assign(answer=["male", "male", "cannot tell", "female"]).drop(columns="caption")
    answered.to_json("replies.jsonl", orient="records", lines=True)
    Path("blip2.json").write_text(json.dumps(said))
    by_people = {"images": images, "annotations": said * 2}
    Path("captions_val2014.json").write_text(json.dumps(by_people))
    for i in range(4):
        save(Path("photos") / f"{i}.png", i)
    named = pd.DataFrame({"image": [f"{i}.png" for i in range(4)], "label": labels})
    named.to_csv("photos/labels.csv", index=False)
    for part in load_llava():
        part.save_pretrained("smolvlm")


def edited() -> None:
    """Create portraits of eight people and edited copies of them, with the points of the faces."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:300, :300]
    is_face = ((x - 150) / 70) ** 2 + ((y - 150) / 95) ** 2 < 1
    points = "120 120 180 120 150 150 130 185 170 185"
    rows = []
    for i in range(8):
        pixels = rng.integers(60, 200, (300, 300, 1)) + rng.integers(-9, 9, (300, 300, 3))
        pixels[is_face] = np.array([205, 155, 130]) + rng.integers(-6, 6, (is_face.sum(), 3))
        for name in ("before", "after"):
            Image.fromarray(pixels.astype(np.uint8)).save(f"{name}-{i}.png")
        files = {"before": f"before-{i}.png", "after": f"after-{i}.png"}
        found = {"before_points": points, "after_points": points}
        rows.append({**files, **found, "photo": i, "race": ["Black", "White"][i % 2]})
    pd.DataFrame(rows).to_csv("edits.csv", index=False)


def pictures() -> None:
    """Create picture folders, including one with captions in two splits."""
    for folder in ("images", "my-birds", "my-images", "people"):
        for i in range(4):
            save(Path(folder) / f"{i}.png", i)
    load_prompts("celeba").to_yaml("ages.yaml")
    for part, count in (("train", 100), ("val", 24)):
        world = open_world("birds", n=count, split="reference" if part == "train" else "test")
        folder = Path("captions") / part
        folder.mkdir(parents=True)
        lines = []
        for i in range(count):
            world.read(i).save(folder / f"{i}.png")
            lines.append(json.dumps({"file_name": f"{i}.png", "text": world.captions[i]}))
        (folder / "metadata.jsonl").write_text("\n".join(lines) + "\n")
    settings = {"data": "birds", "items": 64, "steps": 2, "batch_size": 16, "val_items": 32}
    Path("run.yaml").write_text(yaml.safe_dump(settings))


def answers() -> None:
    """Create a folder of generated images with answers by three people about each of them."""
    draw = np.random.default_rng(0)
    task = GenerationTask.build(
        {
            "attribute": few(load_prompts("professions-gender"), 3),
            "attributes": ["gender"],
            "variants": {"cali": {}},
            "images": 3,
            "stated_images": 1,
            "steps": 1,
            "batch_size": 1,
        }
    )
    plan = task.plan({"pipeline": "SD", "id": "by hand", "fingerprint": None})
    folder = Path("sd15/images/gender")
    drawn = plan.settle(folder)
    log = AnnotationLog(folder / "answers.jsonl")
    for i, image in enumerate(drawn):
        save(drawn.path(image), i)
        name = drawn.path(image).relative_to(drawn.folder).as_posix()
        for person in ("ada", "ben", "cleo"):
            log.append(name, person, "gender", str(draw.choice(["male", "female"])))
