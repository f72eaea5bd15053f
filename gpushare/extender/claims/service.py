"""All that gives out the cards of one DRA driver, wired.

Tested in `tests/e2e/test_claims_served.py` and, part by part, in `tests/unit/extender/claims`.
"""

import threading
from typing import Any

from gpushare.core.policy import load_policy
from gpushare.core.ranking import Ranking
from gpushare.core.trial import AUTO, FALLBACK_POLICY
from gpushare.extender.claims.allocator import Allocator
from gpushare.extender.claims.books import ClaimBooks
from gpushare.extender.claims.handlers import ClaimHandler, ClassHandler, SliceHandler, WaitingPods
from gpushare.extender.claims.view import ClaimsView, Journal
from gpushare.extender.claims.writer import DRA, Templates
from gpushare.extender.follow.readiness import Readiness, Source
from gpushare.extender.managed_resources import ManagedResources
from gpushare.extender.tell.events.messages import ClaimEvents, EventMessages
from gpushare.kube.client import KubeClient
from gpushare.kube.listwatch import ListWatch
from gpushare.kube.reflector import Reflector
from gpushare.wire.dra.objects import CLAIMS_PODS, DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_SLICES
from gpushare.wire.inventory import mib_of

_WRITERS = 12
"""Pods whose claims are written at once: in a burst each write waits for the API server, and with 4
of them a burst took half as long again."""
_WAITING_PODS = (("fieldSelector", "spec.nodeName=,status.phase=Pending"),)


class ClaimsService:
    """The claims of one driver, in the cluster's memory unit, ranked by a policy.

    sources: what is listed and watched for them, by name. view: what may be told of them.
    """

    def __init__(
        self,
        driver: str,
        client: KubeClient,
        resources: ManagedResources,
        messages: EventMessages,
        *,
        unit: str,
        policy: str,
    ) -> None:
        self._client, self._resources = client, resources
        ranks = policy if policy != AUTO else FALLBACK_POLICY
        ranking, self._journal = Ranking(load_policy(ranks)), Journal()
        self._changed = threading.Event()
        self._books = books = ClaimBooks(
            driver, mib_of(unit) << 20, ranking, self._lend, resources.knows
        )
        self._waiting = waiting = WaitingPods(self._changed.set, next(iter(resources)).names)
        slices = ListWatch(f"{DRA}/resourceslices", RESOURCE_SLICES)
        claims = ListWatch(f"{DRA}/resourceclaims", RESOURCE_CLAIMS)
        classes = ListWatch(f"{DRA}/deviceclasses", DEVICE_CLASSES)
        pods = ListWatch("/api/v1/pods", CLAIMS_PODS, _WAITING_PODS)
        changed = self._changed.set
        self._class = ClassHandler(changed)
        self._slices = SliceHandler(books, changed)
        followed: dict[str, Reflector[Any, Any]] = {
            "resourceslices": Reflector(client, slices, self._slices),
            "resourceclaims": Reflector(client, claims, ClaimHandler(books, changed)),
            "deviceclasses": Reflector(client, classes, self._class),
            "waiting": Reflector(client, pods, waiting),
        }
        # Without a right to them pods by annotation are served as ever.
        self.sources = {name: Source(each, optional=True) for name, each in followed.items()}
        self.view = ClaimsView(
            driver, books, self._journal, resources, policy=ranks, ranking=ranking
        )
        self._events = ClaimEvents(messages, self.view)
        self._allocator: Allocator | None = None
        self._templates: Templates | None = None

    def start(self, readiness: Readiness) -> None:
        """Begin to give out, while that is ready."""
        self._allocator = Allocator(
            self._client,
            self._books,
            self._waiting,
            self._resources,
            self._changed,
            device_class=lambda: self._class.ours,
            take_over=self._slices.take_over,
            journal=self._journal,
            not_ready=readiness.not_ready_for_claims,
            leads_until=readiness.leads_until,
            writers=_WRITERS,
        )
        self._templates = Templates(
            self._client, self._waiting, not_ready=readiness.not_ready_for_claims
        )
        self.view.problems = self._allocator.problems
        self._allocator.start()
        self._templates.rounds.start()

    def stop(self) -> None:
        """Begin no write any more."""
        if self._allocator is not None:
            self._allocator.stop()
        if self._templates is not None:
            self._templates.rounds.stop()

    def settled(self) -> bool:
        """Return whether nothing sent from here can still land."""
        return self._allocator is None or self._allocator.settled()

    def tick(self, ready: bool) -> None:
        """Tell users by events what has come of their claims, and forget nodes that have gone.

        ready: this process leads.
        """
        self._books.forget_nodes()
        self._events.tick(ready)

    def _lend(self, node: str) -> None:
        for managed in self._resources:
            managed.ledger.lend(node)
