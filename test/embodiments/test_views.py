import cv2
import numpy as np
import pytest

from tr_vam_ros.embodiments.views import RESIZE_MODES, fit

WIDTH, HEIGHT = 224, 168


def picture(height: int, width: int) -> np.ndarray:
    """Columns and rows tell where a pixel came from."""
    red = np.broadcast_to(np.linspace(0, 255, width), (height, width))
    green = np.broadcast_to(np.linspace(0, 255, height)[:, None], (height, width))
    return np.stack([red, green, np.full_like(red, 200)], axis=2).astype(np.uint8)


@pytest.mark.parametrize('mode', RESIZE_MODES)
def test_a_4_to_3_picture_is_averaged_down_the_same_in_every_mode(mode):
    random = np.random.default_rng(0).integers(0, 256, (336, 448, 3), dtype=np.uint8)
    averaged = random.reshape(168, 2, 224, 2, 3).mean(axis=(1, 3))
    np.testing.assert_allclose(fit(random, WIDTH, HEIGHT, mode), averaged, atol=1)


@pytest.mark.parametrize('mode', RESIZE_MODES)
def test_a_picture_of_the_views_size_is_not_touched(mode):
    small = picture(HEIGHT, WIDTH)
    assert fit(small, WIDTH, HEIGHT, mode) is small


def test_stretch_keeps_every_edge_of_a_wide_picture():
    view = fit(picture(720, 1280), WIDTH, HEIGHT, 'stretch')
    assert view[0, 0, 0] < 3 and view[0, -1, 0] > 252
    assert view[0, 0, 1] < 3 and view[-1, 0, 1] > 252


def test_crop_keeps_the_middle_of_a_wide_picture_undistorted():
    wide = picture(720, 1280)
    expected = cv2.resize(wide[:, 160:1120], (WIDTH, HEIGHT), interpolation=cv2.INTER_AREA)
    np.testing.assert_array_equal(fit(wide, WIDTH, HEIGHT, 'crop'), expected)


def test_pad_keeps_all_of_a_wide_picture_between_black_bars():
    view = fit(picture(720, 1280), WIDTH, HEIGHT, 'pad')
    # 224 / 1280 * 720 = 126 rows, 21 black ones above and below.
    assert not view[:21].any() and not view[-21:].any()
    assert (view[21:-21, :, 2] == 200).all()
    assert view[21, 0, 0] < 3 and view[21, -1, 0] > 252


@pytest.mark.parametrize('size', [(1280, 720), (600, 600), (1, 1), (100, 100), (2000, 3)])
@pytest.mark.parametrize('mode', RESIZE_MODES)
def test_any_picture_gets_the_views_size(mode, size):
    assert fit(picture(*size), WIDTH, HEIGHT, mode).shape == (HEIGHT, WIDTH, 3)
