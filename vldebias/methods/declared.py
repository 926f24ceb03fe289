"""Declare the properties of this package's methods, for use in lists, tables, checks and tests.

This module does not import torch, so `vldebias methods` and command-line checks respond
immediately. A method's class takes its declaration from here; methods from other packages declare
themselves in their own class.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

from vldebias.errors import InvalidInputError

GROUP = "vldebias.methods"
"""The entry point group through which other packages add methods."""

MODELS, PIPELINES, RESULTS = "models", "pipelines", "results"
"""Kinds of hosts: image-text models, text-to-image pipelines, and search results."""


class Need(StrEnum):
    """List the inputs that a method may require."""

    SPURIOUS = "spurious prompts"
    PAIRS = "prompt pairs"
    VALUES = "words for each value"
    IMAGES = "unlabelled images"
    LABELS = "labelled images"


@dataclass(frozen=True)
class Declaration:
    """Describe a method's name, source, inputs and settings, without its code.

    Attributes:
        name: user-facing identifier.
        title: label in reports.
        about: a short description of what the method does.
        source: paper and equation.
        color: colour of the method's bars in plots.
        module: the module that registers the method, or "" for methods from other packages.
        hosts: the kinds of hosts that the method supports: "models", "pipelines" or both, or
            "results" (search results).
        needs: the inputs that the method requires.
        settings: arguments of `vldebias.debias` that not every method accepts: "lam", the weight of
            the prompt pairs, and "shares" and "on_call", for methods that sample values.
        side: which embeddings of an image-text model its edits change: "text", "image" or "both".

    Raises:
        InvalidInputError: If the name is not a string, or `needs` is not a frozenset of `Need`.

    >>> from vldebias.methods import Need
    >>> declaration = Declaration(
    ...     "mean-difference",
    ...     title="difference of the two words",
    ...     needs=frozenset({Need.PAIRS}),
    ... )
    >>> declaration.side
    'text'
    """

    name: str
    title: str = ""
    about: str = ""
    source: str = ""
    color: str = "0.5"
    module: str = ""
    hosts: tuple[str, ...] = (MODELS, PIPELINES)
    needs: frozenset[Need] = frozenset()
    settings: frozenset[str] = frozenset()
    side: str = "text"

    def __post_init__(self) -> None:
        # Only the registry rejects spaces, so the name of an unregistered method may contain some.
        if not isinstance(self.name, str) or not self.name:
            raise InvalidInputError(
                f"Declaration: got the name {self.name!r}; expected a string, such as"
                " 'mean-difference'"
            )
        are_needs = isinstance(self.needs, frozenset)
        if not are_needs or not all(isinstance(need, Need) for need in self.needs):
            raise InvalidInputError(
                f"method {self.name!r}: got needs={self.needs!r}; expected a frozenset of"
                " vldebias.methods.Need, such as frozenset({Need.PAIRS})"
            )

    @property
    def has_lam(self) -> bool:
        """Return whether the method accepts `lam`."""
        return "lam" in self.settings

    def __add__(self, term: Declaration) -> Declaration:
        """Return the declaration for the sum of two closed forms."""
        sources = dict.fromkeys((self.source, term.source))
        return replace(
            self,
            name=f"{self.name}+{term.name}",
            title=f"{self.title} and {term.title}",
            about=f"{self.about}; {term.about}",
            source="; ".join(sources),
            color=term.color,
            hosts=tuple(host for host in self.hosts if host in term.hosts),
            needs=self.needs | term.needs,
            settings=self.settings | term.settings,
        )


def reranking_declaration(edit: Declaration) -> Declaration:
    """Return the declaration for re-ranked results.

    Args:
        edit: the method that edits the queries first, or "none" to leave them unchanged.
    """
    name = "rerank"
    title = "re-ranked results"
    summary = "re-ranks search results to the groups' shares in the gallery"
    if edit.name != "none":
        name = f"{edit.name}+{name}"
        title = f"{edit.name}, then {title}"
        summary = f"edits queries by `{edit.name}`, then {summary}"
    return Declaration(
        name,
        title,
        summary,
        "this package; vldebias.rerank",
        "#7b5ea7",
        module="vldebias.methods.results",
        hosts=(RESULTS,),
        needs=frozenset({Need.VALUES}) | edit.needs,
    )


def _closed_form(
    name: str, title: str, summary: str, source: str, color: str, *needs: Need, lam: bool = False
) -> Declaration:
    """Return a closed form's declaration. Closed forms that need images only support models."""
    return Declaration(
        name,
        title,
        summary,
        source,
        color,
        module="vldebias.methods.closed_form",
        hosts=(MODELS,) if Need.IMAGES in needs else (MODELS, PIPELINES),
        needs=frozenset(needs),
        settings=frozenset({"lam"} if lam else ()),
    )


