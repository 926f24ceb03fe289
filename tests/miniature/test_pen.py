from dataclasses import replace

import numpy as np
import pytest

from vldebias.miniature.pen import Pen, above, below, box, line, oval, polygon

DIAMOND = polygon((0, -0.2), (0.1, 0), (0, 0.2), (-0.1, 0))
SHAPES = {
    "disc": oval(0.05, -0.02, 0.15),
    "flat oval": oval(0, 0.1, 0.25, 0.04),
    "box": box(-0.2, 0.1, -0.1, 0.25),
    "diamond": DIAMOND,
    "thorn": polygon((-0.02, 0.2), (0, -0.3), (0.02, 0.2)),
    "line": line(-0.1, -0.2, 0.2, 0.1, 0.06),
    "union": oval(-0.1, 0, 0.1) | box(0, 0.2, -0.05, 0.05),
    "intersection": oval(0, 0, 0.2) & above(0.03),
    "difference": oval(0, 0, 0.2) - oval(0, 0, 0.12),
    "both": line(0.1, 0.1, 0.25, -0.2, 0.05).both,
}


def cover(shape, *, size=64, x=0.5, y=0.5, **pen):
    """(size, size): how far one picture is covered by a shape."""
    pixels = np.zeros((1, size, size, 3), np.float32)
    Pen(pixels, x, y, **pen)(shape, (1.0, 1.0, 1.0))
    assert np.array_equal(pixels[..., 0], pixels[..., 1])
    return pixels[0, ..., 0]


def area(shape, size):
    return cover(shape, size=size).sum() / size**2


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        (oval(0, 0, 0.2), np.pi * 0.2**2),
        (oval(0.1, -0.1, 0.3, 0.1), np.pi * 0.3 * 0.1),
        (box(-0.21, 0.13, -0.08, 0.3), 0.34 * 0.38),
        (DIAMOND, 0.2 * 0.4 / 2),
        (line(-0.2, 0.1, 0.1, -0.3, 0.08), 0.5 * 0.08 + np.pi * 0.04**2),
        (oval(0, 0, 0.2) - oval(0, 0, 0.1), np.pi * (0.2**2 - 0.1**2)),
        (oval(0, 0, 0.2) & below(0), np.pi * 0.2**2 / 2),
        (box(-0.3, -0.1, 0, 0.2).both, 2 * 0.2 * 0.2),
    ],
)
def test_coverage_approaches_the_area(shape, expected):
    errors = [abs(area(shape, size) - expected) for size in (32, 512)]
    assert errors[0] < 0.06 * expected
    assert errors[1] < 0.006 * expected


