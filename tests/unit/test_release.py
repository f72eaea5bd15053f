"""All files have one version, and the workflows and hooks run the project's own commands."""

import re
import subprocess
import sys
import tarfile
from hashlib import sha256
from pathlib import Path

import pytest
import yaml

from tests.support.kubectl_plugin import MANIFEST, PROGRAM, write_for_krew, write_plugin
from tests.support.versions import PLACES, current, versions_in, with_version

ROOT = Path(__file__).parents[2]
_TOOL: list[str | Path] = [ROOT / "tests/e2e/tools/build.sh", "krew", "--built"]
KREW = Path(
    subprocess.run(_TOOL, capture_output=True, text=True, check=True).stdout.strip(), "krew"
)


@pytest.mark.parametrize("name", PLACES)
def test_each_file_has_the_version_and_takes_a_new_one(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert set(versions_in(text, PLACES[name])) == {current()}
    changed = with_version(text, PLACES[name], "10.20.30rc4")
    assert set(versions_in(changed, PLACES[name])) == {"10.20.30rc4"}
    assert changed.count("10.20.30rc4") == len(versions_in(text, PLACES[name]))
    # The rest of the text stays.
    assert with_version(changed, PLACES[name], current()) == text


def test_no_other_file_of_an_installation_names_a_version_of_the_image() -> None:
    files = [path for path in (ROOT / "config").rglob("*") if path.is_file()]
    named = {
        str(path.relative_to(ROOT))
        for path in files
        if re.search(r"gpushare:[0-9]+\.[0-9]", path.read_text(encoding="utf-8"))
    }
    assert named <= PLACES.keys()


def test_the_hook_before_a_commit_is_make_lint() -> None:
    document = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    (repository,) = document["repos"]
    (hook,) = repository["hooks"]
    assert repository["repo"] == "local"
    assert (hook["entry"], hook["language"], hook["pass_filenames"]) == (
        "make --no-print-directory lint",
        "system",
        False,
    )


def test_the_workflows_run_the_projects_own_commands() -> None:
    commands = {}
    for path in sorted((ROOT / ".github/workflows").glob("*.yaml")):
        jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].values()
        steps = [step for job in jobs for step in job["steps"]]
        commands[path.name] = [step["run"] for step in steps if "run" in step]
    assert ".ci/run" in commands["ci.yaml"]
    assert any(" make release " in command for command in commands["release.yaml"])


def test_the_kubectl_plug_in_is_one_file_that_a_bare_python_runs(tmp_path: Path) -> None:
    plugin, same = tmp_path / "kubectl-inspect_gpushare", tmp_path / "same"
    for path in (plugin, same):
        write_plugin(ROOT, path, 1_795_000_000)
    assert plugin.read_bytes() == same.read_bytes()
    assert plugin.stat().st_mode & 0o777 == 0o755
    # Without site-packages and without this folder.
    command = [sys.executable, "-I", "-S", str(plugin), "--version"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.stdout, done.stderr) == (f"kubectl-inspect-gpushare {current()}\n", "")


URL = "https://example.com/o/gpushare/releases/download/v1.2.3"


def test_krew_finds_the_plug_in_where_its_manifest_says(tmp_path: Path) -> None:
    """As krew installs: sha256 and uri of the archive, `files` out of it, and `bin` of these."""
    (tmp_path / "again").mkdir()
    first = write_for_krew(ROOT, tmp_path, "1.2.3", URL, 1_795_000_000)
    again = write_for_krew(ROOT, tmp_path / "again", "1.2.3", "", 1_795_000_000)
    assert not (tmp_path / "again" / MANIFEST).exists()  # there is no place to download from
    assert first.read_bytes() == again.read_bytes()
    manifest = yaml.safe_load((tmp_path / MANIFEST).read_text(encoding="utf-8"))
    (platform,) = manifest["spec"]["platforms"]
    assert platform["uri"] == f"{URL}/{first.name}"
    assert platform["sha256"] == sha256(first.read_bytes()).hexdigest()
    assert manifest["metadata"]["name"] == "inspect-gpushare"  # kubectl inspect gpushare
    assert platform["bin"] == PROGRAM
    with tarfile.open(first) as tar:
        tar.extractall(tmp_path / "unpacked", filter="data")
    installed = tmp_path / "store"
    installed.mkdir()
    for item in platform["files"]:
        assert item["to"] == "."
        (tmp_path / "unpacked" / item["from"]).rename(installed / item["from"])
    assert sorted(path.name for path in installed.iterdir()) == ["LICENSE", PROGRAM]
    done = subprocess.run(
        [installed / platform["bin"], "--version"],
        capture_output=True,
        text=True,
        env={"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"},
        check=False,
    )
    assert (done.stdout, done.stderr) == (f"kubectl-inspect-gpushare {current()}\n", "")


@pytest.mark.skipif(not KREW.exists(), reason="no krew: `make krew` builds it with Go")
def test_krew_itself_installs_the_plug_in_and_no_changed_archive(tmp_path: Path) -> None:
    archive = write_for_krew(ROOT, tmp_path, "1.2.3", URL, 1_795_000_000)
    root = tmp_path / "krew"
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    environ = {"KREW_ROOT": str(root), "PATH": path, "HOME": str(tmp_path)}

    def krew(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [KREW, *words], capture_output=True, text=True, env=environ, check=False
        )

    words = ("--manifest", str(tmp_path / MANIFEST), "--archive", str(archive))
    done = krew("install", *words)
    assert "Installed plugin: inspect-gpushare" in done.stderr, done
    program = root / "bin" / PROGRAM
    command = [str(program), "--version"]
    ran = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
    assert ran.stdout == f"kubectl-inspect-gpushare {current()}\n"
    environ["KREW_ROOT"] = str(tmp_path / "another")
    archive.write_bytes(archive.read_bytes() + b"changed")
    assert "checksum does not match" in krew("install", *words).stderr


def test_without_buildah_the_images_are_skipped_with_one_line(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "dirname").symlink_to("/usr/bin/dirname")
    done = subprocess.run(
        ["/bin/bash", ROOT / ".ci/images", tmp_path / "out"],
        capture_output=True,
        text=True,
        env={"PATH": str(programs)},
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "images: skipped, there is no buildah (Debian's package buildah)\n"
    assert not (tmp_path / "out").exists()
