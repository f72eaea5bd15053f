"""Atheris on every decoder: bytes that reach code not reached before are kept and varied on.

python -m tests.badinput.fuzz FOLDER RUNS SECONDS SEED: exits with 0, or at the first exception that
is no refusal. The first byte chooses the decoder; FOLDER gets the corpus and findings. libFuzzer
ends the process, so this is a program and no module to import.
"""

import sys
from pathlib import Path

import atheris  # type: ignore[import-untyped]  # it has no types

with atheris.instrument_imports(
    include=["gpushare.wire", "gpushare.kube.election", "gpushare.cli"]
):
    from tests.badinput.decoders import DECODERS


def one_input(data: bytes) -> None:
    if data:
        DECODERS[data[0] % len(DECODERS)].refuses(data[1:])


def main(folder: Path, runs: str, seconds: str, seed: str) -> None:
    corpus = folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, decoder in enumerate(DECODERS):
        for index, data in enumerate(decoder.seed_bytes()):
            (corpus / f"seed-{number}-{index}").write_bytes(bytes([number]) + data)
    flags = {
        "runs": runs,
        "max_total_time": seconds,
        "seed": seed,
        "max_len": "4096",
        "timeout": "20",
        "rss_limit_mb": "2048",
        "verbosity": "1",
        "print_final_stats": "1",
        "artifact_prefix": f"{folder}/found-",
    }
    atheris.Setup(
        [sys.argv[0], *(f"-{name}={value}" for name, value in flags.items()), str(corpus)],
        one_input,
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:5])
