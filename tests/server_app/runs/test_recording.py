"""The names of clients in a run's records."""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from fedquorum import ComposedStrategy
from fedquorum.errors import SettingsError
from fedquorum.records.client_names import NO_NAMES, ClientNames
from fedquorum.records.hosts import Host
from fedquorum.records.reader import read_client_names
from fedquorum.rules.types import Population

import fedquorum_app
from server_app.runs.recording import NameRecorder
from tests.fedquorum.records.made import make_finished_round, open_records


class Strategy:
    """A strategy whose nodes have reported these names so far."""

    client_names = NO_NAMES
    client_hosts: Mapping[int, Host] = {}


def test_names_that_devices_report_are_recorded(tmp_path: Path) -> None:
    """The names of an earlier leg stay, though its devices are away; a new name replaces one."""
    run, strategy, population = tmp_path / "run", Strategy(), Population((0, 1, 2), frozenset({0}))
    with open_records(run) as records:
        save = partial(records.save_population, population, None)
        save(names=ClientNames({0: "North", 1: "South"}))
        recorder = NameRecorder(run, cast("ComposedStrategy", strategy), save, has_names=True)
        recorder.start_rounds(0, dict)
        before = (run / "population.parquet").stat().st_mtime_ns
        recorder.end_round(make_finished_round(1))
        assert (run / "population.parquet").stat().st_mtime_ns == before
        strategy.client_names = ClientNames({1: "Southern", 2: "West"})
        recorder.end_round(make_finished_round(2))
    assert read_client_names(run).names == {0: "North", 1: "Southern", 2: "West"}


def run_sites(folder: Path, more: Sequence[str] = (), **settings: Any) -> fedquorum_app.RunResult:
    lines = [f"{k},West,no" for k in range(2)]
    lines += more
    for site in ("North", "South"):
        lines += [f"{k},{site},{'no' if k % 2 else 'yes'}" for k in range(6)]
    (folder / "t.csv").write_text("\n".join(["age,site,ill", *lines]) + "\n")
    data = {
        "name": "csv",
        "path": folder / "t.csv",
        "client_column": "site",
        "target": "ill",
        "min_samples": 4,
    }
    return fedquorum_app.run(
        "experiment=custom",
        data=data | settings,
        rounds=1,
        verbose=False,
        hydra={"run": {"dir": folder / "run"}},
    )


@pytest.mark.slow
def test_a_run_keeps_the_names_of_sites_classes_and_columns(tmp_path: Path) -> None:
    """The names stand once; the rows of clients keep their ids, and the audit replays them."""
    result = run_sites(tmp_path, priority=["South"])
    assert read_client_names(result.directory).names == {0: "North", 1: "South"}
    data = json.loads((result.directory / "manifest.json").read_text())["data"]
    assert ([*data["classes"]], data["numbers"]) == (["no", "yes"], ["age"])
    assert result.audit().is_consistent
    assert set(result.clients["client"]) <= {0, 1}
    explained = result.explain(1, "South")
    assert explained == result.explain(1, 1)
    assert explained.startswith("round 1, client South (a priority client)")


@pytest.mark.slow
def test_names_can_stay_out_of_the_records(tmp_path: Path) -> None:
    """With data.names=false no file of the run names a site, nor does a doubt about one."""
    odd = [f"{9e6 + k},Eastern,no" for k in range(6)] + [f",EASTERN,{k % 2}" for k in range(6)]
    result = run_sites(tmp_path, odd, names=False, priority=[1], scaling="agreed")
    assert read_client_names(result.directory) == NO_NAMES
    manifest = json.loads((result.directory / "manifest.json").read_text())
    assert manifest["data"]["dropped_clients"] == {"1": 2}
    files = [path for path in result.directory.rglob("*") if path.is_file()]
    assert len(manifest["data"]["warnings"]) > 3
    sites = (b"North", b"South", b"West", b"Eastern", b"EASTERN")
    assert not [path for path in files for site in sites if site in path.read_bytes()]


def test_a_mistaken_name_ends_before_the_run(tmp_path: Path) -> None:
    """The error suggests the name that was meant."""
    with pytest.raises(SettingsError, match="did you mean South"):
        run_sites(tmp_path, priority=["Sout"])
    assert not (tmp_path / "run").exists()
