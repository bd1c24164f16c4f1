"""`tr-vam imagine` as a user calls it, on a picture small enough to be quick."""

import json

import av
import cv2
import numpy as np
import pytest

from tr_vam_ros.cli.imagine import main
from tr_vam_ros.cli.picture_strip import evenly_spaced, picture_strip, read_picture
from tr_vam_ros.errors import InputError
from tr_vam_ros.vam import VamConfig, VideoActionPolicy

SMALL = ('--set', 'image.height=40', 'image.width=96')
WORDS = 'put the red block into the bin'


@pytest.fixture
def picture(tmp_path):
    cells = np.random.default_rng(0).integers(0, 256, (5, 12, 3)).astype(np.uint8)
    path = tmp_path / 'picture.png'
    cv2.imwrite(str(path), cells.repeat(8, axis=0).repeat(8, axis=1))
    return path


@pytest.fixture
def in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def decoded(path):
    with av.open(str(path)) as container:
        frames = list(container.decode(video=0))
        return [frame.to_ndarray(format='rgb24') for frame in frames], [f.time for f in frames]


def test_a_video_and_a_strip_are_made_and_reported(in_folder, picture, capsys):
    code = main([
        str(picture), WORDS, '--frames', '3', '--json', 'out.json', '--strip-pictures', '3', *SMALL,
    ])  # fmt: skip
    output = capsys.readouterr().out
    assert code == 0
    assert 'Open Model License' in output and 'guardrail: none is installed' in output
    summary = f'imagined 3 latent frames, 9 pictures, 0.8 s of "{WORDS}"'
    assert output.splitlines()[-1].startswith(summary)
    assert 'weights: random, preset tiny_yam, seed 0' in output
    frames, times = decoded(in_folder / 'imagined' / 'imagined.mp4')
    assert len(frames) == 9 and frames[0].shape == (80, 192, 3)
    np.testing.assert_allclose(times, np.arange(9) / 10, atol=1e-3)
    strip = cv2.imread(str(in_folder / 'imagined' / 'strip.png'))
    assert strip.shape == (4 * (20 + 40), 96, 3)
    assert np.array_equal(strip[20:60], cv2.imread(str(picture)))  # the observation comes first
    # Of all pictures of the video, those in the strip are the first, the middle and the last.
    small = np.array([cv2.resize(f, (96, 40), interpolation=cv2.INTER_AREA) for f in frames])
    for top, index in ((80, 0), (140, 4), (200, 8)):
        shown = strip[top : top + 40, :, ::-1].astype(int)
        assert np.abs(small - shown).mean(axis=(1, 2, 3)).argmin() == index
    report = json.loads((in_folder / 'out.json').read_text())
    assert (report['latent_frames'], report['video_frames'], report['size']) == (3, 9, [96, 40])
    assert report['guardrail'] is False and report['seconds']['total'] > 0


def test_named_files_are_written_and_no_folder_is_made(in_folder, picture):
    main([str(picture), WORDS, '--frames', '1', '--video', 'v.mp4', '--strip', 's.png', *SMALL])
    assert (in_folder / 'v.mp4').exists() and (in_folder / 's.png').exists()
    assert not (in_folder / 'imagined').exists()


def test_the_seed_decides_and_the_noise_is_that_of_the_named_replan(
    in_folder, picture, monkeypatch
):
    seen = []

    def imagine(backbone, image, context, frames, noise, _progress):
        seen.append(noise)
        return np.zeros((1, 40, 96, 3), np.uint8)

    monkeypatch.setattr('tr_vam_ros.vam.imagination.imagine', imagine)
    for names in ([], ['--key', 'scene1/ep3', '--replan', '2'], ['--seed', '1']):
        main([str(picture), WORDS, *names, *SMALL])
    assert not any((seen[0] == other).all() for other in seen[1:])
    # The policy itself, asked what noise it rolls out.
    config = VamConfig.from_yaml('tiny_yam').changed({'image': {'height': 40, 'width': 96}})
    policy = VideoActionPolicy.from_config(config, guidance='off')
    rolled = []

    def rollout(observation, noise, context):
        rolled.append(noise)
        return original(observation, noise, context)

    original, policy.backbone.rollout = policy.backbone.rollout, rollout
    policy.reset_episode(WORDS, 'scene1/ep3')
    home = np.array(config.statistics.proprio.mean, np.float32)
    policy.replan(read_picture(picture), home, index=2)
    assert (seen[1][:, :, :5] == rolled[0]).all()


def test_a_picture_of_another_size_is_refused_with_both_sizes_or_stretched(
    in_folder, picture, capsys
):
    large = np.zeros((480, 640, 3), np.uint8)
    large[:, 320:, 2] = 200  # black and red
    cv2.imwrite('large.png', large)
    with pytest.raises(InputError, match='large.png: is 640x480, tiny_yam takes 96x40.*--resize'):
        main(['large.png', WORDS, *SMALL])
    assert not (in_folder / 'imagined').exists()
    assert main(['large.png', WORDS, '--resize', '--frames', '1', *SMALL]) == 0
    expected = np.zeros((40, 96, 3), np.uint8)
    expected[:, 48:, 2] = 200
    assert np.array_equal(cv2.imread('imagined/strip.png')[20:60], expected)


