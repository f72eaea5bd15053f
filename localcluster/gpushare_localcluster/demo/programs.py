"""Steps and objects that shipped scenarios share if these are programs.

Objects are plain dicts, which the official Kubernetes client takes as well. Tested in
`localcluster/tests/test_demo_programs.py`.
"""

import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

Json = dict[str, Any]

GPU_MEM = "aliyun.com/gpu-mem"


def say(text: str) -> None:
    """Print a line, in order with those of the demo."""
    sys.stdout.write(f"   {text}\n")
    sys.stdout.flush()


def expect(true: object, text: str) -> None:
    """End the scenario with a failed expectation unless the first argument is true."""
    if not true:
        raise AssertionError(text)


def wait_for(true: Callable[[], object], text: str = "", seconds: float = 40.0) -> None:
    """Wait until the condition is true, and print the text, if any."""
    deadline = time.monotonic() + seconds
    while not true():
        expect(time.monotonic() < deadline, f"not so within {seconds:g} s: {text}")
        time.sleep(0.05)
    if text:
        say(f"✓ {text}")


def gpushare(*words: str, hidden: tuple[str, ...] = (), code: int = 0) -> str:
    """Run the command, show it and what it prints, and return its standard output.

    hidden: more words, not shown. code: the exit code that is expected.
    """
    say(f"$ gpushare {shlex.join(words)}")
    program = [sys.executable, "-P", "-m", "gpushare.cli.main", *words, *hidden]
    ran = subprocess.run(  # noqa: S603 -- the words are those of a scenario
        program, capture_output=True, check=False, text=True
    )
    for line in (ran.stdout + ran.stderr).splitlines():
        say(f"  {line}")
    expect(ran.returncode == code, f"exit code {code}, and not {ran.returncode}")
    return ran.stdout


def node(name: str, cards: int, model: str = "") -> Json:
    """Return a node with so many cards of 16 GiB. model: of the cards, "" if nobody says."""
    amounts = {"cpu": "16", "memory": "64Gi", "pods": "110"}
    amounts |= {GPU_MEM: str(16 * cards), "aliyun.com/gpu-count": str(cards)}
    labels = {"gpushare": "true"} | ({"nvidia.com/gpu.product": model} if model else {})
    ready = {"type": "Ready", "status": "True"}
    return {
        "metadata": {"name": name, "labels": labels},
        "status": {"capacity": amounts, "allocatable": amounts, "conditions": [ready]},
    }


def container(units: int) -> Json:
    """Return a container that asks for so many GiB of device memory, or for none."""
    resources: Json = {"requests": {"cpu": "100m"}}
    if units:
        resources["limits"] = {GPU_MEM: str(units)}
    return {"name": "main", "image": "registry.k8s.io/pause:3.10", "resources": resources}


def pod(name: str, units: int) -> Json:
    """Return a pod of one container."""
    return {"metadata": {"name": name}, "spec": {"containers": [container(units)]}}
