"""Define methods, the problems that they are fitted to, and the method registry.

Register your own method with `register_method`, or as an entry point in the group
"vldebias.methods"; every command, evaluator and page then accepts its name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from vldebias.errors import (
    ClassSignalWarning,
    InvalidInputError,
    UnsupportedHostError,
    WideEditWarning,
    check_kind,
    warn,
)
from vldebias.hosts import Attachment, Host, resolve
from vldebias.methods.attaching import AttachSettings, attach_edits
from vldebias.methods.bounded import bounded
from vldebias.methods.declared import DECLARED, GROUP, MODELS, PIPELINES, RESULTS, Declaration, Need
from vldebias.methods.reference import Reference
from vldebias.projection.edit import Edit, Edits
from vldebias.projection.projection import CalibratedProjection
from vldebias.projection.provenance import Choice
from vldebias.prompts import PromptSet, load_prompts
from vldebias.utils.registry import Registry, check_callable

if TYPE_CHECKING:
    from vldebias.typing import AttributeLike, Features, ModelLike, PipelineLike

LAM_OF_MODELS = 1000.0  # the paper's value for discriminative models (Table 7.3)
LAM_OF_PIPELINES = 500.0  # the paper's value for pipelines, without P0 (sections 7.5 and 7.6)
# Maximum share of a space that can be removed without changing unrelated prompts. It corresponds to
# shrinking a quarter of all directions by a tenth.
WIDE = 1 / 4 * 1 / 10
# Removing up to this many directions per attribute never triggers the warning.
NARROW = 2
# Warn if less than this share of the distance between classes is kept.
CLASS_SIGNAL_KEPT = 0.5

Lam = float | Sequence[float] | Tensor | NDArray[np.floating]
"""Weight of the prompt pairs: one value, or one per prompt set."""

DEFAULTS = AttachSettings()


class Method(ABC):
    """Mitigate the bias described by a problem by attaching something to a host.

    Methods that fit an embedding edit derive from `EditMethod` and define `fit`. All other methods
    derive from this class and define `attach`.

    Attributes:
        declaration: the method's name, title, source, needs and settings; see `Declaration`.

    >>> from vldebias.methods import METHODS
    >>> method = METHODS["cali"] + METHODS["equalise"]  # closed forms can be added
    >>> method.name
    'cali+equalise'
    >>> sorted(need.value for need in method.needs)
    ['prompt pairs', 'unlabelled images']
    """

    declaration: Declaration

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if hasattr(cls, "fit") and getattr(cls.attach, "__isabstractmethod__", False):
            raise InvalidInputError(
                f"{cls.__name__} defines fit but not attach; derive a method that fits an edit"
                " from vldebias.methods.EditMethod"
            )
        declaration = vars(cls).get("declaration")
        if isinstance(declaration, str | Mapping):
            raise InvalidInputError(
                f"{cls.__name__}: got declaration = {declaration!r}; expected a Declaration, such"
                ' as Declaration("your-name", title=..., needs=frozenset({Need.PAIRS})), with'
                " Declaration and Need from vldebias.methods"
            )

    if not TYPE_CHECKING:

        def __getattr__(self, attribute: str) -> NoReturn:
            if attribute == "declaration":
                raise InvalidInputError(
                    f"{type(self).__name__} has no declaration; add `declaration ="
                    ' Declaration("your-name", title=..., needs=frozenset({Need.PAIRS}))` to the'
                    " class, with Declaration and Need from vldebias.methods"
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {attribute!r}")

    @property
    def name(self) -> str:
        """Return the user-facing identifier."""
        return self.declaration.name

    @property
    def needs(self) -> frozenset[Need]:
        """Return the inputs that the method requires."""
        return self.declaration.needs

    @property
    def uses_images(self) -> bool:
        """Return whether the method is fitted to reference images, labelled or not."""
        return bool(self.needs & {Need.IMAGES, Need.LABELS})

    @abstractmethod
    def attach(self, problem: Problem, settings: AttachSettings = DEFAULTS) -> Attachment:
        """Attach the method to the problem's host.

        Args:
            problem: the host, prompt sets and settings.
            settings: the strength and other settings of `vldebias.debias`.

        Raises:
            UnsupportedHostError: If the method does not support this kind of host.
            InvalidInputError: If an input is missing, or the method does not accept a setting.
        """

    def check(self, problem: Problem) -> None:
        """Reject a problem with the wrong kind of host or without required inputs.

        This is called before anything is embedded.

        Raises:
            UnsupportedHostError: If the method does not support this kind of host.
            InvalidInputError: If an input is missing; the message explains what to do.
        """
        host = problem.host
        if host.generative and PIPELINES not in self.declaration.hosts:
            raise UnsupportedHostError(
                f"{host.name}: method {self.name!r} only supports image-text models; use"
                " method='cali'"
            )
        if not host.generative and MODELS not in self.declaration.hosts:
            raise UnsupportedHostError(
                f"{host.name}: method {self.name!r} only supports pipelines; use a different method"
            )
        if Need.SPURIOUS in self.needs and not any(part.spurious for part in problem.attributes):
            raise InvalidInputError(
                f"{problem.label}: method {self.name!r} needs spurious prompts, and the set has"
                " none; use method='cali'"
            )
        if Need.VALUES in self.needs:
            for prompt_set in problem.attributes:
                prompt_set.by_value()  # raises an error if the set names no values
        if self.uses_images and problem.reference is None:
            labels = ""
            if Need.LABELS in self.needs:
                labels = ", with labels= or the model's own zero-shot labels"
            raise InvalidInputError(
                f"method {self.name!r} needs images; pass reference= (--reference), image"
                f" features (n, d) from this model{labels}"
            )

    def with_images(self) -> Method:
        """Return the variant of the method for problems with reference images.

        Closed forms get an additional term for the image means.
        """
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


class EditMethod(Method):
    """Fit an embedding edit to a problem, one per role of its host.

    `attach` fits the edits (`fit_roles`) and attaches them as an `EditAttachment` (`attach_edits`).

    Attributes:
        delegates: whether the fitted edits carry the name of another method, which this method
            selects or wraps.

    >>> from vldebias.miniature import load_clip
    >>> model, preprocess, tokenizer = load_clip()
    >>> from vldebias.methods import METHODS, Problem
    >>> from vldebias.hosts import resolve
    >>> problem = Problem(resolve(model, tokenizer=tokenizer), "gender", lam=100.0)
    >>> edit = problem.fit(METHODS["cali"], "text")
    >>> edit.lam
    100.0
    """

    delegates: bool = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # `fit` is called once for each of the host's roles.
        check_callable(f"{cls.__name__}: fit", cls.fit, ("self", "problem", "role"))

    @abstractmethod
    def fit(self, problem: Problem, role: str) -> Edit:
        """Fit the edit for one role of the problem's host.

        `Problem.fit` calls this method and adds the provenance to its edit.

        Args:
            problem: the host, prompt sets and settings.
            role: the host tensor to edit, such as "text" or "sequence".

        Raises:
            InvalidInputError: If the method cannot be fitted to this problem.
        """

    def narrowed(self, problem: Problem, role: str) -> tuple[Problem, tuple[Choice, ...]]:
        """Return the problem with only the prompt sets that the method edits, by default all.

        Args:
            problem: the host, prompt sets and settings.
            role: the host tensor to edit.

        Returns:
            The problem, and a record of each decision not to edit for another set.
        """
        return problem, ()

    def fit_roles(self, problem: Problem) -> Edits:
        """Return the edit for each role, fitted by `Problem.fit` once per space."""
        # Text and images are two roles in the same space, so one fit serves both.
        edit_of_space: dict[str, Edit] = {}
        edits = Edits()
        for role in problem.host.roles:
            space = problem.host.space(role)
            if space not in edit_of_space:
                edit_of_space[space] = problem.fit(self, role)
            edits[role] = edit_of_space[space]
        return edits

    def attach(self, problem: Problem, settings: AttachSettings = DEFAULTS) -> Attachment:
        settings.refuse_sampling(f"method {self.name!r}")
        return attach_edits(problem.host, self.fit_roles(problem), settings)

    def with_images(self) -> EditMethod:
        """Return the variant of the method for problems with reference images."""
        return self

    def _only_attribute(self, problem: Problem) -> PromptSet:
        """Return a problem's only attribute, or raise an error if there are several."""
        if len(problem.attributes) > 1:
            raise InvalidInputError(
                f"{self.name}: expected one attribute, got {len(problem.attributes)}; pass a set"
                " with one attribute"
            )
        return problem.attributes[0]


