"""The documents name what the code has: settings, reasons, names, metrics, files."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from gpushare.core.amounts import compute
from gpushare.core.model import NodeSpec, ObservedPod, PodRef, Reason, Request
from gpushare.daemon.events import NullRecorder
from gpushare.extender.follow.admission_checks import AdmissionChecks, KueueObjects
from gpushare.extender.follow.auditor import Auditor
from gpushare.extender.follow.placeholders import Placeholders
from gpushare.extender.follow.scale_down_guard import ScaleDownGuard
from gpushare.extender.follow.shown import Shown
from gpushare.extender.managed_resources import ManagedResource, ManagedResources
from gpushare.extender.moves.mover import Mover
from gpushare.extender.shadow.shadow import Shadow
from gpushare.extender.tell.events.messages import EventMessages
from gpushare.extender.tell.metrics import Metrics
from gpushare.extender.verbs.bind.gate import Gate
from gpushare.ledger import Ledger
from gpushare.settings import Settings
from gpushare.wire.annotations import ALIYUN, Names
from gpushare.wire.device_request import WISHES
from gpushare.wire.inventory import Inventory, InventoryDevice, decode_inventory
from gpushare.wire.placeholders import Placeholder
from gpushare.wire.scale_down import Mark
from tests.support.scripted_api import ScriptedApi

ROOT = Path(__file__).parents[2]
PROTOCOL = "\n".join(
    (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    for page in ("protocol", "annotations", "settings", "metrics")
)
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md")])


def rows(heading: str) -> list[list[str]]:
    """The cells of the tables under a heading, without backticks."""
    section = re.split(r"^## ", PROTOCOL.split(f"\n## {heading}\n")[1], flags=re.MULTILINE)[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip().strip("`") for cell in line.split("|")[1:-1]] for line in lines]


def test_the_settings_table_has_every_setting_with_its_default_and_no_other() -> None:
    table = {cells[0]: cells[1] for cells in rows("Settings")[2:]}
    defaults = {
        "--" + setting.name.replace("_", "-"): setting.metadata["default"] or "none"
        for setting in fields(Settings)
    }
    assert table == defaults


def test_the_reasons_table_has_every_reason_and_the_map_it_is_answered_in() -> None:
    table = {cells[0]: cells[1] for cells in rows("Reasons")[2:]}
    assert table == {
        reason.value: "FailedNodes" if reason.resolvable else "FailedAndUnresolvableNodes"
        for reason in Reason
    }


def test_the_names_are_those_that_are_derived() -> None:
    npu_names = Names.for_resource("example.com/npu-mem")
    for names in (ALIYUN, npu_names):
        for name in (names.resource, names.count, names.cores, names.idx, names.allocation):
            assert f"`{name}`" in PROTOCOL, name
        for name in (names.core_allocation, names.uuids, names.given, names.inventory):
            assert f"`{name}`" in PROTOCOL, name
        assert f"`{names.unhealthy}NODE`" in PROTOCOL
    for name in (ALIYUN.dev, ALIYUN.pod, ALIYUN.assigned, ALIYUN.assume_time, ALIYUN.policy):
        assert f"`{name}`" in PROTOCOL, name


def test_the_wishes_of_a_pod_are_those_that_are_read() -> None:
    table = [cells[:2] for cells in rows("Wishes of a pod")[2:]]
    assert table == [[*pair] for pair in WISHES.items()]


def test_the_example_of_an_inventory_reads_as_it_is_explained() -> None:
    example = re.search(r'^{"v":1.*?^```', PROTOCOL, flags=re.MULTILINE | re.DOTALL)
    assert example is not None
    assert decode_inventory(example[0].removesuffix("```")) == Inventory(
        "GiB",
        (InventoryDevice(80, "GPU-1b0c", "A100-SXM4-80GB"), InventoryDevice(40, healthy=False)),
        marks_assigned=True,
        serves_by_identity=True,
    )


def test_every_metric_is_listed() -> None:
    ledger = Ledger()
    ledger.node_changed(NodeSpec("n", (16,), (True,), ("",), ("",)))
    request = Request(4, 1, percents=compute(30))
    ledger.pod_changed(ObservedPod(PodRef("team", "p", "uid-p"), request, "n", ((0, 4),)))
    resources = ManagedResources((ManagedResource(ALIYUN, ledger, {}, ""),))
    watch = ("synced", "age_seconds", "relists_total", "decode_errors_total")
    process_metrics = (
        *Gate().state(),
        "bind_conflicts_total",
        "events_written_total",
        "events_dropped_total",
    )
    process = ("ready", "leader", "pending_without_call_seconds", "bound_unassigned_seconds")
    auditor = Auditor(
        ScriptedApi(), resources, "GiB", not_ready=str, watch_version=str, report=print
    )
    running, marks, shown_placeholders = Shown[ObservedPod](), Shown[Mark](), Shown[Placeholder]()
    guard = ScaleDownGuard(ScriptedApi(), resources, marks, running, not_ready=str)
    placeholders = Placeholders(ScriptedApi(), resources, shown_placeholders, "asks", not_ready=str)
    messages = EventMessages(NullRecorder(), resources, "GiB")
    mover = Mover(
        ScriptedApi(),
        resources,
        messages,
        budget=1,
        after=1.0,
        namespace="kube-system",
        not_ready=str,
    )
    checks = AdmissionChecks(
        ScriptedApi(), resources, KueueObjects(), "GiB", not_ready=str, is_synced=bool
    )
    parts = (auditor, guard, placeholders, mover, checks)
    metric_names = [name for part in parts for name in part.state()]
    state = (*process, *process_metrics, *metric_names, *(f"nodes_{of}" for of in watch))
    shadow = Shadow(resources, "binpack")
    metrics = Metrics(
        resources,
        1,
        lambda: dict.fromkeys(state, 0.0),
        detail="pods",
        shadow=shadow,
        stopped_moves=mover.stopped,
        placeholders=placeholders.counts,
    )
    metrics.observe("filter", "fit", 0.1)
    metrics.rejected({"busy": 1})
    for name in re.findall(r"^# TYPE (\S+)", metrics.text().decode(), flags=re.MULTILINE):
        assert f"`{name}`" in PROTOCOL, name


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda file: str(file.relative_to(ROOT)))
def test_a_link_leads_to_a_file_and_a_heading_that_are_there(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        file = (document.parent / path) if path else document
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            anchors = [re.sub(r"[^\w -]", "", head).lower().replace(" ", "-") for head in headings]
            assert anchor in anchors, target


def test_the_files_that_contributing_names_are_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    paths = set(re.findall(r"`((?:gpushare|tests|docs)/[\w/.]+)`", text))
    missing = {
        path for path in paths if not (ROOT / re.sub(r"/(NAME|AREA)\..*", "", path)).exists()
    }
    assert len(paths) > 20
    assert not missing


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda file: str(file.relative_to(ROOT)))
def test_a_page_is_read_in_ten_minutes_its_tables_apart(document: Path) -> None:
    text = re.sub(r"^ *```.*?^ *```", "", document.read_text("utf-8"), flags=re.M | re.S)
    prose = [line for line in text.splitlines() if not line.startswith("|")]
    assert len(" ".join(prose).split()) <= 2000


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda file: file.stem)
def test_a_page_says_first_for_whom_it_is(page: Path) -> None:
    title, first, *_ = page.read_text(encoding="utf-8").split("\n\n")
    assert title.startswith("# ")
    assert first.startswith("For ") or page.stem == "README"


def test_the_ways_through_the_code_name_functions_that_are_there() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page.partition("## Three ways through the code")[2].partition("\n## ")[0]
    rows = re.findall(r"^\|[^|]*\| `([\w.]+)`[^|]*\| `([\w/]+\.py)` \|$", table, re.MULTILINE)
    assert len(rows) == len(re.findall(r"\.py` \|$", table, re.MULTILINE)) > 20
    for name, file in rows:
        owner, _, function = name.rpartition(".")
        source = (ROOT / "gpushare" / file).read_text(encoding="utf-8")
        assert re.search(rf"^ *def {function}\(", source, re.MULTILINE), (name, file)
        # The fields of a base class are in the file of the base class.
        assert not owner or owner == "Ledger" or f"class {owner}" in source, (name, file)


def prose(text: str) -> list[str]:
    """The lines of a document outside fences, tables and generated parts."""
    lines, fenced, generated = [], False, False
    for line in text.splitlines():
        start = line.lstrip()
        if start.startswith("```"):
            fenced = not fenced
        elif start.startswith("<!--"):
            generated = bool(re.match(r"<!-- (figures of|simulate:)", start))
        elif not (fenced or generated or start.startswith("|")):
            lines.append(line)
    return lines


@pytest.mark.parametrize(
    "document",
    [document for document in DOCUMENTS if document.name != "CHANGELOG.md"],
    ids=lambda file: str(file.relative_to(ROOT)),
)
def test_a_line_of_prose_has_at_most_100_columns_its_links_apart(document: Path) -> None:
    lines = prose(document.read_text(encoding="utf-8"))
    links = r"\]\([^)]*\)|https?://\S+"
    assert not [line for line in lines if len(re.sub(links, "", line)) > 100]
