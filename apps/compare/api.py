"""The same for programs: named endpoints that gradio_client calls, plain values in and out."""

from __future__ import annotations

import base64
import binascii
import functools
import inspect as inspection
import threading
from collections.abc import Callable
from typing import Any

import gradio as gr

from vldebias.errors import InvalidInputError

from .classify import CLASSES, EXAMPLES, LARGEST_UPLOAD, SPURIOUS, batch, classify, example, read_upload
from .drawing import compare
from .engine import Engine
from .export import export
from .form import QUEUE, told
from .inspect import inspect
from .packing import about, png, summary
from .retrieve import retrieve
from .settings import PRESET, Drawing, Mitigation

Plain = dict[str, Any]
MITIGATION: dict[str, tuple[Any, Any]] = {
    "attributes": (list[str], ["gender"]),
    "words": (str, ""),
    "method": (str, PRESET),
    "lam": (float, -1),
    "strength": (float, 1.0),
    "keep_stated": (bool, True),
}
"""The arguments of `Mitigation.of`, with their types and defaults, as every endpoint has them."""


def _mitigating(**defaults: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Put plain arguments in the place of the `mitigation` of a method: Gradio reads them from its signature."""

    def decorate(method: Callable[..., Any]) -> Callable[..., Any]:
        keyword = inspection.Parameter.POSITIONAL_OR_KEYWORD
        plain = [
            inspection.Parameter(name, keyword, default=defaults.get(name, default), annotation=kind)
            for name, (kind, default) in MITIGATION.items()
        ]
        own = inspection.signature(method, eval_str=True)
        parameters = [p for one in own.parameters.values() for p in (plain if one.name == "mitigation" else [one])]
        signature = own.replace(parameters=parameters)

        @functools.wraps(method)
        def endpoint(self: Programs, *args: Any, **kwargs: Any) -> Any:
            given = signature.bind(self, *args, **kwargs)
            given.apply_defaults()
            values = dict(given.arguments)
            lam = values["lam"]
            values["lam"] = None if isinstance(lam, (int, float)) and lam < 0 else lam  # there is no empty number
            mitigation = Mitigation.of(**{name: values.pop(name) for name in MITIGATION})
            return method(**values, mitigation=mitigation)

        setattr(endpoint, "__signature__", signature)  # noqa: B010
        endpoint.__annotations__ = {p.name: p.annotation for p in parameters[1:]} | {
            "return": signature.return_annotation
        }
        return told(endpoint)

    return decorate


class Programs:
    """/generate, /classify, /retrieve, /inspect and /export; pictures and files are base64.

    method: a name in `vldebias.methods.METHODS`. lam: below 0 is the preset.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def add(self) -> None:
        """Add the endpoints to the page that is being laid out."""
        gr.api(self.generate, api_name="generate", concurrency_id=QUEUE, concurrency_limit=1)
        for name in ("classify", "retrieve", "inspect", "export"):
            gr.api(getattr(self, name), api_name=name)

    @_mitigating()
    def generate(
        self,
        prompt: str,
        mitigation: Mitigation,
        number: int = 4,
        seed: int = 0,
        steps: int = 20,
        guidance: float = 3.0,
        beside: list[str] = [],  # noqa: B006  (read only)
    ) -> Plain:
        """Draw `number` pictures on each side from the same seeds: their PNGs by side, and what was measured in them.

        beside: up to two methods that are drawn too.
        """
        drawing = Drawing.of(prompt, number, seed, steps, guidance, beside)
        for now in compare(self.engine, drawing, mitigation, threading.Event()):  # noqa: B007  (the last one is whole)
            pass
        pictures = {
            side: [_text(png(picture, about(now, side, i))) for i, picture in enumerate(drawn)]
            for side, drawn in now.pictures.items()
        }
        return summary(now) | {"pictures": pictures}

    @_mitigating(attributes=["background"], method="orth")
    def classify(
        self,
        picture: str = EXAMPLES[2],
        classes: list[str] = CLASSES.splitlines(),  # noqa: B008  (read only; Gradio wants the default itself)
        spurious: list[str] = SPURIOUS.splitlines(),  # noqa: B008
        mitigation: Mitigation = Mitigation(),  # noqa: B008
        offset: bool = False,
        others: list[str] = [],  # noqa: B006  (read only)
    ) -> Plain:
        """Scores of the classes for a picture: base64 of a PNG, JPEG or WebP file, or the name of an example.

        offset: put the boundary between two classes back, as `others`, further pictures in base64, see it.
        """
        if not isinstance(others, (list, tuple)):
            raise InvalidInputError(f"others: expected a list of pictures in base64, got {others!r:.80}")
        shown = example(picture) if picture in EXAMPLES else read_upload(_file(picture))
        given = [one for one in (picture, *others) if one not in EXAMPLES]
        pictures = batch(self.engine, [_file(one) for one in given]) if offset else None
        scored = classify(self.engine, shown, classes, spurious, mitigation, pictures)
        return {
            "classes": list(scored.classes),
            "spurious": list(scored.spurious),
            "scores": {side: values.tolist() for side, values in scored.scores.items()},
            "cosines": {side: values.tolist() for side, values in scored.cosines.items()},
            "stated": list(scored.stated),
            "notes": list(scored.notes),
            "boundary": None if scored.boundary is None else scored.boundary.to_dict(),
        }

    @_mitigating(method="cali")
    def retrieve(self, query: str, groups: str = "gender", mitigation: Mitigation = Mitigation()) -> Plain:  # noqa: B008
        """The first pictures of a query by id, the shares of each group and MaxSkew over k, on both sides."""
        ranked = retrieve(self.engine, query, groups, mitigation)
        return {
            "query": ranked.query,
            "groups": list(ranked.groups),
            "k": list(ranked.ks),
            "ids": {side: [hit.id for hit in hits] for side, hits in ranked.hits.items()},
            "shares": {side: values.tolist() for side, values in ranked.shares.items()},
            "max_skew": {side: values.tolist() for side, values in ranked.max_skew.items()},
            "max_skew_95": {side: [end.tolist() for end in ends] for side, ends in ranked.skew_band.items()},
            "random": ranked.random.tolist(),
            "query_cosine": ranked.query_cosine,
            "stated": list(ranked.stated),
            "notes": list(ranked.notes),
        }

    @_mitigating()
    def inspect(self, side: str = "pipeline", mitigation: Mitigation = Mitigation()) -> Plain:  # noqa: B008
        """Distances of pairs, the spectrum of their differences and what class prompts keep, by projected tensor."""
        roles = {role: inspect(self.engine, side, mitigation, role) for role in self.engine.host(side).roles}
        return {
            role: {
                "distances": {
                    part: {"before": one.mean_before.to_dict(), "after": one.mean_after.to_dict()}
                    for part, one in seen.distances.items()
                },
                "sigma": seen.sigma.tolist(),
                "left": seen.left.tolist(),
                "class_cosine": float(seen.kept.mean()),
                "signal_kept": seen.signal,
                "notes": list(seen.notes),
            }
            for role, seen in roles.items()
        }

    @_mitigating()
    def export(self, side: str = "pipeline", mitigation: Mitigation = Mitigation()) -> dict[str, str]:  # noqa: B008
        """The projection as a zip, and the code that attaches the same."""
        data, code = export(self.engine, side, mitigation)
        return {"zip": _text(data), "code": code}


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _file(given: object) -> bytes:
    if not isinstance(given, str) or len(given) > LARGEST_UPLOAD * 4 // 3 + 4:
        raise InvalidInputError(f"picture: expected base64 of at most {LARGEST_UPLOAD // 2**20} MiB, or an example")
    try:
        return base64.b64decode(given, validate=True)
    except binascii.Error as error:
        raise InvalidInputError(
            f"picture: expected base64 of a PNG, JPEG or WebP file, or one of {', '.join(EXAMPLES)}; paths are not read"
        ) from error
