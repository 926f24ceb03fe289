"""Test attachments on a fake host: three states, invalid inputs, threads, and complete removal."""

import gc
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vldebias
from vldebias.errors import (
    AlreadyAttachedError,
    InvalidInputError,
    UnsupportedHostError,
    VldebiasError,
)
from vldebias.hosts import Host, register_host
from vldebias.hosts.attachment import attachment_of
from vldebias.hosts.edits import DeclinedAttachment, EditAttachment
from vldebias.hosts.hooks import hook_methods
from vldebias.methods.baselines.wording import FixedRewrite
from vldebias.projection.fingerprint import Fingerprint
from vldebias.projection.projection import CalibratedProjection
from vldebias.projection.provenance import Choice, Provenance
from vldebias.prompts import PromptSet


class Tower:
    """Embed a prompt as letter counts; the hook is an attribute of the instance, as in real
    hosts."""

    def encode(self, prompts: Sequence[str], images_per_prompt: int = 1) -> Tensor:
        rows = torch.tensor([[p.count(c) for c in "abcdef"] for p in prompts], dtype=torch.float32)
        return rows.repeat_interleave(images_per_prompt, 0)


class TowerHost(Host):
    library = "test_attachment"
    roles = ("text",)

    def __init__(
        self, tower: Tower, *_: object, shared: Sequence[object] = (), name: str = "Tower"
    ) -> None:
        self.tower = tower
        self.exclusive_modules = [tower]
        self.shared_modules = shared
        self.name = name
        self.merged: list[tuple[dict[str, CalibratedProjection], float]] = []

    def read(self, prompts: Sequence[str], role: str) -> dict[tuple[str, str], Tensor]:
        rows = torch.nn.functional.normalize(Tower.encode(self.tower, prompts).double(), dim=-1)
        return {(role, prompt): row for prompt, row in zip(prompts, rows, strict=True)}

    def space(self, role: str) -> str:
        return f"tower.{role}"

    def fingerprint(self, role: str | None = None) -> Fingerprint:
        return Fingerprint(structure="letters", tensors=((1.0, 0.5),))

    def install(self, attachment: EditAttachment) -> Callable[[], None]:
        def change(original: Any, call: Any) -> Tensor:
            return attachment.apply("text", original(*call.args), lambda: call.arguments["prompts"])

        return hook_methods(attachment, self.tower, {"encode": change})

    def merge(
        self, projections: Mapping[str, CalibratedProjection], strength: float
    ) -> Sequence[object]:
        self.merged.append((dict(projections), strength))
        return ()


PROMPTS = ["a bad face", "a dead woman", "cafe"]
PROJECTION = CalibratedProjection().fit(torch.eye(6)[None, :2], torch.eye(6)[4:5])


def attach(tower: Tower, **options: Any) -> EditAttachment:
    return EditAttachment(TowerHost(tower), {"text": PROJECTION}, **options)


@pytest.fixture
def tower() -> Tower:
    return Tower()


def test_an_attachment_can_be_active_disabled_and_removed(tower: Tower) -> None:
    plain = tower.encode(PROMPTS)
    attachment = attach(tower)
    attached = tower.encode(PROMPTS)
    assert torch.equal(attached, PROJECTION(plain))
    assert not torch.allclose(attached, plain)
    with attachment.disabled() as entered:
        assert entered is attachment
        assert attachment.state == "disabled"
        with attachment.disabled():
            assert torch.equal(tower.encode(PROMPTS), plain)
        assert torch.equal(tower.encode(PROMPTS), plain), (
            "leaving the inner block must not re-enable the edit"
        )
        with pytest.raises(AlreadyAttachedError):
            attach(tower)
    with pytest.raises(ZeroDivisionError), attachment.disabled():
        _ = 1 / 0
    assert attachment.state == "attached"
    assert torch.equal(tower.encode(PROMPTS), attached)
    attachment.remove()
    assert attachment.state == "removed"
    assert attachment.apply("text", plain) is plain
    assert torch.equal(tower.encode(PROMPTS), plain)
    assert vars(tower) == {}
    with attach(tower) as attachment:
        attachment.remove()


def test_disabled_applies_to_this_thread_only(tower: Tower) -> None:
    """If the state were a counter on the object, calls in all other threads would be unedited."""
    plain = tower.encode(PROMPTS)
    attachment = attach(tower)
    attached = tower.encode(PROMPTS)
    inside = threading.Event()
    read = threading.Event()

    def pause() -> None:
        with attachment.disabled():
            inside.set()
            assert torch.equal(tower.encode(PROMPTS), plain)
            read.wait(10)

    thread = threading.Thread(target=pause)
    thread.start()
    assert inside.wait(10)
    assert attachment.state == "attached"
    assert torch.equal(tower.encode(PROMPTS), attached)
    with attachment.disabled(), ThreadPoolExecutor(1) as pool:
        assert torch.equal(pool.submit(tower.encode, PROMPTS).result(), attached)
    read.set()
    thread.join()


