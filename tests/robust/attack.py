"""Try to lose something, to load something wrong, or to get a traceback: damaged files, crafted files, kills.

Every try has one of three ends: "same" (what was read is what was written), "refused" (an error of ours that says what
to do), or a failure: another exception, another content, a crash, more than 20 seconds or more than 6 GB. For kills a
process that writes over an older file is ended with SIGKILL at a random moment, and what is there afterwards has to be
the old content or the new one.

    python -m tests.robust.attack                     # all of it; writes eval/results/attack.json
    python -m tests.robust.attack --only projection --tries 200      # the other rows of the file stay
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import resource
import signal
import struct
import sys
import tempfile
import time
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.robust.attack_resumed import RESUMED

ROOT = Path(__file__).parents[2]
RESULT = ROOT / "eval" / "results" / "attack.json"
SECONDS, BYTES = 20, 6 << 30

Load = Callable[[Path], Any]


@dataclass
class Attack:
    """Damaged copies of one kind of file.

    make: writes a sound one, or a folder of them, and returns what is opened. load: opens it and gives what was read,
    for comparison by ==. files: which files of a folder are damaged.
    """

    name: str
    make: Callable[[Path], Path]
    load: Load
    text: bool = False
    silent: tuple[str, ...] = ()
    crafted: Callable[[Path], Iterator[tuple[str, Path]]] | None = None
    tries: int = 1000
    compare: bool = True


@dataclass
class Tally:
    """How the tries of one attack ended."""

    name: str
    ends: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def row(self) -> dict[str, Any]:
        """For JSON."""
        tries = sum(self.ends.values())
        failed = tries - self.ends["same"] - self.ends["refused"]
        return {
            "attack": self.name,
            "tries": tries,
            **dict(self.ends),
            "failures": failed,
            "examples": self.failures[:5],
        }


def damaged(content: bytes, rng: random.Random, *, text: bool) -> bytes:
    """One to three changes: bits flipped, bytes cut, doubled, exchanged or put in; of texts also lines and numbers."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if not data:
            return bytes(data)
        at, end = sorted((rng.randrange(len(data)), rng.randrange(len(data))))
        end = min(end, at + 64)
        kind = rng.choice(("flip", "flip", "cut", "end", "double", "noise") + (("line", "swap", "odd") * text))
        if kind == "flip":
            data[at] ^= 1 << rng.randrange(8)
        elif kind == "cut":
            del data[at:end]
        elif kind == "end":
            del data[at:]
        elif kind == "double":
            data[at:at] = data[at:end]
        elif kind == "noise":
            data[at:end] = rng.randbytes(end - at)
        else:
            lines = bytes(data).splitlines(keepends=True)
            i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
            if kind == "line":
                del lines[i]
            elif kind == "swap":
                lines[i], lines[j] = lines[j], lines[i]
            else:
                odd = rng.choice(
                    (b"null", b"-1", b"1e999", b"9" * 5000, b"2026-13-45", b"[[[[", b"&a *a", b"!!python/none")
                )
                lines[i] = lines[i].split(b":")[0] + b": " + odd + b"\n"
            data = bytearray(b"".join(lines))
    return bytes(data)


def opened(attack: Attack, path: Path, sound: Any) -> str:
    """How one try ended; only ever called in a child of its own."""
    from vldebias.errors import VldebiasError

    signal.alarm(SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            read = attack.load(path)
    except VldebiasError:
        return "refused"
    except MemoryError:
        return "memory"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:120]}"
    finally:
        signal.alarm(0)
    if not attack.compare or read == sound:
        return "same"
    return "other content"


