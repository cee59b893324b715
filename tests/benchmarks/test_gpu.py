"""Tests of the GPU benchmark on a machine without a GPU."""

import json
import warnings
from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks import gpu

CPU = Namespace(device="cpu", rounds=2, pairs=1, peers_dir=Path("nowhere"), workloads=None)


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
    text = gpu.format_gpu_page(tables, ["python benchmarks/gpu.py"], {"gpu": "none", "cores": 2})
    assert "Measured on: gpu none, cores 2. By:\n\n```bash\npython benchmarks/gpu.py\n```" in text
    assert text.endswith(
        "## Speed\n\n| workload | ms |\n| --- | ---: |\n| (a) | 1.0 |\n\n"
        "Left out: pfl, which is not there.\n\n## Workers\n\nLeft out: Ray is not installed.\n"
    )


def test_files_of_one_machine_are_combined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A page may have tables of several runs, but not of several machines."""
    names = ("one", "two", "other")
    for name in names:
        table = {"title": name, "header": ["x"], "rows": [["1"]], "left_out": []}
        machine = {"gpu": "B" if name == "other" else "A"}
        content = {"tables": [table], "commands": [f"measure {name}"], "machine": machine}
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    one, two, other = (str(tmp_path / f"{name}.json") for name in names)
    page = tmp_path / "page.md"
    monkeypatch.setattr("sys.argv", ["gpu.py", "--combine", one, two, "--page", str(page)])
    gpu.main()
    text = page.read_text()
    assert "gpu A. By:\n\n```bash\nmeasure one\nmeasure two\n```" in text
    assert text.index("## one") < text.index("## two")
    assert capsys.readouterr().out == f"{text}\n"
    monkeypatch.setattr("sys.argv", ["gpu.py", "--combine", one, other])
    with pytest.raises(SystemExit, match=r"other\.json is from another machine than .*one\.json"):
        gpu.main()


def test_each_table_is_written_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that fails, or is interrupted, does not take the earlier ones with it."""
    path = tmp_path / "out.json"
    arguments = ["gpu.py", "--device", "cpu", "--only", "waiting", "speed", "--json", str(path)]
    monkeypatch.setattr("sys.argv", arguments)

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(gpu.TABLES, "speed", fail)
    with pytest.raises(KeyboardInterrupt):
        gpu.main()
    content = json.loads(path.read_text())
    assert [table["left_out"] for table in content["tables"]] == [["there is no GPU"]]
    assert content["commands"] == [f"python benchmarks/{' '.join(arguments)}"]


def test_waits_need_a_gpu(tmp_path: Path) -> None:
    """The table has the reason why it is empty."""
    assert gpu.measure_waits(CPU, tmp_path).left_out == ["there is no GPU"]


def test_waits_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The count is that of PyTorch's warnings while the round trains."""
    modes: list[str] = []

    def set_mode(mode: str) -> None:
        modes.append(mode)
        if mode == "warn":
            warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
            warnings.warn("something else", stacklevel=1)

    monkeypatch.setattr("torch.cuda.set_sync_debug_mode", set_mode)
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        assert gpu.count_gpu_waits(1, "cpu") == 0
    assert modes == ["warn", "default"]


def test_workloads_are_selected() -> None:
    """A table has the rows of the given workloads, with their letters."""
    chosen = Namespace(workloads=["fedau_cnn", "fmnist_logreg"])
    assert gpu._select_workloads(chosen) == [("(a)", "fmnist_logreg"), ("(f)", "fedau_cnn")]
    assert len(gpu._select_workloads(CPU)) == len(gpu.COMPARED_WORKLOADS)


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
