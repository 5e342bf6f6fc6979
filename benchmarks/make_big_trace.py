"""Writes a large trace out of a recorded one, for speed measurements.

    python benchmarks/make_big_trace.py traces/launch_bound_tiny.pt.trace.json.gz 2040000 big.json

Lays copies of the recorded events end to end until there are at least so many. Times move on, and
correlation ids, external ids, flow ids and step numbers stay unique, so that the result is a trace
of a longer run: 2.04 million events are 465 MB. A target named .gz is compressed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

# Between the end of one copy and the start of the next: one ordinary gap between steps.
GAP_US = 100.0
# Ids of a copy are apart from the next one's by this; recorded ids span less.
ID_STRIDE = 10_000_000
STEP = "ProfilerStep#"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("recorded", type=Path, help="a .json or .json.gz trace")
    parser.add_argument("n_events", type=int, help="at least this many events")
    parser.add_argument("target", type=Path, help="the file to write, .json or .json.gz")
    options = parser.parse_args()
    n_events = make_big_trace(options.recorded, options.n_events, options.target)
    print(f"{options.target}: {n_events} events, {options.target.stat().st_size / 1e6:.0f} MB")


def make_big_trace(recorded: Path, n_events: int, target: Path) -> int:
    """Write the trace; returns its number of events, at least `n_events`."""
    with opened(recorded, "r") as file:
        document = json.load(file)
    events = document.pop("traceEvents")
    named = [e for e in events if e["ph"] == "M"]
    repeated = [e for e in events if e["ph"] != "M" and e.get("cat") != "Trace"]
    n_copies = max(1, -(-(n_events - len(named)) // len(repeated)))
    with opened(target, "w") as out:
        about = json.dumps(document, indent=1).removesuffix("\n}")
        out.write(f'{about},\n"traceEvents": [\n')
        out.write(",\n".join(json.dumps(e) for e in named))
        for text in copies(repeated, n_copies):
            out.write(f",\n{text}")
        out.write("\n]}\n")
    return len(named) + n_copies * len(repeated)


def copies(events: list[dict[str, Any]], n_copies: int) -> Iterator[str]:
    """The text of the events, of the events later, and so on: written once, with places to fill."""
    spans = [e for e in events if e["ph"] == "X"]
    length_us = max(e["ts"] + e["dur"] for e in spans) - min(e["ts"] for e in spans) + GAP_US
    n_steps = len({e["name"] for e in events if e["name"].startswith(STEP)})
    places: list[tuple[float, float]] = []  # what is written first, and by how much more each time
    template = ",\n".join(
        _with_places(event, places, length_us=length_us, n_steps=n_steps) for event in events
    )
    for n in range(n_copies):
        yield template % tuple(value + n * by for value, by in places)


_PLACE = re.compile(r'"?@([fd])@"?')


def _with_places(
    event: dict[str, Any], places: list[tuple[float, float]], *, length_us: float, n_steps: int
) -> str:
    """One event as text with `%.3f` or `%d` for what moves on: its time, its ids, its step."""
    event = dict(event)
    moving: dict[str, tuple[float, float]] = {"ts": (event["ts"], length_us)}
    event["ts"] = "@f@"
    if isinstance(event.get("id"), int):
        moving["id"] = (event["id"], ID_STRIDE)
        event["id"] = "@d@"
    if "args" in event:
        args = event["args"] = dict(event["args"])
        for key in ("correlation", "External id"):
            if args.get(key):
                moving[key] = (args[key], ID_STRIDE)
                args[key] = "@d@"
    if event["name"].startswith(STEP):
        moving["name"] = (int(event["name"].removeprefix(STEP)), n_steps)
        event["name"] = f"{STEP}@n@"
    # In the order of the text, in which a key comes once.
    order = sorted(moving, key=list(_keys(event)).index)
    places += [moving[key] for key in order]
    text = json.dumps(event).replace("%", "%%").replace("@n@", "%d")
    return _PLACE.sub(lambda found: "%.3f" if found[1] == "f" else "%d", text)


def _keys(event: dict[str, Any]) -> Iterator[str]:
    for key, value in event.items():
        yield key
        if key == "args":
            yield from value


def opened(path: Path, mode: str) -> IO[str]:
    """A text file, compressed where its name says so (fast rather than small)."""
    if path.suffix == ".gz":
        return gzip.open(path, f"{mode}t", compresslevel=1, encoding="utf-8")  # type: ignore[return-value]
    return path.open(mode, encoding="utf-8")


if __name__ == "__main__":
    main()
