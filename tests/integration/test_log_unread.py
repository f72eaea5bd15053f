"""The log is a pipe that nobody reads: the verbs go on, and so does everything else."""

import fcntl
import os
from pathlib import Path

from tests.integration.cluster import Cluster
from tests.integration.process import Extender
from tests.support.waiting import poll

FILTERS = 300
"""Lines of some 140 bytes each, ten times the capacity of such a pipe."""


def small_pipe() -> tuple[int, int]:
    """The descriptors to read from and to write to of a pipe that holds one page."""
    reader, write = os.pipe()
    size = fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
    assert size * 5 < FILTERS * 140
    return reader, write


def test_verbs_probes_and_the_lease_go_on_when_nobody_reads_the_log(
    tmp_path: Path, cluster: Cluster
) -> None:
    cluster.release_lease()
    reader, write = small_pipe()
    extender = Extender(tmp_path, cluster.kubeconfig(tmp_path), log_to=write)
    os.close(write)
    try:
        extender.wait_ready()
        node = cluster.node(devices=4, total=64)
        extender.knows(node)
        pod = cluster.pod(4)
        for _ in range(FILTERS):
            assert extender.fit(pod, [node]) == [node]
        assert extender.bind(pod, node) == ""
        assert [extender.probe(path).status for path in ("/livez", "/readyz")] == [200, 200]
        assert extender.figure("log_lines_dropped_total") == 0
        assert extender.figure("leader") == 1
        text = b""
        while text.count(b" filter ") < FILTERS or b" bind " not in text:
            text += os.read(reader, 1 << 16)
        assert text.index(b" bind ") > text.rindex(b" filter ")
    finally:
        extender.stop()
        os.close(reader)


def test_a_log_that_nobody_reads_does_not_hold_up_its_end(tmp_path: Path, cluster: Cluster) -> None:
    cluster.release_lease()
    reader, write = small_pipe()
    extender = Extender(tmp_path, cluster.kubeconfig(tmp_path), log_to=write)
    os.close(write)
    try:
        extender.wait_ready()
        node = cluster.node()
        extender.knows(node)
        pod = cluster.pod(1)
        for _ in range(FILTERS):
            extender.fit(pod, [node])
        extender.terminate()
        poll(extender.ended, "it ends by itself")
    finally:
        extender.kill()
        os.close(reader)
