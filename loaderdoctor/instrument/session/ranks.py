"""Which rank of how many this process is: by its launcher, or by torch's process group."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path

from loaderdoctor.instrument.wire.channel import LaunchConfig
from loaderdoctor.instrument.wire.protocol import Hello


def as_launched(environment: Mapping[str, str] = os.environ) -> tuple[int, int] | None:
    """Rank and number of ranks as a launcher such as torchrun sets them; None without one."""
    rank, n_ranks = environment.get("RANK", ""), environment.get("WORLD_SIZE", "")
    return (int(rank), int(n_ranks)) if rank.isdigit() and n_ranks.isdigit() else None


def place(environment: Mapping[str, str] = os.environ) -> tuple[int, int] | None:
    """The same; None without several."""
    found = as_launched(environment)
    return found if found is not None and found[1] > 1 else None


def process_group() -> tuple[int, int] | None:
    """Rank and number of ranks of torch's process group; None where there is none."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return None
    return dist.get_rank(), dist.get_world_size()


def hello(launch_config: LaunchConfig) -> Hello:
    """What this rank says first. Its folder is made here: on another machine in none shared."""
    rank, n_ranks = place() or (0, 1)
    return Hello(
        rank=rank,
        n_ranks=n_ranks,
        host=socket.gethostname(),
        run_dir=str(Path(launch_config.run_dir) / f"rank{rank}"),
    )
