"""Output on a terminal, and the forms that the original does not have."""

import json
import os
import re
import sys
from collections.abc import Callable

import pytest

from tests.support.terminal import on_terminal
from tests.unit.cli.fake_kubectl import FakeKubectl, closing, inventory, node, pending, pod

Inspect = Callable[..., tuple[int, str, str]]

WAITS = "0/2 nodes are available: 2 Insufficient GPU Memory in one device."


@pytest.fixture
def cluster(kubectl: FakeKubectl) -> FakeKubectl:
    kubectl.cluster(
        [node("a"), node("b", inventory=inventory(16))],
        [
            pod("p1", "a", 16),
            pod("p2", "b", 13),
            pending(
                "late", 8, reason=f"{WAITS} preemption: 0/2 nodes are available: 2 No victims."
            ),
            pending("alone", 1, namespace="team"),
            pending("plain", 0, reason="of no interest"),
        ],
        [closing("a", "1"), closing("elsewhere", "0"), {"metadata": {"name": "kubeadm-config"}}],
    )
    return kubectl


def shown(kubectl: FakeKubectl, *words: str, columns: int = 0, **environ: str) -> str:
    """Return the output of the command on a terminal; columns: 0 for an unknown number."""
    code = "import sys; from gpushare.cli.inspect import main; sys.exit(main(sys.argv[1:]))"
    environ = {**os.environ, **kubectl.environ, "TERM": "xterm", **environ}
    return on_terminal([sys.executable, "-c", code, *words], environ, columns)


def test_a_terminal_shows_bars_closed_devices_and_why_pods_wait(cluster: FakeKubectl) -> None:
    assert shown(cluster, NO_COLOR="1") == (
        "NAME  IPADDRESS  GPU0(Allocated/Total)  GPU1(Allocated/Total)  GPU Memory(GiB)\n"
        "a     10.9.0.1   ######## 16/16         closed   0/16          16/32\n"
        "b     10.9.0.1   ######.. 13/16                                13/16\n"
        f"{'-' * (len('a.10.9.0.1.16/16.0/16.16/32.') + 20)}\n"
        "Allocated/Total GPU Memory In Cluster:\n"
        "29/48 (60%)  \n"
        "\n"
        "PENDING POD  NAMESPACE  GPU Memory(GiB)  REASON\n"
        f"late         default    8                {WAITS}\n"
        "alone        team       1                default-scheduler has not looked at it\n"
    )


def test_a_long_reason_goes_on_below_itself(kubectl: FakeKubectl) -> None:
    reason = "0/2 nodes are available: 2 Insufficient GPU Memory in one device."
    kubectl.cluster([node("a", inventory=inventory(16))], [pending("late", 8, reason=reason)])
    text = shown(kubectl, columns=70).partition("\x1b[33mPENDING")[2]
    assert text.splitlines() == [
        " POD\x1b[0m  NAMESPACE  GPU Memory(GiB)  REASON",
        "\x1b[33mlate\x1b[0m         default    8                0/2 nodes are available: 2",
        f"{' ' * 41}Insufficient GPU Memory in",
        f"{' ' * 41}one device.",
    ]


def test_a_bar_has_no_room_where_all_compute_is_given(kubectl: FakeKubectl) -> None:
    pods = [pod("p1", "a", 4, cores=100), pod("p2", "a", 4, idx="1", cores=90)]
    kubectl.cluster([node("a", inventory=inventory(16, 16))], pods)
    line = shown(kubectl, NO_COLOR="1").splitlines()[1]
    assert line.split()[2:] == ["##xxxxxx", "4/16", "##......", "4/16", "8/32"]


def test_eight_devices_fit_a_hundred_columns(kubectl: FakeKubectl) -> None:
    left_out = node("gpu-node-b", inventory=inventory(*[80] * 8))
    left_out["spec"] = {"unschedulable": True}
    pods = [pod(f"p{index}", "gpu-node-a", 80, idx=str(index)) for index in range(8)]
    kubectl.cluster([node("gpu-node-a", inventory=inventory(*[80] * 8)), left_out], pods, [])
    lines = shown(kubectl, NO_COLOR="1").splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[0].split() == [
        "NAME",
        "IPADDRESS",
        *(f"GPU{index}" for index in range(8)),
        "GiB",
        "NOTE",
    ]
    assert lines[1].split() == ["gpu-node-a", "10.9.0.1", *["80/80"] * 8, "640/640"]
    assert lines[2].split()[-2:] == ["0/640", "cordoned"]


