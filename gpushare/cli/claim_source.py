"""Claims and the templates of some, of a cluster and of manifests, by their names.

Knows where the API server has templates; not what is counted of a claim.

Tested in `tests/unit/cli/test_whatif_claims.py`.
"""

from collections.abc import Callable, Iterable

from gpushare.cli.lister import DRA
from gpushare.errors import ApiError, ApiNotFound, MessageError
from gpushare.explain.claim_pods import dealt
from gpushare.kube.api import Getter
from gpushare.wire.dra.claims import CLASS
from gpushare.wire.dra.objects import CLAIM_TEMPLATES, ResourceClaim
from gpushare.wire.dra.slices import SliceCard
from gpushare.wire.dra.templates import sized_template

_TIMEOUT = 30.0


class Claims:
    """Claims and templates (see `explain.claim_pods.ClaimSource`).

    api: None: there is no cluster. unit: the bytes of a unit. cards: what is dealt out. namespace:
    returns that of what names none. why_not: "", or why claims do not count.
    """

    def __init__(
        self,
        api: Getter | None,
        unit: int,
        cards: Iterable[SliceCard] = (),
        claims: Iterable[ResourceClaim] = (),
        *,
        namespace: Callable[[], str] = lambda: "default",
        why_not: str = "",
    ) -> None:
        self._api = api
        self.namespace = namespace
        self.why_not = why_not
        self.unit = unit
        self._cards = tuple(cards)
        self._claims = {name_of(claim): claim for claim in claims}
        self._templates: dict[tuple[str, str], ResourceClaim | None] = {}
        self._dealt: dict[int, int] = {}

    def put(self, namespace: str, name: str, claim: ResourceClaim) -> None:
        """Take a claim of a manifest; one that the cluster has stays as it is there."""
        self._claims.setdefault((namespace, name), claim)

    def put_template(self, namespace: str, name: str, claim: ResourceClaim) -> None:
        """Take a template of a manifest, as a claim that it makes."""
        self._templates[namespace, name] = claim

    def named(self, namespace: str, name: str) -> ResourceClaim | None:
        """Return the claim of that name."""
        return self._claims.get((namespace, name))

    def of_template(self, namespace: str, name: str) -> ResourceClaim | None:
        """Return a claim as the template of that name makes it; None if there is no template."""
        key = namespace, name
        if key not in self._templates:
            self._templates[key] = self._listed_template(namespace, name)
        return self._templates[key]

    def dealt(self, memory: int) -> int:
        """Return the bytes that a claim for so many takes."""
        if memory not in self._dealt:
            self._dealt[memory] = dealt(self._cards, memory)
        return self._dealt[memory]

    def _listed_template(self, namespace: str, name: str) -> ResourceClaim | None:
        path = f"{DRA}/namespaces/{namespace}/resourceclaimtemplates/{name}"
        # One by size is written as soon as a pod waits for it.
        sized = sized_template(namespace, name)
        by_size = CLAIM_TEMPLATES.decode(sized.body(CLASS)).claim() if sized else None
        if self._api is None:
            return by_size
        try:
            body = self._api.request("GET", path, query={}, timeout=_TIMEOUT)
        except ApiNotFound:
            return by_size
        except ApiError as error:
            text = f"ResourceClaimTemplate {namespace}/{name} cannot be read: {error}"
            raise MessageError(text) from error
        return CLAIM_TEMPLATES.decode_answer(body, namespace, name).claim()


def name_of(claim: ResourceClaim) -> tuple[str, str]:
    """Return namespace and name of the claim."""
    metadata = claim.metadata
    return (metadata and metadata.namespace) or "", (metadata and metadata.name) or ""
