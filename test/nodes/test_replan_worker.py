"""The request protocol, with a policy whose speed the test decides."""

import re
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from test.ros import wait_for
from tr_vam_ros.errors import InputError
from tr_vam_ros.nodes.observations import Observations
from tr_vam_ros.nodes.replan_worker import ReplanWorker

SECOND = 1_000_000_000


class SlowPolicy:
    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.calls, self.resets, self.committed = [], [], []
        self.fail_next: Exception | None = None

    def reset_episode(self, instruction, key):
        self.resets.append((instruction, key))

    def replan(self, image, proprio, *, index, commit, frozen_rows):
        assert commit is False
        self.frozen_rows = frozen_rows
        self.calls.append((index, float(image[0, 0, 0]), proprio))
        self.gate.wait(10)
        if self.fail_next:
            error, self.fail_next = self.fail_next, None
            raise error
        return SimpleNamespace(index=index, warning='')

    def commit(self, replan):
        self.committed.append(replan.index)


class Rig:
    def __init__(self) -> None:
        self.policy, self.observations = SlowPolicy(), Observations()
        self.published, self.reports, self.again, self.refused = [], [], [], []
        self.now_ns = SECOND
        self.worker = ReplanWorker(
            self.policy,
            self.observations,
            not_before_ns=lambda r: r.not_before,
            now_ns=lambda: self.now_ns,
            publish=self._publish,
            refuse=lambda request, observation, why: self.refused.append(
                (request.request_id, why)
            ),
            report=self.reports.append,
            patience_ns=SECOND // 2,
        )
        self.worker.start()

    def _publish(self, request, observation, replan, again) -> None:
        self.published.append((request.request_id, observation.stamp_ns))
        self.again.append(again)

    def observe(self, stamp_ns: int) -> None:
        self.observations.add_image(stamp_ns, np.full((2, 2, 3), 7, np.uint8))
        self.observations.add_joints(stamp_ns, np.zeros(14))

    def ask(
        self, request_id=1, key='e0', index=0, not_before=SECOND, frozen_count=0, frozen_rows=()
    ) -> None:
        self.worker.submit(
            SimpleNamespace(
                request_id=request_id,
                episode_key=key,
                replan_index=index,
                instruction='go',
                not_before=not_before,
                frozen_count=frozen_count,
                frozen_rows=frozen_rows,
            )
        )


@pytest.fixture
def rig():
    rig = Rig()
    yield rig
    rig.policy.gate.set()
    rig.worker.stop()


def test_it_waits_for_an_observation_made_after_the_request_says(rig):
    rig.observe(SECOND - 1)
    rig.ask(not_before=SECOND)
    rig.observe(SECOND + 5)
    wait_for(lambda: rig.published, 'an answer')
    assert rig.published == [(1, SECOND + 5)]


def test_a_newer_request_replaces_the_one_under_way_and_its_result_is_dropped(rig):
    rig.policy.gate.clear()
    rig.observe(SECOND)
    rig.ask(1)
    wait_for(lambda: len(rig.policy.calls) == 1, 'the first replan begins')
    rig.ask(2)
    rig.policy.gate.set()
    wait_for(lambda: rig.published, 'an answer')
    assert [r for r, _ in rig.published] == [2]
    assert rig.policy.committed == [0]


def test_after_cancel_nothing_is_published_and_no_baseline_committed(rig):
    rig.policy.gate.clear()
    rig.observe(SECOND)
    rig.ask(1)
    wait_for(lambda: rig.policy.calls, 'the replan begins')
    rig.worker.cancel()
    rig.policy.gate.set()
    rig.ask(2, key='e1')
    wait_for(lambda: rig.published, 'the answer to the next request')
    assert [r for r, _ in rig.published] == [2]
    assert rig.policy.committed == [0]


def test_a_repeated_request_is_computed_once_and_answered_again(rig):
    rig.observe(SECOND)
    rig.ask(1)
    wait_for(lambda: len(rig.published) == 1, 'an answer')
    rig.ask(1)
    wait_for(lambda: len(rig.published) == 2, 'the same answer again')
    assert len(rig.policy.calls) == 1
    assert rig.again == [False, True]


def test_a_new_episode_key_resets_the_policy_once(rig):
    rig.observe(SECOND)
    for request_id, key, index in ((1, 'e0', 0), (2, 'e0', 1), (3, 'e1', 0)):
        rig.ask(request_id, key, index)
        wait_for(lambda: len(rig.published) == request_id, 'an answer')
    assert rig.policy.resets == [('go', 'e0'), ('go', 'e1')]


