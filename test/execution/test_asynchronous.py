"""Chunks that take over in motion: played by the restated Jazzy controllers, on arms that lag.

The oracle is the path itself: a policy that follows one smooth path must be executed as that path,
whatever inference takes. A row skipped too few or too many would leave it.
"""

import numpy as np
import pytest

from tr_vam_ros.bench.playback import Playback, Reference
from tr_vam_ros.embodiments import yam
from tr_vam_ros.execution.episodes import Chunk
from tr_vam_ros.execution.executor import State
from tr_vam_ros.execution.settings import Settings
from tr_vam_ros.execution.timeline import SECOND

MINUTE = 60.0


def played(seconds: float = MINUTE, seed: int = 1, **options) -> Playback:
    settings = {'mode': 'async', 'episode_seconds': 0.0, 'instruction': 'follow'}
    settings |= {k: options.pop(k) for k in list(options) if k in Settings.__slots__}
    reference = Reference(seed, options.pop('reference_speed', 0.9))
    playback = Playback(Settings(**settings), reference, **options)
    playback.begin()
    playback.run(seconds)
    return playback


def random_inference(low: float, high: float, seed: int = 0):
    seconds = np.random.default_rng(seed).uniform(low, high, 1000)
    return lambda n: float(seconds[n])


def distances(playback: Playback) -> np.ndarray:
    """How far, rad, each fifth command is from the path."""
    reference, place, found = playback.reference, 0.0, []
    for command in playback.recording.commands[::5]:
        place, distance = reference.nearest(yam.model_from_ros(command), place)
        found.append(distance)
    return np.array(found)


@pytest.mark.parametrize('seed, request_lead', [(1, 18), (2, 10)])
def test_inference_of_up_to_half_a_second_never_shows_in_the_motion(seed, request_lead):
    """With a lead of 10 rows half of the chunks come too late for row 30 and take over later."""
    playback = played(
        seed=seed, request_lead=request_lead, inference=random_inference(0.0, 0.5, seed)
    )
    recording, counters = playback.recording, playback.machine.counters
    assert counters.underruns == 0 and counters.rejected == 0 and counters.capped == 0
    assert not recording.refusals
    assert len(recording.skipped) > 60
    assert recording.skipped == recording.executed
    assert (max(recording.skipped) > request_lead + 5) == (request_lead == 10)
    assert recording.largest_velocity_change() <= 0.02
    assert np.abs(recording.velocities[:, ~yam.GRIPPERS]).max() > 0.8
    assert distances(playback).max() < 2e-3


def test_chunks_that_disagree_by_twenty_milliradians_are_faded_into_each_other():
    playback = played(
        inference=random_inference(0.0, 0.5), disagree=lambda n: 0.01 * (-1) ** n
    )
    assert playback.recording.largest_velocity_change() <= 0.06
    assert playback.machine.counters.underruns == 0
    assert 0.005 < distances(playback).max() <= 0.011


def test_a_lost_chunk_is_asked_for_again_before_the_arms_must_rest():
    playback = played(
        inference=random_inference(0.0, 0.5), lose=lambda n: n % 7 == 3
    )
    assert playback.machine.counters.underruns == 0
    assert playback.recording.largest_velocity_change() <= 0.15
    assert distances(playback).max() < 2e-3


def test_inference_that_is_too_slow_lets_the_arms_rest_and_go_on_from_there():
    playback = played(30.0, inference=random_inference(1.4, 2.0))
    counters, recording = playback.machine.counters, playback.recording
    assert counters.underruns >= 5 and counters.accepted > counters.underruns
    assert recording.largest_velocity_change() <= 0.15
    assert distances(playback).max() < 2e-3  # nothing is skipped that was not executed
    still = np.abs(recording.velocities).max(axis=1) < 1e-9
    assert 0.1 < still.mean() < 0.9


def test_a_chunk_that_is_far_off_in_motion_is_approached_from_standstill():
    playback = played(
        20.0, inference=lambda n: 0.2, disagree=lambda n: 0.4 if n == 10 else 0.0
    )
    assert playback.machine.counters.rejected == 0
    assert playback.recording.largest_velocity_change() <= 0.06
    assert playback.machine.state is not State.IDLE
    assert playback.machine.counters.underruns == 0  # it rested on purpose
    # The far chunk was never executed; coming to rest leaves a curved path a little.
    assert distances(playback).max() < 0.01


