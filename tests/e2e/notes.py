"""A pytest plugin (`-p tests.e2e.notes`): notes of tests for the pages that a run writes.

Knows whether the run was complete, over all processes. The process that ends the run writes the
pages; with `-n` it has run no test itself.
"""

from collections import defaultdict

import pytest

Note = tuple[str | int, ...]

_notes: defaultdict[str, list[Note]] = defaultdict(list)
_PART = "part of a run"
_SENT = "notes"


def note(page: str, *cells: str | int) -> None:
    """Keep the note for the writer of this page at the end of the run."""
    _notes[page].append(cells)


def of_whole_run(page: str, status: int) -> list[Note] | None:
    """Return the notes; None after a failed or skipped test, so that the page stays unchanged."""
    return None if status != 0 or _notes[_PART] else _notes[page]


def pytest_deselected() -> None:
    note(_PART)


def pytest_sessionfinish(session: pytest.Session) -> None:
    body: dict[str, object] | None = getattr(session.config, "workeroutput", None)
    if body is not None:
        body[_SENT] = dict(_notes)


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist, which `-p no:xdist` leaves out
def pytest_testnodedown(node: object) -> None:
    body: dict[str, dict[str, list[Note]]] = getattr(node, "workeroutput", {})
    for page, noted in body.get(_SENT, {}).items():
        _notes[page].extend(tuple(cells) for cells in noted)
