"""Open models, text, image features and edits for tasks by name, each only once.

Inputs are objects passed to `vldebias.evaluate`, data set splits specified in a suite, or
command-line options. `Inputs` combines all three in one mapping.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from vldebias.data.cache import embed_images
from vldebias.data.dataset import ImageData
from vldebias.data.embeddings import Embeddings, Texts, load_texts, open_embeddings
from vldebias.data.folders import left_out_of
from vldebias.data.labelled_folder import images_of_folder
from vldebias.data.rows import Shards, digest_of, is_clip_retrieval, is_pattern
from vldebias.data.sources import list_data, open_data
from vldebias.errors import InvalidInputError, did_you_mean, need, warn_of_input
from vldebias.hosts import Host, TextTable
from vldebias.hosts.clip.images import image_encoder
from vldebias.hosts.edits import TEXT
from vldebias.hosts.loading import Loaded, load_host, text_host
from vldebias.methods import load_edit
from vldebias.miniature import load_photographs, open_world
from vldebias.miniature.photographs import NAME as PHOTOGRAPHS
from vldebias.miniature.words import WORLDS
from vldebias.projection.edit import Edit
from vldebias.study.split import Data
from vldebias.utils.devices import device_of
from vldebias.utils.names import kind_of_path
from vldebias.utils.options import Options
from vldebias.utils.progress import SILENT, Progress

if TYPE_CHECKING:
    from vldebias.data.labels import Labels
    from vldebias.typing import AnyArray, ColumnLike

# Image features (n, d), images, or the name of a file, a folder or a data set.
Images: TypeAlias = "Embeddings | ImageData | Shards | AnyArray | Path"
# One label column (n,), or column -> labels.
Columns: TypeAlias = "Labels | ColumnLike | Mapping[str, Labels | ColumnLike]"

_MANY_UNREADABLE = 0.05  # share of unreadable images that triggers a warning
SPLITS = ("images", "reference", "train", "val")
ALWAYS = ("texts", "edits", "progress")  # available without a source of that name


class Inputs(Mapping[str, Any]):
    """Mapping from input names to task inputs, which are opened on first access.

    - "images", "reference", "train" and "val" are `Embeddings` with their labels.
    - "model" and "pipeline" are `Loaded`.
    - "texts" is the host that embeds prompts; "edits" are saved or fitted edits.
    - Any other name returns the source with that name.

    Args:
        options: files and model names, as given on the command line.
        sources: name -> object, array, file, folder, data set name or `Data`. Sources take
            precedence over the options.
        needs: description of what the user must provide, for error messages.
        progress: object that shows progress bars.
        split: split to use for data sets that are given only by name.
    """

    def __init__(
        self,
        options: Options,
        sources: Mapping[str, Any] | None = None,
        *,
        needs: str = "nothing",
        progress: Progress = SILENT,
        split: str = "test",
    ) -> None:
        # Options contain file and model names. Objects passed in Python take precedence over them.
        named = {name: getattr(options, name) for name in ("model", "pipeline", "reference")}
        chosen = {**named, **(sources or {})}
        self.options = options
        self.sources = {name: source for name, source in chosen.items() if source is not None}
        self.needs = needs
        self.progress = progress
        self.split = split
        # Cache models and split embeddings by name and settings.
        self._models: dict[tuple[str, str, str | None], Loaded] = {}
        self._splits: dict[tuple[str, str | None], Embeddings | None] = {}

    def __getitem__(self, name: str) -> Any:
        return self.open(name)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self.sources, *ALWAYS]))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def open(self, name: str, split: Data | None = None) -> Any:
        """Return an input by name, opening it on first use.

        Images are embedded. Their labels combine those in the data with those passed by the user,
        without the values that the user marked as unknown.

        Args:
            name: name of the input, as listed in `Inputs`.
            split: split from a suite, used if there is no source with this name.

        Returns:
            The input, or None if there is no source. "train" and "val" are also None if the user's
            feature file does not contain this split.
        """
        if name in ("model", "pipeline", *ALWAYS):
            return getattr(self, name)
        source = self.sources.get(name, split)
        if name not in SPLITS:
            return source
        # Tasks may use different splits for the same input, whereas objects passed in Python are
        # shared by all tasks.
        key = name, source.model_dump_json() if isinstance(source, Data) else None
        if key not in self._splits:
            rows = self._open_split(name, source)
            if isinstance(rows, ImageData):
                rows = self._embed(name, rows)
            if rows is not None:
                # "labels" belongs to the images, and "train_labels" to the split "train".
                role = "labels" if name == "images" else f"{name}_labels"
                # The user's columns, such as corrected labels, replace those in the data.
                labels = Embeddings.from_arrays(rows.features, self.sources.get(role, {})).labels
                rows = replace(rows, labels={**rows.labels, **labels})
                rows = rows.without(self.options.unknown)
            self._splits[key] = rows
        return self._splits[key]

    @property
    def model(self) -> Loaded:
        """Return the image-text model, or raise InvalidInputError if there is none."""
        return self.load(self.sources.get("model"), self.options.pretrained)

    @cached_property
    def pipeline(self) -> Loaded:
        """Return the text-to-image pipeline, or raise InvalidInputError if there is none."""
        source = self.sources.get("pipeline")
        loaded = self.load(source, kind="pipeline")
        # Do not change the memory format of a pipeline object that the user passed, because it
        # would persist.
        is_ours = isinstance(source, (str, Loaded))
        if is_ours and device_of(self.options.device) == "cpu" and hasattr(loaded.host, "unet"):
            # Convolutions on a CPU are faster with channels last.
            loaded.host.unet.to(memory_format=need("torch").channels_last)
        return loaded

    def load(self, source: object, pretrained: str | None = None, kind: str = "model") -> Loaded:
        """Return a model or pipeline, loading each name only once.

        Args:
            source: a model or pipeline, or a name that `vldebias.load_host` accepts.
            pretrained: weights for an open_clip model.
            kind: "model" or "pipeline".

        Raises:
            InvalidInputError: If the source is None.
        """
        if source is None:
            raise InvalidInputError(
                f"{kind}: expected a {kind}, got none; this suite needs {self.needs}"
            )
        if isinstance(source, Loaded):
            return source
        if not isinstance(source, str):
            return Loaded(source, "", self.sources.get("tokenizer"))
        # Tasks in a suite share a model, and a judge may reuse the measured model.
        key = kind, source, pretrained
        if key not in self._models:
            with self.progress.bar(f"loading {source}"):
                self._models[key] = load_host(
                    model=source if kind == "model" else None,
                    pretrained=pretrained,
                    pipeline=source if kind == "pipeline" else None,
                    device=self.options.device,
                    dtype=self.options.dtype,
                )
        return self._models[key]

    @cached_property
    def texts(self) -> Host:
        """Return the host that embeds prompts without edits, from the user's files or the model."""
        # A file of text embeddings takes precedence over text embeddings in a feature file.
        file = self.options.texts or self.options.embeddings
        rows = None
        if self.options.texts is not None:
            rows = load_texts(self.options.texts)
        elif self.options.embeddings is not None:
            _, rows = self._feature_file
        if rows is None or file is None:
            return text_host(self.model.host, self.model.tokenizer)
        return TextTable(rows, self.options.model or file.name)

    @cached_property
    def edits(self) -> dict[str, Edit]:
        """Return the edits passed in Python, by name, and the saved edits, by folder name."""
        edits: dict[str, Edit] = dict(self.sources.get("edits", {}))
        for path in self.options.projections:
            saved = load_edit(path)
            edit_of_role = saved if isinstance(saved, dict) else {TEXT: saved}
            if TEXT not in edit_of_role:
                raise InvalidInputError(
                    f"{path}: got edits for {sorted(edit_of_role)}; expected one for {TEXT!r}"
                )
            edits[path.resolve().name] = edit_of_role[TEXT]
        return edits

    def _embed(self, name: str, images: ImageData) -> Embeddings:
        """Return image features from the model or the cache."""
        model = self.model
        if model.preprocess is None:
            named = model.name or "the model"
            raise InvalidInputError(
                f"{name}: got images, but {named} has no preprocessing; pass features (n, d), or a"
                " model that has one, by name (such as miniature) or from `vldebias.load_host`"
            )
        encoder = image_encoder(model.host, model.preprocess, name=model.name)
        rows = embed_images(images, encoder, self.options.cache, progress=self.progress)
        for fact in ("files left out", "answers"):
            if fact in images.about:
                rows = replace(rows, about={**rows.about, fact: images.about[fact]})
        for sentence in left_out_of(rows.about):
            self.progress.print_line(f"{name}: {sentence}")
        skipped: Sequence[Mapping[str, str]] = rows.about.get("skipped") or []
        share = len(skipped) / len(images)
        if share > _MANY_UNREADABLE:
            warn_of_input(
                f"{name}: {len(skipped)} of {len(images)} images ({share:.0%}) cannot be read and"
                f" are left out of all results, such as {skipped[0]['id']}"
                f" ({skipped[0]['reason']}); repair or remove these files",
            )
        return rows

    def _open_split(self, name: str, source: Images | Data | None) -> Embeddings | ImageData | None:
        """Return the features or images in a source, or None if an optional split is missing."""
        if source is None and name == "images":
            raise InvalidInputError(
                "images: expected features (n, d), a file, a folder or a data set, got none"
            )
        if source is None or isinstance(source, (Embeddings, ImageData)):
            return source
        if isinstance(source, Data):
            return self._split_of_suite(source, is_optional=name in ("train", "val"))
        if isinstance(source, (str, Path)):
            return self._open_named(name, source)
        rows = Embeddings.from_arrays(source)
        if not len(rows):
            raise InvalidInputError(
                f"{name}: got shape {rows.features.shape}; expected features (n, d) with n > 0"
            )
        features = rows.features
        # Hash the values, so that an array and a file with the same content count as the same data.
        shards = features if isinstance(features, Shards) else Shards([features])
        return replace(rows, about={"data": "given", "digest": shards.digest()})

    def _open_named(self, name: str, source: str | Path) -> Embeddings | ImageData:
        """Open features from a file or pattern, or images from a folder or a data set."""
        # A folder "celeba" in the working directory takes precedence over the data set with that
        # name.
        is_file = Path(source).suffix in (".npz", ".npy")
        if is_file or is_pattern(source) or is_clip_retrieval(source):
            embeddings, _ = _of_file(Path(source))
            return embeddings
        if Path(source).is_dir():
            return images_of_folder(Path(source))
        if kind_of_path(source) == "table":
            return open_split("manifest", source, None, {"labels": None})
        names = [*WORLDS, PHOTOGRAPHS, *list_data()]
        if str(source) not in names:
            raise InvalidInputError(
                f"{name}: got {str(source)!r}; expected a folder, a table of images, a feature file"
                f" or one of {', '.join(names)}; {did_you_mean(source, names)}"
            )
        # `split` is the part to measure, whereas baselines always learn from the training split.
        split = "train" if name == "train" else self.split
        if source == PHOTOGRAPHS:
            return _embedded_photographs("reference" if name == "reference" else split, {})
        return open_split(str(source), self.options.data_root, split, {})

    def _split_of_suite(self, data: Data, *, is_optional: bool) -> Embeddings | ImageData | None:
        """Open a split that a suite uses, from the user's feature file if there is one.

        If the user limits the number of images, the same ones are always selected. Returns None if
        an optional split is not in the user's file.
        """
        file = self.options.embeddings
        images: Embeddings | ImageData
        if file is None:
            root = data.root or self.options.data_root
            with self.progress.bar(f"opening {data.name} {data.split}"):
                if data.name == PHOTOGRAPHS:
                    images = _embedded_photographs(data.split, data.options)
                else:
                    images = open_split(data.name, root, data.split, data.options)
        else:
            rows, _ = self._feature_file
            splits = rows.labels.get("split")
            if splits is not None and data.split in splits.names:
                images = rows.select(splits.codes == splits.names.index(data.split))
            elif is_optional:
                return None
            elif splits is None:
                # If the file has no column "split", measure all of its rows.
                images = rows
            else:
                raise InvalidInputError(
                    f'{file}: got {list(splits.names)} in the column "split"; expected'
                    f" {data.split!r} among them"
                )
        # Select a random subset with a fixed seed, because the first 500 images in a folder often
        # show a single class.
        selected = np.random.default_rng(0).permutation(len(images))[: self.options.limit]
        if len(selected) == len(images):
            return images
        # Keep the order of the data set, so that files are read sequentially.
        in_order = np.sort(selected)
        return images.select(in_order) if isinstance(images, Embeddings) else images[in_order]

    @cached_property
    def _feature_file(self) -> tuple[Embeddings, Texts]:
        """Open the user's feature file, with any text embeddings that it contains."""
        return _of_file(self.options.embeddings or Path(), self.options.table)