METHODS: Registry[Method] = Registry(
    "method",
    GROUP,
    Method,
    modules={
        name: declaration.module
        for name, declaration in DECLARED.items()
        if RESULTS not in declaration.hosts
    },
    reserved=[name for name, declaration in DECLARED.items() if RESULTS in declaration.hosts],
)
"""All methods by name: built-in methods, registered ones, and those from entry points."""


def register_method(method: Method) -> Method:
    """Register a method under its name for every command, evaluator and page in this process.

    Returns:
        The same method, unchanged.

    Raises:
        InvalidInputError: If it is not a `Method`, or its name is taken.

    >>> from vldebias.methods import METHODS, Balanced, Declaration
    >>> class MostlyWomen(Balanced):
    ...     declaration = Declaration("mostly-women", hosts=("pipelines",))
    >>> method = register_method(MostlyWomen(shares={"female": 0.8, "male": 0.2}))
    >>> "mostly-women" in METHODS  # vldebias.debias(pipe, "gender", method="mostly-women")
    True
    """
    return METHODS.register(method)


def get_method(
    method: str | Method | None, *, lam: Lam | None = None, reference: object = None
) -> Method:
    """Return a method by name, as the variant for images if `reference` is passed.

    Args:
        method: a method or its name. If None, `METHODS["default"]` is used.
        lam: weight of the prompt pairs; rejected unless the method accepts it.
        reference: reference images. If passed, the method's variant for images is returned.

    Raises:
        InvalidInputError: If no method has this name, it acts on search results, or it does not
            accept lam.
    """
    if isinstance(method, Method):
        chosen = method
    elif isinstance(method, type):
        raise InvalidInputError(
            f"method: got the class {method.__name__}; expected a name or an instance, such as"
            f" {method.__name__}()"
        )
    else:
        name = "default" if method is None else str(method)
        if name in DECLARED and RESULTS in DECLARED[name].hosts:
            refuse_reranking(name)
        chosen = METHODS[name]
    # The default chooses its own lam and would ignore one passed by the user.
    if lam is not None and method is None:
        _refuse_lam(lam, "no method is named")
    if lam is not None and not chosen.declaration.has_lam:
        _refuse_lam(lam, f"method {chosen.name!r} takes no lam")
    return chosen if reference is None else chosen.with_images()


