"""Pictures of what runs measured: what is allocated, what is turned away, what is stranded.

The only part that knows matplotlib, which comes with the extra `plots`. It reads records (see
experiments.py) and writes files; it opens no window.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gpushare.errors import SettingsError
from gpushare.sim.report import Record, policies_of

try:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
except ModuleNotFoundError as error:
    raise SettingsError("--plot needs matplotlib: pip install 'gpushare[plots]'") from error

_Floats = npt.NDArray[np.float64]
_DPI = 110
_SIZE = (7.2, 4.2)
_NODES_A_BAND = 160
_SIZES = {"cpu": "no GPU", "share": "a share", "1": "1 GPU"}


def draw(records: Sequence[Record], folder: Path) -> list[Path]:
    """The pictures written to the folder, as far as the records hold what they show."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn: list[Path] = []

    def save(figure: Figure, name: str) -> None:
        path = folder / f"{name}.png"
        figure.savefig(path, dpi=_DPI)
        drawn.append(path)

    for name, title, painter in (
        ("allocated", "GPU allocated", _allocated),
        ("refused", "Pods refused, by what they ask for", _refused),
        ("fragmentation", "Free GPU that typical pods could not use", _fragmentation),
    ):
        figure = _figure(title, records, painter)
        if figure is not None:
            save(figure, name)
    for policy in policies_of(records):
        picture = _devices(next(one for one in records if one["policy"] == policy))
        if picture is not None:
            save(picture, f"devices-{policy}")
    return drawn


def _figure(
    title: str, records: Sequence[Record], painter: Callable[[Axes, Sequence[Record]], bool]
) -> Figure | None:
    """The picture; None where the records hold nothing of it."""
    figure = Figure(figsize=_SIZE, layout="constrained")
    axes = figure.add_subplot()
    if not painter(axes, records):
        return None
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def _allocated(axes: Axes, records: Sequence[Record]) -> bool:
    """Against what has arrived: the mean of each policy, and the spread of its seeds."""
    # Until the cluster is nearly full all that comes is placed, by every policy.
    return _lines(axes, records, "allocated", 80)


def _fragmentation(axes: Axes, records: Sequence[Record]) -> bool:
    return _lines(axes, records, "fragmentation")


def _lines(axes: Axes, records: Sequence[Record], key: str, first: int = 0) -> bool:
    """A line and a band for each policy; False where no record has such a course."""
    axes.set_xlabel("GPU asked for by the pods that have come, % of the cluster's")
    axes.set_ylabel("% of the cluster's GPU")
    painted = False
    for number, policy in enumerate(policies_of(records)):
        curves = [_numbers(one, key) for one in records if one["policy"] == policy]
        there = set.intersection(*(set(curve) for curve in curves))
        loads = sorted((load for load in there if int(load) >= first), key=int)
        if not loads:
            continue
        values = np.array([[curve[load] for load in loads] for curve in curves])
        x, mean, spread = [int(load) for load in loads], values.mean(axis=0), values.std(axis=0)
        axes.plot(x, mean, color=f"C{number}", label=policy, linewidth=1.3)
        axes.fill_between(x, mean - spread, mean + spread, color=f"C{number}", alpha=0.2)
        painted = True
    return painted


def _refused(axes: Axes, records: Sequence[Record]) -> bool:
    """The pods refused of each size, in the mean of the seeds."""
    policies = policies_of(records)
    there = {size for one in records for size in _numbers(one, "failed_by_size")}
    sizes = sorted(there, key=lambda size: (size.isdecimal(), size.zfill(4)))
    width = 0.8 / max(len(policies), 1)
    for number, policy in enumerate(policies):
        runs = [_numbers(one, "failed_by_size") for one in records if one["policy"] == policy]
        heights = [float(np.mean([run.get(size, 0.0) for run in runs])) for size in sizes]
        at = np.arange(len(sizes)) + width * (number - (len(policies) - 1) / 2)
        axes.bar(at, heights, width, label=policy)
    axes.set_xticks(np.arange(len(sizes)), [_SIZES.get(s, f"{s} GPUs") for s in sizes])
    axes.set_ylabel("pods")
    # Few large pods weigh as much as many small ones.
    axes.set_yscale("symlog", linthresh=1)
    return bool(sizes)


def _devices(record: Record) -> Figure | None:
    """The cluster at the end of a run: a cell for a device, a column for a node."""
    capacity, used = record.get("capacity"), record.get("used")
    if not isinstance(capacity, list) or not isinstance(used, list):
        return None
    nodes = [
        sorted(1 - taken / units for taken, units in zip(held, there, strict=True))
        for held, there in zip(used, capacity, strict=True)
        if there
    ]
    cells = _bands(nodes)
    figure = Figure(figsize=(_SIZE[0] * 1.4, 0.9 + 0.11 * cells.shape[0]), layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(cells * 100, cmap="viridis", vmin=0, vmax=100, aspect="auto")
    figure.colorbar(image, ax=axes, label="% of the device free")
    axes.set_title(f"{record['policy']}, seed {record['seed']}: every device, in the end")
    axes.set_axis_off()
    return figure


def _bands(nodes: Sequence[Sequence[float]]) -> _Floats:
    """float64 (lines, columns): free shares, nodes of as many devices side by side, fullest first.

    NaN where there is no device; an empty line between bands.
    """
    bands = []
    for height in sorted({len(free) for free in nodes}, reverse=True):
        alike = sorted((free for free in nodes if len(free) == height), key=sum)
        for start in range(0, len(alike), _NODES_A_BAND):
            band = np.full((height + 1, min(len(nodes), _NODES_A_BAND)), np.nan)
            columns = np.array(alike[start : start + _NODES_A_BAND]).T
            band[:height, : columns.shape[1]] = columns
            bands.append(band)
    return np.vstack(bands)


def _numbers(record: Record, key: str) -> Mapping[str, float]:
    found = record.get(key)
    return found if isinstance(found, dict) else {}
