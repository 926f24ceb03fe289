"""Find images in the fields of a request, which already show the person."""

from __future__ import annotations

import re
from collections.abc import Mapping

# A URL, a data URL or the id of an uploaded file.
_ADDRESS = re.compile(r"(?:[a-z][a-z0-9+.-]*://|data:|file-)\S", re.IGNORECASE)
_BASE64 = re.compile(r"[A-Za-z0-9+/_\-\r\n]+=*")
_LONG = 64  # length above which base64 cannot be a setting, such as a format or a size
# Fields that contain an image itself, so that short base64 is an image, too.
_WHOLE = re.compile(r"(?:images?|data|b64_json)$", re.IGNORECASE)


def has_image(body: Mapping[str, object], word: str = "image") -> bool:
    """Return whether a field with "image" in its name holds an image, at any depth.

    Servers use many names, such as `image_url`, `init_image` or `reference_images`, and gateways
    accept them inside of `extra_body`. An object of a type such as "input_image" counts as well.

    Args:
        body: The fields of a request.
        word: A regular expression for the names.

    >>> has_image({"extra_body": {"ref_images": [{"url": "https://host.example/her.png"}]}})
    True
    >>> has_image({"image_format": "png", "image_size": {"width": 512}, "init_image": None})
    False
    """
    is_named = re.compile(word, re.IGNORECASE).search
    # Each entry has a field's name, its value, and whether the field is for an image.
    remaining: list[tuple[str, object, bool]] = [("", body, False)]
    while remaining:
        name, value, is_for_image = remaining.pop()
        if isinstance(value, Mapping):
            kind = value.get("type")
            is_for_image = is_for_image or (isinstance(kind, str) and bool(is_named(kind)))
            for key, item in value.items():
                remaining.append((key, item, is_for_image or bool(is_named(key))))
        elif isinstance(value, list):
            remaining += [(name, item, is_for_image) for item in value]
        elif is_for_image and isinstance(value, str) and _is_image(name, value):
            return True
    return False


def _is_image(name: str, text: str) -> bool:
    """Return whether the value of a field for an image is the image or refers to one."""
    if name.lower() == "file_id":
        return bool(text.strip())
    if _ADDRESS.match(text.strip()):
        return True
    if not _BASE64.fullmatch(text.strip()):
        return False
    # Words such as "auto" have the form of base64, too.
    is_short = bool(_WHOLE.search(name)) and len(text) % 4 == 0 and not text.islower()
    return is_short or len(text) > _LONG