def refuse_reranking(name: str) -> NoReturn:
    """Raise InvalidInputError because a re-ranking was passed instead of a method."""
    raise InvalidInputError(
        f"method {name!r} re-ranks search results instead of changing a model; use"
        " vldebias.rerank(scores, k, features=..., attribute=..., model=...)"
    )


def _refuse_lam(lam: Lam, reason: str) -> NoReturn:
    """Raise InvalidInputError for a method that does not accept lam, and name those that do."""
    names = [name for name, method in METHODS.items() if method.declaration.has_lam]
    raise InvalidInputError(
        f"lam={lam!r}: {reason}; use a method that accepts lam: {', '.join(names)}"
    )


def get_edit_method(
    method: str | Method | None, *, lam: Lam | None = None, reference: object = None
) -> EditMethod:
    """Return a method that fits an edit, for functions that return or inspect edits.

    Args:
        method: a Method or its name.
        lam: the weight of the prompt pairs, if the method accepts it.
        reference: image features or a `Reference`, if the method uses images.

    Raises:
        InvalidInputError: If `get_method` rejects the arguments, or the method attaches something
            other than an edit.
    """
    chosen = get_method(method, lam=lam, reference=reference)
    if isinstance(chosen, EditMethod):
        return chosen
    raise InvalidInputError(
        f"method {chosen.name!r} is not an embedding edit, so there is nothing to fit, inspect,"
        " save or merge. Attach it with vldebias.debias, or use method='cali' for an edit"
    )