@pytest.mark.parametrize("strength", [1.5, float("nan"), True, "1"])
def test_invalid_strengths_are_rejected(tower: Tower, strength: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"strength: expected a number in \[0, 1\], got"):
        attach(tower, strength=strength)
    assert vars(tower) == {}


def test_mismatched_texts_and_roles_are_rejected(tower: Tower) -> None:
    def never() -> Sequence[str]:
        raise AssertionError("read, though there is no gate")

    with attach(tower) as attachment:
        attachment.apply("text", torch.randn(2, 6), never)
        with pytest.raises(InvalidInputError, match="pooled"):
            attachment.apply("pooled", torch.randn(2, 6))
    attachment = attach(tower, stated_words=["woman"])
    for texts in (["a", "b", "c"], []):
        with pytest.raises(InvalidInputError, match=rf"got 4 embeddings for {len(texts)} prompts"):
            attachment.apply("text", torch.randn(4, 6), lambda texts=texts: texts)
    attachment.remove()


@pytest.mark.parametrize("as_function", [False, True])
def test_texts_may_be_a_list_a_function_or_a_single_string_for_all_rows(
    tower: Tower, as_function: bool
) -> None:
    rows = torch.randn(4, 6)
    with attach(tower, stated_words=["woman"]) as attachment:
        for texts, stated in (
            (["a man", "a woman"], [False, False, True, True]),
            ("a woman", [True] * 4),
            ("a man", [False] * 4),
        ):
            given: Any = (lambda texts=texts: texts) if as_function else texts
            changed = attachment.apply("text", rows, given)
            expected = torch.where(torch.tensor(stated)[:, None], rows, PROJECTION(rows))
            assert torch.equal(changed, expected)
        with pytest.raises(InvalidInputError, match="prompts: got 3; expected a string or a list"):
            attachment.apply("text", rows, 3)  # type: ignore[arg-type]


def test_an_edit_that_depends_on_prompts_requires_them(tower: Tower) -> None:
    reads = FixedRewrite(("male", "female"), 6, Provenance("reads"))
    with EditAttachment(TowerHost(tower), {"text": reads}) as attachment:
        assert repr(attachment).startswith(
            "EditAttachment(Tower, projection, text: reads lam=0.0, strength=1.0, "
        )
        with pytest.raises(InvalidInputError, match="pass one prompt per row"):
            attachment.apply("text", torch.randn(4, 6))
        with pytest.raises(VldebiasError, match=r"FixedRewrite \(reads\) is not a single"):
            attachment.merge()


@pytest.mark.parametrize(
    ("choice", "prefix"),
    [
        (None, ""),
        (Choice(attribute="of mine", method="cali", lam=2.0, reason="it helps"), "default: "),
    ],
)
def test_the_repr_describes_the_edits_and_the_choice(
    tower: Tower, choice: Choice | None, prefix: str
) -> None:
    edit = PROJECTION.with_provenance(method="cali", lam=2.0, choice=choice)
    expected = f"{prefix}cali lam=2.0 rank {edit.rank}/6"
    with EditAttachment(
        TowerHost(tower), {"text": edit}, strength=0.5, stated_words=["man"], label="of mine"
    ) as attachment:
        assert repr(attachment) == (
            f"EditAttachment(Tower, of mine, text: {expected}, strength=0.5, stated kept, attached)"
        )


def test_a_declined_attachment_is_harmless_and_leaves_the_host_free(tower: Tower) -> None:
    host = TowerHost(tower)
    before = host.embed(["a nurse"], "text")
    choice = Choice(attribute="gender", method="default: none", lam=0.0, reason="Add images.")
    with DeclinedAttachment(host, choice) as declined:
        assert (declined.state, declined.projections, declined.acts) == ("declined", {}, False)
        assert repr(declined) == "DeclinedAttachment(Tower, gender: default: none. Add images.)"
        assert "Add images." in declined._repr_html_()
        assert attachment_of(tower) is None
        with EditAttachment(host, {"text": PROJECTION}), declined.disabled():
            declined.remove()
            declined.strength = 0.5
            assert attachment_of(tower) is not None
    declined.remove()
    assert declined.state == "declined"
    with pytest.raises(VldebiasError, match="cannot merge an attachment that is declined"):
        declined.merge()
    assert torch.equal(TowerHost(tower).embed(["a nurse"], "text"), before)


