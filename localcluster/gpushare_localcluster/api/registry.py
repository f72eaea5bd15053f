"""The verbs of the API on the store: create, read, update, patch, delete, bind, evict.

Knows the general rules of a Kubernetes API server; `admission`, `pods` and `deletion` have those
of single kinds. Works on dicts and raises `StatusError`, without HTTP, so that a simulation can use
the registry in one thread.
"""

import contextlib
import secrets
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from gpushare_localcluster.api import admission, deletion, events, pods, workloads
from gpushare_localcluster.api.deletion import DeleteOptions
from gpushare_localcluster.api.objects import (
    Object,
    Record,
    metadata,
    name_of,
    namespace_of,
    timestamp,
    with_metadata,
)
from gpushare_localcluster.api.resources import (
    BUDGETS,
    EVENTS,
    JOBS,
    NAMESPACES,
    NEW_EVENTS,
    PODS,
    PRIORITY_CLASSES,
    RESOURCES,
    Resource,
)
from gpushare_localcluster.api.selectors import Test
from gpushare_localcluster.api.status import StatusError, bad_request, forbidden
from gpushare_localcluster.api.store import Store
from gpushare_localcluster.api.validation import check_metadata, check_shape, check_type

START_NAMESPACES = ("default", "kube-system", "kube-node-lease", "kube-public")
_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"


def random_suffix() -> str:
    """Return a random suffix for `generateName`."""
    return "".join(secrets.choice(_SUFFIX_LETTERS) for _ in range(5))


