"""Takes a mitigation away: the fitted projection as a zip, and the lines of code that do the same."""

from __future__ import annotations

import io
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .engine import Engine
from .settings import ATTRIBUTES, OWN, Mitigation, own_values


def one_line(engine: Engine, side: str, mitigation: Mitigation) -> str:
    """Python that attaches the same and runs as it stands: the model, what a visitor's own words need, one call."""
    named: dict[str, str | None]
    if side == "pipeline":
        host, tokenizer, named = "pipe", "", {"pipeline": engine.pipeline_name}
    else:
        host, tokenizer = "model", ", tokenizer=loaded.tokenizer"
        named = {"model": engine.model_name, "pretrained": engine.pretrained}
    named |= {"device": None if engine.device in ("auto", "cpu") else engine.device, "dtype": engine.dtype}
    lines = ["import vldebias", "", f"loaded = vldebias.load_host({_arguments(named)})", f"{host} = loaded.host"]
    given = [repr(ATTRIBUTES[name]) for name in mitigation.attributes]
    if mitigation.words:
        lines += [
            'people = vldebias.load_prompts("professions-gender")',
            f"own = vldebias.make_prompt_set({OWN!r}, {own_values(mitigation.words)!r}, people.class_names, "
            "test_concepts=people.held_out_class_names)",
        ]
        given.append("own")
    prompts = given[0] if len(given) == 1 else f"[{', '.join(given)}]"
    options = {
        "method": mitigation.method,
        "lam": mitigation.lam,
        "strength": None if mitigation.strength == 1 else mitigation.strength,
        "keep_stated": None if mitigation.keep_stated else False,
    }
    call = f"attachment = vldebias.debias({host}, {prompts}, {_arguments(options)}{tokenizer})"
    return "\n".join([*lines, call])


def _arguments(given: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in given.items() if value is not None)


def export(engine: Engine, side: str, mitigation: Mitigation) -> tuple[bytes, str]:
    """(zip, code): one folder per role as `save_pretrained` writes it and `vldebias merge` reads it."""
    fitted, code = engine.fit(side, mitigation), one_line(engine, side, mitigation)
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
