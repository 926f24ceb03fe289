"""Test that errors for the common first mistakes of extension authors explain what to do."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from PIL import Image
from pydantic import BaseModel, Field, ValidationError

import vldebias
from tests.refusals import refused
from vldebias.data import DATA, DataSet, ImageData, Labels, file_images, open_data, register_data
from vldebias.hosts import Host, register_host
from vldebias.judge.judges import JUDGES, Judge, JudgeSpec, checked_judge, predict, register_judge
from vldebias.losses import Contrast, ContrastiveLoss, Loss
from vldebias.measure.metric import Metric, register_metric
from vldebias.methods import Declaration, EditMethod, Need, register_method
from vldebias.miniature import load_clip
from vldebias.projection.projection import CalibratedProjection
from vldebias.study import TASKS, Task, TaskResult, register_task
from vldebias.study.evaluating import evaluate
from vldebias.study.tasks.images import ImageTask

pytestmark = pytest.mark.filterwarnings("ignore::vldebias.errors.VldebiasWarning")


@pytest.fixture(autouse=True)
def _own_registries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Isolate the cases: what one of them registers is not visible to the next."""
    for registry in (DATA, TASKS, JUDGES):
        monkeypatch.setattr(registry, "data", {**registry})


# ---- methods
def declared(**fields: Any) -> Declaration:
    return Declaration("mine", **{"needs": frozenset({Need.PAIRS}), **fields})


def method_with(fit: Any, declaration: Any = None) -> type[EditMethod]:
    return type("Mine", (EditMethod,), {"declaration": declaration or declared(), "fit": fit})


def fitted_by(fit: Any) -> Any:
    model, _, tokenize = load_clip()
    method = method_with(lambda self, problem, role: fit(problem, role))()
    return vldebias.debias(model, "gender", method=method, tokenizer=tokenize)


def embedded(problem: Any, role: str) -> Any:
    return problem.host.embed(["a man", "a woman"], role)


def of_width_64(problem: Any, role: str) -> Any:
    return CalibratedProjection().fit(None, torch.randn(1, 64))


def a_function(problem: Any, role: str) -> Any:
    return problem


OF_METHODS = (
    (lambda: declared(needs=[Need.PAIRS]), r"got needs=\[.*; expected a frozenset of"),
    (lambda: declared(needs=frozenset({"pairs"})), "got needs=.*; expected a frozenset of"),
    (lambda: Declaration(None), "got the name None; expected a string"),  # type: ignore[arg-type]
    (
        lambda: register_method(method_with(lambda self, *_: None, Declaration("x y"))()),
        "has the name 'x y'; expected a string without spaces",
    ),
    (lambda: method_with(a_function, "mine"), "Mine: got declaration = 'mine'; expected a Decl"),
    (
        lambda: method_with(lambda self, problem: None),
        r"a function of \(self, problem, role\), got .* signature \(self, problem\)",
    ),
    (lambda: register_method(a_function), "got the function a_function; derive a class and reg"),  # type: ignore[arg-type]
    (
        lambda: register_method(method_with(lambda self, *_: None)),
        "got the class Mine; expected an instance",
    ),  # type: ignore[arg-type]
    (
        lambda: vldebias.debias(load_clip()[0], "gender", method=CalibratedProjection),  # type: ignore[arg-type]
        "got the class CalibratedProjection; expected a name or an instance",
    ),
    (lambda: fitted_by(lambda *_: CalibratedProjection), "returned the class .*an instance of it"),
    (lambda: fitted_by(lambda *_: CalibratedProjection()), "that is not fitted; .* Call its fit"),
    (lambda: fitted_by(lambda *_: None), "returned None; expected .* End fit with `return edit`"),
    (lambda: fitted_by(lambda *_: {"text": 1}), "returned a dict; .*once per role"),
    (lambda: fitted_by(lambda *_: a_function), "returned the function a_function; .*Derive"),
    (
        lambda: fitted_by(lambda *_: torch.eye(256)),
        "Provenance from vldebias.projection.provenance",
    ),
    (lambda: fitted_by(of_width_64), "'mine': fit returned an edit of width 64; expected 256"),
    (
        lambda: fitted_by(lambda *case: CalibratedProjection().fit(embedded(*case))),
        r"method 'mine': pairs: .*, got \(2, 256\); .* pass rows.unflatten\(0, \(-1, 2\)\)",
    ),
    (
        lambda: fitted_by(lambda problem, _: CalibratedProjection().fit(problem.sets[0].pairs)),
        r"'mine': pairs: .* got tuple of texts; embed them first, .*problem.host.embed\(texts",
    ),
    (
        lambda: fitted_by(lambda problem, role: problem.host.embed(problem.sets[0].pairs, role)),
        r"embed got \('.*expected a list of strings. For pairs, .* rows.unflatten\(0, \(-1, 2\)\)",
    ),
    (lambda: fitted_by(lambda *_: [1, 2]), r"a list with 2 items; .* by Calibr.*fit\(\[pairs"),
)


# ---- losses
def pushing(image_features: Any, text_features: Any, *, push: float = 1.0, **options: Any) -> Any:
    batch = Contrast(image_features, text_features, **options)
    return batch.reduce(push * batch.sums(1.0)[0] - batch.positive)


