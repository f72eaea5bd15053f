"""Who may import whom: the layers of the package, and one door for each guest.

A broken rule fails with its own sentence. docs/architecture.md shows the table as it is.
"""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import gpushare
import gpushare_localcluster
from tests.support.figures import ROOT, renew, shown

PAGE = ROOT / "docs" / "architecture.md"
OF = "the layers"

PACKAGES = [Path(file).parent for file in (gpushare.__file__, gpushare_localcluster.__file__)]

LAYERS: dict[str, tuple[str, ...]] = {
    "__init__": (),
    "errors": (),
    "addresses": (),
    "commandline": (),
    "settings": ("errors", "addresses", "commandline"),
    "yamlfile": ("errors",),
    "logline": (),
    "turns": (),
    "core": ("errors",),
    "wire": ("errors", "addresses", "core"),
    "ledger": ("errors", "core"),
    "kube": ("errors", "addresses", "logline"),
    "daemon": ("errors", "addresses", "logline", "turns", "wire", "kube"),
    # Texts about a pod or a plan: the extender has the books, the command line has lists.
    "explain": ("errors", "turns", "core", "wire", "ledger"),
    "extender": (
        *("errors", "addresses", "logline", "turns", "yamlfile", "core", "wire", "ledger", "kube"),
        *("daemon", "explain"),
    ),
    "device_plugin": (
        *("errors", "commandline", "logline", "yamlfile", "core", "wire", "kube", "daemon"),
    ),
    # `inspect` starts with the standard library alone; `explain` and `whatif` keep books.
    "cli": (
        *("errors", "addresses", "commandline", "core.amounts", "core.model", "core.cover"),
        *("core.node_filters", "core.policy", "core.workload_names"),
        *("core.ranking", "core.selectors", "core.claims", "yamlfile", "wire", "kube", "ledger"),
        *("explain", "trace"),
    ),
    # Its own area: it judges what the codecs say and what the API server shows, and must run where
    # neither the extender's code nor the books can be trusted.
    "doctor": (
        *("errors", "commandline", "yamlfile", "core.model", "core.node_filters", "wire", "kube"),
    ),
    "policy": ("core",),
    "trace": ("errors", "core"),
    "sim": ("errors", "commandline", "core", "trace"),
    # A distribution of its own, which no part of gpushare knows. Its kubelet speaks the device
    # plug-in's protocol, and has it run on its nodes. Its demo has no time for how long the
    # extender waits beside autoscalers.
    "gpushare_localcluster": (
        *("errors", "commandline", "yamlfile", "core.claims", "core.model"),
        *("core.selectors", "wire", "trace"),
        *("device_plugin.kubelet", "device_plugin.kubelet_pb2"),
        *("device_plugin.options", "device_plugin.plugin"),
        *("extender.follow.placeholders", "extender.follow.scale_down_guard"),
    ),
}
"""The modules that each area may import besides itself: siblings do not import each other."""


def as_text() -> str:
    """The table of the page."""
    lines = ["| part | may import |", "| --- | --- |"]
    lines += [
        f"| `{area}` | {', '.join(f'`{below}`' for below in parts_below) or 'nothing of ours'} |"
        for area, parts_below in LAYERS.items()
        if area != "__init__"
    ]
    return "\n".join(lines)


DOORS: dict[str, tuple[str, ...]] = {
    "flask": ("extender.door.app",),
    "google": (
        *("device_plugin.kubelet", "device_plugin.kubelet_pb2", "device_plugin.server"),
        "gpushare_localcluster.devices",
    ),
    "cel": ("wire.dra.selectors",),
    "grpc": (
        *("device_plugin.kubelet", "device_plugin.server"),
        "gpushare_localcluster.devices",
    ),
    "gunicorn": (
        "extender.door.connection",
        "extender.door.known_heads",
        "extender.door.server",
        "extender.door.worker",
    ),
    "highspy": ("core.policies",),
    "kubernetes": ("kube.session",),
    "matplotlib": ("sim.plots",),
    "msgspec": (
        "wire.codec",
        "wire.binding",
        "wire.dra.objects",
        "wire.dra.requests",
        "wire.objects",
        "wire.extender",
        "wire.kueue",
        "wire.moves",
        "wire.preempt",
        "device_plugin.devices",
        "gpushare_localcluster.api.objects",
        "gpushare_localcluster.client",
        "gpushare_localcluster.demo.plan",
        "gpushare_localcluster.demo.scenario",
    ),
    "numpy": ("core", "policy", "sim", "explain"),
    "prometheus_client": ("device_plugin.metrics", "extender.tell.metrics"),
    "pynvml": ("device_plugin.devices",),
    "tqdm": ("cli.whatif", "sim.main"),
    "urllib3": ("kube.responses", "kube.client", "kube.session"),
    "werkzeug": ("extender.door.app",),
    "yaml": (
        "gpushare_localcluster.demo.scenario",
        "gpushare_localcluster.demo.cluster",
        "sim.main",
        "yamlfile",
    ),
}
"""Where each guest comes in."""

