"""How a run of the script ended, in words."""

from __future__ import annotations

from loaderdoctor.instrument.protocol import Ended


def why_nothing(ended: Ended, label: str, killed_by: str | None) -> str:
    """One line: why there is nothing to measure."""
    if ended.how == "no-loader":
        return (
            f"{label}: no torch DataLoader was iterated, so there is no loader to measure. "
            "If the script starts other processes that train, run one of them instead."
        )
    if ended.how == "script-failed":
        how = (
            f"was ended by {killed_by}" if killed_by else f"failed with exit code {ended.exit_code}"
        )
        return f"{label}: the script {how} before its loop was warm."
    if ended.how == "interrupted":
        return f"{label}: interrupted before its loop was warm."
    return (
        f"{label}: ended before enough training steps were seen (exit code "
        f"{ended.exit_code}). Let it run longer: more batches or more epochs."
    )
