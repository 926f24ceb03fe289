"""What a study is made of: its images, its questions with their choices, and the names of those who
answer."""

from __future__ import annotations

import hashlib
import io
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from PIL import Image

from vldebias.data import decode
from vldebias.errors import InvalidInputError
from vldebias.judge.answers import CANNOT_TELL, NO_MAJORITY, NO_PERSON
from vldebias.judge.plan import PLAN, GeneratedImages, PlannedImage
from vldebias.prompts import list_prompts, load_prompts

SUFFIXES = {".png", ".jpg", ".jpeg", ".webp"}
LARGEST = 1024  # pixels of the longer side: more than a page shows
# the key of each choice; no attribute of the literature needs the letters
KEYS = "123456789abcdefghijk"
LONGEST_NAME = 40


@dataclass(frozen=True)
class ImageFolder:
    """Images to label.

    Attributes:
        root: the folder; answers name images by their path below it.
        records: the images to label. everything: those and the others of the folder that may have
            been labelled.
        prompt_set: name of the prompt set that was drawn; None for images of unknown origin.
        missing: images of the plan that are not there (yet).
        weights: of images that were drawn for labelling, one over the probability of that, by path;
            from so many `strata` of the answers of `judge`.
    """

    root: Path
    records: tuple[PlannedImage, ...]
    everything: tuple[PlannedImage, ...]
    prompt_set: str | None = None
    missing: int = 0
    weights: Mapping[str, float] = field(default_factory=dict)
    strata: int = 0
    judge: str = ""

    @classmethod
    def open(cls, folder: Path, *, most: int | None = None) -> ImageFolder:
        """Return the images of a folder that `vldebias eval generation` wrote, of its results, or
        of any folder.

        Of a generated folder those of held-out concepts, as the paper labels, or of all if it has
        none; no prompt states the attribute, since such an image has one right answer.

        most: at most so many images in all: the prompts in turn, one seed after the other, each
        under every variant,
            since these are compared. The same for every annotator, since these are compared too.

        Raises:
            InvalidInputError: no such folder, no images, or several drawn folders of which one must
                be named.
        """
        if not folder.is_dir():
            raise InvalidInputError(f"{folder}: no such folder; expected one with images to label")
        root = _drawn_folder(folder)
        return (
            _of_files(folder, most) if root is None else _of_plan(GeneratedImages.open(root), most)
        )

    def picture(self, record: PlannedImage) -> bytes:
        """Return the pixels as a new PNG, without metadata such as the prompt.

        Raises:
            OSError: the file cannot be read as an image.
        """
        image = decode(self.root / record.path)
        image.thumbnail((LARGEST, LARGEST), Image.Resampling.LANCZOS)
        image.info.clear()
        buffer = io.BytesIO()
        image.save(buffer, format="png", compress_level=1)
        return buffer.getvalue()


def _drawn_folder(folder: Path) -> Path | None:
    """Return the folder itself or the one below it that has a plan; None if none has."""
    if (folder / PLAN).is_file():
        return folder
    found = sorted(
        path.parent for pattern in ("*", "images/*") for path in folder.glob(f"{pattern}/{PLAN}")
    )
    if len(found) > 1:
        listed = ", ".join(map(str, found))
        raise InvalidInputError(
            f"{folder}: holds the images of several tasks; choose one of {listed}"
        )
    return found[0] if found else None


def _of_plan(drawn: GeneratedImages, most: int | None) -> ImageFolder:
    plain = [image for image in drawn if image.stated is None]
    chosen = _in_turn([image for image in plain if image.part == "unseen"] or plain, most)
    there = [image for image in chosen if drawn.path(image).is_file()]
    if not there:
        raise InvalidInputError(
            f"{drawn.folder}: none of its {len(chosen)} images is there; generate them first"
        )
    return ImageFolder(
        drawn.folder, tuple(there), tuple(plain), drawn.plan.prompt_set, len(chosen) - len(there)
    )


def _in_turn(images: Sequence[PlannedImage], most: int | None) -> list[PlannedImage]:
    """Return at most so many images, as of `ImageFolder.open`; the order of prompts does not depend
    on their names."""
    twins: dict[tuple[str, int], int] = Counter((image.prompt, image.seed) for image in images)
    seeds: dict[str, list[int]] = defaultdict(list)
    for prompt, seed in sorted(twins):
        seeds[prompt].append(seed)

    def turn(one: tuple[str, int]) -> tuple[int, bytes]:
        return seeds[one[0]].index(one[1]), hashlib.sha256(one[0].encode()).digest()

    kept: set[tuple[str, int]] = set()
    room = len(images) if most is None else most
    for one in sorted(twins, key=turn):
        room -= twins[one]
        if room < 0 and kept:
            break
        kept.add(one)
    return [image for image in images if (image.prompt, image.seed) in kept]


def _of_files(root: Path, most: int | None) -> ImageFolder:
    files = [
        p.relative_to(root) for p in root.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file()
    ]
    paths = sorted(
        path.as_posix() for path in files if not any(name.startswith(".") for name in path.parts)
    )
    if not paths:
        kinds = ", ".join(sorted(SUFFIXES))
        raise InvalidInputError(
            f"{root}: no images ({kinds}) in it; expected a folder of images to label"
        )
    unkept = [
        path for path in paths if "\\" in path or path != path.encode(errors="replace").decode()
    ]
    if unkept:
        raise InvalidInputError(
            f"{root}: the answers cannot name {len(unkept)} of its images, such as {unkept[0]!r};"
            " rename them without backslashes, in UTF-8"
        )
    records = tuple(_recorded(paths, root.resolve().name or "images"))
    return ImageFolder(root, tuple(_in_turn(records, most)), records)


