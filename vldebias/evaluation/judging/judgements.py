"""What a judge said about each drawn image, kept beside the images: asked once, resumed, spread over processes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vldebias.data import Labels, cross
from vldebias.data.embed_processes import processes
from vldebias.errors import InvalidInputError
from vldebias.evaluation.drawing.counter import Counter
from vldebias.evaluation.drawing.drawn import DrawnSet
from vldebias.evaluation.drawing.plan import DrawnImage, slug
from vldebias.evaluation.judging.judges import Judge, decide, predict

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["JUDGEMENTS", "judge_images", "labels_of"]

JUDGEMENTS = "judgements"
_DIGITS = 6  # of the probabilities that are kept
_Answers = dict[str, dict[str, list[float]]]


def judge_images(
    judge: Judge, drawn: DrawnSet, *, batch_size: int = 64, progress: Progress | None = None
) -> dict[str, np.ndarray]:
    """Attribute -> probabilities (n, values) for the n images of `drawn`, in their order.

    Answers lie in the folder as lines of JSON under the fingerprint of the judge, with the hash of the file that was
    judged: an image that was drawn anew is judged anew, all others are read. Each process judges its share.

    Raises:
        InvalidInputError: images are missing, or the judge answers in a wrong shape.
    """
    if drawn.missing:
        raise InvalidInputError(
            f"{drawn.folder}: {len(drawn.missing)} of {len(drawn)} images are missing, such as "
            f"{drawn.missing[0].path}; draw again, which goes on where it stopped"
        )
    here = processes()
    home = drawn.folder / JUDGEMENTS / f"{slug(judge.name)}-{slug(judge.fingerprint)[:16]}"
    share = list(drawn)[here.rank :: here.world]
    hashes = {image.path: _hash(drawn.path(image)) for image in share}
    known = _read(home)
    todo = [image for image in share if f"{image.path} {hashes[image.path]}" not in known]
    own = progress if here.rank == 0 else None
    _ask(judge, drawn, todo, hashes, home / f"{here.rank}.jsonl", batch_size, own, len(share) - len(todo))
    here.wait()
    return _gather(judge, drawn, _read(home), hashes)


def labels_of(
    judge: Judge, probabilities: Mapping[str, np.ndarray], attributes: Sequence[str], sure: float
) -> dict[str, Labels]:
    """Labels of attributes and of intersections such as "gender x race", unknown where the judge is not sure.

    Raises:
        InvalidInputError: an attribute that the judge does not read.
    """
    single = list(dict.fromkeys(chain.from_iterable(attribute.split(" x ") for attribute in attributes)))
    strangers = [attribute for attribute in single if attribute not in judge.names]
    if strangers:
        raise InvalidInputError(f"judge {judge.name}: reads {list(judge.names)}, not {strangers}")
    labels = {attribute: decide(probabilities[attribute], judge.names[attribute], sure) for attribute in single}
    return {attribute: cross(*(labels[one] for one in attribute.split(" x "))) for attribute in attributes}


def _ask(
    judge: Judge,
    drawn: DrawnSet,
    todo: Sequence[DrawnImage],
    hashes: Mapping[str, str],
    path: Path,
    batch_size: int,
    progress: Progress | None,
    there: int,
) -> None:
    """Judge the images of `todo` and append the answers to the file of this process, batch by batch."""
    counter = Counter(progress, "judging", left=len(todo), there=there)
    if not todo:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    _end_line(path)
    with path.open("a", encoding="utf-8") as lines:
        for start in range(0, len(todo), batch_size):
            batch = todo[start : start + batch_size]
            found = predict(judge, [drawn.read(image) for image in batch])
            for i, image in enumerate(batch):
                answer = {attribute: np.round(rows[i], _DIGITS).tolist() for attribute, rows in found.items()}
                lines.write(json.dumps({"image": image.path, "sha": hashes[image.path], "answer": answer}) + "\n")
            lines.flush()
            counter.advance(len(batch))


def _end_line(path: Path) -> None:
    """A kill can leave half a line; the next must not grow out of it."""
    if path.exists() and path.stat().st_size and path.read_bytes()[-1:] != b"\n":
        with path.open("a", encoding="utf-8") as lines:
            lines.write("\n")


def _read(home: Path) -> _Answers:
    """ "path hash" -> attribute -> probabilities, from the files of all processes."""
    return {
        f"{line['image']} {line['sha']}": line["answer"]
        for path in sorted(home.glob("*.jsonl"))
        for line in _lines(path)
    }


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            read = json.loads(line)
        except ValueError:
            continue  # half a line of a run that was killed: the image is asked about again
        if isinstance(read, dict) and {"image", "sha", "answer"} <= read.keys():
            yield read


def _gather(judge: Judge, drawn: DrawnSet, known: _Answers, hashes: Mapping[str, str]) -> dict[str, np.ndarray]:
    """The answers in the order of the images; hashes of other processes' files are made here."""
    rows = []
    for image in drawn:
        sha = hashes.get(image.path) or _hash(drawn.path(image))
        answer = known.get(f"{image.path} {sha}")
        if answer is None:
            raise InvalidInputError(f"{drawn.path(image)}: changed while it was judged; run again")
        rows.append(answer)
    return {attribute: np.array([row[attribute] for row in rows]) for attribute in judge.names}


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:24]