LAZY_DOORS = {"kubernetes": ("gpushare_localcluster",)}
"""Where a guest may come in when it is called for: a scenario may be a client's program."""

IMPURE = frozenset({"time", "threading", "logging", "socket", "os", "random"})


@dataclass(frozen=True)
class Import:
    """One import: importing module, imported module, whether inside a function.

    Modules of gpushare are named without `gpushare.`, those of gpushare_localcluster wholly.
    """

    by: str
    of: str
    lazy: bool

    @property
    def own(self) -> str:
        """The module or name of ours that is imported, without `gpushare.`; "" for a guest."""
        inside = within(self.of, ("gpushare", "gpushare_localcluster"))
        return self.of.removeprefix("gpushare.") if inside else ""


def imports(by: str, source: str) -> Iterator[Import]:
    tree = ast.parse(source)
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    inside = {
        inner for node in ast.walk(tree) if isinstance(node, functions) for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (Import(by, name, node in inside) for name in names)


def within(name: str, areas: tuple[str, ...]) -> bool:
    return any(name == area or name.startswith(f"{area}.") for area in areas)


def broken(item: Import) -> str | None:
    """The sentence of the rule that the import breaks, or None."""
    return _broken_by_own(item) if item.own else _broken_by_guest(item)


def _broken_by_own(item: Import) -> str | None:
    area, of = item.by.partition(".")[0], item.own
    root = item.by.endswith(".main")
    if of == "__version__":
        return None
    if of.split(".")[1:2] == ["main"]:
        at_call = item.by == "cli.main" and item.lazy
        return None if at_call else "only cli/main.py imports a main.py, when its command is called"
    if within(of, ("settings",)):
        reader = root or item.by in ("extender.process", "extender.factory")
        return (
            None
            if reader
            else "only composition roots read settings, and extender.process and .factory"
        )
    if not within(of, (area, *LAYERS[area])):
        return f"{area} may import {', '.join(LAYERS[area]) or 'nothing of ours'} and itself"
    return None


def _broken_by_guest(item: Import) -> str | None:
    guest = item.of.partition(".")[0]
    if guest in IMPURE and within(item.by, ("core", "wire")):
        return f"core and wire are pure: they do not import {', '.join(sorted(IMPURE))}"
    if guest in sys.stdlib_module_names:
        return None
    if item.lazy and within(item.by, LAZY_DOORS.get(guest, ())):
        return None
    if not within(item.by, DOORS.get(guest, ())):
        return f"{guest} is imported only by {', '.join(DOORS.get(guest, ())) or 'nobody'}"
    return None


def _modules() -> Iterator[tuple[str, Path]]:
    for package in PACKAGES:
        for path in sorted(package.rglob("*.py")):
            parts = path.relative_to(package.parent).with_suffix("").parts
            # The shipped scenarios are programs of a user, not modules of ours.
            if "scenarios" not in parts:
                yield ".".join(parts).removeprefix("gpushare."), path


@cache
def _all_imports() -> list[Import]:
    return [
        item for by, path in _modules() for item in imports(by, path.read_text(encoding="utf-8"))
    ]


def test_the_page_shows_the_table_as_it_is(pytestconfig: pytest.Config) -> None:
    if pytestconfig.getoption("--regenerate-scenarios"):
        renew(PAGE, OF, as_text())
    assert shown(PAGE, OF) == as_text(), "run this test with --regenerate-scenarios"


def test_every_import_keeps_to_the_layers_and_doors() -> None:
    violations = [
        f"{item.by} imports {item.of}: {rule}" for item in _all_imports() if (rule := broken(item))
    ]
    assert not violations, "\n".join(violations)


def test_every_layer_and_door_is_used() -> None:
    imports = _all_imports()
    layers = [(area, below) for area, parts_below in LAYERS.items() for below in parts_below]
    doors = [(guest, door) for guest, parts_below in DOORS.items() for door in parts_below]
    unused = [
        f"{area} does not import {below}"
        for area, below in layers
        if not any(within(item.by, (area,)) and within(item.own, (below,)) for item in imports)
    ]
    unused += [
        f"{door} does not import {guest}"
        for guest, door in doors
        if not any(within(item.by, (door,)) and within(item.of, (guest,)) for item in imports)
    ]
    assert not unused, "\n".join(unused)


@pytest.mark.parametrize(
    ("by", "source", "sentence"),
    [
        ("errors", "import gpushare.core.model", "errors may import nothing of ours"),
        ("core.decide", "from gpushare import ledger", "core may import errors and itself"),
        (
            "wire.pods",
            "from gpushare.ledger import Ledger",
            "wire may import errors, addresses, core and",
        ),
        ("ledger", "def f():\n    import gpushare.wire.pods", "ledger may import errors, core and"),
        (
            "kube.client",
            "from gpushare.wire import pods",
            "kube may import errors, addresses, logline and itself",
        ),
        (
            "cli.report",
            "from gpushare.core.decide import place",
            "cli may import errors, addresses, commandline, core.amounts",
        ),
        (
            "extender.door.app",
            "from gpushare.sim import engine",
            "extender may import errors, addresses, logline, turns",
        ),
        (
            "doctor.collect",
            "from gpushare.extender.verbs.bind.transaction import BUDGET",
            "doctor may import errors, commandline, yamlfile, core.model",
        ),
        ("extender.door.app", "from gpushare.settings import Settings", "only composition roots"),
        (
            "gpushare_localcluster.demo.runner",
            "import gpushare.extender.service",
            "gpushare_localcluster may import",
        ),
        (
            "kube.client",
            "from gpushare_localcluster import client",
            "kube may import errors, addresses, logline and itself",
        ),
        ("sim.engine", "import gpushare_localcluster", "sim may import errors, commandline, core"),
        (
            "gpushare_localcluster.demo.runner",
            "from gpushare.extender.main import main",
            "only cli/main.py",
        ),
        ("cli.main", "from gpushare.extender.main import main", "when its command is called"),
        ("wire.pods", "import numpy as np", "numpy is imported only by core, policy, sim"),
        ("wire.pods", "from msgspec import Struct", "msgspec is imported only by wire.codec"),
        ("extender.service", "import flask", "flask is imported only by extender.door.app"),
        (
            "extender.door.app",
            "import gunicorn.http",
            "gunicorn is imported only by extender.door.con",
        ),
        (
            "kube.election",
            "import kubernetes.client",
            "kubernetes is imported only by kube.session",
        ),
        (
            "gpushare_localcluster.main",
            "import kubernetes",
            "kubernetes is imported only by kube.session",
        ),
        ("extender.follow.readiness", "import prometheus_client", "only by device_plugin.met"),
        ("settings", "import yaml", "yaml is imported only by gpushare_localcluster.demo.scenario"),
        ("cli.inspect", "import requests", "requests is imported only by nobody"),
        ("core.model", "from time import monotonic", "core and wire are pure"),
        ("wire.pods", "def f():\n    import os.path", "core and wire are pure"),
    ],
)
def test_every_rule_can_fail(by: str, source: str, sentence: str) -> None:
    (item,) = imports(by, source)
    assert sentence in (broken(item) or "nothing is broken")


@pytest.mark.parametrize(
    ("by", "source"),
    [
        ("cli.main", "def serve():\n    from gpushare.extender.main import main"),
        ("extender.main", "from gpushare.settings import Settings"),
        ("extender.factory", "from gpushare.settings import Settings"),
        ("extender.door.app", "from gpushare import __version__"),
        ("gpushare_localcluster.demo.scenario", "def client():\n    import kubernetes"),
        ("core.snapshot", "import numpy.typing as npt"),
        ("kube.reflector", "import threading"),
    ],
)
def test_what_the_layers_allow_passes(by: str, source: str) -> None:
    (item,) = imports(by, source)
    assert broken(item) is None
