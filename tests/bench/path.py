"""How far a reader follows one pod: the functions and files that each verb goes through.

One pod that asks for a GPU, on three nodes, with a single managed resource; every call of a
function in the package is counted, in the order in which it is made. Two more lines say how the
package is cut: functions for each 1,000 lines, and lines that import.

Run as `python -m tests.bench.path [--calls VERB]`; a second. `--calls` prints the calls of one verb
in their order, for whoever looks for what could be nearer together.
"""

import argparse
import ast
import json
import sys
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import gpushare
from gpushare.core.pairing import Pairing
from gpushare.core.policy import load_policy
from gpushare.core.ranking import Ranking
from gpushare.explain.pod import explain_pod
from gpushare.extender.follow.watch_handlers import PodEventHandler
from gpushare.extender.managed_resources import ManagedResource, ManagedResources
from gpushare.extender.service import Service
from gpushare.extender.tell.events.messages import EventMessages
from gpushare.extender.verbs.bind.binder import Binder
from gpushare.extender.verbs.tickets import BindSlots
from gpushare.ledger import Ledger
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.objects import PODS
from tests.support.scripted_api import ScriptedApi
from tests.unit.core.clusters import node
from tests.unit.extender.kit import pod_json
from tests.unit.extender.scripted_extender import Heard

ROOT = Path(gpushare.__file__).parent
NODES = ("big", "small", "tiny")
POLICY = "device-bestfit"


class Calls:
    """The calls of functions of the package, in order, while the context lasts."""

    def __init__(self) -> None:
        self.codes: list[CodeType] = []
        self._frames: list[FrameType] = []

    def __enter__(self) -> "Calls":
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: FrameType, what: str, _: object) -> None:
        code = frame.f_code
        if what != "call" or not code.co_filename.startswith(str(ROOT)):
            return
        # A generator that goes on is no new call, and a comprehension belongs to its function.
        if code.co_name.startswith("<") or any(frame is item for item in self._frames):
            return
        self._frames.append(frame)
        self.codes.append(code)

    @property
    def files(self) -> list[str]:
        """The file of each call."""
        return [str(Path(code.co_filename).relative_to(ROOT)) for code in self.codes]

    def row(self, verb: str) -> str:
        """What the table says of them."""
        files = self.files
        functions, changes = (
            len(set(self.codes)),
            sum(one != entry for one, entry in pairwise(files)),
        )
        return f"{verb:12} {functions:9} {len(self.codes):6} {len(set(files)):6} {changes:8}"


def measured() -> dict[str, Calls]:
    """The calls of each verb, by its name."""
    api = ScriptedApi()
    managed_resource = ManagedResource(
        ALIYUN, Ledger(Pairing.OFF), {POLICY: Ranking(load_policy(POLICY))}, POLICY
    )
    resources = ManagedResources((managed_resource,))
    for name, units in zip(NODES, (16, 8, 2), strict=True):
        managed_resource.ledger.node_changed(node(name, units, units))
    service = Service(
        resources,
        Binder(api, resources, lambda: float("inf"), api.clock),
        not_ready=str,
        best_only=False,
        bind_slots=BindSlots(8),
        observe=lambda *_: None,
        event_messages=EventMessages(Heard(), resources, "GiB"),
    )
    handler = PodEventHandler(resources)
    result: dict[str, Calls] = {}

    def follow(verb: str, call: Callable[[Any], object], given: object) -> None:
        with Calls() as result[verb]:
            call(given)

    # The first pod is another one, so that what is made once for each process does not count.
    for name in ("first", "second"):
        pod = pod_json(name, 4)
        body_result = _body({"Pod": pod, "NodeNames": list(NODES)})
        uid, namespace = pod["metadata"]["uid"], pod["metadata"]["namespace"]
        bind = {"PodName": name, "PodNamespace": namespace, "PodUID": uid, "Node": "small"}
        answer = PODS.decode_answer(_body(pod), namespace, name)
        follow(
            "pod event", handler.apply, PODS.decode_event(_body({"type": "ADDED", "object": pod}))
        )
        follow("filter", service.filter, body_result)
        follow("prioritize", service.prioritize, body_result)
        follow("explain", partial(explain_pod, every=[managed_resource], unit="GiB"), answer)
        follow("bind", service.bind, _body(bind))
    return result


def _body(value: Any) -> bytes:
    """As Go writes it."""
    return json.dumps(value, separators=(",", ":")).encode()


def cut() -> tuple[float, float, int]:
    """How the package is cut: functions for each 1,000 lines, imports in % of the lines, lines."""
    functions = imports = lines = 0
    for path in sorted(ROOT.rglob("*.py")):
        text = path.read_text()
        lines += text.count("\n")
        for part in ast.walk(ast.parse(text)):
            functions += isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)
            if isinstance(part, ast.Import | ast.ImportFrom):
                imports += (part.end_lineno or part.lineno) - part.lineno + 1
    return 1000 * functions / lines, 100 * imports / lines, lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", metavar="VERB", help="print the calls of this verb")
    expected = parser.parse_args().calls
    measured_result = measured()
    if expected:
        for code, file in zip(
            measured_result[expected].codes, measured_result[expected].files, strict=True
        ):
            print(f"{file}:{code.co_firstlineno} {code.co_qualname}")
        return
    print(f"{'':12} {'functions':>9} {'calls':>6} {'files':>6} {'changes':>8}")
    for verb, calls in measured_result.items():
        print(calls.row(verb))
    functions, imports, lines = cut()
    print(
        f"{functions:.1f} functions for each 1,000 lines, imports {imports:.1f} % of {lines} lines"
    )


if __name__ == "__main__":
    main()
