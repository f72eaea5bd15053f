"""Figures in documents: recorded runs, and the text between two marks that is made of them.

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
    known: list[dict[str, Any]] = []
    if runs.exists():
        known = json.loads(runs.read_text(encoding="utf-8"))
    return known


def record(runs: Path, run: dict[str, Any]) -> list[dict[str, Any]]:
    """All runs of the file, with this one added to it at the end."""
    known = recorded(runs)
    known.append(run)
    runs.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    return known


def renew(document: Path, of: str, text: str) -> None:
    """Put the text into the document, between `<!-- figures of OF -->` and the next end."""
    head, _, tail = _parted(document, of)
    document.write_text(f"{head}\n{text}\n{tail}", encoding="utf-8")


def shown(document: Path, of: str) -> str:
    """What stands there now."""
    return _parted(document, of)[1].strip("\n")


def _parted(document: Path, of: str) -> tuple[str, str, str]:
    """The document up to the first mark, what is between the two, and from the second one on."""
    begin = f"<!-- figures of {of} -->"
    head, mark, rest = document.read_text(encoding="utf-8").partition(begin)
    text, end, tail = rest.partition(_END)
    if not (mark and end):
        raise ValueError(f"{document} has no place for the figures of {of}")
    return head + begin, text, _END + tail


def commit() -> str:
    """The commit that is checked out, in short."""
    asked = ["git", "rev-parse", "--short", "HEAD"]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()
