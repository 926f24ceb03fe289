"""The state of a run: going on is as never having stopped, nothing half is read, another model's is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from vldebias.errors import InvalidInputError
from vldebias.losses import GlobalContrastiveLoss
from vldebias.training.optim import Average, Sharpness
from vldebias.training.state import load_state, read_metadata, save_state

ITEMS = 12


class Trainee(nn.Module):
    """Two towers, one partly frozen, with running statistics and a loss that keeps a state."""

    def __init__(self, dim: int = 4) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.image = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.Linear(6, dim))
        self.text = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, dim))
        self.text[0].requires_grad_(False)
        self.unused = nn.Parameter(torch.ones(2))
        self.log_temperature = nn.Parameter(torch.tensor(0.3))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)
        self.loss = GlobalContrastiveLoss(ITEMS, temperature=0.2, popularity_lr=0.3)

    def forward(self, x: Tensor, y: Tensor, index: Tensor) -> Tensor:
        unit = nn.functional.normalize
        value: Tensor = self.loss(unit(self.image(x)), unit(self.text(y)), index) * self.log_temperature.exp()
        return value


class Run:
    """Everything that a run is made of, fresh."""

    def __init__(self, dim: int = 4, ema: bool = True) -> None:
        self.module = Trainee(dim)
        trainable = [p for p in self.module.parameters() if p.requires_grad]
        decayed = [p for p in trainable if p.ndim >= 2]
        groups = [{"params": decayed, "weight_decay": 0.3}, {"params": [p for p in trainable if p.ndim < 2]}]
        self.optimizer = torch.optim.AdamW(groups, lr=0.05)
        self.average = Average(self.module, decay=0.9) if ema else None
        self.sharpness = Sharpness("asam", rho=0.5)

    def steps(self, first: int, last: int) -> Run:
        for step in range(first, last):
            generator = torch.Generator().manual_seed(step)
            x, y = torch.randn(2, 5, 3, generator=generator)
            index = torch.randperm(ITEMS, generator=generator)[:5]

            def passes(x: Tensor = x, y: Tensor = y, index: Tensor = index) -> Tensor:
                loss = self.module(x, y, index)
                loss.backward()
                return loss.detach()

            parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
            self.sharpness.gradients(self.module, parameters, passes)
            self.optimizer.step()
            if self.average is not None:
                self.average.update(step)
        return self

    def save(self, path: Path, **metadata: Any) -> None:
        save_state(path, self.module, self.optimizer, metadata=metadata, averages=self.averages)

    def load(self, path: Path) -> dict[str, Any]:
        return load_state(path, self.module, self.optimizer, averages=self.averages)

    @property
    def averages(self) -> dict[str, Average]:
        return {} if self.average is None else {"average": self.average}

    def everything(self) -> dict[str, Tensor]:
        tensors = dict(self.module.state_dict())
        if self.average is not None:
            tensors |= {f"average {name}": mean for name, mean in self.average.means.items()}
        for name, parameter in self.module.named_parameters():
            moments = self.optimizer.state.get(parameter, {})
            tensors |= {f"{name} {key}": value for key, value in moments.items() if isinstance(value, Tensor)}
        return tensors


def assert_same(one: Run, other: Run) -> None:
    a, b = one.everything(), other.everything()
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


@pytest.mark.parametrize("ema", [True, False])
def test_going_on_is_as_never_having_stopped(ema: bool, tmp_path: Path) -> None:
    whole, first, resumed = Run(ema=ema).steps(0, 7), Run(ema=ema).steps(0, 4), Run(ema=ema)
    first.save(tmp_path / "state.safetensors", step=4)
    assert read_metadata(tmp_path / "state.safetensors") == {"step": 4}
    assert resumed.load(tmp_path / "state.safetensors") == {"step": 4}
    assert_same(resumed.steps(4, 7), whole)


@pytest.mark.parametrize("folder", ["state", "state.before"])  # moved aside by a kill in the midst of a write
def test_a_state_in_parts_says_what_to_do(folder: str, tmp_path: Path) -> None:
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "about.json").write_text("{}")
    with pytest.raises(InvalidInputError, match=r"a state in parts .*; end the run with the version that began it, or"):
        read_metadata(tmp_path / "state.safetensors")


def test_tensors_that_share_memory_are_saved_and_come_back(tmp_path: Path) -> None:
    """A running mean of which a part is a buffer too; safetensors alone refuses to write such tensors."""
    module = nn.Linear(2, 2)
    module.register_buffer("whole", torch.arange(4.0))
    module.register_buffer("part", module.get_buffer("whole")[:2])
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    save_state(tmp_path / "state.safetensors", module, optimizer, metadata={})
    module.get_buffer("whole").zero_()
    load_state(tmp_path / "state.safetensors", module, optimizer)
    assert module.get_buffer("whole").tolist() == [0, 1, 2, 3]
    assert module.get_buffer("part").tolist() == [0, 1]


def test_a_state_from_before_the_first_step(tmp_path: Path) -> None:
    Run().save(tmp_path / "state")
    late = Run().steps(0, 3)
    late.load(tmp_path / "state")
    assert_same(late.steps(0, 2), Run().steps(0, 2))


def test_accelerates_optimizer_is_seen_through(tmp_path: Path) -> None:
    class Accelerated:
        """What accelerate's wrapper shows of the optimizer inside."""

        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.optimizer, self.state, self.param_groups = optimizer, optimizer.state, optimizer.param_groups

    run, plain = Run().steps(0, 3), Run()
    wrapped: Any = Accelerated(run.optimizer)
    save_state(tmp_path / "state", run.module, wrapped, metadata={}, averages=run.averages)
    plain.load(tmp_path / "state")
    assert_same(plain, run)


