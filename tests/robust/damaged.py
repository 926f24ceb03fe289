"""Damaged files: each is refused with an error of this package, or gives what was saved, never other values in silence.

    python -m tests.robust.damaged --files 1000

Bits are flipped, bytes cut, doubled, zeroed and put in, types in headers renamed, files exchanged for one another. Of
what carries a digest (edits, embeddings, the state of a training run, a run's folder under `eval verify`) other values
are a failure. A prompt set, a suite and a log of answers are texts that people write, where another text is another
content: "told" counts those that were read and differ, and that a prompt set's `hash` tells.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.robust import attack
from vldebias import load_edit
from vldebias.data import load_embeddings
from vldebias.edit import Edit, Provenance
from vldebias.errors import InvalidInputError, VldebiasError, VldebiasWarning
from vldebias.evaluation.result import Result
from vldebias.evaluation.run import verify, write_manifest
from vldebias.methods.rivals.bend import Bend
from vldebias.methods.rivals.edits import Affine, Residual, TwoTowers

RENAMED = ((b'"F64"', b'"I64"'), (b'"F32"', b'"I32"'), (b"<f4", b"<i4"), (b"<f8", b"<i8"), (b"float", b"FLOAT"))


@dataclass(frozen=True)
class Kind:
    """make: writes a sound file or folder, and returns what is opened; load: gives what was read, for ==.

    digest: whether other values must be refused; else they are "told".
    """

    make: Callable[[Path], Path]
    load: Callable[[Path], Any]
    digest: bool = True


def edits() -> dict[str, Edit]:
    """One of several kinds, small."""
    generator = torch.Generator().manual_seed(0)

    def some(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    codes = torch.arange(6) % 2
    return {
        "projection": attack.projection_of(3),
        "two towers": TwoTowers(Affine(some(6, 2), some(6, 2), some(6)), None, Provenance("two-towers")),
        "residual": Residual(some(3, 6), some(3), some(6, 3), Provenance("dear")),
        "bend": Bend(some(2, 6), some(3, 6), some(3, 1, 6), some(6, 6), codes, 2, Provenance("bend-vlm")),
    }


def read_edit(path: Path) -> Any:
    """Tensors, settings and provenance."""
    edit = load_edit(path)
    tensors = {name: tensor.tolist() for name, tensor in edit.tensors().items()}
    return type(edit), tensors, edit.settings(), edit.provenance


def make_safetensors(path: Path) -> Path:
    """The embeddings of the .npz file in the other format."""
    from vldebias.data import save_embeddings

    return save_embeddings(path / "features.safetensors", *load_embeddings(attack.make_npz(path / "npz")))


def make_run(path: Path) -> Path:
    """A result with the manifest of its folder."""
    folder = attack.make_result(path)
    write_manifest(folder)
    return folder


def read_run(path: Path) -> Any:
    """The result, of a folder that is as the run left it."""
    differences = verify(path)
    if any(differences.values()):
        raise InvalidInputError(f"{path}: {differences}")
    return Result.read(path / "result.json").model_dump_json()


KINDS: dict[str, Kind] = {
    **{f"edit: {name}": Kind(edit.save_pretrained, read_edit) for name, edit in edits().items()},
    "embeddings .npz": Kind(attack.make_npz, attack.load_npz),
    "embeddings .safetensors": Kind(make_safetensors, attack.load_npz),
    "training state": Kind(attack.make_state, attack.load_the_state),
    "run": Kind(make_run, read_run),
    "prompt set": Kind(attack.make_prompts, attack.load_set, digest=False),
    "suite": Kind(attack.make_suite, attack.load_a_suite, digest=False),
    "answers": Kind(attack.make_log, attack.load_log, digest=False),
}


def damage(content: bytes, rng: random.Random) -> bytes:
    """As `attack.damaged`, or a stretch of zeros, or another type in a header."""
    kind = rng.choice(("bytes", "bytes", "bytes", "zeros", "type"))
    if kind == "zeros":
        at = rng.randrange(len(content))
        return content[:at] + bytes(len(content[at : at + 64])) + content[at + 64 :]
    if kind == "type":
        there = [(old, new) for old, new in RENAMED if old in content]
        if there:
            return content.replace(*rng.choice(there))
    return attack.damaged(content, rng, text=False)


def tried(kind: Kind, files: int, seed: int) -> Counter[str]:
    """How so many damaged copies were read: "same", "refused", "warned", "told", "silently other", or an exception."""
    rng, ends = random.Random(seed), Counter[str]()
    with tempfile.TemporaryDirectory() as temporary:
        path = kind.make(Path(temporary) / "sound")
        sound = kind.load(path)
        parts = [
            p for p in ([path] if path.is_file() else sorted(path.rglob("*"))) if p.is_file() and p.suffix != ".md"
        ]
        contents = {part: part.read_bytes() for part in parts}
        for _ in range(files):
            part = rng.choice(parts)
            changed = damage(contents[part], rng)
            if len(parts) > 1 and rng.random() < 0.05:  # one in the place of another
                changed = contents[rng.choice(parts)]
            part.write_bytes(changed)
            ends[end(kind, path, sound)] += 1
            part.write_bytes(contents[part])
    return ends


def end(kind: Kind, path: Path, sound: Any) -> str:
    """Of one damaged copy."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            read = kind.load(path)
        except VldebiasError:
            return "refused"
        except Exception as error:
            return f"lost: {type(error).__name__}: {str(error)[:100]}"
    if read == sound:
        return "same"
    if not kind.digest:
        return "told"
    return "warned" if any(issubclass(one.category, VldebiasWarning) for one in caught) else "silently other"


def failures(ends: Counter[str]) -> int:
    """Tracebacks of another kind, and other values without a word."""
    return sum(count for name, count in ends.items() if name.startswith("lost") or name == "silently other")


def main() -> None:
    """Prints a line of JSON for each kind; exits with 1 where one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=1000, help="in all, the same number of each kind")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    every = Counter[str]()
    for i, (name, kind) in enumerate(KINDS.items()):
        ends = tried(kind, -(-options.files // len(KINDS)), options.seed + i)
        every += ends
        print(json.dumps({"kind": name, **ends}))
    lost = sum(count for name, count in every.items() if name.startswith("lost"))
    print(json.dumps({"files": every.total(), "lost": lost, "silently other": every["silently other"]}))
    sys.exit(failures(every) > 0)


if __name__ == "__main__":
    main()
