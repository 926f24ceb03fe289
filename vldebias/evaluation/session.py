"""A session opens what tasks measure: models, texts, image features and edits, each once and when it is needed.

The same object serves a suite, where `Options` name files and models, and `vldebias.evaluate`, where Python hands them
over: arrays, a folder, the name of a data set.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from vldebias.data import BLOCK, Embeddings, ImageData, Labels, Shards, digest_of, open_embeddings
from vldebias.errors import InvalidInputError, did_you_mean, need
from vldebias.evaluation.texts import Texts
from vldebias.hosts import attachment_of
from vldebias.loading import Loaded, load_host
from vldebias.options import Options
from vldebias.progress import SILENT, Progress

if TYPE_CHECKING:
    from vldebias.edit import Edit
    from vldebias.evaluation.task import Data
    from vldebias.hosts import Attachment
    from vldebias.hosts.images import ImageEncoder

WORLDS = ("birds", "portraits")  # shipped with the package, not read from a folder


@dataclass
class Session:
    """Options and what was handed over, and what was loaded for them.

    Attributes:
        needs: what the suite asks of the user, for messages.
        handed: whether Python hands things over, as to `vldebias.evaluate`; the fields below are of that.
        given: images, reference, labels, ... by name. host, tokenizer: the model, or its name; without `handed` a model
            or pipeline of the options that is loaded already.
        fitted: edits by name. split: of a data set. unknown: values of labels that mean "not known".
        column: name of labels that came without one.
    """

    options: Options
    needs: str = "nothing"
    progress: Progress = SILENT
    given: Mapping[str, Any] = field(default_factory=dict)
    host: Any = None
    tokenizer: Any = None
    fitted: Mapping[str, Edit] = field(default_factory=dict)
    split: str = "test"
    unknown: Any = ()
    column: str = ""
    handed: bool = False
    _data: dict[str, ImageData] = field(default_factory=dict)
    _embedded: dict[str, Embeddings] = field(default_factory=dict)
    _hosts: dict[tuple[str, str | None], Loaded] = field(default_factory=dict)

    def say(self, text: str) -> None:
        """Show a line above the progress display."""
        self.progress.say(text)

    # ---- models ----------------------------------------------------------------------------------------------

    @cached_property
    def model(self) -> Loaded:
        """Return the image-text model with its preprocessing.

        Raises:
            InvalidInputError: none was named; or images are to be embedded by a model that came without preprocessing.
        """
        if isinstance(self.host, Loaded) and (self.handed or self.host.preprocess is not None):
            return self.host
        name = self.host if isinstance(self.host, str) else self.options.model
        if self.handed and not isinstance(self.host, str):
            raise InvalidInputError(
                "images: a folder or a data set is embedded by a model that was given by name (or by "
                "`vldebias.load_host`), which brings its preprocessing; else give features (n, d)"
            )
        if name is None:
            raise InvalidInputError(f"expected an image-text model, got none; this suite needs {self.needs}")
        return self.image_text(name, self.options.pretrained)

    def image_text(self, model: str, pretrained: str | None = None) -> Loaded:
        """Return an image-text model by name, loaded once."""
        if (model, pretrained) not in self._hosts:
            with self.progress.step(f"loading {model}"):
                loaded = load_host(model, pretrained, device=self.options.device, dtype=self.options.dtype)
            self._hosts[model, pretrained] = loaded
        return self._hosts[model, pretrained]

    @cached_property
    def pipeline(self) -> Loaded:
        """Return the text-to-image pipeline."""
        if self.handed and not isinstance(self.host, str):
            return self.host if isinstance(self.host, Loaded) else Loaded(self.host, "")
        name = self.host if self.handed else self.options.pipeline
        if name is None:
            raise InvalidInputError(f"expected a text-to-image pipeline, got none; this suite needs {self.needs}")
        if isinstance(self.host, Loaded) and self.host.preprocess is None:
            loaded = self.host
        else:
            with self.progress.step(f"loading {name}"):
                loaded = load_host(pipeline=name, device=self.options.device, dtype=self.options.dtype)
        if self.options.device == "cpu" and hasattr(loaded.host, "unet"):
            loaded.host.unet.to(memory_format=torch.channels_last)  # convolutions run faster so on a CPU
        return loaded

    @cached_property
    def texts(self) -> Texts:
        """Return the text side without any attachment: of the user's files where they have one, else of the model."""
        if self.handed and not isinstance(self.host, (str, Loaded)):
            return Texts(self.host, self.tokenizer)
        if not self.handed and self.text_rows is not None:
            source = self.options.texts or self.options.embeddings
            assert source is not None
            name = self.options.model or source.name
            return Texts(self.text_rows, model_id=name, about={"digest": digest_of(source)})
        return Texts(self.model.host, self.model.tokenizer)

    @property
    def attachment(self) -> Attachment | None:
        """Return the attachment that the model carries, which `none` is without; None where there is none."""
        if self.handed and self.host is None:  # features alone
            return None
        return next(filter(None, map(attachment_of, self.texts.host.exclusive_modules)), None)

    @cached_property
    def encoder(self) -> ImageEncoder:
        """Return the image side of the model."""
        from vldebias.hosts.images import image_encoder

        return image_encoder(self.model.host, self.model.preprocess, name=self.model.name)

    @cached_property
    def edits(self) -> dict[str, Edit]:
        """Return edits that were handed over, or saved before, by the names of their folders."""
        from vldebias.methods import load_edit, load_edits

        edits: dict[str, Edit] = dict(self.fitted)
        for path in self.options.projections:
            role = self.texts.host.roles[0]
            by_role = {role: load_edit(path)} if (path / "config.json").is_file() else load_edits(path)
            if role not in by_role:
                raise InvalidInputError(f"{path}: has edits of {sorted(by_role)}; expected one of {role!r}")
            edits[path.resolve().name] = by_role[role]
        return edits

    # ---- images and embeddings -------------------------------------------------------------------------------

    @cached_property
    def file(self) -> tuple[Embeddings, dict[str, Any] | None]:
        """Return the embeddings that the user brought, and text embeddings where the file has them."""
        assert self.options.embeddings is not None
        return _load(self.options.embeddings, self.options.keys, self.options.table)

    @cached_property
    def text_rows(self) -> dict[str, Any] | None:
        """Return prompt -> embedding, of the user's files; None where the model embeds the prompts."""
        if self.options.texts is not None:
            name = self.options.keys.get("text", "text")  # the rows stand for the images that this file need not have
            own = {ours: theirs for ours, theirs in self.options.keys.items() if ours in ("text", "prompts")}
            return _load(self.options.texts, {"features": name, **own})[1]
        return self.file[1] if self.options.embeddings is not None else None

    def data(self, spec: Data) -> ImageData:
        """Return the images of a split, as many as the user wants."""
        key, limit = spec.model_dump_json(), self.options.limit
        if key not in self._data:
            with self.progress.step(f"opening {spec.name} {spec.split}"):
                data = open_split(spec.name, spec.root or self.options.data_root, spec.split, spec.options)
            if limit is not None and not isinstance(data, ImageData):
                raise InvalidInputError(
                    f"--limit: {data.name} is streamed, so its length is not known; limit it in its options"
                )
            self._data[key] = data[_sampled(len(data), limit)] if limit is not None and len(data) > limit else data
        return self._data[key]

    def embedded(self, spec: Data) -> Embeddings:
        """Return the features of a split: handed over, of the user's file, or of the cache, which is filled first."""
        key = spec.model_dump_json()
        if key not in self._embedded:
            if self.handed:
                found = self._handed_over(spec.name)
            elif self.options.embeddings is not None:
                found = self._of_file(spec)
            else:
                found = self._of_images(self.data(spec))
            self._embedded[key] = found.without(self.unknown if self.handed else self.options.unknown)
            skipped = [str(one) for one in found.about.get("skipped") or ()]
            if skipped:
                name = f"{spec.name} {spec.split}"
                first = "; ".join(skipped[:3])
                self.say(f"{name}: {len(skipped)} images cannot be read and are left out, such as {first}")
        return self._embedded[key]

    def optional(self, spec: Data | None) -> Embeddings | None:
        """Return the features of a split that only baselines read: an embeddings file need not have it."""
        if spec is not None and self.options.embeddings is not None:
            labels = self.file[0].labels.get("split")
            if labels is None or spec.split not in labels.names:
                return None
        return None if spec is None else self.embedded(spec)

    def reference(self, spec: Data | None) -> Embeddings | None:
        """Return unlabelled image features: of --reference, else of the split that a task names."""
        if self.options.reference is not None:
            return _load(self.options.reference, {})[0].without(self.options.unknown)
        return None if spec is None else self.embedded(spec)

    def fingerprint(self, spec: Data) -> str:
        """Return the fingerprint of the images of a split, or of the user's file."""
        if self.options.embeddings is not None:
            table = "" if self.options.table is None else f" {digest_of(self.options.table)}"
            return f"{digest_of(self.options.embeddings)} {spec.split}{table}"
        return self.data(spec).fingerprint

    def _of_file(self, spec: Data) -> Embeddings:
        rows, limit = self.file[0], self.options.limit
        if "split" in rows.labels:  # without that column the file is the split that is measured
            labels = rows.column("split")
            if spec.split not in labels.names:
                raise InvalidInputError(
                    f'{self.options.embeddings}: its column "split" has {list(labels.names)}; this task needs '
                    f"{spec.split!r}"
                )
            rows = _some(rows, labels.codes == labels.names.index(spec.split))
        return rows if limit is None else _some(rows, _sampled(len(rows), limit))

    def _of_images(self, data: ImageData) -> Embeddings:
        from vldebias.data import embed_images

        own = {"dtype": self.options.feature_dtype, "strict": self.options.strict}
        how: dict[str, Any] = {} if self.handed else own
        return embed_images(data, self.encoder, self.options.cache, progress=self.progress, **how)

    def _handed_over(self, name: str) -> Embeddings:
        """What was handed over under a name, with the labels that came for it beside those that it has."""
        given = self.given.get(name)
        if given is None:
            raise InvalidInputError(f"{name}: expected features (n, d), a folder or a data set, got none")
        if isinstance(given, (str, Path)):
            given = self._opened(Path(given), "train" if name == "train" else self.split)
        if isinstance(given, ImageData):
            given = self._of_images(given)
        embeddings = given if isinstance(given, Embeddings) else _from_array(given)
        labels = self.given.get("labels" if name == "images" else f"{name}_labels")
        if labels is None:
            return embeddings
        columns = labels if isinstance(labels, Mapping) else {self.column: labels}
        own = Embeddings.of(embeddings.features, columns).labels
        return replace(embeddings, labels={**embeddings.labels, **own})

    def _opened(self, path: Path, split: str) -> Embeddings | ImageData:
        """A file of embeddings, a folder of pictures, or a data set by name."""
        from vldebias.data import is_features, list_data

        if is_features(path):
            return open_embeddings(path)[0]
        if path.is_dir():
            return _folder(path)
        names = [*WORLDS, *list_data()]
        if str(path) not in names:
            raise InvalidInputError(
                f"images: expected a folder, a file of embeddings or one of {', '.join(names)}, got {str(path)!r}; "
                f"{did_you_mean(path, names)}"
            )
        assert self.encoder  # texts alone are refused before a data set is opened
        return open_split(str(path), self.options.data_root, split, {})