def owner_of(encoder: Tower, name: str = "owner") -> TowerHost:
    host = TowerHost(Tower(), name=name)
    host.exclusive_modules = [encoder]
    return host


def test_shared_objects_may_be_shared_but_not_owned() -> None:
    encoder = Tower()
    first = Tower()
    second = Tower()
    first_attachment = EditAttachment(
        TowerHost(first, shared=[encoder], name="one"), {"text": PROJECTION}
    )
    two = EditAttachment(TowerHost(second, shared=[encoder], name="two"), {"text": PROJECTION})
    for attachment in (first_attachment, two):
        with pytest.raises(AlreadyAttachedError, match="owner already has"):
            EditAttachment(owner_of(encoder), {"text": PROJECTION})
        attachment.remove()
    owning = EditAttachment(owner_of(encoder), {"text": PROJECTION})
    with pytest.raises(AlreadyAttachedError, match="three already has"):
        EditAttachment(TowerHost(Tower(), shared=[encoder], name="three"), {"text": PROJECTION})
    owning.remove()


def test_a_host_is_free_again_after_a_failed_installation(tower: Tower) -> None:
    class Broken(TowerHost):
        def install(self, attachment: EditAttachment) -> Callable[[], None]:
            raise RuntimeError("no place")

    with pytest.raises(RuntimeError, match="no place"):
        EditAttachment(Broken(tower), {"text": PROJECTION})
    assert attachment_of(tower) is None
    attach(tower)


def test_a_removed_attachment_frees_the_host(request: pytest.FixtureRequest) -> None:
    gc.disable()  # Python may collect cycles at any time; disable this here.
    request.addfinalizer(gc.enable)
    encoder = Tower()
    tower = Tower()
    kept = EditAttachment(TowerHost(tower, shared=[encoder]), {"text": PROJECTION})
    with pytest.raises(AlreadyAttachedError, match="owner already has"):
        EditAttachment(owner_of(encoder), {"text": PROJECTION})
    gone = weakref.ref(tower)
    del tower, kept
    assert gone() is not None, "already freed, so this test checks nothing"
    EditAttachment(owner_of(encoder), {"text": PROJECTION})
    assert gone() is None


def test_rows_evicted_by_another_thread_are_still_returned(tower: Tower) -> None:
    """The other thread clears the cache while new rows are read."""

    class Shared(TowerHost):
        def read(self, prompts: Sequence[str], role: str) -> dict[tuple[str, str], Tensor]:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(self.forget).result()
            return super().read(prompts, role)

    host = Shared(tower)
    host.embed(PROMPTS[:2], "text")
    assert torch.equal(host.embed(PROMPTS, "text"), TowerHost(tower).embed(PROMPTS, "text"))


def test_merge_passes_the_projections_and_removes_all_hooks(tower: Tower) -> None:
    host = TowerHost(tower)
    with EditAttachment(host, {"text": PROJECTION}, strength=0.5) as attachment:
        attachment.merge()
    assert host.merged == [({"text": PROJECTION}, 0.5)]
    assert attachment.state == "merged"
    assert vars(tower) == {}
    assert attachment_of(tower) is None
    with pytest.raises(VldebiasError, match=r"merge\(\) made the projection .*; reload"):
        attachment.remove()
    with pytest.raises(VldebiasError, match="cannot merge an attachment that is merged"):
        attachment.merge()
    with pytest.raises(AlreadyAttachedError, match="already contain a merged projection"):
        attach(tower)
    foreign_host = TowerHost(Tower())
    foreign_host.merge = lambda edits, strength: Host.merge(foreign_host, edits, strength)
    with pytest.raises(UnsupportedHostError, match="cannot merge, because the layer that produces"):
        EditAttachment(foreign_host, {"text": PROJECTION}).merge()


TEXTS = ["a photo of a doctor", "a photo of a male nurse", "a photo of a chef"]


def test_a_host_is_found_through_the_library_of_a_base_class(gender: PromptSet) -> None:
    register_host(TowerHost)
    model = type("Finer", (Tower,), {})()
    bare = model.encode(TEXTS)
    with vldebias.debias(model, gender) as attachment:
        expected = attachment.projections["text"](bare)
        expected[1] = bare[1]  # states the attribute
        torch.testing.assert_close(model.encode(TEXTS), expected)
    assert vars(model) == {}


@pytest.mark.parametrize(
    "candidate", [nn.Linear, Host, "acme", type("Mine", (Host,), {"library": "open_clip"})]
)
def test_anything_but_a_host_is_rejected(candidate: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"expected a subclass|open_clip"):
        register_host(candidate)
