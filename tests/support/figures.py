"""Figures in documents: recorded runs, and the generated text between two marks.

So every figure in a document has a run. Knows no contents of runs.
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
    known_names: list[dict[str, Any]] = []
    if runs.exists():
        known_names = json.loads(runs.read_text(encoding="utf-8"))
    return known_names


def record(runs: Path, run: dict[str, Any]) -> list[dict[str, Any]]:
    """All runs of the file, with this one added at the end."""
    known_names = recorded(runs)
    known_names.append(run)
    runs.write_text(json.dumps(known_names, indent=1) + "\n", encoding="utf-8")
    return known_names


def renew(document: Path, of: str, text: str) -> None:
    """Put the text into the document, between `<!-- figures of OF -->` and the next end."""
    head, _, tail = _parted(document, of)
    document.write_text(f"{head}\n{text}\n{tail}", encoding="utf-8")


def shown(document: Path, of: str) -> str:
    """The current text."""
    return _parted(document, of)[1].strip("\n")


def _parted(document: Path, of: str) -> tuple[str, str, str]:
    """The document before the first mark, between both marks, and from the second mark on."""
    begin = f"<!-- figures of {of} -->"
    head, mark, rest_value = document.read_text(encoding="utf-8").partition(begin)
    text, end, tail = rest_value.partition(_END)
    if not (mark and end):
        raise ValueError(f"{document} has no place for the figures of {of}")
    return head + begin, text, _END + tail


def commit() -> str:
    """The commit that is checked out, in short."""
    request = ["git", "rev-parse", "--short", "HEAD"]
    finished = subprocess.run(request, cwd=ROOT, capture_output=True, text=True, check=False)
    return finished.stdout.strip()
