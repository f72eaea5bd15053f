"""Our extender and the original under the same load: same API server, same kube-scheduler.

Run as `python -m tests.bench.peers`; many minutes, a few with `--quick`. It needs the programs
of `make controlplane`. The original's binary is given by `--original` or GPUSHARE_ORIGINAL; without
one the column stays empty. docs/research/performance.md has the results.
Compare within one run only.
"""

import argparse
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bench.peers import binding, filtering
from tests.bench.peers.placing import Placing
from tests.bench.peers.table import Table
from tests.e2e.binaries import RELEASE, program
from tests.e2e.plane import Plane

_SIZES = {
    "nodes": (5000, "nodes for filter and memory"),
    "pods": (10_000, "pods on them"),
    "rounds": (200, "filters by each extender and number of names"),
    "binds": (2000, "binds on one node, and on many"),
    "placing-nodes": (1000, "nodes for kube-scheduler"),
    "placing-pods": (1500, "pods for kube-scheduler"),
    "repeat": (3, "runs of each part; their median counts"),
    "seconds": (20, "how long the original may bind, and place"),
}
"""Figure by flag, with a description."""
_QUICK = {
    "nodes": 1000,
    "pods": 1000,
    "rounds": 60,
    "binds": 500,
    "placing-nodes": 300,
    "placing-pods": 400,
    "repeat": 1,
    "seconds": 8,
}


def main() -> int:
    """The exit status."""
    # A signal to end must end the started processes, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    options = _options()
    programs = {name: program(name) for name in ("etcd", "kube-apiserver", "kube-scheduler")}
    if missing := [name for name, found in programs.items() if not found]:
        print(f"no {', '.join(missing)} {RELEASE}: run `make controlplane`", file=sys.stderr)
        return 1
    etcd, apiserver, scheduler = (Path(str(found)) for found in programs.values())
    table = Table()

    def filters(plane: Plane, folder: Path) -> None:
        sizes = {"nodes": options.nodes, "pods": options.pods}
        runs = {"rounds": options.rounds, "repeat": options.repeat}
        filtering.measure(plane, folder, options.original, table, **sizes, **runs)

    def binds(plane: Plane, folder: Path) -> None:
        limits = {"binds": options.binds, "rounds": options.repeat, "seconds": options.seconds}
        binding.measure(plane, folder, options.original, table, **limits)

    def placing(plane: Plane, folder: Path) -> None:
        settings = {"settled": options.settled, "percentage": options.percentage}
        Placing(plane, folder, scheduler, table, **settings).measure(
            options.original,
            nodes=options.placing_nodes,
            pods=options.placing_pods,
            rounds=options.repeat,
            seconds=options.seconds,
        )

    parts: dict[str, Callable[[Plane, Path], None]]
    parts = {"filter": filters, "bind": binds, "place": placing}
    try:
        for name in options.parts or parts:
            print(f"{name} ...", file=sys.stderr, flush=True)
            with _plane(etcd, apiserver) as (plane, folder):
                parts[name](plane, folder)
    finally:  # measures so far are shown, whatever ends the run
        load = ", ".join(f"{average:.1f}" for average in os.getloadavg())
        print(f"Kubernetes {RELEASE}, {os.cpu_count()} cores, load at the end {load}")
        print(table.text())
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.peers", description=__doc__)
    original_path = os.environ.get("GPUSHARE_ORIGINAL")
    parser.add_argument("parts", nargs="*", choices=("filter", "bind", "place", []))
    parser.add_argument(
        "--original", type=_program, default=original_path, help="the original's binary"
    )
    parser.add_argument("--quick", action="store_true", help="with small figures")
    parser.add_argument(
        "--settled", action="store_true", help="place pods once our policies are made and tried"
    )
    parser.add_argument(
        "--percentage",
        type=int,
        default=100,
        metavar="N",
        help="percentageOfNodesToScore while placing, 0 for kube-scheduler's default",
    )
    for name, (_, text) in _SIZES.items():
        parser.add_argument(f"--{name}", type=int, metavar="N", help=text)
    options = parser.parse_args()
    for name, (default, _) in _SIZES.items():
        key = name.replace("-", "_")
        if getattr(options, key) is None:
            setattr(options, key, _QUICK[name] if options.quick else default)
    return options


def _program(text: str) -> Path:
    found = shutil.which(text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text} is no program")
    return Path(found).absolute()


@contextmanager
def _plane(etcd: Path, apiserver: Path) -> Iterator[tuple[Plane, Path]]:
    """A new control plane for each part, so that no part is slowed by leftovers of another."""
    with tempfile.TemporaryDirectory() as name:
        plane = Plane(Path(name), etcd, apiserver)
        try:
            plane.start()
            yield plane, Path(name)
        finally:
            plane.stop()


if __name__ == "__main__":
    sys.exit(main())
