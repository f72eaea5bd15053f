"""List and watch as a step machine: answers and a time in, the next request out.

Knows the rules for a client that follows a collection of the API server, and nothing of sockets,
threads, clocks, randomness or the meaning of objects; the caller passes a decoder. So one seed
replays a run.

`next` returns the next request, and one of the `on_...` methods takes the outcome. The rules:

- A list comes in pages, without a resourceVersion: a read of the latest state. A page with a token
  is a part of a list; only a whole list is delivered. 410 between pages starts the list again, and
  so does a page that fails for long.
- A watch goes on from the last seen version, and the server ends the watch after some time. After a
  cut or an end the watch resumes. If nothing has come for `quiet_after` when an opened watch ends,
  a list follows: a server may be behind our version, or send no bookmarks, and a proxy may cut
  each watch before its first event.
- 410, as status or as an ERROR event, means that versions are gone: list again, never reuse a
  version.
- A page with too many bytes is requested again with half as many objects, down to one; later pages
  have as many objects as fit by the size of the last objects.
- Each failure in a row makes the pause before the next try longer, until a healthy while has
  passed. No answer of a server causes a hot loop.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from gpushare.errors import ApiError, ApiGone, ApiTooLarge
from gpushare.kube.api import Part

NEVER = float("-inf")

Query = tuple[tuple[str, str], ...]


class Page(Part, Protocol):
    """A decoded page of a list; the objects are for the event handler."""

    @property
    def resource_version(self) -> str:
        """The resourceVersion of the list."""

    @property
    def items(self) -> Sequence[object]:
        """The objects that could be read."""

    @property
    def bad(self) -> Sequence[object]:
        """The objects that could not be read."""


class DecodedEvent(Protocol):
    """A decoded line of a watch."""

    @property
    def kind(self) -> str:
        """ADDED, MODIFIED, DELETED, BOOKMARK or ERROR."""

    @property
    def resource_version(self) -> str:
        """The resourceVersion of the event."""

    @property
    def code(self) -> int:
        """The status of an ERROR."""

    @property
    def bad(self) -> object | None:
        """The object that could not be read, if there is one."""


PageT = TypeVar("PageT", bound=Page)
EventT = TypeVar("EventT", bound=DecodedEvent)
PageT_co = TypeVar("PageT_co", bound=Page, covariant=True)
EventT_co = TypeVar("EventT_co", bound=DecodedEvent, covariant=True)


class Decoder(Protocol[PageT_co, EventT_co]):
    """Decodes bytes into pages and events; `gpushare.wire.codec.Codec` is one."""

    def decode_list(self, body: bytes) -> PageT_co:
        """Return a page; raises if the body is none."""

    def decode_event(self, line: bytes) -> EventT_co:
        """Return an event; raises if the line is none."""


@dataclass(frozen=True, slots=True)
class Sleep:
    """Do nothing for these seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class List:
    """Ask for a page; answer with `on_page` or `on_error`."""

    path: str
    query: Query
    timeout: float


@dataclass(frozen=True, slots=True)
class Watch:
    """Open a watch; answer with `on_open`, `on_line` for each line, then `on_end` or `on_error`."""

    path: str
    query: Query
    connect_timeout: float
    read_timeout: float


Action = Sleep | List | Watch


@dataclass(frozen=True, slots=True)
class Replace(Generic[PageT]):
    """The whole collection, as of `started` or later (monotonic seconds)."""

    pages: tuple[PageT, ...]
    started: float


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds, and the page size. The watch times are client-go's order of magnitude."""

    page_limit: int = 500
    # Bytes of a page that are aimed at, once objects have shown to be large.
    page_bytes: int = 8 << 20
    list_timeout: float = 30.0
    # Seconds that a page may fail until the list starts again.
    page_retry_for: float = 60.0
    connect_timeout: float = 10.0
    # Soon enough for a list before the ledger is taken for old, if nothing was said meanwhile.
    watch_shortest: float = 90.0
    watch_longest: float = 110.0
    # Beyond the server's own end of the watch; a connection that died without a word ends here.
    watch_grace: float = 15.0
    # A list follows a watch that ends this many seconds after the last event.
    quiet_after: float = 30.0
    pause: float = 0.1
    longest_pause: float = 30.0
    # Less than the time after which load balancers cut idle connections: 20 s and more.
    healthy_after: float = 15.0
    # A watch with a clean end earlier than this counts as a failure: else there is a hot loop.
    short_watch: float = 1.0
    relist_spacing: float = 1.0