def test_colours_of_bars_say_how_much_room_there_is(cluster: FakeKubectl) -> None:
    for words in ((), ("-o", "wide")):
        text = shown(cluster, *words)
        assert "\x1b[31m########\x1b[0m 16/16" in text
        assert "\x1b[33m######\x1b[0m.. 13/16" in text
        assert "\x1b[2mclosed   0/16\x1b[0m" in text
        assert re.sub(r"\x1b\[\d*m", "", text) == shown(cluster, *words, NO_COLOR="")
    assert "\x1b" not in shown(cluster, TERM="dumb")


def test_details_on_a_terminal_have_a_line_of_bars(cluster: FakeKubectl) -> None:
    lines = shown(cluster, "-d", "a", NO_COLOR="1").splitlines()
    assert lines[4].split() == ["NAME", "NAMESPACE", "GPU0(Allocated)", "GPU1(closed)"]
    assert [line.split() for line in lines[5:7]] == [
        ["p1", "default", "16", "0"],
        ["########", "16/16", "closed", "0/16"],
    ]


def test_a_pipe_gets_what_the_original_prints_and_no_more_is_asked_for(
    cluster: FakeKubectl, inspect: Inspect
) -> None:
    code, out, err = inspect()
    assert (code, err) == (0, "")
    assert out.splitlines()[1:3] == [
        "a     10.9.0.1   16/16                  0/16                   16/32",
        "b     10.9.0.1   13/16                  0/0                    13/16",
    ]
    assert "PENDING" not in out
    assert len(cluster.log) == 2
    assert not any("configmaps" in line for line in cluster.log)


def test_lines_for_scripts_stay_plain_on_a_terminal(cluster: FakeKubectl) -> None:
    text = shown(cluster, "--no-headers")
    assert text.splitlines() == [
        "a  10.9.0.1  16/16  0/16  16/32",
        "b  10.9.0.1  13/16  0/0   13/16",
    ]


def test_wide_and_documents_tell_of_closed_devices_and_pods_that_wait(
    cluster: FakeKubectl, inspect: Inspect
) -> None:
    _, out, err = inspect("-o", "wide")
    first = out.splitlines()[1].split()
    assert (first[-5:], err) == (["0", "1", "-", "unhealthy:", "1"], "")
    assert out.endswith(
        "alone        team       1                default-scheduler has not looked at it\n"
    )
    document = json.loads(inspect("-o", "json")[1])
    assert document["nodes"][0]["devices"][1]["healthy"] is False
    assert document["free"] == 3
    assert document["pending"] == [
        {
            "namespace": namespace,
            "name": name,
            "uid": f"uid-{name}",
            "requested": units,
            "devices": 1,
            "reason": reason,
        }
        for namespace, name, units, reason in (
            ("default", "late", 8, WAITS),
            ("team", "alone", 1, "default-scheduler has not looked at it"),
        )
    ]
    team = json.loads(inspect("-o", "json", "-n", "team")[1])
    assert [pod["name"] for pod in team["pending"]] == ["alone"]


def test_pods_that_wait_are_of_no_node_and_no_label(cluster: FakeKubectl, inspect: Inspect) -> None:
    for words in (("a",), ("-l", "pool=x")):
        assert json.loads(inspect("-o", "json", *words)[1])["pending"] == []
    assert "spec.nodeName%21%3D" in cluster.log[-3]


def test_pods_that_wait_are_shown_where_there_is_no_gpu(
    kubectl: FakeKubectl, inspect: Inspect
) -> None:
    kubectl.cluster([node("a", total=0)], [pending("late", reason="nowhere")])
    code, out, err = inspect("-o", "wide")
    assert (code, err) == (0, "No nodes with aliyun.com/gpu-mem found.\n")
    assert out.splitlines()[1].split() == ["late", "default", "4", "nowhere"]


def test_who_may_not_read_config_maps_is_told_what_is_missing(
    cluster: FakeKubectl, inspect: Inspect
) -> None:
    text = "Error from server (Forbidden): configmaps is forbidden: User u cannot list resource"
    cluster.does(
        "get --raw /api/v1/namespaces/kube-system/configmaps?limit=5000",
        f"echo '{text}' >&2; exit 1",
    )
    code, out, err = inspect("-o", "json")
    output = f"devices that ConfigMaps close are not known: {text}"
    assert (code, err) == (0, f"Warning: {output}\n")
    assert json.loads(out)["warnings"] == [output]


def test_a_config_map_that_cannot_be_read_is_told(kubectl: FakeKubectl, inspect: Inspect) -> None:
    kubectl.cluster([node("a")], [], [closing("a", "all")])
    _, out, err = inspect("-o", "wide")
    assert err.startswith("Warning: ConfigMap unhealthy-gpu-a: gpus: 'all' is not a device index")
    assert out.splitlines()[1].split()[-1] == "-"
