"""A node whose containers run: containerd, NVIDIA's runtime and runc below the kubelet.

containerd runs as root in namespaces of its own: there /dev has the nodes of a driver that is not
there, and all containers end with containerd. The plug-in asks the stand-in for NVML.
"""

import functools
import hashlib
import io
import json
import shutil
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.cage import Cage
from tests.e2e.node import Node
from tests.e2e.nvidia_node import DRIVER, LIBRARIES, MAJOR, NvidiaNode
from tests.e2e.plane import Plane
from tests.e2e.plugins import Ours
from tests.e2e.processes import Process

IMAGE = "localhost/try:1"
"""The image of a program that tries all GPUs and waits; the only one of the node."""
_PROGRAM = f"""\
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>
static void end(int number) {{ _exit(0); }}
int main(void) {{
    signal(SIGTERM, end);
    FILE *file = fopen("/trying", "w");
    for (int minor = 0; file && minor < 16; minor++) {{
        char path[16];
        sprintf(path, "/gpu%d", minor);
        /* As a container may do that wants the GPUs of others. */
        if (mknod(path, S_IFCHR | 0666, makedev({MAJOR}, minor)) == 0
            && (open(path, O_RDWR) >= 0 || errno != EPERM))
            fprintf(file, "%d ", minor);
    }}
    if (file && fclose(file) == 0) rename("/trying", "/gpus");
    for (;;) pause();
}}
"""
_WITH_DEVICES = """\
cp -an /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty "$0"
mount --bind "$0" /dev
mount -t tmpfs none /run
exec "$@"
"""
_CONFIGURATION = """\
version = 2
root = "{folder}/root"
state = "{folder}/state"
[grpc]
  address = "{socket}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{folder}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{image}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    conf_dir = "{folder}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      container_annotations = ["cdi.k8s.io/*"]
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        BinaryName = "{runtime}"
"""
_NETWORK = {"cniVersion": "0.4.0", "name": "none", "plugins": [{"type": "loopback"}]}
"""For a node that is ready; no pod of the tests has a network of its own."""


@dataclass(frozen=True)
class Running:
    """A container by the files of containerd and the kernel."""

    pod: str
    container: str
    nodes: frozenset[str]
    """The names of the nodes of NVIDIA's driver in its /dev."""
    gpus: frozenset[int]
    """The numbers of the GPUs that the kernel lets it open, by nodes that it made itself."""
    has_driver: bool
    """Whether it has the driver's library for CUDA programs."""


class ContainerdNode(Node):
    """The node. nvidia: whose nodes are in /dev. toolkit: settings of NVIDIA's toolkit; None: runc
    is called without NVIDIA's runtime.
    """

    def __init__(
        self, plane: Plane, folder: Path, nvidia: NvidiaNode, toolkit: Mapping[str, bool] | None
    ) -> None:
        super().__init__(plane, folder)
        self._nvidia, self._toolkit = nvidia, toolkit
        self._devices = nvidia.root / "dev"
        self._data = folder / "containerd"

    def in_namespaces(self, *namespaces: str) -> list[str | Path]:
        """The prefix of a command that sees the nodes of the driver."""
        return ["unshare", "--mount", *namespaces, "sh", "-ec", _WITH_DEVICES, self._devices]

    def _start_runtime(self) -> Process:
        can_run_containers()
        folder = self._data
        (folder / "cni").mkdir(parents=True)
        (folder / "cni" / "10-none.conflist").write_text(json.dumps(_NETWORK))
        runtime_program = Path(shutil.which("runc") or "runc")
        if self._toolkit is not None:
            self._nvidia.configure(self._toolkit, runtime_program)
            self._nvidia.write_cdi()
            runtime_program = self._nvidia.runtime
        configuration = folder / "config.toml"
        values = {"folder": folder, "socket": self._socket, "image": IMAGE}
        configuration.write_text(_CONFIGURATION.format(**values, runtime=runtime_program))
        prefix = self.in_namespaces("--pid", "--fork", "--kill-child", "--mount-proc")
        variables = [f"{name}={value}" for name, value in self._nvidia.variables.items()]
        command = ["env", *variables, *prefix, "containerd", "--config", configuration]
        runtime = Process("containerd", command, folder)
        archive = _image(folder)
        client: list[str | Path] = ["ctr", "--address", self._socket, "--namespace", "k8s.io"]

        def imported() -> bool:
            words = [*client, "image", "import", "--snapshotter", "native", archive]
            return subprocess.run(words, capture_output=True, check=False).returncode == 0

        runtime.wait(imported, "takes no image")
        return runtime

    def running(self) -> list[Running]:
        """The containers that run."""
        tasks = self._data / "state" / "io.containerd.runtime.v2.task" / "k8s.io"
        found = [_running(folder, self._proc()) for folder in tasks.iterdir()]
        return [container for container in found if container]

    def _proc(self) -> Path:
        """The processes of the node by their numbers there."""
        assert self.runtime, "started"
        return Path(f"/proc/{self.runtime.pid}/root/proc")


