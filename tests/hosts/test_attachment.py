"""Attachments on a made-up host: three states, refusals, and no trace in the end."""

import gc
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from tower_parts import PROJECTION, PROMPTS, Bag, Tower, TowerHost, Words, attach

from vldebias.edit import Fingerprint
from vldebias.errors import AlreadyAttachedError, InvalidInputError, ProjectionMismatchError, VldebiasError
from vldebias.hosts import attachment as registry
from vldebias.hosts.attachment import Attachment, attachment_of
from vldebias.hosts.base import Apply
from vldebias.projection import CalibratedProjection


@pytest.fixture
def tower() -> Tower:
    return Tower()


# --- three states


def test_three_states(tower: Tower) -> None:
    plain = tower.encode(PROMPTS)
    attachment = attach(tower)
    attached = tower.encode(PROMPTS)
    assert torch.equal(attached, PROJECTION(plain))
    assert not torch.allclose(attached, plain)
    with attachment.disabled() as same:
        assert same is attachment
        assert attachment.state == "disabled"
        assert torch.equal(tower.encode(PROMPTS), plain)
        with attachment.disabled():
            assert torch.equal(tower.encode(PROMPTS), plain)
        assert torch.equal(tower.encode(PROMPTS), plain), "leaving the inner block must not switch it on"
    assert attachment.state == "attached"
    assert torch.equal(tower.encode(PROMPTS), attached)
    attachment.remove()
    assert attachment.state == "removed"
    assert torch.equal(tower.encode(PROMPTS), plain)
    assert vars(tower) == {}


def test_disabled_is_for_this_thread_alone(tower: Tower) -> None:
    """A counter on the object would let the calls of all other threads pass unprojected."""
    plain = tower.encode(PROMPTS)
    attachment = attach(tower)
    attached = tower.encode(PROMPTS)
    inside, read = threading.Event(), threading.Event()

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


def test_with_removes_in_the_end_whatever_happens(tower: Tower) -> None:
    with attach(tower) as attachment:
        assert attachment_of(tower) is attachment
    assert attachment.state == "removed"
    with pytest.raises(ZeroDivisionError), attach(tower):
        _ = 1 / 0
    assert vars(tower) == {}
    with attach(tower) as attachment:
        attachment.remove()


def test_disabled_ends_with_an_error_as_well(tower: Tower) -> None:
    attachment = attach(tower)
    with pytest.raises(ZeroDivisionError), attachment.disabled():
        _ = 1 / 0
    assert attachment.state == "attached"


def test_a_removed_attachment_applies_nothing(tower: Tower) -> None:
    attachment = attach(tower)
    attachment.remove()
    z = torch.randn(2, 6)
    assert attachment.apply("joint", z) is z


# --- strength


def test_strength_can_be_set_at_any_time(tower: Tower) -> None:
    plain = tower.encode(PROMPTS)
    attachment = attach(tower, strength=0.25)
    assert torch.equal(tower.encode(PROMPTS), PROJECTION(plain, 0.25))
    attachment.strength = 1
    assert torch.equal(tower.encode(PROMPTS), PROJECTION(plain))
    attachment.strength = 0
    assert torch.equal(tower.encode(PROMPTS), plain)
    z = torch.randn(2, 6)
    assert attachment.apply("joint", z) is z


@pytest.mark.parametrize("strength", [-0.1, 1.5, float("nan"), True, "1", None])
def test_other_strengths_are_refused(tower: Tower, strength: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"strength: expected a number in \[0, 1\], got"):
        attach(tower, strength=strength)
    assert vars(tower) == {}
    attachment = attach(tower)
    with pytest.raises(InvalidInputError, match=r"strength: expected a number in \[0, 1\], got"):
        attachment.strength = strength
    assert attachment.strength == 1


# --- stated prompts


def test_stated_prompts_are_left_alone(tower: Tower) -> None:
    plain = tower.encode(PROMPTS)
    attachment = attach(tower, gate=Words())
    assert attachment.stated(PROMPTS) == [False, True, False]
    got = tower.encode(PROMPTS)
    assert torch.equal(got[1], plain[1])
    assert torch.equal(got[[0, 2]], PROJECTION(plain)[[0, 2]])
    assert torch.equal(tower.encode(["a woman"]), Tower().encode(["a woman"]))
    assert torch.equal(tower.encode(["a cab"]), PROJECTION(Tower().encode(["a cab"])))


def test_several_images_per_prompt_share_its_gate(tower: Tower) -> None:
    plain = tower.encode(PROMPTS).repeat_interleave(3, 0)
    attach(tower, gate=Words())
    got = tower.encode(PROMPTS, images_per_prompt=3)
    assert torch.equal(got[3:6], plain[3:6])
    assert torch.equal(got[:3], PROJECTION(plain)[:3])