@dataclass(eq=False, init=False)
class Problem:
    """Store what a method is fitted to: a host, prompt sets by attribute, and optionally images.

    Args:
        host: a model, a pipeline, a `Host`, which embeds every prompt once, or a mapping from
            prompt to embedding.
        sets: prompt sets or their names, solved jointly.
        lam: weight of the prompt pairs: one number, or one per set, which then applies to all
            attributes of the set. If None, the method's default is used.
        reference: images with or without labels, given as features or a `Reference`.
        max_loss: the maximum allowed loss of neutral text: 1 - the cosine between its embeddings
            before and after the edit.
        neutral: text that does not state the attribute. If empty, the sets' class prompts are used.

    Attributes:
        label: names of the sets, joined by "+".
        stated_words: attribute words from all sets.
        attributes: one set per attribute. A set with several attributes is split into parts, each
            of which gets its own term in the fit.

    Raises:
        InvalidInputError: If there is no prompt set, a set is repeated, the number of weights
            differs from the number of sets, the host cannot use the images, or a bound is outside
            [1e-6, 1).

    >>> from vldebias.miniature import load_clip
    >>> model, preprocess, tokenizer = load_clip()
    >>> from vldebias.hosts import resolve
    >>> problem = Problem(resolve(model, tokenizer=tokenizer), "gender")
    >>> problem.label, problem.weight
    ('gender', 1000.0)
    >>> problem.fit("difference", "text").method
    'difference'
    """

    host: Host
    sets: tuple[PromptSet, ...]
    lam: float | tuple[float, ...] | None
    reference: Reference | None
    max_loss: float | None
    neutral: tuple[str, ...]

    def __init__(
        self,
        host: Host | ModelLike | PipelineLike,
        sets: AttributeLike,
        *,
        lam: Lam | None = None,
        reference: Reference | Features | None = None,
        max_loss: float | None = None,
        neutral: Sequence[str] = (),
    ) -> None:
        self.host = resolve(host)
        names: Any = sets if isinstance(sets, list | tuple) else [sets]
        if not names:
            raise InvalidInputError(
                "attribute: expected at least one prompt set, got an empty list"
            )
        self.sets = tuple(map(load_prompts, names))
        self._set_reference_and_bound(reference, max_loss)
        self._set_lam(lam)
        self.label = "+".join(prompt_set.name for prompt_set in self.sets)

        # Collect the words from all sets without duplicates, in the order of the sets.
        attributes: list[PromptSet] = []
        stated_words: dict[str, None] = {}
        class_prompts: dict[str, None] = {}
        hashes: list[str] = []
        for prompt_set in self.sets:
            # A repeated set's pairs would count twice.
            if prompt_set.hash in hashes:
                raise InvalidInputError(
                    f"attribute: got the prompt set {prompt_set.name!r} twice in {self.label!r};"
                    " expected each set once"
                )
            hashes.append(prompt_set.hash)
            # "fairface" is gender, race and age. Each attribute gets its own term, because
            # otherwise the one with the most pairs would dominate.
            attributes += prompt_set.parts or [prompt_set]
            stated_words |= dict.fromkeys(prompt_set.stated_words)
            class_prompts |= dict.fromkeys(prompt_set.classes)
            class_prompts |= dict.fromkeys(prompt_set.held_out_classes)
        self.attributes = tuple(attributes)
        self.stated_words = tuple(stated_words)
        self.neutral = tuple(neutral or class_prompts)

    def _set_reference_and_bound(
        self, reference: Reference | Features | None, max_loss: float | None
    ) -> None:
        """Wrap features in a `Reference`, and reject unusable images and out-of-range bounds."""
        if reference is not None and self.host.generative:
            raise InvalidInputError(
                f"{self.host.name}: reference= needs a shared embedding space for images and text,"
                " which a pipeline lacks; use method='cali', which only needs prompts"
            )
        is_bound = isinstance(max_loss, Real) and 1e-6 <= max_loss < 1
        if max_loss is not None and not is_bound:
            raise InvalidInputError(
                f"max_loss: expected a number in [1e-6, 1), such as 0.02, got {max_loss!r}"
            )
        if not isinstance(reference, Reference | None):
            reference = Reference(reference, labels=getattr(reference, "labels", {}))
        self.reference = reference
        self.max_loss = max_loss

    def _set_lam(self, lam: Lam | None) -> None:
        """Convert one weight, or one per set, to plain numbers."""
        if isinstance(lam, Tensor | np.ndarray | np.generic):
            lam = lam.tolist()
        if isinstance(lam, list | tuple):
            self.lam = tuple(lam)
        else:
            check_kind("lam", lam, Real | None, "finite numbers >= 0, one or one per set")
            self.lam = lam  # type: ignore[assignment]  # its sign is checked when fitting
        if isinstance(self.lam, tuple) and len(self.lam) != len(self.sets):
            raise InvalidInputError(
                f"lam: expected one value or one per prompt set ({len(self.sets)}), got {self.lam}"
            )

    def with_sets(self, sets: Sequence[PromptSet]) -> Problem:
        """Return the problem for some of its prompt sets."""
        # Class prompts of the other sets no longer apply, but text passed as `neutral` does.
        is_from_sets = self.neutral == Problem(self.host, self.sets).neutral
        return replace(self, sets=tuple(sets), neutral=() if is_from_sets else self.neutral)

    @property
    def images(self) -> Reference:
        """Return the reference, or raise InvalidInputError if there is none."""
        if self.reference is None:
            raise InvalidInputError(
                f"{self.label}: expected reference images; pass reference=, image features (n, d)"
                " from this model"
            )
        return self.reference

    @property
    def weight(self) -> float | tuple[float, ...]:
        """Return the weight of the prompt pairs: `lam`, or the paper's value if it is None.

        If `lam` has one value per set, this is a tuple with one value per attribute.
        """
        if self.lam is None:
            return LAM_OF_PIPELINES if self.host.generative else LAM_OF_MODELS
        if not isinstance(self.lam, tuple):
            return self.lam
        weights: list[float] = []
        for prompt_set, lam in zip(self.sets, self.lam, strict=True):
            weights += [lam] * len(prompt_set.parts or [prompt_set])
        return tuple(weights)

    def zero_shot(self, prompt_set: PromptSet, role: str) -> Tensor:
        """Return zero-shot classifier weights (a, d): a normalised mean text embedding per value.

        Args:
            prompt_set: the prompt set of the attribute.
            role: the host tensor, one of its roles.
        """
        means = [self.host.embed(texts, role).mean(0) for texts in prompt_set.by_value().values()]
        return normalize(torch.stack(means), dim=1)

    def fit(self, method: str | Method, role: str) -> Edit:
        """Fit a method, weaken its edit to satisfy the bound, and add the provenance.

        Args:
            method: a method that fits an edit, or its name.
            role: the host tensor to edit, one of its roles.

        Raises:
            UnsupportedHostError: If the method does not support this kind of host.
            InvalidInputError: If the method cannot be fitted to this problem, or a bound is set and
                the edit is not a projection.

        Warns:
            ClassSignalWarning: If the edit removes more than half of the distance between the
                classes.
            WideEditWarning: If the edit removes more of a pipeline's text states than shrinking a
                quarter of all directions by a tenth would.
        """
        chosen = get_edit_method(method)
        chosen.check(self)
        if self.max_loss is not None and not self.neutral:
            raise InvalidInputError(
                f"{self.label}: max_loss needs class prompts, and the set has none; add some"
            )
        narrowed, declined = chosen.narrowed(self, role)
        if declined:
            return narrowed.fit(chosen, role).with_provenance(declined=declined)
        edit = fitted_edit(chosen, self, role)
        # The default and `paper` record the name of the method that they selected.
        if not chosen.delegates:
            edit = edit.with_provenance(method=chosen.name)
        if self.max_loss is not None:
            neutral_rows = self.host.embed(self.neutral, role)
            edit = bounded(edit, neutral_rows, self.max_loss)
            edit = edit.with_provenance(max_loss=float(self.max_loss))
        if Need.LABELS in chosen.needs:
            labels = "given" if self.images.labels else "zero-shot"
            edit = edit.with_provenance(uses_images=True, labels=labels)
        edit = edit.with_provenance(
            space=self.host.space(role),
            model_id=self.host.model_id,
            fingerprint=self.host.fingerprint(role),
            image_fingerprint=self.host.image_fingerprint,
            attribute=self.label,
            attribute_hash="+".join(prompt_set.hash for prompt_set in self.sets),
            stated_words=self.stated_words,
        )
        # Check the width only now that text has been embedded for the fingerprint.
        self._check_width(chosen, edit, role)
        # Losses can only be computed for edits that consist of a single matrix.
        if isinstance(edit, CalibratedProjection) and edit.left.numel():
            self._warn_of_losses(edit, role)
        return edit

    def _check_width(self, method: EditMethod, edit: Edit, role: str) -> None:
        """Reject an edit whose width differs from the width of the role's embeddings."""
        width = getattr(edit, "dim", None)
        rows = self.host.memory.rows
        widths = {row.shape[-1] for (role_of_row, _), row in rows.items() if role_of_row == role}
        if width is not None and widths and width not in widths:
            raise InvalidInputError(
                f"method {method.name!r}: fit returned an edit of width {width}; expected"
                f" {widths.pop()}, the width of {role!r}. Fit it to problem.host.embed(texts, role)"
            )

    def _warn_of_losses(self, edit: CalibratedProjection, role: str) -> None:
        """Warn if an edit removes too much information.

        "Too much" means half of the distance between a set's classes, or so much of a pipeline's
        space that unrelated prompts change.
        """
        # The default tests an edit that uses images on images that are left out.
        is_tested = edit.provenance.uses_images and edit.provenance.choice is not None
        for prompt_set in () if is_tested else self.sets:
            if len(prompt_set.classes) < 2:
                continue
            kept, cosine = class_signal(self.host.embed(prompt_set.classes, role), edit)
            if kept is None or kept >= CLASS_SIGNAL_KEPT:
                continue
            instead = "method='cali', " if edit.spurious_rank else ""
            warn(
                f"{prompt_set.name}: {edit.method} keeps {kept:.0%} of the distance between the"
                " classes, and the mean cosine between a class prompt and its projection is"
                f" {cosine:.2f}. Compare accuracy before and after, or use {instead}a smaller lam"
                " or strength",
                ClassSignalWarning,
            )
        wide = WIDE * edit.dim
        # Allow half a direction more, for directions that are shrunk but not removed.
        narrow = NARROW * len(self.attributes) + 0.5
        if self.host.generative and edit.removed > max(wide, narrow):
            warn(
                f"{edit.method} removes {edit.removed:.1f} of {edit.dim} directions, more than"
                f" {wide:.1f}, so unrelated prompts, such as 'A photo of a good person.', may"
                " generate different images. Generate some to check, or lower lam, fit fewer"
                " pairs, or use method='difference'",
                WideEditWarning,
            )


