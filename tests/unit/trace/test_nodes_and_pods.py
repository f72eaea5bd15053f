"""Traces: the columns, and errors that name file, line and column."""

import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest

from gpushare.trace import nodes_and_pods
from gpushare.trace.nodes_and_pods import (
    UTILIZATION,
    TraceError,
    TraceNode,
    TracePod,
    read_nodes,
    read_pods,
    request_of,
    utilization_of,
)

NODES = "name,cpu_milli,memory_mib,gpu,units,model\n"
PODS = "name,cpu_milli,memory_mib,gpu,units,models\n"
OPENB_PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,creation_time\n"


def file(tmp_path: Path, text: str, name: str = "trace.csv") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_node_file_of_openb_has_devices_of_1000_units(tmp_path: Path) -> None:
    path = file(tmp_path, "sn,cpu_milli,memory_mib,gpu,model\nn0,64000,262144,2,P100\n")
    assert read_nodes(path) == [TraceNode("n0", 64000, 262144, 2, 1000, "P100")]


def test_a_pod_file_of_openb_is_read_by_its_rules(tmp_path: Path) -> None:
    text = OPENB_PODS + (
        "share,6000,12288,1,460,,LS,7\n"
        "eight,64000,1,8,1000,T4|P100,BE,8\n"
        "cut,1,1,1,1500,,BE,\n"
        "cpu,12000,16384,0,300,T4,LS,9\n"
    )
    assert read_pods(file(tmp_path, text)) == [
        TracePod("share", 6000, 12288, 1, 460, (), 7.0, None, None),
        TracePod("eight", 64000, 1, 8, 1000, ("T4", "P100"), 8.0, None, None),
        TracePod("cut", 1, 1, 1, 1000, (), None, None, None),
        TracePod("cpu", 12000, 16384, 0, 0, (), 9.0, None, None),
    ]


def test_ones_own_cluster_counts_in_units_and_may_mix_capacities(tmp_path: Path) -> None:
    text = NODES + "a,96000,786432,8,80,A100\nb,64000,262144,4,24,A10\nc,64000,1,0,,\n"
    nodes = read_nodes(file(tmp_path, text))
    assert [(node.devices, node.capacity, node.model) for node in nodes] == [
        (8, 80, "A100"),
        (4, 24, "A10"),
        (0, 1000, ""),
    ]
    (pod,) = read_pods(file(tmp_path, PODS + "p,8000,1,1,2000,A10\n"))
    assert (pod.units, pod.models) == (2000, ("A10",))


def test_a_pod_may_ask_for_a_part_of_the_compute_of_each_device(tmp_path: Path) -> None:
    head = PODS.replace("\n", ",cores\n")
    text = f"{head}p,1,1,2,4,,50\nnone,1,1,1,4,,\nplain,1,1,0,,,50\n"
    pods = read_pods(file(tmp_path, text))
    assert [request_of(pod).cores for pod in pods] == [50, 0, 0]
    with pytest.raises(TraceError, match="column cores: is no whole number from 0 to 100"):
        read_pods(file(tmp_path, f"{head}p,1,1,1,4,,101\n"))


def test_the_utilization_of_a_pod_is_that_of_the_file_or_its_compute_or_an_assumption(
    tmp_path: Path,
) -> None:
    head = PODS.replace("\n", ",cores,utilization\n")
    text = f"{head}a,1,1,1,4,,50,7\nb,1,1,1,4,,50,\nc,1,1,1,4,,,\nd,1,1,1,4,,50,0\n"
    pods = read_pods(file(tmp_path, text))
    assert [utilization_of(pod) for pod in pods] == [7, 50, UTILIZATION, 0]
    with pytest.raises(TraceError, match="column utilization: is no whole number from 0 to 100"):
        read_pods(file(tmp_path, f"{head}p,1,1,1,4,,,101\n"))


def test_json_says_the_same_as_csv(tmp_path: Path) -> None:
    text = (
        '[{"name": "p", "cpu_milli": 500, "memory_mib": 1, "gpu": 1, "units": 4,'
        ' "models": ["A10", "T4"], "created": 1.5, "deleted": null, "more": {"a": 1}}]'
    )
    (pod,) = read_pods(file(tmp_path, text, "pods.json"))
    assert pod == TracePod("p", 500, 1, 1, 4, ("A10", "T4"), 1.5, None, None)


