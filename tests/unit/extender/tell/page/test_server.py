"""The page's listener, on true sockets: who is answered, with what, and how often."""

import gzip
import http.client
import json
import socket
import ssl
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gpushare.errors import NotReady, SettingsError
from gpushare.extender.door.certificates import Certificates
from gpushare.extender.factory import ui_server
from gpushare.extender.tell.page.server import UiServer
from gpushare.settings import Settings
from tests.integration.certificates import make_pki, shown

Answer = tuple[int, http.client.HTTPMessage, str]


def get(port: int, path: str, method: str = "GET", **headers: str) -> Answer:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as client:
        client.request(method, path, headers=sent)
        answer = client.getresponse()
        return answer.status, answer.headers, answer.read().decode()


class Source:
    """What the document is now."""

    text = b'{"resources":[]}'

    def __call__(self) -> bytes:
        if not self.text:
            raise NotReady("gpushare: too many ask for this at once")
        return self.text


@pytest.fixture(scope="module")
def server() -> Iterator[UiServer]:
    made = UiServer("127.0.0.1", 0, Source())
    made.start()
    yield made
    made.stop()


@pytest.mark.parametrize(
    ("path", "kind", "text"),
    [
        ("/ui", "text/html; charset=utf-8", "<!doctype html>"),
        ("/ui/page.js", "text/javascript; charset=utf-8", "use strict"),
        ("/ui/page.css", "text/css; charset=utf-8", "color-scheme"),
        ("/ui/books.json", "application/json", "resources"),
    ],
)
def test_the_page_is_three_files_and_a_document(
    server: UiServer, path: str, kind: str, text: str
) -> None:
    status, headers, body = get(server.port, path)
    assert (status, headers["Content-Type"]) == (200, kind)
    assert text in body
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    again, headers, body = get(server.port, path, If_None_Match=headers["ETag"])
    assert (again, body) == (304, "")
    assert headers["ETag"]


def test_nothing_stands_inline_and_nothing_makes_html_of_text(server: UiServer) -> None:
    page, code = get(server.port, "/ui")[2], get(server.port, "/ui/page.js")[2]
    assert "style=" not in page
    assert "<style" not in page
    assert " on" not in page.split("<body>")[1].replace(" one", "").replace(" only", "")
    assert page.count("<script") == page.count("<script src=") == 1
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert word not in code


def test_the_root_leads_to_the_page_and_other_paths_say_where_it_is(server: UiServer) -> None:
    status, headers, _ = get(server.port, "/")
    assert (status, headers["Location"]) == (302, "/ui")
    for path in ("/ui/", "/ui/../../etc/passwd", "/metrics", "/ui/%2e%2e/server.py"):
        status, _, body = get(server.port, path)
        assert (status, body) == (404, "gpushare: there is no such page; the page is /ui\n")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_nothing_can_be_written(server: UiServer, method: str) -> None:
    assert get(server.port, "/ui", method)[0] == 405


def test_a_wrong_setting_is_one_line_before_anything_starts(
    server: UiServer, tmp_path: Path
) -> None:
    taken = f"127.0.0.1:{server.port}"
    with pytest.raises(SettingsError, match=f"ui-listen: {taken}: .*in use"):
        ui_server(Settings(ui_listen=taken), Source())
    missing = str(tmp_path / "missing")
    nowhere = Settings(
        ui_listen="127.0.0.1:0",
        ui_tls_client_names="operator",
        tls_cert=missing,
        tls_key=missing,
        tls_client_ca=missing,
    )
    with pytest.raises(SettingsError, match="tls-client-ca"):
        ui_server(nowhere, Source())


