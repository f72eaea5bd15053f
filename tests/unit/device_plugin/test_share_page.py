"""The shell lines of docs/share.md, with the variables of a container and stand-ins of programs."""

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare.device_plugin.container import Contract, answer
from gpushare.device_plugin.identity import Grant
from gpushare.wire.annotations import ALIYUN
from tests.unit.device_plugin.pods import cards

PAGE = (Path(__file__).parents[3] / "docs" / "share.md").read_text(encoding="utf-8")
LINES = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
(CARD,) = cards(24).all


TOLD = {
    "vllm": "serve MODEL --gpu-memory-utilization 0.313",
    "python": "XLA_PYTHON_CLIENT_MEM_FRACTION=0.313",
    "ollama": f"OLLAMA_GPU_OVERHEAD={16 << 30}",
}


@pytest.mark.parametrize(("lines", "program"), list(zip(LINES, TOLD, strict=True)))
def test_a_program_is_told_the_share(lines: str, program: str, tmp_path: Path) -> None:
    grant = Grant(((replace(CARD, memory_mib=24 << 10), 8),), 8)
    (tmp_path / program).write_text("#!/bin/sh\necho $@\nenv\n")
    (tmp_path / program).chmod(0o755)
    envs = dict(answer(grant, Contract(ALIYUN, 1024), "uid", "main").envs)
    envs["PATH"] = f"{tmp_path}:/usr/bin:/bin"
    done = subprocess.run(["sh", "-c", lines], capture_output=True, text=True, env=envs, check=True)
    assert TOLD[program] in done.stdout.splitlines()