@pytest.mark.parametrize(("suffix", "pack"), [(".xz", lzma.compress), (".gz", gzip.compress)])
def test_a_small_file_that_unpacks_to_more_than_the_bound_is_refused(
    suffix: str, pack: Callable[[bytes], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes_and_pods, "_MAX_BYTES", 1_000_000)
    file = tmp_path / f"pods.csv{suffix}"
    file.write_bytes(pack(b"x" * 1_000_001))
    with pytest.raises(TraceError, match="more than 1000000 bytes when it is unpacked"):
        nodes_and_pods.of_file(file)


@pytest.mark.parametrize(("suffix", "pack"), [(".xz", lzma.compress), (".gz", gzip.compress)])
def test_compressed_files_are_read_as_they_are(
    tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / f"nodes.csv{suffix}"
    path.write_bytes(pack((NODES + "a,1,1,1,16,\n").encode()))
    assert read_nodes(path)[0].capacity == 16


def test_whole_numbers_are_read_as_pandas_writes_them(tmp_path: Path) -> None:
    path = file(tmp_path, NODES + "a,12500.0,16.00,1.,16,\n")
    (node,) = read_nodes(path)
    assert (node.cpu, node.memory, node.devices) == (12500, 16, 1)


def test_a_table_saved_by_a_spreadsheet_is_read(tmp_path: Path) -> None:
    path = file(tmp_path, "\ufeff" + NODES.replace(",", ", ") + "a, 1, 1, 1, 16, \r\n\r\n")
    assert read_nodes(path)[0].name == "a"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "pods.csv: is empty"),
        (PODS, "pods.csv: has a header and nothing under it"),
        ("name,cpu_milli,gpu,units\np,1,1,1\n", "line 1: has no column memory_mib"),
        (
            "name,cpu_milli,memory_mib,units\np,1,1,1\n",
            "line 1: has no column gpu or num_gpu; it has: 'name,",
        ),
        ("a,b\n1,2\n", "no column name; cpu_milli; memory_mib; gpu or num_gpu; units or gpu_milli"),
        (PODS.replace(",", ";") + "p;1;1;1;4;\n", "line 1: its columns are separated by ';'"),
        (PODS.replace(",", "\t") + "p\t1\n", "line 1: its columns are separated by '\\t'"),
        (PODS + "p,1,1,1.0.0,4,\n", "line 2, column gpu: is no whole number"),
        ("name,name,gpu\np,p,1\n", "line 1: has a column twice"),
        (PODS + "p,1,1,1,4\n", "line 2: has 5 columns, the header 6"),
        (PODS + "p,-1,1,1,4,\n", "line 2, column cpu_milli: is no whole number from 0"),
        (PODS + "p,1,1.5,1,4,\n", "line 2, column memory_mib: is no whole number"),
        (PODS + "p,1,1,1,0,\n", "line 2, column units: is no whole number from 1"),
        (PODS + "p,1,1,9999,4,\n", "line 2, column gpu: is no whole number from 0 to 1024"),
        (PODS + f"p,1,1,1,{'9' * 5000},\n", "line 2, column units: is no whole number"),
        (PODS + "p,1,1,1,\N{ARABIC-INDIC DIGIT FOUR},\n", "column units: is no whole number"),
        (PODS + "p,1,1,1,4,A10|\n", "line 2, column models: has an empty name: 'A10|'"),
        (PODS + ",1,1,1,4,\n", "line 2, column name: is no name"),
        (PODS + "a\x1b[2J,1,1,1,4,\n", "line 2, column name: is no name"),
        (PODS + "p,1,1,1,4,\np,1,1,1,4,\n", "line 3, column name: 'p' is there twice"),
        (PODS + "p,1,1,0,,\n", "pods.csv: no pod asks for a GPU"),
        (PODS + 'p,"1,1,1,4,\n', "line 2: unexpected end of data"),
        (OPENB_PODS + "p,1,1,1,4,,BE,nan\n", "column creation_time: is no time in seconds"),
        (OPENB_PODS + "p,1,1,1,4,,BE,soon\n", "column creation_time: is no time in seconds"),
        (
            "name,cpu_milli,memory_mib,gpu,units,created,deleted\np,1,1,1,4,7,6\n",
            "line 2, column deleted: lies before",
        ),
    ],
)
def test_a_wrong_file_is_told_in_one_line(tmp_path: Path, text: str, says: str) -> None:
    path = file(tmp_path, text, "pods.csv")
    with pytest.raises(TraceError) as caught:
        read_pods(path)
    assert str(path) in str(caught.value)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < len(str(path)) + 200


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"{", "is no JSON"),
        (b"{}", "must be a list of objects"),
        (b'{"kind": "List", "items": [{"kind": "Node"}]}', "simulate with --from-cluster, read"),
        (b"[]", "must be a list of objects"),
        (b"[1]", "item 1: is no object"),
        (b"[" * 100_000, "is no JSON"),
        (b"[{}]", "item 1: has no column name"),
        (b"\xff\xfe", "cannot be read"),
    ],
)
def test_wrong_json_is_told_in_one_line(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "pods.json"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=says) as caught:
        read_pods(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["none.csv", ".", "broken.csv.xz", "broken.csv.gz"])
def test_a_file_that_cannot_be_read_is_told(tmp_path: Path, name: str) -> None:
    for broken in ("broken.csv.xz", "broken.csv.gz"):
        (tmp_path / broken).write_bytes(b"nothing compressed")
    with pytest.raises(TraceError, match="cannot be read"):
        read_nodes(tmp_path / name)


def test_a_cluster_without_a_gpu_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no node has a GPU"):
        read_nodes(file(tmp_path, NODES + "a,1,1,0,,\n"))
