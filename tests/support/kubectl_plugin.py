"""The kubectl plug-in as one file: a zip that Python runs, of the package's own code.

`python -m tests.support.kubectl_plugin SOURCE FILE SECONDS` writes it; SECONDS is the time of all
members, so that equal sources make equal files. Tested in `tests/unit/test_release.py`.
"""

import os
import sys
import tempfile
import zipapp
from pathlib import Path
from shutil import copytree, ignore_patterns

_MAIN = "import sys\nfrom gpushare.cli.inspect import main\nsys.exit(main())\n"
_LEFT_OUT = ("__pycache__", "sim", "static", "device_plugin")


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


if __name__ == "__main__":
    write_plugin(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