class Registry:
    """All served resources over one store.

    Bodies have the API version of the requested resource and are shared with the store: callers
    must not change them.
    """

    def __init__(self, store: Store, *, suffix: Callable[[], str] = random_suffix) -> None:
        """Create the namespaces that every cluster has, unless the store has them."""
        self.store = store
        self._suffix = suffix
        present = {name_of(record.body) for record in store.records(NAMESPACES.table)[0]}
        for name in START_NAMESPACES:
            if name not in present:
                self.create(NAMESPACES, "", {"metadata": {"name": name}})

    def now(self) -> str:
        """Return the store's time as a `metav1.Time`."""
        return timestamp(self.store.now())

    def create(
        self, resource: Resource, namespace: str, body: Object, *, dry_run: bool = False
    ) -> Record:
        """Return the new object. Raises StatusError: 400, 403, 404, 409, 422."""
        stored = self._incoming(resource, body)
        if metadata(stored).get("resourceVersion"):
            raise bad_request("resourceVersion should not be set on objects to be created")
        complete = self._placed(resource, namespace, stored)
        check_metadata(resource, complete)
        if resource.namespaced:
            self.store.get(NAMESPACES.table, "", namespace_of(complete))
        if resource is PODS:
            records, _ = self.store.records(PRIORITY_CLASSES.table)
            complete = admission.with_class(complete, [record.body for record in records])
        new, uid = admission.admitted(_core(resource), complete, self.now()), self.store.new_uid()
        if _core(resource) is EVENTS:
            events.check(new, None, strict=resource is NEW_EVENTS)
        if resource is JOBS:
            new = workloads.with_identity(new, uid)
        return self.store.create(resource.table, new, uid=uid, commit=not dry_run)

    def get(self, resource: Resource, namespace: str, name: str) -> Record:
        """Return the object. Raises StatusError: 404."""
        return self.store.get(resource.table, namespace, name)

    def records(
        self,
        resource: Resource,
        namespace: str | None,
        matches: Test | None = None,
        *,
        at: int | None = None,
    ) -> tuple[list[Record], int]:
        """Return the objects that match, and the version of the list. Raises StatusError: 410."""
        records, version = self.store.records(resource.table, namespace, at=at)
        if matches is not None:
            records = [record for record in records if matches(record.body)]
        return records, version

    def revise(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        change: Callable[[Object], Object],
        *,
        part: str = "",
        dry_run: bool = False,
    ) -> Record:
        """Return the object after a client's PUT or PATCH.

        change: from the old object, in the API version of the resource, to the object of the
        client. part: the subresource `status` to change the status alone, or "".

        Raises StatusError: 400, 404, 409 or 422.
        """

        def step(current: Object) -> Object | None:
            revised_body = self._incoming(resource, change(outgoing(resource, current)))
            core = _core(resource)
            new = admission.revised(core, current, revised_body, part=part)
            check_metadata(resource, new)
            if core is EVENTS:
                events.check(new, current, strict=resource is NEW_EVENTS)
            return None if deletion.removable(new) else new

        return self.store.update(resource.table, namespace, name, step, commit=not dry_run)

    def delete(
        self, resource: Resource, namespace: str, name: str, options: DeleteOptions
    ) -> tuple[Record, bool]:
        """Return the object and whether it was removed; otherwise it is marked for deletion.

        Raises StatusError: 403, 404 or 409.
        """
        if resource is NAMESPACES and name in START_NAMESPACES:
            raise forbidden("namespaces", name, "this namespace may not be deleted")
        is_gone = False

        def step(current: Object) -> Object | None:
            nonlocal is_gone
            marked = deletion.marked(resource, current, options, self.store.now())
            is_gone = deletion.removable(marked)
            return marked if resource is PODS or not is_gone else None

        commit = not options.dry_run
        record = self.store.update(resource.table, namespace, name, step, commit=commit)
        if is_gone and commit and resource is PODS:
            self._remove_marked(namespace, name)
        if is_gone and commit and resource is NAMESPACES:
            self._empty(name)
        return record, is_gone

    def evict(self, namespace: str, name: str, options: DeleteOptions) -> None:
        """Delete the pod if its budget allows, and count the eviction in the budget.

        Raises StatusError: 404, 409, 429, or 500 for a pod with several budgets.
        """
        commit, now = not options.dry_run, self.now()
        pod = self.get(PODS, namespace, name).body
        budgets, _ = self.store.records(BUDGETS.table, namespace)
        if budget := deletion.covering(pod, (record.body for record in budgets)):
            count = partial(deletion.counted, pod=pod, now=now)
            self.store.update(BUDGETS.table, namespace, budget, count, commit=commit)
        tell = partial(deletion.disrupted, options=options, now=now)
        self.store.update(PODS.table, namespace, name, tell, commit=commit)
        self.delete(PODS, namespace, name, replace(options, version=None))

    def _remove_marked(self, namespace: str, name: str) -> None:
        """Remove a marked pod without grace and finalizers.

        The deletion of a pod is two writes even without grace: watchers see MODIFIED with the mark,
        then DELETED. Other writes may come between.
        """
        with contextlib.suppress(StatusError):
            self.store.update(
                PODS.table, namespace, name, lambda pod: None if deletion.removable(pod) else pod
            )

    def delete_collection(
        self,
        resource: Resource,
        namespace: str | None,
        matches: Test | None,
        options: DeleteOptions,
    ) -> list[Record]:
        """Return the objects that match, each deleted as `delete` does."""
        records, _ = self.records(resource, namespace, matches)
        for record in records:
            try:
                self.delete(resource, *record.key, options)
            except StatusError as error:
                # Another client deleted the object after the list.
                if error.code != 404:
                    raise
        return records

    def bind(self, namespace: str, name: str, body: Object, *, dry_run: bool = False) -> Record:
        """Return the pod after the one write of a Binding.

        Raises StatusError: 400, 404, 409 or 422, see `pods.bound`.
        """
        check_shape(body)
        pods.check_binding(body, namespace, name)
        change = partial(pods.bound, binding=body, now=self.now())
        return self.store.update(PODS.table, namespace, name, change, commit=not dry_run)

    def _incoming(self, resource: Resource, body: Object) -> Object:
        """Return the body of a client in stored form."""
        check_type(resource, body)
        check_shape(body)
        return events.to_core(body) if resource is NEW_EVENTS else body

    def _placed(self, resource: Resource, namespace: str, body: Object) -> Object:
        """Return the body with a name and the namespace of the path."""
        meta = metadata(body)
        if (meta.get("namespace") or namespace) != namespace:
            raise bad_request(
                f"the namespace of the object ({meta['namespace']}) does not match the namespace "
                f"on the request ({namespace})"
            )
        name = meta.get("name")
        if not name and meta.get("generateName"):
            name = str(meta["generateName"]) + self._suffix()
        return with_metadata(body, name=name, namespace=namespace or None)

    def _empty(self, namespace: str) -> None:
        """Remove all objects of a namespace; a real cluster has a controller for this."""
        for table in sorted({row.table for row in RESOURCES if row.namespaced}):
            for record in self.store.records(table, namespace)[0]:
                with contextlib.suppress(StatusError):  # another client has deleted the object
                    self.store.delete(table, *record.key)


_STORED_AS: dict[str, Resource] = {}
for _row in RESOURCES:
    _STORED_AS.setdefault(_row.table, _row)


def _core(resource: Resource) -> Resource:
    """Return the resource that stores the objects of this one."""
    return _STORED_AS[resource.table]


def outgoing(resource: Resource, body: Object) -> Object:
    """Return a stored body in the API version of the resource."""
    return events.to_new(body) if resource is NEW_EVENTS else body