def test_a_far_chunk_is_refused_in_motion_when_so_configured():
    playback = played(
        20.0, inference=lambda n: 0.2, jump_action='reject',
        disagree=lambda n: 0.4 if n == 10 else 0.0,
    )
    assert playback.machine.counters.rejected == 1
    assert playback.recording.largest_velocity_change() <= 0.06
    assert distances(playback).max() < 2e-3


@pytest.mark.parametrize('speed', [2.5, 6.0])
def test_chunks_faster_than_the_caps_are_slowed_down_or_cut_short(speed):
    playback = played(20.0, reference_speed=speed, inference=random_inference(0.0, 0.3))
    velocities = playback.recording.velocities[:, ~yam.GRIPPERS]
    accelerations = np.diff(velocities, axis=0) / 0.004
    assert playback.machine.counters.capped > 0
    assert np.abs(velocities).max() <= yam.MAX_JOINT_VELOCITY * 1.001
    assert np.abs(accelerations).max() <= yam.MAX_JOINT_ACCELERATION * 1.05
    assert playback.machine.counters.accepted > 5


def test_the_episode_ends_at_rest_when_its_time_is_over():
    playback = played(14.0, episode_seconds=10.0, inference=lambda n: 0.1)
    (end,) = [event for event in playback.events if event.event == 'end']
    assert end.outcome == 'time_out'
    assert playback.machine.counters.underruns == 0
    assert playback.recording.largest_velocity_change() <= 0.02
    assert np.abs(playback.recording.velocities[-1]).max() == 0


def test_requests_carry_the_rows_that_will_be_executed_before_the_next_chunk_can_be():
    playback = played(10.0, inference=lambda n: 0.3)
    asked = [(now, request) for now, request in playback.asked if len(request.frozen_rows)]
    assert len(asked) > 10
    for now_ns, request in asked:
        # The executor looks at 50 Hz, so it asks up to 0.6 rows late.
        assert playback.machine.settings.request_lead - len(request.frozen_rows) in (0, 1)
        start = (now_ns - playback.start_ns) // 4_000_000
        later = start + np.round(
            np.arange(1, len(request.frozen_rows) + 1) * yam.ROW_PERIOD / 0.004
        ).astype(int)
        inside = later < len(playback.recording.commands)
        executed = yam.model_from_ros(playback.recording.commands[later[inside]])
        # A command of 250 Hz is up to 4 ms off the row's time.
        assert np.abs(executed - request.frozen_rows[inside]).max() < 0.004 * 2 * 0.9


def test_a_chunk_observed_in_the_future_moves_nothing():
    playback = played(3.0, inference=lambda n: 0.1)
    playback.machine.counters.rejected = 0
    sent = playback.machine.timeline
    send_chunk = playback.machine.chunk
    playback.machine.state, playback.machine._awaiting = State.EXECUTING, True
    request = playback.machine.episodes.again()
    rows = playback.reference(np.arange(1, 51) * yam.ROW_PERIOD)
    send_chunk(
        playback._now,
        Chunk(
            request.request_id, request.episode_key, request.replan_index, yam.JOINT_NAMES, 50,
            yam.ROW_PERIOD, rows.ravel(), observed_ns=playback.now_ns + SECOND,
        ),
    )
    assert playback.machine.counters.rejected == 1
    assert '1.00 s ahead of the clock' in playback.machine.reason
    assert playback.machine.timeline is sent


def test_an_executor_held_up_for_a_whole_chunk_asks_for_a_new_one_and_repeats_no_row():
    playback = played(3.0, inference=lambda n: 0.1)
    while playback.machine._awaiting:
        playback.run(0.004)
    known = playback.asked[-1][1]
    playback.now_ns = playback.machine.timeline.end_ns + SECOND // 2  # nothing ran meanwhile
    playback._look()
    playback.machine.tick(playback._now)
    assert playback.machine.state is State.WAITING
    assert playback.asked[-1][1].replan_index == known.replan_index + 1
    assert playback.asked[-1][1].not_before_ns == playback.now_ns
    assert len(playback.asked[-1][1].frozen_rows) == 0
