"""Test the lightness of skin on drawn faces, whose change is known."""

import numpy as np
import pytest
from PIL import Image

from apps.edits.skin import (
    SIDE,
    SkinChange,
    compare_faces,
    find_faces,
    lab_of,
    measure_face,
    points_of_faces,
    same_face,
)
from vldebias.errors import InvalidInputError
from vldebias.miniature.photographs import read_thumbnail

# Both eyes, the nose and both corners of the mouth, in a picture of 512 pixels
POINTS = np.array([[226, 180], [286, 180], [256, 215], [232, 245], [280, 245]], dtype=float)
SKIN = (150, 105, 80)


def face(skin=SKIN, light=1.0, *, side=0.0, ground=0, size=512, at=(0, 0)) -> Image.Image:
    """Draw a face before a wall with stripes of many lightnesses.

    Args:
        skin: colour of the face.
        light: factor of linear light for the whole picture.
        side: how much brighter the right of the face is than the left.
        ground: which wall.
        size: side of the picture in pixels.
        at: where the face is moved.
    """
    y, x = np.mgrid[:512, :512]
    wall = (40 + 17 * ((x // 8 + 5 * (y // 8) + 31 * ground) % (11 + ground))).astype(float)
    share = np.repeat(wall[..., None], 3, 2) / 255
    is_face = ((x - 256 - at[0]) / 62) ** 2 + ((y - 200 - at[1]) / 80) ** 2 < 1
    share[is_face] = np.array(skin) / 255
    linear = share**2.2 * light
    linear *= np.where(is_face, 2.0 ** (side * (x - 256 - at[0]) / 60), 1)[..., None]
    pixels = (255 * np.clip(linear, 0, 1) ** (1 / 2.2)).round().astype(np.uint8)
    return Image.fromarray(pixels).resize((size, size))


def change(before: Image.Image, after: Image.Image, moved: np.ndarray = POINTS) -> SkinChange:
    return same_face((before, after), (POINTS * before.width / 512, moved * after.width / 512))


@pytest.mark.parametrize(
    ("rgb", "lab"),
    [
        ((0, 0, 0), (0, 0, 0)),
        ((255, 255, 255), (100, 0, 0)),
        ((255, 0, 0), (53.24, 80.09, 67.20)),
        ((0, 0, 255), (32.30, 79.19, -107.86)),
        ((119, 119, 119), (50.03, 0, 0)),
    ],
)
def test_lab_of_known_colours(rgb: tuple[int, ...], lab: tuple[float, ...]) -> None:
    assert lab_of(np.array(rgb, dtype=np.uint8)) == pytest.approx(lab, abs=0.02)


def test_the_skin_is_the_colour_of_the_face() -> None:
    measured = measure_face(face(), POINTS)
    assert measured is not None
    assert measured.lightness == pytest.approx(lab_of(np.array(SKIN, dtype=np.uint8))[0], abs=0.3)
    assert measured.doubts == []
    y, x = (200, 256)
    assert np.isnan(measured.background[y, x])
    assert np.isfinite(measured.background[10, 10])


@pytest.mark.parametrize("light", [0.8, 1.1, 1.3])
def test_light_on_the_whole_picture_is_no_relative_change(light: float) -> None:
    found = change(face(), face(light=light))
    expected = lab_of(np.asarray(face(light=light))[200, 256])[0] - found.lightness
    assert found.change == pytest.approx(expected, abs=0.3)
    assert abs(found.change) > 2
    assert found.relative == pytest.approx(0, abs=0.5)


@pytest.mark.parametrize("lighter", [(165, 118, 92), (130, 88, 66)])
def test_a_change_of_the_person_alone_is_kept(lighter: tuple[int, int, int]) -> None:
    found = change(face(), face(lighter))
    assert abs(found.change) > 4
    assert found.relative == pytest.approx(found.change, abs=0.05)
    # Both at once: the light is taken out, and the rest stays.
    both = change(face(), face(lighter, light=1.2))
    assert both.relative == pytest.approx(found.change, abs=0.8)


@pytest.mark.parametrize(("before", "after"), [(512, 256), (700, 512), (512, 1024)])
def test_the_size_of_the_images_does_not_matter(before: int, after: int) -> None:
    found = change(face(size=before), face(size=after))
    assert found.change == pytest.approx(0, abs=0.2)


def test_an_image_is_no_lighter_than_itself_or_its_mirror_image() -> None:
    assert change(face(), face())[:3] == pytest.approx((change(face(), face()).lightness, 0, 0))
    mirrored = face().transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    points = POINTS[[1, 0, 2, 4, 3]]
    points[:, 0] = 511 - points[:, 0]
    assert change(face(), mirrored, points).change == pytest.approx(0, abs=0.05)
    assert change(face(side=0.4), face(side=-0.4)).doubts == []
    assert change(face(side=0.2), face(side=0.75)).doubts == ["light from one side"]


def vignette(image: Image.Image, depth: float) -> Image.Image:
    """Darken the corners by a share."""
    y, x = np.mgrid[-1 : 1 : image.height * 1j, -1 : 1 : image.width * 1j]
    pixels = np.asarray(image) * (1 - depth * (x**2 + y**2) / 2)[..., None]
    return Image.fromarray(pixels.round().astype(np.uint8))


@pytest.mark.parametrize("depth", [0.25, 0.5])
def test_a_vignette_is_no_change_of_the_person(depth: float) -> None:
    def small(skin: tuple[int, int, int]) -> Image.Image:
        canvas = face(at=(5000, 0))  # the wall alone
        canvas.paste(face(skin, size=200), (60, 120))
        return canvas

    points = POINTS * 200 / 512 + np.array([60, 120])

    def relative(after: Image.Image) -> float:
        return same_face((small(SKIN), after), (points, points)).relative

    lighter = (165, 118, 92)
    known = relative(small(lighter))
    assert known > 4
    assert relative(vignette(small(SKIN), depth)) == pytest.approx(0, abs=1)
    assert relative(vignette(small(lighter), depth)) == pytest.approx(known, abs=1)
    # The background became darker by more than what counts as a change.
    changed = [
        lab_of(np.asarray(image))[..., 0] for image in (small(SKIN), vignette(small(SKIN), depth))
    ]
    assert np.median(changed[1] - changed[0]) < -2


def test_a_vignette_far_from_all_background_leaves_no_relative_change() -> None:
    # Only the top corners show the wall in the lightness of the skin.
    y, x = np.mgrid[:512, :512]
    pixels = np.asarray(face()).copy()
    is_corner = (y < 110) & (abs(x - 256) > 150)
    is_face = ((x - 256) / 62) ** 2 + ((y - 200) / 80) ** 2 < 1
    pixels[~is_corner & ~is_face] = 235
    framed = Image.fromarray(pixels)
    assert change(framed, framed).relative == 0
    assert np.isnan(change(framed, vignette(framed, 0.4)).relative)


def test_another_background_has_no_relative_change() -> None:
    found = change(face(), face((165, 118, 92), ground=1))
    assert found.change > 4
    assert np.isnan(found.relative)
    assert found.doubts == []
    before = measure_face(face(), POINTS)
    after = measure_face(face().crop((0, 0, 512, 400)), POINTS)
    assert before is not None
    assert after is not None
    assert np.isnan(compare_faces(before, after).relative)


def test_a_background_without_the_lightness_of_the_skin_has_no_relative_change() -> None:
    dark = face((20, 12, 9))
    assert np.isnan(change(dark, dark).relative)


@pytest.mark.parametrize(
    ("after", "doubt"),
    [
        (face().convert("L").convert("RGB"), "hardly any colour"),
        (face(side=1.2), "light from one side"),
        (face(side=-1.2), "light from one side"),
        (face(light=6.0), "clipped"),
    ],
)
def test_pairs_that_say_little_are_doubted(after: Image.Image, doubt: str) -> None:
    assert doubt in change(face(), after).doubts
    assert doubt in change(after, face()).doubts


def test_a_small_face_is_doubted() -> None:
    small = Image.new("RGB", (512, 512), (90, 90, 90))
    small.paste(face(size=100), (50, 50))
    found = same_face((small, small), (POINTS * 100 / 512 + 50, POINTS * 100 / 512 + 50))
    assert found.doubts == ["small face"]


def test_without_a_face_there_is_no_change() -> None:
    for points, where in (((None, POINTS), "before"), ((POINTS, np.empty((0, 5, 2))), "after")):
        found = same_face((face(), face()), points)
        assert np.isnan(found[:3]).all()
        assert found.doubts == [f"no face {where}"]
    outside = POINTS + 600
    assert same_face((face(), face()), (outside, outside)).doubts == ["face at the edge"]


def test_the_largest_face_is_compared_with_the_closest_one() -> None:
    lighter = (165, 118, 92)
    moved = face(lighter, at=(30, 0))
    small = POINTS * 0.4 + [[380, 20]]
    near, far = POINTS + np.array([30, 0]), POINTS * 1.2 - [[200, 20]]
    found = same_face((face(), moved), (np.stack([small, POINTS]), np.stack([far, near])))
    assert found.change == pytest.approx(change(face(), face(lighter)).change, abs=0.1)


def test_points_that_hardly_moved_are_averaged() -> None:
    # A finder that is off by 8 pixels sees the same pixels in both pictures.
    uneven = face(side=0.3)
    assert change(uneven, uneven, POINTS + 8).change == 0
    assert change(uneven, uneven, POINTS + 20).change != 0


def test_a_finder_must_return_five_points() -> None:
    assert points_of_faces(None).shape == (0, 5, 2)
    assert points_of_faces([]).shape == (0, 5, 2)
    assert points_of_faces(POINTS).shape == (1, 5, 2)
    assert points_of_faces([POINTS, POINTS]).shape == (2, 5, 2)
    for wrong in (POINTS[:4], POINTS[:, :1], POINTS * np.nan):
        with pytest.raises(InvalidInputError, match="expected five points"):
            points_of_faces(wrong)


def test_the_packaged_finder_finds_faces_in_photographs() -> None:
    photograph = read_thumbnail("2017878866.jpg")
    (points,) = find_faces(photograph)
    left, right, nose, *mouth = points
    assert left[0] < nose[0] < right[0]
    assert max(left[1], right[1]) < nose[1] < min(mouth[0][1], mouth[1][1])
    # A mirror image has mirrored points, since they are means over both.
    mirrored = photograph.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    (other,) = find_faces(mirrored)
    other = other[[1, 0, 2, 4, 3]]
    assert photograph.width - other[:, 0] == pytest.approx(points[:, 0], abs=0.5)
    assert other[:, 1] == pytest.approx(points[:, 1], abs=0.1)
    assert find_faces(Image.new("RGB", (SIDE, SIDE), (120, 120, 120))).shape == (0, 5, 2)
