"""The verb bind: places a pod on the node that kube-scheduler chose, with one write.

Tested in `tests/unit/extender/test_service.py`.
"""

from collections.abc import Callable

from gpushare.core.model import Shares
from gpushare.errors import MessageError
from gpushare.extender.managed_resources import ManagedResources
from gpushare.extender.tell.events.messages import EventMessages
from gpushare.extender.tell.page.last_hour import LastHour
from gpushare.extender.verbs.answer import VerbAnswer
from gpushare.extender.verbs.bind.binder import Binder
from gpushare.extender.verbs.bind.slots import BindSlots
from gpushare.extender.verbs.bind.transaction import NOT_OURS
from gpushare.extender.verbs.tickets import Tickets
from gpushare.wire.extender import decode_bind, encode_bind


class BindVerb:
    """Answers bind. The arguments are those of `Service`."""

    def __init__(
        self,
        resources: ManagedResources,
        tickets: Tickets,
        binder: Binder,
        *,
        not_ready: Callable[[], str],
        bind_slots: BindSlots,
        event_messages: EventMessages | None,
        last_hour: LastHour | None,
    ) -> None:
        self._resources = resources
        self._tickets = tickets
        self._binder = binder
        self._not_ready = not_ready
        self._bind_slots = bind_slots
        self._event_messages = event_messages
        self._last_hour = last_hour

    def answer(self, body: bytes) -> VerbAnswer:
        """Return the answer to a body of bind; an error stands in its `Error`."""
        try:
            args = decode_bind(body)
        except MessageError as error:
            return VerbAnswer(encode_bind(f"gpushare: {error}"), "malformed", {"error": str(error)})
        ref, node = args.ref, args.node
        line: dict[str, object] = {"pod": ref, "node": node}
        if not_ready := self._not_ready():
            return VerbAnswer(encode_bind(not_ready), "not_ready", line | {"error": not_ready})
        if not self._bind_slots.take():
            return VerbAnswer(encode_bind("gpushare: too many binds are under way"), "busy", line)
        try:
            approved, resource_request = self._tickets.get(ref.uid, node)
            result = self._binder.bind(ref, node, approved, resource_request)
            # Not before: until the books have charged it, only its hold keeps others off its
            # devices.
            for managed in self._resources:
                managed.holds.bind(ref.uid, refused=bool(result.error))
        finally:
            self._bind_slots.free()
        if result.error:
            if self._event_messages is not None and result.reason != NOT_OURS:
                self._event_messages.bind_failed(ref, node, result.error)
            error_text = f"gpushare: {result.error}"
            return VerbAnswer(
                encode_bind(error_text), result.reason, line | {"error": result.error}
            )
        self._tickets.remove(ref.uid)
        shares: Shares = ()
        for managed in self._resources:
            entry = managed.ledger.entry(ref.uid)
            if entry is not None and entry.placement is not None:
                shares = entry.placement
                if self._last_hour is not None:
                    units = sum(units for _, units in shares)
                    self._last_hour.allocated(managed.names.resource, ref.uid, units)
        if self._event_messages is not None:
            self._event_messages.bound(ref, node, shares)
        line["devices"] = ",".join(f"{device}:{units}" for device, units in shares) or "-"
        return VerbAnswer(encode_bind(), result.reason, line)
