"""Load the page's models once, and let one visitor at a time use and edit them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import vldebias
from vldebias.errors import InvalidInputError
from vldebias.utils.devices import device_of

MINIATURE = "miniature"
PHOTOGRAPHS = "photographs"  # the packaged gallery
KEPT = 32  # number of cached results
Made = TypeVar("Made")


class Engine:
    """Manage the page's models and cached results.

    Args:
        pipelines: diffusers ids or folders, or "miniature". Visitors see the first, and can compare
            it with one of the others.
        model, pretrained: an image-text model, as for `vldebias.load_host`. It searches,
            classifies, and judges images from pipelines other than the miniature. Without it,
            nobody labels these images.
        embeddings: a file of labelled image embeddings to search. Default: the packaged photographs
            and the miniature's images.
        images: the folder of the images whose relative paths are the embeddings' ids.
        device, dtype: device and precision of the models. The device "auto" is chosen when the
            first model is loaded.

    Raises:
        InvalidInputError: If options are incompatible. No model is loaded.
    """

    def __init__(
        self,
        *,
        pipelines: Sequence[str] = (MINIATURE,),
        model: str | None = None,
        pretrained: str | None = None,
        embeddings: Path | None = None,
        images: Path | None = None,
        device: str = "auto",
        dtype: str | None = None,
    ) -> None:
        if pretrained is not None and model is None:
            raise InvalidInputError("--pretrained names open_clip weights, so it requires --model")
        if embeddings is not None and not embeddings.is_file():
            raise InvalidInputError(f"--embeddings {embeddings}: no such file")
        if images is not None and not images.is_dir():
            raise InvalidInputError(f"--image-dir {images}: no such folder")
        for pipeline in pipelines:
            # Visitors would see the message, and with it the path, when they choose the pipeline.
            if pipeline.startswith(("/", "./", "../", "~")) and not Path(pipeline).exists():
                raise InvalidInputError(f"--pipeline {pipeline}: no such folder; check the path")
        # Visitors choose a pipeline by its name, and do not see the paths of folders.
        self.pipelines = {Path(pipeline).name or pipeline: pipeline for pipeline in pipelines}
        if len(self.pipelines) < len(pipelines):
            raise InvalidInputError(
                f"--pipeline: expected pipelines with different names, got {', '.join(pipelines)}"
            )
        self.pipeline_name = next(iter(self.pipelines.values()))
        self.model_name = model or MINIATURE
        self.pretrained = pretrained
        self.embeddings = embeddings
        self.images = images
        self.device = device
        self.dtype = dtype
        # The photographs only work with their own model.
        is_packaged = self.model_name == MINIATURE and embeddings is None
        self.galleries = (PHOTOGRAPHS, MINIATURE) if is_packaged else (self.model_name,)
        # Re-entrant, because a cached value may depend on other cached values.
        self.lock = threading.RLock()
        self._kept: OrderedDict[Hashable, Any] = OrderedDict()
        self._loaded: dict[str, Any] = {}
        self._opened: set[str] = set()

    @property
    def shown_source(self) -> str:
        """Return what code on the page loads: an id, or the name of a folder without its path."""
        if Path(self.pipeline_name).exists():
            return Path(self.pipeline_name).name
        return self.pipeline_name

    def once(self, name: str, load: Callable[[], Made]) -> Made:
        """Call `load` once and return its result; concurrent callers wait for it."""
        with self.lock:
            if name not in self._loaded:
                self._loaded[name] = load()
            return self._loaded[name]

    def has_loaded(self, name: str) -> bool:
        """Return, without waiting, whether `once` has already loaded a value under this name."""
        return name in self._loaded

    def remember(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """Return the cached value for a key, calling `make` if there is none (at most 32 keys)."""
        with self.lock:
            if key not in self._kept:
                self.keep(key, make())
            # Mark the key as recently used, since the least recently used key is evicted first.
            self._kept.move_to_end(key)
            return self._kept[key]

    def known(self, key: Hashable) -> Any:
        """Return the cached value for a key, or None."""
        return self._kept.get(key)

    def keep(self, key: Hashable, value: Any) -> None:
        """Cache a value."""
        with self.lock:
            self._kept[key] = value
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)

    def warm(self, name: str, load: Callable[[], object]) -> None:
        """Load models in a background thread when a visitor opens a tab, so that clicks are fast.

        Args:
            name: name of the tab. Further calls for the same tab do nothing.
            load: loads what the tab needs.
        """
        if name not in self._opened:
            self._opened.add(name)
            threading.Thread(target=load, name=f"load {name}", daemon=True).start()

    def pipe(self, name: str = "") -> Any:
        """Return a pipeline.

        Args:
            name: a key of `pipelines`, or "" for the first one.
        """
        source = self.pipelines.get(name, self.pipeline_name)

        def load() -> Any:
            pipe = vldebias.load_host(
                pipeline=source, device=device_of(self.device), dtype=self.dtype
            ).host
            pipe.set_progress_bar_config(disable=True)
            return pipe

        return self.once(f"pipeline {name}".strip(), load)

    def is_small(self, name: str = "") -> bool:
        """Return whether a pipeline is the miniature, with any weights.

        Args:
            name: a key of `pipelines`, or "" for the first one.
        """
        if self.pipelines.get(name, self.pipeline_name) == MINIATURE:
            return True
        # Imported here, because torch takes seconds to load and the page opens without it.
        from vldebias.miniature import is_miniature

        return is_miniature(self.pipe(name))

    def clip(self) -> Any:
        """Return the image-text model with its tokenizer and preprocessing."""
        return self.once(
            "model",
            lambda: vldebias.load_host(
                self.model_name,
                self.pretrained,
                device=device_of(self.device),
                dtype=self.dtype,
            ),
        )

    def edits(self, host: Any, prompts: str, method: str, reference: Any = None) -> dict[str, Any]:
        """Return a method's edits by role, fitting them once.

        Args:
            host: the pipeline, or a `Host` of the image-text model.
            prompts, method: names of the prompt set and of the method to fit.
            reference: image features, always the same for a host. If None, fit to text alone.
        """

        # Imported here, because torch takes seconds to load and the page opens without it.
        from vldebias.methods import Problem, get_edit_method

        def fit() -> dict[str, Any]:
            problem = Problem(host, prompts, reference=reference)
            chosen = get_edit_method(method, reference=reference)
            if problem.host.generative:
                return chosen.fit_roles(problem)
            # The page measures every edit, so there is no need to warn that an edit is untested, as
            # `vldebias.fit_projections` does.
            return {role: problem.fit(chosen, role) for role in problem.host.roles}

        return self.remember(("fit", id(host), prompts, method), fit)

    @contextmanager
    def generating(
        self,
        prompts: str,
        method: str | None,
        strength: float = 1.0,
        values: Sequence[str | None] | None = None,
        pipeline: str = "",
    ) -> Iterator[Any]:
        """Yield a pipeline under the lock, with a method attached.

        Methods that set one value per image take the `values` for the images of the next call.
        """
        from vldebias.hosts import DenoiserAttachment

        with self.lock:
            pipe = self.pipe(pipeline)
            edits = {} if method is None else self.edits(pipe, prompts, method)
            if not edits:
                yield pipe
                return
            with vldebias.debias(pipe, edits, strength=strength) as attachment:
                if values is not None and isinstance(attachment, DenoiserAttachment):
                    with attachment.giving(values):
                        yield pipe
                else:
                    yield pipe
