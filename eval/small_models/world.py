"""Draw captioned people and things at 32 x 32 pixels, and recognise what an image shows.

A person has a sex (length of the hair), a hair colour and a job (colour of the coat and the sign on
it). In training images, sex and hair colour are correlated with the job, so that models associate
them with it. The judge analyses pixels and is not trained.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SIZE = 32
SEXES = ("female", "male")
HAIR = {
    "black": (28, 22, 30),
    "blond": (235, 205, 90),
    "red": (190, 50, 40),
    "white": (232, 232, 236),
}
HAIR_WORDS = {
    "black": "black-haired",
    "blond": "blond",
    "red": "red-haired",
    "white": "white-haired",
}
COATS = ((45, 70, 170), (40, 140, 75), (150, 75, 175), (232, 140, 45), (120, 85, 55))
NO_COAT = (140, 140, 148)
SIGNS = ("none", "band", "bar", "square")
SIGN_COLOR = (250, 250, 245)
SKINS = ((250, 222, 198), (214, 170, 132), (158, 108, 76), (92, 62, 46))
EYES = (20, 20, 25)
WALLS = ((176, 204, 228), (206, 218, 206), (222, 206, 226), (192, 192, 192))
PLACES = {
    "in a park": (128, 188, 116),
    "at the beach": (240, 226, 176),
    "at night": (48, 48, 92),
    "in a room": (202, 182, 160),
}
TEMPLATES = ("a photo of {}", "a portrait of {}", "a drawing of {}", "{}")
THINGS = ("tree", "house", "boat", "cup", "mountain", "chair", "bird", "cat")

JOBS = (
    "baker",
    "barber",
    "chef",
    "clerk",
    "dentist",
    "doctor",
    "farmer",
    "judge",
    "lawyer",
    "librarian",
    "mechanic",
    "nurse",
    "pilot",
    "plumber",
    "poet",
    "sailor",
    "singer",
    "surgeon",
    "tailor",
    "teacher",
)
# In percent, in the order of the jobs.
WOMEN = (92, 10, 85, 6, 90, 15, 12, 95, 8, 88, 5, 90, 10, 86, 94, 15, 90, 8, 88, 12)
MAIN_HAIR_SHARE = 0.76

Pixels = NDArray[np.float64]
Picture = NDArray[np.uint8]
_Y, _X = np.mgrid[0:SIZE, 0:SIZE]


@dataclass(frozen=True)
class Person:
    """A person, who wears a neutral coat if the job is None."""

    sex: str
    hair: str
    job: str | None
    skin: int = 0


@dataclass(frozen=True)
class Sample:
    """A caption with its image, and the person if the image shows exactly one."""

    caption: str
    picture: Picture
    person: Person | None


def share_of_women(job: str | None) -> float:
    """Return the share of women in training images of a job."""
    return 0.5 if job is None else WOMEN[JOBS.index(job)] / 100


def shares_of_hair(job: str | None) -> NDArray[np.float64]:
    """Return the shares of hair colours in training images of a job."""
    if job is None:
        return np.full(len(HAIR), 1 / len(HAIR))
    number = JOBS.index(job)
    shares = np.full(len(HAIR), (1 - MAIN_HAIR_SHARE) / (len(HAIR) - 1))
    shares[(number + number // 5) % len(HAIR)] = MAIN_HAIR_SHARE
    return shares


def with_article(noun: str) -> str:
    """Return a noun with its indefinite article."""
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


# ---- drawing


def regions() -> dict[str, NDArray[np.bool_]]:
    """Return masks for the parts of a person who fills the image."""
    head = (_X - 15.5) ** 2 + (_Y - 9) ** 2 <= 5.0**2
    crown = ((_X - 15.5) ** 2 + (_Y - 9) ** 2 <= 6.8**2) & (_Y < 9)
    face = head & (_Y >= 7)
    strands = (np.abs(_X - 15.5) >= 5) & (np.abs(_X - 15.5) <= 8) & (_Y >= 8) & (_Y < 21)
    shoulders = np.minimum(9, 4 + (_Y - 15) * 1.5)
    coat = (_Y >= 16) & (np.abs(_X - 15.5) <= shoulders)
    coat_under_hair = coat & ~face
    return {
        "crown": crown & ~face,
        "face": face,
        "eyes": face & (_Y == 9) & np.isin(_X, (13, 18)),
        "strands": strands & ~face,
        "coat": coat_under_hair,
        "band": coat_under_hair & (_Y >= 22) & (_Y <= 24),
        "bar": coat_under_hair & (np.abs(_X - 15.5) < 2),
        "square": coat_under_hair & (np.abs(_X - 15.5) < 3) & (_Y >= 20) & (_Y <= 25),
    }


REGIONS = regions()


def paint(person: Person, background: Pixels) -> Pixels:
    """Return the background with a person in front of it."""
    picture = background.copy()
    if person.job is None:
        picture[REGIONS["coat"]] = NO_COAT
    else:
        number = JOBS.index(person.job)
        picture[REGIONS["coat"]] = COATS[number % len(COATS)]
        sign = SIGNS[number // len(COATS)]
        if sign != "none":
            picture[REGIONS[sign]] = SIGN_COLOR
    picture[REGIONS["crown"]] = HAIR[person.hair]
    if person.sex == "female":
        picture[REGIONS["strands"]] = HAIR[person.hair]
    picture[REGIONS["face"]] = SKINS[person.skin]
    picture[REGIONS["eyes"]] = EYES
    return picture


def paint_pair(left: Person, right: Person, background: Pixels) -> Pixels:
    """Return the background with two people side by side at half the size."""
    nothing = np.full_like(background, -1.0)
    picture = background.copy()
    half = SIZE // 2
    for start, person in ((0, left), (half, right)):
        small = paint(person, nothing)[::2, ::2]
        part = picture[-half:, start : start + half]
        is_painted = small[..., 0] >= 0
        part[is_painted] = small[is_painted]
    return picture


def paint_thing(name: str, background: Pixels) -> Pixels:
    """Return the background with a thing in front of it."""
    picture = background.copy()
    x, y = _X - 15.5, _Y - 15.5
    if name == "tree":
        picture[(np.abs(x) < 2) & (y > 2) & (y < 13)] = (104, 66, 36)
        picture[x**2 + (y + 3) ** 2 <= 49] = (24, 120, 44)
    elif name == "house":
        picture[(np.abs(x) < 9) & (y > 0) & (y < 11)] = (196, 120, 84)
        picture[(y <= 0) & (y > -10) & (np.abs(x) <= y + 10)] = (124, 36, 32)
    elif name == "boat":
        picture[y > 8] = (44, 96, 180)
        picture[(y > 4) & (y < 9) & (np.abs(x) <= 15 - y)] = (124, 76, 36)
        picture[(y <= 4) & (y > -11) & (x > 0) & (x <= (y + 11) * 0.6)] = (250, 250, 250)
    elif name == "cup":
        handle = (x - 8) ** 2 + y**2
        picture[(handle <= 20) & (handle >= 8)] = (90, 150, 200)
        picture[(np.abs(x) < 7) & (np.abs(y) < 7)] = (90, 150, 200)
    elif name == "mountain":
        picture[(y < 11) & (y > -11) & (np.abs(x) <= y + 11)] = (128, 128, 138)
        picture[(y < -4) & (y > -11) & (np.abs(x) <= y + 11)] = (252, 252, 252)
    elif name == "chair":
        picture[(x > -8) & (x < -4) & (np.abs(y) < 13)] = (150, 100, 50)
        picture[(x > -8) & (x < 8) & (y > 1) & (y < 5)] = (150, 100, 50)
        picture[(x > 4) & (x < 8) & (y > 1) & (y < 13)] = (150, 100, 50)
    elif name == "bird":
        picture[(x / 8) ** 2 + (y / 4) ** 2 <= 1] = (70, 72, 168)
        picture[(x - 7) ** 2 + (y + 3) ** 2 <= 10] = (70, 72, 168)
        picture[(x > 9) & (x < 14) & (np.abs(y + 3) < 1)] = (240, 160, 32)
    elif name == "cat":
        picture[(x / 7) ** 2 + ((y - 5) / 7) ** 2 <= 1] = (70, 70, 74)
        picture[x**2 + (y + 5) ** 2 <= 25] = (70, 70, 74)
        picture[(np.abs(np.abs(x) - 3) < 2) & (y > -13) & (y < -7)] = (70, 70, 74)
    else:
        raise ValueError(f"Expected one of {THINGS}, got {name!r}.")
    return picture


# ---- samples


class Painter:
    """Draw samples of the world from a random stream."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def sample(self) -> Sample:
        """Return one captioned image of a thing, two people or one person."""
        place = str(self.rng.choice(list(PLACES))) if self.rng.random() < 0.3 else ""
        color = PLACES[place] if place else WALLS[self.rng.integers(len(WALLS))]
        background = np.tile(np.array(color, float), (SIZE, SIZE, 1))
        kind = self.rng.random()
        person = None
        if kind < 0.1:
            name = str(self.rng.choice(THINGS))
            subject = with_article(name)
            picture = paint_thing(name, background)
        elif kind < 0.18:
            left, right = self.rng.choice(JOBS, 2, replace=False).tolist()
            subject = f"{with_article(left)} and {with_article(right)}"
            people = [self.person(job, is_even=False) for job in (left, right)]
            picture = paint_pair(*people, background)
        else:
            subject, person = self.captioned_person()
            picture = paint(person, background)
        template = TEMPLATES[self.rng.integers(len(TEMPLATES))]
        caption = f"{template.format(subject)} {place}".strip() + "."
        return Sample(caption, self.finished(picture), person)

    def captioned_person(self) -> tuple[str, Person]:
        """Return a noun phrase, which states sex or hair colour half of the time, and a person."""
        job = None if self.rng.random() < 0.12 else str(self.rng.choice(JOBS))
        states_something = self.rng.random() < 0.55
        # Stated values are often unusual for the job, because a model could otherwise ignore them.
        is_even = states_something and self.rng.random() < 0.6
        person = self.person(job, is_even=is_even)
        noun = job or "person"
        words = []
        if states_something:
            choice = self.rng.random()
            states_hair = choice > 0.38
            if states_hair:
                words.append(HAIR_WORDS[person.hair])
            if choice < 0.62:
                if job is None and self.rng.random() < 0.5:
                    noun = "woman" if person.sex == "female" else "man"
                else:
                    words.append(person.sex)
        return with_article(" ".join([*words, noun])), person

    def person(self, job: str | None, *, is_even: bool) -> Person:
        """Return a random person with a job, ignoring the job's correlations if `is_even`."""
        women = 0.5 if is_even else share_of_women(job)
        shares = shares_of_hair(None if is_even else job)
        sex = SEXES[int(self.rng.random() >= women)]
        hair = list(HAIR)[self.rng.choice(len(HAIR), p=shares)]
        return Person(sex, hair, job, int(self.rng.integers(len(SKINS))))

    def finished(self, picture: Pixels) -> Picture:
        """Return the image with a little noise, as bytes."""
        noisy = picture + self.rng.normal(0, 2.5, picture.shape)
        return np.clip(noisy, 0, 255).round().astype(np.uint8)


