"""Steering: draws that follow shares, the contract about seeds, and what happens to each row."""

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import Tensor, nn
from torch.nn.functional import normalize

from tests.refusals import refused
from vldebias.api import debias, steer
from vldebias.errors import InvalidInputError, PromptSetError
from vldebias.hosts import Attachment
from vldebias.hosts.base import Apply, Host
from vldebias.methods.shares import Shares
from vldebias.projection import CalibratedProjection
from vldebias.prompts import PromptSet

GENDER = Shares.of([["male", "female"]])

# --- shares


HALF = (0.5, 0.5)
CROSSED = {"m/o": 0.4, "m/y": 0.1, "f/o": 0.1, "f/y": 0.4}


@pytest.mark.parametrize(
    ("values", "given_shares", "expected"),
    [
        (["mf"], None, HALF),
        (["mf", "oya"], None, (1 / 6,) * 6),
        (["mf", "oy"], [{"f": 0.3, "m": 0.7}, {"o": 0.1, "y": 0.9}], (0.07, 0.63, 0.03, 0.27)),
        (["mf", "oy"], [None, {"o": 1, "y": 0}], (0.5, 0.0, 0.5, 0.0)),
        (["mf", "oy"], CROSSED, tuple(CROSSED.values())),
    ],
)
def test_shares_are_uniform_by_default_and_multiply_where_they_are_given_apart(
    values: list[str], given_shares: Any, expected: tuple[float, ...]
) -> None:
    found = Shares.of([list(one) for one in values], given_shares)
    assert found.shares == pytest.approx(expected)
    assert found.names == tuple("/".join(one) for one in product(*values))
    assert found.codes == tuple(product(*(range(len(one)) for one in values)))


@refused(
    ({"m": 0.5}, r"shares: expected one for each of \['m', 'f'\], got \['m'\]"),
    ({"m": 0.5, "f": 0.3, "x": 0.2}, r"got \['m', 'f', 'x'\]"),
    ({"m": 50, "f": 50}, r"expected numbers from 0 on that sum to 1, got .* with sum 100"),
    ({"m": 0.5, "f": 0.49}, r"expected numbers from 0 on that sum to 1, got .* with sum 0.99"),
    ({"m": 1.5, "f": -0.5}, "expected numbers from 0 on"),
    ({"m": float("nan"), "f": 0.5}, "expected numbers from 0 on"),
    ([{"m": 0.5, "f": 0.5}] * 2, "a list of one mapping for each of the 1 attributes"),
    ("uniform", "expected a mapping of"),
    ([0.5], r"shares: expected one for each of \['m', 'f'\], got 0.5"),
)
def test_shares_that_are_none(given_shares: Any) -> None:
    Shares.of([["m", "f"]], given_shares)


@pytest.mark.parametrize("column", [["m", "f", "f", None, ""], np.array(["f", "m", "f"], dtype=object)])
def test_shares_of_a_data_set(column: Any) -> None:
    assert Shares.of([["m", "f"]], column).shares == pytest.approx((1 / 3, 2 / 3))
    joint = Shares.of([["m", "f"], ["o", "y"]], [column, ["o", "y", float("nan")]])
    assert joint.shares == pytest.approx((1 / 6, 1 / 6, 1 / 3, 1 / 3))


@refused(
    (["m", "x"], r"shares: expected a column with values of \['m', 'f'\], got the values \['x'\]"),
    (["", None], "got no value in any row"),
)
def test_columns_that_are_none(column: Any) -> None:
    Shares.of([["m", "f"]], column)


# --- draws


def test_draws_stay_what_they_are() -> None:
    """An image has to keep its value in every version: written down once, and not to be changed."""
    drawn = [GENDER.draw(seed, "A photo of a nurse.") for seed in range(16)]
    stratified = [GENDER.draw(seed, "A photo of a nurse.", 8) for seed in range(16)]
    assert drawn == [1, 1, 0, 1, 0, 0, 0, 1, 0, 1, 1, 1, 0, 1, 1, 1]
    assert stratified == [1, 1, 0, 1, 0, 0, 0, 1, 0, 1, 1, 1, 0, 0, 1, 0]