def test_what_is_in_the_file(tmp_path: Path) -> None:
    """Trainable parameters and persistent buffers; names that a reader can guess."""
    Run().steps(0, 2).save(tmp_path / "state")
    names = set(load_file(tmp_path / "state"))
    assert {"parameters/image.0.weight", "buffers/loss.log_u", "buffers/loss.zeta", "average/image.0.weight"} <= names
    assert {"buffers/image.1.running_mean", "optimizer/image.0.weight/exp_avg", "optimizer/image.0.bias/step"} <= names
    assert not {name for name in names if "text.0" in name or "scratch" in name or "optimizer/unused" in name}


def test_metadata_comes_back_as_json_has_it(tmp_path: Path) -> None:
    metadata = {"step": 3, "settings": {"lr": 0.1, "scope": None, "lams": [1, 2.5]}, "name": "π"}
    path = tmp_path / "new" / "folder" / "state"
    assert read_metadata(path) is None
    Run().save(path, **metadata)
    assert read_metadata(path) == metadata
    assert Run().load(path) == metadata
    with pytest.raises(InvalidInputError, match=r"expected what json takes; Object of type .*Path is not JSON"):
        Run().save(path, folder=tmp_path)
    assert read_metadata(path) == metadata


class _KilledError(BaseException):
    pass


def test_an_interrupted_write_leaves_the_old_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run().steps(0, 2)
    run.save(tmp_path / "state", step=2)

    def killed(*_: Any, **__: Any) -> None:
        (tmp_path / ".state.0123.partial").write_bytes(b"half, as kill -9 leaves it")
        raise _KilledError

    run.steps(2, 4)
    with monkeypatch.context() as patch:
        patch.setattr("safetensors.torch.save_file", killed)
        with pytest.raises(_KilledError):
            run.save(tmp_path / "state", step=4)
    old = Run()
    assert old.load(tmp_path / "state") == {"step": 2}
    assert_same(old, Run().steps(0, 2))
    run.save(tmp_path / "state", step=4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["state"]  # what the kill left is gone as well
    assert read_metadata(tmp_path / "state") == {"step": 4}


def test_no_flipped_bit_goes_unnoticed(tmp_path: Path) -> None:
    path, run = tmp_path / "state", Run()
    Run().steps(0, 2).save(path, step=2)
    before = {name: tensor.clone() for name, tensor in run.everything().items()}
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    places = np.random.default_rng(0)
    for place in [*places.integers(8, header, 60), *places.integers(header, len(whole), 60)]:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(places.integers(8))
        path.write_bytes(damaged)
        with pytest.raises(InvalidInputError, match=r"damaged, its checksum|no readable state|not the state of a run"):
            run.load(path)
    assert all(torch.equal(tensor, before[name]) for name, tensor in run.everything().items())
    path.write_bytes(whole)
    assert run.load(path) == {"step": 2}


def _refused(path: Path, run: Run, match: str) -> None:
    before = {name: tensor.clone() for name, tensor in run.everything().items()}
    with pytest.raises(InvalidInputError, match=match):
        run.load(path)
    assert all(torch.equal(tensor, before[name]) for name, tensor in run.everything().items())


def test_the_state_of_another_model_is_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    path = tmp_path / "state"
    Run().steps(0, 2).save(path)
    wider = r"8 of another shape: parameters/image.2.weight \(4, 6\) instead of \(9, 6\), .*, \.\.\."
    _refused(path, Run(dim=9).steps(0, 1), wider)
    more = Run()
    more.module.text[0].requires_grad_(True)
    _refused(path, more, "2 missing: parameters/text.0.weight, parameters/text.0.bias")
    less = Run()
    less.module.image[0].requires_grad_(False)
    _refused(path, less, "2 unexpected: parameters/image.0.bias, parameters/image.0.weight")
    _refused(path, Run(ema=False), r"10 unexpected: average/image.0.bias, .*, \.\.\.")


def test_parameters_of_another_module_are_refused(tmp_path: Path) -> None:
    run = Run()
    with pytest.raises(InvalidInputError, match="optimizer: 10 of its 10 parameters are none of the module's"):
        save_state(tmp_path / "state", Run().module, run.optimizer, metadata={})
    assert not (tmp_path / "state").exists()


def test_files_that_are_no_states(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"no state at .*missing"):
        Run().load(tmp_path / "missing")
    (tmp_path / "half").write_bytes(b"half")
    for read in (read_metadata, Run().load):
        with pytest.raises(InvalidInputError, match=r"half: no readable state .*; delete it to begin anew"):
            read(tmp_path / "half")
    save_file({"weight": torch.ones(2)}, tmp_path / "weights")
    with pytest.raises(InvalidInputError, match="weights: tensors, but not the state of a run"):
        Run().load(tmp_path / "weights")
