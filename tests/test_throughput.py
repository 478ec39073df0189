"""ThroughputTimer: in-step time, on the host's clock or on the device's."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import pytest
import torch

from primus_mllog import ThroughputTimer


class Device:
    """Stands for ``torch.cuda`` with one stream: work and events wait in its queue.

    Its events are those of ``torch.cuda.Event(enable_timing=True)``: passed when the device comes
    to them, recorded anew when they are recorded again, and an error to compare before.
    """

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.num_events = 0
        self.has_failed = False
        self._queue: deque[Any] = deque()
        device = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing
                device.num_events += 1

            def record(self) -> None:
                self.passed_at: float | None = None
                device._queue.append(self)

            def query(self) -> bool:
                if device.has_failed:
                    raise RuntimeError("CUDA error: an illegal memory access was encountered")
                return self.passed_at is not None

            def elapsed_time(self, end: Any) -> float:
                assert self.passed_at is not None
                assert end.passed_at is not None
                return float(end.passed_at - self.passed_at)

            def synchronize(self) -> None:
                pytest.fail("the host waited for the device")

        self.Event = Event

    def is_initialized(self) -> bool:
        return True

    def synchronize(self) -> None:
        pytest.fail("the host waited for the device")

    def launch(self, milliseconds: float) -> None:
        """Queue a kernel."""
        self._queue.append(milliseconds)

    def catch_up(self, but: int = 0) -> None:
        """Do what is queued, but not the last few items of it."""
        while len(self._queue) > but:
            item = self._queue.popleft()
            if isinstance(item, float):
                self.now_ms += item
            else:
                item.passed_at = self.now_ms


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    standing_in = Device()
    monkeypatch.setattr(torch, "cuda", standing_in)
    return standing_in


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The host's monotonic clock, in seconds; to be moved on by hand."""
    seconds = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: seconds[0])
    return seconds


def step(timer: ThroughputTimer, device: Device, milliseconds: float) -> None:
    with timer:
        device.launch(milliseconds)


@pytest.mark.fault("T2")
def test_only_time_in_steps_counts(clock: list[float]) -> None:
    """What happens between steps, an evaluation say, is not in the throughput."""
    timer = ThroughputTimer(global_batch_size=16)
    for _ in range(2):
        timer.step_start()
        clock[0] += 1.0
        timer.step_stop()
        clock[0] += 100.0
    assert timer.get_throughput() == 16.0


@pytest.mark.fault("T2")
def test_a_skipped_step_is_no_work(clock: list[float]) -> None:
    """Neither its samples nor its time count."""
    timer = ThroughputTimer(16)
    for skipped in (False, True):
        timer.step_start()
        clock[0] += 1.0 + 7 * skipped
        timer.step_stop(skipped=skipped)
    assert timer.get_throughput() == 16.0


def test_a_step_that_raises_is_no_work(clock: list[float]) -> None:
    """As a context manager the timer leaves it out, and the error goes up."""
    timer = ThroughputTimer(16)
    with pytest.raises(ZeroDivisionError), timer:
        1 / 0  # noqa: B018
    assert timer.get_throughput() is None


def test_each_call_begins_anew(clock: list[float]) -> None:
    """The throughput is that of the steps since the last call, the overall one that of all."""
    timer = ThroughputTimer(16)
    for seconds in (1.0, 3.0):
        with timer:
            clock[0] += seconds
        assert timer.get_throughput() == 16.0 / seconds
        assert timer.get_throughput() is None
    assert timer.get_overall_throughput() == 8.0


def test_a_stop_without_a_start_counts_nothing() -> None:
    """step_stop alone is no step."""
    timer = ThroughputTimer(16)
    timer.step_stop()
    assert timer.get_throughput() is None
    assert timer.get_overall_throughput() is None


@pytest.mark.fault("T1")
def test_a_clock_that_is_set_back_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The date is not asked: a correction of it can make no time negative."""
    for name in ("time", "time_ns"):
        monkeypatch.setattr(time, name, lambda: pytest.fail("the date was asked"))
    timer = ThroughputTimer(16)
    with timer:
        pass
    assert timer.get_throughput() > 0


@pytest.mark.fault("T1")
def test_on_a_device_its_own_time_counts(device: Device, clock: list[float]) -> None:
    """Neither launching the work nor waiting between steps is in the throughput."""
    timer = ThroughputTimer(16)
    for _ in range(3):
        step(timer, device, 250.0)
        clock[0] += 1.0
        device.launch(10_000.0)  # an evaluation
    device.catch_up()
    assert timer.get_throughput() == 64.0


@pytest.mark.fault("T1")
def test_what_the_device_has_not_done_is_left_for_later(device: Device) -> None:
    """Asking never waits; a step that is still queued counts in the next call."""
    timer = ThroughputTimer(16)
    step(timer, device, 500.0)
    step(timer, device, 250.0)
    device.catch_up(but=1)
    assert timer.get_throughput() == 32.0
    assert timer.get_throughput() is None
    device.catch_up()
    assert timer.get_throughput() == 64.0
    assert timer.get_overall_throughput() == pytest.approx(32 / 0.75)


@pytest.mark.fault("T2")
def test_a_step_skipped_on_a_device_is_no_work(device: Device) -> None:
    """Its events are used for the next step."""
    timer = ThroughputTimer(16)
    timer.step_start()
    device.launch(9000.0)
    timer.step_stop(skipped=True)
    step(timer, device, 250.0)
    device.catch_up()
    assert timer.get_throughput() == 64.0
    assert device.num_events == 2


def test_events_do_not_pile_up(device: Device) -> None:
    """However long nobody asks, there are a pair for each step the device is behind, and two."""
    timer = ThroughputTimer(16)
    for _ in range(1000):
        step(timer, device, 250.0)
        device.catch_up(but=3 * 3)  # three steps, of two events and a kernel
    assert device.num_events <= 2 * (3 + 2)
    device.catch_up()
    assert timer.get_throughput() == 64.0


def test_a_failed_device_does_not_keep_the_log_from_its_end(device: Device) -> None:
    """After an error of the device there is no throughput, and no other error."""
    timer = ThroughputTimer(16)
    step(timer, device, 250.0)
    device.has_failed = True
    assert timer.get_throughput() is None
