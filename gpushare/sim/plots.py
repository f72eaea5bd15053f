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

_NODES_A_BAND = 160
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
    """Return a picture of the cluster at the end of a run; None if the record has no data."""
    names, capacity, used = (record.get(key) for key in ("names", "capacity", "used"))
    if not (isinstance(names, list) and isinstance(capacity, list) and isinstance(used, list)):
        return None
    nodes = [node for node in zip(names, capacity, used, strict=True) if node[1]]
    title = f"{record['policy']}, seed {record['seed']}: every device, in the end"
    return (
        _with_names(title, sorted(nodes)) if len(nodes) <= _MAX_NAMED else _in_bands(title, nodes)
    )


_Node = tuple[str, list[int], list[int]]
"""(name, capacity by device, used units by device)."""


def _with_names(title: str, nodes: Sequence[_Node]) -> Figure:
    """Draw the nodes side by side with names, each device with used and total units."""
    highest = max(len(capacities) for _, capacities, _ in nodes)
    cells = np.full((highest, len(nodes)), np.nan)
    size = (max(_SIZE[0], 2 + 0.8 * len(nodes)), 1.6 + 0.42 * highest)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.add_subplot()
    for column, (_, capacities, used) in enumerate(nodes):
        for row, (units, used_units) in enumerate(zip(capacities, used, strict=True)):
            free = cells[row, column] = 1 - used_units / units
            ink = "black" if free > 0.6 else "white"
            label = f"{used_units}/{units}"
            axes.text(column, row, label, ha="center", va="center", color=ink, fontsize=8)
    _paint(figure, axes, cells, title)
    for line, edges in ((axes.axhline, highest), (axes.axvline, len(nodes))):
        for edge in range(1, edges):
            line(edge - 0.5, color="white", linewidth=2)
    names = [name for name, _, _ in nodes]
    turned = max(map(len, names)) * len(names) > 80
    axes.set_xticks(range(len(names)), names, rotation=45 if turned else 0)
    axes.set_yticks(range(highest))
    axes.set_ylabel("device")
    axes.set_xlabel("node; in the cells: units used / units of the device")
    return figure


def _in_bands(title: str, nodes: Sequence[_Node]) -> Figure:
    """Draw many nodes as bands without names: one band per number of devices, fullest first."""
    free = [
        sorted(1 - used_units / units for used_units, units in zip(used, capacities, strict=True))
        for _, capacities, used in nodes
    ]
    bands = [
        alike[start : start + _NODES_A_BAND]
        for height in sorted({len(node) for node in free}, reverse=True)
        for alike in [sorted((node for node in free if len(node) == height), key=sum)]
        for start in range(0, len(alike), _NODES_A_BAND)
    ]
    cells = np.full((sum(len(band[0]) + 1 for band in bands), max(map(len, bands))), np.nan)
    middles, row = [], 0
    for band in bands:
        height = len(band[0])
        cells[row : row + height, : len(band)] = np.array(band).T
        middles.append(row + (height - 1) / 2)
        row += height + 1
    size = (_SIZE[0] * 1.4, 1.4 + 0.11 * len(cells))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.add_subplot()
    _paint(figure, axes, cells, title)
    labels = [f"{len(band)} nodes\nof {len(band[0])} GPUs" for band in bands]
    axes.set_yticks(middles, labels, fontsize=7)
    axes.set_xticks([])
    axes.set_xlabel("a column for each node, the fullest first; a cell for each of its devices")
    return figure


def _paint(figure: Figure, axes: Axes, cells: _Floats, title: str) -> None:
    """Colour the cells by the share that is free; NaN, where there is no device, stays blank."""
    image = axes.imshow(cells * 100, cmap="viridis", vmin=0, vmax=100, aspect="auto")
    figure.colorbar(image, ax=axes, label="% of the device free")
    axes.set_title(title)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)


def _numbers(record: Record, key: str) -> Mapping[str, float]:
    value = record.get(key)
    return value if isinstance(value, dict) else {}
