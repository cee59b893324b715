"""The benchmark of a GPU, where there is none: what it makes of numbers, and what it refuses."""

from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks import gpu

CPU = Namespace(device="cpu", rounds=2, pairs=1, peers_dir=Path("nowhere"))


def test_usage_is_beside_what_was_taken_before() -> None:
    """Memory above that of the idle GPU at its highest, and the mean of the utilisation."""
    usage = gpu.GpuUsage.from_output("700, 0\n", "700, 0\n1900, 80\n1500, 70\n15")
    assert usage == gpu.GpuUsage(1200.0, 50.0)


def test_a_run_that_ended_before_the_first_look() -> None:
    """It took nothing that anybody saw."""
    assert gpu.GpuUsage.from_output("700, 3\n", "") == gpu.GpuUsage(0.0, 3.0)


def test_the_page() -> None:
    """Tables with their titles, and what was left out in a line."""
    tables = [
        gpu.GpuTable("Speed", ["workload", "ms"], [["(a)", "1.0"]], ["pfl, which is not there"]),
        gpu.GpuTable("Workers", (), (), ["Ray is not installed"]),
    ]
    text = gpu.format_gpu_page(tables, "python benchmarks/gpu.py", {"gpu": "none", "cores": 2})
    assert "Written by `python benchmarks/gpu.py` on: gpu none, cores 2." in text
    assert text.endswith(
        "## Speed\n\n| workload | ms |\n| --- | ---: |\n| (a) | 1.0 |\n\n"
        "Left out: pfl, which is not there.\n\n## Workers\n\nLeft out: Ray is not installed.\n"
    )


def test_without_a_gpu_nothing_waits_for_it(tmp_path: Path) -> None:
    """The table says why it is empty."""
    assert gpu.measure_waits(CPU, tmp_path).left_out == ["there is no GPU"]


@pytest.mark.slow
def test_agreement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU agrees with itself to the bit."""
    monkeypatch.setattr(gpu, "COMPARED_WORKLOADS", {"(s)": "synth"})
    table = gpu.measure_agreement(CPU, tmp_path)
    assert table.rows == [["(s) synth", "0.0e+00", "0.0e+00"]]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("", "--device must be cpu where there is no GPU, got cuda"),
        ("--device cpu --rounds 1", "--rounds must be at least 2, got 1"),
        ("--device cpu --pairs 0", "--pairs must be at least 1, got 0"),
    ],
)
def test_what_is_refused(
    words: str, reason: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line that names the option."""
    monkeypatch.setattr("sys.argv", ["gpu.py", *words.split()])
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit):
        gpu.main()
    assert capsys.readouterr().err.splitlines()[-1].endswith(reason)
