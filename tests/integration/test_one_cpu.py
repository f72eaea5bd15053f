"""The real process keeps its threads on one CPU, unless a flag says otherwise."""

import os
from pathlib import Path

import pytest

from tests.integration.cluster import Cluster
from tests.integration.process import Extender


def cpus(worker: str) -> set[frozenset[int]]:
    """The CPUs that each thread of the process may use."""
    threads = Path(f"/proc/{worker}/task").iterdir()
    return {frozenset(os.sched_getaffinity(int(thread.name))) for thread in threads}


@pytest.mark.parametrize("any_cpu", [False, True])
def test_all_threads_share_one_cpu_unless_told_otherwise(tmp_path: Path, any_cpu: bool) -> None:
    cluster = Cluster()
    flags = ("--any-cpu",) if any_cpu else ()
    extender = Extender(tmp_path, cluster.kubeconfig(tmp_path), "--leadership", "off", *flags)
    try:
        extender.wait_ready()
        result = cpus(*extender.children())
    finally:
        extender.stop()
        cluster.stop()
    if any_cpu:
        assert result == {frozenset(os.sched_getaffinity(0))}
    else:
        assert [len(one) for one in result] == [1]
