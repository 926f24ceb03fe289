"""What a study is made of: its images, its questions with their choices, and the names of those who
answer."""

from __future__ import annotations

import hashlib
import io
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

from PIL import Image

from vldebias.data import decode
from vldebias.data.folders import files_below, is_picture
from vldebias.errors import InvalidInputError
from vldebias.judge.answers import CANNOT_TELL, NO_MAJORITY, NO_PERSON
from vldebias.judge.plan import PLAN, GeneratedImages, PlannedImage
from vldebias.prompts import list_prompts, load_prompts
from vldebias.utils.pictures import ENDINGS

LARGEST = 1024  # pixels of the longer side: more than a page shows
# The key of each choice; no attribute of the literature needs the letters.
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
    def open(cls, folder: Path, *, limit: int | None = None) -> ImageFolder:
        """Return the images of a folder that `vldebias eval generation` wrote, of its results, or
        of any folder.

        Of a generated folder those of held-out concepts, as the paper labels, or of all if it has
        none; no prompt states the attribute, since such an image has one right answer.

        limit: at most so many images in all: the prompts in turn, one seed after the other, each
        under every variant,
            since these are compared. The same for every annotator, since these are compared too.

        Raises:
            InvalidInputError: no such folder, no images, or several drawn folders of which one must
                be named.
        """
        if not folder.is_dir():
            raise InvalidInputError(f"{folder}: no such folder; expected one with images to label")
        root = _drawn_folder(folder)
        if root is None:
            return _of_files(folder, limit)
        return _of_plan(GeneratedImages.open(root), limit)

    def picture(self, record: PlannedImage) -> bytes:
        """Return the pixels as a new PNG, without metadata such as the prompt.

        Raises:
            OSError: the file cannot be read as an image.
        """
        image = decode(self.root / record.path)
        image.thumbnail((LARGEST, LARGEST), Image.Resampling.LANCZOS)
        # The prompt may stand in the metadata, and would tell which method it was.
        image.info.clear()
        buffer = io.BytesIO()
        image.save(buffer, format="png", compress_level=1)
        return buffer.getvalue()


def _drawn_folder(folder: Path) -> Path | None:
    """Return the folder itself or the one below it that has a plan; None if none has."""
    if (folder / PLAN).is_file():
        return folder
    # The folder of images, or that of the results around it.
    plans = [*folder.glob(f"*/{PLAN}"), *folder.glob(f"images/*/{PLAN}")]
    if not plans:
        return None
    folders = sorted(plan.parent for plan in plans)
    # Answers go beside the images, so that two tasks must not share a file.
    if len(folders) > 1:
        listed = ", ".join(map(str, folders))
        raise InvalidInputError(
            f"{folder}: holds the images of several tasks; choose one of {listed}"
        )
    return folders[0]


def _of_plan(drawn: GeneratedImages, limit: int | None) -> ImageFolder:
    plain = [image for image in drawn if image.stated is None]
    # The thesis labels images of professions that no fit has seen (section 7.6.3).
    unseen = [image for image in plain if image.part == "unseen"]
    chosen = _in_turn(unseen or plain, limit)
    generated = [image for image in chosen if drawn.path(image).is_file()]
    if not generated:
        raise InvalidInputError(
            f"{drawn.folder}: none of its {len(chosen)} images is there; generate them first"
        )
    missing = len(chosen) - len(generated)
    return ImageFolder(drawn.folder, tuple(generated), tuple(plain), drawn.plan.prompt_set, missing)


def _in_turn(images: Sequence[PlannedImage], limit: int | None) -> list[PlannedImage]:
    """Return at most so many images (see `ImageFolder.open`); the order of prompts does not depend
    on their names."""
    # Images of one prompt and seed are twins, which differ in their variant alone.
    twins: dict[tuple[str, int], int] = Counter((image.prompt, image.seed) for image in images)
    seeds: dict[str, list[int]] = defaultdict(list)
    for prompt, seed in sorted(twins):
        seeds[prompt].append(seed)

    def turn(twin: tuple[str, int]) -> tuple[int, bytes]:
        prompt, seed = twin
        # First each prompt's first seed, then each second;
        # prompts in an order that no name decides.
        return seeds[prompt].index(seed), hashlib.sha256(prompt.encode()).digest()

    chosen: set[tuple[str, int]] = set()
    room = len(images)
    if limit is not None:
        room = limit
    for twin in sorted(twins, key=turn):
        room -= twins[twin]
        # The first ones are taken even where they are more than the limit.
        if room < 0 and chosen:
            break
        chosen.add(twin)
    return [image for image in images if (image.prompt, image.seed) in chosen]


