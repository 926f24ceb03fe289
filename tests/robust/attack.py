"""Try to lose something, to load something wrong, or to get a traceback: damaged files, crafted files, kills.

Of every damaged copy there is one of these ends: "same" (what was read is what was written; of texts that carry no
digest: what is there now), "refused" (an error of ours that says what to do), "warned", or a failure: another
exception, another content, a crash, more than 20 seconds or more than 6 GB. A crafted file has to be refused. For kills
a process that writes over an older file is ended with SIGKILL at a random moment, and what is there afterwards has to
be the old content or the new one. Whole commands are killed by `kills`.

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
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from eval.experiments.records import rows_of, write_records
from tests.robust.files import COMMITTED, KINDS, Kind, projection_of, trained
from vldebias import load_edit
from vldebias.errors import VldebiasError, VldebiasWarning
from vldebias.evaluation.answers import AnnotationLog
from vldebias.evaluation.result import Result
from vldebias.files import write_atomically
from vldebias.training.state import load_state, save_state

RESULT = COMMITTED.with_name("attack.json")
SECONDS, BYTES = 20, 6 << 30
RENAMED = ((b'"F64"', b'"I64"'), (b'"F32"', b'"I32"'), (b"<f4", b"<i4"), (b"<f8", b"<i8"), (b"float", b"FLOAT"))
ODD = (b"null", b"-1", b"1e999", b"9" * 5000, b"2026-13-45", b"[[[[", b"&a *a", b"!!python/none")


def damaged(content: bytes, rng: random.Random, *, text: bool) -> bytes:
    """One to three changes: bits flipped, bytes cut, doubled, zeroed, exchanged or put in, another type in a header; of
    texts also lines and numbers."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if not data:
            break
        at, end = sorted((rng.randrange(len(data)), rng.randrange(len(data))))
        end = min(end, at + 64)
        kinds = ("flip", "flip", "cut", "end", "double", "noise", "zeros", "type")
        match rng.choice(kinds + ("line", "swap", "odd") * text):
            case "flip":
                data[at] ^= 1 << rng.randrange(8)
            case "cut":
                del data[at:end]
            case "end":
                del data[at:]
            case "double":
                data[at:at] = data[at:end]
            case "noise":
                data[at:end] = rng.randbytes(end - at)
            case "zeros":
                data[at:end] = bytes(end - at)
            case "type":
                data = data.replace(*rng.choice([pair for pair in RENAMED if pair[0] in data] or RENAMED))
            case how:
                data = _line_changed(bytes(data).splitlines(keepends=True), how, rng)
    return bytes(data)


def _line_changed(lines: list[bytes], how: str, rng: random.Random) -> bytearray:
    i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
    if how == "line":
        del lines[i]
    elif how == "swap":
        lines[i], lines[j] = lines[j], lines[i]
    else:
        lines[i] = lines[i].split(b":")[0] + b": " + rng.choice(ODD) + b"\n"
    return bytearray(b"".join(lines))


def opened(kind: Kind, path: Path, sound: Any) -> str:
    """How one try ended."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            read = kind.load(path)
        except VldebiasError:
            return "refused"
        except Exception as error:
            return f"{type(error).__name__}: {str(error)[:120]}"
    if not kind.digest or read == sound:
        return "same"
    return "warned" if any(issubclass(one.category, VldebiasWarning) for one in caught) else "other content"


def in_child(ends: Iterator[str]) -> tuple[list[str], int]:
    """What comes out of an iterator in a forked process, and its exit status: a crash ends the fork alone."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        resource.setrlimit(resource.RLIMIT_AS, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 + BYTES,) * 2)
        with open(writer, "w", buffering=1) as pipe, open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), 2)
            with contextlib.suppress(BaseException):
                signal.alarm(SECONDS)
                for end in ends:
                    print(json.dumps(end), file=pipe, flush=True)
                    signal.alarm(SECONDS)
                os._exit(0)
        os._exit(1)
    os.close(writer)
    with open(reader) as pipe:
        lines = [json.loads(line) for line in pipe]
    return lines, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def tried(kind: Kind, tries: int, seed: object, *, apart: bool = True) -> Counter[str]:
    """How so many damaged copies, then the crafted ones, were read; apart: in processes that may crash."""
    rng, ends = random.Random(str(seed)), Counter[str]()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        path = kind.make(folder / "sound")
        sound = kind.load(path)
        there = [path] if path.is_file() else sorted(path.rglob("*"))
        contents = {file: file.read_bytes() for file in there if file.is_file() and file.suffix != ".md"}
        planned: list[tuple[str, Path, bytes]] = []
        for _ in range(tries):
            file = rng.choice(list(contents))
            text = kind.text or file.suffix in (".json", ".yaml")
            other = len(contents) > 1 and rng.random() < 0.05  # one in the place of another
            changed = contents[rng.choice(list(contents))] if other else damaged(contents[file], rng, text=text)
            planned.append(("", file, changed))
        planned += [(what, file, b"") for what, file in (kind.crafted(folder) if kind.crafted else {}).items()]

        def each(left: list[tuple[str, Path, bytes]]) -> Iterator[str]:
            for what, file, content in left:
                if what:
                    end = opened(kind, file, None)
                    yield end if end == "refused" else f"{what}: {end}"
                    continue
                file.write_bytes(content)
                yield opened(kind, path, sound)
                file.write_bytes(contents[file])

        while planned:
            found, status = in_child(each(planned)) if apart else (list(each(planned)), 0)
            if len(found) < len(planned):  # it died of this one
                found.append(f"crash: exit {status}")
            ends.update(found)
            planned = planned[len(found) :]
            for file, content in contents.items():
                file.write_bytes(content)
    return ends


