"""Tests of the GPU benchmark on a machine without a GPU."""

from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks import gpu

CPU = Namespace(device="cpu", rounds=2, pairs=1, peers_dir=Path("nowhere"))


def test_usage_excludes_idle_memory() -> None:
    """The usage has peak memory above that of the idle GPU, and mean utilization."""
    usage = gpu.GpuUsage.from_output("700, 0\n", "700, 0\n1900, 80\n1500, 70\n15")
    assert usage == gpu.GpuUsage(1200.0, 50.0)


def test_usage_without_samples_is_idle() -> None:
    """A run that ends before the first sample has no memory."""
    assert gpu.GpuUsage.from_output("700, 3\n", "") == gpu.GpuUsage(0.0, 3.0)


def test_the_page_has_tables_and_missing_parts() -> None:
    """Each table has its title, and a line for each missing part."""
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


def test_waits_need_a_gpu(tmp_path: Path) -> None:
    """The table has the reason why it is empty."""
    assert gpu.measure_waits(CPU, tmp_path).left_out == ["there is no GPU"]


@pytest.mark.slow
def test_cpu_runs_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs on the CPU give the same model, to the bit."""
    monkeypatch.setattr(gpu, "COMPARED_WORKLOADS", {"(s)": "synth"})
    table = gpu.measure_agreement(CPU, tmp_path)
    assert table.rows == [["(s) synth", "0.0e+00", "0.0e+00"]]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("", "--device must be cpu where there is no GPU, got cuda"),
        ("--device cpu --rounds 1", "--rounds must be at least 2, got 1"),
        ("--device cpu --pairs 0", "--pairs must be at least 1, got 0"),
    ],
)
def test_invalid_options_are_rejected(
    arguments: str, reason: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error is one line that names the option."""
    monkeypatch.setattr("sys.argv", ["gpu.py", *arguments.split()])
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit):
        gpu.main()
    assert capsys.readouterr().err.splitlines()[-1].endswith(reason)
