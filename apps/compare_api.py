"""The same for programs: named endpoints that gradio_client calls, plain values in and out."""

from __future__ import annotations

import base64
import binascii
import threading
from typing import Any

import gradio as gr

from vldebias.errors import InvalidInputError

from .compare_classify import CLASSES, EXAMPLES, LARGEST_UPLOAD, SPURIOUS, classify, example, read_upload
from .compare_draw import about, compare, png, summary
from .compare_engine import Engine
from .compare_export import export
from .compare_form import told
from .compare_generate import QUEUE
from .compare_inspect import inspect
from .compare_retrieve import retrieve
from .compare_settings import AUTOMATIC, Drawing, Mitigation

__all__ = ["add_endpoints"]


def add_endpoints(engine: Engine) -> None:
    """/generate, /classify, /retrieve, /inspect and /export; pictures and files are base64.

    method: "automatic" or one of `vldebias.api.METHODS`. lam: below 0 is the preset.
    """

    @told
    def generate(
        prompt: str,
        attributes: list[str] = ["gender"],  # noqa: B006  (read only; Gradio wants the default itself)
        words: str = "",
        method: str = AUTOMATIC,
        lam: float = -1,
        strength: float = 1.0,
        keep_stated: bool = True,
        number: int = 4,
        seed: int = 0,
        steps: int = 20,
        guidance: float = 3.0,
    ) -> dict[str, Any]:
        """Draw `number` pictures twice from the same seeds: their PNGs by side, and what was measured in them."""
        drawing = Drawing.of(prompt, number, seed, steps, guidance)
        mitigation = Mitigation.of(attributes, words, method, _lam(lam), strength, keep_stated)
        for now in compare(engine, drawing, mitigation, threading.Event()):  # noqa: B007  (the last one is whole)
            pass
        pictures = {
            side: [_text(png(picture, about(now, side, i))) for i, picture in enumerate(found)]
            for side, found in now.pictures.items()
        }
        return summary(now) | {"pictures": pictures}

    @told
    def classify_picture(
        picture: str = EXAMPLES[1],
        classes: list[str] = CLASSES.splitlines(),  # noqa: B008
        spurious: list[str] = SPURIOUS.splitlines(),  # noqa: B008
        attributes: list[str] = ["background"],  # noqa: B006
        words: str = "",
        method: str = "orth",
        lam: float = -1,
        strength: float = 1.0,
        keep_stated: bool = True,
    ) -> dict[str, Any]:
        """Scores of the classes for a picture: base64 of a PNG, JPEG or WebP file, or the name of an example."""
        mitigation = Mitigation.of(attributes, words, method, _lam(lam), strength, keep_stated)
        found = classify(engine, _picture(picture), classes, spurious, mitigation)
        return {
            "classes": list(found.classes),
            "spurious": list(found.spurious),
            "scores": {side: values.tolist() for side, values in found.scores.items()},
            "cosines": {side: values.tolist() for side, values in found.cosines.items()},
            "stated": list(found.stated),
            "notes": list(found.notes),
        }

    @told
    def retrieve_pictures(
        query: str,
        groups: str = "gender",
        attributes: list[str] = ["gender"],  # noqa: B006
        words: str = "",
        method: str = "cali",
        lam: float = -1,
        strength: float = 1.0,
        keep_stated: bool = True,
    ) -> dict[str, Any]:
        """The first pictures of a query by id, the shares of each group and MaxSkew over k, on both sides."""
        mitigation = Mitigation.of(attributes, words, method, _lam(lam), strength, keep_stated)
        found = retrieve(engine, query, groups, mitigation)
        return {
            "query": found.query,
            "groups": list(found.groups),
            "k": list(found.ks),
            "ids": {side: [hit.id for hit in hits] for side, hits in found.hits.items()},
            "shares": {side: values.tolist() for side, values in found.shares.items()},
            "max_skew": {side: values.tolist() for side, values in found.max_skew.items()},
            "max_skew_95": {side: [end.tolist() for end in ends] for side, ends in found.skew_band.items()},
            "random": found.random.tolist(),
            "query_cosine": found.query_cosine,
            "stated": list(found.stated),
            "notes": list(found.notes),
        }

    @told
    def inspect_projection(
        side: str = "pipeline",
        attributes: list[str] = ["gender"],  # noqa: B006
        words: str = "",
        method: str = AUTOMATIC,
        lam: float = -1,
        strength: float = 1.0,
    ) -> dict[str, Any]:
        """Distances of pairs, the spectrum of their differences and what class prompts keep, by projected tensor."""
        mitigation = Mitigation.of(attributes, words, method, _lam(lam), strength)
        roles = {role: inspect(engine, side, mitigation, role) for role in engine.host(side).roles}
        return {
            role: {
                "distances": {
                    part: {"before": one.mean_before.to_dict(), "after": one.mean_after.to_dict()}
                    for part, one in found.distances.items()
                },
                "sigma": found.sigma.tolist(),
                "left": found.left.tolist(),
                "class_cosine": float(found.kept.mean()),
                "signal_kept": found.signal,
                "notes": list(found.notes),
            }
            for role, found in roles.items()
        }

    @told
    def export_projection(
        side: str = "pipeline",
        attributes: list[str] = ["gender"],  # noqa: B006
        words: str = "",
        method: str = AUTOMATIC,
        lam: float = -1,
        strength: float = 1.0,
        keep_stated: bool = True,
    ) -> dict[str, str]:
        """The projection as a zip, and the code that attaches the same."""
        mitigation = Mitigation.of(attributes, words, method, _lam(lam), strength, keep_stated)
        data, code = export(engine, side, mitigation)
        return {"zip": _text(data), "code": code}

    gr.api(generate, api_name="generate", concurrency_id=QUEUE, concurrency_limit=1)
    gr.api(classify_picture, api_name="classify")
    gr.api(retrieve_pictures, api_name="retrieve")
    gr.api(inspect_projection, api_name="inspect")
    gr.api(export_projection, api_name="export")


def _lam(lam: float) -> float | None:
    """Endpoints have no empty number: below 0 stands for it."""
    return None if isinstance(lam, (int, float)) and lam < 0 else lam


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _picture(given: str) -> Any:
    if given in EXAMPLES:
        return example(given)
    if not isinstance(given, str) or len(given) > LARGEST_UPLOAD * 4 // 3 + 4:
        raise InvalidInputError(f"picture: expected base64 of at most {LARGEST_UPLOAD // 2**20} MiB, or an example")
    try:
        return read_upload(base64.b64decode(given, validate=True))
    except binascii.Error as error:
        raise InvalidInputError(
            f"picture: expected base64 of a PNG, JPEG or WebP file, or one of {', '.join(EXAMPLES)}; paths are not read"
        ) from error
