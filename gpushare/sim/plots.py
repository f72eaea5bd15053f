"""Pictures of runs: allocated, refused and stranded GPU.

The only module that uses matplotlib (extra `plots`). Reads records (see experiments.py) and writes
files; opens no window.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
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
_FULL = 130
"""Percent of the cluster's GPU that pods have requested at the end of a fill."""

_MAX_NAMED = 24
"""Up to this number of nodes, the picture has names of nodes and used units of devices."""

_SIZES = {"cpu": "no GPU", "share": "a share", "1": "1 GPU"}
_MANY = 100
"""From this number of pods, bars have a logarithmic axis, so that few large pods stay visible."""


def draw(records: Sequence[Record], folder: Path) -> list[Path]:
    """Write the pictures to the folder and return the files; skip pictures without data."""
    folder.mkdir(parents=True, exist_ok=True)
    pictures: dict[str, Figure | None] = {}
    allocated = partial(_steps, key="allocated", unit="GPU allocated, % of the cluster's")
    lost = partial(_steps, key="fragmentation", unit="GPU, % of the cluster's")
    for name, title, painter in (
        ("allocated", "GPU allocated while the cluster fills", allocated),
        ("refused", "Pods refused, by what they ask for", _refused),
        ("fragmentation", "Free GPU that typical pods could not use", lost),
    ):
        pictures[name] = _figure(title, records, painter)
    for policy in policies_of(records):
        first = next(one for one in records if one["policy"] == policy)
        pictures[f"devices-{policy}"] = _devices(first)
    drawn: list[Path] = []
    for name, figure in pictures.items():
        if figure is not None:
            drawn.append(folder / f"{name}.png")
            figure.savefig(drawn[-1], dpi=_DPI)
    return drawn


def _figure(
    title: str, records: Sequence[Record], painter: Callable[[Axes, Sequence[Record]], bool]
) -> Figure | None:
    """Return the picture; None if the records lack the data."""
    figure = Figure(figsize=_SIZE, layout="constrained")
    axes = figure.add_subplot()
    if not painter(axes, records):
        return None
    seeds = len({one["seed"] for one in records})
    axes.set_title(f"{title}: mean of {seeds} seeds" if seeds > 1 else title)
    axes.grid(alpha=0.3)
    axes.set_axisbelow(True)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return figure


def _steps(axes: Axes, records: Sequence[Record], key: str, unit: str) -> bool:
    """Draw for each policy the mean and spread over seeds, against the requested GPU.

    Return False if no record has such data. The axes are the same for every cluster, so that
    pictures can be compared.
    """
    axes.set_xlabel("GPU asked for by the pods that have come, % of the cluster's")
    axes.set_ylabel(unit)
    axes.set_xlim(0, _FULL)
    axes.set_ylim(0, 100)
    grid = np.arange(_FULL + 1)
    if key == "allocated":
        axes.plot(grid, grid, color="grey", linestyle=":", label="asked for", linewidth=1.0)
    painted = False
    policies = policies_of(records)
    for number, policy in enumerate(policies):
        courses = [_numbers(one, key) for one in records if one["policy"] == policy]
        if not all(courses):
            continue
        values = np.array([_on_grid(course, grid) for course in courses])
        mean, spread = values.mean(axis=0), values.std(axis=0)
        colour = f"C{number}"
        # If lines coincide, the earlier, wider ones show on both sides of the later ones.
        width = 1.6 + 2.4 * (1 - (number + 1) / len(policies))
        label = f"{policy}, {mean[-1]:.1f} % in the end"
        axes.step(grid, mean, where="post", color=colour, label=label, linewidth=width)
        bounds = (mean - spread, mean + spread)
        axes.fill_between(grid, *bounds, color=colour, step="post", alpha=0.2, linewidth=0)
        painted = True
    return painted


