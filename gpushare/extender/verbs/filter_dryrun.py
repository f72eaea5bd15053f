"""The verb filter-dryrun: filter for an autoscaler, which asks about nodes that do not exist yet.

A node that the books know is judged by the books, without what is held for others; any other one as
a new node of its template (wire/nodes.py). All nodes that fit are answered, and nothing
changes: no hold, no ticket, no event, nothing learned.
"""

from collections.abc import Callable

from gpushare.core.decide import filter_nodes
from gpushare.core.model import Request
from gpushare.errors import AnnotationError, MessageError, WireError
from gpushare.extender.managed_resources import ManagedResource, ManagedResources
from gpushare.extender.verbs.answer import VerbAnswer
from gpushare.ledger import Ledger
from gpushare.wire.extender import FilterArgs, decode_filter, encode_filter
from gpushare.wire.nodes import template_spec


class FilterDryRunVerb:
    """Answers filter-dryrun.

    `not_ready`: returns why not to answer now, or "". `unit`: the memory unit of the cluster.
    """

    def __init__(
        self, resources: ManagedResources, *, not_ready: Callable[[], str], unit: str
    ) -> None:
        self._resources = resources
        self._not_ready = not_ready
        self._unit = unit

    def answer(self, body: bytes) -> VerbAnswer:
        """Return the answer to a body of filter-dryrun; an error stands in its `Error`."""
        try:
            args = decode_filter(body)
        except MessageError as error:
            return _malformed(None, error)
        name = args.ref or "?"
        if not_ready := self._not_ready():
            line = {"pod": name, "error": not_ready}
            return VerbAnswer(encode_filter(args, error=not_ready), "not_ready", line)
        try:
            resource_request = self._resources.resolve(args.pod)
        except WireError as error:
            refused = dict.fromkeys(args.names, str(error))
            line = {"pod": name, "error": str(error)}
            return VerbAnswer(encode_filter(args, unresolvable=refused), "refused", line)
        if resource_request is None:
            return VerbAnswer(encode_filter(args, args.names), "plain", {"pod": name})
        managed, request = resource_request
        uid = (args.pod.metadata and args.pod.metadata.uid) or ""
        try:
            return self._decide(args, uid, managed, request)
        except MessageError as error:
            return _malformed(args, error)

    def _decide(
        self, args: FilterArgs, uid: str, managed: ManagedResource, request: Request
    ) -> VerbAnswer:
        """Answer for a pod that asks for a managed resource.

        Raises MessageError for a Node that cannot be read.
        """
        known = filter_nodes(managed.ledger.snapshot(), args.names, request)
        made_up, wrong = Ledger(), {}
        for node in known.unknown if args.items is not None else ():
            try:
                made_up.node_changed(template_spec(args.node(node), managed.names, self._unit))
            except AnnotationError as error:
                wrong[node] = str(error)
        unknown = [node for node in known.unknown if node not in wrong]
        new = filter_nodes(made_up.snapshot(), unknown, request)
        fit, failed = {*known.fit, *new.fit}, known.failed | new.failed
        charged = managed.ledger.entry(uid)
        if charged is not None and charged.node in failed:
            del failed[charged.node]  # there it has its devices
            fit.add(charged.node)
        busy = {node: reason.value for node, reason in failed.items() if reason.resolvable}
        busy |= {node: f'node "{node}" not found' for node in new.unknown}
        never = wrong | {
            node: reason.value for node, reason in failed.items() if not reason.resolvable
        }
        line = {
            "pod": args.ref or "?",
            "units": request.units,
            "devices": request.devices,
            "fit": len(fit),
            "busy": len(busy),
            "never": len(never),
        }
        answer = encode_filter(args, [node for node in args.names if node in fit], busy, never)
        return VerbAnswer(answer, "fit" if fit else "no_fit", line)


def _malformed(args: FilterArgs | None, error: MessageError) -> VerbAnswer:
    answer = encode_filter(args, error=f"gpushare: {error}")
    return VerbAnswer(answer, "malformed", {"error": str(error)})
