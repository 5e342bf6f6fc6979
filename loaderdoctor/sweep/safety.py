"""Trials that are rows but are not run, for what the command knows before it asks.

The measuring process itself withholds the rest where it opens a trial (data that would be lost or
repeated, a dataset that can't be sent to workers, too little room): it has the objects at hand.
"""

from __future__ import annotations

from loaderdoctor.instrument.protocol import Observed
from loaderdoctor.settings import Settings
from loaderdoctor.sweep.grid import meaning, own_settings


def withheld_reason(settings: Settings, observed: Observed) -> str | None:
    """Why this trial must not run on this loop; None where nothing known speaks against it.

    Forked workers share the position of a file that is open already: they read each other's data.
    """
    loader = next((x for x in observed.loaders if x.role == "train"), None)
    if loader is None or not loader.safety.open_handles:
        return None
    own = own_settings(observed)
    full = meaning(settings, own)
    method = full.start_method or observed.environment.start_method
    if not full.num_workers or method != "fork" or full.num_workers == own.num_workers:
        return None
    names = ", ".join(loader.safety.open_handles)
    return (
        f"workers would share the file that the dataset holds open ({names}): open it in the "
        "worker instead, at the first __getitem__"
    )
