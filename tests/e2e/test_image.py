"""The image serves as Kubernetes runs it: as uid 65532, with a root file system for reading alone.

The file system of the archive that `make images` builds is the root of the process.
"""

import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.extender import RealExtender
from tests.integration.cluster import Cluster
from tests.integration.process import free_port
from tests.support.versions import current

pytestmark = pytest.mark.timeout(400)

ARCHIVE = Path(__file__).parents[2] / "build" / "images" / f"gpushare-{current()}.oci.tar"
_IN_ROOT = """\
mount --bind "$0" "$0"
mount -o remount,bind,ro "$0"
mount -t tmpfs none "$0/tmp"
mount -t proc none "$0/proc"
mount --bind /dev "$0/dev"
mount --bind "$1" "$0/mnt"
shift
exec chroot --userspec "$1" --groups= "$0" env -i "${@:2}"
"""
_WHITEOUT = ".wh."


@dataclass(frozen=True)
class Image:
    """An unpacked image."""

    root: Path
    user: str
    environment: tuple[str, ...]
    program: tuple[str, ...]


@pytest.fixture
def image(tmp_path: Path) -> Iterator[Image]:
    if not ARCHIVE.exists():
        pytest.skip(f"no {ARCHIVE.name}: `make images` builds it, as root with buildah")
    if os.geteuid() or shutil.which("unshare") is None:
        pytest.skip("an image is started as root, with unshare")
    root = tmp_path / "root"
    yield unpack(ARCHIVE, root)
    shutil.rmtree(root)  # hundreds of MiB


def unpack(archive: Path, root: Path) -> Image:
    """Put the layers of an OCI archive on top of each other (image-spec, layer.md)."""
    with tarfile.open(archive) as files:

        def blob(descriptor: dict[str, str]) -> "tarfile.ExFileObject":
            stream = files.extractfile("blobs/" + descriptor["digest"].replace(":", "/"))
            assert isinstance(stream, tarfile.ExFileObject)
            return stream

        index = files.extractfile("index.json")
        assert index
        (first,) = json.load(index)["manifests"]
        manifest = json.load(blob(first))
        for layer in manifest["layers"]:
            with tarfile.open(fileobj=blob(layer)) as tree:
                members = tree.getmembers()
                for member in members:
                    folder, _, name = member.name.rpartition("/")
                    if name.startswith(_WHITEOUT):
                        lower = root / folder / name.removeprefix(_WHITEOUT)
                        subprocess.run(["rm", "-rf", "--", lower], check=True)
                kept = [member for member in members if f"/{_WHITEOUT}" not in f"/{member.name}"]
                tree.extractall(root, kept, filter="fully_trusted")  # noqa: S202 -- our own
        root.chmod(0o755)
        config = json.load(blob(manifest["config"]))["config"]
    return Image(root, config["User"], tuple(config["Env"]), tuple(config["Entrypoint"]))


def test_the_image_answers_a_filter_as_a_user_who_can_write_nothing(
    image: Image, tmp_path: Path
) -> None:
    cluster = Cluster()
    mounted, port = tmp_path / "mounted", free_port()
    mounted.mkdir()
    Path(cluster.kubeconfig(mounted)).chmod(0o644)
    script = ("unshare", "--mount", "bash", "-euc", _IN_ROOT)
    extender = RealExtender(
        tmp_path,
        port,
        Path("/mnt/kubeconfig"),
        *("--leadership", "off", "--listen", f"127.0.0.1:{port}"),
        prefix=(*script, str(image.root), str(mounted), image.user, *image.environment),
        program=image.program,
    )
    try:
        node, pod = cluster.node(), cluster.pod(4)
        extender.start()
        assert extender.fit(pod, [node]) == [node]
        assert extender.fit(cluster.pod(17), [node]) == []
        assert extender.process
        status = Path(f"/proc/{extender.process.pid}/status").read_text().splitlines()
        values = dict(line.split(":", 1) for line in status)
        assert values["Uid"].split() == ["65532"] * 4
        assert (values["Groups"].split(), int(values["CapEff"], 16)) == ([], 0)
        root = f"/proc/{extender.process.pid}/root"
        with pytest.raises(OSError, match="Read-only file system"):
            Path(root, "opt/gpushare/new").touch()
    finally:
        extender.stop()
        cluster.stop()