class Push(BaseModel):
    push: float = Field(1.0, description="weight.")


class Pull(BaseModel):
    pull: float = Field(1.0, description="weight.")


class PushLoss(ContrastiveLoss[Push]):
    function = staticmethod(pushing)


class UnboundLoss(ContrastiveLoss[Push]):
    function = pushing


def loss(module: Any, settings: Any = Push) -> Loss:
    texts = {"title": "mine", "summary": "mine", "source": "mine"}
    return Loss("mine", module=module, settings=settings, **texts)


def batch() -> Contrast:
    return Contrast(torch.eye(4), torch.eye(4), temperature=1.0)


OF_LOSSES = (
    (lambda: loss(PushLoss, Pull), "PushLoss.function takes no pull; expected .* got push; rename"),
    (lambda: loss(UnboundLoss), r"write `function = staticmethod\(pushing\)`"),
    (lambda: loss("nopackage.losses:Mine").load_module(), "'nopackage.losses:Mine'; expected the"),
    (lambda: loss("vldebias.losses:Mine").load_module(), "'vldebias.losses:Mine'; expected the"),
    (lambda: batch().sums(), r"expected one scale or more, such as sums\(1.0\), got none"),
    (lambda: batch().reduce(torch.zeros(3)), r"expected losses \(2, 4\) .*, got \(3,\)"),
)


# ---- data sets
def opened(labels: Any, columns: Any = ("kind",)) -> ImageData:
    def read(root: Path | None, split: str) -> ImageData:
        image = Image.new("RGB", (8, 8))
        return ImageData("mine", split, ("a", "b"), lambda row: image, labels, fingerprint="mine")

    register_data(DataSet("mine", read, split="test", columns=columns))
    return open_data("mine")  # type: ignore[return-value]


def empty(layout: str) -> Any:
    def read(root: Path, split: str) -> ImageData:
        return file_images("mine", split, root, [], {})

    register_data(DataSet("mine", read, layout, split="test"))
    return open_data("mine", Path.cwd())


OF_DATA_SETS = (
    (lambda: opened({}), r"'mine': its reader returned the columns \[\], without kind"),
    (lambda: opened({"kind": ["a", "b"]}), "column 'kind': got .*; expected .*Labels.from_v"),
    (lambda: opened({"kind": Labels.from_values(["a"])}), "expected 2 rows in every column, got"),
    (lambda: empty("file1.png, ..."), "expected images in split 'test' .*, got none; .* file1.png"),
    (lambda: opened({}, columns="kind"), "columns: got the string 'kind'; expected a tuple"),
)


# ---- metrics
def metric(compute: Any, reads: Any = "groups") -> Metric:
    interval = "bootstrap" if reads == "groups" else ""
    return Metric(
        "mine", "mine", "bias", "lower", (0, 1), reads=reads, compute=compute, interval=interval
    )


def measured(compute: Any) -> Any:
    register_metric(metric(compute))
    labels = {"label": ["landbird", "waterbird"] * 8, "place": ["c", "c", "d", "d"] * 4}
    images = np.random.default_rng(0).normal(size=(16, 256))
    return evaluate("miniature", images, task="groups", attribute="waterbirds", labels=labels)


OF_METRICS = (
    (lambda: metric(None), "reads='groups' has no effect without a function"),
    (lambda: metric(lambda hits: hits), r"a function of \(hits, size\), got .* signature \(hits\)"),
    (lambda: metric("spread"), r"a function of \(hits, size\), got 'spread'"),
    (lambda: measured(lambda hits, size: None), "compute returned None; expected an array"),
    (lambda: measured(lambda hits, size: hits), r"returned an array \(4,\) .*; expected \(\)"),
    (lambda: measured(lambda hits, size: 0.5), r"returned an array \(\) .*; expected \(2000,\)"),
    (lambda: measured(lambda hits, size: hits.sum(-1) + 2.0), "which is outside of bounds="),
)


# ---- tasks
class Unnamed(ImageTask):
    def measure(self, images: Any) -> list[TaskResult]:
        return []


class Unmeasured(ImageTask):
    task: Literal["mine"] = "mine"


class Mine(Unmeasured):
    def measure(self, images: Any, texts: Any) -> Any:
        about: dict[str, Any] = {"title": "Mine", "description": "Mine.", "n": {"images": 2}}
        return TaskResult(self.provenance(self.name, images, texts, [], {}, **about))


class WithoutSelf(Unmeasured):
    def measure(images: Any, texts: Any) -> Any:  # type: ignore[override]  # noqa: N805
        return []


class Positional(Unmeasured):
    def measure(self, images: Any, /) -> Any:
        return []


class AnyInputs(Unmeasured):
    def measure(self, **inputs: Any) -> Any:
        return []


class Misspelt(ImageTask):
    task: Literal["misspelt"] = "misspelt"

    def measure(self, imgs: Any, texts: Any) -> Any:
        return []


