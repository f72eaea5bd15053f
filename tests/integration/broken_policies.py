"""A package of a third party with broken policies, each in another way.

Installed into a folder, as pip would: a module, and the entry points that name the module.
"""

from pathlib import Path

MODULE = '''
import os, sys, time

import numpy as np

class Sound:
    def __init__(self, workload):
        pass
    def score(self, snapshot, rows, request):
        return np.zeros((len(rows), snapshot.capacity.shape[1]))

def raises(workload):
    raise ValueError("cannot be made\\\\nfor " + "x" * 9)

def learned(workload):
    """Made for no workload, as at the start, but for none that was learned."""
    if workload.classes:
        raise ZeroDivisionError("odd workload")
    return Sound(workload)

def ends(workload):
    if workload.classes:
        os._exit(3)
    return Sound(workload)

def hangs(workload):
    while workload.classes:
        time.sleep(60)
    return Sound(workload)

def nothing(workload):
    return None

class Raises(Sound):
    def score(self, snapshot, rows, request):
        raise IndexError("a bug in score")

class Nan(Sound):
    def score(self, snapshot, rows, request):
        return super().score(snapshot, rows, request) + np.nan

class Hangs(Sound):
    """Never comes to an end once something is in use, and catches whatever is raised."""
    def score(self, snapshot, rows, request):
        while snapshot.used.any():
            try:
                sum(range(10**6))
            except BaseException:
                pass
        return super().score(snapshot, rows, request)

class Ends(Sound):
    def score(self, snapshot, rows, request):
        os._exit(3)

class Huge(Sound):
    def score(self, snapshot, rows, request):
        return np.where(rows % 2, 1e308, -1e308)[:, None]

class Infinite(Sound):
    def score(self, snapshot, rows, request):
        return super().score(snapshot, rows, request) + np.inf

class Shape(Sound):
    def score(self, snapshot, rows, request):
        return np.zeros((len(rows) + 1, 7))
'''

AT_IMPORT = "import sys\nsys.exit('no such thing as a policy')\n"

POINTS = {
    "x-import": "policies_at_import:Policy",
    "x-gone": "policies_that_are_nowhere:Policy",
    **{
        f"x-{name.lower()}": f"policies_of_somebody:{name}"
        for name in ("raises", "learned", "ends", "hangs", "nothing")
    },
    **{
        f"x-score-{name.lower()}": f"policies_of_somebody:{name}"
        for name in ("Raises", "Nan", "Huge", "Infinite", "Shape", "Hangs", "Ends")
    },
}


def install(folder: Path, *names: str) -> None:
    """Offer the policies of these names; the folder is to be in PYTHONPATH."""
    info = folder / "somebody-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: somebody\nVersion: 1.0\n")
    lines = [f"{name} = {POINTS[name]}" for name in names]
    (info / "entry_points.txt").write_text("\n".join(["[gpushare.policies]", *lines, ""]))
    (folder / "policies_of_somebody.py").write_text(MODULE)
    (folder / "policies_at_import.py").write_text(AT_IMPORT)
