"""Define the parts of a labelling study: images, questions with choices, and annotator names."""

from __future__ import annotations

import hashlib
import io
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, zip_longest
from operator import itemgetter
from pathlib import Path

from PIL import Image

from vldebias.data.folders import files_below, is_picture
from vldebias.data.label_values import CLASS
from vldebias.errors import InvalidInputError
from vldebias.judge.plan import PLAN, GeneratedImages, PlannedImage
from vldebias.prompts import list_prompts, load_prompts
from vldebias.prompts.english.words import person
from vldebias.utils.pictures import ENDINGS, decode

from ..shares.answers import CANNOT_TELL, NO_MAJORITY, NO_PERSON

LARGEST = 1024  # maximum length of the longer side in pixels
# Keys for the choices. Letters are used only if there are more than nine choices.
KEYS = "123456789abcdefghijk"
LONGEST_NAME = 40


@dataclass(frozen=True)
class ImageFolder:
    """Store the images to label.

    Attributes:
        root: the folder. Image paths in the answers are relative to it.
        records: the images to label.
        everything: all images in the folder, some of which may already be labelled.
        prompt_set: name of the images' prompt set, or None for images of unknown origin.
        missing: number of planned images that have not been generated.
        weights: inverse sampling probabilities of the sampled images, by path.
        judge: name of the judge whose answers determine the strata.
    """

    root: Path
    records: tuple[PlannedImage, ...]
    everything: tuple[PlannedImage, ...]
    prompt_set: str | None = None
    missing: int = 0
    weights: Mapping[str, float] = field(default_factory=dict)
    judge: str = ""

    @classmethod
    def open(cls, folder: Path, *, limit: int | None = None) -> ImageFolder:
        """Open the images in a folder.

        If the folder was written by `vldebias eval generation`, only the images of held-out
        concepts are used, as in the paper, or all concepts if none are held out. Images whose
        prompts state the attribute are excluded, since the answers are known.

        Args:
            folder: a folder of images, or the results folder of `vldebias eval generation`.
            limit: maximum number of images. They are chosen from all prompts in turn, seed by
                seed. All variants of an image are included, because variants are compared. All
                annotators label the same images, because annotators are compared, too.

        Raises:
            InvalidInputError: If the folder does not exist, contains no images, or contains images
                from several tasks.
        """
        if not folder.is_dir():
            problem = "got a file" if folder.is_file() else "no such folder"
            raise InvalidInputError(f"{folder}: {problem}; expected a folder of images to label")
        root = _drawn_folder(folder)
        if root is None:
            return _of_files(folder, limit)
        return _of_plan(GeneratedImages.open(root), limit)

    @property
    def is_generated(self) -> bool:
        """Return whether the images were generated from a plan."""
        return (self.root / PLAN).is_file()

    def png(self, record: PlannedImage) -> bytes:
        """Return the image as a new PNG without metadata such as the prompt.

        Raises:
            OSError: If the file cannot be read as an image.
        """
        image = decode(self.root / record.path)
        image.thumbnail((LARGEST, LARGEST), Image.Resampling.LANCZOS)
        # The metadata may contain the prompt, which would reveal the method.
        image.info.clear()
        buffer = io.BytesIO()
        image.save(buffer, format="png", compress_level=1)
        return buffer.getvalue()


def _drawn_folder(folder: Path) -> Path | None:
    """Return the folder that contains a plan, which may be a subfolder, or None."""
    if (folder / PLAN).is_file():
        return folder
    # `folder` may be the image folder or the results folder.
    plans = [*folder.glob(f"*/{PLAN}"), *folder.glob(f"images/*/{PLAN}")]
    if not plans:
        return None
    folders = sorted(plan.parent for plan in plans)
    # Answers are stored next to the images, and tasks must not share a file.
    if len(folders) > 1:
        listed = ", ".join(map(str, folders))
        raise InvalidInputError(
            f"{folder}: the folder contains images from several tasks; choose one of {listed}"
        )
    return folders[0]


def _of_plan(drawn: GeneratedImages, limit: int | None) -> ImageFolder:
    plain = [image for image in drawn if image.stated is None]
    # The thesis labels images of held-out professions (section 7.6.3).
    unseen = [image for image in plain if image.part == "unseen"]
    chosen = _in_turn(unseen or plain, limit)
    generated = [image for image in chosen if drawn.path(image).is_file()]
    if not generated:
        raise InvalidInputError(
            f"{drawn.folder}: none of its {len(chosen)} images exists; generate them first"
        )
    missing = len(chosen) - len(generated)
    return ImageFolder(drawn.folder, tuple(generated), tuple(plain), drawn.plan.prompt_set, missing)


