"""How figures read: the only place that rounds.

Everything takes plain numbers in the unit its name says, and `None` reads "not recorded": absent
is never zero. With noise, a figure has as many digits as its noise allows: 13.1 ± 0.2 ms.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence
from typing import Any

from loaderdoctor.estimate import Interval
from loaderdoctor.settings import AXES_BY_NAME

NOT_RECORDED = "not recorded"
NOT_APPLICABLE = "not applicable"
ROUGHLY = "“roughly”: the times it is the mean of are too few, or too unlike, for a closer figure."


# Without noise to go by, three digits: about the repeatability of a quiet machine (1 %); two below
# one, where the third is noise of the clock beside the larger figures around it.
_DIGITS = 3
_DIGITS_BELOW_ONE = 2
_SETTINGS = tuple(name for name in AXES_BY_NAME if "_" in name)  # these keep torch's spelling
_ACRONYM = re.compile(r"\b(?:cpus?|gpus?|h2d|d2h|gil|ram)\b")
# Names that files keep, in the words of the screen.
_ON_SCREEN = {
    "looks": "stack samples",
    "line looks": "stack samples of the line",
    "spot": "hotspot",
}
_MANY = 8  # values of a series shown before the rest is counted


def ms(value: float | None, ci: Interval | None = None) -> str:
    """Milliseconds a step: `13.1 ± 0.2 ms`, `0.04 ms`, `1,240 ms`; signed where negative."""
    if value is None:
        return NOT_RECORDED
    margin = _margin(ci)
    if margin is None:
        return f"{number(value)} ms"
    decimals = _noise_decimals(margin)
    return f"{_fixed(value, decimals)} ± {_fixed(margin, decimals)} ms"


def is_measured_well(value: float | None, ci: Interval | None) -> bool:
    """Whether a time is known at all: not where its noise is larger than itself.

    Two windows give such intervals (t at one degree of freedom is 12.7): 185 and 249 ms are
    217 ± 407 ms.
    """
    margin = _margin(ci)
    return value is None or margin is None or margin <= abs(value)


def step_ms(value: float | None, ci: Interval | None = None) -> str:
    """A time that can't be negative: as `ms`, or `roughly 217 ms`; `ROUGHLY` says what that is."""
    if value is None or is_measured_well(value, ci):
        return ms(value, ci)
    return f"roughly {number(value)} ms"


def share(value: float | None) -> str:
    """A share (0…1) as percent: `87 %`, `0.4 %`, `< 0.1 %`."""
    if value is None:
        return NOT_RECORDED
    percent = 100 * value
    if percent == 0:
        return "0 %"
    if abs(percent) < 0.1:
        return "< 0.1 %"
    # Whole percents: repeated windows of one loop differ by about a point.
    return f"{percent:.1f} %" if abs(percent) < 0.95 else f"{percent:.0f} %"


def share_within(value: float, ci: Interval | None) -> str:
    """A share with its noise, which ends at nothing and at all: `17 % (0 to 37 %)`."""
    if ci is None or not all(math.isfinite(edge) for edge in ci):
        return share(value)
    low, high = (min(max(edge, 0.0), 1.0) for edge in ci)
    return f"{_fixed(100 * value, 0)} % ({_fixed(100 * low, 0)} to {_fixed(100 * high, 0)} %)"


def bare_share(value: float | None) -> str:
    """A share in a table whose heading has the %: `87`, `0.4`; an en dash where absent."""
    return "–" if value is None else share(value).removesuffix(" %")