def measured_task(kind: type[Task] = Mine) -> Any:
    register_task(kind)
    name = kind.model_fields["task"].default
    return evaluate("miniature", np.eye(256)[:2], task=name, methods="none")


OF_TASKS = (
    (lambda: register_task(Mine(name="a", title="a")), "got an instance of Mine; register Mine"),  # type: ignore[arg-type]
    (lambda: register_task(a_function), "got the function a_function; derive a class"),  # type: ignore[arg-type, type-var]
    (lambda: register_task(Unnamed), "got .*Unnamed.*; add the field"),
    (lambda: register_task(Unmeasured), "task 'mine': Unmeasured does not define measure"),
    (lambda: register_task(WithoutSelf), r"\(self, images=.*, got one with .*\(images.*, texts"),
    (lambda: register_task(Positional), r"Positional: measure: expected a function of \(self, im"),
    (lambda: register_task(AnyInputs), r"got \*\*inputs.*, which receives nothing.*by names"),
    (lambda: measured_task(Misspelt), r"'misspelt': measure: .* missing .* argument: 'imgs'"),
    (measured_task, "returned a TaskResult; expected a list of TaskResult: end it with"),
)


def test_an_instance_instead_of_a_task_class_is_explained() -> None:
    with pytest.raises(
        ValidationError, match=r"got no fields; .* its class: register_task\(Mine\)"
    ):
        register_task(Mine())  # type: ignore[arg-type, call-arg]


# ---- hosts
class Tower(torch.nn.Module):
    pass


class Hosted(Host):
    library = __name__
    roles = ("text",)

    def __init__(self, model: Any, tokenizer: Any = None, negative: bool = False) -> None:
        self.name = "Tower"
        self.exclusive_modules = (model,)

    def read(self, prompts: Any, role: str) -> Any:
        return {(role, prompt): torch.eye(4)[len(prompt) % 4].double() for prompt in prompts}

    def install(self, attachment: Any) -> Any:
        return lambda: None


def host(**changes: Any) -> Any:
    register_host(type("Mine", (Hosted,), changes))
    return vldebias.debias(Tower(), "gender", method="difference")


def set_nothing(self: Any, model: Any, tokenizer: Any = None, negative: bool = False) -> None:
    pass


OF_HOSTS = (
    (lambda: host(read=lambda *_: None), "Mine.read returned a NoneType; expected a mapping"),
    (lambda: host(read=lambda *_: torch.eye(3)), "Mine.read returned a Tensor; expected a mapping"),
    (lambda: host(read=lambda *_: {}), r"Mine.read returned no row \('text', .*; expected a map"),
    (lambda: host(install=lambda *_: None), "Mine installed hooks and returned None; expected a"),
    (lambda: host(install=Host.install), "Mine does not define install"),
    (lambda: host(__init__=object.__init__), "Mine does not define __init__"),
    (
        lambda: host(__init__=lambda self, model: None),
        r"a function of \(self, model, .*\), got .* signature \(self, model\)",
    ),
    (lambda: host(__init__=set_nothing), "not set name, exclusive_modules, .*; set it in"),
    (lambda: host(library=""), "whose `library` names the package that defines its models"),
    (lambda: register_host(Hosted(None)), "expected a subclass of"),  # type: ignore[arg-type]
)


def test_a_host_whose_hooks_cannot_be_removed_is_not_attached() -> None:
    attached = []
    tower = Tower()
    register_host(type("Mine", (Hosted,), {"install": lambda self, a: attached.append(a)}))
    with pytest.raises(ValueError, match="expected a function that removes the hooks"):
        vldebias.debias(tower, "gender", method="difference")
    rows = torch.ones(1, 4)
    assert attached[0].apply("text", rows, ["a"]) is rows


# ---- judges
class Judged(JudgeSpec):
    kind: Literal["mine"] = "mine"

    def ready(self, task: Any, session: Any) -> Any:
        return None


class Unready(JudgeSpec):
    kind: Literal["mine"] = "mine"


def judged(answer: Any) -> Any:
    judge = Judge("mine", {"shade": ("dark", "bright")}, lambda images: answer, "mine")
    return predict(judge, [Image.new("RGB", (8, 8))])


OF_JUDGES = (
    (lambda: register_judge(a_function), "got the function a_function; derive a class"),  # type: ignore[arg-type]
    (lambda: register_judge(Judged()), "got an instance of Judged; register Judged"),  # type: ignore[arg-type]
    (lambda: register_judge(Unready), "kind 'mine': Unready does not define ready"),
    (
        lambda: checked_judge(Judged(), Judged().ready(None, None)),
        r"judge 'mine': `ready` returned None .* end it with `return Judge\(...\)`",
    ),
    (lambda: judged(["dark"]), "judge mine: predict returned a list; expected a mapping"),
    (
        lambda: judged({"shade": [[2.0, 0.0]]}),
        r"expected probabilities of shape \(1, 2\) .*softmax",
    ),
)


@refused(
    *(*OF_METHODS, *OF_LOSSES, *OF_DATA_SETS, *OF_METRICS, *OF_TASKS, *OF_HOSTS, *OF_JUDGES),
)
def test_a_mistake_is_explained(mistake: Any) -> None:
    mistake()