@pytest.mark.parametrize("one", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("other", [oval(0.1, 0, 0.12), box(-0.3, 0.0, -0.3, 0.02)], ids=["disc", "box"])
def test_shapes_combine_as_sets(one, other):
    grid = np.linspace(-0.4, 0.4, 81, dtype=np.float32)
    x, y = grid[None, None, :], grid[None, :, None]
    a, b = one.distance(x, y) < 0, other.distance(x, y) < 0
    assert a.any()
    assert b.any()
    assert np.array_equal((one | other).distance(x, y) < 0, a | b)
    assert np.array_equal((one & other).distance(x, y) < 0, a & b)
    apart = np.abs(other.distance(x, y)) > 1e-6
    assert np.array_equal(((one - other).distance(x, y) < 0)[apart], (a & ~b)[apart])
    assert np.array_equal(one.both.distance(x, y) < 0, a | a[..., ::-1])


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
class TestPen:
    def test_both_is_its_own_mirror_image(self, shape):
        assert cover(shape.both) == pytest.approx(cover(shape.both)[:, ::-1], abs=1e-5)

    def test_flip_mirrors_what_is_painted(self, shape):
        assert cover(shape, flip=-1.0) == pytest.approx(cover(shape)[:, ::-1], abs=1e-5)

    def test_an_origin_of_whole_pixels_moves_it(self, shape):
        moved = cover(shape, x=0.5 + 4 / 64, y=0.5 - 3 / 64)
        assert moved == pytest.approx(np.roll(cover(shape), (-3, 4), axis=(0, 1)), abs=1e-5)

    def test_scale_enlarges_the_area_by_its_square(self, shape):
        small, large = (cover(shape, size=256, scale=scale).sum() for scale in (0.6, 1.2))
        assert large / small == pytest.approx(4, rel=0.06)

    def test_nothing_is_painted_beyond_the_bounds(self, shape):
        left, right, top, bottom = (0.5 + bound for bound in shape.bounds)
        centres = (np.arange(64) + 0.5) / 64
        beside = (centres < left - 0.51 / 64) | (centres > right + 0.51 / 64)
        over = (centres < top - 0.51 / 64) | (centres > bottom + 0.51 / 64)
        assert cover(shape).any()
        assert not cover(shape)[:, beside].any()
        assert not cover(shape)[over].any()

    def test_a_picture_is_the_same_whatever_batch_it_is_painted_in(self, shape):
        rng = np.random.default_rng(0)
        n = 12
        start = rng.random((n, 64, 64, 3), np.float32)
        x, y, scale = (rng.uniform(low, high, n).astype(np.float32) for low, high in ((-0.1, 1.1), (0, 1), (0.4, 1.4)))
        flip = rng.choice(np.float32([-1, 1]), n)
        colour = rng.random((n, 3), np.float32)
        together = start.copy()
        Pen(together, x, y, scale=scale, flip=flip)(shape, colour)
        for i in range(n):
            alone = start[i : i + 1].copy()
            Pen(alone, x[i : i + 1], y[i], scale=scale[i], flip=flip[i])(shape, colour[i])
            assert np.array_equal(alone[0], together[i])

    def test_other_pictures_are_left_as_they_are(self, shape):
        pixels = np.random.default_rng(1).random((6, 32, 32, 3), np.float32)
        before = pixels.copy()
        chosen = np.array([True, False, False, True, True, False])
        pen = Pen(pixels, 0.5, 0.5).where(chosen)
        pen.where(np.array([True, True, True, True, False, True]))(shape, (1, 0, 0))
        assert np.array_equal(pixels[[1, 2, 4, 5]], before[[1, 2, 4, 5]])
        assert not np.array_equal(pixels[0], before[0])
        assert not np.array_equal(pixels[3], before[3])


def test_colours_lie_between_what_was_there_and_what_is_painted():
    pixels = np.full((1, 64, 64, 3), 0.2, np.float32)
    Pen(pixels, 0.5, 0.5)(oval(0, 0, 0.3), (0.8, 0.2, 0.0))
    assert pixels[0, 32, 32] == pytest.approx([0.8, 0.2, 0.0])
    assert pixels[0, 0, 0] == pytest.approx([0.2, 0.2, 0.2])
    assert pixels[..., 0].min() >= 0.2 - 1e-6
    assert pixels[..., 0].max() <= 0.8 + 1e-6
    soft = (pixels[..., 0] > 0.25) & (pixels[..., 0] < 0.75)
    assert 0 < soft.mean() < 0.05


@pytest.mark.parametrize("where", [(-2.0, 0.5), (3.0, 0.5), (0.5, -2.0), (0.5, 3.0)])
def test_what_lies_beside_the_picture_paints_nothing(where):
    assert not cover(oval(0, 0, 0.2), x=where[0], y=where[1]).any()


def test_no_picture_chosen_paints_nothing():
    pixels = np.zeros((3, 16, 16, 3), np.float32)
    pen = replace(Pen(pixels, 0.5, 0.5), pick=np.array([], int))
    pen(oval(0, 0, 0.3), (1, 1, 1))
    pen.where(np.ones(3, bool))(oval(0, 0, 0.3), (1, 1, 1))
    assert not pixels.any()
