"""Every error and warning that vldebias raises on purpose: what came, what was expected, what to do."""

__all__ = [
    "AlreadyAttachedError",
    "AutoDeclinedWarning",
    "ClassSignalWarning",
    "InvalidInputError",
    "ProjectionMismatchError",
    "PromptSetError",
    "ReferenceWarning",
    "TruncatedPromptWarning",
    "UnsupportedHostError",
    "VldebiasError",
    "VldebiasWarning",
]


class VldebiasError(Exception):
    """Base class: `except VldebiasError` catches whatever this package raises on purpose."""


class InvalidInputError(VldebiasError, ValueError):
    """A value has the wrong shape, type or range."""


class PromptSetError(VldebiasError, ValueError):
    """A prompt set is unknown, unreadable or does not follow the schema."""


class ProjectionMismatchError(VldebiasError, ValueError):
    """A projection was fitted for another space, dimension or set of weights."""


class UnsupportedHostError(VldebiasError, TypeError):
    """The model or pipeline has no known seam for a projection."""


class AlreadyAttachedError(VldebiasError, RuntimeError):
    """The host already carries an attachment: P* P* is not P*, so attaching twice is another method."""


class VldebiasWarning(UserWarning):
    """Base class of the warnings."""


class AutoDeclinedWarning(VldebiasWarning):
    """method="auto" expects no method to help beyond its interval, and changes nothing."""


class ClassSignalWarning(VldebiasWarning):
    """A projection removes a large share of what tells the classes apart."""


class ReferenceWarning(VldebiasWarning):
    """Reference images do not settle the direction that is equalised."""


class TruncatedPromptWarning(VldebiasWarning):
    """A prompt is longer than the text tower reads."""