class OursByNvml(Ours):
    """`gpushare device-plugin` with the nodes of the driver in /dev. flags: more of its options."""

    def __init__(
        self, plane: Plane, node: Node, folder: Path, nvidia: NvidiaNode, flags: Sequence[str]
    ) -> None:
        super().__init__(plane, node, folder)
        self._nvidia, self._flags = nvidia, flags

    def command(self) -> list[str | Path]:
        assert isinstance(self._node, ContainerdNode)
        words = super().command()
        place = words.index("--devices-file")
        nvidia = self._nvidia
        return [
            *self._node.in_namespaces(),
            *("env", f"LD_LIBRARY_PATH={nvidia.root / LIBRARIES}"),
            *(f"{name}={value}" for name, value in nvidia.variables.items()),
            *(*words[:place], *words[place + 2 :], "--host-root", nvidia.folder / "host"),
            *self._flags,
        ]


@functools.cache
def can_run_containers() -> None:
    """Skip the test where containerd cannot run containers."""
    missing = [name for name in ("containerd", "ctr", "runc", "cc") if not shutil.which(name)]
    if missing:
        pytest.skip(f"no containers without {', '.join(missing)}")
    cage = Cage("gpushare-containers", 1 << 30)
    cage.close()
    command = ["unshare", "--mount", "--pid", "--fork", "true"]
    if not cage.holds or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no containers without the right to make control groups and namespaces")


def _running(folder: Path, proc: Path) -> Running | None:
    """The container of that bundle; None for a sandbox, or one that has not tried the GPUs."""
    try:
        process = proc / (folder / "init.pid").read_text()
        nodes = frozenset(
            path.name for path in (process / "root/dev").iterdir() if "nvidia" in path.name
        )
        gpus = (process / "root/gpus").read_text().split()
        # Before the start NVIDIA's runtime may be writing it.
        spec = json.loads((folder / "config.json").read_text())
    except FileNotFoundError:
        return None
    notes = spec["annotations"]
    if notes["io.kubernetes.cri.container-type"] != "container":
        return None
    return Running(
        pod=notes["io.kubernetes.cri.sandbox-name"],
        container=notes["io.kubernetes.cri.container-name"],
        nodes=nodes,
        gpus=frozenset(map(int, gpus)),
        has_driver=(process / "root" / LIBRARIES / f"libcuda.so.{DRIVER}").exists(),
    )


def _image(folder: Path) -> Path:
    """The archive of IMAGE, with one static program."""
    source, program, archive = folder / "try.c", folder / "try", folder / "try.tar"
    source.write_text(_PROGRAM)
    subprocess.run(["cc", "-static", "-O", "-o", program, source], check=True, timeout=60)
    layer = _tar({"try": program.read_bytes()})
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": ["/try"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [IMAGE], "Layers": ["layer.tar"]}]
    files = {"config.json": config, "manifest.json": manifest}
    texts = {name: json.dumps(document).encode() for name, document in files.items()}
    archive.write_bytes(_tar({"layer.tar": layer, **texts}))
    return archive


def _tar(files: Mapping[str, bytes]) -> bytes:
    """An archive of programs with these contents."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o755
            archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()
