"""The kubectl plug-in as one file: a zip that Python runs, of the package's own code. Also its
archive and manifest for krew.

`python -m tests.support.kubectl_plugin SOURCE FOLDER VERSION URL SECONDS` writes archive and
manifest into the folder; URL is where the archive will be downloaded, SECONDS the time of all
members, so that equal sources make equal files. Tested in `tests/unit/test_release.py`.
"""

import gzip
import hashlib
import os
import sys
import tarfile
import tempfile
import zipapp
from pathlib import Path
from shutil import copytree, ignore_patterns

_MAIN = "import sys\nfrom gpushare.cli.inspect import main\nsys.exit(main())\n"
_LEFT_OUT = ("__pycache__", "sim", "static", "device_plugin")
PROGRAM = "kubectl-inspect_gpushare"
MANIFEST = "inspect-gpushare.yaml"
_MANIFEST = """\
apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: inspect-gpushare
spec:
  version: v{version}
  homepage: {home}
  shortDescription: Show which pods hold how much of which GPU
  description: |
    Shows the memory and compute of each GPU that pods hold, and pods that wait.
    Needs Python 3.11 or newer.
  platforms:
    - selector:
        matchExpressions:
          - {{key: os, operator: In, values: [linux, darwin]}}
      uri: {url}/{archive}
      sha256: {digest}
      bin: {program}
      files:
        - {{from: {program}, to: .}}
        - {{from: LICENSE, to: .}}
"""


def write_plugin(source: Path, target: Path, seconds: int) -> None:
    """Write the plug-in of the package in `source` to the file `target`, executable for all."""
    with tempfile.TemporaryDirectory() as folder:
        app = Path(folder)
        copytree(source / "gpushare", app / "gpushare", ignore=ignore_patterns(*_LEFT_OUT))
        (app / "__main__.py").write_text(_MAIN, encoding="utf-8")
        for path in (app, *app.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
            os.utime(path, (seconds, seconds))
        zipapp.create_archive(app, target, "/usr/bin/env python3", compressed=True)
    target.chmod(0o755)


def write_for_krew(source: Path, folder: Path, version: str, url: str, seconds: int) -> Path:
    """Write the archive of the plug-in, and MANIFEST if there is a URL; return the archive."""
    archive = folder / f"kubectl-inspect-gpushare-{version}.tar.gz"
    with (
        tempfile.TemporaryDirectory() as work,
        archive.open("wb") as file,
        gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as tar,
    ):
        program = Path(work, PROGRAM)
        write_plugin(source, program, seconds)
        for path, mode in ((source / "LICENSE", 0o644), (program, 0o755)):
            member = tarfile.TarInfo(path.name)
            member.size, member.mtime, member.mode = path.stat().st_size, seconds, mode
            with path.open("rb") as content:
                tar.addfile(member, content)
    if not url:
        return archive
    manifest = _MANIFEST.format(
        version=version,
        home=url.partition("/releases/")[0],
        url=url,
        archive=archive.name,
        digest=hashlib.sha256(archive.read_bytes()).hexdigest(),
        program=PROGRAM,
    )
    (folder / MANIFEST).write_text(manifest, encoding="utf-8")
    return archive


if __name__ == "__main__":
    source, folder, *of_release, seconds = sys.argv[1:]
    write_for_krew(Path(source), Path(folder), of_release[0], of_release[1], int(seconds))
