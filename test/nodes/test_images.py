"""Pixels of every encoding, against closed forms and against cv_bridge where there is one."""

import sys

import numpy as np
import pytest
from sensor_msgs.msg import Image

from tr_vam_ros.errors import InputError
from tr_vam_ros.nodes.image_reader import ImageReader, why_no_bridge
from tr_vam_ros.nodes.images import array_from_message, rgb_from_message

HEIGHT, WIDTH, PADDING = 6, 8, 10
RANDOM = np.random.default_rng(5)
COLOUR = RANDOM.integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
GREY = COLOUR[:, :, 0]
DEPTH = RANDOM.integers(0, 65536, (HEIGHT, WIDTH), dtype=np.uint16)


def message(encoding: str, pixels: np.ndarray, padding: int = PADDING, big: int = 0) -> Image:
    rows = np.ascontiguousarray(pixels).view(np.uint8).reshape(len(pixels), -1)
    rows = np.concatenate([rows, np.full((len(rows), padding), 99, np.uint8)], axis=1)
    return Image(
        height=len(pixels),
        width=pixels.shape[1],
        encoding=encoding,
        step=rows.shape[1],
        is_bigendian=big,
        data=rows.tobytes(),
    )


def with_alpha(colour: np.ndarray) -> np.ndarray:
    return np.concatenate([colour, RANDOM.integers(0, 256, (HEIGHT, WIDTH, 1), np.uint8)], axis=2)


def chroma_pairs(order: str) -> np.ndarray:
    """Random YUV with one U and V for two pixels, (h, w, 2) bytes in the order of the name."""
    luma = RANDOM.integers(16, 236, (HEIGHT, WIDTH), dtype=np.uint8)
    chroma = RANDOM.integers(16, 241, (HEIGHT, WIDTH), dtype=np.uint8)  # U V U V
    return np.stack([chroma, luma] if order == 'uyvy' else [luma, chroma], axis=2)


def bt601(pixels: np.ndarray, order: str) -> np.ndarray:
    """ITU-R BT.601, video range, written out."""
    y, c = pixels[..., 1 if order == 'uyvy' else 0], pixels[..., 0 if order == 'uyvy' else 1]
    u = np.repeat(c[:, 0::2], 2, axis=1).astype(float) - 128
    v = np.repeat(c[:, 1::2], 2, axis=1).astype(float) - 128
    luma = 1.164 * (y.astype(float) - 16)
    rgb = np.stack([luma + 1.596 * v, luma - 0.813 * v - 0.391 * u, luma + 2.018 * u], axis=2)
    return np.clip(rgb, 0, 255)


ENCODINGS = {
    'rgb8': (COLOUR, COLOUR),
    'bgr8': (COLOUR[:, :, ::-1], COLOUR),
    'rgba8': (with_alpha(COLOUR), COLOUR),
    'bgra8': (with_alpha(COLOUR[:, :, ::-1]), COLOUR),
    'mono8': (GREY, np.stack([GREY] * 3, axis=2)),
}


@pytest.mark.parametrize('padding', [0, PADDING])
@pytest.mark.parametrize('encoding', ENCODINGS)
def test_a_picture_is_the_same_rgb_in_every_encoding_with_and_without_padding(encoding, padding):
    pixels, expected = ENCODINGS[encoding]
    picture = rgb_from_message(message(encoding, pixels, padding))
    assert picture.dtype == np.uint8
    np.testing.assert_array_equal(picture, expected)


@pytest.mark.parametrize(('encoding', 'order'), [('yuv422', 'uyvy'), ('yuv422_yuy2', 'yuyv')])
def test_yuv_is_converted_by_bt_601(encoding, order):
    pixels = chroma_pairs(order)
    picture = rgb_from_message(message(encoding, pixels))
    np.testing.assert_allclose(picture, bt601(pixels, order), atol=2)


@pytest.mark.parametrize(('kind', 'big'), [('<u2', 0), ('>u2', 1)])
def test_depth_keeps_its_16_bits_in_both_byte_orders(kind, big):
    pixels = array_from_message(message('16UC1', DEPTH.astype(kind), PADDING, big))
    assert pixels.dtype == np.uint16 and pixels.dtype.isnative
    np.testing.assert_array_equal(pixels, DEPTH)


