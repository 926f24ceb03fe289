"""Test that all hub checkpoints mentioned in pages, help texts and docstrings are in this list."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Each was looked up on the hub on the day it was added. No other checkpoint may be mentioned.
KNOWN = {
    "stable-diffusion-v1-5/stable-diffusion-v1-5",
    "stabilityai/stable-diffusion-xl-base-1.0",
    "black-forest-labs/FLUX.1-dev",
    "black-forest-labs/FLUX.1-schnell",
    "stabilityai/stable-diffusion-3.5-medium",
    "openai/clip-vit-base-patch32",
    "openai/clip-vit-large-patch14",
    "google/siglip-base-patch16-224",
    "google/siglip2-base-patch16-224",
}
# Paths on the user's machine.
FOLDERS = ("apps/", "run/", "vldebias-train/", "out/", "birds/", "sd15")
NAMED = re.compile(
    r"(?:from_pretrained\(|load_host\(|--pipeline[= ]|--model[="
    r" ]|pipeline=|model=)\s*[\"'`]?([a-zA-Z][\w-]*/[\w.-]*\w)"
)


def test_every_mentioned_checkpoint_is_in_the_list() -> None:
    places = [ROOT / place for place in ("README.md", "docs", "vldebias", "apps", "eval")]
    files = []
    for place in places:
        files += [place] if place.is_file() else place.rglob("*")
    texts = (
        file.read_text(encoding="utf-8")
        for file in files
        if file.suffix in (".md", ".py", ".ipynb", ".yaml")
    )
    names = {name for text in texts for name in NAMED.findall(text) if not name.startswith(FOLDERS)}
    assert "stable-diffusion-v1-5/stable-diffusion-v1-5" in names
    assert names - KNOWN == set()