@dataclass(slots=True)
class ListWatch(Generic[PageT, EventT]):
    """The state of following one collection."""

    path: str
    decoder: Decoder[PageT, EventT]
    query: Query = ()
    timing: Timing = field(default_factory=Timing)
    synced: bool = False
    """A whole list was taken over and no delivery failed since."""
    watching: bool = False
    last_contact: float = NEVER
    """When the server last sent something (list, event, bookmark)."""
    listed_at: float = NEVER
    """When the last list that was taken over was begun."""
    relists: int = 0
    """The number of delivered lists; like the next two, this only grows."""
    decode_errors: int = 0
    """Lines, pages and single objects that could not be read."""
    restarts: Counter[str] = field(default_factory=Counter)
    """By reason."""
    version: str = ""
    """The resourceVersion delivered last; "" before a list, and after a failure."""
    _token: str = ""
    _limit: int = 0
    _pages: tuple[PageT, ...] = ()
    _relist_wanted: bool = False
    _list_started: float = NEVER
    _watch_started: float = NEVER
    _not_before: float = NEVER
    _pause: float = 0.0
    _pause_from: float = NEVER
    _failures: int = 0
    _gone_count: int = 0
    _bad_lines: int = 0
    _healthy_since: float | None = None
    _opened: bool = False

    def request_relist(self) -> None:
        """Request a new list; a list that has begun already does not satisfy the request."""
        self._relist_wanted = True

    def next(self, now: float, jitter: float) -> Action:
        """Return the next request; `jitter` in [0, 1) spreads the requests of many clients."""
        self.watching = False
        if self._pause:
            self._not_before = self._pause_from + self._pause * (1 - jitter / 2)
            self._pause = 0.0
        if self._relist_wanted and self.version:
            # A list under way ends first: else frequent requests would restart the list for ever.
            self._forget_place()
            # The spacing bounds the rate of frequent requests.
            spaced = self._list_started + self.timing.relist_spacing
            self._not_before = max(self._not_before, spaced)
        opened, self._opened = self._opened, False
        if opened and now >= self.last_contact + self.timing.quiet_after:
            self._forget_place()
        if now < self._not_before:
            return Sleep(self._not_before - now)
        return self._watch(now, jitter) if self.version else self._list(now)

    def on_page(
        self, body: bytes, now: float, trim: Callable[[PageT], PageT] | None = None
    ) -> Replace[PageT] | None:
        """Return the whole list after the last page; to be answered with `on_delivered`.

        trim: returns a smaller page to keep until the last page; None: keep the page.
        """
        try:
            page = self.decoder.decode_list(body)
        except Exception:  # a page that a decoder trips over must not end the loop
            self.decode_errors += 1
            self._fail("bad-list", now, relist=True)
            return None
        token = page.continue_token
        # Only a broken server repeats a token.
        if (token and token == self._token) or not page.resource_version:
            self._fail("bad-list", now, relist=True)
            return None
        self._note_contact(now)
        self.decode_errors += len(page.bad)
        self._pages += (trim(page) if trim else page,)
        self._token = token
        objects = len(page.items) + len(page.bad)
        if objects:
            fitting = self.timing.page_bytes * objects // max(len(body), 1)
            self._limit = max(1, min(self.timing.page_limit, fitting))
        if not token:
            return self._complete()
        if not page.items:
            # The API allows an empty page (ListOptions.limit: all objects were filtered out).
            self._pause, self._pause_from = self.timing.pause, now
        return None

    def on_delivered(self, whole: Replace[PageT]) -> None:
        """Record that the handler holds the whole list now; a long list takes a while."""
        self.relists += 1
        self.listed_at = whole.started
        self.synced = True

    def on_open(self, now: float) -> None:
        """Take the acceptance of a watch."""
        self._opened = True
        if self._healthy_since is None:
            self._healthy_since = now

    def on_line(self, line: bytes, now: float) -> EventT | None:
        """Return the event to deliver, if any; `watching` says whether to read on."""
        try:
            event = self.decoder.decode_event(line)
        except Exception:  # as above
            self._bad_line(now)
            return None
        if event.kind == "ERROR":
            if event.code == 410:
                self._versions_gone(now)
            else:
                self._fail("error-event", now)
            return None
        if not event.resource_version:
            self._bad_line(now)
            return None
        self._note_contact(now)
        self.version = event.resource_version
        if event.kind == "BOOKMARK":
            return None
        self._bad_lines = 0
        self.decode_errors += event.bad is not None
        return event

    def on_end(self, now: float) -> None:
        """Take the clean end of a watch, or the close for a relist."""
        self.watching = False
        if self._relist_wanted:
            self.restarts["asked"] += 1
        elif now - self._watch_started >= self.timing.short_watch:
            self.restarts["end"] += 1
            self._pause, self._pause_from = self.timing.pause, now
        else:
            self._fail("short", now)

    def on_error(self, error: ApiError, now: float) -> None:
        """Take the failure of a call, or a stream that was cut."""
        was_watch = self.watching
        if isinstance(error, ApiTooLarge) and self._limit != 1:
            # Not a failure: the same page is asked for again at once, with fewer objects.
            self._limit = max(1, (self._limit or self.timing.page_limit) // 2)
            self._note_contact(now)
        elif isinstance(error, ApiGone):
            self._versions_gone(now)
        elif error.status in (400, 404, 409, 422) and was_watch:
            # The server will not have this watch; the same again would be refused again.
            self._fail("refused", now, relist=True)
        else:
            # The server may never again have the version of the token: etcd can be set back.
            stuck = not was_watch and now >= self.last_contact + self.timing.page_retry_for
            reason = f"http-{error.status}" if error.status else "no-answer"
            self._fail(reason, now, relist=stuck)

    def on_handler_error(self, now: float) -> None:
        """Take a failure of the handler: its state is in doubt until the next list."""
        self.synced = False
        self._fail("sink", now, relist=True)

    def _list(self, now: float) -> List:
        query = (*self.query, ("limit", str(self._limit or self.timing.page_limit)))
        if self._token:
            query += (("continue", self._token),)
        else:
            self._list_started = now
            self._relist_wanted = False
            self._pages = ()
        return List(self.path, query, self.timing.list_timeout)

    def _watch(self, now: float, jitter: float) -> Watch:
        timing = self.timing
        spread = timing.watch_longest - timing.watch_shortest
        seconds = int(timing.watch_shortest + jitter * spread)
        query = (
            *self.query,
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", self.version),
            ("timeoutSeconds", str(seconds)),
        )
        self.watching = True
        self._watch_started = now
        return Watch(self.path, query, timing.connect_timeout, seconds + timing.watch_grace)

    def _complete(self) -> Replace[PageT]:
        whole = Replace(self._pages, self._list_started)
        # All pages of a list have the version of the first page; older is safe, newer is not.
        self.version = self._pages[0].resource_version
        self._pages = ()
        self._bad_lines = 0
        return whole

    def _note_contact(self, now: float) -> None:
        self.last_contact = now
        if self._healthy_since is None:
            self._healthy_since = now

    def _bad_line(self, now: float) -> None:
        self.decode_errors += 1
        self._bad_lines += 1
        self._fail("bad-line", now, relist=self._bad_lines > 1)

    def _versions_gone(self, now: float) -> None:
        """List again: the first time at once, as versions age in any cluster."""
        self._reset_failures_after_health(now)
        self._gone_count += 1
        self.restarts["gone"] += 1
        self._forget_place()
        self._pause, self._pause_from = self._backoff(self._gone_count - 1), now

    def _fail(self, reason: str, now: float, *, relist: bool = False) -> None:
        self._reset_failures_after_health(now)
        self._failures += 1
        self.restarts[reason] += 1
        self._pause, self._pause_from = self._backoff(self._failures), now
        if relist:
            self._forget_place()

    def _reset_failures_after_health(self, now: float) -> None:
        """Reset the counts of failures if the watch was healthy for long enough before this one."""
        self.watching = False
        since = self._healthy_since
        if since is not None and now - since >= self.timing.healthy_after:
            self._failures = self._gone_count = 0
        self._healthy_since = None

    def _backoff(self, failures: int) -> float:
        if failures == 0:
            return 0.0
        # The exponent is bounded so that a year of failures does not overflow.
        return min(self.timing.longest_pause, self.timing.pause * 2.0 ** min(failures - 1, 30))

    def _forget_place(self) -> None:
        self.version = self._token = ""
        self._pages = ()
