"""A page for beginners, and a shell that runs the commands of the page.

A fenced block of such a page is `sh` (commands), `yaml` or `text`. A comment on the line before it
says more:

<!-- not run: REASON -->     commands that a test leaves out
    <!-- goes on until: TEXT --> a command that runs on; TEXT is in the last line before it waits
    <!-- figures of NAME -->     the output of `$ COMMAND`, its first line, on a terminal
    <!-- file: NAME -->          the contents of a file of the reader
    <!-- output -->              the output of the commands before it; a line `...` stands for more
"""

import os
import re
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_BLOCK = re.compile(
    r"^(?:<!-- (?P<kind>figures of|[a-z ]+)(?::? (?P<more>[^\n]*))? -->\n)?```(?P<language>\w*)\n"
    r"(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A fenced block, the comment before it, and its place."""

    place: str
    language: str
    text: str
    kind: str
    more: str


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page."""
    text = page.read_text(encoding="utf-8")
    for result in _BLOCK.finditer(text):
        line = text.count("\n", 0, result.start("text")) + 1
        words = [result[name] or "" for name in ("language", "text", "kind", "more")]
        yield Block(f"{page.name}:{line}", *words)


@dataclass
class Shell:
    """A terminal: exported variables and the directory stay from block to block."""

    folder: Path
    environ: dict[str, str]
    scratch: Path
    running: list[subprocess.Popen[str]] = field(default_factory=list)

    def run(self, block: Block) -> str:
        """The output of the commands; each command must succeed."""
        state, place = self.scratch / "environ", self.scratch / "folder"
        keep = f"\nenv -0 >{state}\npwd >{place}\n"
        finished = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block.text + keep],
            cwd=self.folder,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=500,
            check=False,
        )
        assert finished.returncode == 0, f"{block.place}: {block.text}\n{finished.stdout}"
        pairs = [pair.partition("=") for pair in state.read_text().split("\0") if pair]
        self.environ = {name: value for name, _, value in pairs}
        self.folder = Path(place.read_text().strip())
        return finished.stdout

    def start(self, block: Block) -> list[str]:
        """The lines of a command before it starts to wait."""
        process = subprocess.Popen(
            ["bash", "-c", f"exec {block.text}"],
            cwd=self.folder,
            env={**self.environ, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.running.append(process)
        overdue = threading.Timer(300, process.kill)
        overdue.start()
        lines: list[str] = []
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.rstrip("\n"))
            if block.more in line:
                break
        overdue.cancel()
        assert lines, f"{block.place}: nothing is printed"
        assert block.more in lines[-1], f"{block.place}: it has ended\n" + "\n".join(lines)
        return lines

    def end(self) -> None:
        """End the running command, which must succeed.

        By SIGTERM in place of Ctrl-C, as background processes of a script ignore SIGINT.
        """
        for process in self.running:
            process.terminate()
        for process in self.running:
            process.communicate(timeout=120)
            assert process.returncode == 0


def without_plug_in(path: str) -> str:
    """The folders of a PATH that have no `kubectl inspect gpushare`."""
    folders = path.split(os.pathsep)
    plug_in = "kubectl-inspect-gpushare"
    return os.pathsep.join(one for one in folders if not (Path(one) / plug_in).exists())