_PACKAGE = "this package"
_NONE = _closed_form("none", "none", "changes nothing", "", "0.6")
_CALI = _closed_form(
    "cali",
    "calibration",
    "moves the prompts of each pair closer together; `lam` is the weight",
    "Chuang et al., 2023, Lemma 7.2",
    "#54a24b",
    Need.PAIRS,
    lam=True,
)
_DIFFERENCE = _closed_form(
    "difference",
    "difference of the values",
    "projects out the differences between the values' mean text embeddings; for a search, also pass"
    " `reference=`",
    "mean-difference projection: Bolukbasi et al., 2016; Haghighatkhah et al., 2022",
    "#b279a2",
    Need.VALUES,
)
_EQUALISE = _closed_form(
    "equalise",
    "equalised image means",
    "equalises each query's scores for the mean images of the values",
    _PACKAGE,
    "#e45756",
    Need.IMAGES,
    lam=True,
)
_DEFAULT = Declaration(
    "default",
    "what is attached where no method is named",
    "chooses by host and inputs, and attaches nothing unless a test predicts an improvement",
    _PACKAGE,
    "#79706e",
    module="vldebias.methods.presets",
)

_erasure = partial(Declaration, module="vldebias.methods.baselines.erasure", hosts=(MODELS,))
_zero_shot = partial(
    Declaration, module="vldebias.methods.baselines.zero_shot", hosts=(MODELS,), side="image"
)