def _of_files(root: Path, limit: int | None) -> ImageFolder:
    # Without hidden files and what programs leave, such as thumbnails and trash.
    paths = [path for path in files_below(root)[0] if is_picture(path)]
    if not paths:
        kinds = ", ".join(ENDINGS)
        raise InvalidInputError(
            f"{root}: no images ({kinds}) in it; expected a folder of images to label"
        )
    unnameable = [path for path in paths if not _can_be_named(path)]
    if unnameable:
        raise InvalidInputError(
            f"{root}: the answers cannot name {len(unnameable)} of its images, such as"
            f" {unnameable[0]!r}; rename them without backslashes, in UTF-8"
        )
    records = tuple(_recorded(paths, root.resolve().name or "images"))
    return ImageFolder(root, tuple(_in_turn(records, limit)), records)


def _can_be_named(path: str) -> bool:
    """Tell whether the answers, a file in UTF-8 that any system may read, can hold a path."""
    return "\\" not in path and path == path.encode(errors="replace").decode()


def _recorded(paths: Sequence[str], name: str) -> Iterable[PlannedImage]:
    """Yield records of plain files: the first folder is the variant, those below it the prompt, the
    file the seed.

    So "before/1.png" and "after/1.png" are compared with one another, and a flat folder is one
    variant.
    """
    places = []
    for path in paths:
        variant, slash, inside = path.partition("/")
        if not slash:
            inside = variant
            variant = "images"
        places.append((variant, inside))
    seed_of_path = {}
    for seed, inside in enumerate(sorted({inside for _, inside in places})):
        seed_of_path[inside] = seed
    for path, (variant, inside) in zip(paths, places, strict=True):
        folder, _, _ = inside.rpartition("/")
        prompt = folder or name
        yield PlannedImage(prompt, prompt, path=path, variant=variant, seed=seed_of_path[inside])


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
        are_different = len(set(self.values)) == len(self.values)
        if len(self.values) < 2 or not are_different or "" in self.values:
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
    questions = []
    for attribute, choice in zip_longest(attributes, choices, fillvalue=""):
        questions.append(Question(attribute, _values(attribute, choice, prompt_set)))
    return tuple(questions)


def _values(attribute: str, choices: str, prompt_set: str | None) -> tuple[str, ...]:
    packaged = list_prompts()
    # "with,without" are values; "gender" is a set that has them.
    if choices and choices not in packaged:
        return tuple(value.strip() for value in choices.split(","))
    names = [choices, attribute]
    # Images drawn with "professions-gender" show a gender.
    if prompt_set is not None and prompt_set.endswith(attribute):
        names.append(prompt_set)
    for name in names:
        if name in packaged:
            values = tuple(load_prompts(name).attributes)
            if values:
                return values
    known = [name for name in packaged if load_prompts(name).attributes]
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
    # One spelling of é, and no blanks that nobody sees: else one person would be two.
    name = " ".join(unicodedata.normalize("NFC", text).split())
    if not any(character.isalnum() for character in name):
        raise InvalidInputError(
            "Type your name, with at least one letter: it keeps your answers apart from others'."
        )
    if len(name) > LONGEST_NAME:
        raise InvalidInputError(
            f"A name has at most {LONGEST_NAME} characters, this one has {len(name)}."
        )
    strange = sorted({character for character in name if not _is_of_names(character)})
    if strange:
        shown = " ".join(map(_visible, strange))
        raise InvalidInputError(
            f"A name may have letters, digits, spaces and . ' - _ only; leave out {shown}"
        )
    # Names of the study come last, and win over a spelling that somebody has used.
    spellings = {spelling.casefold(): spelling for spelling in (*known, *allowed)}
    name = spellings.get(name.casefold(), name)
    if allowed and name not in allowed:
        raise InvalidInputError(
            f"This study is for {', '.join(allowed)}; ask whoever runs it to add you."
        )
    return name


def _is_of_names(character: str) -> bool:
    """Tell whether a character is a letter, a mark on one, a digit, or stands between them."""
    return unicodedata.category(character)[0] in "LMN" or character in " .'-_"


def _visible(character: str) -> str:
    if character.isprintable():
        return character
    return f"U+{ord(character):04X}"
