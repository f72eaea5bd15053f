"""A process's container follows from its cgroup, as kubelets and runtimes name them."""

from pathlib import Path

import pytest

from gpushare.device_plugin.memory import Cgroups, container_of

ID = "3f" * 32
OTHER = "a0" * 32
UID = "e4175508-9416-4bd3-9a17-270b70ef6fdd"
SLICE = "kubepods-burstable-pod" + UID.replace("-", "_") + ".slice"


@pytest.mark.parametrize(
    "text",
    [
        f"0::/kubepods.slice/kubepods-burstable.slice/{SLICE}/cri-containerd-{ID}.scope\n",
        f"0::/../../{SLICE}/cri-containerd-{ID}.scope\n",  # seen from another container
        f"0::/kubepods.slice/{SLICE}/crio-{ID}.scope/container\n",
        f"0::/kubepods/besteffort/pod{UID}/{ID}\n",
        f"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-{SLICE}/cri-containerd-{ID}.scope\n",
        f"12:pids:/\n4:memory:/kubepods/pod{UID}/{ID}\n0::/\n",
        f"0::/kubepods/pod{UID}/{ID}/docker/{OTHER}\n",  # a container that runs others
        f"0::/kubepods/pod{UID}/{ID}/kubepods/pod{UID}/{OTHER}\n",
    ],
)
def test_the_outermost_container_of_a_pod_is_found(text: str) -> None:
    assert container_of(text) == ID


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0::/\n",
        "0::/system.slice/sshd.service\n",
        f"0::/docker/{ID}\n",  # of no pod
        f"0::/kubepods/pod{UID}\n",
        f"0::/kubepods/pod{UID}/{ID[:-1]}\n",
        f"0::/kubepods/pod{UID}/{ID}a\n",
        f"0::/kubepods/pod{UID}/x\n1:a:/{ID}\n",
        "\0" * 100,
    ],
)
def test_what_is_no_container_of_a_pod_has_no_id(text: str) -> None:
    assert container_of(text) == ""


def put(root: Path, path: str, text: str = "") -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_a_process_that_has_ended_is_in_no_container(tmp_path: Path) -> None:
    put(tmp_path, "proc/7/cgroup", f"0::/kubepods/pod{UID}/{ID}\n")
    (tmp_path / "proc/8/cgroup").mkdir(parents=True)
    cgroups = Cgroups(tmp_path)
    assert [cgroups.container(pid) for pid in (7, 8, 9)] == [ID, "", ""]


def test_the_cgroups_of_containers_are_found_and_nothing_else_is_walked(tmp_path: Path) -> None:
    root = tmp_path / "sys/fs/cgroup"
    nested = f"kubepods.slice/kubepods-burstable.slice/{SLICE}/cri-containerd-{ID}.scope"
    put(root, f"{nested}/inner/cgroup.procs")
    put(root, f"kubepods/pod{UID}/{OTHER}/cgroup.procs")
    put(root, f"system.slice/x/kubepods/pod{UID}/{'b' * 64}/cgroup.procs")
    (root / "kubepods/loop").symlink_to(root)
    expected = {ID: root / nested, OTHER: root / f"kubepods/pod{UID}/{OTHER}"}
    assert Cgroups(tmp_path).folders() == expected
    assert Cgroups(tmp_path / "nowhere").folders() == {}
