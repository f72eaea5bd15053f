"""Complete the command lines of `gpushare` and of the kubectl plug-in, by the commands' parsers.

The shell, or kubectl, runs a program with the words after the program's name, the incomplete word
last ("" after a blank). The output is a candidate a line, with a help text after a tab, and a last
line `:N`: 4 no file names, 0 file names if there is no candidate (cobra's ShellCompDirective).
After an error there are no candidates. kubectl runs `kubectl_complete-inspect-gpushare`; the
scripts of the shells run `gpushare __complete`.

Tested in `tests/unit/cli/test_completion.py` and `tests/unit/cli/test_inspect_parts.py`.
"""

import argparse
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpushare.cli.commands import OF_PLUGIN, PARSERS, parser_of
from gpushare.cli.facts import elements, mapping, read_node, text
from gpushare.cli.kubectl import Kubectl
from gpushare.cli.lister import NODES
from gpushare.cli.options import connection, inspect_parser
from gpushare.commandline import Parser
from gpushare.errors import GpuShareError
from gpushare.wire.annotations import ALIYUN, Names

_FILES, _NO_FILES = 0, 4
_TIMEOUT = "3s"
_WORDS = re.compile(r"\w+(?:\|\w+)+")
"""The values of an option at the start of its help, such as json|yaml."""
_OWN_WORDS = ("demo", "help", "version")
"""Words after `gpushare` that have no parser."""
_SHELLS = {
    "bash": """\
_gpushare() {
    local line directive=4
    COMPREPLY=()
    while IFS= read -r line; do
        case "$line" in
            :*) directive="${line#:}" ;;
            *) COMPREPLY+=("${line%%$'\\t'*}") ;;
        esac
    done < <("${COMP_WORDS[0]}" __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    [ "$directive" = 0 ] || compopt +o default
}
complete -o default -F _gpushare gpushare
""",
    "zsh": """\
#compdef gpushare
_gpushare() {
    local line directive=4
    local -a candidates
    while IFS= read -r line; do
        case $line in
            :*) directive=${line#:} ;;
            *) candidates+=("${line/$'\\t'/:}") ;;
        esac
    done < <(${words[1]} __complete "${(@)words[2,CURRENT]}" 2>/dev/null)
    if (( $#candidates )); then
        _describe gpushare candidates
    elif [[ $directive == 0 ]]; then
        _files
    fi
}
compdef _gpushare gpushare
""",
    "fish": """\
function __gpushare_candidates
    set -l words (commandline -opc)
    set -l last (commandline -ct)
    set -l program $words[1]
    set -e words[1]
    set -l lines ($program __complete $words "$last" 2>/dev/null)
    set -l directive $lines[-1]
    set -e lines[-1]
    if test (count $lines) -eq 0 -a "$directive" = ":0"
        __fish_complete_path "$last"
    else
        printf '%s\\n' $lines
    end
end
complete -c gpushare -f -a '(__gpushare_candidates)'
""",
}
"""The script of each shell."""


def completion_parser(prog: str) -> Parser:
    """Return the parser of `completion`."""
    parser = Parser(
        prog=prog,
        description="Print the completion script of a shell, to be read at its start:"
        " source <(gpushare completion bash).",
    )
    parser.add_argument("shell", choices=sorted(_SHELLS), help="whose script is printed")
    return parser


def main(argv: Sequence[str]) -> int:
    """Print the script. A wrong command line ends the process with 2."""
    print(_SHELLS[completion_parser("gpushare completion").parse_args(argv).shell], end="")
    return 0


