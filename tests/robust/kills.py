"""Kill work at random moments and restart it: does it end like uninterrupted work, and is anything
lost?

    python -m tests.robust.kills              # 66 kills
    python -m tests.robust.kills --kills 1    # one of each kind
    python -m tests.robust.kills --full       # a disk that fills up, in place of kills

There are eight kinds of small work: training, a suite, its generation, the quickstart, images of
two pipelines, the embedding cache, an index file, and labelling.

Each process in a run is killed (SIGKILL or SIGTERM) after a random time, and the next one resumes
in its folder until one of them finishes. Then another run starts. With `--full`, writes fail after
a random number of bytes instead, until there is enough space. "Lost" means that a process cannot
resume, that an acknowledged answer is missing, or that a full disk is not reported as such. "Other"
means that the final content differs in any bit from that of an uninterrupted run.
"""

import argparse
import contextlib
import functools
import hashlib
import io
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from PIL import Image
from safetensors import safe_open

from apps.label.engine import Labelling
from apps.label.study import ImageFolder, Question
from apps.shares.answers import AnnotationLog
from tests.limits import limited_files
from vldebias.cli import main as main_command
from vldebias.data.cache import embed_images
from vldebias.hosts.clip.images import image_encoder
from vldebias.miniature import load_clip, load_pipeline, open_world
from vldebias.queries import debias_queries
from vldebias.study.running import run_suite
from vldebias.study.suite import suite_path
from vldebias.training.run import train_model
from vldebias.training.settings import load_settings
from vldebias.utils.files import digest, write_atomically
from vldebias.utils.options import Options
from vldebias.utils.progress import SILENT

# What is said if a file cannot be written.
_FULL = ("no space is left", "disk is full", "ulimit -f", "File too large")

PRELOADED = "open_clip vldebias.cli diffusers.pipelines.stable_diffusion.pipeline_stable_diffusion"

Left = dict[str, str]  # what a run leaves behind: name -> digest


@dataclass(frozen=True)
class Work:
    """Describe a kind of work: `do` does the remaining work in a folder, `left` returns the final
    content, and `kills` is the default number of kills."""

    do: Callable[[Path], None]
    left: Callable[[Path], Left]
    kills: int


# ---- what is killed


def train(folder: Path) -> None:
    """Train with the loss that has the largest state, averaged weights and all negatives of a step,
    and a checkpoint after each step."""
    loss = {"loss": "nuclr", "popularity_lr": 0.05, "temperature": 0.2, "fourier": 0.2}
    steps = {
        "steps": 6,
        "batch_size": 8,
        "accumulation": 2,
        "negatives": "step",
        "ema": 0.9,
        "save_every": 0.0,
    }
    settings = load_settings(
        items=32, val_items=8, lr=1e-3, workers=1, label="label", **loss, **steps
    )
    train_model(settings, folder, cpu=True)


def trained(folder: Path) -> Left:
    """Return the models, the scores of the pairs, and the history without times."""
    models = {
        path.relative_to(folder).as_posix(): digest(path)
        for path in folder.glob("model*/**/*.safetensors")
    }
    history = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    record = json.loads((folder / "run.json").read_text())
    return {
        **models,
        "history": _sha(
            [
                {name: value for name, value in entry.items() if name != "seconds"}
                for entry in history
            ]
        ),
        "pairs": digest(folder / "pairs.csv"),
        "scores": _sha([record["before"], record["after"]]),
    }


def suite(name: str, task: int, **changed: Any) -> Callable[[Path], None]:
    """Run one task of a packaged suite on a few images."""

    def do(folder: Path) -> None:
        content = yaml.safe_load(suite_path(name).read_text(encoding="utf-8"))
        chosen = {**content["tasks"][task], **changed}
        for data in ("data", "train", "val", "reference"):
            chosen.get(data, {}).get("options", {}).update(n=150)
        folder.mkdir(exist_ok=True)
        file = folder.parent / f"{name}.yaml"
        file.write_text(yaml.safe_dump({**content, "tasks": [chosen]}), encoding="utf-8")
        options = Options(
            out=folder, cache=folder / "cache", images=1, seeds=(0,), steps=1, resamples=20
        )
        run_suite(file, options, progress=SILENT)

    return do


def measured(folder: Path) -> Left:
    """Return the figures, features and pictures."""
    images = {
        path.relative_to(folder).as_posix(): digest(path) for path in folder.glob("images/**/*.png")
    }
    features = {path.name: digest(path) for path in folder.glob("cache/**/shard-*.safetensors")}
    return {
        "figures": _sha(json.loads((folder / "result.json").read_text())["figures"]),
        **images,
        **features,
    }


def embed(folder: Path) -> None:
    """Embed twelve shards with the packaged image tower."""
    model, preprocess, _ = load_clip()
    encoder = image_encoder(model, preprocess)
    embeddings = embed_images(
        open_world("birds", n=96),
        encoder,
        folder,
        shard_size=8,
        batch_size=4,
        workers=2,
        progress=SILENT,
    )
    (folder.parent / "features").write_bytes(np.array(embeddings.features).tobytes())


