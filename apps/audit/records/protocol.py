"""Load the "who appears" protocol, and compute how many images and labels it requires."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from statistics import NormalDist
from typing import Annotated

from pydantic import Field

from vldebias.errors import InvalidInputError
from vldebias.prompts import fill
from vldebias.utils.files import packaged, read_yaml
from vldebias.utils.schema import Strict

from .schema import NEUTRAL

PROTOCOL = "who-appears-1"
ERROR = 0.05  # error rate of the judge that is assumed before there are labels
LEAST_IMAGES = 2  # minimum per prompt, since a single image does not determine a variance


@dataclass(frozen=True)
class ProtocolPrompt:
    """A prompt in the protocol, with its subject, its qualifier ("" for none) and its text."""

    subject: str
    qualifier: str
    text: str


class Protocol(Strict):
    """The prompts in one version of the protocol.

    Attributes:
        name: name of this version.
        source, rule: where the subjects come from, and how they were chosen.
        template: prompt template with a placeholder for the subject.
        qualifiers: words that precede the subject.
        professions: subjects that are professions.
        everyday: activities for the other subjects, such as "person cooking".
    """

    name: str
    source: str
    rule: str
    template: str
    qualifiers: Annotated[tuple[str, ...], Field(min_length=1)]
    professions: Annotated[tuple[str, ...], Field(min_length=1)]
    everyday: tuple[str, ...]

    @property
    def subjects(self) -> list[str]:
        """Return the professions, followed by people with an everyday activity."""
        return [*self.professions, *(f"person {activity}" for activity in self.everyday)]

    def prompts(self) -> list[ProtocolPrompt]:
        """Return all prompts, starting with the neutral wording for every subject."""
        prompts = []
        for qualifier in (NEUTRAL, *self.qualifiers):
            for subject in self.subjects:
                words = f"{qualifier} {subject}".strip()
                text = fill(self.template, concept=words)
                prompts.append(ProtocolPrompt(subject, qualifier, text))
        return prompts


@dataclass(frozen=True)
class Numbers:
    """Number of images per prompt, and number of labels per wording."""

    images: int
    labels: int


def load_protocol() -> Protocol:
    """Load the current version of the protocol."""
    return Protocol.build(read_yaml(packaged("prompts/protocol")[PROTOCOL]))


def numbers_for_width(width: float, prompts: int) -> Numbers:
    """Return how many images and labels give a wording's mean share an interval of a given width.

    Half of the variance is allotted to the images, assuming the worst case, in which each prompt
    shows both values equally often. The other half is allotted to the labels, assuming that the
    judge is wrong about a share ERROR of the images.

    Args:
        width: maximum width of the 95% interval, such as 0.1.
        prompts: number of prompts per wording.

    Raises:
        InvalidInputError: If the width is not between 0 and 1.

    >>> numbers_for_width(0.1, 100)
    Numbers(images=8, labels=146)
    """
    if not 0 < width < 1:
        raise InvalidInputError(
            f"width: got {width}; expected a width between 0 and 1, such as 0.1"
        )
    half_of_variance = (width / 2 / NormalDist().inv_cdf(0.975)) ** 2 / 2
    images = ceil(0.25 / half_of_variance / prompts)
    labels = ceil(ERROR * (1 - ERROR) / half_of_variance)
    return Numbers(max(images, LEAST_IMAGES), labels)
