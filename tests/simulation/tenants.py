"""A tenant who means harm to others: he may create, edit and delete pods of his namespace.

The tenant has no quota, and creates pods at a high rate that cost every reader: odd, gated,
impossible, huge, of no scheduler, never to end. The host request of these pods is a mark, so that
placements of these pods can be told from placements of others.
"""

from dataclasses import dataclass

from gpushare_localcluster.api.objects import with_metadata
from gpushare_localcluster.api.resources import PODS, find
from tests.simulation.chance import Chance
from tests.simulation.kubelets import Kubelets
from tests.simulation.oracle import Oracle
from tests.simulation.server import Server
from tests.simulation.truth import (
    AGES,
    COUNT,
    MAX_ANNOTATIONS,
    POLICY,
    TENANT,
    UNCOUNTED_CPU,
    Asked,
    Json,
    PodTruth,
)
from tests.simulation.users import pod_body

_NAMESPACES = find("", "v1", "namespaces")

_KINDS = (
    *("small", "mistaken", "gated", "impossible", "huge", "unserved", "lingering", "choosy"),
    *("small", "mistaken", "gated", "impossible"),
)


@dataclass(repr=False)
class Tenant:
    """He who does all that. scoped: our processes know which schedulers' pods are ours. names: of
    the tenant's pods, each one at a time. lasting: pods with a long grace period use all of it.
    """

    server: Server
    oracle: Oracle
    kubelets: Kubelets
    scoped: bool
    names: tuple[str, ...]
    lasting: bool

    def move_in(self) -> None:
        """Make his namespace."""
        assert _NAMESPACES is not None
        self.server.registry.create(_NAMESPACES, "", {"metadata": {"name": TENANT}})

    def pods(self) -> list[PodTruth]:
        """His pods that are there."""
        return [
            pod for pod in self.oracle.pods.values() if pod.namespace == TENANT and not pod.gone
        ]

    def act(self, chance: Chance) -> str:
        """Create a pod, mostly; or edit or delete one."""
        pods = self.pods()
        action = chance.below(8)
        if pods and (action >= 6 or len(pods) == len(self.names)):
            pod = chance.pick(pods)
            if action == 6:
                return self._edit(pod, chance)
            grace = chance.pick((0, None, AGES))
            self.kubelets.delete(pod, grace)
            return f"deletes {pod.name} ({pod.uid}) grace {grace}"
        return self._create(chance)

    def _create(self, chance: Chance) -> str:
        names = {pod.name for pod in self.pods()}
        name = next(name for name in self.names if name not in names)
        kind = chance.pick(_KINDS)
        units = 5000 + chance.below(3) if kind == "impossible" else 1 + chance.below(2)
        request = Asked(units, 1, (units,))
        annotations, is_refused = self._annotations(kind, chance)
        uncounted = kind == "gated" or (kind == "unserved" and self.scoped)
        cpu = UNCOUNTED_CPU if uncounted else 0
        body = pod_body(name, request, annotations, cpu)
        spec = body["spec"]
        if kind == "gated":
            spec["schedulingGates"] = [{"name": "example.com/never"}]
        if kind == "unserved":
            spec["schedulerName"] = "nobody"
            is_refused = "of another scheduler" if self.scoped else ""
        if kind == "lingering":
            spec["terminationGracePeriodSeconds"] = AGES
        record = self.server.registry.create(PODS, TENANT, body)
        uid = record.body["metadata"]["uid"]
        self.oracle.pods[uid] = PodTruth(
            uid,
            name,
            request,
            forged=kind == "mistaken",
            cpu=cpu,
            namespace=TENANT,
            refused=is_refused,
            unseen=kind in ("gated", "unserved"),
            lasts=self.lasting and kind == "lingering",
        )
        return f"creates {name} ({uid}), {kind}, {request}"

    @staticmethod
    def _annotations(kind: str, chance: Chance) -> tuple[dict[str, str], str]:
        """The annotations of a pod of this kind, and the reason of the expected refusal, "" if
        none.
        """
        if kind == "mistaken":
            return {COUNT: f"many-{chance.below(1000)}"}, "mistaken"
        if kind == "huge":
            spare_bytes = chance.pick((0, 100, 2000))
            note = "x" * (MAX_ANNOTATIONS - len("note") - spare_bytes)
            return {"note": note}, "too large to be written to"
        if kind == "choosy":
            policy = chance.pick(("binpack", "spread", "of-nobody"))
            return {POLICY: policy}, "of an unknown policy" if policy == "of-nobody" else ""
        return {}, ""

    def _edit(self, pod: PodTruth, chance: Chance) -> str:
        """Have his mistake read otherwise, or make one of a pod that had none."""
        mistake = {COUNT: f"many-{chance.below(1000)}"}

        def change(body: Json) -> Json:
            return with_metadata(
                body, annotations={**body["metadata"].get("annotations", {}), **mistake}
            )

        if pod.node or not self.kubelets.revise(pod, change):
            return ""
        pod.forged = True
        return f"edits {pod.name} ({pod.uid}) {mistake}"
