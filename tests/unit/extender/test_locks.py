"""docs/decisions/threads.md names all locks of the process, and all code that writes to the API
server; docs/architecture.md names all collections that are watched.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

import gpushare
from gpushare.explain.claim_books import ClaimBooks
from gpushare.extender.claims.service import handlers_of
from gpushare.extender.factory import watched_sources
from gpushare.extender.follow.disruption_budgets import DisruptionBudgets
from gpushare.extender.follow.group_sizes import GroupSizes
from gpushare.extender.follow.shown import Shown
from gpushare.extender.follow.watch_handlers import PodEventHandler
from gpushare.kube.client import KubeClient
from gpushare.settings import Settings
from tests.support.figures import ROOT
from tests.support.scripted_api import ScriptedApi
from tests.unit.extender.kit import managed_resources

PACKAGE = Path(gpushare.__file__).parent
IN_THE_PROCESS = ("extender", "daemon", "kube", "ledger", "explain", "wire", "core")
"""The folders with code that the process of the extender runs."""
LOCKS = frozenset({"Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore"})
WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})
DECISIONS = (ROOT / "docs" / "decisions" / "threads.md").read_text(encoding="utf-8")
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def locks_in(source: str) -> Iterator[str]:
    """Yield each attribute that holds a lock, as `Class.attribute`; "?" for a lock elsewhere."""
    for part in ast.parse(source).body:
        for statement in ast.walk(part):
            if not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is None:
                continue
            names = {
                name.attr for name in ast.walk(statement.value) if isinstance(name, ast.Attribute)
            }
            if not names & LOCKS or not isinstance(part, ast.ClassDef):
                if names & LOCKS and "threading" in ast.unparse(statement.value):
                    yield "?"
                continue
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for target in targets:
                attribute = target.attr if isinstance(target, ast.Attribute) else target
                yield f"{part.name}.{getattr(attribute, 'id', attribute)}"


def writers_in(source: str) -> bool:
    """Return whether the code calls the API server with a method that writes."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return any(
        (isinstance(call.func, ast.Name) and call.func.id == "merge_patch")
        or (
            isinstance(call.func, ast.Attribute)
            and call.func.attr in ("request", "_request", "_send")
            and any(getattr(argument, "value", None) in WRITES for argument in call.args[:1])
        )
        for call in calls
    )


def files() -> Iterator[Path]:
    for folder in IN_THE_PROCESS:
        yield from sorted((PACKAGE / folder).rglob("*.py"))


def table(heading: str) -> list[str]:
    """Return the first cell of each row of the table below a heading of the decisions."""
    section = DECISIONS.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1].strip() for line in section.splitlines() if line.startswith("|")]
    return [cell.strip("`") for cell in rows[2:]]


def test_the_table_of_locks_has_every_lock_of_the_process() -> None:
    result = [
        f"{path.relative_to(PACKAGE)} {lock}"
        for path in files()
        for lock in locks_in(path.read_text(encoding="utf-8"))
    ]
    assert sorted(table("Locks")) == sorted(result)
    assert f"There are {len(result)} locks" in ARCHITECTURE


def test_the_table_of_writers_has_every_file_that_writes_to_the_api_server() -> None:
    result = [
        str(path.relative_to(PACKAGE))
        for path in files()
        if writers_in(path.read_text(encoding="utf-8")) and path.name != "api.py"  # merge_patch
    ]
    assert sorted(table("Writes to the API server")) == sorted(result)
    assert f"{len(result)} files write to the API server" in ARCHITECTURE


def test_the_page_says_how_many_collections_are_watched() -> None:
    resources = managed_resources()
    sources = watched_sources(
        Settings(),
        cast(KubeClient, ScriptedApi()),
        resources,
        DisruptionBudgets(),
        PodEventHandler(resources),
        group_sizes=GroupSizes(),
        marks=Shown(),
        room_on=print,
    )
    of_claims = handlers_of(ClaimBooks("gpu.example.com", 1 << 30), print)
    text = f"{len(sources)} reflectors, with `--claims` {len(sources) + len(of_claims)}"
    assert text in ARCHITECTURE


@pytest.mark.parametrize(
    ("source", "locks"),
    [
        ("class A:\n def __init__(self):\n  self._lock = threading.Lock()", ["A._lock"]),
        ("class A:\n made: Lock = field(default_factory=threading.Lock)", ["A.made"]),
        ("LOCK = threading.Lock()", ["?"]),
        ("class A:\n def f(self):\n  with self._lock:\n   self.x = 1", []),
    ],
)
def test_the_search_for_locks_finds_them(source: str, locks: list[str]) -> None:
    assert list(locks_in(source)) == locks
