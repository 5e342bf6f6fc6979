"""Pictures of a sweep as PNG files in the run folder, for papers and slides.

report.html has its own charts; these are plain files. Needs matplotlib (the extra `plots`), which
is imported only here, and only when there is something to draw.
"""

from __future__ import annotations

import importlib.util

from loaderdoctor.report.files import RunFolder, make_folder, write_bytes
from loaderdoctor.report.model import Report

FOLDER = "plots"


def write_plots(report: Report, folder: RunFolder) -> bool:
    """Write every picture the report has figures for into plots/; False without matplotlib.

    Raises RunError where a file can't be written.
    """
    if importlib.util.find_spec("matplotlib") is None:
        return False
    from loaderdoctor.report.plots.subjects import pictures_of

    target = folder.path / FOLDER
    for name, png in pictures_of(report):
        make_folder(target)
        write_bytes(target / f"{name}.png", png)
    return True