_DECLARED = [
    _NONE,
    _closed_form(
        "orth",
        "orthogonal projection",
        "projects out the span of the spurious prompts (P0 in the paper)",
        "Chuang et al., 2023, section 7.3.2",
        "#4c78a8",
        Need.SPURIOUS,
    ),
    _closed_form(
        "orth-cali",
        "calibrated orthogonal projection",
        "projects out the spurious prompts and moves the prompts of each pair closer together",
        "Chuang et al., 2023, Lemma 7.1",
        "#f58518",
        Need.SPURIOUS,
        Need.PAIRS,
        lam=True,
    ),
    _CALI,
    _DIFFERENCE,
    _EQUALISE,
    replace(
        _CALI + _EQUALISE,
        color="#72b7b2",
        about="moves prompt pairs closer together and equalises the mean images of the values",
    ),
    replace(
        _DIFFERENCE + _EQUALISE,
        color="#ff9da6",
        about="projects out the difference of the values and equalises their mean images",
    ),
    _erasure(
        "leace",
        "LEACE of images",
        "makes the smallest change after which no linear probe can predict the attribute",
        "Belrose et al., 2023, Theorem 4.3",
        "#66c2a5",
        needs=frozenset({Need.LABELS, Need.VALUES}),
        side="image",
    ),
    _erasure(
        "sfid",
        "selective feature imputation",
        "replaces the dimensions that a random forest needs most to predict the attribute",
        "Jung et al., 2024",
        "#e7298a",
        needs=frozenset({Need.LABELS, Need.VALUES, Need.PAIRS}),
        side="both",
    ),
    _erasure(
        "spd",
        "subspace projection and neutral mean",
        "projects out the directions of linear probes, and adds the mean of ambiguous images",
        "Zhao et al., 2026",
        "#b15928",
        needs=frozenset({Need.LABELS, Need.VALUES, Need.PAIRS}),
        side="both",
    ),
    _erasure(
        "roboshot",
        "RoboShot",
        "removes the differences between values from images, and amplifies those between classes",
        "Adila et al., 2024, Algorithm 1",
        "#66a61e",
        needs=frozenset({Need.VALUES}),
        side="image",
    ),
    Declaration(
        "fair-pca",
        "fair PCA, without FairImagen's sampling",
        "projects text states onto the directions that fair PCA keeps",
        "Fu et al., 2025 (FairImagen)",
        "#cc79a7",
        module="vldebias.methods.baselines.erasure",
        hosts=(PIPELINES,),
        needs=frozenset({Need.PAIRS, Need.VALUES}),
    ),
    Declaration(
        "bend-vlm",
        "BendVLM",
        "makes each query equally close to the nearest images of each value",
        "Gerych et al., 2024, steps 1 and 2",
        "#666666",
        module="vldebias.methods.baselines.queries",
        hosts=(MODELS,),
        needs=frozenset({Need.LABELS, Need.VALUES, Need.PAIRS}),
    ),
    Declaration(
        "lian",
        "half-way to the other groups",
        "rotates embeddings half-way out of the span of the differences between groups",
        "Lian et al., 2026",
        "#1f9e89",
        module="vldebias.methods.baselines.queries",
        needs=frozenset({Need.VALUES}),
        side="both",
    ),
    Declaration(
        "each-value",
        "mean over a prompt for each value",
        "averages over one prompt per value",
        "Berg et al., 2022, prompt ensembles; this package",
        "#17becf",
        module="vldebias.methods.baselines.wording",
        needs=frozenset({Need.VALUES}),
    ),
    Declaration(
        "suffix",
        "suffix that names the attribute",
        'adds "... of any gender" to the prompt',
        "users' habit",
        "#9c9ede",
        module="vldebias.methods.baselines.wording",
        needs=frozenset({Need.VALUES}),
    ),
    _zero_shot(
        "tie",
        "TIE*, translated images",
        "moves images away from the text for their zero-shot value",
        "Lu et al., 2025 (TIE), Theorem 1",
        "#8da0cb",
        needs=frozenset({Need.IMAGES, Need.VALUES}),
    ),
    _zero_shot(
        "sage",
        "SAGE, the best template",
        "scores each image by the prompt template that separates its classes best; needs class"
        " prompts and no attribute",
        "Ye et al., 2026 (SAGE), K = 1",
        "#a6761d",
    ),
    _zero_shot(
        "dat",
        "DAT, scores over local density",
        "divides an image's score for a group by how densely the group's images lie around it;"
        " needs class prompts",
        "Hasanebrahimi et al., 2026 (DAT)",
        "#7570b3",
        needs=frozenset({Need.LABELS, Need.VALUES}),
    ),
    Declaration(
        "cross-attention",
        "values in cross-attention",
        "adds a sampled value's effect in every cross-attention layer, with prompts and weights"
        " unchanged",
        "this package, after Gaintseva et al., 2026 (EquiSteer)",
        "#1b6ca8",
        module="vldebias.methods.cross_attention",
        hosts=(PIPELINES,),
        needs=frozenset({Need.VALUES}),
        settings=frozenset({"shares", "on_call"}),
        side="denoiser",
    ),
    Declaration(
        "balanced-prompts",
        "values stated in the prompts",
        "states a sampled value in the prompt of each image",
        "prompt augmentation; this package",
        "#31708f",
        module="vldebias.methods.balanced",
        hosts=(PIPELINES,),
        needs=frozenset({Need.VALUES}),
        settings=frozenset({"shares", "on_call"}),
    ),
    Declaration(
        "paper",
        "the paper's settings",
        "`orth-cali` with lam = 1000 for models, `cali` with lam = 500 for pipelines",
        "Chuang et al., 2023, sections 7.4.1, 7.5 and 7.6",
        "#d37295",
        module="vldebias.methods.presets",
    ),
    _DEFAULT,
    replace(
        _DEFAULT,
        name="default+reference",
        title="what is attached with reference images where no method is named",
        about="`default` with unlabelled images (`reference=`)",
        color="#499894",
        hosts=(MODELS,),
        needs=frozenset({Need.IMAGES}),
    ),
    reranking_declaration(_NONE),
    reranking_declaration(_DEFAULT),
]
DECLARED = {declaration.name: declaration for declaration in _DECLARED}
"""The declarations of this package's methods by name, in listing order."""