def test_a_document_is_compressed_for_a_browser_that_accepts_it() -> None:
    source = Source()
    source.text = json.dumps({"resources": [{"name": str(at)} for at in range(200)]}).encode()
    server = UiServer("127.0.0.1", 0, source)
    server.start()
    try:
        with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)) as client:
            sent = {"Accept-Encoding": "gzip"}
            client.request("GET", "/ui/books.json", headers=sent)
            answer = client.getresponse()
            assert answer.headers["Content-Encoding"] == "gzip"
            assert gzip.decompress(answer.read()) == source.text
            sent["If-None-Match"] = str(answer.headers["ETag"])
            client.request("GET", "/ui/books.json", headers=sent)
            assert client.getresponse().status == 304
    finally:
        server.stop()


def test_a_document_that_changes_has_another_tag() -> None:
    source = Source()
    server = UiServer("127.0.0.1", 0, source)
    server.start()
    try:
        tag = get(server.port, "/ui/books.json")[1]["ETag"]
        source.text = b'{"resources":[1]}'
        status, _, body = get(server.port, "/ui/books.json", If_None_Match=tag)
        assert (status, json.loads(body)) == (200, {"resources": [1]})
        source.text = b""
        assert get(server.port, "/ui/books.json")[0] == 503
    finally:
        server.stop()


@pytest.mark.parametrize("path", ["/ui", "/ui/books.json", "/"])
def test_a_name_that_was_made_to_resolve_to_loopback_gets_one_clear_answer(
    server: UiServer, path: str
) -> None:
    status, _, body = get(server.port, path, Host="evil.example:80")
    assert status == 403
    assert body.startswith("gpushare: this page is answered on loopback alone. Run kubectl port-fo")
    assert body.count("\n") == 1


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_site_reads_nothing_but_may_link_to_the_page(server: UiServer, site: str) -> None:
    assert get(server.port, "/ui/books.json", Sec_Fetch_Site=site)[0] == 403
    assert get(server.port, "/ui/page.js", Sec_Fetch_Site=site)[0] == 403
    assert get(server.port, "/ui", Sec_Fetch_Site=site)[0] == 200
    assert get(server.port, "/ui/books.json", Sec_Fetch_Site="same-origin")[0] == 200


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pki")
    make_pki(folder)
    return folder


@pytest.fixture(scope="module")
def mutual(pki: Path) -> Iterator[UiServer]:
    certificate, key, authority = (
        str(pki / name) for name in ("server.crt", "server.key", "scheduler-ca.crt")
    )
    files = Certificates(certificate, key, authority)
    server = UiServer(
        "127.0.0.1", 0, Source(), tls=files.context, names=frozenset({"kube-scheduler"})
    )
    server.start()
    yield server
    server.stop()


def ask(server: UiServer, context: ssl.SSLContext) -> tuple[int, str]:
    """As a browser asks that calls the page by some name of its own."""
    with closing(
        http.client.HTTPSConnection("127.0.0.1", server.port, timeout=20, context=context)
    ) as client:
        client.request("GET", "/ui/books.json", headers={"Host": "page.example"})
        answer = client.getresponse()
        return answer.status, answer.read().decode()


def test_a_certificate_of_one_of_the_names_is_answered(mutual: UiServer, pki: Path) -> None:
    assert ask(mutual, shown(pki, "client")) == (200, '{"resources":[]}')


def test_a_certificate_of_another_name_gets_one_clear_answer(mutual: UiServer, pki: Path) -> None:
    status, body = ask(mutual, shown(pki, "other"))
    assert status == 403
    assert "--ui-tls-client-names" in body


@pytest.mark.parametrize("name", ["", "forged"])
def test_without_a_certificate_of_the_authority_nothing_is_answered(
    mutual: UiServer, pki: Path, name: str
) -> None:
    with pytest.raises(OSError, match=r"(?i)alert|reset|closed|EOF|broken pipe"):
        ask(mutual, shown(pki, name))
    assert ask(mutual, shown(pki, "client"))[0] == 200


def test_who_never_shakes_hands_is_cut_off(mutual: UiServer, pki: Path) -> None:
    with socket.create_connection(("127.0.0.1", mutual.port), timeout=20) as silent:
        assert ask(mutual, shown(pki, "client"))[0] == 200
        assert silent.recv(100) == b""
