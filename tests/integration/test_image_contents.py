"""Each image holds enough for its commands, and no more; a missing command says so.

An image is as Dockerfile says: the rooms of the package that Dockerfile copies, and the packages
of one lock file. Here each import of another package fails, as in the image, and each of a module
that Dockerfile deletes.
"""

import ast
import base64
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest

import gpushare
from tests.integration.certificates import authority, certificate
from tests.support.sbom import locked
from tests.unit.kube.exec_plugin import ExecPlugin
from tests.unit.kube.scripted_server import reply, scripted_server, write_kubeconfig

PACKAGE = Path(gpushare.__file__).parent
ROOT = PACKAGE.parent
RUNS = {
    "extender": ("serve", "doctor", "explain", "inspect", "scheduler-config", "whatif"),
    "device-plugin": ("device-plugin", "inspect"),
    "gpushare": ("serve", "doctor", "inspect", "scheduler-config", "device-plugin"),
}
LACKS = {
    "extender": ("demo", "simulate", "device-plugin"),
    "device-plugin": ("demo", "simulate", "serve", "doctor", "explain", "whatif"),
    "gpushare": ("demo", "simulate"),
}
_STARTS = {"extender": "gpushare.", "device-plugin": "gpushare.device_plugin."}
"""The prefixes of an image's modules."""

_ALONE = """
import sys

class Absent:
    names = frozenset({absent!r})
    deleted = tuple({deleted!r})
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names or name.startswith(self.deleted):
            raise ModuleNotFoundError(f"not in the image: {{name}}", name=name)

sys.meta_path.insert(0, Absent())
"""
_WALK = """
import importlib, pkgutil, gpushare
for each in pkgutil.walk_packages(gpushare.__path__, "gpushare."):
    if each.name.startswith({start!r}):
        importlib.import_module(each.name)
print(*sorted(name for name in sys.modules if name.startswith("gpushare.")))
"""


packages_distributions = cache(metadata.packages_distributions)


