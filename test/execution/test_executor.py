import numpy as np
import pytest

from test.execution.driver import Driver, slow_rows
from tr_vam_ros.embodiments import yam
from tr_vam_ros.errors import InputError
from tr_vam_ros.execution.executor import State
from tr_vam_ros.execution.timeline import SECOND


def executing(**settings) -> Driver:
    """A driver in the middle of executing a chunk, past the first ramp."""
    driver = Driver(**settings)
    driver.begin()
    driver.answer()
    driver.run(1.8)
    assert driver.machine.state is State.EXECUTING
    return driver


def test_disarmed_it_sends_nothing_whatever_comes():
    driver = Driver()
    with pytest.raises(InputError, match='not armed'):
        driver.machine.new_episode(driver.now)
    driver.machine.stop(driver.now)
    driver.run(1.0)
    assert not driver.timelines and not driver.requests and not driver.events


def test_an_episode_goes_request_chunk_motion_next_request():
    driver = Driver(settle=0.2)
    driver.begin()
    assert [e.event for e in driver.events] == ['start']
    assert driver.requests[0].replan_index == 0
    assert driver.requests[0].instruction == 'pick up the apple'
    driver.answer()
    assert driver.machine.state is State.RAMPING
    end_ns = driver.timelines[-1].end_ns
    following = driver.requests[1]
    assert following.replan_index == 1 and following.executed_rows == 30
    assert 0 <= following.not_before_ns - (end_ns + SECOND // 5) < 4_000_000
    driver.run(1.2)
    assert driver.machine.state is State.EXECUTING
    driver.run(1.5)
    assert driver.machine.state is State.WAITING
    assert driver.machine.counters.accepted == 1


def test_the_first_chunk_after_arming_is_approached_for_a_second_the_next_is_not():
    driver = Driver()
    driver.begin()
    driver.answer()
    ramp_and_rows = driver.timelines[-1].end_ns - driver.ros_ns
    driver.run(3.0)
    driver.answer(slow_rows(0.1, driver.pose()))
    rows_alone = driver.timelines[-1].end_ns - driver.ros_ns
    # 29 rows after the ramp (1 s) against 30 rows, both with 0.3 s of tail and 0.06 s of lead
    assert ramp_and_rows / SECOND == pytest.approx(1.0 + 29 / 30 + 0.3 + 0.06, abs=1e-3)
    assert rows_alone / SECOND == pytest.approx(1.3 + 0.06, abs=1e-3)


def test_the_arms_come_to_rest_exactly_on_row_thirty():
    driver = Driver()
    driver.begin()
    rows = slow_rows()
    driver.answer(rows)
    np.testing.assert_allclose(driver.timelines[-1].final_position, rows[29], atol=1e-6)


def test_a_bad_chunk_moves_nothing_and_is_asked_for_again():
    driver = Driver(most_rejected=3)
    driver.begin()
    rows = slow_rows()
    rows[45, 3] = np.nan  # a row that would never be executed
    driver.answer(rows)
    assert not driver.timelines
    assert driver.machine.counters.rejected == 1
    first, again = driver.requests
    assert again.request_id > first.request_id and again.replan_index == 0
    driver.answer()
    assert driver.machine.counters.accepted == 1


def test_a_policy_that_cannot_answer_ends_the_episode_with_its_reason():
    driver = Driver()
    driver.begin()
    driver.answer(actions=[], horizon=0, error='replan failed: out of memory')
    assert driver.events[-1].outcome == 'fault'
    assert driver.events[-1].reason == 'the policy cannot answer: replan failed: out of memory'
    assert driver.machine.state is State.IDLE and not driver.timelines
    driver.machine.new_episode(driver.now)  # the policy lives: the next one may work
    driver.answer()
    assert driver.machine.state in (State.RAMPING, State.EXECUTING)


def test_three_bad_chunks_in_a_row_end_the_episode_with_the_reason():
    driver = Driver(most_rejected=3)
    driver.begin()
    for _ in range(3):
        driver.answer(np.full((50, 14), np.nan))
    assert driver.events[-1].event == 'end' and driver.events[-1].outcome == 'fault'
    assert 'not a finite number' in driver.events[-1].reason
    assert driver.machine.state is State.IDLE


@pytest.mark.parametrize('field', ['request_id', 'episode_key', 'replan_index'])
def test_a_chunk_nobody_asked_for_is_ignored(field):
    driver = Driver()
    driver.begin()
    driver.answer(**{field: 'other' if field == 'episode_key' else 77})
    assert not driver.timelines and driver.machine.counters.rejected == 0


def test_a_repeated_chunk_is_executed_once():
    driver = Driver()
    driver.begin()
    request = driver.requests[-1]
    driver.answer()
    driver.requests.append(request)
    driver.answer()
    assert driver.machine.counters.accepted == 1


def test_a_far_first_row_is_ramped_to_even_in_mid_episode():
    driver = Driver(jump_limit=0.2)
    driver.begin()
    driver.answer()
    driver.run(3.0)
    far = slow_rows(0.1, driver.pose() + np.where(yam.GRIPPERS, 0, 0.5))
    driver.answer(far)
    assert driver.machine.state is State.RAMPING
    velocity, acceleration = driver.timelines[-1].peaks()
    assert (velocity <= yam.velocity_limits() + 1e-9).all()
    assert (acceleration <= yam.acceleration_limits() + 1e-6).all()


def test_a_far_first_row_is_refused_when_so_configured():
    driver = Driver(jump_limit=0.2, jump_action='reject')
    driver.begin()
    driver.answer(slow_rows(0.1, yam.HOME + np.where(yam.GRIPPERS, 0, 0.5)))
    assert not driver.timelines
    assert driver.machine.counters.rejected == 1
    assert 'jump_limit' in driver.machine.reason


def test_stop_brakes_from_full_motion_within_the_caps_and_latches():
    driver = executing()
    _, before = driver.timelines[-1].evaluate(driver.ros_ns)
    assert np.abs(before).max() > 0.2
    sent = len(driver.timelines)
    driver.machine.stop(driver.now)
    assert len(driver.timelines) == sent + 1  # the braking command goes out at once
    brake = driver.timelines[-1]
    longest = np.abs(before).max() / yam.MAX_JOINT_ACCELERATION + 0.05
    assert brake.end_ns - driver.ros_ns <= longest * SECOND
    _, acceleration = brake.peaks()
    assert (acceleration <= yam.acceleration_limits() + 1e-3).all()
    assert driver.events[-1].outcome == 'stopped'
    driver.run(1.0)
    assert driver.machine.state is State.STOPPED
    driver.answer()
    with pytest.raises(InputError, match='stopped'):
        driver.machine.new_episode(driver.now)
    assert len(driver.timelines) == sent + 1


def test_after_a_stop_it_moves_again_only_when_armed_again():
    driver = executing()
    driver.machine.stop(driver.now)
    driver.run(0.5)
    driver.begin()
    driver.answer(slow_rows(0.1, driver.pose()))
    assert driver.machine.state is State.RAMPING


def test_braking_continues_the_curve_that_the_controllers_are_on():
    driver = executing()
    running = driver.timelines[-1]
    driver.machine.stop(driver.now)
    brake = driver.timelines[-1]
    for time_ns in range(driver.ros_ns - 30_000_000, driver.ros_ns + 8_000_000, 1_000_000):
        np.testing.assert_allclose(
            brake.evaluate(time_ns)[0], running.evaluate(time_ns)[0], atol=1e-9
        )


@pytest.mark.parametrize(
    ('break_it', 'words'),
    [
        (lambda d: setattr(d, 'joints_on', False), 'no joint state for'),
        (lambda d: setattr(d, 'images_on', False), 'no new stacked image for'),
        (lambda d: setattr(d.machine.watchdogs, 'duplicate', 'two policies'), 'two policies'),
    ],
)
def test_a_stale_stream_in_motion_stops_both_arms_within_half_a_second(break_it, words):
    driver = executing()
    sent = len(driver.timelines)
    break_it(driver)
    driver.run(0.5)
    assert driver.machine.state is State.HOLDING
    assert words in driver.machine.reason
    assert len(driver.timelines) == sent + 1
    assert driver.events[-1].outcome == 'fault' and words in driver.events[-1].reason


def test_an_arm_off_its_trajectory_stops_both_arms_and_does_not_recover_by_itself():
    driver = executing()
    sent = len(driver.timelines)
    driver.offset = np.where(yam.GRIPPERS, 0, 0.15)
    driver.run(0.3)
    driver.offset = np.zeros(14)
    driver.run(2.0)
    assert driver.machine.state is State.STOPPED
    assert 'off its trajectory' in driver.machine.reason
    assert len(driver.timelines) == sent + 1
    assert driver.events[-1].outcome == 'fault'


def test_joint_states_that_are_not_numbers_stop_both_arms():
    driver = executing()
    driver.joints_on = False
    values = np.zeros(14)
    values[2] = np.nan
    driver.machine.joint_state(driver.now, driver.ros_ns, yam.JOINT_NAMES, values)
    driver.run(0.02)
    assert driver.machine.state is State.HOLDING
    assert 'left_joint3 not finite' in driver.machine.reason


def test_a_fault_that_is_over_leaves_it_armed_and_idle_never_moving():
    driver = executing()
    driver.images_on = False
    driver.run(0.5)
    sent = len(driver.timelines)
    driver.images_on = True
    driver.run(2.0)
    assert driver.machine.state is State.IDLE
    assert len(driver.timelines) == sent


def test_an_arm_whose_controller_rejects_stops_the_other_too():
    driver = executing(expects_answers=True, accept_timeout=10.0)
    driver.machine.trajectory_answer(driver.now, 'left', True, '')
    driver.machine.trajectory_answer(driver.now, 'right', False, 'ends in the past')
    assert driver.machine.state is State.STOPPED
    assert 'right controller rejected' in driver.machine.reason


def test_a_controller_that_does_not_answer_stops_both_arms():
    driver = Driver(expects_answers=True, accept_timeout=0.05)
    driver.begin()
    driver.answer()
    driver.machine.trajectory_answer(driver.now, 'left', True, '')
    driver.run(0.1)
    assert driver.machine.state is State.STOPPED
    assert 'right controller did not answer' in driver.machine.reason


def test_a_standing_arm_passes_the_tracking_check():
    driver = Driver()
    driver.offset = np.where(yam.GRIPPERS, 0, 0.05)
    driver.begin()
    driver.answer(slow_rows(0.0, driver.pose()))
    driver.run(2.0)
    assert driver.machine.state not in (State.HOLDING, State.STOPPED)


def test_it_does_not_arm_without_fresh_streams():
    driver = Driver()
    driver.joints_on = False
    driver.run(0.5)
    with pytest.raises(InputError, match='no joint state'):
        driver.machine.arm(driver.now)
    assert driver.machine.state is State.DISARMED


def test_joint_states_from_the_future_are_refused():
    driver = Driver()
    driver.joints_on = False
    driver.machine.joint_state(
        driver.now, driver.ros_ns + SECOND, yam.JOINT_NAMES, yam.ros_from_model(yam.HOME)
    )
    with pytest.raises(InputError, match='synchronise'):
        driver.machine.arm(driver.now)


def test_an_instruction_in_mid_motion_brakes_and_begins_a_new_episode():
    driver = executing()
    key = driver.machine.new_episode(driver.now, 'place it in the bag')
    assert [e.event for e in driver.events] == ['start', 'end', 'start']
    assert driver.events[1].outcome == 'new_instruction'
    assert key == driver.events[2].key != driver.events[0].key
    assert driver.requests[-1].instruction == 'place it in the bag'
    assert driver.requests[-1].not_before_ns >= driver.timelines[-1].end_ns


@pytest.mark.parametrize('text', ['', '   ', 'x' * 10_000])
def test_an_instruction_that_says_nothing_or_too_much_leaves_the_episode_running(text):
    driver = executing()
    events = len(driver.events)
    with pytest.raises(InputError, match='instruction'):
        driver.machine.new_episode(driver.now, text)
    assert len(driver.events) == events
    assert driver.machine.state is State.EXECUTING


def test_an_episode_ends_when_its_time_is_over():
    driver = Driver(episode_seconds=4.0, settle=0.2)
    driver.begin()
    for _ in range(5):
        if driver.events[-1].event == 'end':
            break
        driver.answer(slow_rows(0.01, driver.pose()))
        driver.run(2.7)
    assert [e.event for e in driver.events] == ['start', 'closing', 'end']
    assert driver.events[-1].outcome == 'time_out'
    assert driver.machine.state is State.IDLE


def test_success_ends_the_episode_when_the_motion_is_over():
    driver = executing()
    driver.machine.success(driver.now, driver.machine.episodes.key, 'apple in the bin')
    assert driver.machine.state is State.EXECUTING
    driver.run(1.5)
    assert driver.events[-1].outcome == 'success'
    assert driver.events[-1].reason == 'apple in the bin'


def test_a_policy_that_never_answers_is_asked_again_and_then_given_up():
    driver = Driver(chunk_timeout=5.0, request_repeat=1.0)
    driver.begin()
    driver.run(4.5)
    assert len({r.request_id for r in driver.requests}) == 1 and len(driver.requests) >= 4
    driver.run(1.0)
    assert driver.events[-1].outcome == 'fault' and 'no chunk' in driver.events[-1].reason


def test_a_clock_that_jumps_back_ends_the_episode_and_disarms():
    driver = executing()
    driver.ros_ns -= 5 * SECOND
    driver.machine.tick(driver.now)
    assert driver.machine.state is State.DISARMED
    assert 'jumped back' in driver.events[-1].reason


def test_home_moves_slowly_to_the_home_pose():
    driver = executing()
    driver.machine.home(driver.now)
    driver.run(4.0)
    np.testing.assert_allclose(driver.pose(), yam.HOME, atol=1e-9)
    velocity, _ = driver.timelines[-1].peaks()
    assert (velocity <= yam.velocity_limits()).all()
    assert driver.machine.state is State.IDLE


def test_in_lockstep_stamps_do_not_depend_on_when_anything_arrives():
    sent = []
    for delay in (0.0, 0.37):
        driver = Driver(lockstep=True, episode_seconds=10.0)
        driver.begin()
        for index in range(3):
            driver.ros_ns = driver.requests[-1].not_before_ns
            driver.run(delay)
            driver.answer(slow_rows(0.1 + 0.01 * index, driver.machine.timeline.final_position))
            driver.ros_ns = driver.machine.timeline.end_ns
            driver.machine.tick(driver.now)
        sent.append((driver.requests, [t.times.tolist() for t in driver.timelines]))
    assert sent[0] == sent[1]


def test_every_sent_timeline_begins_before_it_is_sent():
    driver = executing()
    driver.machine.stop(driver.now)
    for timeline in driver.timelines:
        assert timeline.times[0] < driver.ros_ns


def test_a_pause_brakes_and_keeps_the_episode_and_its_time():
    driver = executing(episode_seconds=8.0)
    key, before = driver.machine.episodes.key, driver.requests[-1]
    driver.machine.pause(driver.now)
    assert driver.machine.state is State.PAUSED
    brake_s = (driver.timelines[-1].end_ns - driver.ros_ns) / SECOND
    assert brake_s < 0.2
    driver.answer()  # what was under way is no longer wanted
    driver.run(20.0)
    assert driver.machine.state is State.PAUSED and driver.machine.episodes.key == key
    driver.machine.resume(driver.now)
    again = driver.requests[-1]
    assert driver.machine.state is State.WAITING
    assert (again.replan_index, again.episode_key) == (before.replan_index, key)
    assert again.request_id > before.request_id and again.not_before_ns > driver.ros_ns
    driver.answer(slow_rows(0.1, driver.pose()))
    assert driver.machine.state in (State.RAMPING, State.EXECUTING)
    assert not [event for event in driver.events if event.event == 'end']


def test_a_pause_while_the_policy_thinks_drops_its_answer():
    driver = Driver()
    driver.begin()
    driver.machine.pause(driver.now)
    driver.answer()
    assert not driver.timelines and driver.machine.state is State.PAUSED
    driver.machine.resume(driver.now)
    driver.answer()
    assert driver.timelines


def test_without_an_episode_there_is_nothing_to_pause_or_resume():
    driver = Driver()
    driver.machine.arm(driver.now)
    with pytest.raises(InputError, match='no episode is running'):
        driver.machine.pause(driver.now)
    with pytest.raises(InputError, match='not paused'):
        driver.machine.resume(driver.now)


def test_stop_works_while_paused():
    driver = executing()
    driver.machine.pause(driver.now)
    driver.machine.stop(driver.now)
    assert driver.machine.state is State.STOPPED
    assert driver.events[-1].outcome == 'stopped'


@pytest.mark.parametrize('success, outcome', [(True, 'success'), (False, 'failure')])
def test_the_operators_mark_ends_the_episode_with_the_judgement(success, outcome):
    driver = executing()
    driver.machine.mark(driver.now, success)
    assert (driver.events[-1].event, driver.events[-1].outcome) == ('end', outcome)
    assert driver.events[-1].reason == 'marked by the operator'
    assert driver.machine.state is State.IDLE
    driver.run(1.0)
    assert driver.ros_ns > driver.timelines[-1].end_ns  # the arms have come to rest


def test_an_episode_that_has_ended_can_be_judged_afterwards():
    driver = Driver(episode_seconds=1.0)
    driver.begin()
    driver.run(1.5)
    assert driver.events[-1].outcome == 'time_out'
    ended = driver.events[-1]
    driver.machine.mark(driver.now, True)
    judged = driver.events[-1]
    assert (judged.key, judged.stamp_ns, judged.event) == (ended.key, ended.stamp_ns, 'end')
    assert judged.outcome == 'success'


def test_before_the_first_episode_there_is_nothing_to_mark():
    driver = Driver()
    with pytest.raises(InputError, match='no episode has run'):
        driver.machine.mark(driver.now, True)


def test_a_chunk_that_the_guard_refuses_moves_nothing_and_is_asked_for_again():
    asked = []

    def guard(path):
        asked.append(path)
        return '' if len(asked) > 1 else 'the left arm would hit the table'

    driver = Driver()
    driver.machine.guard = guard
    driver.begin()
    driver.answer()
    assert not driver.timelines and driver.machine.counters.rejected == 1
    assert driver.machine.reason == 'the left arm would hit the table'
    driver.answer()
    assert driver.timelines
    # It sees the path from where the arms are, through the ramp, to the last executed row.
    np.testing.assert_allclose(asked[1][0], yam.HOME)
    np.testing.assert_allclose(asked[1][-1], driver.timelines[-1].final_position)


def test_braking_is_never_asked_of_the_guard():
    driver = executing()
    driver.machine.planner._guard = lambda path: 'no'
    driver.machine.stop(driver.now)
    assert driver.timelines[-1].end_ns - driver.ros_ns < SECOND // 2


def test_a_dry_run_previews_each_chunk_from_where_the_arms_stand():
    driver = Driver(dry_run=True)
    driver.pose = lambda: yam.HOME + driver.offset  # they never move
    driver.begin()
    for _ in range(3):
        driver.answer(slow_rows(0.3))
        np.testing.assert_allclose(driver.timelines[-1].positions[0], yam.HOME)
        driver.run(3.0)
    assert driver.machine.state is State.WAITING
    assert driver.machine.counters.accepted == 3
