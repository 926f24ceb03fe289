"""Test reading and hooking models in threads and copies, and fingerprints under changes."""

import copy
import multiprocessing
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import diffusers_tiny
import models_tiny
import pytest
import torch
from models_tiny import SUBJECTS
from peft import LoraConfig, get_peft_model
from torch import nn

import vldebias
from vldebias import CalibratedProjection, miniature
from vldebias.errors import ProjectionMismatchError, VldebiasError
from vldebias.hosts import resolve
from vldebias.hosts.hooks import hook_methods
from vldebias.hosts.host import weights_fingerprint
from vldebias.hosts.reading import BARE, TOKENIZING, during, reading


def test_modes_are_restored_after_reading_in_several_threads() -> None:
    """The second reader finds eval mode, and this must not be the mode restored at the end."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout()).train()
    first_in = threading.Event()
    second_in = threading.Event()
    first_out = threading.Event()

    def first() -> None:
        with reading(model):
            first_in.set()
            assert second_in.wait(10)
        first_out.set()

    def second() -> None:
        assert first_in.wait(10)
        with reading(model):
            second_in.set()
            assert first_out.wait(10)
            assert not model.training

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(first), pool.submit(second)]:
            done.result()
    assert all(module.training for module in model.modules())


class Host:
    def encode(self, x: int, scale: int = 1) -> int:
        """Docs."""
        return x * scale


def test_a_hook_replaces_a_method_and_is_fully_removed() -> None:
    host = Host()
    attachment = SimpleNamespace(state="attached")
    change = lambda original, call: -original(*call.args, **call.kwargs)  # noqa: E731
    take_off = hook_methods(attachment, host, {"encode": change})
    assert host.encode(2, scale=3) == -6
    assert (host.encode.__name__, host.encode.__doc__) == ("encode", "Docs.")
    with during(BARE, True):
        assert host.encode(2) == 2
    take_off()
    assert host.encode(2) == 2
    assert vars(host) == {}
    host.encode = replacement = lambda x: 10 * x
    attachment.host = SimpleNamespace(name="Host")
    take_off = hook_methods(attachment, host, {"encode": change})
    assert host.encode(2) == -20
    ours = host.encode
    host.encode = None
    with pytest.raises(VldebiasError, match="replaced"):
        take_off()
    host.encode = ours
    take_off()
    assert host.encode is replacement


@pytest.mark.parametrize("kind", ["transformers", "diffusers"])
def test_threads_never_use_a_tokenizer_at_the_same_time(kind: str) -> None:
    """Fast tokenizers set truncation and padding before they run, which fails or mixes up
    threads."""
    inside = threading.Lock()
    met = []

    def guarded(tokenizer: Any) -> Any:
        class Guarded(type(tokenizer)):
            def __call__(self, *args: Any, **kwargs: Any) -> Any:
                met.append(not inside.acquire(blocking=False))
                try:
                    time.sleep(0.002)
                    return super().__call__(*args, **kwargs)
                finally:
                    if not met[-1]:
                        inside.release()

        twin = copy.copy(tokenizer)
        twin.__class__ = Guarded
        return twin

    if kind == "diffusers":
        pipe = diffusers_tiny.sd()
        pipe.tokenizer = guarded(pipe.tokenizer)
        hosts = [resolve(pipe), resolve(pipe)]
    else:
        case = models_tiny.Transformers("CLIPModel")
        tokenizer = guarded(case.tokenizer)
        hosts = [resolve(case.host, tokenizer=tokenizer) for _ in range(2)]
    expected = hosts[0].embed(["a photo of a doctor"], hosts[0].roles[0])
    for host in hosts:
        host.forget()
    met.clear()
    with ThreadPoolExecutor(4) as pool:
        rows = [
            pool.submit(hosts[i % 2].read, ["a photo of a doctor"], hosts[0].roles[0])
            for i in range(8)
        ]
        results = [next(iter(future.result().values())) for future in rows]
    assert met, "nothing was tokenised, so this test checks nothing"
    assert not any(met)
    for row in results:
        torch.testing.assert_close(row, expected[0])


def test_a_worker_forked_during_tokenisation_can_tokenise() -> None:
    held = threading.Event()
    done = threading.Event()

    def hold() -> None:
        with TOKENIZING:
            held.set()
            done.wait(20)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(hold)
        assert held.wait(10)
        fork = multiprocessing.get_context("fork")
        worker = fork.Process(target=lambda: sys.exit(not TOKENIZING.acquire(timeout=5)))
        worker.start()
        worker.join(15)
        done.set()
    assert worker.exitcode == 0


def test_fingerprint_values_never_change() -> None:
    model, _, tokenizer = miniature.load_clip()
    fingerprint = resolve(model, tokenizer=tokenizer).fingerprint("text")
    # Computed from the packaged weights. If these numbers change, all saved edits become invalid.
    assert fingerprint.tensors[:2] == (
        pytest.approx((0.346213, -0.215774), abs=1e-4),
        pytest.approx((19.794238, 9.866271)),
    )
    assert fingerprint.texts[0][:3] == pytest.approx((0.10143, -0.10004, 0.16513), abs=1e-4)


def tower(seed: int = 0, layers: int = 12, width: int = 48) -> nn.Module:
    """Return tensors with weights, biases and norms at their usual initial values."""
    torch.manual_seed(seed)
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


@torch.no_grad()
def perturbed(module: nn.Module, size: float) -> nn.Module:
    """Rotate every tensor by the fraction `size` of its norm in a random direction, as training
    does."""
    copied = copy.deepcopy(module)
    for p in copied.parameters():
        step = torch.randn_like(p)
        p += size * p.norm() * step / step.norm()
    return copied


@pytest.mark.parametrize("seed", range(2))
def test_different_weights_change_the_fingerprint_and_a_cast_does_not(seed: int) -> None:
    module = tower(seed)
    for dtype in (torch.float64, torch.float16, torch.bfloat16):
        cast = copy.deepcopy(module).to(dtype)
        assert weights_fingerprint(module).matches(weights_fingerprint(cast))
        assert weights_fingerprint(cast).matches(weights_fingerprint(module))
    assert not weights_fingerprint(module).matches(weights_fingerprint(tower(seed + 1)))
    assert not weights_fingerprint(module).matches(weights_fingerprint(perturbed(module, 0.02)))
    # bfloat16 rounds by up to 0.4%, and the change is 2%.
    half = copy.deepcopy(module).to(torch.bfloat16)
    assert not weights_fingerprint(half).matches(weights_fingerprint(perturbed(module, 0.02)))


def test_different_shapes_and_names_change_the_fingerprint() -> None:
    assert not weights_fingerprint(tower(layers=2)).matches(weights_fingerprint(tower(layers=3)))
    assert not weights_fingerprint(tower(width=48)).matches(weights_fingerprint(tower(width=44)))
    linear = nn.Linear(3, 3)
    nested = nn.ModuleDict({"a": nn.Linear(3, 3)})
    nested["a"].load_state_dict(linear.state_dict())
    assert not weights_fingerprint(linear).matches(weights_fingerprint(nested))


def test_an_adapter_does_not_change_the_fingerprint() -> None:
    module = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    before = weights_fingerprint(module)
    model = get_peft_model(copy.deepcopy(module), LoraConfig(target_modules=["0", "2"], r=2))
    inside = model.base_model.model
    assert any("lora_" in name for name, _ in inside.named_parameters()), (
        "there is no adapter, so this test checks nothing"
    )
    assert before.matches(weights_fingerprint(inside))
    with torch.no_grad():
        for name, parameter in inside.named_parameters():
            if "lora_" in name:
                parameter.fill_(0.3)
    count = sum(p.numel() for name, p in inside.named_parameters() if "lora_" in name)
    scale = inside[0].scaling["default"]
    assert weights_fingerprint(inside).adapters == round(scale * 0.3 * count**0.5, 6), (
        "the combined norm of all weights times their scale"
    )


def test_missing_weights_have_no_fingerprint_and_match_everything() -> None:
    with torch.device("meta"):
        meta = nn.Linear(4, 4)
    assert weights_fingerprint(meta) is None
    assert weights_fingerprint(nn.ReLU()) is None
    assert weights_fingerprint() is None
    fingerprint = weights_fingerprint(nn.Linear(4, 4))
    assert fingerprint.matches(None)


# ---- on every host


@pytest.mark.parametrize("name", SUBJECTS)
def test_every_tensor_that_affects_the_text_features_is_included(name: str) -> None:
    """Exactly the tensors that receive a gradient from text are included, and each of them
    matters."""
    subject = SUBJECTS[name]()
    read = set()
    for module in subject.resolve().text_modules:
        read |= {id(parameter) for parameter in module.parameters()}
    named = {}
    for module in subject.modules():
        trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        named |= {id(parameter): name for name, parameter in trained}
    parameters = [p for p in subject.parameters() if p.requires_grad]
    moved = torch.autograd.grad(
        sum(
            (rows * torch.linspace(-1, 1, rows.numel()).view_as(rows)).sum()
            for rows in subject.rows().values()
        ),
        parameters,
        allow_unused=True,
    )
    reached = {id(p) for p, gradient in zip(parameters, moved, strict=True) if gradient is not None}
    assert len(reached) > 3
    assert not {named[p] for p in reached - read}


@torch.no_grad()
def test_every_tensor_affects_the_fingerprint() -> None:
    module = tower(layers=3)
    before = weights_fingerprint(module)
    for label, parameter in module.named_parameters():
        kept = parameter.clone()
        parameter += (float(kept.square().mean().sqrt()) or 1.0) * torch.randn(kept.shape)
        assert not before.matches(weights_fingerprint(module)), label
        parameter.copy_(kept)
    assert before.matches(weights_fingerprint(module))


# ---- differences outside the weights: constants of the layers, and the tokenizer


@pytest.fixture(scope="module")
def trained() -> tuple[nn.Module, Any, CalibratedProjection]:
    """Return the miniature CLIP, its tokenizer, and an edit fitted on it."""
    model, _, tokenizer = miniature.load_clip()
    return (
        model,
        tokenizer,
        vldebias.fit_projections(
            model, "gender", method="cali", lam=10.0, tokenizer=tokenizer
        ).only,
    )


@pytest.mark.parametrize("eps", [0.1, 0.01, 0.001])
def test_a_copy_with_a_different_eps_is_rejected(trained, eps: float) -> None:
    model, tokenizer, edit = trained
    copied = copy.deepcopy(model)
    for norm in (module for module in copied.modules() if isinstance(module, nn.LayerNorm)):
        norm.eps = eps
    with pytest.raises(ProjectionMismatchError):
        vldebias.debias(copied, edit, tokenizer=tokenizer)


class Shifted:
    """Lower the ids of words by five, but not those of special tokens."""

    def __init__(self, tokenizer: Any) -> None:
        self.of = tokenizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.of, name)

    def __call__(self, texts: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        ids = self.of(texts, *args, **kwargs).clone()
        ids[(ids > 10) & (ids < ids.max() - 3)] -= 5
        return ids


def test_a_tokenizer_with_different_ids_is_rejected(trained) -> None:
    model, tokenizer, edit = trained
    with pytest.raises(ProjectionMismatchError):
        vldebias.debias(copy.deepcopy(model), edit, tokenizer=Shifted(tokenizer))