def _in_turn(images: Sequence[PlannedImage], limit: int | None) -> list[PlannedImage]:
    """Return at most `limit` images, see `ImageFolder.open`."""
    # Images with the same prompt and seed differ only in their variant.
    twins: dict[tuple[str, int], int] = Counter((image.prompt, image.seed) for image in images)
    turns: dict[tuple[str, int], tuple[int, bytes]] = {}
    for prompt, twins_of_prompt in groupby(sorted(twins), key=itemgetter(0)):
        # Start with the first seed of every prompt. Prompts are ordered by a hash, not by name.
        order = _hashed(prompt)
        for place, twin in enumerate(twins_of_prompt):
            turns[twin] = place, order

    chosen: set[tuple[str, int]] = set()
    room = len(images)
    if limit is not None:
        room = limit
    for twin in sorted(twins, key=turns.__getitem__):
        room -= twins[twin]
        # Choose at least one image with all its variants, even if they exceed the limit.
        if room < 0 and chosen:
            break
        chosen.add(twin)
    return [image for image in images if (image.prompt, image.seed) in chosen]


def _hashed(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _of_files(root: Path, limit: int | None) -> ImageFolder:
    # Ignore hidden files and files created by programs, such as thumbnails and trash.
    paths = [path for path in files_below(root)[0] if is_picture(path)]
    if not paths:
        kinds = ", ".join(ENDINGS)
        raise InvalidInputError(
            f"{root}: the folder contains no images ({kinds}); expected images to label"
        )
    unnameable = [path for path in paths if not _can_be_named(path)]
    if unnameable:
        raise InvalidInputError(
            f"{root}: got {len(unnameable)} images with invalid names, such as"
            f" {unnameable[0]!r}; rename them without backslashes, in UTF-8"
        )
    records = tuple(_recorded(paths, root.resolve().name or "images"))
    return ImageFolder(root, tuple(_in_turn(records, limit)), records)


def _can_be_named(path: str) -> bool:
    """Return whether a path can be stored in the answers, which must be portable UTF-8."""
    return "\\" not in path and path == path.encode(errors="replace").decode()


def _recorded(paths: Sequence[str], name: str) -> Iterable[PlannedImage]:
    """Yield image records that are derived from file paths.

    The first folder names the variant, the remaining folders the prompt, and the file the seed.
    This way, "before/1.png" and "after/1.png" are compared with each other, and a flat folder has a
    single variant.
    """
    places = []
    for path in paths:
        variant, slash, inside = path.partition("/")
        if not slash:
            inside = variant
            variant = "images"
        places.append((variant, inside))
    # Names are often sorted by class or time, so order the files by a hash: a limited number of
    # images is then a random sample.
    shuffled = sorted({inside for _, inside in places}, key=_hashed)
    seed_of_path = {inside: seed for seed, inside in enumerate(shuffled)}
    for path, (variant, inside) in zip(paths, places, strict=True):
        folder, _, _ = inside.rpartition("/")
        prompt = folder or name
        yield PlannedImage(prompt, prompt, path=path, variant=variant, seed=seed_of_path[inside])


@dataclass(frozen=True)
class Question:
    """Define a question about an attribute, with the values to choose from.

    Raises:
        InvalidInputError: If there are fewer than two values or more values than keys, or if a
            value is repeated or reserved.
    """

    attribute: str
    values: tuple[str, ...]
    prompt_set: str = ""  # the set whose classes are asked about
    is_about_people: bool = True  # whether "no person" is offered

    def __post_init__(self) -> None:
        if not self.attribute or self.attribute != self.attribute.strip():
            raise InvalidInputError(
                f"--attribute: expected a name such as gender, got {self.attribute!r}"
            )
        are_different = len(set(self.values)) == len(self.values)
        if len(self.values) < 2 or not are_different or "" in self.values:
            raise InvalidInputError(
                f"--choices for {self.attribute}: expected two or more different values such as"
                f" male,female, got {','.join(self.values)!r}"
            )
        reserved = sorted({CANNOT_TELL, NO_PERSON, NO_MAJORITY} & set(self.values))
        if reserved:
            raise InvalidInputError(
                f"--choices for {self.attribute}: {reserved[0]!r} is always offered; remove it"
            )
        if len(self.choices) > len(KEYS):
            raise InvalidInputError(
                f"--choices for {self.attribute}: expected at most {len(KEYS) - 2} values, one per"
                f" key, got {len(self.values)}"
            )

    @property
    def choices(self) -> tuple[str, ...]:
        """Return the values, followed by "cannot tell" and, for people, "no person"."""
        return (*self.values, CANNOT_TELL, *([NO_PERSON] if self.is_about_people else []))


def questions_of(
    attributes: Sequence[str], choices: Sequence[str] = (), prompt_set: str | None = None
) -> tuple[Question, ...]:
    """Return one question per attribute.

    Args:
        attributes: distinct attribute names.
        choices: for the attribute at the same position, comma-separated values or the name of a
            prompt set with these values. Default: the prompt set with the attribute's name, or
            `prompt_set` if there is none. For the attribute "class", the name or file of a prompt
            set whose class names are the choices.
        prompt_set: the images' prompt set, which is used if its name ends with the attribute.

    Raises:
        InvalidInputError: If there are no attributes, an attribute is repeated or has no values, or
            there are more choices than attributes.
    """
    if not attributes:
        raise InvalidInputError(
            "expected an attribute to label, such as --attribute gender; add --choices a,b for your"
            " own attributes"
        )
    if len(set(attributes)) < len(attributes) or len(choices) > len(attributes):
        raise InvalidInputError(
            "expected distinct attributes and at most one --choices per attribute, in the same"
            f" order; got --attribute {', '.join(attributes)} and {len(choices)} --choices"
        )
    questions = []
    for attribute, choice in zip_longest(attributes, choices, fillvalue=""):
        # "cat,dog" lists the classes, but "waterbirds" is a prompt set with classes.
        if attribute == CLASS and choice and "," not in choice:
            classes = load_prompts(choice)
            # The classes are people if a class prompt names one: "a celebrity with dark hair".
            words = re.findall(r"\w+", " ".join(classes.classes).lower())
            is_about_people = any(map(person, words))
            questions.append(Question(attribute, classes.class_names, choice, is_about_people))
        else:
            questions.append(Question(attribute, _values(attribute, choice, prompt_set)))
    return tuple(questions)


def _values(attribute: str, choices: str, prompt_set: str | None) -> tuple[str, ...]:
    packaged = list_prompts()
    # "with,without" is a list of values, but "gender" is a prompt set that contains values.
    if choices and choices not in packaged:
        return tuple(value.strip() for value in choices.split(","))
    names = [choices, attribute]
    # The attribute of images from the prompt set "professions-gender" is gender.
    if prompt_set is not None and prompt_set.endswith(attribute):
        names.append(prompt_set)
    for name in names:
        if name in packaged:
            values = tuple(load_prompts(name).attributes)
            if values:
                return values
    known = [name for name in packaged if load_prompts(name).attributes]
    raise InvalidInputError(
        f"--attribute {attribute}: the values of this attribute are unknown; list them, as in"
        f" --choices small,large, or choose one of the prompt sets {', '.join(known)}"
    )


def annotator_name(text: object, known: Iterable[str] = (), allowed: Sequence[str] = ()) -> str:
    """Return the name under which answers are stored.

    Args:
        text: the name that the annotator typed.
        known: names of annotators with answers. "ada" becomes "Ada" if `known` contains "Ada".
        allowed: allowed names. If empty, any name is allowed.

    Raises:
        InvalidInputError: If the name is not a string, is empty or too long, contains characters
            other than letters, digits, spaces and . ' - _, or is not allowed.
    """
    if not isinstance(text, str):
        raise InvalidInputError(f"A name must be a string, but got {type(text).__name__}.")
    if len(text) > 10 * LONGEST_NAME:  # checked first, because normalising long text takes time
        raise InvalidInputError(
            f"A name may have at most {LONGEST_NAME} characters, but this one has {len(text)}."
        )
    # Normalise letters such as é and spaces, so that a name has only one spelling.
    name = " ".join(unicodedata.normalize("NFC", text).split())
    if not any(character.isalnum() for character in name):
        raise InvalidInputError(
            "Enter your name, with at least one letter, so that your answers can be distinguished"
            " from others'."
        )
    if len(name) > LONGEST_NAME:
        raise InvalidInputError(
            f"A name may have at most {LONGEST_NAME} characters, but this one has {len(name)}."
        )
    invalid = sorted({character for character in name if not _is_of_names(character)})
    if invalid:
        shown = " ".join(map(_visible, invalid))
        raise InvalidInputError(
            f"A name may only contain letters, digits, spaces and . ' - _; remove {shown}"
        )
    # The spelling of allowed names takes precedence over the spelling in earlier answers.
    spellings = {spelling.casefold(): spelling for spelling in (*known, *allowed)}
    name = spellings.get(name.casefold(), name)
    if allowed and name not in allowed:
        raise InvalidInputError(
            f"This study is only for {', '.join(allowed)}. Ask the organiser of the study to add"
            " you."
        )
    return name


def _is_of_names(character: str) -> bool:
    """Return whether a character may occur in names: a letter, mark, digit or separator."""
    return unicodedata.category(character)[0] in "LMN" or character in " .'-_"


def _visible(character: str) -> str:
    if character.isprintable():
        return character
    return f"U+{ord(character):04X}"