@dataclass(frozen=True)
class Image:
    """A target: where its package is, and the names in its lock file."""

    target: str
    folder: Path
    allowed: frozenset[str]

    def python(self, code: str, *words: str) -> "subprocess.CompletedProcess[str]":
        # -S: an editable installation would find left-out modules in the clone.
        paths = [str(self.folder), *(path for path in sys.path if path.endswith("-packages"))]
        before = _ALONE.format(absent=sorted(self.absent()), deleted=deleted_modules())
        return subprocess.run(
            [sys.executable, "-P", "-S", "-c", before + code, *words],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def absent(self) -> Iterator[str]:
        """The top names that are installed here, and not there."""
        # Modules of ours are there as far as the folder has them.
        present = {*self.allowed, "gpushare", "gpushare-localcluster"}
        for name, owners in packages_distributions().items():
            if not {normal(owner) for owner in owners} & present:
                yield name

    def gpushare(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return self.python("from gpushare.cli.main import main; sys.exit(main())", *words)


@cache
def walked(image: Image) -> "subprocess.CompletedProcess[str]":
    """The names of all modules of the image, imported."""
    return image.python(_WALK.format(start=_STARTS.get(image.target, "gpushare.")))


def normal(name: str) -> str:
    """The name of a package as lock files write names."""
    return name.lower().replace("_", "-")


def stage(name: str) -> tuple[str, str]:
    """The base image and the instructions of the stage of that name in Dockerfile."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    (result,) = re.findall(rf"^FROM (\S+) AS {name}\n(.*?)(?=^FROM |\Z)", text, re.M | re.S)
    base, steps = result
    return base, steps


def copied(name: str) -> Iterator[tuple[Path, str]]:
    """The files and folders that the stages of code up to this one copy, each with where to."""
    base, steps = stage(name)
    if base != "scratch":
        yield from copied(base)
    for line in re.findall(r"^COPY (.*)$", steps, re.MULTILINE):
        *sources, target = line.split()
        yield from ((path, target) for source in sources for path in ROOT.glob(source))


def build(target: str) -> str:
    """The instructions of Dockerfile that build the target."""
    return stage(f"build-{target}")[1]


def lock_of(target: str) -> str:
    names: list[str] = re.findall(r"--requirement (requirements\S*\.lock)", build(target))
    (name,) = names
    return (ROOT / name).read_text(encoding="utf-8")


def deleted_modules() -> list[str]:
    """The prefixes of the modules of the official client that Dockerfile deletes."""
    _, steps = stage("source")
    ((client, folders),) = re.findall(
        r"site-packages/(kubernetes)'.*\n +'find (.+) -type f ! -name \"__init__\.\*\" -delete'",
        steps,
    )
    return [f"{client}.{folder.replace('/', '.')}." for folder in folders.split()]


@pytest.fixture(scope="module", params=RUNS)
def image(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Image:
    target: str = request.param
    assert f"COPY --from=code-{target} / ./\n" in build(target)
    folder = tmp_path_factory.mktemp("image")
    for path, place in copied(f"code-{target}"):
        present = folder / place.removeprefix("/")
        if path.is_dir():
            shutil.copytree(path, present)
        else:
            present.mkdir(exist_ok=True)
            shutil.copy(path, present)
    return Image(target, folder, frozenset(name for name, _ in locked(lock_of(target))))


def test_what_it_runs_is_there(image: Image) -> None:
    for command in RUNS[image.target]:
        gpushare_result = image.gpushare(command, "--help")
        assert gpushare_result.returncode == 0, gpushare_result.stderr
        assert command in gpushare_result.stdout


def test_what_is_left_out_says_so_and_what_to_do(image: Image) -> None:
    for command in LACKS[image.target]:
        gpushare_result = image.gpushare(command, "--help")
        assert gpushare_result.returncode == 1
        assert gpushare_result.stderr.startswith(f"gpushare: {command} is not in this installation")
        assert "clone" in gpushare_result.stderr
        assert "(see README.md)" in gpushare_result.stderr
        assert ("pip install ./localcluster" in gpushare_result.stderr) == (command == "demo")
        assert gpushare_result.stderr.count("\n") == 1
    assert "\n  demo" not in image.gpushare("--help").stdout


def test_nothing_that_is_left_in_imports_what_is_left_out(image: Image) -> None:
    walked_result = walked(image)
    assert walked_result.returncode == 0, walked_result.stderr


@pytest.mark.parametrize("image", list(_STARTS), indirect=True)
def test_each_package_of_an_image_is_imported_by_its_code(image: Image) -> None:
    loaded = walked(image).stdout.split()
    owners = packages_distributions()
    imported = {
        normal(owner)
        for module in loaded
        for name in imports(module)
        for owner in owners.get(name, ())
    } & image.allowed
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    expected = {name.lower() for name in groups[image.target]}
    assert expected <= imported
    # The rest are dependencies of these, such as urllib3.
    assert expected <= image.allowed


def imports(module: str) -> Iterator[str]:
    """The top names that a module of ours imports itself."""
    path = ROOT.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module).partition(".")[0]


_CALL = """
from gpushare.kube.client import connect
for path in sys.argv[1:]:
    client = connect(path, pool_size=1, user_agent="test")
    if "https" not in open(path).read():
        client.request("GET", "/version", timeout=30)
"""


def test_without_what_dockerfile_deletes_of_the_client_each_kind_of_user_has_credentials(
    image: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exec plug-in, an OIDC token to be renewed, and a certificate, which is only read."""
    monkeypatch.setenv("OAUTHLIB_INSECURE_TRANSPORT", "1")
    plug_in = ExecPlugin(tmp_path)
    plug_in.hand_out("by-exec")
    authority(tmp_path, "ca")
    certificate(tmp_path, "me", "me", "ca", "extendedKeyUsage=clientAuth")
    pair = {"client-certificate": "me.crt", "client-key": "me.key"}
    with scripted_server() as server:
        server.script = reply(
            body=json.dumps(
                {
                    "token_endpoint": f"{server.url}/token",
                    "id_token": "by-oidc",
                    "refresh_token": "next",
                    "token_type": "bearer",
                    "access_token": "other",
                }
            ).encode(),
            headers="Content-Type: application/json\r\n",
        )
        expired = base64.urlsafe_b64encode(b'{"exp":1000000}').decode().rstrip("=")
        oidc = {
            "client-id": "id",
            "client-secret": "secret",
            "refresh-token": "first",
            "id-token": f"a.{expired}.b",
            "idp-issuer-url": server.url,
        }
        users = {
            "exec": (server.url, plug_in.user),
            "oidc": (server.url, {"auth-provider": {"name": "oidc", "config": oidc}}),
            "certificate": ("https://127.0.0.1:6443", pair),
        }
        paths = [write_kubeconfig(tmp_path / name, *user) for name, user in users.items()]
        calls = image.python(_CALL, *paths)
        assert calls.returncode == 0, calls.stderr
        credentials = [
            request.headers.get("authorization")
            for request in server.seen
            if request.target == "/version"
        ]
        assert credentials == ["Bearer by-exec", "Bearer by-oidc"]


@pytest.mark.parametrize("target", _STARTS)
def test_an_image_has_the_versions_and_hashes_that_are_tested(target: str) -> None:
    assert locked(lock_of(target)).items() <= locked(lock_of("gpushare")).items()


def test_no_trace_is_in_an_image(image: Image) -> None:
    files = [str(path) for path in image.folder.rglob("*") if path.is_file()]
    assert not [path for path in files if "openb" in path or path.endswith((".xz", ".csv"))]


def test_the_notice_names_where_the_traces_come_from() -> None:
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8")
    readme = (PACKAGE / "sim" / "data" / "README.md").read_text(encoding="utf-8")
    (commit,) = re.findall(r"\b[0-9a-f]{40}\b", readme)
    sources = re.findall(r"\(https://(github.com/[\w/-]+)\)", readme)
    assert len(sources) == 2
    assert not [item for item in (commit, *sources, "USENIX ATC 2023") if item not in notice]
    assert "NOTICE" in (ROOT / "setup.cfg").read_text(encoding="utf-8").split()
