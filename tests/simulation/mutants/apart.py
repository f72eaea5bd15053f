"""Bugs about pods of one workload that stay on different devices."""

from typing import Any

from gpushare.core import node_arrays
from gpushare.core.model import Apart
from gpushare.wire import pods
from tests.simulation.mutants.museum import mutant


@mutant("C20", "the books count no workloads", node_arrays, "count_pod")
def counts_no_workloads(original: Any) -> Any:
    del original
    return lambda workloads, row, request, devices, sign: None


@mutant("C20", "a pod that has gone closes its device for the workload", node_arrays,
        "count_pod")  # fmt: skip
def closes_a_device_for_ever(original: Any) -> Any:
    def count(workloads: Any, row: int, request: Any, devices: Any, sign: int) -> None:
        if sign > 0:
            original(workloads, row, request, devices, sign)

    return count


@mutant("C20", "each pod is taken for a workload of its own", pods, "workload_of")
def takes_each_pod_for_a_workload(original: Any) -> Any:
    del original
    return lambda pod: pod.metadata.uid


@mutant("C20", "a wish to stay apart orders devices, and closes none", Apart, "required")
def closes_no_device(original: Any) -> Any:
    del original
    return property(lambda self: False)