@pytest.mark.parametrize('arguments, message', [
    (['missing.png', WORDS], 'missing.png: cannot be read'),
    (['text.png', WORDS], 'text.png: is no picture'),
    (['empty.png', WORDS], 'empty.png: is no picture'),
    (['picture.png', ' '], 'instruction'),
    (['picture.png', WORDS, '--frames', '0'], 'frames 0: must be 1 to 128'),
    (['picture.png', WORDS, '--frames', '129'], 'frames 129'),
    (['picture.png', WORDS, '--video', 'v.avi'], 'v.avi: the name must end in .mp4'),
    (['picture.png', WORDS, '--strip', 'no/s.png'], 'no/s.png: its folder does not exist'),
    (['picture.png', WORDS, '--out', 'picture.png'], 'out picture.png: is a file'),
    (['picture.png', WORDS, '--json', '.'], 'is a folder; name a file'),
    (['picture.png', WORDS, '--fps', '0'], 'fps 0'),
    (['picture.png', WORDS, '--preset', 'unheard'], 'unheard'),
    (['picture.png', WORDS, '--precision', 'int4'], 'int4'),
    (['picture.png', WORDS, '--checkpoint', 'nowhere'], 'checkpoint nowhere: is no folder'),
    (['picture.png', WORDS, '--checkpoint', '.'], 'config.json: cannot be read'),
])
def test_a_wrong_input_is_an_input_error_and_nothing_is_written(
    in_folder, picture, arguments, message
):
    (in_folder / 'text.png').write_text('no picture')
    (in_folder / 'empty.png').touch()
    before = sorted(in_folder.iterdir())
    settings = () if '--checkpoint' in arguments else SMALL
    with pytest.raises(InputError, match=message) as error:
        main([*arguments, *settings])
    assert '\n' not in str(error.value)
    assert sorted(in_folder.iterdir()) == before


def write_config(folder, preset, changes=None):
    config = VamConfig.from_yaml(preset)
    config = config.changed({'image': {'height': 40, 'width': 96}, **(changes or {})})
    (folder / 'config.json').write_text(json.dumps(config.to_mapping()))
    return config


def test_cosmos_weights_are_decoded_only_when_the_licence_note_was_accepted(
    in_folder, picture, capsys, monkeypatch
):
    text = {'encoder': 'cosmos_reason1'}
    config = write_config(in_folder, 'tiny_yam', {'text': text})
    arguments = [str(picture), WORDS, '--frames', '1', '--checkpoint', '.']
    with pytest.raises(InputError, match='Cosmos.*--accept-licence-note'):
        main(arguments)
    assert 'Open Model License' in capsys.readouterr().out
    assert not (in_folder / 'imagined').exists()

    def from_pretrained(folder, *, seed, precision):
        assert (str(folder), seed, precision) == ('.', 0, 'float32')
        return VideoActionPolicy.from_config(config.changed({'text': {'encoder': 'words'}}))

    monkeypatch.setattr(VideoActionPolicy, 'from_pretrained', from_pretrained, raising=False)
    assert main([*arguments, '--accept-licence-note']) == 0
    write_config(in_folder, 'tiny_yam')  # no Cosmos weights: no licence of theirs
    assert main(arguments) == 0


GUARDRAIL = '''
class CosmosSafetyChecker:
    def to(self, device):
        pass
    def check_text_safety(self, text):
        return 'knife' not in text
    def check_video_safety(self, video):
        assert video.dtype == 'uint8' and video.ndim == 4
        return None if len(video) > 1 else video * 0
'''


@pytest.fixture
def guardrail(in_folder, monkeypatch):
    import sys

    (in_folder / 'cosmos_guardrail.py').write_text(GUARDRAIL)
    monkeypatch.syspath_prepend(str(in_folder))
    yield in_folder / 'cosmos_guardrail.py'
    sys.modules.pop('cosmos_guardrail', None)


def test_an_installed_guardrail_changes_or_blocks_what_is_shown(
    in_folder, picture, guardrail, capsys
):
    with pytest.raises(InputError, match='refused by the guardrail; choose another'):
        main([str(picture), 'hand over the knife', '--frames', '1', *SMALL])
    with pytest.raises(InputError, match='refused by the guardrail; nothing was written'):
        main([str(picture), WORDS, '--frames', '2', *SMALL])
    assert not (in_folder / 'imagined').exists()
    assert main([str(picture), WORDS, '--frames', '1', *SMALL]) == 0
    assert (cv2.imread('imagined/strip.png')[80:] == 0).all()  # as it came from the guardrail
    assert 'cosmos_guardrail checks' in capsys.readouterr().out


def test_a_guardrail_that_does_not_start_lets_nothing_pass(in_folder, picture, guardrail):
    guardrail.write_text('raise OSError("no weights")')
    with pytest.raises(InputError, match='guardrail.*does not start.*no weights'):
        main([str(picture), WORDS, '--frames', '1', *SMALL])
    assert not (in_folder / 'imagined').exists()


def test_strip_pictures_are_evenly_spaced_with_both_ends():
    assert evenly_spaced(17, 5) == [0, 4, 8, 12, 16]
    assert evenly_spaced(17, 1) == [0]
    assert evenly_spaced(1, 6) == [0]
    assert evenly_spaced(3, 6) == [0, 1, 2]


def test_a_strip_enlarges_narrow_pictures_to_the_widest():
    wide, narrow = np.zeros((10, 100, 3), np.uint8), np.full((10, 50, 3), 255, np.uint8)
    strip = picture_strip([('a', wide), ('b', narrow)])
    assert strip.shape == (20 + 10 + 20 + 20, 100, 3) and (strip[50:] == 255).all()