def _recorded(paths: Sequence[str], name: str) -> Iterable[PlannedImage]:
    """Yield records of plain files: the first folder is the variant, those below it the prompt, the
    file the seed.

    So "before/1.png" and "after/1.png" are compared with one another, and a flat folder is one
    variant.
    """
    split = [PurePosixPath(path).parts for path in paths]
    inside = ["/".join(parts[1:]) if len(parts) > 1 else parts[0] for parts in split]
    number = {path: i for i, path in enumerate(sorted(set(inside)))}
    for path, parts, rest in zip(paths, split, inside, strict=True):
        variant = parts[0] if len(parts) > 1 else "images"
        prompt = "/".join(parts[1:-1]) or name
        yield PlannedImage(prompt, prompt, path=path, variant=variant, seed=number[rest])


@dataclass(frozen=True)
class Question:
    """One attribute, and the values that an image may show.

    Raises:
        InvalidInputError: fewer than two values, one twice, more than there are keys, or a name
            that is reserved.
    """

    attribute: str
    values: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.attribute or self.attribute != self.attribute.strip():
            raise InvalidInputError(
                f"--attribute: expected a name such as gender, got {self.attribute!r}"
            )
        if len(self.values) < 2 or len(set(self.values)) < len(self.values) or not all(self.values):
            raise InvalidInputError(
                f"--choices of {self.attribute}: expected two or more different values such as"
                f" male,female, got {','.join(self.values)!r}"
            )
        reserved = sorted({CANNOT_TELL, NO_PERSON, NO_MAJORITY} & set(self.values))
        if reserved:
            raise InvalidInputError(
                f"--choices of {self.attribute}: {reserved[0]!r} is always offered; leave it out"
            )
        if len(self.choices) > len(KEYS):
            raise InvalidInputError(
                f"--choices of {self.attribute}: at most {len(KEYS) - 2} values have a key, got"
                f" {len(self.values)}"
            )

    @property
    def choices(self) -> tuple[str, ...]:
        """Return the values, then the two answers that name none."""
        return (*self.values, CANNOT_TELL, NO_PERSON)


def questions_of(
    attributes: Sequence[str], choices: Sequence[str] = (), prompt_set: str | None = None
) -> tuple[Question, ...]:
    """Return one question per attribute.

    Args:
        attributes: names, each once.
        choices: for the attribute at the same place, values with commas between them, or the name
            of a prompt set whose attribute has them. Without: the prompt set called as the
            attribute, else `prompt_set`.
        prompt_set: what the images were drawn with; it counts where its name ends with the
            attribute.

    Raises:
        InvalidInputError: no attribute, one twice, more choices than attributes, or an attribute
            without values.
    """
    if not attributes:
        raise InvalidInputError(
            "expected an attribute to label: --attribute gender, with --choices a,b if the"
            " attribute is your own"
        )
    if len(set(attributes)) < len(attributes) or len(choices) > len(attributes):
        raise InvalidInputError(
            "expected different attributes and at most one --choices for each, in the same order; "
            f"got --attribute {', '.join(attributes)} and {len(choices)} --choices"
        )
    given = [*choices, *[""] * (len(attributes) - len(choices))]
    return tuple(
        Question(a, _values(a, c, prompt_set)) for a, c in zip(attributes, given, strict=True)
    )


def _values(attribute: str, choices: str, prompt_set: str | None) -> tuple[str, ...]:
    if choices and choices not in list_prompts():
        return tuple(value.strip() for value in choices.split(","))
    drawn_with = (
        prompt_set if prompt_set in list_prompts() and prompt_set.endswith(attribute) else None
    )
    for name in (choices, attribute, drawn_with):
        if name and name in list_prompts() and (values := tuple(load_prompts(name).attributes)):
            return values
    known = [name for name in list_prompts() if load_prompts(name).attributes]
    raise InvalidInputError(
        f"--attribute {attribute}: its values are not known; list them, as in --choices"
        f" small,large, or name one of the prompt sets {', '.join(known)}"
    )


def annotator_name(text: object, known: Iterable[str] = (), allowed: Sequence[str] = ()) -> str:
    """Return the name under which answers are kept. "ada" is "Ada" if `known` has an Ada: nobody
    starts over by a typo.

    Raises:
        InvalidInputError: no text, empty, too long, with characters other than letters, digits,
            spaces and . ' - _, or not among `allowed` where that is not empty.
    """
    if not isinstance(text, str):
        raise InvalidInputError(f"A name is a text, this one is of the type {type(text).__name__}.")
    if len(text) > 10 * LONGEST_NAME:  # before anything is done with it
        raise InvalidInputError(
            f"A name has at most {LONGEST_NAME} characters, this one has {len(text)}."
        )
    name = " ".join(unicodedata.normalize("NFC", text).split())
    if not any(character.isalnum() for character in name):
        raise InvalidInputError(
            "Type your name, with at least one letter: it keeps your answers apart from others'."
        )
    if len(name) > LONGEST_NAME:
        raise InvalidInputError(
            f"A name has at most {LONGEST_NAME} characters, this one has {len(name)}."
        )
    strange = sorted(
        {c for c in name if unicodedata.category(c)[0] not in "LMN" and c not in " .'-_"}
    )
    if strange:
        shown = " ".join(c if c.isprintable() else f"U+{ord(c):04X}" for c in strange)
        raise InvalidInputError(
            f"A name may have letters, digits, spaces and . ' - _ only; leave out {shown}"
        )
    name = {other.casefold(): other for other in (*known, *allowed)}.get(name.casefold(), name)
    if allowed and name not in allowed:
        raise InvalidInputError(
            f"This study is for {', '.join(allowed)}; ask whoever runs it to add you."
        )
    return name