def test_a_change_of_the_policy_waits_for_the_next_episode(rig):
    rig.observe(SECOND)
    order = []
    rig.policy.reset_episode = lambda instruction, key: order.append(key)
    rig.ask(1, 'e0', 0)
    wait_for(lambda: len(rig.published) == 1, 'an answer')
    rig.worker.before_next_episode(lambda: order.append('dropped'))
    rig.worker.before_next_episode(lambda: order.append('changed'))
    rig.ask(2, 'e0', 1)
    wait_for(lambda: len(rig.published) == 2, 'an answer')
    for request_id, key in ((3, 'e1'), (4, 'e2')):
        rig.ask(request_id, key, 0)
        wait_for(lambda: len(rig.published) == request_id, 'an answer')
    assert order == ['e0', 'changed', 'e1', 'e2']


class OutOfMemoryError(RuntimeError):
    """As torch calls its own."""


@pytest.mark.parametrize(
    ('fault', 'words'),
    [
        (MemoryError(), 'out of memory .*; use precision bfloat16'),
        (OutOfMemoryError('CUDA out of memory.\n Tried 2 GiB'), 'out of memory .CUDA.* 2 GiB.; use'),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes"), 'out of mem.*; use'),
        (ValueError('a fault\nof two lines'), '^replan failed: ValueError: a fault of two lines$'),
        (InputError('replan: weights produced nan'), '^replan: weights produced nan$'),
    ],
)
def test_a_replan_that_fails_is_refused_with_the_reason_and_the_next_one_works(rig, fault, words):
    rig.observe(SECOND)
    rig.policy.fail_next = fault
    rig.ask(1)
    wait_for(lambda: rig.reports, 'the report')
    ((request, reason),) = rig.refused
    assert request == 1 and re.search(words, reason) and rig.reports == [reason]
    rig.ask(2)
    wait_for(lambda: rig.published, 'the next answer')


def test_a_missing_observation_is_reported_after_half_a_second_and_never_replaced(rig):
    rig.observe(SECOND - 1)
    rig.ask(not_before=SECOND)
    rig.now_ns = SECOND + SECOND // 2 + 1
    wait_for(lambda: any('no observation' in r for r in rig.reports), 'the report')
    assert not rig.published and not rig.refused


def test_the_joint_state_is_the_nearest_and_only_once_it_is_known_to_be():
    observations = Observations()
    with observations.changed:
        pass
    observations.add_image(SECOND, np.zeros((2, 2, 3), np.uint8))
    observations.add_joints(SECOND - 9_000_000, np.full(14, 1.0))
    with observations.changed:
        assert observations.pair(SECOND) is None
    observations.add_joints(SECOND + 1_000_000, np.full(14, 2.0))
    with observations.changed:
        assert observations.pair(SECOND).proprio[0] == 2.0


def test_a_joint_state_over_twenty_milliseconds_away_is_refused(rig):
    rig.observations.add_image(SECOND, np.zeros((2, 2, 3), np.uint8))
    rig.observations.add_joints(SECOND + 21_000_000, np.zeros(14))
    rig.ask(1)
    wait_for(lambda: any('21 ms' in r for r in rig.reports), 'the report')
    assert not rig.published and not rig.refused  # the next one may be better


def test_a_failure_of_a_request_that_is_no_longer_wanted_refuses_nothing(rig):
    rig.observe(SECOND)
    rig.policy.gate.clear()
    rig.policy.fail_next = MemoryError('out of memory')
    rig.ask(1)
    wait_for(lambda: rig.policy.calls, 'the replan begins')
    rig.worker.cancel()
    rig.policy.gate.set()
    wait_for(lambda: rig.reports, 'the report')
    assert not rig.refused


def test_frozen_rows_reach_the_policy_row_by_row(rig):
    rig.observe(SECOND)
    rig.ask(frozen_count=2, frozen_rows=[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    wait_for(lambda: rig.published, 'an answer')
    np.testing.assert_array_equal(rig.policy.frozen_rows, [[1, 2, 3], [4, 5, 6]])
    rig.ask(request_id=2)
    wait_for(lambda: len(rig.published) == 2, 'an answer without frozen rows')
    assert rig.policy.frozen_rows is None


def test_frozen_rows_that_are_no_whole_rows_are_refused_with_the_rule(rig):
    rig.observe(SECOND)
    rig.ask(frozen_count=2, frozen_rows=[1.0, 2.0, 3.0])
    wait_for(lambda: rig.refused, 'a refusal')
    assert '3 values in frozen_rows are not 2 whole rows' in rig.refused[0][1]
