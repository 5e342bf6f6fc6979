"""What recording the making of batches may cost, as shares of the time they take.

What can be done now and then is done so often that it takes these shares; with what every batch
pays (hooks and a record: 6 µs one after another, 40 where a batch has left caches cold) that makes
0.9 % of batches of 7 ms (docs/accuracy.md). Costs are CPU time on two virtual CPUs.
`benchmarks/worker_overhead.py --parts` shows what recording costs without each part.
"""

from __future__ import annotations

from typing import Final

# Noting one sample costs 0.4 µs, on a busy machine 0.8 µs. Where samples are so short that this
# would exceed the share, only one batch in so many has its samples timed.
STAMP_NS: Final = 800
MAX_STAMP_SHARE: Final = 0.001

# Four readings of CPU clocks a batch are system calls: 8 µs in a virtual machine, 20 where a batch
# of 7 ms has left caches cold. Where they would exceed the share, they are read in one batch of so
# many, and the others get the same CPU time for each of their nanoseconds.
CPU_READS_NS: Final = 20_000
MAX_CPU_READ_SHARE: Final = 0.0005

# A look for hot lines costs its own thread 200 to 280 µs of CPU (half of it to sleep and wake, in a
# virtual machine) and the watched one, for handing over and for its caches, 143 µs in the median of
# a wide range (quartiles -118 and 705): it is taken to cost as much as the looking. The interval
# grows until both take no more than the share.
BOTH_OVER_OWN: Final = 2
MAX_SAMPLING_SHARE: Final = 0.002
