"""Open what tasks measure, each once and when it is needed: models, texts under a method, image features, edits."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from vldebias.data import Embeddings, ImageData, Labels, Shards, digest_of, load_texts, open_embeddings
from vldebias.edit import Edit
from vldebias.errors import InvalidInputError, UnsupportedHostError, did_you_mean, need
from vldebias.hosts import Host, TextTable, resolve
from vldebias.loading import Loaded, load_host
from vldebias.methods import Method, Problem, get_method, load_edit, load_edits
from vldebias.options import Options
from vldebias.progress import SILENT, Progress
from vldebias.prompts import PromptSet

if TYPE_CHECKING:
    from vldebias.evaluation.task import Data
    from vldebias.hosts.images import ImageEncoder

WORLDS = ("birds", "portraits")  # shipped with the package, not read from a folder


class Texts:
    """Embed prompts as normalised rows, with or without the change that an attachment would make.

    Args:
        model: an open_clip or transformers image-text model, or a mapping prompt -> embedding (d,).
        tokenizer: where it cannot be found from the model.
        model_id: what the embeddings of a mapping come from.
        about: what is known of them, such as the digest of their file.

    Raises:
        UnsupportedHostError: see `vldebias.debias`; also a pipeline, which has no images to compare with.
    """

    def __init__(
        self, model: Any, tokenizer: Any = None, *, model_id: str | None = None, about: Mapping[str, Any] | None = None
    ) -> None:
        table = isinstance(model, Mapping)
        self.host: Host = TextTable(model, model_id) if table else resolve(model, tokenizer=tokenizer)
        if self.host.generative:
            raise UnsupportedHostError(
                f'got the pipeline {self.host.name}; expected an image-text model. Pipelines have the task "generation"'
            )
        self.about = dict(about or ({"digest": _digest(model)} if table else {}))

    @property
    def fingerprint(self) -> dict[str, Any] | None:
        """Return the fingerprint of the weights, as plain values; None for embeddings computed elsewhere."""
        weights = self.host.fingerprint()
        return None if weights is None else weights.to_dict()

    def holds(self, prompts: Sequence[str]) -> bool:
        """Return whether all prompts can be embedded; a table of embeddings may lack some."""
        try:
            return not isinstance(self.host, TextTable) or self.embed(prompts) is not None
        except InvalidInputError:
            return False

    def embed(self, prompts: Sequence[str]) -> Tensor:
        """Return L2-normalised float64 rows (n, d) of prompts, without any edit."""
        return self.host.embed(prompts, self.host.roles[0])

    def fit(
        self, prompts: PromptSet | Sequence[PromptSet], method: str | Method, lam: float | None = None, **how: Any
    ) -> Edit | None:
        """Fit a method and return its edit; None for "none", and where it changes nothing by definition.

        lam: its weight, for methods that take one. how: reference, max_loss and neutral of `Problem.of`.
        """
        chosen = get_method(method)
        if chosen.name == "none":
            return None
        sets = [prompts] if isinstance(prompts, PromptSet) else list(prompts)
        problem = Problem.of(self.host, sets, lam=lam if chosen.has_lam else None, **how)
        return problem.fit(chosen, self.host.roles[0])

    def under(
        self, prompts: Sequence[str], edit: Edit | None, *, strength: float = 1.0, keep_stated: bool = True
    ) -> Tensor:
        """Return L2-normalised float64 rows (n, d) as a model with `edit` attached gives them.

        keep_stated: leave prompts alone that name an attribute word of the edit, as `vldebias.debias` does.
        """
        return self.host.under(prompts, self.host.roles[0], edit, strength=strength, keep_stated=keep_stated)


def _digest(rows: Mapping[str, Any]) -> str:
    """Return the SHA-256 of prompts and their embeddings, whatever their order."""
    state = hashlib.sha256()
    for prompt in sorted(rows):
        row = torch.as_tensor(rows[prompt]).detach().cpu().double().contiguous()
        state.update(f"{prompt}\n".encode() + row.numpy().tobytes())
    return state.hexdigest()


@dataclass
class Session:
    """Open the inputs of tasks for `vldebias.evaluate`, where Python gives them, and for suites, where options do.

    Attributes:
        options: files and names of models. needs: what the suite asks of the user, for messages.
        given: what Python gave, by name: the model (an object, `Loaded` or a name), its tokenizer, images, reference,
            labels, edits and other inputs of `measure`. split: of a data set that is given by name.
    """

    options: Options
    needs: str = "nothing"
    progress: Progress = SILENT
    given: dict[str, Any] = field(default_factory=dict)
    split: str = "test"
    _opened: dict[Any, Any] = field(default_factory=dict)

    # ---- models and texts ----------------------------------------------------------------------------------------

    @cached_property
    def model(self) -> Loaded:
        """Return the image-text model with its preprocessing.

        Raises:
            InvalidInputError: none was named; or images are to be embedded by a model that came without preprocessing.
        """
        own = self.given.get("model")
        if isinstance(own, Loaded) and own.preprocess is not None:
            return own
        name = own if isinstance(own, str) else self.options.model
        if name is None and own is not None:
            raise InvalidInputError(
                "images: got a folder or a data set and a model without its preprocessing; give the model by name, or "
                "from `vldebias.load_host`, or give features (n, d)"
            )
        if name is None:
            raise InvalidInputError(f"expected an image-text model, got none; this suite needs {self.needs}")
        return self.image_text(name, self.options.pretrained)

    def image_text(self, model: str, pretrained: str | None = None) -> Loaded:
        """Return an image-text model by name, loaded once."""
        if (model, pretrained) not in self._opened:
            with self.progress.step(f"loading {model}"):
                loaded = load_host(model, pretrained, device=self.options.device, dtype=self.options.dtype)
            self._opened[model, pretrained] = loaded
        found: Loaded = self._opened[model, pretrained]
        return found

    @cached_property
    def pipeline(self) -> Loaded:
        """Return the text-to-image pipeline."""
        own = self.given.get("model")
        if own is not None and not isinstance(own, (str, Loaded)):
            return Loaded(own, "")
        if isinstance(own, Loaded) and own.preprocess is None:
            loaded = own
        else:
            name = own if isinstance(own, str) else self.options.pipeline
            if name is None:
                raise InvalidInputError(f"expected a text-to-image pipeline, got none; this suite needs {self.needs}")
            with self.progress.step(f"loading {name}"):
                loaded = load_host(pipeline=name, device=self.options.device, dtype=self.options.dtype)
        if self.options.device == "cpu" and hasattr(loaded.host, "unet"):
            loaded.host.unet.to(memory_format=torch.channels_last)  # convolutions run faster so on a CPU
        return loaded

    @cached_property
    def texts(self) -> Texts:
        """Return the text side without any attachment: from the user's files if given, else of the model."""
        own, source = self.given.get("model"), self.options.texts or self.options.embeddings
        if own is not None and not isinstance(own, (str, Loaded)):
            return Texts(own, self.given.get("tokenizer"))
        if source is not None and self.text_rows is not None:
            name = self.options.model or source.name
            return Texts(self.text_rows, model_id=name, about={"digest": digest_of(source)})
        return Texts(self.model.host, self.model.tokenizer)

    @cached_property
    def text_rows(self) -> dict[str, Any] | None:
        """Return prompt -> embedding, of the user's files; None where the model embeds the prompts."""
        if self.options.texts is not None:
            return load_texts(self.options.texts)
        return self.file[1] if self.options.embeddings is not None else None

    @cached_property
    def encoder(self) -> ImageEncoder:
        """Return the image side of the model."""
        from vldebias.hosts.images import image_encoder

        return image_encoder(self.model.host, self.model.preprocess, name=self.model.name)

    @cached_property
    def edits(self) -> dict[str, Edit]:
        """Return the edits that were given from Python, or saved before, by the names of their folders."""
        edits: dict[str, Edit] = dict(self.given.get("edits", {}))
        for path in self.options.projections:
            role = self.texts.host.roles[0]
            by_role = {role: load_edit(path)} if (path / "config.json").is_file() else load_edits(path)
            if role not in by_role:
                raise InvalidInputError(f"{path}: got edits of {sorted(by_role)}; expected one of {role!r}")
            edits[path.resolve().name] = by_role[role]
        return edits

    # ---- image features ------------------------------------------------------------------------------------------

    @cached_property
    def file(self) -> tuple[Embeddings, dict[str, Any] | None]:
        """Return the embeddings that the user provided, and text embeddings where the file has them."""
        assert self.options.embeddings is not None
        return _of_file(self.options.embeddings, self.options.table)

    def embedded(self, spec: Data) -> Embeddings:
        """Return the features of a split: those given, of the user's file, or of the cache, which is filled first."""
        key = spec.model_dump_json()
        if key not in self._opened:
            opened = self._given(spec.name) if spec.name in self.given else self._split(spec)
            found = self._embed(opened) if isinstance(opened, ImageData) else opened
            self._opened[key] = found.without(self.options.unknown)
            if skipped := [str(one) for one in found.about.get("skipped") or ()]:
                name, first = f"{spec.name} {spec.split}", "; ".join(skipped[:3])
                self.progress.say(f"{name}: {len(skipped)} images cannot be read and are left out, such as {first}")
        images: Embeddings = self._opened[key]
        return images

    def optional(self, spec: Data | None) -> Embeddings | None:
        """Return the features of a split that only baselines read; an embeddings file need not have it."""
        if spec is not None and self.options.embeddings is not None:
            labels = self.file[0].labels.get("split")
            if labels is None or spec.split not in labels.names:
                return None
        return None if spec is None else self.embedded(spec)

    def reference(self, spec: Data | None) -> Embeddings | None:
        """Return unlabelled image features: those of --reference, else of the split that a task names."""
        if self.options.reference is not None:
            return _of_file(self.options.reference)[0].without(self.options.unknown)
        return None if spec is None else self.embedded(spec)

    def _split(self, spec: Data) -> Embeddings | ImageData:
        """Return a split of the user's file or of a data set, at most as many images as the user's limit."""
        limit, source = self.options.limit, self.options.embeddings
        images: Embeddings | ImageData
        if source is None:
            with self.progress.step(f"opening {spec.name} {spec.split}"):
                images = open_split(spec.name, spec.root or self.options.data_root, spec.split, spec.options)
        else:
            images = self.file[0]
            if "split" in images.labels:  # without that column the file is the split that is measured
                labels = images.column("split")
                if spec.split not in labels.names:
                    raise InvalidInputError(
                        f'{source}: got {list(labels.names)} in the column "split"; expected {spec.split!r} among them'
                    )
                images = _some(images, labels.codes == labels.names.index(spec.split))
        if limit is None or len(images) <= limit:
            return images
        return _some(images, np.sort(np.random.default_rng(0).permutation(len(images))[:limit]))

    def _embed(self, data: ImageData) -> Embeddings:
        from vldebias.data import embed_images

        return embed_images(data, self.encoder, self.options.cache, progress=self.progress)

    def _given(self, name: str) -> Embeddings:
        """Return what Python gave under a name, with the labels that came for it beside those that it has."""
        given = self.given[name]
        if isinstance(given, (str, Path)):
            given = self._named(Path(given), "train" if name == "train" else self.split)
        if isinstance(given, ImageData):
            given = self._embed(given)
        rows = given if isinstance(given, Embeddings) else _from_array(given)
        labels = self.given.get("labels" if name == "images" else f"{name}_labels", {})
        return replace(rows, labels={**rows.labels, **Embeddings.of(rows.features, labels).labels})

    def _named(self, path: Path, split: str) -> Embeddings | ImageData:
        """Open a file of embeddings, a folder of pictures, or a data set by name."""
        from vldebias.data import is_features, list_data

        if is_features(path):
            return open_embeddings(path)[0]
        if path.is_dir():
            return _folder(path)
        names = [*WORLDS, *list_data()]
        if str(path) not in names:
            raise InvalidInputError(
                f"images: got {str(path)!r}; expected a folder, a file of embeddings or one of {', '.join(names)}; "
                f"{did_you_mean(path, names)}"
            )
        assert self.encoder  # texts alone are refused before a data set is opened
        return open_split(str(path), self.options.data_root, split, {})


