"""The models behind the page: loaded when first asked for, used by one visitor at a time, never left projected."""

from __future__ import annotations

import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from vldebias.api import debias, fit_projections
from vldebias.edit import Edit
from vldebias.errors import InvalidInputError, VldebiasWarning
from vldebias.hosts.using import DEFAULT, NONE
from vldebias.methods import METHODS
from vldebias.methods.steer import SampledEdit
from vldebias.prompts import PromptSet

from .settings import Mitigation

if TYPE_CHECKING:
    from vldebias.evaluation.judges import Judge
    from vldebias.evaluation.texts import Texts
    from vldebias.hosts import Host
    from vldebias.loading import Loaded

    from .album import Album

MINIATURE = "miniature"
SIDES = ("pipeline", "model")
SURE = 0.8  # an answer of a judge with less probability counts as unknown
# What the miniature's classifier calls the attributes that it reads.
KNOWN = {"gender": "gender", "skin tone": "tone", "age": "age", "background": "background"}
KEPT = 32  # fitted projections, and judges, that are remembered
Found = TypeVar("Found")


@dataclass(frozen=True)
class Fitted:
    """Edits by role, and what the fit warned of."""

    projections: dict[str, Edit]
    notes: tuple[str, ...] = ()

    @property
    def method(self) -> str:
        """The method, where the visitor left it to the preset too."""
        return next(iter(self.projections.values())).method

    @property
    def lam(self) -> tuple[float, ...]:
        """The weight of the pairs of each attribute."""
        return lams_of(next(iter(self.projections.values())))


def lams_of(edit: Edit) -> tuple[float, ...]:
    """The weight of the pairs of each attribute; () of a method that has none."""
    known = METHODS.get(edit.method)
    if known is not None and not known.has_lam:
        return ()
    return edit.lam if isinstance(edit.lam, tuple) else (edit.lam,)


class Engine:
    """All that the page computes with; knows nothing of Gradio.

    Args:
        model, pretrained: the image-text model, as `vldebias.loading.load_host` takes it. It classifies, retrieves, and
            judges what a pipeline other than the miniature draws.
        pipeline: what draws.
        embeddings: a file of `vldebias.data.embeddings` to retrieve from; by default the miniature world.
        images: the folder that the ids of the embeddings are paths in, to show the pictures found.
        gallery: a folder with what `vldebias eval generation` drew, to leaf through.
        device, dtype: for the models.

    Raises:
        InvalidInputError: options that do not go together; models themselves are not touched before they are needed.
    """

    def __init__(
        self,
        *,
        model: str | None = None,
        pretrained: str | None = None,
        pipeline: str = MINIATURE,
        embeddings: Path | None = None,
        images: Path | None = None,
        gallery: Path | None = None,
        device: str = "cpu",
        dtype: str | None = None,
    ) -> None:
        if pipeline != MINIATURE and model is None:
            raise InvalidInputError(
                f"--pipeline {pipeline} needs a judge for its pictures: add --model, an open_clip architecture (with "
                "--pretrained) or a transformers id or folder, such as --model ViT-B-32 --pretrained openai"
            )
        if pretrained is not None and model is None:
            raise InvalidInputError("--pretrained names open_clip weights and goes with --model")
        for option, path, is_right in (("embeddings", embeddings, Path.is_file), ("images", images, Path.is_dir)):
            if path is not None and not is_right(path):
                raise InvalidInputError(f"--{option} {path}: there is no such {option} file or folder")
        self.model_name, self.pipeline_name = model or MINIATURE, pipeline
        self.pretrained, self.embeddings, self.images = pretrained, embeddings, images
        self.device, self.dtype = device, dtype
        self.album = _album(gallery)
        self.lock = threading.RLock()
        self._loaded: dict[str, Any] = {}
        self._fitted: OrderedDict[tuple[Any, ...], Fitted] = OrderedDict()
        self._judges: OrderedDict[tuple[Any, ...], tuple[Judge, tuple[str, ...]]] = OrderedDict()

    # ---- what is loaded when it is first needed ------------------------------------------------------------------

    def once(self, name: str, load: Callable[[], Found]) -> Found:
        """What `load` gives, kept under `name`; visitors who ask at the same time wait for the first."""
        with self.lock:
            if name not in self._loaded:
                self._loaded[name] = load()
            return self._loaded[name]

    def pipe(self) -> Any:
        """The pipeline, without a bar of its own."""

        def load() -> Any:
            from vldebias.loading import load_host

            pipe = load_host(pipeline=self.pipeline_name, device=self.device, dtype=self.dtype).host
            pipe.set_progress_bar_config(disable=True)
            return pipe

        return self.once("pipeline", load)

    def clip(self) -> Loaded:
        """The image-text model with its tokenizer and preprocessing."""

        def load() -> Loaded:
            from vldebias.loading import load_host

            return load_host(self.model_name, self.pretrained, device=self.device, dtype=self.dtype)

        return self.once("model", load)

    def texts(self) -> Texts:
        """The text side of the image-text model; never attached to, so visitors cannot meet there."""

        def load() -> Texts:
            from vldebias.evaluation.texts import Texts

            return Texts(self.clip().host, self.clip().tokenizer)

        return self.once("texts", load)

    def host(self, side: str) -> Host:
        """The "pipeline" or the "model" as what prompts are embedded by."""
        if side not in SIDES:
            raise InvalidInputError(f"side: expected one of {', '.join(SIDES)}, got {side!r}")

        def load() -> Host:
            from vldebias.hosts import resolve

            return resolve(self.pipe()) if side == "pipeline" else self.texts().host

        return self.once(f"host {side}", load)

    def judge(self, mitigation: Mitigation) -> tuple[Judge, tuple[str, ...]]:
        """Who reads the pictures, and the attribute of the judge that stands for each attribute of the visitor."""
        key = tuple(one.hash for one in mitigation.sets)
        return self._remember(self._judges, key, lambda: _judge(self, mitigation))

    def _remember(
        self, store: OrderedDict[tuple[Any, ...], Found], key: tuple[Any, ...], make: Callable[[], Found]
    ) -> Found:
        """What `make` gives, kept under `key` while it is among the last 32 that were asked for."""
        with self.lock:
            if key not in store:
                store[key] = make()
                if len(store) > KEPT:
                    store.popitem(last=False)
            store.move_to_end(key)
            return store[key]

    # ---- projections ---------------------------------------------------------------------------------------------

    def fit(self, side: str, mitigation: Mitigation) -> Fitted:
        """The projections of a mitigation for the "pipeline" or the "model"; the last 32 are remembered."""
        return self.fit_on(self.host(side), side, mitigation)

    def fit_on(self, host: Host, name: str, mitigation: Mitigation, sets: Sequence[PromptSet] | None = None) -> Fitted:
        """The projections for a host of this name, perhaps of other prompt sets than those of the mitigation."""
        sets = mitigation.sets if sets is None else sets
        key = (name, *(one.hash for one in sets), mitigation.method, mitigation.lam)
        return self._remember(self._fitted, key, lambda: _fit(host, sets, mitigation))

    @contextmanager
    def drawing(
        self,
        mitigation: Mitigation | None,
        strength: float = 1.0,
        *,
        run: int = 0,
        places: Sequence[int] = (0,),
        of: int = 1,
        beside: Sequence[Mitigation] | None = None,
    ) -> Iterator[Any]:
        """The pipeline for the length of one call, which draws some pictures of a run, with `mitigation` or bare.

        A method that draws a value for each image deals them over the run: among the pictures 0 .. of - 1 of a `run`
        and a prompt each value has its share to within one picture, although its `places` are drawn in several calls.

        The lock is held for as long as the projection is on, so no other visitor draws through it.

        Args:
            places: which pictures of the run the call draws, one prompt for each.
            beside: given, the call has so many prompts bare first, then under `mitigation`, then under each of these.
        """
        with self.lock:
            pipe = self.pipe()
            if mitigation is None:
                yield pipe
                return
            rows = [DEFAULT, *(f"beside {i}" for i, _ in enumerate(beside or ()))]
            edits = [_dealt(self.fit("pipeline", one).projections, of) for one in (mitigation, *(beside or ()))]
            with debias(pipe, edits[0], strength=strength, keep_stated=mitigation.keep_stated) as on:
                for name, more in zip(rows[1:], edits[1:], strict=True):
                    on.add(name, more, keep_stated=mitigation.keep_stated)
                rows = rows if beside is None else [NONE, *rows]
                if any(edit.sampled for one in edits for edit in one.values()):
                    on.seeds = [run * of + place for place in places] * len(rows)
                with on.using(method=[name for name in rows for _ in places]):
                    yield pipe