def n_bytes(value: float | None) -> str:
    """Memory: `1.50 GiB`, `512 MiB`, `40 B`."""
    if value is None:
        return NOT_RECORDED
    power = min(max(round(abs(value)).bit_length() - 1, 0) // 10, 4)
    size = value / 1024.0**power
    return f"{size:.0f} B" if power == 0 else f"{number(size)} {'KMGT'[power - 1]}iB"


def samples_per_s(value: float | None) -> str:
    """A rate: `4,880 samples/s`."""
    return NOT_RECORDED if value is None else f"{number(value)} samples/s"


def seconds(value: float | None) -> str:
    """A duration: `0.42 s`, `45 s`, `3 min 20 s`, `2 h 5 min`."""
    if value is None:
        return NOT_RECORDED
    if abs(value) < 1e-3:
        return f"{number(value * 1e6)} µs" if value else "0 s"
    if abs(value) < 1:
        return f"{number(value * 1e3)} ms"
    if value < 99.5:
        return f"{number(value)} s"
    whole = round(value)
    if whole < 3600:
        minutes, rest = divmod(whole, 60)
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, rest = divmod(round(whole / 60), 60)
    return f"{hours:,} h {rest} min" if rest else f"{hours:,} h"


def time_left(value_s: float) -> str:
    """What is still to come: `nearly done`, `about 45 s left`, from 90 s on in minutes."""
    if value_s < 0.5:
        return "nearly done"
    if value_s < 90:
        return f"about {round(value_s)} s left"
    return f"about {round(value_s / 60)} min left"


def ratio(value: float | None) -> str:
    """How many times: `5.7×`."""
    if value is None or not math.isfinite(value):
        return NOT_RECORDED
    return f"{value:.2f}×" if value < 1.995 else f"{number(value, digits=2)}×"


def count(value: float | None, one: str, many: str | None = None) -> str:
    """A number of things: `1 step`, `40 steps`."""
    if value is None:
        return NOT_RECORDED
    return f"{value:,} {one if value == 1 else many or one + 's'}"


def verb(n: int, text: str) -> str:
    """A verb for a count of things: `1 worker makes`, `4 workers make`."""
    return f"{text}s" if n == 1 else text


def number(value: float, *, digits: int = _DIGITS) -> str:
    """A number to `digits` digits, at least in whole units: `0.041`, `0.41`, `13.1`, `4,883`."""
    if not math.isfinite(value):
        return NOT_RECORDED
    if value == 0:
        return "0"
    if abs(value) < 1e-3:
        return "< 0.001" if value > 0 else "> -0.001"
    if abs(value) < 1:
        digits = min(digits, _DIGITS_BELOW_ONE)
    exponent = int(f"{value:.{digits - 1}e}".partition("e")[2])  # of the rounded value
    return _fixed(value, min(max(digits - 1 - exponent, 0), 3))


def cpus(value: object) -> str:
    """A CPU count, which a quota can make fractional: `16`, `1.5`."""
    return f"{value:g}" if isinstance(value, int | float) else NOT_RECORDED


def setting(value: Any) -> str:
    """A setting's value: `6`, `on`, `off`, `fork`; "as is" where the user's own stands."""
    if value is None:
        return "as is"
    if isinstance(value, bool):
        return "on" if value else "off"
    return plain(str(value))


def evidence(name: str, value: Any) -> str:
    """One figure of a finding, its unit read off the end of its name: `batch 11.2 ms`."""
    for suffix, read in _UNITS:
        if name.endswith(suffix) and _are_figures(value):
            return f"{words(name.removesuffix(suffix))} {_series(value, read)}".strip()
    said = words(name)
    if name.endswith("cpus") and isinstance(value, int | float):
        return f"{said} {cpus(value)}"
    if value is None:
        return f"{said} {NOT_RECORDED}"
    if isinstance(value, bool):
        return f"{said} {'yes' if value else 'no'}"
    if isinstance(value, int | float):
        return f"{said} {number(value) if isinstance(value, float) else f'{value:,}'}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"{said} {_series(value, lambda item: plain(_bare(item)))}"
    return f"{said} {plain(str(value))}"


def plain(text: str) -> str:
    r"""Text of the user's (names, paths, code) that can't steer a terminal.

    Control and formatting characters (escape sequences, direction overrides) become visible
    `\xNN` codes; tabs become spaces.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        "    " if char == "\t"
        else char if unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Zl", "Zp")
        else f"\\x{ord(char):02x}"
        for char in text
    )  # fmt: skip


def words(name: str) -> str:
    """A figure's or field's name on screen: `usable CPUs`."""
    text = name.removeprefix("n_")
    kept = next((setting for setting in _SETTINGS if text.startswith(setting)), "")
    text = plain(kept + text.removeprefix(kept).replace("_", " ").rstrip())
    text = _ON_SCREEN.get(text, text)
    return _ACRONYM.sub(lambda match: match.group().upper().replace("S", "s"), text)


def _are_figures(value: Any) -> bool:
    """A number, or several, or that it was not recorded."""
    if isinstance(value, list | tuple):
        return all(map(_are_figures, value))
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _bare(value: Any) -> str:
    return number(value) if isinstance(value, float) else str(value)


def _series(value: Any, read: Any) -> str:
    if not isinstance(value, Sequence) or isinstance(value, str):
        return str(read(value))
    shown = [str(read(item)) for item in value[:_MANY]]
    unit = shown[0].rpartition(" ")[2] if shown and " " in shown[0] else ""
    if unit and all(text.endswith(" " + unit) for text in shown):
        shown = [text.removesuffix(" " + unit) for text in shown]
    else:
        unit = ""
    more = f", … ({len(value) - _MANY} more)" if len(value) > _MANY else ""
    return f"{', '.join(shown)}{more} {unit}".rstrip()


# The longest suffix first: `_per_s` also ends in `_s`.
_UNITS = (
    ("_bytes_per_s", lambda value: NOT_RECORDED if value is None else f"{n_bytes(value)}/s"),
    ("_gb_per_s", lambda value: NOT_RECORDED if value is None else f"{number(value)} GB/s"),
    ("samples_per_s", samples_per_s),
    ("_per_s", lambda value: NOT_RECORDED if value is None else f"{number(value)}/s"),
    ("_bytes", n_bytes),
    ("_ms_per_step", lambda value: NOT_RECORDED if value is None else f"{number(value)} ms a step"),
    ("_per_step", lambda value: NOT_RECORDED if value is None else f"{number(value)} a step"),
    ("_ms", ms),
    ("_us", lambda value: NOT_RECORDED if value is None else f"{number(value)} µs"),
    ("_share", share),
    ("_ratio", ratio),
    ("_s", seconds),
)


def _margin(ci: Interval | None) -> float | None:
    if ci is None or not all(math.isfinite(edge) for edge in ci):
        return None
    return (ci[1] - ci[0]) / 2


def _noise_decimals(margin: float) -> int:
    """Decimals that show one digit of the noise, two where it begins with 1; 0 to 3."""
    if margin <= 0:
        return 3
    exponent = int(f"{margin:.1e}".partition("e")[2])  # of the rounded value
    leading = margin / 10.0**exponent
    return min(max((1 if leading < 1.95 else 0) - exponent, 0), 3)


def _fixed(value: float, decimals: int) -> str:
    text = f"{value:,.{decimals}f}"
    return text.removeprefix("-") if not text.strip("-0.,") else text  # no -0.0
