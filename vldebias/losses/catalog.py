"""Declare the name, purpose, source, settings and inputs of each loss without importing torch.

`vldebias train`, `vldebias losses`, the tables in the documentation and the tests all use these
declarations. The module named in each declaration implements the loss. To add a loss, write its
module and add an entry to `BUILT_IN`.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from pydantic import BaseModel, Field

from vldebias.errors import InvalidInputError
from vldebias.utils.registry import Registry, check_callable, check_choice, imported

if TYPE_CHECKING:
    from torch import nn

Column = Literal["", "index", "labels", "captions"]


class NoSettings(BaseModel):
    """Empty settings, for losses without any."""


class RINCESettings(BaseModel):
    """Settings for `rince`, by default the warm-up of section 5.3.3 of the thesis."""

    q: float = Field(0.4, gt=0, le=1, description="from 0 (InfoNCE) to 1 (symmetric, most robust).")
    q_start: float | None = Field(
        0.01, gt=0, le=1, description="first value of q in the warm-up; null: keep q constant."
    )
    lam: float | None = Field(
        None, gt=0, le=1, description="weight of the denominator. Default: 1 / (negatives + 1)."
    )


class DebiasedSettings(BaseModel):
    """Settings for `debiased`."""

    tau_plus: float = Field(0.1, ge=0, lt=1, description="share of false negatives.")
    floor: float | None = Field(
        None, ge=0, description="lower bound of the debiased estimate. Default: e^(-1/t)."
    )
    below_floor: Literal["floor", "biased"] = Field(
        "floor", description="what replaces an estimate below it: floor, or biased (uncorrected)."
    )
    positives: int = Field(
        1, ge=1, description="M, positives per pair; all but one are further views of the image."
    )


class HardNegativeSettings(DebiasedSettings):
    """Settings for `hard_negative`."""

    beta: float = Field(1.0, ge=0, description="concentration on hard negatives.")
    beta_changes: int | None = Field(
        None, ge=1, description="number of times that beta is lowered towards 0. Default: never."
    )


class SogCLRSettings(BaseModel):
    """Settings for `SogCLR`."""

    gamma: float = Field(
        0.8, gt=0, le=1, description="weight of the new estimate in the moving average."
    )


class NUCLRSettings(SogCLRSettings):
    """Settings for `NUCLR`."""

    zeta_init: float = Field(
        0.0, description="initial margin of every item; -0.05 in the paper on CC3M."
    )
    popularity_lr: float = Field(0.1, gt=0, description="step size of the log popularity.")
    popularity_wait: float = Field(
        0.2, ge=0, lt=1, description="share of the steps before popularity is learned."
    )


class ISogCLRSettings(SogCLRSettings):
    """Settings for `ISogCLR`."""

    kl_radius: float = Field(
        3.0, gt=0, description="divergence of the negatives' weights from equal ones, in nats."
    )
    temperature_lr: float = Field(0.001, ge=0, description="step size of each item's temperature.")


class CyCLIPSettings(BaseModel):
    """Settings for `cyclip`."""

    cross_modal: float = Field(
        0.25, ge=0, description="weight of equal similarities from both sides of two pairs."
    )
    in_modal: float = Field(
        0.25, ge=0, description="weight of equal similarities of two images and of their captions."
    )


class SpreadSettings(BaseModel):
    """Settings for `spread`."""

    spread_alpha: float = Field(
        0.5, ge=0, le=1, description="weight of attraction against repulsion."
    )


class GCESettings(BaseModel):
    """Settings for `gce`."""

    gce_q: float = Field(
        0.7, ge=0, le=1, description="from 0 (cross-entropy) to 1 (mean absolute error)."
    )
    smoothing: float = Field(
        0.0, ge=0, lt=1, description="share of the target spread evenly over all captions."
    )


@dataclass(frozen=True)
class Loss:
    """Declare a loss for `vldebias train`, `vldebias losses` and the documentation.

    Attributes:
        name: value for `--loss`, without spaces or commas.
        title: name shown in tables, such as "RINCE".
        summary: the purpose of the loss, in a few words.
        source: paper and equation.
        module: the loss class, usually a subclass of `vldebias.losses.ContrastiveLoss`, or its
            import path ("package.module:Class"), which avoids importing torch.
        has_state: whether the loss carries state from batch to batch, so that there is a class but
            no function. Other losses are also a function in `vldebias.losses`, named `name`.
        formula: the loss for one pair, in LaTeX.
        settings: pydantic model of the loss's settings, each of which needs a default. Users pass
            them as `--set name=value`.
        reads: batch column that the loss receives after the features: "index" (row numbers in the
            data set), "labels" (classes) or "captions". Empty if there is none.
        least_temperature: lower limit applied to a temperature taken from the model.
        fixed_temperature: reason why the temperature cannot be learned; empty if it can.
        price: measured disadvantage that `vldebias train` prints at the start of a run, if any.

    Raises:
        InvalidInputError: If the title, summary or source is empty, a setting has no default, or
            the column is unknown.

    >>> from vldebias.losses import LOSSES
    >>> LOSSES["rince"].title
    'RINCE'
    >>> LOSSES["rince"].settings().model_dump()  # vldebias train --loss rince --set q=0.5
    {'q': 0.4, 'q_start': 0.01, 'lam': None}
    """

    name: str
    title: str
    summary: str
    source: str
    module: str | type[nn.Module]
    has_state: bool = False
    formula: str = ""
    settings: type[BaseModel] = NoSettings
    reads: Column = ""
    least_temperature: float | None = None
    fixed_temperature: str = ""
    price: str = ""

    def __post_init__(self) -> None:
        where = f"loss {self.name!r}"
        for field in ("title", "summary", "source"):
            if not getattr(self, field):
                raise InvalidInputError(f"{where}: {field} is empty; expected a text for tables")
        check_choice(f"{where}: reads", self.reads, get_args(Column))
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
                f"{where}: the settings {', '.join(required)} have no default; give each a default"
            )
        if not isinstance(self.module, str):
            self.load_module()

    def load_module(self) -> type[nn.Module]:
        """Return the loss class, importing it if necessary.

        Raises:
            InvalidInputError: If the class does not exist, or `vldebias train` cannot build or
                call it.
        """
        where = f"loss {self.name!r}"
        module: Any = imported(self.module, f"{where}: module", "class")
        if not isinstance(module, type):
            label = getattr(module, "__name__", repr(module))
            raise InvalidInputError(
                f"{where}: module: got {label!r}, which is not a class; derive a class from"
                f" vldebias.losses.ContrastiveLoss that sets function = staticmethod({label})"
            )
        for method in ("from_settings", "schedule", "forward"):
            if not callable(getattr(module, method, None)):
                raise InvalidInputError(
                    f"{where}: {module.__name__} has no {method}; derive it from"
                    " vldebias.losses.ContrastiveLoss"
                )
        if hasattr(module, "reads_labels"):  # Only subclasses of ContrastiveLoss have this.
            self._check_function(module)
        return module

    def _check_function(self, module: Any) -> None:
        """Raise an error unless the function accepts features, the column, settings and options."""
        from vldebias.losses.contrast import ContrastiveLoss, keywords_of  # This requires torch.

        where = f"loss {self.name!r}: {module.__name__}.function"
        function = getattr(module, "function", None)
        if function is None or inspect.isfunction(inspect.getattr_static(module, "function")):
            label = getattr(function, "__name__", "your_loss")
            raise InvalidInputError(
                f"{where}: got {function!r}; write `function = staticmethod({label})` in the body"
                " of the class, or the function would get the module as its first argument"
            )
        column = (self.reads,) if self.reads else ()
        arguments = ("image_features", "text_features", *column)
        # The function passes options such as the temperature on to `Contrast`.
        options = ("temperature", "chunk_size", "gather")
        check_callable(where, function, arguments, (*self.settings.model_fields, *options))
        inherited = ContrastiveLoss.from_settings.__func__  # type: ignore[attr-defined]
        keywords = keywords_of(function)
        unread = [name for name in self.settings.model_fields if name not in keywords]
        if unread and getattr(module.from_settings, "__func__", None) is inherited:
            raise InvalidInputError(
                f"{where} takes no {', '.join(unread)}; expected the settings as keyword-only"
                f" arguments, got {', '.join(keywords) or 'none'}; rename the settings, or override"
                " from_settings"
            )


ADVICE = (
    "Start with info_nce. Train pretrained weights only for a domain that is new to them. With"
    " --val-split, the run saves the final or the half-way weights, whichever score better."
    " If captions are class names, try gce. Use rince only if it wins on your own held-out data."
)
"""Advice on which loss to use, repeated word for word in the documentation."""
LOSSES: Registry[Loss] = Registry("loss", "vldebias.losses", Loss)
"""All losses by name: built-in losses, registered ones, and those from entry points."""


def register_loss(loss: Loss) -> Loss:
    """Register a loss for `vldebias train` and `vldebias losses`, and return it.

    Raises:
        InvalidInputError: If `loss` is not a `Loss`, or its name is already taken.

    >>> from vldebias.losses import LOSSES, InfoNCE, Loss
    >>> loss = register_loss(
    ...     Loss("mine", title="mine", summary="example", source="none", module=InfoNCE)
    ... )
    >>> "mine" in LOSSES  # vldebias train --loss mine
    True
    """
    return LOSSES.register(loss)


_IN_UNITS_OF_T = "its running averages depend on t"
BUILT_IN = (
    Loss(
        "info_nce",
        title="InfoNCE",
        summary="correct pairs; the loss of CLIP",
        source="van den Oord et al., 2018; Radford et al., 2021",
        module="vldebias.losses.info_nce_loss:InfoNCE",
        formula=r"-\log \frac{e^{s^+}}{e^{s^+} + \sum_i e^{s_i^-}}",
    ),
    Loss(
        "rince",
        title="RINCE",
        summary="captions, many of which belong to other images",
        source="Chuang et al., 2022; section 5.2 of the thesis",
        module="vldebias.losses.rince_loss:RINCE",
        formula=(
            r"-\frac{e^{q s^+}}{q}"
            r" + \frac{(\lambda (e^{s^+} + \sum_i e^{s_i^-}))^q}{q}"
        ),
        settings=RINCESettings,
        # A pair has weight e^(q s / t), so at CLIP's temperature of 0.01 a few pairs dominate.
        least_temperature=0.1,
        fixed_temperature="its value falls without bound as t falls, whatever the features are",
        price=(
            "with pretrained heads tuned on photo captions, it lowered recall@10 by 0.073 if all"
            " captions were correct, and by 0.056 if 20% were wrong; info_nce changed recall@10 by"
            " less than 0.01 (eval/results/real_captions.json)"
        ),
    ),
    Loss(
        "debiased",
        title="DCL (debiased)",
        summary="negatives, a known share of which has the class of the pair",
        source="Chuang et al., Debiased Contrastive Learning, 2020; eq. 3.7 of the thesis",
        module="vldebias.losses.debiased_loss:Debiased",
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
        module="vldebias.losses.debiased_loss:HardNegative",
        formula=r"\text{as debiased, with negatives weighted by } e^{\beta s^-}",
        settings=HardNegativeSettings,
    ),
    Loss(
        "sogclr",
        title="SogCLR",
        summary="small batches",
        source="Yuan et al., 2022",
        module="vldebias.losses.global_contrastive:SogCLR",
        has_state=True,
        formula=r"t \log(1 + u),\; u \text{ a moving average of } \sum_i e^{s_i^- - s^+}",
        settings=SogCLRSettings,
        reads="index",
        fixed_temperature=_IN_UNITS_OF_T,
    ),
    Loss(
        "nuclr",
        title="NUCLR",
        summary="small batches, and items that differ in popularity",
        source="Wang et al., NUCLR (2024), Algorithm 1",
        module="vldebias.losses.global_contrastive:NUCLR",
        has_state=True,
        formula=r"\text{as SogCLR, with } s_i^- - \zeta_i / t,\; e^{-\xi / t} \text{ for } 1",
        settings=NUCLRSettings,
        reads="index",
        fixed_temperature=_IN_UNITS_OF_T,
    ),
    Loss(
        "isogclr",
        title="iSogCLR",
        summary="small batches, and items that differ in the number of similar negatives",
        source="Qiu et al., iSogCLR (2023)",
        module="vldebias.losses.global_contrastive:ISogCLR",
        has_state=True,
        formula=r"t_i (\log u + \rho),\; t_i \text{ learned for each item}",
        settings=ISogCLRSettings,
        reads="index",
        fixed_temperature="each item learns its own",
    ),
    Loss(
        "cyclip",
        title="CyCLIP",
        summary="features of images and captions with the same geometry",
        source="Goel et al., CyCLIP (2022)",
        module="vldebias.losses.cyclip_loss:CyCLIP",
        formula=(
            r"L_{InfoNCE} + \frac{1}{4} \sum_j (\langle x_i, y_j \rangle"
            r" - \langle x_j, y_i \rangle)^2 + (\langle x_i, x_j \rangle"
            r" - \langle y_i, y_j \rangle)^2"
        ),
        settings=CyCLIPSettings,
    ),
    Loss(
        "sigmoid",
        title="SigLIP",
        summary="classifying each pair on its own, without a softmax over the batch",
        source="Zhai et al., 2023, eq. 1",
        module="vldebias.losses.sigmoid_loss:Sigmoid",
        formula=r"-\log \sigma(s^+ + b) - \sum_i \log \sigma(-(s_i^- + b))",
    ),
    Loss(
        "spread",
        title="spread",
        summary="labelled classes whose subclasses must stay distinct",
        source="Fu et al., The Details Matter (2022), eq. 1-3",
        module="vldebias.losses.spread_loss:Spread",
        formula=r"\alpha L_{attract} + (1 - \alpha) L_{repel}",
        settings=SpreadSettings,
        reads="labels",
    ),
    Loss(
        "supcon",
        title="SupCon",
        summary="labelled classes whose subclasses need not stay distinct",
        source="Khosla et al., 2020, eq. 2",
        module="vldebias.losses.supcon_loss:SupCon",
        formula=r"-\frac{1}{|P|} \sum_p \log \frac{e^{s_p}}{\sum_a e^{s_a}}",
        reads="labels",
    ),
    Loss(
        "gce",
        title="GCE",
        summary="wrong captions, without tuning any settings",
        source="Zhang and Sabuncu (2018), eq. 6",
        module="vldebias.losses.gce_loss:GCE",
        formula=r"(1 - p^q) / q,\; p \text{ the softmax of the caption}",
        settings=GCESettings,
        reads="captions",
    ),
)
"""This package's losses, in listing order."""
for _loss in BUILT_IN:
    register_loss(_loss)
