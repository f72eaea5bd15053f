"""How every command says that its command line is wrong: one line of what, one of where help is.

Knows argparse alone; which options there are is the commands' own. Tested in
`tests/unit/test_cli.py`.
"""

import argparse
from typing import Any, NoReturn

USAGE = 2
"""The exit code of a wrong command line."""


class Parser(argparse.ArgumentParser):
    """A parser that takes no abbreviated options.

    A wrong command line ends the process with `code`; `prefix` is what the message begins with, by
    default the name of the command.
    """

    prefix = ""
    code = USAGE

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 -- as argparse takes them
        super().__init__(**{"allow_abbrev": False, **options})

    def error(self, message: str) -> NoReturn:
        """End the process with the message and where help is."""
        self.exit(self.code, f"{self.prefix or self.prog}: {message}\n{hint(self.prog)}\n")


def hint(command: str) -> str:
    """Return where help on a command is, in kubectl's words."""
    return f"See '{command} --help' for usage."