@pytest.mark.parametrize("shape", [(2, 6), (2, 5, 6), (2, 3, 5, 6)])
def test_the_gate_works_on_sequences(tower: Tower, shape: tuple[int, ...]) -> None:
    attachment = attach(tower, gate=Words())
    z = torch.randn(*shape)
    got = attachment.apply("joint", z, lambda: ["a woman", "a person"])
    assert torch.equal(got[0], z[0])
    assert torch.equal(got[1], PROJECTION(z)[1])


def test_without_texts_everything_is_projected(tower: Tower) -> None:
    attachment = attach(tower, gate=Words())
    z = torch.randn(2, 6)
    assert torch.equal(attachment.apply("joint", z), PROJECTION(z))


def test_texts_are_read_only_where_a_gate_needs_them(tower: Tower) -> None:
    def never() -> Sequence[str]:
        raise AssertionError("read")

    attach(tower).apply("joint", torch.randn(2, 6), never)


@pytest.mark.parametrize("texts", [["a", "b", "c"], []])
def test_a_batch_that_is_no_multiple_of_its_prompts(tower: Tower, texts: list[str]) -> None:
    attachment = attach(tower, gate=Words())
    with pytest.raises(InvalidInputError, match=rf"Tower: 4 embeddings for {len(texts)} prompts; expected a multiple"):
        attachment.apply("joint", torch.randn(4, 6), lambda: texts)


# --- roles


def test_a_missing_role_is_fitted_when_it_is_called_for(tower: Tower) -> None:
    fitted = []

    def fit_role(role: str) -> CalibratedProjection:
        fitted.append(role)
        return PROJECTION

    attachment = attach(tower, fit_role=fit_role)
    z = torch.randn(2, 6)
    for _ in range(2):
        assert torch.equal(attachment.apply("pooled", z), PROJECTION(z))
    assert fitted == ["pooled"]
    assert list(attachment.projections) == ["joint", "pooled"]


def test_a_missing_role_that_cannot_be_fitted(tower: Tower) -> None:
    with pytest.raises(InvalidInputError, match=r"Tower: no projection for 'pooled', only for \['joint'\]; refit with"):
        attach(tower).apply("pooled", torch.randn(2, 6))


# --- one attachment per seam


def test_a_second_attachment_is_refused_and_the_remedy_named(tower: Tower) -> None:
    first = attach(tower)
    expected = tower.encode(PROMPTS)
    with pytest.raises(AlreadyAttachedError, match=r"Tower already carries Attachment\(Tower.*\.remove\(\).*jointly"):
        attach(tower)
    assert attachment_of(tower) is first
    assert torch.equal(tower.encode(PROMPTS), expected)
    first.remove()
    attach(tower)


def test_a_paused_attachment_still_holds_its_seam(tower: Tower) -> None:
    attachment = attach(tower)
    with attachment.disabled(), pytest.raises(AlreadyAttachedError):
        attach(tower)


def test_shared_objects_may_be_shared_but_not_owned() -> None:
    encoder = Bag()
    first, second = Tower(), Tower()
    one = Attachment(TowerHost(first, [encoder], "one"), {"joint": PROJECTION})
    two = Attachment(TowerHost(second, [encoder], "two"), {"joint": PROJECTION})
    owner = TowerHost(Tower(), name="owner")
    owner.exclusive_modules = [encoder]
    with pytest.raises(AlreadyAttachedError, match="owner already carries"):
        Attachment(owner, {"joint": PROJECTION})
    one.remove()
    with pytest.raises(AlreadyAttachedError):
        Attachment(owner, {"joint": PROJECTION})
    two.remove()
    owning = Attachment(owner, {"joint": PROJECTION})
    with pytest.raises(AlreadyAttachedError, match="three already carries"):
        Attachment(TowerHost(Tower(), [encoder], "three"), {"joint": PROJECTION})
    owning.remove()


def test_a_host_that_fails_to_install_is_not_claimed(tower: Tower) -> None:
    class Broken(TowerHost):
        def install(self, apply: Apply) -> Callable[[], None]:
            raise RuntimeError("no seam")

    with pytest.raises(RuntimeError, match="no seam"):
        Attachment(Broken(tower), {"joint": PROJECTION})
    assert attachment_of(tower) is None
    attach(tower)


# --- memory


def test_an_attachment_lives_as_long_as_its_host_and_no_longer(tower: Tower) -> None:
    plain = tower.encode(PROMPTS)
    attach(tower)  # nobody keeps it
    gc.collect()
    assert torch.equal(tower.encode(PROMPTS), PROJECTION(plain))
    assert attachment_of(tower).state == "attached"
    with pytest.raises(AlreadyAttachedError):
        attach(tower)


