"""Entry of the process that starts one measuring process for each rank, with torch's own launcher.

Its arguments are torchrun's options. What `torch.distributed.run` starts, watches and ends is our
`child` instead of the script, which then runs the script as a rank.
"""

from __future__ import annotations

import os
import sys

from loaderdoctor.instrument.command.measuring_process import bootstrap
from loaderdoctor.instrument.system.processes import die_with_parent, outlive_terminal_reads


def main() -> None:
    """Run the launcher to its end; it exits by itself where a rank fails."""
    outlive_terminal_reads()
    die_with_parent(os.getppid())
    from torch.distributed import run

    # "-u" as torchrun does, so that lines of the ranks come when they are printed.
    run.main([*sys.argv[1:], "--no-python", sys.executable, "-u", "-c", bootstrap("entry.child")])