def open_split(name: str, root: Path | str | None, split: str | None, options: Mapping[str, Any]) -> ImageData:
    """Open a split by name: the package includes the miniature worlds, everything else is read below `root`."""
    from vldebias.data import open_data
    from vldebias.miniature import open_world

    if name in WORLDS:
        if others := sorted(set(options) - {"n", "start"}):
            raise InvalidInputError(f"{name}: got the options {', '.join(others)}; expected n and start")
        return open_world(name, split=split or "test", **options)
    opened = open_data(name, root, split, **options)
    if not isinstance(opened, ImageData):
        raise InvalidInputError(f"{name}: got a stream; expected images in any order: open them without streaming")
    return opened


def _folder(path: Path) -> ImageData:
    """Open every picture below a folder; the names of the folders directly below it are the column "folder"."""
    from vldebias.data import file_images

    known = set(need("PIL.Image").registered_extensions())
    files = sorted(file for file in path.rglob("*") if file.suffix.lower() in known)
    if not files:
        raise InvalidInputError(f"{path}: got no pictures; expected files such as .png or .jpg")
    names = [file.relative_to(path).as_posix() for file in files]
    folders = Labels.of([name.partition("/")[0] if "/" in name else "" for name in names])
    return file_images(path.name, "all", path, names, {"folder": folders})


