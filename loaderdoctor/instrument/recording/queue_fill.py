"""How many batches stand ready for the loop: a look at the iterator's queues, at a step boundary.

Leans on torch's own attributes: where they are missing, nothing is told.
"""

from __future__ import annotations

from typing import Any


def look(iterator: Any) -> tuple[int, int] | None:
    """(batches ready, batches asked for ahead) of a multi-process iterator; None: not one."""
    try:
        asked = int(iterator._tasks_outstanding)
        # Those that came before their turn wait in `_task_info`, which has two entries then.
        ready = sum(1 for info in iterator._task_info.values() if len(info) == 2)
        queue = iterator._data_queue
        ready += int(queue.qsize())
        if queue is not iterator._worker_result_queue:  # pinned; others wait for that
            ready += int(iterator._worker_result_queue.qsize())
    except (AttributeError, NotImplementedError, TypeError, OSError):
        return None
    return min(ready, asked), asked