def failures(ends: Counter[str]) -> Counter[str]:
    """Tracebacks of another kind, other content without a word, crashes, versions that are lost."""
    return Counter({end: count for end, count in ends.items() if end not in ("same", "refused", "warned")})


# ---- kills -----------------------------------------------------------------------------------------------------------


def killed(write: Callable[[Path, int], Any], read: Callable[[Path], int], tries: int, seed: str) -> Counter[str]:
    """SIGKILL while version after version is written over the one before; each must be read."""
    ends, rng, known = Counter[str](), random.Random(seed), 0
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "kept"
        write(path, known)
        for _ in range(tries):
            begun = _begun(write, path, known, rng.random() * 0.05)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    known = read(path)
                ends["same" if known in (begun, begun - 1) else f"mixture: {known} of {begun}"] += 1
            except Exception as error:
                ends[f"lost: {type(error).__name__}: {str(error)[:100]}"] += 1
                write(path, known := begun)
    return ends


def _begun(write: Callable[[Path, int], Any], path: Path, known: int, seconds: float) -> int:
    """The last version that was begun by a process that was killed after so many seconds."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        with open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), 2)
        while True:
            known += 1
            os.write(writer, struct.pack("q", known))
            write(path, known)
    os.close(writer)
    told = os.read(reader, 8)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with open(reader, "rb") as rest:
        told += rest.read()
    return int(struct.unpack("q", told[-8:])[0])


def _lines(path: Path) -> int:
    (only,) = set(path.read_text(encoding="utf-8").split())
    return int(only)


def _answers(path: Path) -> int:
    there = sorted(int(Path(answer.image).stem) for answer in AnnotationLog(path).answers().values())
    if there != list(range(len(there))):
        raise ValueError(f"answers are missing before {there[-1]}")
    return there[-1]


def _write_result(path: Path, version: int) -> None:
    about = {"seconds": float(version), "name": f"run {version}"}
    Result.read(COMMITTED).model_copy(update=about).write(path / "result.json")


def _result(path: Path) -> int:
    result = Result.read(path / "result.json")
    if result.name != f"run {result.seconds:.0f}":
        raise ValueError(f"{result.name} of {result.seconds}")
    return int(result.seconds)


KILLS: dict[str, tuple[Callable[[Path, int], Any], Callable[[Path], int]]] = {
    "kill: projection": (
        lambda path, version: projection_of(version).save_pretrained(path),
        lambda path: int(str(load_edit(path).provenance.prompts)),
    ),
    "kill: text file": (lambda path, version: write_atomically(path, f"{version}\n" * 5000), _lines),
    "kill: training state": (
        lambda path, version: save_state(path, *trained(), metadata={"step": version}),
        lambda path: int(load_state(path, *trained())["step"]),
    ),
    "kill: answers of annotators": (
        lambda path, version: AnnotationLog(path).append(f"none/doctor/{version}.png", "anna", "gender", "male"),
        _answers,
    ),
    "kill: result": (_write_result, _result),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="attacks whose name has this in it")
    parser.add_argument("--tries", type=int, help="of each kind of file, in the place of its own number")
    parser.add_argument("--kills", type=int, default=120, help="of each kind")
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    torch.set_num_threads(1)
    there = rows_of(Result.read(options.out), "attack") if options.out.exists() else []
    rows = {row["attack"]: row for row in there}
    for name in (*KINDS, *KILLS):
        if options.only not in name:  # it stays as it was measured
            continue
        if name in KINDS:
            ends = tried(KINDS[name], options.tries or KINDS[name].tries, name)
        else:
            ends = killed(*KILLS[name], options.kills, name)
        failed = failures(ends)
        counts = {end: count for end, count in sorted(ends.items()) if end not in failed}
        told = {"attack": name, "tries": ends.total(), **counts, "failures": failed.total()}
        rows[name] = told | {"examples": list(failed)[:5]}
        print(json.dumps(rows[name]), file=sys.stderr, flush=True)
    kept = [rows[name] for name in (*KINDS, *KILLS) if name in rows]
    tries, failed_in_all = (sum(row[key] for row in kept) for key in ("tries", "failures"))
    write_records(options.out, "Damaged files and killed writers", kept, "attack")
    print(f"{tries} tries, {failed_in_all} failures")
    sys.exit(failed_in_all > 0)


if __name__ == "__main__":
    main()
