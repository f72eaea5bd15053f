"""Invalid options of `gpushare-dra-driver` end it with one line."""

import json
from pathlib import Path

import pytest

from gpushare_localcluster.dra.main import main

GOOD = {"devices": [{"uuid": "GPU-1", "index": 0, "memoryMiB": 81920}]}


@pytest.mark.parametrize(
    ("changes", "devices", "output"),
    [
        ({"--node-name": "a/b"}, GOOD, "node-name: 'a/b'"),
        ({"--driver": "Upper"}, GOOD, "driver: 'Upper'"),
        ({"--node-name": "n" * 240}, GOOD, "too long"),
        ({"--memory-unit": "3"}, GOOD, "memory-unit: '3'"),
        ({"--kubeconfig": "/none"}, GOOD, "/none"),
        ({"--kubelet-dir": "/" + "k" * 100}, GOOD, "kubelet-dir: "),
        ({}, {"devices": []}, "there is no GPU"),
        ({}, {}, "devices-file: "),
    ],
)
def test_options_that_make_no_sense_are_said_in_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, str],
    devices: object,
    output: str,
) -> None:
    file, config = tmp_path / "devices.json", tmp_path / "kubeconfig"
    file.write_text(json.dumps(devices))
    config.write_text(
        json.dumps(
            {
                "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
                "users": [{"name": "u", "user": {}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "x",
            }
        )
    )
    options = {
        "--node-name": "n1",
        "--devices-file": str(file),
        "--kubeconfig": str(config),
        "--kubelet-dir": str(tmp_path / "k"),
        **changes,
    }
    assert main([word for pair in options.items() for word in pair]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("gpushare-dra-driver: ")
    assert output in line
