"""A pytest plugin (`-p tests.e2e.notes`): notes of tests for the pages that a run writes.

Knows whether the run was a whole one, whichever processes ran its tests. The pages are made where
the run ends, which with several processes (`-n`) is one that has run no test.
"""

from collections import defaultdict

import pytest

Note = tuple[str | int, ...]

_notes: defaultdict[str, list[Note]] = defaultdict(list)
_PART = "part of a run"
_SENT = "notes"


def note(page: str, *cells: str | int) -> None:
    """Keep the note for the page at the end of the run."""
    _notes[page].append(cells)


def of_whole_run(page: str, status: int) -> list[Note] | None:
    """Return the notes; None if a test failed or was left out: the page stays as it is."""
    return None if status != 0 or _notes[_PART] else _notes[page]


def pytest_deselected() -> None:
    note(_PART)


def pytest_sessionfinish(session: pytest.Session) -> None:
    getattr_result: dict[str, object] | None = getattr(session.config, "workeroutput", None)
    if getattr_result is not None:
        getattr_result[_SENT] = dict(_notes)


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist, which `-p no:xdist` leaves out
def pytest_testnodedown(node: object) -> None:
    getattr_result: dict[str, dict[str, list[Note]]] = getattr(node, "workeroutput", {})
    for page, noted in getattr_result.get(_SENT, {}).items():
        _notes[page].extend(tuple(cells) for cells in noted)
