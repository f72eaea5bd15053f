"""The nodes and pods of an experiment: files, the shipped traces, or a live cluster.

Tested in `tests/unit/sim/test_main_options.py`.
"""

import argparse
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpushare.errors import SettingsError
from gpushare.trace.nodes_and_pods import (
    MILLI,
    TraceError,
    TraceNode,
    TracePod,
    in_units,
    read_nodes,
    read_pods,
)

Listing = Callable[
    [Mapping[str, object], str, str], tuple[list[TraceNode], list[TracePod], list[str]]
]
"""(flags, resource, unit) -> nodes and pods of a live cluster, and notes on omitted ones."""

OPENB = Path(__file__).parent / "data" / "openb"
OPENB_NODES = OPENB / "openb_node_list_gpu_node.csv.xz"

_PODS = "openb_pod_list_"
_DEFAULT = "default"
_FEW_NOTES = 3


@dataclass(frozen=True)
class Inputs:
    """Nodes and pods with a name, and notes on omitted rows."""

    nodes: list[TraceNode]
    pods: list[TracePod]
    name: str
    notes: tuple[str, ...] = ()
    nowhere: int = 0
    """Number of pods that were removed because they fit no empty node."""
    unknown: Mapping[str, int] = field(default_factory=dict)
    """Accepted models, joined by "|" -> number of pods; only sets without a model of any node."""

    @property
    def devices(self) -> int:
        """Devices of all nodes."""
        return sum(node.devices for node in self.nodes)

    @property
    def units(self) -> int:
        """Units of all devices."""
        return sum(sum(node.sizes) for node in self.nodes)


def shipped() -> dict[str, Path]:
    """Return the shipped lists of pods by name."""
    files = sorted(OPENB.glob(f"{_PODS}*.csv.xz"))
    return {file.name.removeprefix(_PODS).removesuffix(".csv.xz"): file for file in files}


def read_inputs(options: argparse.Namespace, listing: Listing | None) -> Inputs:
    """Return the inputs that the options name, without pods that fit no empty node.

    Raises TraceError, SettingsError (also if no pod that asks for GPU remains), and any error of
    `listing`.
    """
    if options.from_cluster:
        if listing is None:
            raise SettingsError("--from-cluster: no cluster can be listed here")
        nodes, pods, notes = listing(vars(options), options.resource, options.unit)
        pods = read_pods(Path(options.pods)) if options.pods else pods
        for kind, found in (("nodes", nodes), ("pods with GPU", any(pod.devices for pod in pods))):
            if not found:
                text = f"the cluster has no {kind} to simulate"
                raise TraceError("; ".join([text, *notes[:_FEW_NOTES]]))
        inputs = Inputs(nodes, pods, options.pods or "cluster", tuple(notes))
    else:
        inputs = _of_files(options.nodes, options.pods)
    if options.devices:
        nodes, pods = in_units(inputs.nodes, inputs.pods, options.devices)
        inputs = replace(inputs, nodes=nodes, pods=pods)
    # No policy can place a pod that fits no empty node: such pods would only hide the differences
    # between policies.
    shapes = {replace(node, name="") for node in inputs.nodes}
    fitting = [pod for pod in inputs.pods if any(node.can_run(pod) for node in shapes)]
    if not any(pod.devices for pod in fitting):
        raise SettingsError(
            f"{inputs.name}: no pod that asks for GPU fits any of the nodes, even while they are"
            " empty: see its units, models, CPU and memory"
        )
    models = {node.model for node in shapes if node.devices}
    unknown = Counter(
        "|".join(pod.models) for pod in inputs.pods if pod.models and models.isdisjoint(pod.models)
    )
    nowhere = len(inputs.pods) - len(fitting)
    return replace(inputs, pods=fitting, nowhere=nowhere, unknown=unknown)


def read_shipped(name: str) -> Inputs:
    """Return a shipped list of pods on the shipped nodes."""
    return _of_files("", name)


def _of_files(nodes_file: str, pods_file: str) -> Inputs:
    """Return the nodes and pods of the files; "" means the shipped files."""
    nodes = read_nodes(Path(nodes_file) if nodes_file else OPENB_NODES)
    pods_path = Path(pods_file)
    name = pods_file or _DEFAULT
    if name in shipped() and not pods_path.is_file():
        pods_path = shipped()[name]
        if any(node.capacity != MILLI for node in nodes if node.devices):
            raise SettingsError(
                f"{nodes_file}: has units of its own; give --pods that ask for them"
            )
    return Inputs(nodes=nodes, pods=read_pods(pods_path), name=name)
