"""`python -m tests.support.screens`: the terminal output in documents, and their pictures.

Starts the demo's cluster and writes the output of commands into the documents. Then draws the
pictures of docs/start.md, and with `--all` those of the public trace, which take minutes. With
`--page` it takes the pictures of the page alone, which needs a Chromium.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpushare.cli.main import main as gpushare
from gpushare.wire.annotations import ALIYUN
from tests.integration.shown import Shown, demo
from tests.support.chromium import browser, program
from tests.support.figures import ROOT, renew
from tests.support.terminal import on_terminal
from tests.support.waiting import poll
from tests.support.walkthrough import Block, Shell, blocks

START = ROOT / "docs" / "start.md"
PICTURES = ROOT / "docs" / "pictures"
POLICIES = "random,device-bestfit,fgd,shadow-price"


@contextmanager
def cluster(folder: Path) -> Iterator[Shell]:
    """A terminal for the cluster that `gpushare demo --keep` starts."""
    programs = Path(sys.executable).parent
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    shell = Shell(folder, {**os.environ, "PATH": path, "NO_COLOR": "1"}, folder)
    try:
        lines = shell.start(Block("demo", "sh", "gpushare demo --keep", "goes on until", "gone"))
        shell.run(command(next(line for line in lines if line.startswith("export "))))
        yield shell
    finally:
        shell.end()


def command(text: str) -> Block:
    return Block("screens", "sh", text, "", "")


def show(shell: Shell, document: Path, of: str, line: str) -> None:
    """Write the command and its terminal output into the document."""
    message = on_terminal(line.split(), shell.environ)
    text = "\n".join(row.rstrip() for row in f"$ {line}\n{message}".splitlines())
    renew(document, of, f"```text\n{text}\n```")


def files(folder: Path) -> dict[str, str]:
    """The files of docs/start.md by name, put into the folder."""
    created = {block.more: block.text for block in blocks(START) if block.kind == "file"}
    for name, text in created.items():
        (folder / name).write_text(text, encoding="utf-8")
    return created


def screens(folder: Path) -> None:
    """The terminal output in documents."""
    with cluster(folder) as shell:
        shell.run(command("kubectl apply -f web.yaml && kubectl scale deployment web --replicas=9"))
        waiting(shell, 2)
        show(shell, START, "inspect, with pods that wait", "kubectl inspect gpushare")


def waiting(shell: Shell, pods: int) -> None:
    """Wait until so many pods have a reason to wait."""
    for _ in range(100):
        document = json.loads(shell.run(command("sleep 0.2; gpushare inspect -o json")))
        reasons = [pod["reason"] for pod in document["pending"]]
        if sum("nodes are available" in reason for reason in reasons) == pods:
            return
    raise TimeoutError(f"{pods} pods should wait: {document['pending']}")


def draw(folder: Path, *words: str) -> None:
    """Replace the pictures of a folder by those that a simulation draws."""
    with tempfile.TemporaryDirectory() as scratch:
        command = ["simulate", "inflation", *words, "-o", "json", "--plot", scratch]
        if gpushare(command) != 0:
            raise SystemExit(1)
        for picture in folder.glob("*.png"):
            shutil.copy(Path(scratch) / picture.name, picture)


NODES = """
title: A cluster to look at
nodes:
  - {prefix: a100-, count: 6, gpus: 8, gpuMemory: 80}
  - {prefix: l40-, count: 6, gpus: 4, gpuMemory: 48}
steps: []
"""
TEAMS = {
    "vision": (10, 16, 20),
    "speech": (6, 12),
    "search": (4, 8),
    "training": (40, 48, 80),
    "notebooks": (5, 10),
}
PODS = 246


def page(folder: Path) -> None:
    """The pictures of the page, light and dark: pods of several teams on a demo's cluster."""
    if program() is None:
        print("the pictures of the page stay as they are: there is no Chromium on PATH")
        return
    scenario = folder / "page.yaml"
    scenario.write_text(NODES, encoding="utf-8")
    with demo(folder, str(scenario)) as shown_text, browser(folder / "profile") as tab:
        fill(shown_text)
        tab.size(1280, 1000)
        for scheme in ("light", "dark"):
            tab.scheme(scheme)
            tab.open(shown_text.url)
            tab.until("document.querySelectorAll('#nodes [role=option]').length > 5")
            tab.until("!document.getElementById('waiting').textContent.includes('looked at')")
            tab.picture(PICTURES / f"page-{scheme}.png")


def fill(shown_text: Shown) -> None:
    """Have pods of all sizes come until some wait, and a device closed; return when all is told."""
    chance = random.Random(4)
    closed_nodes = {"metadata": {"name": "unhealthy-gpu-a100-2"}, "data": {"gpus": "3,5"}}
    shown_text.api.create("/api/v1/namespaces/kube-system/configmaps", closed_nodes)
    for team in TEAMS:
        shown_text.api.create("/api/v1/namespaces", {"metadata": {"name": team}})
    for number in range(PODS):
        team = chance.choice(list(TEAMS))
        units = str(chance.choice(TEAMS[team]))
        limits = {"resources": {"limits": {ALIYUN.resource: units}}}
        body = {
            "metadata": {"name": f"{team}-{number}", "namespace": team},
            "spec": {"containers": [{"name": "main", "image": "x"} | limits]},
        }
        shown_text.api.create(f"/api/v1/namespaces/{team}/pods", body)
    poll(lambda: told(shown_text), "all pods are placed or refused, and a trial was made", 240)


def told(shown_text: Shown) -> bool:
    """Whether each pod is placed or refused, and a trial has measured the policies."""
    books = shown_text.books()
    placement = sum(len(node["pods"]) for node in books["nodes"])
    request = all(item["asked"] and item["why"] for item in books["pending"])
    trial = bool(books["policy"]["candidates"])
    return trial and request and placement + len(books["pending"]) == PODS


def main() -> int:
    """Renew all documents and pictures."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        page(folder)
        if "--page" in sys.argv[1:]:
            return 0
        files(folder)
        screens(folder)
        small = ["--nodes", str(folder / "nodes.csv"), "--pods", str(folder / "pods.csv")]
        small += ["--policy", "device-bestfit,shadow-price"]
        draw(PICTURES / "start", *small)
    if "--all" in sys.argv[1:]:
        draw(PICTURES, "--policy", POLICIES, "--seeds", "42-43", "--workload", "known")
    subprocess.run(["git", "status", "--short", "docs"], cwd=ROOT, check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