def in_child(work: Callable[[Callable[[str], None]], None]) -> tuple[list[str], int]:
    """Lines that `work` reported from a forked process, and its exit status: a crash ends the fork alone."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        resource.setrlimit(resource.RLIMIT_AS, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 + BYTES,) * 2)
        with open(writer, "w", buffering=1) as pipe, open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), 2)
            with contextlib.suppress(BaseException):
                work(lambda line: print(json.dumps(line), file=pipe, flush=True))
                os._exit(0)
        os._exit(1)
    os.close(writer)
    with open(reader) as pipe:
        lines = [json.loads(line) for line in pipe]
    return lines, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def fuzz(attack: Attack, tries: int) -> Tally:
    """Damaged copies, then the crafted ones."""
    tally, rng = Tally(attack.name), random.Random(attack.name)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        path = attack.make(folder / "sound")
        sound = attack.load(path) if attack.compare else None
        files = [
            p for p in ([path] if path.is_file() else sorted(path.rglob("*"))) if p.is_file() and p.suffix != ".md"
        ]
        contents = {file: file.read_bytes() for file in files}
        planned = []
        for _ in range(tries):
            file = rng.choice(files)
            planned.append((file, damaged(contents[file], rng, text=attack.text or file.suffix in (".json", ".yaml"))))
        start = 0
        while start < len(planned):

            def batch(report: Callable[[str], None], start: int = start) -> None:
                for file, content in planned[start:]:
                    file.write_bytes(content)
                    report(opened(attack, path, sound))
                    file.write_bytes(contents[file])

            ends, status = in_child(batch)
            for end in ends:
                count(tally, end)
            start += len(ends)
            if start < len(planned):  # the child died at this one
                count(tally, f"crash (exit {status})")
                start += 1
            for file, content in contents.items():
                file.write_bytes(content)
        for what, crafted in attack.crafted(folder) if attack.crafted else ():

            def one(report: Callable[[str], None], crafted: Path = crafted) -> None:
                report(opened(attack, crafted, None))

            ends, status = in_child(one)
            end = ends[0] if ends else f"crash (exit {status})"
            count(tally, "refused" if end == "refused" else f"{what}: {end}")
    return tally


def count(tally: Tally, end: str) -> None:
    """One more try."""
    if end in ("same", "refused"):
        tally.ends[end] += 1
    else:
        tally.ends[end.split(":")[0]] += 1
        tally.failures.append(end)


def kills(
    name: str, write: Callable[[Path, int], Any], read: Callable[[Path], Any], tries: int, within: float = 0.05
) -> Tally:
    """SIGKILL within so many seconds while version after version is written over the one before; each must be read."""
    tally, rng = Tally(name), random.Random(name)
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "kept"
        write(path, 0)
        known = 0
        for _ in range(tries):
            reader, writer = os.pipe()
            child = os.fork()
            if child == 0:
                os.close(reader)
                with open(os.devnull, "w") as nothing:
                    os.dup2(nothing.fileno(), 2)
                version = known
                while True:
                    version += 1
                    os.write(writer, struct.pack("q", version))
                    write(path, version)
            os.close(writer)
            started = os.read(reader, 8)
            time.sleep(rng.random() * within)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            rest = b""
            while chunk := os.read(reader, 1 << 16):
                rest += chunk
            os.close(reader)
            begun = [v for (v,) in struct.iter_unpack("q", started + rest)]
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    there = read(path)
            except Exception as error:
                count(tally, f"lost: {type(error).__name__}: {str(error)[:100]}")
                write(path, begun[-1])
                known = begun[-1]
                continue
            count(tally, "same" if there in (begun[-1], begun[-1] - 1) else f"mixture: {there} of {begun[-1]}")
            known = there
    return tally


# ---- what is damaged -----------------------------------------------------------------------------------------------


def projection_of(version: int) -> Any:
    """A projection whose matrix tells its version."""
    import torch

    from vldebias import CalibratedProjection

    pairs = torch.randn(4, 2, 24, generator=torch.Generator().manual_seed(version), dtype=torch.float64)
    return CalibratedProjection.fit(pairs, pairs[:2, 0], lam=float(version + 1)).stamped(prompts=str(version))


def make_projection(path: Path) -> Path:
    return projection_of(3).save_pretrained(path)


def load_projection(path: Path) -> Any:
    from vldebias import load_edit

    edit = load_edit(path)
    return edit.matrix().tolist(), edit.provenance


def make_prompts(path: Path) -> Path:
    from vldebias.files import prompt_file

    path.mkdir(parents=True)
    target = path / "set.yaml"
    target.write_bytes(prompt_file("professions-gender").read_bytes())
    return target


def load_set(path: Path) -> Any:
    from vldebias import load_prompts

    return load_prompts(path).hash


BOMBS = {
    "alias bomb": "a: &a [x, x]\n"
    + "".join(f"{chr(98 + i)}: &{chr(98 + i)} [*{chr(97 + i)}, *{chr(97 + i)}]\n" for i in range(24)),
    "deep nesting": "a: " + "[" * 5000 + "]" * 5000,
    "huge integer": "name: " + "9" * 5000,
    "bad date": "name: 2026-13-45",
    "recursive alias": "a: &a [*a]",
    "python tag": "a: !!python/object/apply:os.system ['true']",
    "binary": "a: !!binary " + "A" * 9999,
    "merge keys": "base: &b {x: 1}\na: {<<: *b}\n",
    "twenty megabytes": "a: " + "x" * (20 << 20),
    "empty": "",
    "list": "[1, 2, 3]",
    "null": "null",
}


def yaml_bombs(folder: Path) -> Iterator[tuple[str, Path]]:
    for name, text in BOMBS.items():
        path = folder / f"{name.replace(' ', '-')}.yaml"
        path.write_text(text, encoding="utf-8")
        yield name, path


def make_suite(path: Path) -> Path:
    from vldebias.files import suite_file

    path.mkdir(parents=True)
    target = path / "mine.yaml"
    target.write_bytes(suite_file("miniature").read_bytes())
    return target


def load_a_suite(path: Path) -> Any:
    from vldebias.evaluation.suite import load_suite

    return load_suite(path).model_dump()


def make_settings(path: Path) -> Path:
    from vldebias.training.settings import load_settings

    path.mkdir(parents=True)
    target = path / "settings.yaml"
    target.write_text(load_settings(None, data="birds", model="miniature").as_yaml(), encoding="utf-8")
    return target


def load_the_settings(path: Path) -> Any:
    from vldebias.training.settings import load_settings

    return load_settings(path).model_dump()


def make_npz(path: Path) -> Path:
    import numpy as np
    import torch

    from vldebias.data import Embeddings, save_embeddings

    features = np.random.default_rng(0).normal(size=(30, 8)).astype(np.float32)
    labels = {"sex": np.array(["female", "male", ""] * 10), "age": np.arange(30) % 4}
    texts = {f"a photo of {i}": torch.randn(8) for i in range(5)}
    path.mkdir(parents=True)
    return save_embeddings(path / "features.npz", Embeddings.of(features, labels=labels), texts)


def load_npz(path: Path) -> Any:
    from vldebias.data import load_embeddings

    embeddings, texts = load_embeddings(path)
    columns = {name: (one.names, one.codes.tolist()) for name, one in embeddings.labels.items()}
    rows = None if texts is None else {name: row.tolist() for name, row in texts.items()}
    return embeddings.features.tolist(), embeddings.ids, columns, rows


def npz_bombs(folder: Path) -> Iterator[tuple[str, Path]]:
    def member(name: str, header: bytes, body: bytes = b"") -> Path:
        path = folder / f"{name}.npz"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("features.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + body)
        return path

    for name, shape, dtype in (
        ("rows", "(1000000000000, 512)", "<f4"),
        ("objects", "(2, 2)", "|O"),
        ("negative", "(-3, 4)", "<f4"),
        ("structured", "(2,)", "[('a', '<f4')]"),
        ("texts", "(2, 2)", "<U8"),
        ("dates", "(2, 2)", "<M8[s]"),
    ):
        described = dtype if dtype.startswith("[") else repr(dtype)
        header = f"{{'descr': {described}, 'fortran_order': False, 'shape': {shape}, }}\n"
        yield f"npz of {name}", member(name, header.encode())
    bomb = folder / "bomb.npz"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (500000, 512), }\n"
        archive.writestr(
            "features.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(1 << 20)
        )
    yield "npz shorter than it says", bomb
    infinite = folder / "infinite.npz"
    import numpy as np

    np.savez(infinite, features=np.array([[1.0, np.inf], [0.0, 1.0]], np.float32))
    yield "npz with infinite values", infinite
    for name, content in (
        ("pointer", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n"),
        ("empty", b""),
    ):
        path = folder / f"{name}.npz"
        path.write_bytes(content)
        yield f"npz that is {name}", path


def make_table(path: Path) -> Path:
    path.mkdir(parents=True)
    target = path / "labels.csv"
    rows = [f"img{i}.png,{['male', 'female'][i % 2]},{i % 5},caption {i}" for i in range(40)]
    target.write_text("image,gender,age,text\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return target


def make_jsonl(path: Path) -> Path:
    path.mkdir(parents=True)
    target = path / "labels.jsonl"
    rows = [json.dumps({"image": f"img{i}.png", "gender": ["male", "female"][i % 2], "age": i % 5}) for i in range(40)]
    target.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return target


def load_table(path: Path) -> Any:
    from vldebias.data import read_table

    return read_table(path).to_pylist()


def jsonl_bombs(folder: Path) -> Iterator[tuple[str, Path]]:
    cases = {"nulls": "null\n" * 5, "deep": "[" * 3000, "mixed": '{"a": 1}\n{"a": {"b": 1}}\n{"a": [1]}\n', "empty": ""}
    for name, text in cases.items():
        path = folder / f"{name}.jsonl"
        path.write_text(text, encoding="utf-8")
        yield f"jsonl of {name}", path


def make_log(path: Path) -> Path:
    from vldebias.evaluation.answers import AnnotationLog

    path.mkdir(parents=True)
    log = AnnotationLog(path / "anna.jsonl")
    for i in range(12):
        log.append(f"none/doctor/{i}.png", "anna", "gender", ["male", "female"][i % 2], seconds=1.5)
    return path / "anna.jsonl"


def load_log(path: Path) -> Any:
    from vldebias.evaluation.answers import AnnotationLog

    return {key: answer.value for key, answer in AnnotationLog(path).answers().items()}


def make_result(path: Path) -> Path:
    from vldebias.evaluation.result import Result

    path.mkdir(parents=True)
    target = path / "result.json"
    Result.read(ROOT / "eval" / "results" / "quickstart.json").write(target)
    return path


def load_result(path: Path) -> Any:
    from vldebias.evaluation.result import Result

    return Result.read(path / "result.json").model_dump_json()


def make_picture(path: Path) -> Path:
    import numpy as np
    from PIL import Image

    path.mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 255, (24, 24, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path / "photo.png")
    return path / "photo.png"


def load_picture(path: Path) -> Any:
    from vldebias.data import decode
    from vldebias.errors import InvalidInputError

    try:
        return decode(path).tobytes()
    except OSError as error:  # what its callers expect of an image that cannot be read: they count it and go on
        raise InvalidInputError(str(error)) from None


def picture_bombs(folder: Path) -> Iterator[tuple[str, Path]]:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    for side in (13_000, 60_000):
        head = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0))
        body = chunk(b"IDAT", zlib.compress(bytes((side // 8 + 1) * 50)))
        path = folder / f"bomb{side}.png"
        path.write_bytes(b"\x89PNG\r\n\x1a\n" + head + body + chunk(b"IEND", b""))
        yield f"picture of {side} x {side}", path
    pointer = folder / "pointer.png"
    pointer.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n", encoding="utf-8")
    yield "Git LFS pointer", pointer


def trained() -> tuple[Any, Any]:
    import torch

    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Linear(4, 3))
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    for _ in range(3):
        optimizer.zero_grad()
        module(torch.randn(5, 6)).square().sum().backward()
        optimizer.step()
    return module, optimizer


def make_state(path: Path) -> Path:
    from vldebias.training.state import save_state

    path.mkdir(parents=True)
    save_state(path / "state.safetensors", *trained(), metadata={"step": 3, "identity": {"seed": 0}})
    return path / "state.safetensors"


def load_the_state(path: Path) -> Any:
    from vldebias.training.state import load_state

    module, optimizer = trained()
    metadata = load_state(path, module, optimizer)
    moments = {str(k): str(v) for k, v in optimizer.state_dict()["state"].items()}
    return metadata, [p.tolist() for p in module.parameters()], moments, str(optimizer.state_dict()["param_groups"])


ATTACKS = (
    Attack("projection", make_projection, load_projection, tries=2000),
    Attack("training state", make_state, load_the_state, tries=1000),
    Attack("prompt set", make_prompts, load_set, text=True, crafted=yaml_bombs, tries=1500, compare=False),
    Attack("suite", make_suite, load_a_suite, text=True, crafted=yaml_bombs, tries=1000, compare=False),
    Attack(
        "training settings", make_settings, load_the_settings, text=True, crafted=yaml_bombs, tries=1000, compare=False
    ),
    Attack("embeddings npz", make_npz, load_npz, crafted=npz_bombs, tries=1500),
    Attack("table csv", make_table, load_table, text=True, tries=500, compare=False),
    Attack("table jsonl", make_jsonl, load_table, text=True, crafted=jsonl_bombs, tries=500, compare=False),
    Attack("answers of annotators", make_log, load_log, text=True, tries=500, compare=False),
    Attack("result", make_result, load_result, tries=500, compare=False),
    Attack("picture", make_picture, load_picture, crafted=picture_bombs, tries=1000, compare=False),
)


# ---- what is killed ------------------------------------------------------------------------------------------------


def write_projection(path: Path, version: int) -> None:
    projection_of(version).save_pretrained(path)


def read_projection(path: Path) -> int:
    return int(load_projection(path)[1].prompts)


def write_text(path: Path, version: int) -> None:
    from vldebias.files import write_atomically

    write_atomically(path, f"{version}\n" * 5000)


def read_text(path: Path) -> int:
    lines = set(path.read_text(encoding="utf-8").split())
    (only,) = lines
    return int(only)


def write_state(path: Path, version: int) -> None:
    from vldebias.training.state import save_state

    save_state(path, *trained(), metadata={"step": version})


def read_state(path: Path) -> int:
    from vldebias.training.state import load_state

    return int(load_state(path, *trained())["step"])


def write_answers(path: Path, version: int) -> None:
    from vldebias.evaluation.answers import AnnotationLog

    AnnotationLog(path).append(f"none/doctor/{version}.png", "anna", "gender", "male")


def read_answers(path: Path) -> int:
    from vldebias.evaluation.answers import AnnotationLog

    there = sorted(int(Path(answer.image).stem) for answer in AnnotationLog(path).answers().values())
    if there != list(range(len(there))):
        raise ValueError(f"answers are missing before {there[-1]}")
    return there[-1]


def write_result(path: Path, version: int) -> None:
    from vldebias.evaluation.result import Result

    result = Result.read(ROOT / "eval" / "results" / "quickstart.json")
    result.model_copy(update={"seconds": float(version), "name": f"run {version}"}).write(path / "result.json")


def read_result(path: Path) -> int:
    from vldebias.evaluation.result import Result

    result = Result.read(path / "result.json")
    if result.name != f"run {result.seconds:.0f}":
        raise ValueError(f"{result.name} of {result.seconds}")
    return int(result.seconds)


KILLS: dict[str, tuple[Any, ...]] = {
    "kill: projection": (write_projection, read_projection),
    "kill: text file": (write_text, read_text),
    "kill: training state": (write_state, read_state),
    "kill: answers of annotators": (write_answers, read_answers),
    "kill: result": (write_result, read_result),
} | RESUMED


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="attacks whose name has this in it")
    parser.add_argument("--tries", type=int, help="of each attack, in the place of its own number")
    parser.add_argument("--kills", type=int, default=120, help="of each kind")
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    os.environ.update(HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1")
    import torch

    import vldebias.training  # noqa: F401  (imported once, for all forks)

    torch.set_num_threads(1)
    rows = []
    for attack in ATTACKS:
        if options.only in attack.name:
            rows.append(fuzz(attack, options.tries or attack.tries).row())
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    for name, (write, read, *within) in KILLS.items():
        if options.only in name:
            rows.append(kills(name, write, read, options.kills, *within).row())
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    if options.only and options.out.exists():  # the others stay as they were measured
        kept = {row["attack"]: row for row in json.loads(options.out.read_text())["rows"]}
        kept |= {row["attack"]: row for row in rows}
        rows = [kept[name] for name in [*(attack.name for attack in ATTACKS), *KILLS] if name in kept]
    tries, failures = (sum(row[key] for row in rows) for key in ("tries", "failures"))
    options.out.write_text(json.dumps({"tries": tries, "failures": failures, "rows": rows}, indent=1) + "\n")
    print(f"{tries} tries, {failures} failures")


if __name__ == "__main__":
    main()