def open_split(
    name: str, root: Path | str | None, split: str | None, options: Mapping[str, object]
) -> ImageData:
    """Open a split of a data set by name.

    Args:
        name: packaged data, "birds", "portraits" or "photographs", or a data set name that
            `vldebias eval data` lists.
        root: folder that contains the data sets.
        split: the split, such as "test". If None, the default split.
        options: options for the data set reader.

    Raises:
        InvalidInputError: If an option is unknown or invalid, or the data set can only be streamed.
    """
    if name in WORLDS:
        unknown = sorted(set(options) - {"n", "start"})
        if unknown:
            raise InvalidInputError(
                f"{name}: got the options {', '.join(unknown)}; expected only n and start"
            )
        n, start = options.get("n"), options.get("start", 0)
        if not (n is None or isinstance(n, int)) or not isinstance(start, int):
            raise InvalidInputError(
                f"{name}: got n = {n!r}, start = {start!r}; expected whole numbers"
            )
        return open_world(name, n=n, start=start, split=split or "test")
    if name == PHOTOGRAPHS:
        if options or split not in (None, "test"):
            raise InvalidInputError(
                f"{name}: got split {split!r} and options {sorted(options)}; expected the split"
                " 'test', the only one with images, and no options"
            )
        return load_photographs().images
    opened = open_data(name, root, split, **options)
    if not isinstance(opened, ImageData):
        raise InvalidInputError(
            f"{name}: got a stream; expected images with random access; open them without streaming"
        )
    return opened


def _embedded_photographs(split: str, options: Mapping[str, object]) -> Embeddings:
    """Return embeddings of the packaged photographs for the split "test" or "reference"."""
    if options or split not in ("test", "reference"):
        raise InvalidInputError(
            f"{PHOTOGRAPHS}: got split {split!r} and options {sorted(options)}; expected the split"
            " test or reference, and no options"
        )
    photographs = load_photographs()
    return photographs.gallery if split == "test" else photographs.reference


def _of_file(path: Path, table: Path | None = None) -> tuple[Embeddings, Texts]:
    """Open embeddings from a file or shards, with their digest and any text embeddings."""
    embeddings, texts = open_embeddings(path, table=table)
    facts = {name: value for name, value in embeddings.about.items() if name != "file"}
    facts = {"data": path.name, **facts, "digest": digest_of(path)}
    return replace(embeddings, about=facts), texts
