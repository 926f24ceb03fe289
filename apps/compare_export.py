"""Takes a mitigation away: the fitted projection as a zip, and the line of code that does the same."""

from __future__ import annotations

import io
import tempfile
import zipfile
from pathlib import Path

from .compare_engine import Engine
from .compare_settings import ATTRIBUTES, OWN, Mitigation, own_values

__all__ = ["export", "one_line"]


def one_line(mitigation: Mitigation, side: str) -> str:
    """Python that attaches the same: one call, and above it what a visitor's own words need."""
    host, tokenizer = ("pipe", "") if side == "pipeline" else ("model", ", tokenizer=tokenizer")
    lines = ["import vldebias", ""]
    given = [repr(ATTRIBUTES[name]) for name in mitigation.attributes]
    if mitigation.words:
        lines += [
            'people = vldebias.load_prompts("professions-gender")',
            f"own = vldebias.make_prompt_set({OWN!r}, {own_values(mitigation.words)!r}, people.class_names, "
            "test_concepts=people.held_out_class_names)",
        ]
        given.append("own")
    prompts = given[0] if len(given) == 1 else f"[{', '.join(given)}]"
    return "\n".join([*lines, f"attachment = vldebias.debias({host}, {prompts}{_options(mitigation)}{tokenizer})"])


def _options(mitigation: Mitigation) -> str:
    """The arguments that are not the default."""
    written = {
        "method": mitigation.method,
        "lam": mitigation.lam,
        "strength": None if mitigation.strength == 1 else mitigation.strength,
        "keep_stated": None if mitigation.keep_stated else False,
    }
    return "".join(f", {name}={value!r}" for name, value in written.items() if value is not None)


def export(engine: Engine, side: str, mitigation: Mitigation) -> tuple[bytes, str]:
    """(zip, code): one folder per role as `save_pretrained` writes it and `vldebias merge` reads it."""
    fitted, code = engine.fit(side, mitigation), one_line(mitigation, side)
    buffer = io.BytesIO()
    with tempfile.TemporaryDirectory() as place, zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as packed:
        root = Path(place)
        for role, projection in fitted.projections.items():
            projection.save_pretrained(root / role)
        if mitigation.words:
            mitigation.sets[-1].to_yaml(root / "own-words.yaml")
        (root / "attach.py").write_text(code + "\n", encoding="utf-8")
        for path in sorted(path for path in root.rglob("*") if path.is_file()):
            packed.write(path, path.relative_to(root).as_posix())
    return buffer.getvalue(), code
