"""Test the declarations of losses: completeness, imports, and errors for invalid ones."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import BaseModel
from test_equations import CASES
from torch import Tensor, nn
from typer.testing import CliRunner

from vldebias import losses
from vldebias.cli import app
from vldebias.errors import InvalidInputError
from vldebias.losses import LOSSES, Contrast, ContrastiveLoss, Loss, register_loss
from vldebias.losses.catalog import ADVICE, BUILT_IN
from vldebias.training.batches import Batch
from vldebias.training.objective import Objective
from vldebias.training.settings import LossSettings, load_settings

N = 24
T = 0.3
built_in = pytest.mark.parametrize("loss", BUILT_IN, ids=lambda loss: loss.name)


def batch() -> Batch:
    return Batch(
        torch.zeros(N, 3, 1, 1),
        index=torch.arange(N),
        labels=torch.arange(N) % 3,
        captions=torch.arange(N) // 2,
    )


def features() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(2, N, 5, generator=generator)
    first, second = torch.nn.functional.normalize(rows, dim=-1)
    return first.requires_grad_(), second


@built_in
def test_every_declared_loss_trains_with_its_defaults(loss: Loss) -> None:
    objective = Objective(LossSettings(loss=loss.name), temperature=T, items=N)
    objective.schedule(0, 10)
    first, second = features()
    objective(first, second, batch()).backward()
    assert first.grad is not None
    assert torch.isfinite(first.grad).all()
    assert first.grad.any()


@pytest.mark.parametrize(
    "loss", [loss for loss in BUILT_IN if not loss.has_state], ids=lambda x: x.name
)
def test_every_declared_loss_is_compared_with_its_equation(loss: Loss) -> None:
    tested = {name for name, _ in CASES} | {"sigmoid"}  # it has a separate test
    assert loss.name in tested, f"add {loss.name} to CASES in test_equations.py"


@built_in
def test_every_setting_of_a_declaration_is_described(loss: Loss) -> None:
    for name, field in loss.settings.model_fields.items():
        assert field.description, name


@pytest.mark.parametrize(
    "page",
    ["fine-tuning.md", "explanation/losses.md", "tutorials/fine-tune.md"],
)
def test_pages_give_the_same_advice_as_the_command(page: str) -> None:
    assert ADVICE in words_of(page)


def test_the_readme_starts_with_the_same_advice_and_links_the_rest() -> None:
    start, _, rest = ADVICE.partition(" With --val-split")
    assert rest
    assert f"{start} [Which loss](docs/fine-tuning.md)" in words_of("../README.md")


def words_of(page: str) -> str:
    """Return the text of a page of the documentation in one line, without code marks."""
    text = Path(__file__).parents[2].joinpath("docs", page).read_text(encoding="utf-8")
    return " ".join(text.replace("`", "").split())


def test_the_list_of_losses_ends_with_the_advice() -> None:
    listed = CliRunner().invoke(app, ["losses"])
    assert " ".join(listed.output.split()).endswith(ADVICE)


@pytest.mark.parametrize(
    ("wrong", "meant"), [("rinse", "rince"), ("hard-negative", "hard_negative")]
)
def test_the_error_for_a_misspelt_loss_suggests_the_closest_name(wrong: str, meant: str) -> None:
    with pytest.raises(InvalidInputError, match=f"got '{wrong}'; did you mean '{meant}'"):
        load_settings(loss=wrong)


def test_the_package_exports_the_class_and_the_function_of_every_loss() -> None:
    expected = {str(loss.module).partition(":")[2] for loss in BUILT_IN}
    expected |= {loss.name for loss in BUILT_IN if not loss.has_state}
    assert expected <= set(losses.__all__)


# ---- mistakes that authors of a loss make


def plain(image_features: Tensor, text_features: Tensor, **options: Any) -> Tensor:
    return Contrast(image_features, text_features, **options).positive.sum()


def nothing(image_features: Tensor, text_features: Tensor, **options: Any) -> None:
    Contrast(image_features, text_features, **options)


def without_options(image_features: Tensor, text_features: Tensor) -> Tensor:
    return image_features


def made(function: Callable[..., Any] | None) -> type[nn.Module]:
    body = {} if function is None else {"function": staticmethod(function)}
    return type("Made", (ContrastiveLoss,), body)


class Needs(BaseModel):
    """Declare a setting without a default."""

    push: float


def declared(module: Any = None, **changed: Any) -> Loss:
    fields = {"title": "new", "summary": "nothing", "source": "nobody", "name": "new"}
    return Loss(**{**fields, "module": made(plain) if module is None else module, **changed})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: register_loss(plain), r"got the function plain; register Loss\("),
        (lambda: register_loss(made(plain)), r"expected a vldebias.losses.catalog.Loss"),
        (lambda: register_loss(declared(name="my loss")), "without spaces or commas"),
        (lambda: register_loss(declared(name="rince")), "'rince': this name is taken by"),
        (lambda: declared(plain), "'plain', which is not a class; .*staticmethod"),
        (lambda: declared(nn.Linear), "Linear has no from_settings; derive it from .*Contrastive"),
        (lambda: declared(made(None)), "Made.function: got None; write .* staticmethod"),
        (lambda: declared(made(without_options)), "temperature=.*, got .* signature"),
        (lambda: declared(made(plain), reads="labels"), "expected .*text_features, labels, "),
        (lambda: declared(reads="names"), r"reads: got 'names'; expected one of"),
        (lambda: declared(settings=Needs), "the settings push have no default"),
        (lambda: declared(settings={"push": 1}), "expected a class derived from pydantic"),
        (lambda: declared(summary=""), "summary is empty"),
        (lambda: declared("vldebias.losses:Rince").load_module(), "path of an existing class"),
        (lambda: declared("vldebias.losses").load_module(), "'package.module:Name'"),
    ],
)
def test_mistakes_in_a_declaration_raise_errors_that_explain_them(
    call: Callable[[], Any], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        call()


@pytest.fixture
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LOSSES, "data", {**LOSSES.data})


@pytest.mark.usefixtures("_own_registry")
@pytest.mark.parametrize(
    ("function", "message"),
    [
        (nothing, "got None from its forward"),
        (lambda x, y, **_: x, r"got \(24, 5\) from its forward"),
    ],
)
def test_a_loss_that_does_not_return_a_number_raises_an_error(function: Any, message: str) -> None:
    register_loss(declared(made(function)))
    objective = Objective(LossSettings(loss="new"), temperature=T, items=N)
    with pytest.raises(InvalidInputError, match=f"loss 'new': {message}"):
        objective(*features(), batch())


@pytest.mark.usefixtures("_own_registry")
def test_a_loss_cannot_have_a_setting_named_like_a_common_training_setting() -> None:
    class Taken(BaseModel):
        """Declare a setting with the name of a setting of the optimizer."""

        lr: float = 1.0

    def learning(
        image_features: Tensor, text_features: Tensor, *, lr: float = 1.0, **options: Any
    ) -> Tensor:
        return lr * plain(image_features, text_features, **options)

    register_loss(declared(made(learning), settings=Taken))
    with pytest.raises(InvalidInputError, match="'new': the settings lr already exist in every"):
        load_settings(loss="new")
