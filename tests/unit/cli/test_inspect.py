"""The whole command, with a kubectl for tests."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from configparser import ConfigParser
from pathlib import Path

import pytest
import yaml

from gpushare.cli import main as verbs
from gpushare.cli.cluster_files import resource_of_report
from gpushare.cli.commands import OF_PLUGIN
from gpushare.cli.kubectl import PROMPT_AFTER
from gpushare.core.model import Reason
from gpushare.wire.device_request import LIMITS_LABEL, MEMORY_LIMIT
from tests.unit.cli.fake_kubectl import MEM, FakeKubectl, inventory, node, pod

Inspect = Callable[..., tuple[int, str, str]]

HEAVY = [
    "msgspec",
    "numpy",
    "kubernetes",
    "yaml",
    "flask",
    "gunicorn",
    "urllib3",
    "prometheus_client",
]


@pytest.fixture
def cluster(kubectl: FakeKubectl) -> FakeKubectl:
    cards = inventory(80, 80, model="A100")
    cards["devices"][1]["healthy"] = False
    kubectl.cluster(
        [node("b", inventory=cards), node("a"), node("cpu-only", total=0)],
        [
            pod("p2", "a", idx="1", namespace="team"),
            pod("p1", "a", annotations={"ALIYUN_COM_GPU_MEM_ASSIGNED": "true"}),
            pod("lost", "a", 3, idx=None),
            pod("plain", "cpu-only", 0),
        ],
    )
    return kubectl


def test_nodes_are_sorted_and_summed(cluster: FakeKubectl, inspect: Inspect) -> None:
    code, out, err = inspect()
    assert (code, err) == (0, "")
    head, first, second, dashes, label, total = out.splitlines()
    assert head.split()[:5] == [
        *("NAME", "IPADDRESS", "GPU0(Allocated/Total)", "GPU1(Allocated/Total)"),
        "PENDING(Allocated)",
    ]
    assert first.split() == ["a", "10.9.0.1", "4/16", "4/16", "3", "11/32"]
    assert second.split() == ["b", "10.9.0.1", "0/80", "0/80", "0/160"]
    assert len(dashes) == len("a\t10.9.0.1\t4/16\t4/16\t3\t11/32\n") + 20
    assert (label, total) == ("Allocated/Total GPU Memory In Cluster:", "11/192 (5%)  ")


def test_details_of_a_namespace_keep_the_sums_of_all(
    cluster: FakeKubectl, inspect: Inspect
) -> None:
    _, out, _ = inspect("-d", "-n", "team")
    assert "p2" in out
    assert "p1" not in out
    assert "Allocated :  11 (34%)" in out
    assert "p1" in inspect("-d", "-n", "team", "-A")[1]


def test_rows_alone_are_for_scripts(cluster: FakeKubectl, inspect: Inspect) -> None:
    _, out, _ = inspect("--no-headers")
    assert [line.split()[0] for line in out.splitlines()] == ["a", "b"]
    _, out, _ = inspect("-d", "--no-headers")
    assert [line.split() for line in out.splitlines()] == [
        ["a", "lost", "default", "0", "0", "3"],
        ["a", "p1", "default", "4", "0", "0"],
        ["a", "p2", "team", "0", "4", "0"],
    ]


def test_wide_tells_free_memory_models_and_what_is_wrong(
    cluster: FakeKubectl, inspect: Inspect
) -> None:
    _, out, _ = inspect("-o", "wide")
    head, first, second, *_ = out.splitlines()
    assert head.split()[-4:] == ["FREE(GiB)", "PODS", "MODEL", "NOTE"]
    assert first.split()[-4:] == ["18", "3", "-", "-"]  # 16-4-3 and 16-4-3: lost may be on either
    assert second.split()[-5:] == ["80", "0", "A100", "unhealthy:", "1"]
    _, out, _ = inspect("-d", "-o", "wide")
    assert "MODEL:      A100" in out
    assert ["p1", "default", "4", "0", "0", "4", "Running", "yes"] in [
        line.split() for line in out.splitlines()
    ]


def test_a_device_with_the_most_pods_has_nothing_free(
    kubectl: FakeKubectl, inspect: Inspect
) -> None:
    limited = node("a")
    limited["metadata"]["labels"] = {"gpushare.io/max-sharers": "2"}
    kubectl.cluster([limited], [pod("p1", "a"), pod("p2", "a"), pod("p3", "a", idx="1")])
    _, out, _ = inspect("-o", "wide")
    assert out.splitlines()[1].split()[-7:] == ["-", "at", "most", "2", "pods", "a", "device"]
    document = json.loads(inspect("-o", "json")[1])
    assert [device["free"] for device in document["nodes"][0]["devices"]] == [0, 12]
    saved_books = resource_of_report(document, "saved.json", "binpack")
    assert saved_books.ledger.snapshot().free.tolist() == [[0, 12]]


def test_a_percentage_of_memory_stands_as_the_units_of_the_device(
    kubectl: FakeKubectl, inspect: Inspect
) -> None:
    share = pod("p1", "a", 1, idx="1")
    share["spec"]["containers"][0]["resources"]["limits"]["aliyun.com/gpu-mem.percentage"] = 60
    kubectl.cluster([node("a", inventory=inventory(16, 40))], [share])
    (shown,) = json.loads(inspect("-o", "json")[1])["nodes"]
    assert [device["allocated"] for device in shown["devices"]] == [0, 24]
    assert shown["pods"][0]["allocated"] == 24


def test_limits_that_no_device_has_are_warned_of(kubectl: FakeKubectl, inspect: Inspect) -> None:
    pods = [pod("p0", "a")]
    for number in (1, 2):
        pods.append(pod(f"p{number}", "a", 4, idx="1", annotations={MEMORY_LIMIT: "10"}))
        pods[-1]["spec"]["nodeSelector"] = {LIMITS_LABEL: "true"}
    kubectl.cluster([node("a")], pods[:2])
    (shown,) = json.loads(inspect("-o", "json")[1])["nodes"]
    assert [device.get("limits") for device in shown["devices"]] == [None, 10]
    assert inspect()[2] == ""
    kubectl.cluster([node("a")], pods)
    assert inspect()[2] == (
        "Warning: node a: the pods of device 1 may use 20 GiB together, and it has 16: a program"
        " may find no memory within its limit\n"
    )


def test_a_node_with_an_unreadable_limit_of_pods_is_closed(
    kubectl: FakeKubectl, inspect: Inspect
) -> None:
    broken = node("a")
    broken["metadata"]["labels"] = {"gpushare.io/max-sharers": "few"}
    kubectl.cluster([broken], [])
    document = json.loads(inspect("-o", "json")[1])
    assert document["nodes"][0]["closed"] == Reason.BROKEN_SHARERS.value
    assert "'few' is not a number of pods" in document["warnings"][0]
    saved_books = resource_of_report(document, "saved.json", "binpack")
    assert saved_books.ledger.snapshot().free.tolist() == [[0, 0]]


def test_documents_say_it_all_and_alike(cluster: FakeKubectl, inspect: Inspect) -> None:
    _, out, _ = inspect("-o", "json")
    document = json.loads(out)
    assert yaml.safe_load(inspect("-oyaml")[1]) == document
    assert {key: value for key, value in document.items() if key != "nodes"} == {
        "apiVersion": "gpushare.io/v1",
        "kind": "GPUShareReport",
        "resource": MEM,
        "unit": "GiB",
        "unitFrom": "inventory",
        "total": 192,
        "allocated": 11,
        "unplaced": 3,
        "free": 98,
        "policy": None,
        "pending": [],
        "held": None,
        "warnings": [],
    }
    a, b = document["nodes"]
    assert [pod["name"] for pod in a["pods"]] == ["lost", "p1", "p2"]
    assert a["pods"][1] == {
        "namespace": "default",
        "name": "p1",
        "uid": "uid-p1",
        "phase": "Running",
        "assigned": True,
        "allocated": 4,
        "devices": [{"index": 0, "allocated": 4}],
    }
    assert a["pods"][0]["devices"] == []
    assert b["devices"][1] == {
        "index": 1,
        "uuid": "GPU-2",
        "model": "A100",
        "healthy": False,
        "total": 80,
        "allocated": 0,
        "free": 0,
    }


def test_names_can_be_handed_to_kubectl(cluster: FakeKubectl, inspect: Inspect) -> None:
    assert inspect("-o=name") == (0, "node/a\nnode/b\n", "")


def test_one_node_asks_for_its_own_pods_alone(kubectl: FakeKubectl, inspect: Inspect) -> None:
    kubectl.cluster([node("a")], [pod("p1", "a")])
    assert "a " in inspect("a", "--context", "dev", "--as=jane")[1]
    nodes, pods = kubectl.log
    assert nodes == (
        "KUBECONFIG= get --raw /api/v1/nodes?fieldSelector=metadata.name%3Da&limit=5000"
        " --output= --context=dev --as=jane"
    )
    assert "status.phase%21%3DSucceeded%2Cstatus.phase%21%3DFailed%2Cspec.nodeName%3Da&" in pods


def test_every_group_is_handed_to_kubectl(cluster: FakeKubectl, inspect: Inspect) -> None:
    assert inspect("--as=jane", "--as-group=dev", "--as-group", "ops")[0] == 0
    assert cluster.log[0].endswith(" --as=jane --as-group=dev --as-group=ops")


def test_flags_may_stand_anywhere(cluster: FakeKubectl, inspect: Inspect) -> None:
    _, out, _ = inspect("b", "-d", "a", "--no-headers")
    assert len(out.splitlines()) == 3


def test_labels_select_nodes(cluster: FakeKubectl, inspect: Inspect) -> None:
    inspect("-l", "pool=a b,zone in (x)")
    assert "?labelSelector=pool%3Da%20b%2Czone%20in%20%28x%29&limit=5000" in cluster.log[0]


def test_pages_are_put_together(kubectl: FakeKubectl, inspect: Inspect) -> None:
    kubectl.cluster([node("a")], [])
    head = "get --raw /api/v1/pods?fieldSelector=status.phase%21%3DSucceeded%2Cstatus.phase%21%3D"
    head += "Failed%2Cspec.nodeName%21%3D&limit=5000"
    first = {"metadata": {"continue": "to/ken=="}, "items": [pod("p1", "a")]}
    kubectl.answers(head, json.dumps(first))
    kubectl.answers(head + "&continue=to%2Fken%3D%3D", json.dumps({"items": [pod("p2", "a")]}))
    assert "8/32" in inspect()[1]
    kubectl.file(head + "&continue=to%2Fken%3D%3D").unlink()
    is_gone = "echo 'Error from server (Expired): too old' >&2; exit 1"
    kubectl.does(head + "&continue=to%2Fken%3D%3D", is_gone)
    for plural in ("nodes", "pods"):
        whole = (kubectl.folder / plural).read_text()
        query = head.partition("?")[2].replace("5000", "0") if plural == "pods" else "limit=0"
        kubectl.answers(f"get --raw /api/v1/{plural}?{query}", whole)
    assert "0/32" in inspect()[1]


def test_a_list_of_kubeconfigs_is_handed_over(
    cluster: FakeKubectl, inspect: Inspect, tmp_path: Path
) -> None:
    (tmp_path / "one").touch()
    files = f"{tmp_path}/one{os.pathsep}{tmp_path}/none"
    assert inspect("--kubeconfig", files)[0] == 0
    assert cluster.log[0].startswith(f"KUBECONFIG={files} get")
    code, _, err = inspect("--kubeconfig", "/none:/nothing")
    assert (code, err) == (2, "error: kubeconfig: no such file: /none:/nothing\n")


def test_a_kubeconfig_that_cannot_be_looked_for_is_left_to_kubectl(
    cluster: FakeKubectl, inspect: Inspect
) -> None:
    """As one in a folder that we may not enter; a test that runs as root may enter any."""
    name = "x" * 300
    assert inspect("--kubeconfig", name)[0] == 0
    assert cluster.log[0].startswith(f"KUBECONFIG={name} get")


@pytest.mark.parametrize(
    ("text", "output"),
    [
        ('error: context "nope" does not exist', 'error: context "nope" does not exist'),
        (
            'Error from server (Forbidden): nodes is forbidden: User "u" cannot list resource',
            'Error from server (Forbidden): nodes is forbidden: User "u" cannot list resource',
        ),
        ("E0101 00:00:00.1 1 memcache.go:265] noise\nThe connection was refused", None),
        ("evil \x1b[31m\u202e", "evil \\x1b[31m\\u202e"),
        ("", "kubectl failed with exit code 3"),
    ],
)
def test_what_kubectl_refuses_is_one_line(
    kubectl: FakeKubectl, inspect: Inspect, text: str, output: str | None
) -> None:
    (kubectl.folder / "said").write_text(text)
    kubectl.otherwise(f'cat "{kubectl.folder}/said" >&2; exit 3')
    expected = (output or text.splitlines()[-1]) + "\n"
    assert inspect() == (1, "", expected)


def test_an_error_of_a_kubectl_that_takes_its_time_to_end_is_told_once(
    kubectl: FakeKubectl, inspect: Inspect
) -> None:
    text = 'error: context "nope" does not exist'
    kubectl.otherwise(f"echo '{text}' >&2; sleep {PROMPT_AFTER + 0.5}; exit 1")
    assert inspect() == (1, "", f"{text}\n")


class Prompted(io.StringIO):
    """A stderr with a reader that logs in at the prompt."""

    def __init__(self, login: Path) -> None:
        super().__init__()
        self.login = login

    def write(self, text: str) -> int:
        self.login.touch()
        return super().write(text)


def test_what_kubectl_asks_for_is_shown_while_it_waits(
    cluster: FakeKubectl, inspect: Inspect, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    login = tmp_path / "login"
    (tmp_path / "prompt").write_text(
        f'echo "open the browser" >&2\nuntil [ -f "{login}" ]; do sleep 0.02; done\n'
    )
    cluster.before(f'. "{tmp_path}/prompt"; echo >"{tmp_path}/prompt"')
    stderr = Prompted(login)
    monkeypatch.setattr("sys.stderr", stderr)
    code, out, _ = inspect("-o", "name")
    assert (code, out) == (0, "node/a\nnode/b\n")
    assert stderr.getvalue() == "open the browser\n"


def test_no_kubectl_is_said(inspect: Inspect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECTL", "/no/such/kubectl")
    code, out, err = inspect()
    assert (code, out) == (2, "")
    assert err.startswith("error: cannot start /no/such/kubectl (No such file or directory)")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("UPPER",), "error: 'UPPER' is not the name of a node\n"),
        (("a,metadata.name=b",), "error: 'a,metadata.name=b' is not the name of a node\n"),
        (("a", "-l", "x"), "error: name cannot be provided when a selector is specified\n"),
        (("--unit", "TiB"), "error: --unit: must be GiB, MiB or a number of MiB such as 256MiB\n"),
        (("--resource", "gpu"), "error: 'gpu' is no extended resource (domain/name)\n"),
        (
            ("-o", "xml"),
            "error: unable to match a printer suitable for the output format"
            ' "xml", allowed formats are: json,name,wide,yaml\n',
        ),
    ],
)
def test_wrong_usage_ends_with_2(
    cluster: FakeKubectl, inspect: Inspect, words: tuple[str, ...], text: str
) -> None:
    assert inspect(*words) == (2, "", text)


def test_nodes_that_do_not_exist_are_an_error(cluster: FakeKubectl, inspect: Inspect) -> None:
    text = 'Error from server (NotFound): nodes "nosuch" not found; nodes "gone" not found\n'
    assert inspect("nosuch", "gone") == (1, "", text)


@pytest.mark.parametrize("command", OF_PLUGIN)
def test_the_plugin_has_the_commands_about_pods(inspect: Inspect, command: str) -> None:
    code, out, _ = inspect(command, "--help")
    assert code == 0
    assert out.startswith(f"usage: kubectl inspect gpushare {command} ")


def test_the_plugin_as_one_file_says_what_it_lacks(
    inspect: Inspect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gpushare.cli.whatif", None)
    code, out, err = inspect("whatif", "--pods", "8GiB")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "install the package gpushare" in err


def test_a_wrong_flag_is_told_as_kubectls(inspect: Inspect) -> None:
    code, out, err = inspect("--nope")
    assert (code, out) == (2, "")
    assert err.splitlines() == [
        "error: unrecognized arguments: --nope",
        "See 'kubectl inspect gpushare --help' for usage.",
    ]


def test_garbage_from_kubectl_is_said(kubectl: FakeKubectl, inspect: Inspect) -> None:
    kubectl.otherwise("echo '<html>'")
    assert inspect() == (1, "", "error: kubectl printed no JSON for /api/v1/nodes\n")


@pytest.mark.parametrize("words", [(), ("-d",), ("-o", "name"), ("cpu-only",)])
def test_a_cluster_without_gpus_is_said_and_no_error(
    kubectl: FakeKubectl, inspect: Inspect, words: tuple[str, ...]
) -> None:
    kubectl.cluster([node("cpu-only", total=0)], [])
    assert inspect(*words) == (0, "", f"No nodes with {MEM} found.\n")
    code, out, err = inspect("-o", "json", *words[:0])
    assert (code, json.loads(out)["nodes"], err) == (0, [], "")


def test_a_broken_node_is_shown_with_a_note(kubectl: FakeKubectl, inspect: Inspect) -> None:
    kubectl.cluster(
        [node("a", inventory='{"v":1,"unit":"GiB","devices":[{"mem":-1}]}'), node("b", 33, 2)],
        [pod("p1", "a"), pod("odd", "b", "1.5"), pod("stray", "gone")],
    )
    code, out, err = inspect()
    assert code == 0
    assert err.splitlines() == [
        "Warning: node a: the GPU inventory of the node cannot be read"
        " (inventory.devices[0].mem: must be a whole number from 0 to 2147483647);"
        " its memory counts as 0",
        "Warning: node b: GPU Memory is not a whole multiple of the GPU count,"
        " and no inventory says more",
        "Warning: pod default/odd: aliyun.com/gpu-mem: '1.5' is not a whole number; it is left out",
        "Warning: node gone shares no aliyun.com/gpu-mem, and 1 pod on it asks for it",
    ]
    assert [line.split() for line in out.splitlines()[1:3]] == [
        ["a", "10.9.0.1", "0/0", "0/0", "4", "4/0"],
        ["b", "10.9.0.1", "0/16", "0/16", "0/32"],
    ]
    assert len(json.loads(inspect("-o", "json")[1])["warnings"]) == 4


@pytest.mark.parametrize("names", [("a",), ("a", "b"), ("b",)])
def test_pods_of_a_named_node_that_shares_nothing_any_more_are_told_of(
    kubectl: FakeKubectl, inspect: Inspect, names: tuple[str, ...]
) -> None:
    """The kubelet sets the capacity to 0 five minutes after the device plug-in went away."""
    kubectl.cluster([node("a", total=0), node("b")], [pod("p1", "a")])
    text = f"Warning: node a shares no {MEM}, and 1 pod on it asks for it"
    assert (text in inspect(*names)[2]) == ("a" in names)


def test_pods_of_other_nodes_than_those_named_are_not_spoken_of(
    kubectl: FakeKubectl, inspect: Inspect
) -> None:
    kubectl.cluster([node("a"), node("b"), node("c")], [pod("p1", "c", "1.5")])
    assert "default/p1" not in inspect("a", "b")[2]
    assert "default/p1" in inspect("a", "c")[2]


def test_names_cannot_command_the_terminal(kubectl: FakeKubectl, inspect: Inspect) -> None:
    cards = inventory(16, model="\x1b]0;gotcha\x07\ud800")
    kubectl.cluster([node("a", inventory=cards)], [pod("p\x1b[2J", "a", namespace="\u202e")])
    for words in (("-o", "wide"), ("-d", "-o", "wide"), ("-o", "yaml"), ("-o", "json")):
        _, out, _ = inspect(*words)
        assert all(char.isprintable() or char == "\n" for char in out)
    assert r"\x1b]0;gotcha\x07\ud800" in inspect("-o", "wide")[1]


def test_another_resource_has_its_own_names(kubectl: FakeKubectl, inspect: Inspect) -> None:
    card = node("a", total=0)
    card["status"]["capacity"] = {"example.com/npu-mem": "64", "example.com/npu-count": "2"}
    npu_pod = pod("p1", "a", idx=None, annotations={"EXAMPLE_COM_NPU_MEM_IDX": "1"})
    npu_pod["spec"]["containers"][0]["resources"]["limits"] = {"example.com/npu-mem": "8"}
    kubectl.cluster([card], [npu_pod])
    head, row, *_ = inspect("--resource", "example.com/npu-mem")[1].splitlines()
    assert head.split()[2:] == [
        "NPU0(Allocated/Total)",
        "NPU1(Allocated/Total)",
        "NPU",
        "Memory(GiB)",
    ]
    assert row.split()[2:] == ["0/32", "8/32", "8/64"]


def test_it_is_a_verb_of_gpushare_too(
    cluster: FakeKubectl, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verbs.main(["inspect", "-o", "name"]) == 0
    assert capsys.readouterr().out == "node/a\nnode/b\n"
    with pytest.raises(SystemExit, match="0"):
        verbs.main(["inspect", "--help"])
    assert "usage: gpushare inspect" in capsys.readouterr().out


def test_it_needs_the_standard_library_alone(cluster: FakeKubectl) -> None:
    modules = "inspect documents facts lister kubectl options own_pods report rights tables"
    imports = ", ".join(f"gpushare.cli.{name}" for name in modules.split())
    code = f"import sys, {imports}; print([name for name in {HEAVY} if name in sys.modules])"
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert process.stdout == "[]\n"


def test_a_reader_that_leaves_is_no_traceback(cluster: FakeKubectl) -> None:
    code = "import sys; from gpushare.cli.inspect import main; sys.exit(main([]))"
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer) as stdout:
        process = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, **cluster.environ},
            stdout=stdout,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert (process.returncode, process.stderr) == (141, b"")


@pytest.mark.parametrize(
    ("nodes", "text"),
    [
        ([], f"No nodes with {MEM} found."),
        ([node("a", 33, 2)], "Warning: node a: GPU Memory is not a whole multiple"),
    ],
)
def test_what_is_wrong_stays_on_a_screen_that_is_redrawn(
    kubectl: FakeKubectl, nodes: list[object], text: str
) -> None:
    kubectl.cluster(nodes, [])
    code = "import sys; from gpushare.cli.inspect import main; sys.exit(main(['-w']))"
    screen, terminal = os.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, **kubectl.environ},
        stdout=terminal,
        stderr=terminal,
    ) as process:
        os.close(terminal)
        screen_text = ""
        while text not in screen_text or "\x1b[2J" not in screen_text:
            screen_text += os.read(screen, 4096).decode()
        process.terminate()
    os.close(screen)
    assert text in screen_text.rpartition("\x1b[2J")[2]


def test_both_programs_are_installed() -> None:
    setup = ConfigParser()
    setup.read(Path(__file__).parents[3] / "setup.cfg")
    scripts = setup["options.entry_points"]["console_scripts"].split("\n")
    assert "kubectl-inspect-gpushare = gpushare.cli.inspect:main" in scripts
    assert "kubectl_complete-inspect-gpushare = gpushare.cli.inspect:complete" in scripts