def _on_grid(course: Mapping[str, float], grid: npt.NDArray[np.int64]) -> _Floats:
    """Return float64 (like the grid): the value at the last load measured up to each load.

    In a small cluster one pod may raise the load by many percent, at other loads in each seed.
    Before the first measured load the value is 0.
    """
    loads = np.array(sorted(map(int, course)))
    values = np.array([course[str(load)] for load in loads.tolist()])
    at = np.searchsorted(loads, grid, side="right") - 1
    return np.where(at >= 0, values[np.maximum(at, 0)], 0.0)


def _refused(axes: Axes, records: Sequence[Record]) -> bool:
    """Draw the mean number of refused pods by size; return whether there are any."""
    policies = policies_of(records)
    sizes = sorted(
        {size for one in records for size in _numbers(one, "failed_by_size")},
        key=lambda size: (size.isdecimal(), size.zfill(4)),
    )
    width = 0.8 / max(len(policies), 1)
    highest = 0.0
    for number, policy in enumerate(policies):
        runs = [_numbers(one, "failed_by_size") for one in records if one["policy"] == policy]
        heights = [float(np.mean([run.get(size, 0.0) for run in runs])) for size in sizes]
        at = np.arange(len(sizes)) + width * (number - (len(policies) - 1) / 2)
        bars = axes.bar(at, heights, width, label=policy)
        labels = [f"{height:.3g}" if height < 100 else f"{height:.0f}" for height in heights]
        axes.bar_label(bars, labels, fontsize=7)
        highest = max(highest, *heights, 0.0)
    axes.set_xticks(np.arange(len(sizes)), [_SIZES.get(s, f"{s} GPUs") for s in sizes])
    axes.set_ylabel("pods refused in a run")
    axes.margins(y=0.12)
    if highest > _MANY:
        axes.set_yscale("symlog", linthresh=1)
    return bool(sizes)


def _devices(record: Record) -> Figure | None:
    """Return a picture of the cluster at the end of a run, a column for each node with devices;
    None if the record has no data. Few nodes have names, and devices the used and total units.
    """
    names, capacity, used = (record.get(key) for key in ("names", "capacity", "used"))
    if not (isinstance(names, list) and isinstance(capacity, list) and isinstance(used, list)):
        return None
    nodes = [node for node in zip(names, capacity, used, strict=True) if node[1]]
    is_named = len(nodes) <= _MAX_NAMED
    # By name, else by the number of devices, and the fullest first.
    nodes.sort(key=lambda node: node[0] if is_named else (-len(node[1]), -sum(node[2])))
    cells = np.full((max(len(sizes) for _, sizes, _ in nodes), len(nodes)), np.nan)
    width = 0.8 if is_named else 0.012  # at least a pixel for each node
    size = (max(_SIZE[0], 2 + width * len(nodes)), 1.6 + 0.42 * len(cells))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.add_subplot()
    for column, (_, sizes, amounts) in enumerate(nodes):
        for row, (units, used_units) in enumerate(zip(sizes, amounts, strict=True)):
            free = cells[row, column] = 1 - used_units / units
            if is_named:
                ink = "black" if free > 0.6 else "white"
                label = f"{used_units}/{units}"
                axes.text(column, row, label, ha="center", va="center", color=ink, fontsize=8)
    image = axes.imshow(cells * 100, vmin=0, vmax=100, aspect="auto", interpolation="nearest")
    figure.colorbar(image, ax=axes, label="% of the device free")
    axes.set_title(f"{record['policy']}, seed {record['seed']}: every device, in the end")
    axes.set_yticks(range(len(cells)))
    axes.set_ylabel("device")
    if is_named:
        labels = [name for name, _, _ in nodes]
        turned = max(map(len, labels)) * len(labels) > 80
        axes.set_xticks(range(len(labels)), labels, rotation=45 if turned else 0)
        axes.set_xlabel("node; in the cells: units used / units of the device")
    else:
        axes.set_xlabel("a column for each node, the fullest first of as many devices")
    return figure


def _numbers(record: Record, key: str) -> Mapping[str, float]:
    value = record.get(key)
    return value if isinstance(value, dict) else {}
