"""The demo, end to end: real processes and sockets, driven as a user drives it."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpushare_localcluster.demo.scenario import find, load, shipped, stages
from gpushare_localcluster.main import main
from tests.support.waiting import poll

COMMAND = (sys.executable, "-P", "-m", "gpushare.cli.main", "demo")


def leftovers() -> list[str]:
    """Command lines of the demo's processes that still run."""
    lines = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = process.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if any("gpushare-demo-" in word for word in words):
            lines.append(" ".join(words))
    return lines


@pytest.mark.long
def test_all_shipped_scenarios_hold_and_nothing_is_left_running(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert main(["-v"]) == 0
    output = capsys.readouterr().out
    assert "✗" not in output
    assert "\x1b" not in output
    assert output.count("\n== ") == len(shipped())
    # Equal pods that come at once are bound side by side, so any of them may be the second.
    second = r"pod binpack-\d -> node gpu-1 device 0 \(\+2; 2 of 16 used before\)"
    assert re.search(second, output)
    assert (
        "pod late waits: 0/1 nodes are available: 1 Insufficient GPU Memory in one device."
        in output
    )
    assert "pod batch deleted, which frees 10 units of device 0 of node gpu-a" in output
    assert re.search(
        r"pod ours-large-\d -> node large\d device 0 \(\+80; 0 of 80 used before\)", output
    )
    assert "pod ours-large-1 deleted, which frees 80 units of device 0 of node large" in output
    assert re.search(r"large1 +0 +4/80 +#\.{15}  spread-\d \(4\)", output)
    assert re.search(r"small2 +0 +8/24 +#{5}\.{11}  nic \(4\), spread-\d \(4\)", output)
    assert re.search(r"mixed  2 +24/24 +#{16}  large \(20\), last \(4\)", output)
    assert output.rstrip().endswith("all expectations held")
    assert list(tmp_path.iterdir()) == []
    assert not [line for line in leftovers() if str(tmp_path) in line]


def test_without_names_a_scenario_is_one_line_and_the_end_says_what_is_next(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpushare_localcluster.main.shipped", lambda: [find("2"), find("4")])
    assert main([]) == 0
    _, second, fourth, *rest = capsys.readouterr().out.splitlines()
    assert second == f"✓ {load(find('2')).title}"
    assert fourth == f"✓ {load(find('4')).title}"
    assert rest[:4] == ["", "all expectations held", "", "next:"]
    for line in rest[4:-1]:
        words = line.partition("#")[0].split()
        assert words[1:2] == ["demo"]
        assert words[2] in ("2", "--keep", "--ui")


@pytest.mark.long
def test_a_failed_expectation_and_a_failed_wait_are_shown_and_end_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(
        "nodes: [{name: a, gpus: 1, gpuMemory: 4}]\n"
        "steps:\n"
        "- apply: {name: p, gpuMem: 3}\n"
        "- waitFor: {pods: p, is: bound}\n"
        "- expect: {device: a/0, used: 4}\n"
        "- apply: {name: q, gpuMem: 3}\n"
        "- waitFor: {pods: q, is: bound, timeout: 5}\n"
        "- say: never reached\n"
    )
    assert main([str(file)]) == 1
    output = capsys.readouterr().out
    assert "✗ device 0 of a: 4 units are in use: 3 units are in use" in output
    assert "✗ q: bound within 5 s: not so: q; q waits: 0/1 nodes are available: 1 Insuff" in output
    assert "never reached" not in output


def test_a_program_that_raises_ends_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "wrong.py"
    file.write_text("def scenario(client):\n    raise AssertionError('not today')\n")
    assert main([str(file)]) == 1
    assert (
        f"✗ the program ends well: {file}:2: AssertionError: not today" in capsys.readouterr().out
    )


def test_several_scenarios_by_number_and_name_run_in_their_order_in_plain_letters() -> None:
    ran = subprocess.run(
        [*COMMAND, "6", "binpack"],
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    output = ran.stdout.decode("ascii")
    assert (ran.returncode, ran.stderr) == (0, b"")
    titles = re.findall(r"^== (.*)", output, re.MULTILINE)
    assert titles == [load(find(word)).title for word in ("6", "binpack")]
    assert re.search(r"^   ok \w", output, re.MULTILINE)


def test_a_name_that_no_scenario_has_is_refused_with_those_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["1", "binpick"])
    assert end.value.code == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("gpushare demo: no scenario is called 'binpick'; there are: 1-")
    assert output.err.endswith("\nSee 'gpushare demo --help' for usage.\n")


def test_a_manifest_is_refused_with_what_to_do_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text("apiVersion: v1\nkind: Pod\nmetadata: {name: p}\n")
    assert main([str(file)]) == 2
    errors = capsys.readouterr().err
    assert f"{file}:1: a manifest (Pod) is no scenario" in errors
    assert f"`kubectl apply -f {file}`" in errors


def test_a_malformed_scenario_is_one_line_and_starts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("nodes:\n- {name: a, gpus: many}\nsteps: []\n")
    assert main([str(file)]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err == (
        f"gpushare demo: {file}:2: nodes[0].gpus: Expected `int | null`, got `str`\n"
    )


def test_the_list_names_every_shipped_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    staged = [line.removeprefix("--stage ") for line in lines if line.startswith("--stage ")]
    assert [line.split()[0] for line in lines[: -len(staged)]] == [f.stem for f in shipped()]
    assert [line.split()[0] for line in staged] == [stage.name for stage in stages()]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_keep_prints_a_kubeconfig_that_works_and_a_signal_ends_everything(
    tmp_path: Path, number: signal.Signals
) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [*COMMAND, "1-binpack", "--keep"], stdout=subprocess.PIPE, text=True, env=environment
    ) as demo:
        assert demo.stdout is not None
        kubeconfig = ""
        for line in demo.stdout:
            if line.startswith("export KUBECONFIG="):
                kubeconfig = line.removeprefix("export KUBECONFIG=").strip()
                break
        assert Path(kubeconfig).is_file()
        assert "127.0.0.1" in Path(kubeconfig).read_text()
        demo.send_signal(number)
        assert demo.wait(90) == 0
    assert list(tmp_path.iterdir()) == []
    assert not [line for line in leftovers() if str(tmp_path) in line]


def test_killed_it_leaves_no_process(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [*COMMAND, "1-binpack", "--keep"], stdout=subprocess.PIPE, text=True, env=environment
    ) as demo:
        assert demo.stdout is not None
        assert any("the cluster keeps running" in line for line in demo.stdout)
        assert [line for line in leftovers() if str(tmp_path) in line]
        demo.kill()
        demo.wait(10)
    poll(lambda: not [line for line in leftovers() if str(tmp_path) in line], "they run on")


def test_a_signal_in_the_middle_ends_everything_too(tmp_path: Path) -> None:
    file = tmp_path / "long.yaml"
    file.write_text(
        "nodes: [{name: a, gpus: 1, gpuMemory: 4}]\n"
        "steps:\n"
        "- apply: {name: p, gpuMem: 5}\n"
        "- waitFor: {pods: p, is: bound, timeout: 200}\n"
    )
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    environment = {**os.environ, "TMPDIR": str(scratch), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [*COMMAND, str(file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    ) as demo:
        assert demo.stdout is not None
        assert any("pod p waits" in line for line in demo.stdout)
        demo.send_signal(signal.SIGINT)
        assert demo.wait(90) == 130
    assert list(scratch.iterdir()) == []
    assert not [line for line in leftovers() if str(scratch) in line]


def test_the_trace_shows_what_the_scheduler_of_an_own_configuration_thinks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, log = tmp_path / "mine.yaml", tmp_path / "cycles"
    file.write_text(
        "apiVersion: kubescheduler.config.k8s.io/v1\n"
        "kind: KubeSchedulerConfiguration\n"
        "profiles:\n"
        "- plugins: {score: {disabled: [{name: '*'}], enabled: [{name: NodeAffinity}]}}\n"
    )
    assert main(["--trace", "--trace-file", str(log), "--scheduler-config", str(file), "1"]) == 0
    output = capsys.readouterr().out
    assert "   cycle of default/binpack-1 by default-scheduler\n" in output
    assert re.search(r"\n     Score      gpu-1 15000 = http://[^ ]+ 15000\n", output)
    assert "\n     Chosen     gpu-1\n" in output
    cycles = [json.loads(line) for line in log.read_text().splitlines()]
    assert {cycle["pod"] for cycle in cycles} >= {f"default/binpack-{n}" for n in (1, 2, 3)}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("profiles: [{schedulerName: a", "mine.yaml: "),
        ("[]", "mine.yaml: not an object"),
        ("extenders: {a: 1}", "mine.yaml: extenders: not a list of objects"),
        ("percentageOfNodesToScore: '100'", "mine.yaml: "),
        ("profiles: [{plugins: {score: {enabled: [{name: Mine}]}}}]", '"Mine" does not exist'),
        (
            "profiles: [{plugins: {scores: {}}}, {}]",
            "profiles[0].schedulerName: missing",
        ),
    ],
)
def test_a_configuration_that_cannot_work_is_refused_in_one_line(
    content: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(content)
    assert main(["--scheduler-config", str(file), "1"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert sentence in line
