"""Sentences around what a caption says, with the small mistakes that captions have."""

__all__ = ["TEMPLATES", "sentence"]

TEMPLATES = (
    "a photo of {}",
    "a picture of {}",
    "this is a picture of {}",
    "this is {}",
)


def sentence(text: str, template: int, *, proper: bool = True, stop: bool = True) -> str:
    """Puts an article before the text (always "a" unless `proper`), a template around it and a full stop."""
    article = "an" if proper and text[0] in "aeiou" else "a"
    return TEMPLATES[template].format(f"{article} {text}") + "." * stop
