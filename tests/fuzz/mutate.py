"""Mutates traces with an idea of what they are: events, fields, numbers, names; text; gzip.

`Mutator.mutate` is a pure function of its input and the seeded `random.Random`. The text is split
into events by decoding it where that is possible; what no longer decodes is mutated as bytes. The
mutations themselves are in `events` and `text`, what they put in is in `words`.
"""

from __future__ import annotations

import json
import marshal
import random
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tests.fuzz.events import BARE, STRUCTURED, Doc, Event, decoded, nested
from tests.fuzz.text import PACKED, TEXTUAL
from tests.fuzz.words import FIELDS, HOSTILE, NAMES, OTHERS, RAW

# Marks the place of a raw JSON value in encoded text.
_MARK = "\u2603raw"
_MARKS = re.compile(r'"(?:\u2603|\\u2603)raw(\d+)\."')


@dataclass(slots=True)
class Mutator:
    """Mutations of one kind of input. `large` lets rare ones make megabytes."""

    rng: random.Random
    seeds: Sequence[bytes]
    large: bool = True
    max_bytes: int = 1 << 20
    _packed: dict[bytes, bytes] = field(default_factory=dict)  # seeds, decoded

    def mutate(self, data: bytes) -> bytes:
        """Another input, like `data`."""
        rng = self.rng
        if rng.random() < 0.004:
            data = rng.choice(OTHERS)
        doc = self._decoded(data)
        structured = doc is not None and rng.random() < 0.85
        if doc is not None:
            for _ in range(rng.choice((1, 1, 1, 2, 3, 6)) if structured else 0):
                with suppress(OverflowError):  # a number beyond floats, times a factor
                    rng.choice(STRUCTURED)(self, doc)
            data = self.text(doc.get(BARE, doc))
        if rng.random() < (0.1 if structured else 0.95):
            for _ in range(rng.choice((1, 1, 2, 4))):
                data = rng.choice(TEXTUAL)(self, data)
        if rng.random() < 0.03:
            data = rng.choice(PACKED)(self, data)
        return data[: self.max_bytes] if not self.large else data

    def text(self, value: Any) -> bytes:
        """`value` as JSON, in one of several layouts; marks become raw text."""
        rng = self.rng
        style = rng.random()
        try:
            text = json.dumps(
                value,
                separators=(",", ":") if style < 0.8 else (" ,\n", " :\t"),
                ensure_ascii=style < 0.7,
                indent=1 if style > 0.99 else None,  # by an encoder twenty times as slow
            )
        except (ValueError, RecursionError):
            return b"[" * 5000
        text = _MARKS.sub(lambda found: RAW[int(found[1])], text)
        return text.encode("utf-8", "surrogatepass" if style < 0.72 else "replace")

    def value(self) -> Any:
        """Something that may stand in any field."""
        rng = self.rng
        kind = rng.random()
        if kind < 0.6:
            return f"{_MARK}{rng.randrange(len(RAW))}."
        if kind < 0.75:
            return rng.choice(HOSTILE)
        if kind < 0.85:
            return rng.choice(
                (rng.randint(-(2**70), 2**70), rng.random() * 10 ** rng.randint(-20, 25))
            )
        if kind < 0.93:
            return rng.choice(NAMES)
        if kind < 0.97:
            return nested(rng.choice((3, 30, 300)), rng.random() < 0.5)
        return {rng.choice(FIELDS): rng.choice((1, "x", None)) for _ in range(3)}

    def _decoded(self, data: bytes) -> Doc | None:
        """As `decoded`; a seed, which comes again and again, in a tenth of the time."""
        packed = self._packed.get(data)
        if packed is None:
            doc = decoded(data)
            if doc is None or data not in self.seeds:
                return doc
            packed = self._packed[data] = marshal.dumps(doc)
        doc = marshal.loads(packed)  # our own, made above
        assert isinstance(doc, dict)
        return doc

    def event(self, doc: Doc) -> Event | None:
        """One of the events."""
        events = doc.get("traceEvents")
        if not isinstance(events, list) or not events:
            return None
        found = self.rng.choice(events)
        return found if isinstance(found, dict) else None