def _from_array(given: Any) -> Embeddings:
    """Return features (n, d) from an array, a tensor, a list or `Shards`, with their digest."""
    try:
        rows = Embeddings.of(given)
    except InvalidInputError as error:
        reason = str(error).removeprefix("features: ")
        raise InvalidInputError(f"images (a folder, a file, a data set or features): {reason}") from None
    if not len(rows):
        raise InvalidInputError(f"images: got shape {rows.features.shape}; expected features (n, d) with n > 0")
    held = rows.features if isinstance(rows.features, Shards) else Shards([rows.features])
    return replace(rows, about={"data": "given", "digest": held.digest()})


def _some(images: Any, rows: Any) -> Any:
    """Return some of the rows, of shards without a copy."""
    return images.picked(rows) if isinstance(getattr(images, "features", None), Shards) else images[rows]


def _of_file(path: Path, table: Path | None = None) -> tuple[Embeddings, dict[str, Any] | None]:
    """Return embeddings of a file or of shards, with their digest in the place of their path."""
    embeddings, rows = open_embeddings(path, table=table)
    about = {name: value for name, value in embeddings.about.items() if name != "file"}
    known = replace(embeddings, about={"data": path.name, **about, "digest": digest_of(path)})
    return known, None if rows is None else dict(rows)
