"""An edit for a part of the denoising steps: at every step the denoiser is given the rows of that step.

A pipeline asks `encode_prompt` once and reads the answer at each step. Bare and edited rows of it are kept; before a
pass of the denoiser (or a ControlNet) those that came from there are found among its inputs, value by value, and
exchanged for the rows of the step. Where the denoiser is given something that is made of them before the first step,
none is found, and the second step refuses: nothing is drawn at all then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn

from vldebias.errors import InvalidInputError, UnsupportedHostError
from vldebias.hosts.base import Apply
from vldebias.hosts.seam import Seam, is_bare

Window = tuple[float, float]
_Place = tuple[int | None, Any, int]
"""Row of an input, None for all of it; place in what `encode_prompt` returned; row there."""


def checked_window(steps: Any) -> Window:
    """(first, last) as floats: step i of n is in it where first <= i / n < last.

    Raises:
        InvalidInputError: not two numbers, 0 <= first < last <= 1.
    """
    try:
        first, last = (float(one) for one in steps)
    except (TypeError, ValueError):
        first, last = 1.0, 0.0
    if not 0 <= first < last <= 1:
        raise InvalidInputError(
            f"steps: expected two shares of the denoising steps, 0 <= first < last <= 1, such as (0, 0.4) for the "
            f"first two fifths; got {steps!r}"
        )
    return first, last


class _Pipe(Protocol):
    """What is asked of a host."""

    name: str
    window: Window | None
    _pipe: Any
    _encoders: Sequence[object]


@dataclass
class _Drawing:
    """One call of a pipeline: the rows that its `encode_prompt` gave, and where its denoiser is.

    rows: place in what was returned -> (bare, edited) rows, those alone that differ. base: the strength of the edited.
    flows: the strength of what was returned, `base` or 0. known: inputs of the denoiser -> what was found in them.
    sure: they have to be found; not so of embeddings that a caller brings along.
    """

    base: float
    flows: float
    rows: dict[Any, list[tuple[Tensor, Tensor]]] = field(default_factory=dict)
    sure: bool = True
    step: int = 0
    time: float | None = None
    found: set[Any] = field(default_factory=set)
    known: dict[int, tuple[Any, int, list[_Place]]] = field(default_factory=dict)


class StepSeam(Seam):
    """Stands before the models of a pipeline that are told a time step; a deep copy of the pipeline has its own."""

    def __init__(self, host: Any, apply: Apply) -> None:
        super().__init__(host.name, apply)
        self.host: _Pipe = host
        self._drawings: WeakKeyDictionary[threading.Thread, _Drawing] = WeakKeyDictionary()

    def put_on(self) -> list[Any]:
        """Handles that take it off again.

        Raises:
            UnsupportedHostError: the pipeline has no scheduler, or no model but its encoders.
        """
        pipe = self.host._pipe
        parts = [part for name, part in pipe.components.items() if isinstance(part, nn.Module) and "vae" not in name]
        models = [part for part in parts if all(part is not one for one in self.host._encoders)]
        if not models or getattr(pipe, "scheduler", None) is None:
            raise UnsupportedHostError(
                f"{self.name}: steps= needs a scheduler and a denoiser among its components, which are "
                f"{', '.join(pipe.components)}; leave steps= away"
            )
        return [model.register_forward_pre_hook(self.before, with_kwargs=True) for model in models]

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        twin = super().__deepcopy__(memo)
        if twin is not self:
            twin._drawings = WeakKeyDictionary()
        return twin

    @property
    def strength(self) -> float:
        """That of the attachment now: it may be set between two steps."""
        return float(getattr(getattr(self.apply, "__self__", None), "strength", 1.0))

    def take(
        self, before: Sequence[Any], after: Sequence[Any], key: Any, *, anew: bool, brought: bool
    ) -> Sequence[Any]:
        """What `encode_prompt` shall return: the rows of the first step.

        before, after: bare and edited. key: tells apart the answers of one call of the pipeline. anew: it is the first.
        brought: the caller brings embeddings along; they may be those that were given before.
        """
        me, strength = threading.current_thread(), self.strength
        pairs = {
            (key, place): [pair for pair in zip(_rows(bare), _rows(now), strict=True) if not torch.equal(*pair)]
            for place, (bare, now) in enumerate(zip(before, after, strict=True))
            if bare is not now
        }
        changed = {at: rows for at, rows in pairs.items() if rows}  # an edit may leave all of these prompts as they are
        held = self._drawings.get(me)
        if brought and not changed:
            if held is not None:
                self._drawings[me] = _Drawing(held.base, held.flows, held.rows, sure=False)
            return after
        if anew or held is None or held.time is not None:
            begins = self.host.window is not None and self.host.window[0] == 0
            held = self._drawings[me] = _Drawing(strength or 1.0, strength if begins else 0.0)
        held.rows |= changed
        return after if held.flows else before

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A hook before the forward pass of a model: its arguments with the rows of this step."""
        drawing = self._drawings.get(threading.current_thread())
        if drawing is None or not drawing.rows or not self.active or is_bare() or self.host.window is None:
            return None
        time = time_of(args, kwargs)
        pipe = self.host._pipe
        if module in (getattr(pipe, "unet", None), getattr(pipe, "transformer", None)):
            through = getattr(pipe, "connectors", None) is not None  # a model of their own, before the first step
            if time is None or through:
                self._drawings.pop(threading.current_thread())
                why = "reads what connectors made of the prompt" if through else "is told no time step that can be read"
                raise UnsupportedHostError(
                    f"{self.name}: {type(module).__name__} {why}, so that an edit cannot be changed from step to step; "
                    "leave steps= away"
                )
        if time is None:
            return None
        if time != drawing.time:
            drawing.step += drawing.time is not None
            drawing.time = time
            missing = {place for _, place in drawing.rows} - {place for _, place in drawing.found}
            if drawing.step == 1 and missing and drawing.sure:
                self._drawings.pop(threading.current_thread())
                raise UnsupportedHostError(
                    f"{self.name}: {type(module).__name__} is not given what encode_prompt returns but something made "
                    "of it before the first step, so that an edit cannot be changed from step to step; leave steps= "
                    "away"
                )
        first, last = self.host.window
        share = drawing.step / max(_number_of_steps(self.host._pipe), drawing.step + 1)
        strength = self.strength if first <= share < last else 0.0
        if strength == drawing.flows:
            if drawing.step == 0:
                mapped((args, kwargs), lambda tensor: (self._places(tensor, drawing), tensor)[1])
            return None
        return mapped((args, kwargs), lambda tensor: self._exchanged(tensor, drawing, strength))

    def _exchanged(self, tensor: Tensor, drawing: _Drawing, strength: float) -> Tensor:
        places = self._places(tensor, drawing)
        if not places:
            return tensor
        out = tensor.clone()
        for at, key, which in places:
            bare, edited = drawing.rows[key][which]
            row = edited if strength else bare
            if strength not in (0.0, drawing.base):
                row = torch.lerp(bare.float(), edited.float(), strength / drawing.base)
            if at is None:
                out.copy_(row.to(tensor))
            else:
                out[at] = row.to(tensor)
        return out

    def _places(self, tensor: Tensor, drawing: _Drawing) -> list[_Place]:
        """The rows of a tensor that came from what was returned."""
        held = drawing.known.get(id(tensor))
        if held is not None and held[0]() is tensor and held[1] == tensor._version:
            return held[2]
        places: list[_Place] = []
        for key, pairs in drawing.rows.items() if tensor.is_floating_point() else ():
            for which, pair in enumerate(pairs):
                row = pair[bool(drawing.flows)]
                if tensor.shape == row.shape and torch.equal(tensor, row.to(tensor)):
                    places.append((None, key, which))
                elif tensor.shape[1:] == row.shape:
                    same, taken = row.to(tensor), {at for at, _, _ in places}
                    rest = (at for at in range(len(tensor)) if at not in taken)
                    places += [(at, key, which) for at in rest if torch.equal(tensor[at], same)]
        drawing.found |= {key for _, key, _ in places}
        drawing.known[id(tensor)] = ref(tensor), tensor._version, places
        return places


