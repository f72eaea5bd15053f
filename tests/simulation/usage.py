"""Resource usage of a process, and its growth.

Knows Linux's /proc; pure arithmetic besides.
"""

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Sample:
    """Megabytes resident, open descriptors, threads."""

    mb: float
    descriptors: float
    threads: float


def sample(pid: str) -> Sample:
    """The current usage of the process."""
    folder = Path("/proc") / pid
    lines = (folder / "status").read_text(encoding="ascii").splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    descriptors = len(list((folder / "fd").iterdir()))
    return Sample(int(fields["VmRSS"].split()[0]) / 1024, descriptors, int(fields["Threads"]))


def growth(samples: Sequence[tuple[float, Sample]]) -> Sample:
    """The rise of each figure in the second half of the samples (seconds, sample), by the trend.

    The trend is the median of the slopes between any two samples (Theil and Sen): a peak that is
    over when the next sample is taken counts for nothing.
    """
    half = samples[len(samples) // 2 :]
    long = half[-1][0] - half[0][0]
    points = [(at, asdict(used)) for at, used in half]
    grown = {
        name: long * _slope([(at, used[name]) for at, used in points]) for name in points[0][1]
    }
    return Sample(**grown)


def _slope(points: Sequence[tuple[float, float]]) -> float:
    """The median slope; of many points each tenth or so is enough."""
    few = points[:: max(1, len(points) // 200)]
    slopes = [(b - a) / (later - at) for (at, a), (later, b) in itertools.combinations(few, 2)]
    return statistics.median(slopes) if slopes else 0.0
