"""Check that the bill of materials names every locked package, with version and hashes.

Run as `python -m tests.support.sbom BOM LOCK`.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

_PACKAGE = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")

Locked = Mapping[tuple[str, str], frozenset[str]]
"""By name and version, the hashes."""


def locked(text: str) -> Locked:
    """The packages in a lock file."""
    result: dict[tuple[str, str], frozenset[str]] = {}
    for block in re.split(r"\n(?=\S)", text):
        if package := _PACKAGE.match(block):
            result[package[1], package[2]] = frozenset(_HASH.findall(block))
    return result


def missing(document: Mapping[str, object], packages: Locked) -> Iterator[str]:
    """A line for each package that the document does not name as the lock file does."""
    components = document.get("components")
    names = {
        (item["name"], item["version"]): frozenset(
            digest["content"]
            for reference in item.get("externalReferences", ())
            for digest in reference.get("hashes", ())
            if digest["alg"] == "SHA-256"
        )
        for item in (components if isinstance(components, list) else ())
    }
    for (name, version), hashes in packages.items():
        if (name, version) not in names:
            yield f"{name} {version} is not named"
        elif not hashes or names[name, version] != hashes:
            yield f"{name} {version} is named with other hashes"
    for name, version in names.keys() - packages.keys():
        yield f"{name} {version} is named, but not locked"


def main(argv: list[str]) -> int:
    """1 where something is missing, told line by line."""
    document, lock = (Path(name).read_text(encoding="utf-8") for name in argv)
    packages = locked(lock)
    text = list(missing(json.loads(document), packages))
    print("\n".join([*text, f"sbom: {len(packages)} packages, {len(text)} wrong"]))
    return 1 if text or not packages else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
