"""Threads of the service start after gunicorn's fork, so no constructor may make a thread.

Python 3.13 does not start a thread that was made before a fork; older Pythons treat it as ended.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpushare

FORKED = ("extender", "kube", "ledger")
"""The parts that run in gunicorn's worker; the parent process makes them."""
MADE = frozenset({"Thread", "Timer", "ThreadPoolExecutor", "ProcessPoolExecutor"})

_FORKS = """
import os, threading
from http.client import HTTPConnection
from gpushare.daemon.health import HealthServer

server = HealthServer("127.0.0.1", 0, dict, dict, bytes)
if child := os.fork():
    raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
server.start()
client = HTTPConnection("127.0.0.1", server.port, timeout=20)
client.request("GET", "/livez")
assert client.getresponse().status == 200
server.stop()
thread = server._thread
thread.join(20)
assert not thread.is_alive() and thread not in threading.enumerate()
"""


def made_too_early(source: str) -> Iterator[int]:
    """Lines that make a thread in a constructor, or when the module is imported."""
    tree = ast.parse(source)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    early = [node for node in functions if node.name in ("__init__", "__post_init__")]
    inside = {inner for node in functions for inner in ast.walk(node)}
    constructing = {inner for node in early for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (node in constructing or node not in inside):
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if name in MADE:
                yield node.lineno


def test_no_constructor_makes_a_thread() -> None:
    package = Path(gpushare.__file__).parent
    files = [
        path
        for area in FORKED
        for path in ((package / area).rglob("*.py") if "." not in area else [package / area])
    ]
    threads = [
        f"{path.relative_to(package)}:{line} makes a thread before the fork; make it in start()"
        for path in sorted(files)
        for line in made_too_early(path.read_text(encoding="utf-8"))
    ]
    assert files
    assert not threads, "\n".join(threads)


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("class A:\n def __init__(self):\n  self.t = threading.Thread()", [3]),
        ("class A:\n def start(self):\n  self.t = threading.Thread()", []),
        ("pool = ThreadPoolExecutor()", [1]),
    ],
)
def test_the_rule_can_fail(source: str, lines: list[int]) -> None:
    assert list(made_too_early(source)) == lines


def test_the_health_listener_made_before_a_fork_serves_and_ends_after_it() -> None:
    command = [sys.executable, "-P", "-c", _FORKS]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