def complete_command(words: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return the output for these words after `gpushare`."""
    first, *others = words or [""]
    if not others:
        return _output(sorted({*PARSERS, *_OWN_WORDS}), first, _NO_FILES)
    if first not in PARSERS:
        return _output((), others[-1], _FILES)
    return _completed(parser_of(first), others, environ)


def complete_plugin(words: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return the output for these words after `kubectl inspect gpushare`."""
    first, *others = words or [""]
    if others and first in OF_PLUGIN:
        return _completed(parser_of(first), others, environ, values_alone=True)
    commands = [f"{name}\t{parser_of(name).description}" for name in OF_PLUGIN]
    more = () if others else commands
    return _completed(inspect_parser("inspect"), words, environ, more, values_alone=True)


@dataclass
class _Line:
    """The words of a command line before the incomplete one."""

    parser: argparse.ArgumentParser
    values: dict[str, list[str]] = field(default_factory=dict)
    """The values of options and positional arguments, by destination."""
    positional: list[str] = field(default_factory=list)
    option: argparse.Action | None = None
    """The option with an incomplete value."""

    def take(self, word: str) -> None:
        """Read the next word."""
        if self.option is not None:
            self.values.setdefault(self.option.dest, []).append(word)
            self.option = None
            return
        name, sign, value = word.partition("=")
        option = self.options.get(name)
        if option is None:
            if not word.startswith("-"):
                self._take_positional(word)
        elif sign:
            self.values.setdefault(option.dest, []).append(value)
        elif option.nargs != 0:
            self.option = option

    def _take_positional(self, word: str) -> None:
        subcommand = next((each for each in self._arguments if each.choices), None)
        choices = subcommand.choices if subcommand is not None else None
        if isinstance(choices, dict) and word in choices:
            self.parser = choices[word]
        else:
            self.positional.append(word)

    @property
    def options(self) -> dict[str, argparse.Action]:
        """The options by name."""
        actions = self.parser._actions  # noqa: SLF001 -- argparse has no other list of them
        return {name: action for action in actions for name in action.option_strings}

    @property
    def _arguments(self) -> list[argparse.Action]:
        actions = self.parser._actions  # noqa: SLF001 -- as above
        return [action for action in actions if not action.option_strings]

    @property
    def argument(self) -> argparse.Action | None:
        """The positional argument that the next word is for."""
        for at, action in enumerate(self._arguments):
            if at >= len(self.positional) or action.nargs == "*":
                return action
        return None


def _completed(
    parser: argparse.ArgumentParser,
    words: Sequence[str],
    environ: Mapping[str, str],
    more: Sequence[str] = (),
    *,
    values_alone: bool = False,
) -> str:
    """Return the output for the words after a command. more: candidates besides the nodes.

    values_alone: whether the candidates after --output= are without the option, as kubectl wants.
    """
    # bash splits at the sign of --output=json.
    *before, typed = [word for word in words if word != "="] or [""]
    if words and words[-1] == "=":
        before, typed = [*before, typed], ""
    line = _Line(parser)
    for word in before:
        line.take(word)
    name, sign, value = typed.partition("=")
    option = line.option
    prefix = ""
    if option is None and sign and name in line.options:
        option, typed = line.options[name], value
        prefix = "" if values_alone else f"{name}="
    if option is None and typed.startswith("-"):
        options = line.options.items()
        texts = ((name, (action.help or "").partition(" (default")[0]) for name, action in options)
        helps = [f"{name}\t{' '.join(text.split())}" for name, text in texts if name[:2] == "--"]
        return _output(helps, typed, _NO_FILES)
    action = option or line.argument
    if action is None:
        return _output((), typed, _NO_FILES)
    if action.metavar in ("FILE", "FOLDER", "SCENARIO"):
        return _output((), typed, _FILES)
    try:
        candidates = [*_values(action, line, environ), *(more if option is None else ())]
    except GpuShareError:
        candidates = []
    return _output((prefix + word for word in candidates), prefix + typed, _NO_FILES)


def _output(candidates: Iterable[str], typed: str, directive: int) -> str:
    fitting = [line for line in candidates if line.startswith(typed)]
    return "".join(f"{line}\n" for line in [*fitting, f":{directive}"])


def _values(action: argparse.Action, line: _Line, environ: Mapping[str, str]) -> Iterable[str]:
    """Return the values of an option or positional argument. Raises GpuShareError."""
    if action.choices is not None:
        return map(str, action.choices)
    if match := _WORDS.match(action.help or ""):
        return sorted(match[0].split("|"))
    flags = {dest: values[-1] for dest, values in line.values.items()}
    kubectl = connection({"request_timeout": _TIMEOUT, **flags}, environ)
    match action.dest:
        case "unit":
            return ("GiB", "MiB")
        case "context" | "cluster" | "user" as kind:
            extra = ("-o", "name") if kind == "context" else ()
            printed = kubectl.run("config", f"get-{kind}s", *extra).decode(errors="replace")
            return [name for name in printed.split("\n") if name and name != "NAME"]
        case "namespace" | "extender_namespace":
            return _names(kubectl, "/api/v1/namespaces")
        case "nodes" if not action.option_strings:
            names = Names.for_resource(flags.get("resource") or ALIYUN.resource)
            items = map(mapping, elements(kubectl.get(NODES).get("items")))
            nodes = [node.name for item in items if (node := read_node(item, names)) is not None]
            return [name for name in nodes if name not in line.positional]
        case "pod":
            namespace = flags.get("namespace") or kubectl.namespace()
            return _names(kubectl, f"/api/v1/namespaces/{namespace}/pods")
    return ()


def _names(kubectl: Kubectl, path: str) -> list[str]:
    items = map(mapping, elements(kubectl.get(path).get("items")))
    return [text(mapping(item.get("metadata")).get("name")) for item in items]
