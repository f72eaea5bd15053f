"""`python -m tests.support.plain_words FOLDER...`: how plain docstrings, comments and names are.

Counts habits that make a reader solve a sentence: free relative clauses ("what came"), "of which",
pronouns, and names that are participles or pronouns (`asked`, `each`). A low figure makes no
sentence good, but a high one shows where to look; `--list` names every place. The exit code is 1
where a folder is above an upper bound.
"""

import argparse
import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

MAX_PER_THOUSAND_WORDS = {"free what": 2.0, "of which, whose": 0.8, "it, its, they": 22.0}
"""The upper bounds of pattern counts, per 1,000 words of docstrings and comments."""

MAX_WEAK_NAMES_PERCENT = 1.0
"""Of the assignments of variables and of the parameters, those whose name is in `WEAK_NAMES`."""

MAX_DOUBLED_CLASSES = 12
"""Class names that several modules of a folder use, whatever their leading underscores."""

_PATTERNS = {
    "free what": re.compile(r"\bwhat\b", re.IGNORECASE),
    "of which, whose": re.compile(
        r"\b(?:of|by|in|to|from|with|for|on|at) (?:which|whom)\b|\bwhose\b", re.IGNORECASE
    ),
    "it, its, they": re.compile(r"\b(?:it|its|they|them|their)\b", re.IGNORECASE),
}

_WEAK = """
found seen known told asked left held given taken tried wanted named placed moved shown managed
judged kept gone charged listed counted allowed refused offered bound read written sent open closed
made done said changed each other others own ours every why where what rest most least all_ beside
here there counting waiting asking coming
"""
WEAK_NAMES = frozenset(_WEAK.split())
"""Participles and pronouns: none says what its variable is."""


@dataclass
class PlainWords:
    """The counts of one folder."""

    words: int = 0
    patterns: Counter[str] = field(default_factory=Counter)
    names: int = 0
    weak_names: int = 0
    classes: Counter[str] = field(default_factory=Counter)
    places: list[str] = field(default_factory=list)

    def add(self, path: Path) -> None:
        """Count one module."""
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
        for line, text in _texts(tree, source):
            self.words += len(text.split())
            for name, pattern in _PATTERNS.items():
                count = len(pattern.findall(text))
                self.patterns[name] += count
                if count:
                    self.places.append(f"{path}:{line}: {name}: {count}")
        for line, name in _names(tree):
            self.names += 1
            if name.strip("_") in WEAK_NAMES:
                self.weak_names += 1
                self.places.append(f"{path}:{line}: name {name}")
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                self.classes[node.name.strip("_")] += 1

    def figures(self) -> Iterator[tuple[str, float, float]]:
        """Yield the name, the value and the upper bound of each figure."""
        for name, entry in MAX_PER_THOUSAND_WORDS.items():
            yield name, 1000 * self.patterns[name] / max(1, self.words), entry
        weak = 100 * self.weak_names / max(1, self.names)
        yield "weak names, %", weak, MAX_WEAK_NAMES_PERCENT
        doubled = sum(count > 1 for count in self.classes.values())
        yield "doubled class names", doubled, MAX_DOUBLED_CLASSES


def measure(folder: Path) -> PlainWords:
    """Return the counts of all modules below the folder but the generated protobuf modules."""
    counts = PlainWords()
    for path in sorted(folder.rglob("*.py")):
        if not path.name.endswith(("_pb2.py", "_pb2_grpc.py")):
            counts.add(path)
    return counts


def main(argv: Sequence[str]) -> int:
    """Print the figures of each folder; return 1 if one is above its upper bound."""
    parser = argparse.ArgumentParser(prog="plain_words", description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--list", action="store_true", help="name every place")
    options = parser.parse_args(argv)
    is_above = False
    for folder in options.folders:
        counts = measure(folder)
        if options.list:
            print("\n".join(counts.places))
        for name, value, entry in counts.figures():
            if value > entry:
                is_above = True
                print(f"{folder}: {name}: {value:.1f}, at most {entry:g}")
    return 1 if is_above else 0


def _texts(tree: ast.Module, source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each docstring and each comment, without directives."""
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        is_directive = "noqa" in token.string or "type: ignore" in token.string
        if token.type == tokenize.COMMENT and not is_directive:
            yield token.start[0], token.string.lstrip("# ")


def _names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each assignment of a variable and of each parameter."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
