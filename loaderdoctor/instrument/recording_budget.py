"""What recording the making of batches may cost, as shares of the time they take.

What can be done now and then is done so often that it takes these shares; with what every batch
pays (hooks and a record: 7 µs one after another, up to 60 µs where caches are cold) that makes
about 1 % of batches of 6 ms (docs/accuracy.md). Costs are CPU time on two virtual CPUs.
`benchmarks/worker_overhead.py --parts` shows what recording costs without each part.
"""

from __future__ import annotations

from typing import Final

# Noting one sample costs 0.4 µs, on a busy machine 0.8 µs. Where samples are so short that this
# would exceed the share, only one batch in so many has its samples timed.
STAMP_NS: Final = 800
MAX_STAMP_SHARE: Final = 0.001

# Four readings of CPU clocks a batch are system calls: 2 to 8 µs in a virtual machine. Where they
# would exceed the share, they are read in one batch of so many, and the others get the same CPU
# time for each of their nanoseconds.
CPU_READS_NS: Final = 8_000
MAX_CPU_READ_SHARE: Final = 0.001

# A look for hot lines costs its own thread 200 to 280 µs of CPU (half of it to sleep and wake, in a
# virtual machine) and the watched one about as much (200 ± 150 µs: for handing over
# and for its caches). The interval grows until both take no more than the share.
BOTH_OVER_OWN: Final = 2
MAX_LOOK_SHARE: Final = 0.003
