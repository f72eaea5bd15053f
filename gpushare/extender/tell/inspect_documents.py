"""The documents of `inspect`: the books of one node, or of all nodes.

Tested in `tests/unit/extender/test_service.py`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from gpushare.errors import UnknownNode
from gpushare.extender.claims.view import ClaimsView
from gpushare.extender.door.document_cache import DocumentCache
from gpushare.extender.managed_resources import ManagedResources
from gpushare.extender.tell.node_values import NodeValues
from gpushare.wire.inspect import encode_inspect, encode_node, inspect_of


@dataclass(eq=False)
class InspectDocuments:
    """The documents, made when somebody asks.

    claims: the view of claims, None if claims are not followed. kept_nodes: returns why autoscalers
    leave nodes alone, by name.
    """

    resources: ManagedResources
    claims: ClaimsView | None = None
    kept_nodes: Callable[[], Mapping[str, str]] = dict

    def __post_init__(self) -> None:
        self._documents = DocumentCache()
        self._node_texts = {
            resource.names.resource: NodeValues(partial(encode_node, None))
            for resource in self.resources
        }

    def document(self, node: str | None, resource: str | None) -> bytes:
        """Return the document of one node, or of all nodes, a few seconds old at most.

        Raises UnknownNode for an unknown node or resource, NotReady if too many requests wait.
        """
        managed_resource = self.resources.find(resource) if resource else next(iter(self.resources))
        users = None
        if self.claims is not None and resource == self.claims.source.names.resource:
            managed_resource, users = self.claims.source, self.claims.users()
        if managed_resource is None:
            raise UnknownNode(f"resource {resource!r} is not managed here")
        ledger, name = managed_resource.ledger, managed_resource.names.resource
        if node is not None:
            return encode_inspect(ledger.dump(node), users, self.kept_nodes()).encode()

        def make() -> bytes:
            kept_nodes = self.kept_nodes()
            if users is not None:
                return encode_inspect(ledger.dump(), users, kept_nodes).encode()
            return inspect_of(self._node_texts[name].all(ledger, "", kept_nodes)).encode()

        return self._documents.get(name, make)
