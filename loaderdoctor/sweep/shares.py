"""How a sweep divides its budget among its phases."""

# Parts of the budget: the calibration round aims at the first, ranking ends by the second,
# confirmation by the third, ablation by the fourth; traces take the rest. Where there are no
# traces, or no ablation either, the others stretch.
CALIBRATE_SHARE = 0.15
RANK_SHARE = 0.67
CONFIRM_SHARE = 0.79
ABLATE_SHARE = 0.87
# A preset's phases end later.
PRESET_STRETCH = 1.15
# Before the rounds: of a preset all of its ablation, else the fewest rounds an interval needs.
FIRST_ABLATE_SHARE = 0.12
