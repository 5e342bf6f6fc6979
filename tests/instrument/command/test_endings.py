"""How a run ended: which of several ranks' ends is the cause."""

from __future__ import annotations

import pytest

from loaderdoctor.instrument.command.endings import lost_a_peer, nothing_measured
from loaderdoctor.instrument.wire.protocol import Ended


def failed(reason: str | None) -> Ended:
    return Ended(how="script-failed", exit_code=1, n_steps=3, reason=reason)


@pytest.mark.parametrize(
    "reason",
    [
        "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4",
        "DistNetworkError: failed to recv, got 0 bytes: Connection reset by peer",
        "DistBackendError: ncclRemoteError: A call failed possibly due to a network error or a "
        "remote process exiting prematurely.",
    ],
)
def test_a_rank_whose_peer_left_is_not_the_cause(reason: str) -> None:
    assert lost_a_peer(failed(reason))


@pytest.mark.parametrize("reason", [None, "SystemExit: 7", "KeyError: 'peer'"])
def test_any_other_end_may_be(reason: str | None) -> None:
    assert not lost_a_peer(failed(reason))


def test_a_script_that_trains_long_on_one_batch_is_not_told_to_run_longer() -> None:
    ended = Ended(how="script-ended", exit_code=0, n_steps=0, n_optimizer_steps=2000, n_batches=1)
    said = str(nothing_measured(ended, "train.py"))
    assert "2,000 optimizer steps on 1 batch of its DataLoader" in said
    assert "Let it run longer" not in said


@pytest.mark.parametrize(("steps", "batches"), [(12, 1), (400, 40), (60, 30), (0, 0)])
def test_a_script_that_takes_batches_as_it_trains_was_only_short(steps: int, batches: int) -> None:
    ended = Ended(
        how="script-ended", exit_code=0, n_steps=0, n_optimizer_steps=steps, n_batches=batches
    )
    assert "Let it run longer" in str(nothing_measured(ended, "train.py"))
