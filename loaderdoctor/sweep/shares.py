"""How a sweep divides its budget among its phases."""

from __future__ import annotations

from loaderdoctor.sweep.outcome import Options

# Parts of the budget: the calibration round aims at the first, ranking ends by the second,
# confirmation by the third, ablation by the fourth; traces take the rest. Where there are no
# traces, or no ablation either, the others stretch.
CALIBRATE_SHARE = 0.15
RANK_SHARE = 0.67
CONFIRM_SHARE = 0.79
ABLATE_SHARE = 0.87
# Of a search, its first visits and its race: what is left then confirms the winner. Fewer settings
# visited leave a winner; first visits alone (34 of them took 75 s on an H200 with 16 CPUs) do not.
ELIMINATION_WINDOWS_SHARE = 0.42
ELIMINATION_SHARE = 0.65
# A preset's phases end later.
PRESET_STRETCH = 1.15
# Before the rounds: of a preset all of its ablation, else the fewest rounds an interval needs.
FIRST_ABLATE_SHARE = 0.12


def end_s(share: float, options: Options, *, ablated: bool) -> float:
    """Seconds from the start at which the phase with this share should end."""
    if options.trace_dir is not None:
        # A preset has many rows to time, and few worth a trace.
        scale = PRESET_STRETCH if options.keep_all else 1.0
    else:
        scale = 1.0 / (ABLATE_SHARE if ablated else CONFIRM_SHARE)
    return min(1.0, share * scale) * options.budget_s