def embedded(folder: Path) -> Left:
    """Return the return value and the shards."""
    shards = {path.name: digest(path) for path in folder.glob("**/shard-*.safetensors")}
    return {"returned": digest(folder.parent / "features"), **shards}


def label(folder: Path) -> None:
    """Answer two questions about each of 30 images. An answer is acknowledged once `answer`
    returns."""
    pictures = folder.parent / "pictures"
    # This is moved into place as a whole, otherwise a kill would change what is asked.
    for number in range(30):
        picture = Image.new("RGB", (4, 4), (8 * number, 0, 0))
        if not (pictures / f"{number}.png").exists():
            write_atomically(
                pictures / f"{number}.png", functools.partial(picture.save, format="png")
            )
    questions = [Question("gender", ("male", "female")), Question("age", ("young", "old"))]
    engine = Labelling(
        ImageFolder.open(pictures), questions, AnnotationLog(folder / "answers.jsonl")
    )
    place = engine.start("ada")
    acknowledged = os.open(folder.parent / "acknowledged", os.O_APPEND | os.O_CREAT | os.O_WRONLY)
    while place.step is not None:
        step = place.step
        place = engine.answer(place, step % 2)
        os.write(acknowledged, f"{step}\n".encode())
    os.close(acknowledged)


def save_index(folder: Path) -> None:
    """Replace an index file many times."""
    model, _, tokenizer = load_clip()

    def embed_texts(texts: Sequence[str]) -> np.ndarray:
        with torch.no_grad():
            return np.asarray(model.encode_text(tokenizer(list(texts))))

    vectors = embed_texts(["A photo of a woman.", "A photo of a man."])
    rows = vectors[np.arange(400) % 2]
    rows = rows + 0.1 * np.abs(rows).mean() * np.random.default_rng(0).normal(size=rows.shape)
    queries = debias_queries(embed_texts, "gender", reference=rows, method="none")
    assert queries.index is not None
    file = folder / "index.safetensors"
    for _ in range(200):
        if file.exists():
            debias_queries(embed_texts, "gender", index=file, method="none")
        queries.index.save(file)


def saved_index(folder: Path) -> Left:
    """Return the header and the tensors. Their order in the file is random."""
    left = {}
    for path in folder.iterdir():
        with safe_open(path, "numpy") as file:
            left[path.name] = _sha(file.metadata())
            for name in file.keys():  # noqa: SIM118 - this is no mapping
                left[f"{path.name} {name}"] = _sha(file.get_tensor(name).tolist())
    return left


def command(*arguments: str) -> Callable[[Path], None]:
    """Run a command with an output folder, next to a second pipeline in the folder "second"."""

    def do(folder: Path) -> None:
        os.chdir(folder.parent)
        if not Path("second").exists():
            load_pipeline().save_pretrained("incomplete")
            os.rename("incomplete", "second")
        sys.argv = ["vldebias", *arguments, "--out", folder.name]
        try:
            main_command()
        except SystemExit as end:
            if end.code:
                raise

    return do


def generated(folder: Path) -> Left:
    """Return the pictures, and the counts without times."""
    pictures = {path.relative_to(folder).as_posix(): digest(path) for path in folder.rglob("*.png")}
    counts = {
        path.relative_to(folder).as_posix(): _sha(_without_times(json.loads(path.read_text())))
        for path in folder.rglob("*.json")
    }
    return pictures | counts


def _without_times(content: Any) -> Any:
    if isinstance(content, dict):
        return {
            key: _without_times(value)
            for key, value in content.items()
            if not any(word in key for word in ("seconds", "time", "created", "date"))
        }
    if isinstance(content, list):
        return [
            _without_times(item)
            for item in content
            if not isinstance(item, str) or not item.startswith("Seconds per image")
        ]
    return content


def labelled(folder: Path) -> Left:
    """Return the answers without times, after checking that no acknowledged step was answered
    twice."""
    acknowledged = (folder.parent / "acknowledged").read_text().split()
    answers = AnnotationLog(folder / "answers.jsonl").answers()
    values = sorted([*key, answer.value] for key, answer in answers.items())
    return {"answers": _sha(values), "asked again": str(len(acknowledged) - len(set(acknowledged)))}


WORKS = {
    "train": Work(train, trained, 10),
    "eval": Work(suite("miniature", 0, lams=[0, 1000], baselines=["erm-linear"]), measured, 8),
    "generation": Work(
        suite("quickstart", -1, variants={"cali": {"method": "paper"}}), measured, 8
    ),
    "quickstart": Work(suite("quickstart", 0), measured, 8),
    "two pipelines": Work(
        command(
            "generate",
            "A photo of a doctor.",
            *("--attribute", "gender", "--images", "2", "--steps", "2"),
            *("--pipeline", "miniature", "--pipeline", "second"),
        ),
        generated,
        10,
    ),
    "embedding cache": Work(embed, embedded, 7),
    "index": Work(save_index, saved_index, 8),
    "label": Work(label, labelled, 7),
}


