"""Windows of steps: when they are complete, and how many steps may be told of together."""

from __future__ import annotations

import pytest

from loaderdoctor.settings import Settings
from loaderdoctor.tuning.step_windows import MIN_STEPS, WINDOW_MS, Gathering, Step, StepWindow


def told(gathering: Gathering, ms: float, n: int, settings: Settings) -> StepWindow | None:
    return gathering.add(Step(ms=n * ms, wait_ms=0.0, serving=settings, settled=True, n=n))


@pytest.mark.parametrize("n_workers", [1, 3, 8])
def test_a_few_fast_steps_do_not_speak_for_a_long_time(n_workers: int) -> None:
    settings = Settings(num_workers=n_workers)
    gathering = Gathering(settings, 0)
    n = gathering.n_lacking
    assert told(gathering, 0.2, n, settings) is None  # of a full queue
    total, window = n, None
    while window is None:
        more = gathering.n_lacking
        assert more <= total
        window = told(gathering, 4.0, more, settings)
        total += more
    # 4 ms each from then on: 2,000 of them would be 8 s.
    assert window.n_steps == total
    assert total * window.step_ms <= 2 * (WINDOW_MS + 4.0 * MIN_STEPS)
    assert total % n_workers == 0


@pytest.mark.parametrize("ms", [0.02, 0.2, 3.0])
def test_windows_of_even_steps_are_told_in_few_calls_and_end_as_one_by_one(ms: float) -> None:
    settings = Settings(num_workers=3)
    sizes = []
    for together in (False, True):
        gathering, window, calls = Gathering(settings, 0), None, 0
        while window is None:
            n = gathering.n_lacking if together else 1
            window, calls = told(gathering, ms, n, settings), calls + 1
        sizes.append(window.n_steps)
        assert not together or calls <= 16
    assert sizes[1] == pytest.approx(sizes[0], abs=3)
