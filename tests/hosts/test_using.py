"""`attachment.using` and `add`: methods and strengths by call and by prompt, each thread and task for itself."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import diffusers_tiny
import pytest
import torch
from tower_parts import PROJECTION, PROMPTS, Tower, TowerHost, Words, attach

import vldebias
from vldebias.errors import InvalidInputError, ProjectionMismatchError, VldebiasError
from vldebias.hosts.attachment import Attachment
from vldebias.projection import CalibratedProjection
from vldebias.prompts import PromptSet

OTHER = CalibratedProjection.fit(torch.eye(6)[None, 2:4], torch.eye(6)[5:6])


@pytest.fixture
def tower() -> Tower:
    return Tower()


@pytest.fixture
def attachment(tower: Tower) -> Attachment:
    attachment = attach(tower)
    attachment.add("other", OTHER)
    return attachment


def test_a_call_by_another_method_and_strength(tower: Tower, attachment: Attachment) -> None:
    plain, first = Tower().encode(PROMPTS), tower.encode(PROMPTS)
    assert attachment.methods == ("default", "other", "none")
    with attachment.using(method="other") as same:
        assert same is attachment
        assert torch.equal(tower.encode(PROMPTS), OTHER(plain))
        with attachment.using(strength=0.25):
            assert torch.equal(tower.encode(PROMPTS), OTHER(plain, 0.25))
            with attachment.using(method="none"):
                assert torch.equal(tower.encode(PROMPTS), plain)
            with attachment.disabled():
                assert torch.equal(tower.encode(PROMPTS), plain)
        with attachment.using(strength=0):
            assert torch.equal(tower.encode(PROMPTS), plain)
        assert torch.equal(tower.encode(PROMPTS), OTHER(plain))
    assert torch.equal(tower.encode(PROMPTS), first)
    attachment.strength = 0.5
    with attachment.using(method="other"):
        assert torch.equal(tower.encode(PROMPTS), OTHER(plain, 0.5))
    with pytest.raises(ZeroDivisionError), attachment.using(strength=0):
        _ = 1 / 0
    assert torch.equal(tower.encode(PROMPTS), PROJECTION(plain, 0.5))


def test_a_batch_mixes_methods_and_strengths(tower: Tower, attachment: Attachment) -> None:
    plain = Tower().encode(PROMPTS)
    with attachment.using(method=["other", "none", "default"], strength=[1, 1, torch.tensor(0.5).item()]):
        got = tower.encode(PROMPTS)
        several = tower.encode(PROMPTS, images_per_prompt=2)
    expected = torch.stack([OTHER(plain[0]), plain[1], PROJECTION(plain[2], 0.5)])
    torch.testing.assert_close(got, expected)
    assert torch.equal(got[1], plain[1])
    torch.testing.assert_close(several, expected.repeat_interleave(2, 0))
    with attachment.using(method=["other"] * 3):
        assert torch.equal(tower.encode(PROMPTS), OTHER(plain))
    with attachment.using(strength=torch.tensor([0.0, 0.5, 1.0])):
        torch.testing.assert_close(tower.encode(PROMPTS)[1], PROJECTION(plain[1], 0.5))


def test_gradients_of_a_mixed_batch_are_those_of_its_rows(attachment: Attachment) -> None:
    z = torch.randn(3, 6, requires_grad=True)
    with attachment.using(method=["other", "none", "default"]):
        attachment.apply("joint", z).sum().backward()
    by_hand = z.detach().clone().requires_grad_()
    (OTHER(by_hand[0]).sum() + by_hand[1].sum() + PROJECTION(by_hand[2]).sum()).backward()
    torch.testing.assert_close(z.grad, by_hand.grad)


def test_each_method_keeps_the_prompts_that_state_its_own_attribute(tower: Tower) -> None:
    attachment = attach(tower, gate=Words())
    attachment.add("faces", OTHER.stamped(stated_words=("face",)))
    attachment.add("always", OTHER.stamped(stated_words=("face",)), keep_stated=False)
    plain = Tower().encode(PROMPTS)  # a bad face, a dead woman, cafe
    with attachment.using(method="faces"):
        got = tower.encode(PROMPTS)
    assert torch.equal(got[0], plain[0])
    torch.testing.assert_close(got[1:], OTHER(plain[1:]))
    with attachment.using(method=["default", "faces", "always"]):
        got = tower.encode(["a bad face", "a bad face", "a bad face"])
    torch.testing.assert_close(got, torch.stack([PROJECTION(plain[0]), plain[0], OTHER(plain[0])]))
    with attachment.using(method=["default", "faces"]):
        got = tower.encode(["a dead woman", "a dead woman"])
    torch.testing.assert_close(got, torch.stack([plain[1], OTHER(plain[1])]))


@pytest.mark.parametrize("given", [{"method": ["other", "none"]}, {"strength": [1.0] * 4}, {"method": []}])
def test_another_number_of_prompts_is_refused(tower: Tower, attachment: Attachment, given: Any) -> None:
    with (
        attachment.using(**given),
        pytest.raises(InvalidInputError, match=r"using\(.*got \d for 3 embeddings; expected one for each prompt"),
    ):
        tower.encode(PROMPTS)


def test_two_methods_for_four_prompts_are_not_taken_for_images_of_two(tower: Tower, attachment: Attachment) -> None:
    with attachment.using(method=["other", "none"]), pytest.raises(InvalidInputError, match="got 2 for 4 embeddings"):
        tower.encode([*PROMPTS, "a"])
    with attachment.using(method=["other", "none"] * 4):  # one per image will do
        tower.encode([*PROMPTS, "a"], images_per_prompt=2)


def test_what_is_unknown_is_refused_with_what_is_near(attachment: Attachment) -> None:
    with pytest.raises(InvalidInputError, match=r"got 'othr'; expected one of .* did you mean 'other'"):
        attachment.using(method="othr").__enter__()
    with pytest.raises(InvalidInputError, match=r"attach it first: attachment.add\('race', edits\)"):
        attachment.using(method=["other", "race"]).__enter__()
    with pytest.raises(InvalidInputError, match=r"strength: expected a number in \[0, 1\], got 2"):
        attachment.using(strength=2).__enter__()
    for taken in ("other", "default", "none", ""):
        with pytest.raises(InvalidInputError, match="add: got the name"):
            attachment.add(taken, OTHER)
    with pytest.raises(ProjectionMismatchError, match="belongs to space 'moon'"):
        attachment.add("moon", OTHER.stamped(space="moon"))
    assert "methods default other" in repr(attachment)
    attachment.remove()
    with pytest.raises(VldebiasError, match="cannot add to an attachment that is removed"):
        attachment.add("late", OTHER)


def test_merge_folds_what_was_attached_first(tower: Tower) -> None:
    host = TowerHost(tower)
    attachment = Attachment(host, {"joint": PROJECTION})
    attachment.add("other", OTHER)
    attachment.merge()
    assert host.merged == [({"joint": PROJECTION}, 1.0)]


# --- threads and tasks


def test_threads_use_their_own(tower: Tower, attachment: Attachment) -> None:
    """All are inside their block at once, so a switch on the object would be seen by every other."""
    plain = Tower().encode(PROMPTS)
    inside = threading.Barrier(8)

    def serve(i: int) -> bool:
        strength, method = (i % 4) / 4, ("default", "other")[i // 4]
        with attachment.using(strength=strength, method=method):
            inside.wait(10)
            return torch.equal(tower.encode(PROMPTS), (PROJECTION, OTHER)[i // 4](plain, strength))

    with ThreadPoolExecutor(8) as pool, attachment.using(method="none"):
        assert all(pool.map(serve, range(8)))
        assert torch.equal(pool.submit(tower.encode, PROMPTS).result(), PROJECTION(plain)), "a bare thread has none"


def test_tasks_use_their_own_and_hand_it_to_their_threads(tower: Tower, attachment: Attachment) -> None:
    plain = Tower().encode(PROMPTS)

    async def serve(method: str, inside: asyncio.Barrier) -> torch.Tensor:
        with attachment.using(method=method):
            await inside.wait()
            here = tower.encode(PROMPTS)
            assert torch.equal(await asyncio.to_thread(tower.encode, PROMPTS), here)
            return here

    async def all_at_once() -> list[torch.Tensor]:
        inside = asyncio.Barrier(3)
        return await asyncio.gather(*(serve(name, inside) for name in attachment.methods))

    for got, expected in zip(asyncio.run(all_at_once()), (PROJECTION(plain), OTHER(plain), plain), strict=True):
        assert torch.equal(got, expected)


def test_seeds_are_those_of_the_thread(tower: Tower) -> None:
    attachment = attach(tower)
    told = threading.Barrier(2)

    def serve(seed: int) -> tuple[int, ...] | None:
        attachment.seeds = [seed]
        told.wait(10)
        return attachment.seeds

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(serve, [3, 4])) == [(3,), (4,)]
    assert attachment.seeds is None


# --- on real hosts


@torch.no_grad()
def test_a_pipeline_serves_two_attributes_in_one_batch(gender: PromptSet, age: PromptSet) -> None:
    make, _ = diffusers_tiny.FAMILIES["StableDiffusionXL"]
    pipe = diffusers_tiny.own(make())
    prompts = ["a photo of a doctor", "a photo of a nurse", "a photo of a chef"]

    def encoded(**more: Any) -> list[torch.Tensor]:
        return [t for t in pipe.encode_prompt(prompts, device="cpu", num_images_per_prompt=2, **more) if t is not None]

    bare = encoded()
    attachment = vldebias.debias(pipe, gender)
    by_gender = encoded()
    attachment.add("age", vldebias.fit_projections(pipe, age))
    with attachment.using(method="age"):
        by_age = encoded()
    with attachment.using(method=["none", "age", "default"]):
        mixed = encoded()
    for one, rows in enumerate(mixed):
        expected = torch.cat([bare[one][:2], by_age[one][2:4], by_gender[one][4:]])
        torch.testing.assert_close(rows, expected, atol=1e-5, rtol=1e-4)
    attachment.remove()
    with vldebias.debias(pipe, age):
        for alone, added in zip(encoded(), by_age, strict=True):
            torch.testing.assert_close(alone, added)


@torch.no_grad()
def test_a_steered_pipeline_serves_other_prompts_beside_it(gender: PromptSet) -> None:
    """Only the rows that sample are given the value of their seed."""
    make, _ = diffusers_tiny.FAMILIES["StableDiffusion"]
    pipe = diffusers_tiny.own(make())
    values = gender.__class__(
        name="values", groups=gender.groups, stated_words=gender.stated_words, attributes=ATTRIBUTES
    )
    prompts = ["a photo of a doctor", "a photo of a nurse"]

    def encoded() -> torch.Tensor:
        return pipe.encode_prompt(prompts, "cpu", 1, False)[0]

    attachment = vldebias.debias(pipe, gender)
    projected = encoded()
    attachment.add("steer", vldebias.fit_projections(pipe, values, method="steer"))
    with attachment.using(method="steer"):
        attachment.seeds = [5, 6]
        steered = encoded()
    with attachment.using(method=["default", "steer"]):
        attachment.seeds = [5, 6]
        torch.testing.assert_close(encoded(), torch.stack([projected[0], steered[1]]))
        assert attachment.drawn[0] is None
        assert attachment.drawn[1] in ATTRIBUTES
    assert torch.equal(encoded(), projected)


ATTRIBUTES = {"male": ("male",), "female": ("female",)}


def test_what_is_bound_takes_along_what_is_asked_for_here(tower: Tower, attachment: Attachment) -> None:
    plain = Tower().encode(PROMPTS)
    with attachment.using(method="other", strength=0.5):
        bound, free = attachment.bind(tower.encode), tower.encode
    with attachment.disabled():
        paused = attachment.bind(tower.encode)
    with ThreadPoolExecutor(4) as threads:
        many = [threads.submit(bound, PROMPTS) for _ in range(8)]
        assert all(torch.equal(one.result(), OTHER(plain, 0.5)) for one in many)
        assert torch.equal(threads.submit(free, PROMPTS).result(), PROJECTION(plain))
        assert torch.equal(threads.submit(paused, PROMPTS).result(), plain)
    thread_rows: list[torch.Tensor] = []
    thread = threading.Thread(target=attachment.bind(lambda: thread_rows.append(bound(PROMPTS))))
    thread.start()
    thread.join()
    assert torch.equal(thread_rows[0], OTHER(plain, 0.5))
    assert torch.equal(tower.encode(PROMPTS), PROJECTION(plain)), "nothing is left here"
    assert bound.__name__ == "encode"