@pytest.mark.parametrize("stratify", [None, 10])
def test_draws_follow_the_shares(stratify: int | None) -> None:
    shares = Shares.of([["a", "b", "c"]], {"a": 0.6, "b": 0.3, "c": 0.1})
    counts = Counter(shares.draw(seed, "a prompt", stratify) for seed in range(6000))
    assert chisquare([counts[i] for i in range(3)], [3600, 1800, 600]).pvalue > 1e-3


@settings(max_examples=30, deadline=None)
@given(
    weights=st.lists(st.floats(0.01, 1.0), min_size=2, max_size=6),
    images=st.integers(1, 25),
    block=st.integers(0, 1000),
    prompt=st.text(max_size=5),
)
def test_strata_hold_every_value_to_within_one_image(
    weights: list[float], images: int, block: int, prompt: str
) -> None:
    names = [f"v{i}" for i in range(len(weights))]
    shares = Shares.of([names], dict(zip(names, (w / sum(weights) for w in weights), strict=True)))
    counts = Counter(shares.draw(block * images + i, prompt, images) for i in range(images))
    assert all(abs(counts[i] - images * s) < 1 + 1e-9 for i, s in enumerate(shares.shares))


def test_strata_come_in_an_order_of_their_own() -> None:
    """Neither all of one value first, nor the same order for every prompt and block."""
    orders = {tuple(GENDER.draw(b * 8 + i, p, 8) for i in range(8)) for b in range(4) for p in ("a nurse", "a pilot")}
    assert all(sum(order) == 4 for order in orders)
    assert len(orders) > 5


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(-(2**63), 2**63), low=st.floats(0, 1), high=st.floats(0, 1))
def test_a_larger_share_keeps_the_images_of_a_value(seed: int, low: float, high: float) -> None:
    low, high = sorted((low, high))
    drawn = [Shares.of([["a", "b"]], {"a": share, "b": 1 - share}).draw(seed, "x") for share in (low, high)]
    assert drawn[1] <= drawn[0]


@pytest.mark.parametrize("zero", ["a", "b", "c"])
def test_a_share_of_zero_is_never_drawn(zero: str) -> None:
    names = ["a", "b", "c"]
    shares = Shares.of([names], {name: 0.0 if name == zero else 0.5 for name in names})
    assert names.index(zero) not in {shares.draw(seed, "x") for seed in range(500)}
    rounded = Shares.of([names], {"a": 0.5, "b": 0.4999995, "c": 0.0})  # a sum of 1 but for rounding
    assert rounded._cumulated[-1] == 1.0


# --- on a made-up pipeline

DIM = 24


class Pipe:
    """Embeds a prompt as the sum of the vectors of its words; four tokens of different length, and a pooled vector."""

    def encode(self, prompts: Sequence[str]) -> tuple[Tensor, Tensor]:
        rows = torch.stack([sum((word(w) for w in p.lower().split()), torch.zeros(DIM)) for p in prompts])
        return rows[:, None] * torch.tensor([1.0, 2.0, 5.0, 0.0])[None, :, None], rows


def word(text: str) -> Tensor:
    return torch.randn(DIM, generator=torch.Generator().manual_seed(sum(ord(c) * 31**i for i, c in enumerate(text))))


class PipeHost(Host):
    name, roles, generative = "Pipe", ("sequence", "pooled"), True

    def __init__(self, pipe: Pipe) -> None:
        self.pipe, self.exclusive_modules = pipe, [pipe]

    def read(self, prompts: Sequence[str], role: str) -> dict[tuple[str, str], Tensor]:
        rows = normalize(Pipe.encode(self.pipe, prompts)[1].double(), dim=-1)
        return {(role, prompt): row for prompt, row in zip(prompts, rows, strict=True)}

    def space(self, role: str) -> str:
        return f"pipe.{role}"

    def fingerprint(self) -> None:
        return None

    def install(self, apply: Apply) -> Callable[[], None]:
        pipe = self.pipe

        def encode(prompts: Sequence[str], each: int = 1, roles: Sequence[str] = self.roles) -> tuple[Tensor, ...]:
            bare = [part.repeat_interleave(each, 0) for part in Pipe.encode(pipe, prompts)]
            return tuple(apply(role, part, lambda: prompts) for role, part in zip(roles, bare, strict=True))

        pipe.encode = encode  # type: ignore[method-assign]
        return lambda: vars(pipe).pop("encode")

    def merge(self, projections: Mapping[str, CalibratedProjection], strength: float) -> None:
        raise AssertionError("steering must not come to this")


