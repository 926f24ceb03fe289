"""What the tasks on image embeddings share: any method, fitted on texts and perhaps on a reference, and its traces.

A method acts on the texts, on the images, or on both (`side`); whatever it is, its rows are compared with those of
"none" on the same images.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field
from torch import Tensor
from torch.nn.functional import normalize

from vldebias.data import Embeddings, UnitRows
from vldebias.data.shard_files import digest_of
from vldebias.errors import InvalidInputError
from vldebias.evaluation.plausible import doubt_features
from vldebias.evaluation.result import TaskProvenance
from vldebias.evaluation.task import Data, Lam, Number, Options, Prompts, Session, Share, Task
from vldebias.evaluation.texts import Texts
from vldebias.hosts.side import IMAGE, TEXT, roles_of
from vldebias.methods import METHODS, Method, get_method
from vldebias.prompts import PromptSet, load_prompts

if TYPE_CHECKING:
    from vldebias.edit import Edit

PAPER = ("none", "orth", "orth-cali", "cali")  # the rows of the paper's tables
IMAGES = Data(name="images")  # those that were handed to `vldebias.evaluate`


def _known(given: Any) -> tuple[Method | str, ...]:
    """Names of the registry, checked, and Method objects; "none", the base of every change, first."""
    listed = [given] if isinstance(given, (str, Method)) else list(given)
    for one in listed:
        get_method(one)
    return tuple(dict.fromkeys(("none", *listed)))


Methods = Annotated[tuple[Any, ...], BeforeValidator(_known)]


@dataclass(frozen=True, eq=False)
class Fitted:
    """A method as one evaluation measures it; edit None changes nothing.

    details: lam and strength of its rows. about: what the provenance says of it, with what "auto" chose.
    """

    edit: Edit | None
    details: Mapping[str, Any]
    about: Mapping[str, Any]


class ImageTask(Task):
    """Fields of the tasks that compare methods on image embeddings.

    data: what is measured. methods: names in `vldebias.methods.METHODS`; "none" is always measured first.
    lam, strength, max_loss, keep_stated, side: see `vldebias.debias`; lam is that of the methods that have none of
        their own, as "default" and "auto" have, and None the paper's; side None is what each method is for.
    reference: images for the methods that use some, with labels for those that need them (else the model's own
        zero-shot labels). Images that are measured too are left out of them.
    """

    data: Data
    methods: Methods = PAPER
    lam: Lam | None = None
    strength: Share = 1.0
    max_loss: Annotated[float, Field(gt=0, lt=1), Number] | None = None
    keep_stated: bool = True
    side: Literal["text", "image", "both"] | None = None
    reference: Data | None = None

    @property
    def splits(self) -> tuple[Data | None, ...]:
        """Splits whose images the figures depend on."""
        return self.data, self.reference

    def with_options(self, options: Options) -> Self:
        """With the user's methods, lam, bound and side in the place of its own."""
        names = ("methods", "lam", "max_loss", "side")
        changed = {name: value for name in names if (value := getattr(options, name)) is not None}
        task = super().with_options(options)
        return type(self).build({**dict(task), **changed}) if changed else task

    @classmethod
    def of_given(cls, session: Session, fields: Mapping[str, Any]) -> Self:
        """Of the images that were handed over; of a reference and splits beside them where there are some."""
        beside = {name: Data(name=name) for name in ("reference", "train", "val") if name in session.given}
        return super().of_given(session, {**beside, **fields, "data": IMAGES})

    def inputs(self, session: Session) -> dict[str, Any]:
        """The images that are measured, the texts of the same model, a reference, and edits that were fitted before."""
        return {
            "images": session.embedded(self.data),
            "texts": session.texts,
            "reference": session.reference(self.reference),
            "edits": session.edits,
            "progress": session.progress,
        }

    def fingerprints(self, session: Session) -> dict[str, Any]:
        """The weights of both towers, the images of every split, the files that the user brought."""
        options = session.options
        images = options.embeddings is None
        saved = [file for folder in options.projections for file in sorted(folder.rglob("*.safetensors"))]
        files = [options.texts, options.reference, *saved]
        return {
            "texts": session.texts.fingerprint,
            "images": [session.encoder.digest, session.encoder.preprocessing] if images else None,
            "dtype": options.feature_dtype if images else None,
            "data": [session.fingerprint(split) for split in self.splits if split is not None],
            "files": [file and digest_of(file) for file in files],
        } | ({"unknown": list(options.unknown)} if options.unknown else {})

    # ---- methods ---------------------------------------------------------------------------------------------

    def fit(
        self,
        texts: Texts,
        sets: Sequence[PromptSet],
        *,
        neutral: Sequence[str] = (),
        reference: Any = None,
        edits: Mapping[str, Edit] | None = None,
    ) -> dict[str, Fitted]:
        """Every method of the task by name, "none" first, then the given edits.

        neutral: texts that a bound looks after where the sets have no class prompts of their own.
        """
        kept = () if any(s.classes for s in sets) else tuple(neutral)
        how: dict[str, Any] = {"reference": reference, "max_loss": self.max_loss, "neutral": kept}
        fitted = {m.name: self.fitted(texts.fit(sets, m, self.lam, **how)) for m in map(get_method, self.methods)}
        taken = [name for name in edits or {} if name in METHODS]
        if taken:
            raise InvalidInputError(f"edits: {taken} are names of methods; call them otherwise")
        for name, edit in (edits or {}).items():
            texts.host.check(texts.host.roles[0], edit)
            fitted[name] = self.fitted(edit)
        return fitted

    def fitted(self, edit: Edit | None, lam: float | None = None) -> Fitted:
        """An edit with what its rows say of it; lam: where it is swept over."""
        if edit is None and lam is None:
            return Fitted(None, {}, {})
        about: dict[str, Any] = {}
        if edit is not None:
            origin = edit.provenance
            lams = origin.lam if isinstance(origin.lam, tuple) else (origin.lam,)
            about = {"method": origin.method, "prompts": origin.prompts, "prompts_hash": origin.prompts_hash}
            about |= {"side": self.side or edit.side} | ({"labels": origin.labels} if origin.labels else {})
            about |= {"rank": edit.rank} if hasattr(edit, "rank") else {}
            about |= {"choice": origin.choice.to_dict()} if origin.choice else {}
            if lam is None and len(set(lams)) == 1 and lams[0] > 0:
                lam = lams[0]
        labelled = edit is not None and edit.provenance.labels == "given"
        details = {"lam": lam, "strength": self.strength} | ({"uses_labels": True} if labelled else {})
        return Fitted(edit, details, {**details, **about})

    def rows(self, texts: Texts, prompts: Sequence[str], edit: Edit | None) -> Tensor:
        """Normalised rows (n, d) of prompts as a model with the edit gives them."""
        on_texts = edit if self._acts(edit, TEXT) else None
        return texts.under(prompts, on_texts, strength=self.strength, keep_stated=self.keep_stated)

    def images(self, features: UnitRows, edit: Edit | None) -> UnitRows:
        """Unit rows (n, d) of images as a model with the edit gives them; images state nothing."""
        if edit is None or not self._acts(edit, IMAGE):
            return features
        return features.changed(lambda rows: normalize(edit.image(rows, self.strength), dim=1))

    def _acts(self, edit: Edit | None, role: str) -> bool:
        """Whether an edit acts on texts, or on images."""
        return edit is not None and role in roles_of(self.side or edit.side)

    # ---- provenance ------------------------------------------------------------------------------------------

    @staticmethod
    def check_images(images: Embeddings, texts: Texts, prompt: str) -> None:
        """Refuse features and texts of different widths; warn of features that rank nothing (`doubt_features`)."""
        width = texts.embed([prompt]).shape[1]
        if width != images.dim:
            raise InvalidInputError(
                f"image features have width {images.dim}, text embeddings {width}; expected both from one model"
            )
        doubt_features(images)

    def provenance(
        self,
        name: str,
        images: Embeddings,
        texts: Texts,
        sets: Sequence[PromptSet],
        methods: Mapping[str, Mapping[str, Any]],
        *,
        reference: Embeddings | None = None,
        **fields: Any,
    ) -> TaskProvenance:
        """What was measured with which model, prompts and images; fields: title, description, n, settings."""
        about = images.about
        data = {"images": about, "reference": {} if reference is None else reference.about, "texts": texts.about}
        digests = {part: one.get("digest") or one.get("data_fingerprint") for part, one in data.items()}
        side = self.side or "what each method is for"
        bounds = {} if self.max_loss is None else {"max_loss": self.max_loss}
        return TaskProvenance(
            task=name,
            model=str(about.get("model") or texts.host.model_id or "unnamed model"),
            fingerprint=texts.fingerprint,
            prompts="+".join(one.name for one in sets),
            prompts_hash="+".join(one.hash for one in sets),
            split=" ".join(str(about[key]) for key in ("data", "split") if about.get(key)) or "unnamed split",
            methods={method: dict(one) for method, one in methods.items()},
            seeds=[self.seed],
            data={part: str(one) for part, one in digests.items() if one},
            settings={**fields.pop("settings"), "side": side, "keep_stated": self.keep_stated, **bounds},
            **fields,
        )


def sets_by_column(given: Any) -> dict[str, tuple[PromptSet, ...]]:
    """Column -> prompt sets, from such a mapping; a set alone is about the column of its name.

    Raises:
        InvalidInputError: there is none.
    """
    if not isinstance(given, Mapping):
        several = () if given is None else given if isinstance(given, (list, tuple)) else (given,)
        given = {one.name: one for one in map(load_prompts, several)}
    if not given:
        raise InvalidInputError("prompts: expected a prompt set, by name or as an object")
    return {
        column: tuple(load_prompts(one) for one in (of if isinstance(of, (list, tuple)) else (of,)))
        for column, of in given.items()
    }


def names_of(sets: Iterable[Prompts]) -> tuple[str, ...]:
    """Names and files of prompt sets; those given as objects have none, and stand in the fields with their hash."""
    return tuple(str(one) for one in sets if not isinstance(one, PromptSet))


def prompts_of(sets: Iterable[Prompts]) -> tuple[str, ...]:
    """Every text that fitting on some prompt sets embeds."""
    texts: list[str] = []
    for one in map(load_prompts, sets):
        texts += [*one.classes, *one.spurious, *chain(*one.groups), *prompts_of(one.parts or ())]
    return tuple(dict.fromkeys(texts))