def _sha(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


# ---- runs


def _life(name: str, folder: Path, limit: int | None, begun: Connection) -> None:
    """Run in a separate process that writes its error next to the folder."""
    begun.send(None)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    sys.stdout = sys.stderr = messages = io.StringIO()
    limits = contextlib.nullcontext() if limit is None else limited_files(limit)
    try:
        with limits:
            WORKS[name].do(folder)
    except BaseException:
        (folder.parent / "error").write_text(messages.getvalue() + traceback.format_exc())
        raise


def outlive(
    name: str, kills: int, longest: float, moments: np.random.Generator, *, full: bool = False
) -> dict[str, Any]:
    """Kill a run at random moments until it finishes or has been killed often enough.

    Args:
        name: the kind of work.
        kills: maximum number of kills.
        longest: seconds that an uninterrupted run takes.
        moments: random generator.
        full: whether the disk is full after random numbers of bytes instead.
    """
    # A process forked from this one could wait forever for a thread, such as one of torch.
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(PRELOADED.split())
    killed = 0
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        error = Path(place) / "error"
        while True:
            limit = int(10 ** moments.uniform(1, 5)) if full and killed < kills else None
            receiver, sender = server.Pipe(duplex=False)
            process = server.Process(target=_life, args=(name, folder, limit, sender))
            process.start()
            wait([receiver, process.sentinel])  # until it has imported everything
            begun = time.monotonic()
            if killed < kills and not full:
                process.join(float(moments.uniform(0, longest)))
                number = int(moments.choice([signal.SIGKILL, signal.SIGTERM]))
                if process.is_alive() and process.pid is not None:
                    os.kill(process.pid, number)
                process.join()
                # Training saves a checkpoint and then raises an error with the signal's number.
                stopped = error.exists() and f"KeyboardInterrupt: {number}\n" in error.read_text()
                if process.exitcode == -number or stopped:  # it did not finish earlier
                    error.unlink(missing_ok=True)
                    killed += 1
                    continue
            process.join()
            if process.exitcode:
                text = error.read_text() if error.exists() else f"exit {process.exitcode}"
                if limit is not None and any(words in text for words in _FULL):
                    killed += 1
                    continue
                return {"kills": killed, "lost": text.splitlines()[-1]}
            seconds = time.monotonic() - begun
            return {"kills": killed, "left": WORKS[name].left(folder), "seconds": seconds}


def kill(name: str, kills: int, seed: int = 0, *, full: bool = False) -> dict[str, Any]:
    """Kill runs of one kind this many times, and compare them with a run that was not killed.

    Args:
        name: the kind of work.
        kills: number of kills, or of full disks.
        seed: seed of the moments.
        full: whether the disk is full instead.
    """
    moments = np.random.default_rng([seed, *name.encode()])
    expected = outlive(name, 0, 0.0, moments)
    if "lost" in expected:
        raise SystemExit(f"{name}: fails even if nothing is killed: {expected['lost']}")
    longest = expected["seconds"]
    runs = list[dict[str, Any]]()
    remaining = kills
    while remaining > 0:
        runs.append(outlive(name, remaining, longest, moments, full=full))
        remaining -= runs[-1]["kills"]
        if not runs[-1]["kills"]:
            # Without any kill, this would go on forever.
            if full or "lost" in runs[-1]:
                break
            longest = runs[-1]["seconds"] / 2  # the machine has become faster
    differences = [
        sorted(
            key
            for key in expected["left"] | run["left"]
            if expected["left"].get(key) != run["left"].get(key)
        )
        for run in runs
        if "left" in run
    ]
    return {
        "work": name,
        "kills": sum(run["kills"] for run in runs),
        "runs": len(runs),
        "lost": sum("lost" in run for run in runs),
        "other": sum(map(bool, differences)),
        "seconds of a run": round(longest, 2),
        "what": [run["lost"] for run in runs if "lost" in run]
        + [", ".join(names) for names in differences if names],
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, help="of each kind, in the place of its own number")
    parser.add_argument("--only", nargs="+", default=list(WORKS), help="kinds of work")
    parser.add_argument("--full", action="store_true", help="fill the disk in place of kills")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    options = parser.parse_args()
    rows = []
    for name in options.only:
        kills = WORKS[name].kills if options.kills is None else options.kills
        rows.append(kill(name, kills, options.seed, full=options.full))
        print(json.dumps(rows[-1]), flush=True)
    total = {key: sum(row[key] for row in rows) for key in ("kills", "runs", "lost", "other")}
    print(json.dumps(total))
    return int(bool(total["lost"] or total["other"]))


if __name__ == "__main__":
    sys.exit(main())