def test_a_dropped_host_frees_what_it_shared() -> None:
    encoder = Bag()
    for _ in range(3):
        tower = Tower()
        Attachment(TowerHost(tower, [encoder]), {"joint": PROJECTION})
        del tower
        gc.collect()
    assert len(registry._SHARED[encoder]) == 0
    owner = TowerHost(Tower())
    owner.exclusive_modules = [encoder]
    Attachment(owner, {"joint": PROJECTION})


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Python frees what is held in a circle whenever it likes: here never."""
    on = gc.isenabled()
    gc.disable()
    yield
    if on:
        gc.enable()


@pytest.mark.usefixtures("no_collector")
def test_an_attachment_that_nobody_can_reach_excludes_nobody() -> None:
    encoder = Bag()
    tower = Tower()
    kept = Attachment(TowerHost(tower, [encoder]), {"joint": PROJECTION})
    owner = TowerHost(Tower(), name="owner")
    owner.exclusive_modules = [encoder]
    with pytest.raises(AlreadyAttachedError, match="owner already carries"):
        Attachment(owner, {"joint": PROJECTION})
    gone = weakref.ref(tower)
    del tower, kept
    assert gone() is not None, "freed at once, so that this tests nothing"
    Attachment(owner, {"joint": PROJECTION})
    assert gone() is None


# --- threads


def test_of_no_prompts_there_are_no_rows_as_wide_as_others(tower: Tower) -> None:
    host = TowerHost(tower)
    role = host.roles[0]
    assert host.embed([], role).shape == (0, host.embed(PROMPTS, role).shape[1])


def test_rows_that_another_thread_forgets_are_still_given(tower: Tower) -> None:
    """It attaches between the look at what is known and the end of what is read anew."""

    class Shared(TowerHost):
        def read(self, prompts: Sequence[str], role: str) -> dict[tuple[str, str], torch.Tensor]:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(self.forget).result()
            return super().read(prompts, role)

    host = Shared(tower)
    host.embed(PROMPTS[:2], "joint")
    assert torch.equal(host.embed(PROMPTS, "joint"), TowerHost(tower).embed(PROMPTS, "joint"))


# --- merge


def test_merge_hands_the_projections_over_and_takes_the_seam_off(tower: Tower) -> None:
    host = TowerHost(tower)
    attachment = Attachment(host, {"joint": PROJECTION}, strength=0.5)
    attachment.merge()
    assert host.merged == [({"joint": PROJECTION}, 0.5)]
    assert attachment.state == "merged"
    assert vars(tower) == {}
    assert attachment_of(tower) is None
    with pytest.raises(VldebiasError, match=r"Tower: the projection is part of the weights since merge\(\); reload"):
        attachment.remove()
    with pytest.raises(VldebiasError, match="cannot merge an attachment that is merged"):
        attachment.merge()
    with pytest.raises(AlreadyAttachedError, match="hold a projection since merge"):
        attach(tower)


def test_merge_in_a_with_block_ends_quietly(tower: Tower) -> None:
    with attach(tower) as attachment:
        attachment.merge()
    assert attachment.state == "merged"


def test_a_merge_that_fails_leaves_it_attached(tower: Tower) -> None:
    class Unmergeable(TowerHost):
        def merge(self, projections: Mapping[str, CalibratedProjection], strength: float) -> None:
            raise VldebiasError("no weights")

    attachment = Attachment(Unmergeable(tower), {"joint": PROJECTION})
    with pytest.raises(VldebiasError, match="no weights"):
        attachment.merge()
    assert attachment.state == "attached"
    attachment.remove()


# --- what it says, and what a host checks


def test_repr_says_what_is_attached(tower: Tower) -> None:
    attachment = attach(tower, strength=0.5, label="gender")
    assert repr(attachment) == (
        "Attachment(Tower, gender, joint: orth-cali lam=1000.0 rank 2/6, strength=0.5, stated not kept, attached)"
    )
    attachment.remove()
    assert repr(attachment).endswith("removed)")
    assert "stated kept" in repr(attach(tower, gate=Words()))


def made(space: str | None = None, fingerprint: Fingerprint | None = None, dim: int = 6) -> CalibratedProjection:
    plain = CalibratedProjection.fit(torch.eye(dim)[None, :2])
    return plain.stamped(space=space, model_id="ViT-B-32/openai", fingerprint=fingerprint)


def test_a_host_takes_what_was_fitted_on_it(tower: Tower) -> None:
    host = TowerHost(tower)
    host.check("joint", made("tower.joint", host.fingerprint()))
    host.check("joint", made())


@pytest.mark.parametrize(
    ("projection", "text"),
    [
        (made("tower.pooled"), r"Tower: the projection belongs to space 'tower.pooled', here .*'tower.joint'"),
        (made(dim=7), r"Tower: the projection has dim 7, 'joint' has 6"),
        (made(fingerprint=Fingerprint("x", (1.0,), (0.5,))), r"other weights \(ViT-B-32/openai\)"),
        (made(fingerprint=Fingerprint("letters", (2.0,), (0.5,))), r"fingerprint .* differs"),
    ],
)
def test_a_host_refuses_another_model_and_says_how_to_refit(
    tower: Tower, projection: CalibratedProjection, text: str
) -> None:
    with pytest.raises(ProjectionMismatchError, match=rf"{text}(?s:.*)fit again on this host"):
        TowerHost(tower).check("joint", projection)