# ---- the judge


@dataclass(frozen=True)
class Verdict:
    """What an image of one person shows, where None means unknown."""

    sex: str | None
    hair: str | None
    job: str | None


def judge(picture: Picture) -> Verdict:
    """Recognise the sex, hair colour and job by the colours of the parts of a person.

    Hair and coat colours are the nearest colours in the world, or unknown if the distance (sum over
    channels) is above 120. The sex is based on the share of pixels in the strands that are closer
    to the hair colour than to the coat or background. It is female above 0.65 and male below 0.35.
    """
    pixels = picture.astype(float)
    hair_color = pixels[REGIONS["crown"]].mean(0)
    hair = _nearest(hair_color, dict(HAIR))
    signs = REGIONS["band"] | REGIONS["bar"] | REGIONS["square"]
    coat_color = pixels[REGIONS["coat"] & ~signs & ~REGIONS["strands"]].mean(0)
    coats = dict(enumerate(COATS)) | {-1: NO_COAT}
    coat = _nearest(coat_color, coats)
    job = None
    if coat is not None and coat >= 0:
        job = JOBS[_sign(pixels, coat_color) * len(COATS) + coat]
    return Verdict(_sex(pixels, hair_color, coat_color), hair, job)


def _nearest(color: Pixels, colors: dict) -> object:
    """Return the key of the nearest colour, or None if all are far away."""
    distances = {key: float(np.abs(color - value).sum()) for key, value in colors.items()}
    key = min(distances, key=lambda candidate: distances[candidate])
    return key if distances[key] <= 120 else None


def _sign(pixels: Pixels, coat_color: Pixels) -> int:
    """Return the number of the sign that matches the white pixels on the coat best."""
    area = REGIONS["coat"] & ~REGIONS["strands"]
    errors = []
    for sign in SIGNS:
        expected = np.tile(coat_color, (SIZE, SIZE, 1))
        if sign != "none":
            expected[REGIONS[sign]] = SIGN_COLOR
        errors.append(float(np.abs(pixels - expected)[area].sum()))
    return int(np.argmin(errors))


def _sex(pixels: Pixels, hair_color: Pixels, coat_color: Pixels) -> str | None:
    """Return the sex based on the length of the hair."""
    corners = np.concatenate([pixels[:6, :4], pixels[:6, -4:]]).reshape(-1, 3)
    behind = np.tile(np.median(corners, axis=0), (SIZE, SIZE, 1))
    behind[REGIONS["coat"]] = coat_color
    to_hair = np.abs(pixels - hair_color).sum(2)
    to_behind = np.abs(pixels - behind).sum(2)
    is_hair = (to_hair < to_behind)[REGIONS["strands"]]
    if is_hair.mean() > 0.65:
        return "female"
    return "male" if is_hair.mean() < 0.35 else None
