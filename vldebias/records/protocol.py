"""Read the protocol "who appears": its prompts, and how many images and labels they need."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from statistics import NormalDist
from typing import Annotated

from pydantic import Field

from vldebias.errors import InvalidInputError
from vldebias.prompts import fill
from vldebias.records.schema import NEUTRAL
from vldebias.utils.files import packaged, read_yaml
from vldebias.utils.schema import Strict

PROTOCOL = "who-appears-1"
ERROR = 0.05  # share of the judge's answers that are assumed to be wrong, until people label
LEAST_IMAGES = 2  # of a prompt, since one image says nothing of its variance


@dataclass(frozen=True)
class ProtocolPrompt:
    """Hold one prompt of the protocol: its subject, its qualifier ("" for none), and its text."""

    subject: str
    qualifier: str
    text: str


class Protocol(Strict):
    """Hold the prompts of a version of the protocol.

    Attributes:
        name: of this version.
        source, rule: where the subjects come from, and how they were chosen.
        template: the prompt, with a slot for the subject.
        qualifiers: words that are put in front of the subject.
        professions: subjects that are professions.
        everyday: what a person does, in the subjects that are no professions.
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
        """Return professions and persons in everyday situations."""
        return [*self.professions, *(f"person {activity}" for activity in self.everyday)]

    def prompts(self) -> list[ProtocolPrompt]:
        """Return every prompt, the neutral wording of all subjects first."""
        prompts = []
        for qualifier in (NEUTRAL, *self.qualifiers):
            for subject in self.subjects:
                words = f"{qualifier} {subject}".strip()
                text = fill(self.template, concept=words)
                prompts.append(ProtocolPrompt(subject, qualifier, text))
        return prompts


@dataclass(frozen=True)
class Numbers:
    """Hold how much is generated and labelled: images of each prompt, and labels of each
    wording."""

    images: int
    labels: int


def load_protocol(name: str = PROTOCOL) -> Protocol:
    """Return a version of the protocol.

    Args:
        name: of the version.

    Raises:
        InvalidInputError: no such version.
    """
    files = packaged("prompts/protocol")
    if name not in files:
        raise InvalidInputError(f"protocol: got {name!r}; expected one of {', '.join(files)}")
    return Protocol.build(read_yaml(files[name]))


def numbers_for_width(width: float, prompts: int, error: float = ERROR) -> Numbers:
    """Return how much to generate and label so that the mean share of a wording has an interval of
    at most this width.

    Half of the variance is left to the images, each prompt showing both values equally often in
    the worst case; the other half to the labels, with a share `error` of wrong answers.

    Args:
        width: of the 95 % interval, such as 0.1.
        prompts: number of prompts of a wording.
        error: share of images about which the judge is assumed to be wrong.

    Raises:
        InvalidInputError: a width that is not between 0 and 1, or an error outside [0, 0.5].

    >>> numbers_for_width(0.1, 100)
    Numbers(images=8, labels=146)
    """
    if not 0 < width < 1:
        raise InvalidInputError(f"width: got {width}; expected one between 0 and 1, such as 0.1")
    if not 0 <= error <= 0.5:
        raise InvalidInputError(f"error: got {error}; expected a share between 0 and 0.5")
    half_of_variance = (width / 2 / NormalDist().inv_cdf(0.975)) ** 2 / 2
    images = ceil(0.25 / half_of_variance / prompts)
    labels = ceil(error * (1 - error) / half_of_variance)
    return Numbers(max(images, LEAST_IMAGES), labels)
