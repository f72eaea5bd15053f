"""Completions of `kubectl inspect gpushare` as kubectl asks for them.

kubectl runs `kubectl_complete-inspect-gpushare` with the words after the plug-in's name, the last
one being what is typed so far ("" at a blank), and reads candidates, one a line, and a last line
`:N` with what its shell script shall do: 4 no file names, 0 file names if there is no candidate
(ShellCompDirective of its library cobra). Whatever fails gives no candidates: a prompt is no place
for errors.

Tested in `tests/unit/cli/test_inspect_parts.py`.
"""

from collections.abc import Iterable, Mapping, Sequence

from gpushare.cli.facts import elements, mapping, read_node, text
from gpushare.cli.kubectl import Kubectl
from gpushare.cli.lister import NODES
from gpushare.cli.options import FORMATS, PASSED_ON, connection
from gpushare.errors import GpuShareError
from gpushare.wire.annotations import ALIYUN, Names

_SWITCHES = {
    "--details": "show the pods of each node",
    "--no-headers": "lines of nodes or pods alone",
    "--watch": "go on and show each change",
    "--all-namespaces": "show pods of all namespaces",
    "--help": "say what there is",
    "--version": "say which version this is",
}
_VALUED = {
    "--output": "json, yaml, wide or name",
    "--selector": "nodes with these labels",
    "--namespace": "pods of this namespace alone",
    "--resource": "another managed resource",
    "--unit": "what nodes without inventory count in",
    "--kubeconfig": "a file, or several",
    **dict.fromkeys(PASSED_ON, "as in kubectl"),
}
_SHORT = {"-o": "--output", "-l": "--selector", "-n": "--namespace"}
_EXPLAIN = "explain\tsay why a pod is pending, or where it is"
_FILES = 0
_NO_FILES = 4
_TIMEOUT = "3s"


def complete(words: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return what to print for these words."""
    *before, typed = words or [""]
    flag_values, open_flag = _flag_values(before)
    directive = _NO_FILES
    flag, sign, value = typed.partition("=")
    if not open_flag and sign and flag in _VALUED:
        open_flag, typed = flag, value
    if open_flag == "--kubeconfig":
        candidates: Iterable[str] = ()
        directive = _FILES
    else:
        candidates = _candidates(open_flag, typed, flag_values, environ)
    fitting = [line for line in candidates if line.startswith(typed)]
    return "".join(f"{line}\n" for line in [*fitting, f":{directive}"])


def _flag_values(words: Sequence[str]) -> tuple[dict[str, str], str]:
    """Return (values of flags by name without dashes, the flag whose value is typed or "")."""
    flag_values: dict[str, str] = {}
    nodes: list[str] = []
    flag = ""
    for word in words:
        if flag:
            flag_values[flag], flag = word, ""
            continue
        name, sign, value = word.partition("=")
        name = _SHORT.get(name, name)
        if name in _VALUED and sign:
            flag_values[name] = value
        elif name in _VALUED:
            flag = name
        elif not word.startswith("-"):
            nodes.append(word)
    plain = {
        name.removeprefix("--").replace("-", "_"): value for name, value in flag_values.items()
    }
    return {**plain, "nodes": " ".join(nodes)}, flag


def _candidates(
    flag: str, typed: str, flag_values: Mapping[str, str], environ: Mapping[str, str]
) -> Iterable[str]:
    kubectl = connection({"request_timeout": _TIMEOUT, **flag_values}, environ)
    try:
        match flag:
            case "--output":
                return FORMATS
            case "--unit":
                return ("GiB", "MiB")
            case "--context" | "--cluster" | "--user":
                extra = ("-o", "name") if flag == "--context" else ()
                printed = kubectl.run("config", f"get-{flag[2:]}s", *extra)
                lines = printed.decode(errors="replace").split("\n")
                return [line for line in lines if line and line != "NAME"]
            case "--namespace":
                return _names(kubectl, "/api/v1/namespaces")
            case "":
                if typed.startswith("-"):
                    return [
                        f"{name}\t{help_text}" for name, help_text in (_VALUED | _SWITCHES).items()
                    ]
                return _positional(kubectl, flag_values)
    except GpuShareError:
        pass
    return ()


def _names(kubectl: Kubectl, path: str) -> list[str]:
    items = map(mapping, elements(kubectl.get(path).get("items")))
    return [text(mapping(item.get("metadata")).get("name")) for item in items]


def _positional(kubectl: Kubectl, flag_values: Mapping[str, str]) -> list[str]:
    """Return the nodes that share the resource and were not named yet, and the word explain; after
    this one pods.
    """
    words = flag_values.get("nodes", "").split()
    if words[:1] == ["explain"]:
        namespace = flag_values.get("namespace") or kubectl.namespace()
        return [] if words[1:] else _names(kubectl, f"/api/v1/namespaces/{namespace}/pods")
    names = Names.for_resource(flag_values.get("resource") or ALIYUN.resource)
    items = map(mapping, elements(kubectl.get(NODES).get("items")))
    sharing = (node.name for item in items if (node := read_node(item, names)) is not None)
    return [*(name for name in sharing if name not in words), *([] if words else [_EXPLAIN])]