def open_split(name: str, root: Path | str | None, split: str | None, options: Mapping[str, Any]) -> ImageData:
    """Open a split by name: a world comes with the package, everything else is read below `root`."""
    from vldebias.data import open_data
    from vldebias.miniature import open_world

    if name in WORLDS:
        if others := sorted(set(options) - {"n", "start"}):
            raise InvalidInputError(f"{name}: expected options n and start, got {', '.join(others)}")
        return open_world(name, split=split or "test", **options)
    opened = open_data(name, root, split, **options)
    if not isinstance(opened, ImageData):
        raise InvalidInputError(f"{name}: expected images that can be read in any order; open them without streaming")
    return opened


def _folder(path: Path) -> ImageData:
    """Every picture below a folder; the names of the folders directly below it are the column "folder"."""
    from vldebias.data import file_images

    known = set(need("PIL.Image").registered_extensions())
    files = sorted(file for file in path.rglob("*") if file.suffix.lower() in known)
    if not files:
        raise InvalidInputError(f"{path}: no pictures in it; expected files such as .png or .jpg")
    names = [file.relative_to(path).as_posix() for file in files]
    folders = Labels.of([name.partition("/")[0] if "/" in name else "" for name in names])
    return file_images(path.name, "all", path, names, {"folder": folders})


