"""The version of the project: `gpushare/__init__.py` has it, other files repeat it.

`python -m tests.support.versions` prints the version; with a version as argument, writes that one
to all files. Tested in `tests/unit/test_release.py`.
"""

import re
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = "gpushare/__init__.py"
_NUMBER = r"[0-9]+\.[0-9]+\.[0-9]+(?:rc[0-9]+)?"
_IMAGE = rf"gpushare:({_NUMBER})"
_TAG = rf"newTag: ({_NUMBER})\}}"
PLACES: Mapping[str, tuple[str, ...]] = {
    SOURCE: (rf'^__version__ = "({_NUMBER})"$',),
    "localcluster/setup.cfg": (
        rf"^version = ({_NUMBER})$",
        rf"^    gpushare\[device-plugin\] ==({_NUMBER})$",
    ),
    "config/helm/gpushare/Chart.yaml": (rf"^version: ({_NUMBER})$", rf"^appVersion: ({_NUMBER})$"),
    "Dockerfile": (rf"^ARG VERSION=({_NUMBER})$",),
    "config/device-plugin/daemonset.yaml": (_IMAGE,),
    "config/extender/existing-scheduler/static-pods/gpushare-extender.yaml": (_IMAGE,),
    "config/extender/second-scheduler/deployment.yaml": (_IMAGE,),
    "config/extender/second-scheduler/kustomization.yaml": (_TAG,),
    "README.md": (_IMAGE, _TAG),
    "docs/install.md": (_IMAGE, _TAG),
}
"""Patterns of the version by file; each has to match at least once."""


def versions_in(text: str, patterns: tuple[str, ...]) -> list[str]:
    """Return all versions in a file's text. Raises ValueError if a pattern matches nothing."""
    versions = []
    for pattern in patterns:
        matches = re.findall(pattern, text, re.MULTILINE)
        if not matches:
            raise ValueError(f"nothing matches {pattern}")
        versions += matches
    return versions


def with_version(text: str, patterns: tuple[str, ...], version: str) -> str:
    """Return the text with this version in all places."""
    for pattern in patterns:
        text = re.sub(
            pattern,
            lambda match: match[0].replace(match[1], version),
            text,
            flags=re.MULTILINE,
        )
    return text


def current(root: Path = ROOT) -> str:
    """Return the version in gpushare/__init__.py."""
    return versions_in((root / SOURCE).read_text(encoding="utf-8"), PLACES[SOURCE])[0]


def main() -> int:
    """Print the version, or write the one in the command line to all files."""
    words = sys.argv[1:]
    if not words:
        print(current())
        return 0
    if len(words) > 1 or re.fullmatch(_NUMBER, words[0]) is None:
        print("python -m tests.support.versions [MAJOR.MINOR.PATCH[rcN]]", file=sys.stderr)
        return 2
    for name, patterns in PLACES.items():
        path = ROOT / name
        text = path.read_text(encoding="utf-8")
        path.write_text(with_version(text, patterns, words[0]), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
