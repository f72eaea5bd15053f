"""`gpushare`: one command, one area. An area is imported only when its command is called."""

import gc
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec

from gpushare import __version__
from gpushare.cli.commands import MODULES, PARSERS, parser_of
from gpushare.cli.exit_codes import ended
from gpushare.commandline import USAGE, hint

_DEMO = """\
  demo     try it: an API server, a scheduler, kubelets and the extender on this machine
"""
_USAGE = """\
usage: gpushare COMMAND [OPTIONS]

{demo}\
  completion
           print the completion script of a shell: bash, zsh, fish
  defrag   plan the few moves by which a pod fits that fits nowhere, and carry them out
  device-plugin
           serve a node's GPU memory to its kubelet
  doctor   say what is mis-wired: scheduler file, extender, rights, nodes, pods
  explain  say why a pod is pending and what would help, or why it is where it is
  inspect  show which pods hold how much of which GPU (as `kubectl inspect gpushare`)
  report   say who was promised and used how many GPU-hours, by a Prometheus
  serve    run the scheduler extender
  scheduler-config
           print the file that makes kube-scheduler call the extender
  simulate try placement policies on a trace or on your cluster's nodes and pods
  whatif   say whether pods would fit, now or with nodes gone or added, or how many more nodes
           they need

gpushare COMMAND --help tells more; gpushare version the version.
"""


_ON_NODES = ("device-plugin",)
"""Commands that need the extra `device-plugin`."""

_EXTRA_PACKAGES = dict.fromkeys(("defrag", "explain", "whatif"), "gpushare.explain")
"""The package that a command needs besides its own; some images lack it (see Dockerfile)."""

_REMEDIES = {
    "demo": "Install gpushare-localcluster: `pip install ./localcluster` in a clone, where"
    " `make demo` does both (see README.md).",
    "simulate": "The image leaves it out; run it from a clone (see README.md).",
}
_OTHER_IMAGE = (
    "The image leaves it out; run it from a clone (see README.md), or in another image (see"
    " Dockerfile)."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code of the command; 2 for an unknown one; see also `ended`."""
    return ended(lambda: _run(sys.argv[1:] if argv is None else argv))


def _run(words: Sequence[str]) -> int:
    match list(words):
        case ["--version" | "version"]:
            print(f"gpushare {__version__}")
        case ["--help" | "-h" | "help"]:
            print(_usage(), end="")
        case ["__complete", *rest]:
            from gpushare.cli.completion import complete_command

            print(complete_command(rest, os.environ), end="")
        case [command, *rest] if command in MODULES:
            needs = _EXTRA_PACKAGES.get(command) or MODULES[command].rpartition(".")[0]
            if find_spec(needs) is None:
                lacks = f"{command} is not in this installation, which lacks {needs}"
                remedy = _REMEDIES.get(command, _OTHER_IMAGE)
                print(f"gpushare: {lacks}. {remedy}", file=sys.stderr)
                return 1
            return _called(command, rest)
        case [word, *_]:
            there_are = ", ".join(MODULES)
            print(
                f"gpushare: no command is called {word!r}; there are: {there_are}", file=sys.stderr
            )
            print(hint("gpushare"), file=sys.stderr)
            return USAGE
        case _:
            print(_usage(), end="", file=sys.stderr)
            return USAGE
    return 0


def _usage() -> str:
    """Return the list of commands; `demo` only if its distribution is installed."""
    installed = find_spec(MODULES["demo"].partition(".")[0]) is not None
    return _USAGE.format(demo=_DEMO if installed else "")


def _called(command: str, words: Sequence[str]) -> int:
    if command in PARSERS and {"-h", "--help"}.intersection(words):
        # parse_args prints the help, or the mistake, and exits.
        parser_of(command).parse_args(words)
    gc.disable()  # imports make many objects and no garbage: a fifteenth of the time of `serve`'s
    try:
        run: Callable[..., int] = import_module(MODULES[command]).main
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if command not in _ON_NODES or package not in ("grpc", "google", "pynvml"):
            raise
        print(f"gpushare {command}: {error}; install gpushare[device-plugin]", file=sys.stderr)
        return USAGE
    finally:
        gc.enable()
    match command:
        case "inspect":
            return run(words, "gpushare inspect")
        case "simulate":
            # The simulator knows no API server.
            return run(words, lambda *args: import_module("gpushare.cli.cluster").live_trace(*args))
    return run(words)


if __name__ == "__main__":
    sys.exit(main())