def class_signal(classes: Tensor, edit: Edit) -> tuple[float | None, float]:
    """Return measures of how well an edit preserves the differences between class prompts.

    Args:
        classes: embeddings (k, d) of the class prompts.
        edit: the fitted edit.

    Returns:
        The share of the distances between class prompts that remains (None if the distances were
        0), and the mean cosine between a class prompt's embedding before and after the edit.
    """
    edited = edit(classes)
    cosine = float(torch.cosine_similarity(classes, edited, dim=-1).mean())
    # Sum the distances over all pairs of classes.
    distance_before = float(torch.pdist(classes).sum())
    if not distance_before:
        return None, cosine
    return float(torch.pdist(edited).sum()) / distance_before, cosine


def fitted_edit(method: EditMethod, problem: Problem, role: str) -> Edit:
    """Call a method's `fit`, and return its output after checking that it is a fitted edit.

    Args:
        method: a built-in or registered method.
        problem: the problem to fit the method to.
        role: the host tensor to edit.

    Raises:
        InvalidInputError: If the output is not a fitted edit, or if `fit` raised this error. The
            message explains what the method's author should do.
    """
    try:
        fitted: object = method.fit(problem, role)
    except InvalidInputError as error:
        # If a projection rejects rows passed by another package's method, its message does not name
        # that method, so add the name.
        if not method.declaration.module and repr(method.name) not in str(error):
            error.args = (f"method {method.name!r}: {error}",)
        raise
    if isinstance(fitted, Edit):
        # CalibratedProjection() has no provenance before it is fitted.
        if hasattr(fitted, "provenance"):
            return fitted
        received = f"a {type(fitted).__name__} that is not fitted"
        remedy = "call its fit, such as CalibratedProjection(lam=...).fit(pairs, spurious)"
    elif fitted is None:
        received = "None"
        remedy = "end fit with `return edit`"
    elif isinstance(fitted, Tensor | np.ndarray):
        received = f"a {type(fitted).__name__} {tuple(fitted.shape)}"
        remedy = (
            "for a matrix P, return CalibratedProjection(0.0, left, right, Provenance(self.name))"
            " with float64 factors left @ right.T = I - P, and Provenance from"
            " vldebias.projection.provenance"
        )
    elif isinstance(fitted, type):
        received = f"the class {fitted.__name__}"
        remedy = f"return an instance of it, such as {fitted.__name__}().fit(pairs)"
    elif isinstance(fitted, Mapping):
        received = f"a {type(fitted).__name__}"
        remedy = "return the edit for this role only; fit is called once per role"
    elif isinstance(fitted, list | tuple):
        received = f"a {type(fitted).__name__} with {len(fitted)} items"
        remedy = (
            "return a single edit; several attributes are solved jointly by"
            " CalibratedProjection(lam=...).fit([pairs, ...])"
        )
    elif callable(fitted):
        received = f"the function {getattr(fitted, '__name__', fitted)!s}"
        remedy = (
            "derive a dataclass from vldebias.projection.edit.Edit and move the function to its"
            " __call__(z, strength)"
        )
    else:
        received = f"a {type(fitted).__name__}"
        remedy = "return a CalibratedProjection or another Edit"
    raise InvalidInputError(
        f"method {method.name!r}: fit returned {received}; expected a fitted"
        f" vldebias.projection.edit.Edit. {remedy[0].upper()}{remedy[1:]}"
    )
