"""The cost of processes that we have started: CPU time and memory, as Linux counts.

Knows /proc only. Processes are told apart by a word of their command line, and count together with
all their descendants.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def started(word: str) -> list[int]:
    """The processes below this one that are called so, or have the word as an argument."""
    parents = dict(_parents())
    return sorted(_below(_called(word, parents), parents))


def called(word: str) -> list[int]:
    """The same without descendants of other names."""
    return sorted(_called(word, dict(_parents())))


def cpu_seconds(pids: Iterable[int]) -> float:
    """Return the CPU time that the processes, and their children that have ended, have used so far,
    in user and system mode.
    """
    return sum(sum(map(int, _stat(pid)[11:15])) for pid in pids) / _TICKS


def peak_mib(pids: Iterable[int]) -> float:
    """The peak memory of the largest process (VmHWM)."""
    return max(_kib(pid, "status", "VmHWM") for pid in pids) / 1024


def together_mib(pids: Iterable[int]) -> float:
    """The current memory, with shared pages counted once (Pss)."""
    return sum(_kib(pid, "smaps_rollup", "Pss") for pid in pids) / 1024


def _called(word: str, parents: Mapping[int, int]) -> set[int]:
    return {pid for pid in _below({os.getpid()}, parents) if word in _words(pid)}


def _below(roots: set[int], parents: Mapping[int, int]) -> set[int]:
    """The roots and all descendants."""
    pids = set(roots)
    while more := {pid for pid, parent in parents.items() if parent in pids} - pids:
        pids |= more
    return pids


def _parents() -> Iterable[tuple[int, int]]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (stat := _stat(int(folder.name))):
            yield int(folder.name), int(stat[1])


def _words(pid: int) -> list[str]:
    words = _read(pid, "cmdline").split("\0")
    return [words[0].rpartition("/")[2], *words[1:]]


def _stat(pid: int) -> list[str]:
    """Fields from the state on; the name before it may hold spaces."""
    return _read(pid, "stat").rpartition(") ")[2].split()


def _kib(pid: int, file: str, name: str) -> int:
    lines = _read(pid, file).splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), 0)


def _read(pid: int, file: str) -> str:
    """The file's text; none for a process that has ended."""
    try:
        return Path(f"/proc/{pid}/{file}").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
