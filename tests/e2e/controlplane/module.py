"""Writes the go.mod that builds the commands of Kubernetes from published modules.

Knows one fact: a release's go.mod replaces each of its staging modules (k8s.io/api, ...) by a
folder of its own tree, which a module that requires k8s.io/kubernetes has to replace by the module
published with it, v0.X.Y for Kubernetes 1.X.Y. Every other replacement is taken over as it stands
(up to 1.22 there are hundreds, and without them nothing resolves). Knows nothing of the built
commands.

python module.py VERSION FOLDER     then, in FOLDER: go mod tidy
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def go(*args: str) -> dict[str, Any]:
    """The JSON output of a go command.

    Raises CalledProcessError; the command's own message is on stderr.
    """
    environment = {**os.environ, "GO111MODULE": "on", "GOFLAGS": "-mod=mod"}
    output = subprocess.run(
        ["go", *args], stdout=subprocess.PIPE, check=True, env=environment, cwd=Path.home()
    ).stdout
    result: dict[str, Any] = json.loads(output)
    return result


def written(version: str, theirs: dict[str, Any]) -> str:
    """Text of the go.mod for Kubernetes `version`; theirs: that of Kubernetes, by `go mod edit
    -json`.
    """
    _, minor, patch = version.split(".")
    published = f"v0.{minor}.{patch}"
    lines = []
    for rule in theirs["Replace"]:
        old, new = rule["Old"], rule["New"]
        if new["Path"].startswith("./"):
            lines.append(f"\t{old['Path']} => {old['Path']} {published}")
        elif (old["Path"], old.get("Version")) != (new["Path"], new.get("Version")):
            remaining = " ".join(part for part in (old["Path"], old.get("Version")) if part)
            lines.append(f"\t{remaining} => {new['Path']} {new['Version']}")
    return (
        "// Written by module.py, completed by go mod tidy.\n"
        "module gpushare.io/tests/controlplane\n\n"
        f"go {theirs['Go']}\n\n"
        f"require k8s.io/kubernetes v{version}\n\n"
        "replace (\n" + "\n".join(lines) + "\n)\n"
    )


def main(version: str, folder: str) -> None:
    download = go("mod", "download", "-json", f"k8s.io/kubernetes@v{version}")
    theirs = go("mod", "edit", "-json", download["GoMod"])
    Path(folder, "go.mod").write_text(written(version, theirs))


if __name__ == "__main__":
    main(*sys.argv[1:])