def _from_array(given: Any) -> Embeddings:
    """Features (n, d) from an array, a tensor or a list, of any type of number, with their digest."""
    try:
        embeddings = Embeddings.of(given)
    except InvalidInputError as error:
        reason = str(error).removeprefix("features: ")
        raise InvalidInputError(f"images: a folder, a file, a data set's name or features (n, d): {reason}") from None
    rows = embeddings.features
    if not len(rows):
        raise InvalidInputError(f"images: expected features (n, d) with n > 0, got shape {rows.shape}")
    if isinstance(rows, Shards):
        return replace(embeddings, about={"data": "given in shards", "digest": rows.digest()})
    digest = hashlib.sha256()
    for start in range(0, len(rows), BLOCK):
        digest.update(np.ascontiguousarray(rows[start : start + BLOCK]).data)
    return replace(embeddings, about={"data": "given", "digest": digest.hexdigest()})


def _some(embeddings: Embeddings, rows: NDArray[Any]) -> Embeddings:
    """Some of the rows, of shards without a copy."""
    return embeddings.picked(rows) if isinstance(embeddings.features, Shards) else embeddings[rows]


def _load(path: Path, keys: Mapping[str, str], table: Path | None = None) -> tuple[Embeddings, dict[str, Any] | None]:
    """Embeddings of a file or of shards, whose digest stands with them in the place of their path."""
    try:
        embeddings, rows = open_embeddings(path, keys=keys or None, table=table)
    except InvalidInputError as error:
        raise InvalidInputError(str(error).replace("keys={'features': ...}", "--key features=NAME")) from None
    about = {name: value for name, value in embeddings.about.items() if name != "file"}
    known = replace(embeddings, about={"data": path.name, **about, "digest": digest_of(path)})
    return known, None if rows is None else dict(rows)


def _sampled(n: int, limit: int) -> NDArray[np.int64]:
    """Indices of at most `limit` of n rows, at random but always the same, in their order."""
    return np.sort(np.random.default_rng(0).permutation(n)[:limit])
