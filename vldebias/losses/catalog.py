"""Declare each loss once: its name, purpose, source, settings and inputs, readable without torch.

`vldebias train` and `vldebias losses`, the tables of the documentation and the tests all read these
declarations. The mathematics is in the module that a declaration names.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Literal, get_args

from pydantic import BaseModel, Field

from vldebias.errors import InvalidInputError
from vldebias.utils.registry import Registry

if TYPE_CHECKING:
    from torch import nn

Column = Literal["", "index", "labels", "captions"]


class NoSettings(BaseModel):
    """Hold nothing: the settings of a loss that has none of its own."""


class RINCESettings(BaseModel):
    """Hold the settings of `rince`."""

    q: float = Field(0.4, gt=0, le=1, description="from 0 (InfoNCE) to 1 (symmetric, most robust).")
    q_start: float | None = Field(None, gt=0, le=1, description="warm q up from here to q.")
    lam: float | None = Field(
        None, gt=0, le=1, description="weight of the denominator. Default: 1 / (negatives + 1)."
    )


class DebiasedSettings(BaseModel):
    """Hold the settings of `debiased_contrastive`."""

    tau_plus: float = Field(0.1, ge=0, lt=1, description="share of false negatives.")
    floor: float | None = Field(None, ge=0, description="least estimate. Default: e^(-1/t).")
    below_floor: Literal["floor", "biased"] = Field(
        "floor", description="what a row below the floor gets: the floor, or the biased estimate."
    )
    positives: int = Field(1, ge=1, description="M; all but one are more views of the image.")


class HardNegativeSettings(DebiasedSettings):
    """Hold the settings of `hard_negative_contrastive`."""

    beta: float = Field(1.0, ge=0, description="concentration on hard negatives.")
    beta_changes: int | None = Field(
        None, ge=1, description="lower beta towards 0 this many times. Default: never."
    )


class SogCLRSettings(BaseModel):
    """Hold the settings of `GlobalContrastiveLoss` without margins."""

    gamma: float = Field(0.8, gt=0, le=1, description="weight of the newest estimate of a sum.")


class NUCLRSettings(SogCLRSettings):
    """Hold the settings of `GlobalContrastiveLoss` with learned margins."""

    zeta_init: float = Field(
        0.0, description="first margin of every item; -0.05 in the paper on CC3M."
    )
    popularity_lr: float = Field(
        0.1, gt=0, description="step size of the popularity, in units of t."
    )
    popularity_wait: float = Field(
        0.2, ge=0, lt=1, description="share of the steps before popularity is learned."
    )


class SpreadSettings(BaseModel):
    """Hold the settings of `spread`."""

    spread_alpha: float = Field(
        0.5, ge=0, le=1, description="weight of attraction against repulsion."
    )


class GCESettings(BaseModel):
    """Hold the settings of `generalized_cross_entropy`."""

    gce_q: float = Field(
        0.7, ge=0, le=1, description="from 0 (cross-entropy) to 1 (mean absolute error)."
    )
    smoothing: float = Field(
        0.0, ge=0, lt=1, description="share of the target spread evenly over all captions."
    )


@dataclass(frozen=True)
class Loss:
    """Describe a loss to `vldebias train`, its listings and the documentation.

    Attributes:
        name: what `--loss` takes; no spaces or commas.
        title: name in tables, such as "RINCE".
        summary: what the loss is for, in a few words.
        source: paper and equation.
        module: class of the loss, or where it is ("package.module:Class"), which keeps the
            declaration free of torch. Usually derived from `vldebias.losses.ContrastiveLoss`.
        function: public function of `vldebias.losses` with the mathematics, if there is one.
        formula: the loss of a pair in LaTeX.
        settings: pydantic model of the settings of this loss, each with a default. They are
            given as `--set name=value`.
        reads: column of the batch that the loss takes after the features: the number of each row
            in the data set ("index"), its class ("labels") or its caption ("captions").
        least_temperature: lowest temperature that is taken from the model by default.
        fixed_temperature: why the temperature cannot be learned; empty if it can.

    Raises:
        InvalidInputError: an empty summary, settings without a default, or an unknown column.
    """

    name: str
    title: str
    summary: str
    source: str
    module: str | type[nn.Module]
    function: str = ""
    formula: str = ""
    settings: type[BaseModel] = NoSettings
    reads: Column = ""
    least_temperature: float | None = None
    fixed_temperature: str = ""

    def __post_init__(self) -> None:
        where = f"loss {self.name!r}"
        for field in ("title", "summary", "source"):
            if not getattr(self, field):
                raise InvalidInputError(f"{where}: {field} is empty; expected a text for listings")
        if self.reads not in get_args(Column):
            raise InvalidInputError(
                f"{where}: reads: got {self.reads!r}; expected one of {get_args(Column)}"
            )
        if not isinstance(self.settings, type) or not issubclass(self.settings, BaseModel):
            raise InvalidInputError(
                f"{where}: settings: got {self.settings!r}; expected a class derived from"
                " pydantic.BaseModel whose fields have defaults"
            )
        required = [
            name for name, field in self.settings.model_fields.items() if field.is_required()
        ]
        if required:
            raise InvalidInputError(
                f"{where}: the settings {', '.join(required)} have no default; give them one"
            )
        if not isinstance(self.module, str):
            self._check_module(self.module)

    def load_module(self) -> type[nn.Module]:
        """Return the class of the loss, imported if need be.

        Raises:
            InvalidInputError: no such class, or an object that is no loss.
        """
        module: object = self.module
        if isinstance(module, str):
            home, _, attribute = module.partition(":")
            try:
                module = getattr(import_module(home), attribute)
            except (AttributeError, ValueError):
                raise InvalidInputError(
                    f"loss {self.name!r}: module: got {module!r}; expected 'package.module:Class',"
                    " the place of an existing class"
                ) from None
        return self._check_module(module)

    def _check_module(self, module: object) -> type[nn.Module]:
        """Refuse a function, or a class that `vldebias train` could not build and call."""
        where = f"loss {self.name!r}"
        if not isinstance(module, type):
            label = getattr(module, "__name__", repr(module))
            raise InvalidInputError(
                f"{where}: module: got {label!r}, which is no class; derive a class from"
                f" vldebias.losses.ContrastiveLoss that sets function = staticmethod({label})"
            )
        for method in ("from_settings", "schedule", "forward"):
            if not callable(getattr(module, method, None)):
                raise InvalidInputError(
                    f"{where}: {module.__name__} has no {method}; derive it from"
                    " vldebias.losses.ContrastiveLoss"
                )
        if hasattr(module, "reads_labels"):  # a ContrastiveLoss: its mathematics is a function
            self._check_function(module)
        return module

    def _check_function(self, module: type[object]) -> None:
        """Refuse a loss function that does not take features, column and options as they come."""
        where = f"loss {self.name!r}"
        function = getattr(module, "function", None)
        if function is None:
            raise InvalidInputError(
                f"{where}: {module.__name__} sets no function; add"
                " `function = staticmethod(your_loss)` to its body"
            )
        parameters = inspect.signature(function).parameters.values()
        positional = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        wanted = ["image_features", "text_features"]
        if self.reads:
            wanted.append(self.reads)
        required = [p for p in positional if p.default is p.empty]
        takes_options = any(p.kind is p.VAR_KEYWORD for p in parameters)
        if len(required) != len(wanted) or not takes_options:
            raise InvalidInputError(
                f"{where}: {function.__name__} has the signature {inspect.signature(function)};"
                f" expected ({', '.join(wanted)}, *, ..., **options), with the options passed on"
                " to vldebias.losses.Contrast"
            )


LOSSES: Registry[Loss] = Registry("loss", "vldebias.losses", Loss)
"""The losses by name: those of this package, registered ones, and those of entry points."""


def register_loss(loss: Loss) -> Loss:
    """Register a loss under its name for `vldebias train` and `vldebias losses`, and return it.

    Raises:
        InvalidInputError: it is no `Loss`, or another one has the name.
    """
    return LOSSES.register(loss)


_IN_UNITS_OF_T = "its running averages are in units of t"
BUILT_IN = tuple(
    map(
        register_loss,
        (
            Loss(
                "info_nce",
                title="InfoNCE",
                summary="correct pairs; the loss of CLIP",
                source="van den Oord et al., 2018; Radford et al., 2021",
                module="vldebias.losses.info_nce_loss:InfoNCELoss",
                function="info_nce",
                formula=r"-\log \frac{e^{s^+}}{e^{s^+} + \sum_i e^{s_i^-}}",
            ),
            Loss(
                "rince",
                title="RINCE",
                summary="captions of which many belong to other images",
                source="Chuang et al., 2022; section 5.2 of the thesis",
                module="vldebias.losses.rince_loss:RINCELoss",
                function="rince",
                formula=(
                    r"-\frac{e^{q s^+}}{q}"
                    r" + \frac{(\lambda (e^{s^+} + \sum_i e^{s_i^-}))^q}{q}"
                ),
                settings=RINCESettings,
                # Pairs weigh e^(q s / t): at CLIP's .01 a few would outweigh all others.
                least_temperature=0.1,
                fixed_temperature=(
                    "its value falls without bound as t falls, whatever the features are"
                ),
            ),
            Loss(
                "debiased",
                title="DCL (debiased)",
                summary="negatives that share the class of the pair at a known rate",
                source="Chuang et al., Debiased Contrastive Learning, 2020; eq. 3.6 of the thesis",
                module="vldebias.losses.debiased:DebiasedContrastiveLoss",
                function="debiased_contrastive",
                formula=(
                    r"-\log \frac{e^{s^+}}{e^{s^+} + N g},\;"
                    r" g = \max\!\left(\frac{\bar e^- - \tau^+ \bar e^+}{1 - \tau^+},"
                    r"\, e^{-1/t}\right)"
                ),
                settings=DebiasedSettings,
            ),
            Loss(
                "hard_negative",
                title="HCL (hard negatives)",
                summary="captions that are coarser than the classes you need",
                source="Robinson et al., 2021; eq. 4.4 of the thesis",
                module="vldebias.losses.debiased:HardNegativeContrastiveLoss",
                function="hard_negative_contrastive",
                formula=r"\text{as debiased, with negatives weighted by } e^{\beta s^-}",
                settings=HardNegativeSettings,
            ),
            Loss(
                "sogclr",
                title="SogCLR",
                summary="small batches",
                source="Yuan et al., 2022",
                module="vldebias.losses.global_contrastive:GlobalContrastiveLoss",
                formula=r"t \log(1 + u),\; u \text{ a moving average of } \sum_i e^{s_i^- - s^+}",
                settings=SogCLRSettings,
                reads="index",
                fixed_temperature=_IN_UNITS_OF_T,
            ),
            Loss(
                "nuclr",
                title="NUCLR",
                summary="small batches, and items of uneven popularity",
                source="Wang et al., NUCLR (2024), Algorithm 1",
                module="vldebias.losses.global_contrastive:GlobalContrastiveLoss",
                formula=r"\text{as SogCLR, with } s_i^- - \zeta_i / t \text{ and learned } \zeta_i",
                settings=NUCLRSettings,
                reads="index",
                fixed_temperature=_IN_UNITS_OF_T,
            ),
            Loss(
                "sigmoid",
                title="SigLIP",
                summary="pairs that are classified one by one, without a softmax over the batch",
                source="Zhai et al., 2023, eq. 1",
                module="vldebias.losses.sigmoid_loss:SigmoidLoss",
                function="sigmoid",
                formula=r"-\log \sigma(s^+ + b) - \sum_i \log \sigma(-(s_i^- + b))",
            ),
            Loss(
                "spread",
                title="spread",
                summary="classes whose parts must stay apart",
                source="Fu et al., The Details Matter (2022), eq. 1-3",
                module="vldebias.losses.spread_loss:SpreadLoss",
                function="spread",
                formula=r"\alpha L_{attract} + (1 - \alpha) L_{repel}",
                settings=SpreadSettings,
                reads="labels",
            ),
            Loss(
                "supcon",
                title="SupCon",
                summary="labelled classes, if their parts need not stay apart",
                source="Khosla et al., 2020, eq. 2",
                module="vldebias.losses.supcon_loss:SupConLoss",
                function="supcon",
                formula=r"-\frac{1}{|P|} \sum_p \log \frac{e^{s_p}}{\sum_a e^{s_a}}",
                reads="labels",
            ),
            Loss(
                "gce",
                title="GCE",
                summary="wrong captions, without settings to tune",
                source="Zhang and Sabuncu (2018), eq. 6",
                module="vldebias.losses.gce_loss:GCELoss",
                function="generalized_cross_entropy",
                formula=r"(1 - p^q) / q,\; p \text{ the softmax of the caption}",
                settings=GCESettings,
                reads="captions",
            ),
        ),
    )
)
"""The losses of this package, in the order of listings."""
