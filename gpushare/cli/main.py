"""`gpushare`: one command, one area. An area is imported when its command is called, so that none
pays for others.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec

from gpushare import __version__
from gpushare.cli.ending import ended
from gpushare.commandline import USAGE, hint

_USAGE = """\
usage: gpushare COMMAND [OPTIONS]

  demo     try it: an API server, a scheduler, kubelets and the extender on this machine
  device-plugin
           serve a node's GPU memory to its kubelet
  doctor   say what is mis-wired: scheduler file, extender, rights, nodes, pods
  explain  say why a pod is pending and what would help, or why it is where it is
  inspect  show which pods hold how much of which GPU (as `kubectl inspect gpushare`)
  serve    run the scheduler extender
  scheduler-config
           print the file that makes kube-scheduler call the extender
  simulate try placement policies on a trace or on your cluster's nodes and pods
  whatif   say whether pods would fit, now or with nodes gone or added

gpushare COMMAND --help tells more; gpushare --version the version.
"""


def _demo(argv: Sequence[str]) -> int:
    from gpushare.localcluster.main import main as demo

    return demo(argv)


def _device_plugin(argv: Sequence[str]) -> int:
    try:
        from gpushare.device_plugin.main import main as device_plugin
    except ModuleNotFoundError as error:
        if error.name not in ("grpc", "google", "google.protobuf", "pynvml"):
            raise
        print(f"gpushare device-plugin: {error}; install gpushare[device-plugin]", file=sys.stderr)
        return 2

    return device_plugin(argv)


def _doctor(argv: Sequence[str]) -> int:
    from gpushare.doctor.main import main as doctor

    return doctor(argv)


def _explain(argv: Sequence[str]) -> int:
    from gpushare.cli.explain import main as explain

    return explain(argv)


def _inspect(argv: Sequence[str]) -> int:
    from gpushare.cli.inspect import main as inspect

    return inspect(argv, "gpushare inspect")


def _serve(argv: Sequence[str]) -> int:
    from gpushare.extender.main import main as serve

    return serve(argv)


def _scheduler_config(argv: Sequence[str]) -> int:
    from gpushare.cli.scheduler_config import main as scheduler_config

    return scheduler_config(argv)


def _simulate(argv: Sequence[str]) -> int:
    from gpushare.sim.main import main as simulate

    return simulate(argv, _live_rows)


def _live_rows(kubeconfig: str, context: str, resource: str, unit: str) -> Mapping[str, object]:
    """Return nodes and pods of a live cluster for the simulator, which knows no API server."""
    from gpushare.cli.cluster import live_rows

    return live_rows(kubeconfig, context, resource, unit)


def _whatif(argv: Sequence[str]) -> int:
    from gpushare.cli.whatif import main as whatif

    return whatif(argv)


_COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "demo": _demo,
    "device-plugin": _device_plugin,
    "doctor": _doctor,
    "explain": _explain,
    "inspect": _inspect,
    "scheduler-config": _scheduler_config,
    "serve": _serve,
    "simulate": _simulate,
    "whatif": _whatif,
}

_ROOMS = {
    "demo": "gpushare.localcluster",
    "device-plugin": "gpushare.device_plugin",
    "doctor": "gpushare.doctor",
    "explain": "gpushare.explain",
    "serve": "gpushare.extender",
    "simulate": "gpushare.sim",
    "whatif": "gpushare.explain",
}
"""What a command needs that some image leaves out: see Dockerfile and .dockerignore."""


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code of the command; 2 for an unknown one; see also `ended`."""
    return ended(lambda: _run(sys.argv[1:] if argv is None else argv))


def _run(words: Sequence[str]) -> int:
    match list(words):
        case ["--version"]:
            print(f"gpushare {__version__}")
        case ["--help" | "-h" | "help"]:
            print(_USAGE, end="")
        case [command, *rest] if command in _COMMANDS:
            needs = _ROOMS.get(command)
            if needs is not None and find_spec(needs) is None:
                none_has = command in ("demo", "simulate")
                elsewhere = "" if none_has else ", or in another image (see Dockerfile)"
                print(
                    f"gpushare: {command} is not in this installation, which lacks {needs}."
                    f" The image leaves it out; run it from a clone (see README.md){elsewhere}.",
                    file=sys.stderr,
                )
                return 1
            return _COMMANDS[command](rest)
        case [word, *_]:
            there_are = ", ".join(_COMMANDS)
            print(
                f"gpushare: no command is called {word!r}; there are: {there_are}", file=sys.stderr
            )
            print(hint("gpushare"), file=sys.stderr)
            return USAGE
        case _:
            print(_USAGE, end="", file=sys.stderr)
            return USAGE
    return 0


if __name__ == "__main__":
    sys.exit(main())
