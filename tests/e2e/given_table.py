"""A pytest plugin (`-p tests.e2e.given_table --given FILE`): a table of the devices of containers.

Knows the counts of the tests' clusters; no figure is written by hand. A run writes the lines of its
release only if every test ran, with a kubelet, and none failed.
"""

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.e2e import notes
from tests.e2e.binaries import RELEASE
from tests.e2e.given import Given
from tests.support import figures

OF = "device plug-ins"
"""The mark in the page, and the notes that are kept for it."""
_COUNTED = ("pods", "containers", "right", "wrong device", "no device", "pods not admitted")
_COLUMNS = ("Kubernetes", "device plug-in", "`--pairing`", *_COUNTED)


def record(plugin: str, pairing: str, pods: int, values: Given, error: int) -> None:
    """Add the checked devices of so many pods."""
    counts = (pods, values.count, values.right, len(values.wrong), len(values.nothing), error)
    notes.note(OF, plugin, pairing, *counts)


def written(before: str, noted: list[notes.Note]) -> str:
    """The table, with a line for each device plug-in and pairing.

    before: the old table; lines of other releases stay. Releases go from new to old.
    """
    sums: dict[tuple[str, str], Counter[str]] = {}
    for plugin, pairing, *counts in noted:
        names = dict(zip(_COUNTED, map(int, counts), strict=True))
        sums.setdefault((str(plugin), str(pairing)), Counter()).update(names)
    of_release: dict[str, list[str]] = {}
    for line in before.splitlines():
        if result := re.match(r"\| ([\d.]+) \| ", line):
            of_release.setdefault(result[1], []).append(line)
    of_release[RELEASE] = [
        _row(RELEASE, plugin, f"`{pairing}`", *(str(counts[name]) for name in _COUNTED))
        for (plugin, pairing), counts in sorted(sums.items())
    ]
    order = sorted(of_release, key=lambda name: [*map(int, name.split("."))], reverse=True)
    head = (_row(*_COLUMNS), _row(*("---" for _ in _COLUMNS)))
    return "\n".join([*head, *(line for name in order for line in of_release[name])])


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--given", type=Path, help="the page to write the table of containers to")


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    page: Path | None = config.getoption("--given")
    if page is None:
        return
    noted = notes.of_whole_run(OF, exitstatus)
    if not noted:
        terminalreporter.line(f"{page} stays as it is: not all tests have passed")
        return
    figures.renew(page, OF, written(figures.shown(page, OF), noted))
    terminalreporter.line(f"{page} says what containers were given")
