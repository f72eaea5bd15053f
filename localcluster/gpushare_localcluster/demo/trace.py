"""Nodes and pods of a slice of a recorded trace, as plans of a scenario.

A device of the trace has 1000 milli; a device of the scenario has a number of memory units, and a
share of a device becomes the same share of the units, rounded up. `gpushare.trace` reads the file.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpushare.trace.nodes_and_pods import MILLI, TraceError, read_nodes, read_pods
from gpushare_localcluster.demo.placed import ScenarioError
from gpushare_localcluster.demo.plan import NodePlan, PodPlan


def trace_nodes(file: Path, units: int) -> tuple[NodePlan, ...]:
    """Return the nodes of a trace, each device with `units`. Raises ScenarioError."""
    with _scenario_errors():
        nodes = read_nodes(file)
    return tuple(
        NodePlan(
            name=node.name,
            devices=(units,) * node.devices,
            cpu=f"{node.cpu}m",
            memory=f"{node.memory}Mi",
            labels={"gpu-model": node.model},
        )
        for node in nodes
    )


def trace_pods(file: Path, units: int) -> tuple[PodPlan, ...]:
    """Return the pods of a trace, for devices of `units`. Raises ScenarioError."""
    with _scenario_errors():
        pods = read_pods(file)
    return tuple(
        PodPlan(
            name=pod.name,
            containers=(pod.devices * -(-pod.units * units // MILLI),),
            gpu_count=max(pod.devices, 1),
            cpu=f"{pod.cpu}m",
            memory=f"{pod.memory}Mi",
        )
        for pod in pods
    )


@contextmanager
def _scenario_errors() -> Iterator[None]:
    """Turn a TraceError of the context into a ScenarioError."""
    try:
        yield
    except TraceError as error:
        raise ScenarioError(str(error)) from error