def _rows(value: Any) -> list[Tensor]:
    """One tensor for each prompt of what `encode_prompt` returns at a place: (tokens, d), (d,), or with layers."""
    if isinstance(value, Tensor):
        return list(value.unbind(0))
    inside = [list(one.unbind(0)) if isinstance(one, Tensor) and one.ndim == 3 else one for one in value or ()]
    return [row for one in inside for row in ([one] if isinstance(one, Tensor) else _rows(one))]


def time_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> float | None:
    """The time step that a model is called with; of one for each token the latest. None: it is told none."""
    named = [kwargs.get(name) for name in ("timestep", "timesteps", "t")]
    for place, given in enumerate((*named, *args[1:2])):
        if isinstance(given, Tensor) and given.numel() and (given.ndim < 3 or place < len(named)):
            return float(given.max())
        if isinstance(given, int | float) and not isinstance(given, bool):
            return float(given)
    return None


def _number_of_steps(pipe: Any) -> int:
    """Of the call under way: a scheduler may have several passes of one step, and images may begin in the middle."""
    times = getattr(pipe.scheduler, "timesteps", None)
    if times is None:
        return int(getattr(pipe, "_num_timesteps", None) or 1)
    count = getattr(pipe, "_num_timesteps", None) or len(times)
    return 1 + int((times[-count:].diff() != 0).sum())


def mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same lists, tuples and mappings around changed tensors."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return type(value)((name, mapped(one, change)) for name, one in value.items())  # type: ignore[call-arg]
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)(mapped(one, change) for one in value)
    return value
