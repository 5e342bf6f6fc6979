"""How many of the small unit make the large one: times are nanoseconds until they are shown."""

from __future__ import annotations

NS_PER_US = 1e3
NS_PER_MS = 1e6
NS_PER_S = 1e9