def prompt_set(name: str, attributes: dict[str, tuple[str, ...]]) -> PromptSet:
    words = [value[0] for value in attributes.values()]
    groups = tuple(tuple(f"a {w} {job}" for w in words) for job in ("doctor", "nurse", "pilot", "clerk"))
    return PromptSet(name=name, groups=groups, attributes=attributes, stated_words=tuple(words))


SEXES = prompt_set("sexes", {"male": ("male",), "female": ("female",)})
AGES = prompt_set("ages", {"young": ("young",), "middle": ("middle-aged",), "old": ("old",)})
PROMPTS = ["a welder", "a baker", "a female welder", "a judge"]
SEEDS = [3, 4, 5, 11]


@pytest.fixture
def pipe() -> Pipe:
    return Pipe()


def equal(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def encoded(steering: Attachment, pipe: Pipe, prompts: Sequence[str], seeds: Sequence[int], **call: Any) -> Any:
    steering.seeds = seeds
    return pipe.encode(prompts, **call)


@pytest.mark.parametrize("seeds", [None, SEEDS])
def test_each_row_is_moved_to_its_value(pipe: Pipe, seeds: list[int] | None) -> None:
    """Drawn by the seed of each image, or by the call: in all roles that which is read afterwards."""
    bare = pipe.encode(PROMPTS)
    steering = steer(PipeHost(pipe), SEXES)
    found = pipe.encode(PROMPTS) if seeds is None else encoded(steering, pipe, PROMPTS, seeds)
    values = steering.drawn
    assert seeds is None or values == steering.values(PROMPTS, seeds)
    assert values[2] is None
    assert set(values) == {"male", "female", None}
    for role, part, moved in zip(("sequence", "pooled"), bare, found, strict=True):
        steps = steering.projections[role]
        for row, value in enumerate(values):
            if value is None:
                assert torch.equal(moved[row], part[row])
            else:
                shift = steps.shifts[SEXES_INDEX[value]]
                torch.testing.assert_close(moved[row], steps.target.apply(part[row], shift))


SEXES_INDEX = {"male": 0, "female": 1}


def test_what_tells_the_values_apart_is_that_of_the_drawn_value(pipe: Pipe) -> None:
    """The law: D^T z* = |z| D^T m_v whatever the prompt said, for a heavy lam; everything across D stays."""
    host = PipeHost(pipe)
    rows = {v: host.embed([f"a {v} {j}" for j in ("doctor", "nurse", "pilot", "clerk")], "pooled") for v in SEXES_INDEX}
    means = {value: found.mean(0) for value, found in rows.items()}
    difference = means["male"] - means["female"]
    plain = ["a welder", "a baker", "a judge", "a cook"]
    bare = pipe.encode(plain)[1].double()
    steering = steer(host, SEXES, lam=1e8)
    found = encoded(steering, pipe, plain, SEEDS)[1].double()
    aims = torch.stack([means[str(value)] for value in steering.values(plain, SEEDS)])
    torch.testing.assert_close(found @ difference, bare.norm(dim=1) * (aims @ difference), rtol=1e-4, atol=1e-4)
    unit = normalize(difference, dim=0)
    across = [z - (z @ unit)[:, None] * unit for z in (bare, found)]
    torch.testing.assert_close(across[0], across[1], rtol=1e-4, atol=1e-4)


def test_push_goes_further_from_the_middle(pipe: Pipe) -> None:
    gaps = []
    for push in (0.0, 1.0, 2.0):
        with steer(PipeHost(pipe), SEXES, push=push) as steering:
            shifts = steering.projections["pooled"].shifts
            gaps.append(shifts[0] - shifts[1])
    assert gaps[0].abs().max() < 1e-12
    torch.testing.assert_close(gaps[2], 2 * gaps[1])


def test_an_image_does_not_depend_on_its_batch(pipe: Pipe) -> None:
    steering = steer(PipeHost(pipe), SEXES)
    together = encoded(steering, pipe, PROMPTS, SEEDS)
    for i, (prompt, seed) in enumerate(zip(PROMPTS, SEEDS, strict=True)):
        alone = encoded(steering, pipe, [prompt], [seed])
        for part, own in zip(together, alone, strict=True):
            torch.testing.assert_close(part[i : i + 1], own)


def test_several_images_of_a_prompt_stand_together(pipe: Pipe) -> None:
    steering = steer(PipeHost(pipe), SEXES)
    twice = encoded(steering, pipe, ["a welder", "a judge"], SEEDS, each=2)
    listed = encoded(steering, pipe, ["a welder", "a welder", "a judge", "a judge"], SEEDS)
    assert equal(twice, listed)


def test_intersections(pipe: Pipe) -> None:
    """Each combination goes where both of its values are."""
    host = PipeHost(pipe)
    steering = steer(host, [SEXES, AGES], [{"male": 0.2, "female": 0.8}, None], lam=1e8)
    names = tuple(f"{s}/{a}" for s in ("male", "female") for a in ("young", "middle", "old"))
    assert steering.projections["pooled"].shares.names == names
    jobs, seeds = [f"a worker{i}" for i in range(40)], range(40)
    values = [str(value) for value in steering.values(jobs, seeds)]
    assert len(set(values)) == 6
    found = encoded(steering, pipe, jobs, list(seeds))[1].double()
    length = Pipe.encode(pipe, jobs)[1].double().norm(dim=1)
    for place, (prompts, first, second) in enumerate(((SEXES, "male", "female"), (AGES, "young", "old"))):
        means = {
            value: host.embed([p for group in prompts.groups for p in group if words[0] in p.split()], "pooled").mean(0)
            for value, words in prompts.attributes.items()
        }
        difference = means[first] - means[second]
        wanted = torch.stack([means[value.split("/")[place]] @ difference for value in values])
        torch.testing.assert_close(found @ difference, length * wanted, rtol=1e-3, atol=1e-3)


class TestCalls:
    """Without seeds: values drawn evenly within each call, reproducible, one for all roles of a call."""

    def test_of_the_images_of_a_prompt_each_value_has_its_share(self, pipe: Pipe) -> None:
        steering = debias(PipeHost(pipe), SEXES, method="steer")
        pipe.encode(["a welder", "a judge"], each=6)
        for prompt in (slice(0, 6), slice(6, 12)):
            assert Counter(steering.drawn[prompt]) == {"male": 3, "female": 3}

    def test_single_images_of_many_calls_are_even_too(self, pipe: Pipe) -> None:
        steering = steer(PipeHost(pipe), SEXES, {"male": 0.3, "female": 0.7})
        drawn = []
        for _ in range(40):
            pipe.encode(["a welder"])
            drawn += steering.drawn
        assert abs(drawn.count("male") - 12) <= 1

    def test_the_seed_of_the_attachment_decides(self, pipe: Pipe) -> None:
        def run(seed: int) -> list[list[str | None]]:
            steering.seed = seed
            calls = []
            for _ in range(3):
                pipe.encode(["a welder", "a judge"], each=5)
                calls.append(steering.drawn)
            return calls

        steering = steer(PipeHost(pipe), SEXES)
        assert steering.seed == 0
        first, other = run(0), run(1)
        assert run(0) == first != other
        assert first[0] != first[1]
        with pytest.raises(InvalidInputError, match="seed: expected an integer, got '1'"):
            steering.seed = "1"  # type: ignore[assignment]

    def test_a_call_that_broke_off_leaves_nothing_behind(self, pipe: Pipe) -> None:
        steering = steer(PipeHost(pipe), SEXES)
        steering.apply("sequence", torch.ones(3, 4, DIM), lambda: ["a welder"] * 3)
        first = steering.drawn
        pipe.encode(["a welder"] * 3)
        found = pipe.encode(["a welder"] * 3)
        assert len({tuple(first), tuple(steering.drawn)}) == 2
        assert len({tuple(row.tolist()) for row in found[1].round(decimals=3)}) == 2

    def test_threads_have_calls_of_their_own(self, pipe: Pipe) -> None:
        steering = steer(PipeHost(pipe), SEXES)
        ready, told = threading.Barrier(4), {}

        def call(name: int) -> None:
            steering.seeds = [name * 10, name * 10 + 1]
            ready.wait(10)
            pipe.encode([f"a worker{name}"] * 2)
            told[name] = steering.drawn

        threads = [threading.Thread(target=call, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert told == {n: steering.values([f"a worker{n}"] * 2, [n * 10, n * 10 + 1]) for n in range(4)}
        assert len(steering.drawn) == 2


class TestSeeds:
    def test_are_used_up_by_a_call(self, pipe: Pipe) -> None:
        """The call after it draws by the attachment's own seed: not what the seeds gave, over and over."""
        steering = steer(PipeHost(pipe), SEXES)
        encoded(steering, pipe, ["a welder"] * 2, [3, 5])
        by_seed = steering.values(["a welder"] * 2, [3, 5])
        assert steering.drawn == by_seed == ["male", "male"]
        pipe.encode(["a welder"] * 2)
        assert sorted(map(str, steering.drawn)) == ["female", "male"]

    @pytest.mark.parametrize("seeds", [[1], [1, 2, 3, 4, 5]])
    def test_one_for_each_image(self, pipe: Pipe, seeds: list[int]) -> None:
        steering = steer(PipeHost(pipe), SEXES)
        with pytest.raises(InvalidInputError, match=f"{len(seeds)} seeds for 4 images; expected one for each"):
            encoded(steering, pipe, PROMPTS, seeds)

    @pytest.mark.parametrize("seeds", [[], ["1"], [True], [1.0]])
    def test_are_integers(self, pipe: Pipe, seeds: Any) -> None:
        steering = steer(PipeHost(pipe), SEXES)
        with pytest.raises(InvalidInputError, match="seeds: expected one integer per image"):
            steering.seeds = seeds

    def test_prompts_have_to_be_known(self, pipe: Pipe) -> None:
        steering = steer(PipeHost(pipe), SEXES)
        steering.seeds = [1, 2, 3]
        with pytest.raises(InvalidInputError, match=r"Pipe: Steering\(steer, .* needs the prompt of each row"):
            steering.apply("pooled", torch.ones(3, DIM))
        with pytest.raises(InvalidInputError, match="3 embeddings for 2 prompts; expected a multiple"):
            steering.apply("pooled", torch.ones(3, DIM), lambda: ["a", "b"])


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"stratify": 0}, "stratify: expected a number of images, at least 1, or None, got 0"),
            ({"stratify": True}, "stratify: expected a number of images"),
            ({"push": -1.0}, "push: expected a number from 0 on, got -1.0"),
            ({"push": float("nan")}, "push: expected a number from 0 on"),
            ({"strength": 2.0}, r"strength: expected a number in \[0, 1\], got 2.0"),
            ({"shares": {"male": 1.0}}, r"expected one for each of \['male', 'female'\]"),
        ],
    )
    def test_options(self, pipe: Pipe, options: dict[str, Any], message: str) -> None:
        with pytest.raises(InvalidInputError, match=message):
            steer(PipeHost(pipe), SEXES, **options)
        assert vars(pipe) == {}

    def test_groups_without_every_value(self, pipe: Pipe) -> None:
        values, guests = {"male": ("male",), "tall": ("tall",)}, ("a male guest", "a tall guest")
        lame = replace(SEXES, attributes=values, spurious=guests)
        with pytest.raises(PromptSetError, match=r"groups with a prompt for each, got values \['male', 'tall'\] and 0"):
            steer(PipeHost(pipe), lame)


# --- on the miniature


def test_images_show_the_values_they_are_given() -> None:
    from vldebias.miniature import load_judge, load_pipeline

    pipe = load_pipeline()
    modules = {name: dict(vars(m)) for name, m in pipe.components.items() if isinstance(m, nn.Module)}
    prompts, seeds = ["A photo of a nurse."] * 6, list(range(6))
    with steer(pipe, "professions-gender", stratify=6) as steering:
        values = steering.values(prompts, seeds)
        call = {"num_inference_steps": 10, "guidance_scale": 3.0, "output_type": "pt"}
        images = pipe(prompts, generator=steering.generators(seeds), **call).images
    assert "encode_prompt" not in vars(pipe)
    assert all(vars(pipe.components[name]) == before for name, before in modules.items())
    assert Counter(values) == {"male": 3, "female": 3}
    shown = load_judge().predict(images.float())["gender"].tolist()
    assert sum(SEXES_INDEX[str(v)] == s for v, s in zip(values, shown, strict=True)) >= 5