def _dealt(edits: Mapping[str, Edit], of: int) -> dict[str, Edit]:
    """Those that draw a value for each image deal them over so many."""
    sampled: dict[str, Any] = {role: edit for role, edit in edits.items() if isinstance(edit, SampledEdit)}
    return {**edits, **{role: replace(edit, stratify=of) for role, edit in sampled.items()}}


def _album(folder: Path | None) -> Album | None:
    from .album import Album

    return None if folder is None else Album.open(folder)


def _fit(host: Host, sets: Sequence[PromptSet], mitigation: Mitigation) -> Fitted:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", VldebiasWarning)
        found = fit_projections(host, list(sets), method=mitigation.method, lam=mitigation.lam)
    notes = [str(one.message) for one in caught if issubclass(one.category, VldebiasWarning)]
    return Fitted(found, tuple(dict.fromkeys(notes)))


def _judge(engine: Engine, mitigation: Mitigation) -> tuple[Judge, tuple[str, ...]]:
    """A judge of every attribute of `mitigation`, and the name that each of them has in its answers.

    The classifier of the miniature world where it knows the attribute, else the image-text model, asked zero-shot.
    """
    from vldebias.evaluation.judges import JudgePanel, MiniatureJudge

    miniature = engine.pipeline_name == MINIATURE
    judges: dict[str, Judge] = {}
    read: list[str] = []
    for name, prompts in zip(mitigation.names, mitigation.sets, strict=True):
        if miniature and name in KNOWN:
            judges.setdefault("miniature", MiniatureJudge())
            read.append(KNOWN[name])
        else:
            judges[name] = _asked(engine, name, prompts)
            read.append(next(iter(judges[name].names)))
    return (next(iter(judges.values())) if len(judges) == 1 else JudgePanel(*judges.values())), tuple(read)


def _asked(engine: Engine, name: str, prompts: PromptSet) -> Judge:
    """The image-text model, asked in the words of the prompt set whether a picture shows one of them, or none."""
    from vldebias.evaluation.backgrounds import background_judge
    from vldebias.evaluation.judges import ClipJudge, FunctionJudge, Question

    loaded = engine.clip()
    given = {"preprocess": loaded.preprocess, "tokenizer": loaded.tokenizer, "name": loaded.name}
    if name == "background":
        judge = background_judge(loaded.host, **given)
        return FunctionJudge(
            {name: judge.names[name]},
            lambda images: {name: judge.predict(images)[name]},
            name=judge.name,
            version=judge.fingerprint,
        )
    return ClipJudge(loaded.host, **given, questions={name: Question.about(prompts)})
