"""The parser of every command: a wrong command line prints the error and where to find help. Also
kubectl's flags that name a cluster, and the width of the terminal.

Imports the standard library alone; each command defines the options. Tested in
`tests/unit/test_cli.py` and `tests/unit/wire/test_printable.py`.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn, TextIO

USAGE = 2
"""The exit code of a wrong command line."""

PASSED_ON = {
    "--context": "NAME",
    "--cluster": "NAME",
    "--user": "NAME",
    "--as": "NAME",
    "--as-group": "NAME",
    "--server": "URL",
    "--request-timeout": "DURATION",
}
"""kubectl's flags besides --kubeconfig that name a cluster and an account."""

_SHORT = ("-l", "-n", "-o")
"""The short options that take a value."""


class Parser(argparse.ArgumentParser):
    """A parser that accepts no abbreviated options.

    A wrong command line ends the process with 2; the message begins with `prefix`, by default the
    name of the command.
    """

    prefix = ""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 -- as argparse takes them
        super().__init__(**{"allow_abbrev": False, **options})

    def parse_known_args(  # type: ignore[override]  # argparse has overloads for its namespaces
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Take -o=json for -ojson, as pflag does, which kubectl uses; argparse keeps the sign."""
        words = [
            word[:2] + word[3:] if word[2:3] == "=" and word[3:] and word[:2] in _SHORT else word
            for word in (sys.argv[1:] if args is None else args)
        ]
        return super().parse_known_args(words, namespace or argparse.Namespace())

    def value(
        self, flags: str, metavar: str | None, text: str, default: object = "", **more: object
    ) -> None:
        """Add an option with a value. flags: its names, with blanks between. text: the help."""
        add: Any = self.add_argument
        add(*flags.split(), default=default, metavar=metavar, help=text, **more)

    def values(self, flag: str, metavar: str, text: str) -> None:
        """Add an option that can be repeated; without any its value is an empty list."""
        self.value(flag, metavar, text, [], action="append")

    def switch(self, flags: str, text: str) -> None:
        """Add an option without a value. flags: its names, with blanks between."""
        self.add_argument(*flags.split(), action="store_true", help=text)

    def error(self, message: str) -> NoReturn:
        """End the process with the message and a hint at --help."""
        self.exit(USAGE, f"{self.prefix or self.prog}: {message}\n{hint(self.prog)}\n")


def add_connection(parser: argparse.ArgumentParser) -> None:
    """Add kubectl's flags that name a cluster; the last of several values counts, as there."""
    add = parser.add_argument
    add("--kubeconfig", default="", metavar="FILE", help="a file, or several as in KUBECONFIG")
    for flag, metavar in PASSED_ON.items():
        add(flag, action="append", metavar=metavar, help="as in kubectl")


def add_unit(parser: argparse.ArgumentParser, default: str = "") -> None:
    """Add --unit, the unit of `gpushare serve`. default: "" for a command that reads it from the
    nodes; the default of `serve` for one that reads no nodes, or compares the nodes with it.
    """
    whence = default or "as nodes state, or a guess"
    text = f"as of `gpushare serve`: GiB, MiB, 256MiB (default: {whence})"
    parser.add_argument("--unit", default=default, metavar="UNIT", help=text)


def hint(command: str) -> str:
    """Return the hint at --help of a command, in kubectl's words."""
    return f"See '{command} --help' for usage."


def columns_of(out: TextIO) -> int:
    """Return the columns of a terminal; 0 for another output, or if unknown."""
    if not out.isatty():
        return 0
    try:
        return os.get_terminal_size(out.fileno()).columns
    except (OSError, ValueError):  # a terminal of a test
        return 0