@pytest.mark.parametrize(
    ('bad', 'words'),
    [
        (message('16UC1', DEPTH), 'depth, not colour; use the colour topic'),
        (message('bayer_rggb8', GREY), "'bayer_rggb8': not read here.*rgb8, bgr8"),
        (message('', GREY), "encoding ''"),
        (message('yuv422', chroma_pairs('uyvy')[:, :7]), 'width must be even'),
        (Image(height=2, width=2, encoding='rgb8', step=5, data=bytes(99)), 'step 5'),
        (Image(height=2, width=2, encoding='mono8', step=2, data=bytes(3)), '3 bytes'),
    ],
)
def test_what_is_no_picture_is_refused_by_its_name(bad, words):
    with pytest.raises(InputError, match=words):
        rgb_from_message(bad)


def test_cv_bridge_gives_equal_arrays_where_it_passes_its_test():
    reason = why_no_bridge()
    if reason:
        pytest.skip(reason)
    reader = ImageReader()
    assert reader.name == 'cv_bridge'
    for encoding, (pixels, _) in ENCODINGS.items():
        one = message(encoding, pixels)
        np.testing.assert_array_equal(reader.rgb(one), rgb_from_message(one))
    for encoding, order in (('yuv422', 'uyvy'), ('yuv422_yuy2', 'yuyv')):
        one = message(encoding, chroma_pairs(order))
        np.testing.assert_array_equal(reader.rgb(one), rgb_from_message(one))


# ---- whether a cv_bridge is trusted ----------------------------------------------------------------

RIGHT = """
import numpy as np
class CvBridge:
    def imgmsg_to_cv2(self, m, desired_encoding='passthrough'):
        size = 2 if m.encoding == '16UC1' else 1
        kind = np.dtype('u%d' % size).newbyteorder('>' if m.is_bigendian else '<')
        rows = np.frombuffer(bytes(m.data), np.uint8).reshape(m.height, m.step)
        channels = 1 if size == 2 else 3
        part = np.ascontiguousarray(rows[:, :m.width * channels * size]).view(kind)
        if size == 2:
            return part
        part = part.reshape(m.height, m.width, 3)
        return part[:, :, ::-1] if m.encoding == 'bgr8' else part
"""
BRIDGES = {
    'ignores padding': RIGHT.replace('rows[:, :m', 'rows[:, 6:6 + m'),
    'ignores byte order': RIGHT.replace("'>' if m.is_bigendian else '<'", "'<'"),
    'fails': 'class CvBridge:\n    def imgmsg_to_cv2(self, *a): raise TypeError("numpy 1")',
    'cannot be imported': 'import no_such_library_of_ros_1',
    'dies': 'import os; os.abort()',
}


def install(monkeypatch, folder, source: str) -> None:
    (folder / 'cv_bridge.py').write_text(source)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv('PYTHONPATH', ':'.join(path for path in sys.path if path))
    monkeypatch.delitem(sys.modules, 'cv_bridge', raising=False)


@pytest.mark.parametrize('fault', BRIDGES)
def test_a_cv_bridge_that_is_wrong_is_not_used_and_the_reason_is_known(
    monkeypatch, tmp_path, fault
):
    install(monkeypatch, tmp_path, BRIDGES[fault])
    reader = ImageReader()
    assert reader.name.startswith('numpy (cv_bridge fails its test:')
    one = message('bgr8', COLOUR[:, :, ::-1])
    np.testing.assert_array_equal(reader.rgb(one), COLOUR)


def test_a_cv_bridge_that_is_right_is_used_but_does_not_see_broken_messages(monkeypatch, tmp_path):
    install(monkeypatch, tmp_path, RIGHT)
    reader = ImageReader()
    monkeypatch.delitem(sys.modules, 'cv_bridge', raising=False)
    assert reader.name == 'cv_bridge'
    np.testing.assert_array_equal(reader.rgb(message('bgr8', COLOUR[:, :, ::-1])), COLOUR)
    with pytest.raises(InputError, match='depth'):
        reader.rgb(message('16UC1', DEPTH))
    with pytest.raises(InputError, match='3 bytes'):
        reader.rgb(Image(height=2, width=2, encoding='rgb8', step=6, data=bytes(3)))


def test_the_check_says_which_pixels_were_wrong(monkeypatch, tmp_path):
    install(monkeypatch, tmp_path, BRIDGES['ignores byte order'])
    assert 'from 16UC1, rows padded, is_bigendian 1' in why_no_bridge()
