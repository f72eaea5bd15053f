"""Figures in documents: recorded runs, and the text between two marks that shows the runs.

A figure that no run stands for cannot get into a document this way. Knows no run's contents.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PROOF_FIGURES = ROOT / "docs" / "research" / "proof-figures.md"
_END = "<!-- end of the figures -->"


def recorded(runs: Path) -> list[dict[str, Any]]:
    """All runs of the file, the oldest first."""
    known_items: list[dict[str, Any]] = []
    if runs.exists():
        known_items = json.loads(runs.read_text(encoding="utf-8"))
    return known_items


def record(runs: Path, run: dict[str, Any]) -> list[dict[str, Any]]:
    """All runs of the file, with this one added at the end."""
    recorded_result = recorded(runs)
    recorded_result.append(run)
    runs.write_text(json.dumps(recorded_result, indent=1) + "\n", encoding="utf-8")
    return recorded_result


def renew(document: Path, of: str, text: str) -> None:
    """Put the text into the document, between `<!-- figures of OF -->` and the next end."""
    head, _, tail = _parted(document, of)
    document.write_text(f"{head}\n{text}\n{tail}", encoding="utf-8")


def shown(document: Path, of: str) -> str:
    """The text between the marks."""
    return _parted(document, of)[1].strip("\n")


def _parted(document: Path, of: str) -> tuple[str, str, str]:
    """The document up to the first mark, the text between the marks, and the rest."""
    begin = f"<!-- figures of {of} -->"
    head, mark, remainder = document.read_text(encoding="utf-8").partition(begin)
    text, end, tail = remainder.partition(_END)
    if not (mark and end):
        raise ValueError(f"{document} has no place for the figures of {of}")
    return head + begin, text, _END + tail


def commit() -> str:
    """The commit that is checked out, in short."""
    request = ["git", "rev-parse", "--short", "HEAD"]
    completed = subprocess.run(request, cwd=ROOT, capture_output=True, text=True, check=False)
    return completed.stdout.strip()
