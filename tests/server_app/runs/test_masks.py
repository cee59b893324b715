"""Runs with masks by their settings: the nodes, what is shown, and what is refused."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fedquorum import Population
from fedquorum.audit.check import audit_run
from fedquorum.errors import ParameterError, SettingsError
from fedquorum.flower.codec.keys import SECURE_SUM_STEPS
from fedquorum.flower.secure.settings import MaskSummary
from fedquorum.records.reader import load_run
from fedquorum.report.seed_groups import group_runs
from fedquorum.report.tables import (
    build_differences_table,
    build_summary_table,
    compute_method_differences,
    summarize_groups,
)
from flwr.app import Message, MessageType

from conf.compose import compose_overrides
from server_app.engines.in_process import HostedNodes
from server_app.runs import build
from server_app.runs.first_lines import preview_masks
from server_app.runs.masks import name_settings, summarize_masks
from server_app.runs.resume import merge_resumed_overrides
from tests.builders_runs import (
    assert_same_results,
    make_client_overrides,
    read_lines,
    read_rows,
    run_here,
    sum_as_with_masks,
)
from tests.fedquorum.records.made import change_table

MASKS = "secure_aggregation=masks"
FEW = (*make_client_overrides(5, 2), "data=synth", "rounds=3", "client.device=cpu")


def summarize(*overrides: str, clients: int = 12, nodes: int | None = 10) -> MaskSummary | None:
    """Return the masks of a run with these settings."""
    composed = compose_overrides(("data=synth", "strategy=fedau", MASKS, *overrides))
    population = Population.from_size(clients, {0, 1})
    return summarize_masks(composed.settings, composed.rules, population, nodes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "nodes", "expected"),
    [
        ((), 10, MaskSummary(10, 9, 6, 0.1, 0.1)),
        ((), 40, MaskSummary(12, 11, 7, 0.1, 0.1)),
        (("engine.quorum=0.75",), 10, MaskSummary(10, 9, 6, 0.1, 0.25)),
        (("strategy.fraction=0.5",), 10, MaskSummary(6, 5, 4, 0.1, 0.1)),
        (("secure_aggregation.dropping=0",), 10, MaskSummary(10, 9, 6, 0.1, 0.0)),
        ((), None, None),
        ((), 3, MaskSummary(3, 2, 2, 0.1, 0.1)),
    ],
)
def test_the_masks_of_a_run(
    overrides: tuple[str, ...], nodes: int | None, expected: MaskSummary | None
) -> None:
    """They follow from the nodes with clients that a round asks, and from the quorum."""
    assert summarize(*overrides, nodes=nodes) == expected


@pytest.mark.parametrize(
    ("overrides", "clients", "nodes", "message"),
    [
        ((), 2, None, "secure_aggregation must be none with fewer than 3 clients, got masks"),
        ((), 12, 2, "secure_aggregation must be none with fewer than 3 nodes, got 2"),
        (("strategy.fraction=0.1",), 12, None, "strategy.fraction must be so large that"),
        (("engine.quorum=2",), 3, 3, r"engine.quorum must be null \(all\) with masks and 3 nodes"),
        (
            ("strategy=fedavg", "experiment=custom", "rounds=10", "strategy.warmup_fraction=0.1"),
            12,
            None,
            r"strategy\.warmup_fraction must be 0 with secure_aggregation=masks \(.* 2 nodes",
        ),
        (
            ("strategy=fedavg", "experiment=custom", "strategy.warmup_rounds=1"),
            12,
            2,
            r"strategy\.warmup_rounds must be 0 with secure_aggregation=masks \(.* 2 nodes",
        ),
        (
            ("evaluation.clients=priority",),
            12,
            10,
            r"evaluation\.clients must be all with secure_aggregation=masks \(.* on 2 nodes",
        ),
        (("engine.quorum=0.5",), 12, 10, r"engine\.quorum must be more than half of .* got 0\.5"),
        (("engine.quorum=3",), 12, 10, r"engine\.quorum must be more than half of .* got 3$"),
        (
            ("engine.quorum_clients=priority",),
            12,
            10,
            r"engine\.quorum_clients must be asked with masks and 10 nodes .* got 'priority'",
        ),
        (
            ("secure_aggregation.dropping=0.6",),
            12,
            10,
            r"secure_aggregation\.dropping must be a smaller share with 10 nodes .* got 0\.6",
        ),
        (
            ("engine.quorum=6", "secure_aggregation.dropping=0"),
            12,
            12,
            "engine.quorum must be at least 0.584 of the selected clients",
        ),
        (
            ("secure_aggregation.colluding=0.9",),
            12,
            10,
            "secure_aggregation.colluding must be a smaller share with 10 nodes",
        ),
    ],
)
def test_too_few_nodes_are_refused(
    overrides: tuple[str, ...], clients: int, nodes: int | None, message: str
) -> None:
    """Before the run, by the name of the setting."""
    with pytest.raises(SettingsError, match=message):
        summarize(*overrides, clients=clients, nodes=nodes)


def test_nodes_that_connect_are_refused_by_the_same_names() -> None:
    """Other errors of parameters keep their names."""
    with (
        pytest.raises(SettingsError, match=r"^engine\.quorum must be more, got null"),
        name_settings(),
    ):
        raise ParameterError("quorum", "more", None)
    with pytest.raises(ParameterError, match=r"^other must be"), name_settings():
        raise ParameterError("other", "more", None)


def test_a_refused_run_has_no_folder(tmp_path: Path) -> None:
    """The line comes before any record."""
    with pytest.raises(SettingsError, match=r"engine\.quorum must be more than half"):
        run_here(tmp_path / "run", *FEW, "strategy=fedau", MASKS, "engine.quorum=2")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["fedau", "average_all", "known_statistics"])
def test_a_run_with_masks(
    tmp_path: Path,
    strategy: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It has the records and the model of a run without, whose bins are fixed too."""
    overrides = (*FEW, f"strategy={strategy}")
    masked = run_here(tmp_path / "masked", *overrides, MASKS)
    expected = MaskSummary(5, 4, 3, 0.1, 0.1)
    assert json.loads((masked / "manifest.json").read_text())["masks"] == vars(expected)
    assert expected.format_line() in capsys.readouterr().out
    assert preview_masks(compose_overrides((*overrides, MASKS))) == expected

    sum_as_with_masks(monkeypatch)
    plain = run_here(tmp_path / "plain", *overrides)
    assert "masks" not in json.loads((plain / "manifest.json").read_text())
    assert preview_masks(compose_overrides(overrides)) is None
    assert (masked / "model.safetensors").read_bytes() == (plain / "model.safetensors").read_bytes()
    kept = ("round", "client", "status", "reason", "weight")
    tables = [[[row[key] for key in kept] for row in read_rows(run)] for run in (masked, plain)]
    assert tables[0] == tables[1]
    assert len(tables[0]) == 3 * 5
    assert all(row[key] is None for row in read_rows(masked) for key in ("loss", "num_examples"))
    result = audit_run(masked)
    assert not result.mismatches
    assert any("which are sums with masks" in line for line in result.unverifiable)


@pytest.mark.parametrize("strategy", ["fedau", "fedavg"])
def test_every_message_about_a_model_is_part_of_a_secure_sum(
    tmp_path: Path, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also before round 1, where a baseline without masks evaluates the first model."""
    asked, handle = [], HostedNodes.handle

    def note(nodes: HostedNodes, message: Message) -> Message:
        asked.append(message)
        return handle(nodes, message)

    monkeypatch.setattr(HostedNodes, "handle", note)
    run_here(tmp_path / "run", "experiment=custom", *FEW, f"strategy={strategy}", MASKS)
    about = [one for one in asked if one.metadata.message_type != MessageType.QUERY]
    assert len(about) == 2 * 3 * 4 * 5
    assert all(any(step in one.content for step in SECURE_SUM_STEPS) for one in about)
    assert not audit_run(tmp_path / "run").mismatches


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["fedavg", "fedau"])
def test_the_records_have_means_over_all_clients_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], strategy: str
) -> None:
    """Up to the grid of the sums; the tables of the end and of the report say so.

    The means are by data with weights by data alone, and are named so.
    """
    words = (
        *("experiment=custom", "data=synth", "rounds=2", f"strategy={strategy}"),
        *("data.num_clients=5", "data.num_priority=5", "client.local_epochs=1"),
        *("data.validation_fraction=0.2", "evaluation.metric=top5"),
    )
    masked, plain = (
        run_here(tmp_path / name, *words, *mask) for name, mask in (("a", (MASKS,)), ("b", ()))
    )
    shown = capsys.readouterr().out
    assert len(re.findall(r"single clients +│ +not with masks", shown)) == 1
    by_data = strategy == "fedavg"
    assert ("test top-5 accuracy, each client once" in shown) != by_data
    rounds = [read_lines(run) for run in (masked, plain)]
    for found, expected in zip(*rounds, strict=True):
        # The first one is measured by exchanges before round 1, which masks do not have.
        if by_data and found["round"] > 1:
            assert found["global_loss"] == pytest.approx(expected["global_loss"], abs=1e-6)
        else:
            assert found["global_loss"] is None
        for split in ("test", "validation"):
            groups, group = found[split], expected[split]["all"]
            assert [key for key, value in groups.items() if value is not None] == ["all"]
            means = {k: group[k] for k in ("loss", "accuracy", "top5")}
            if not by_data:
                evaluated = select_round(read_rows(plain, "evaluations"), found["round"])
                keys = {k: f"{split}_{'metric' if k == 'top5' else k}" for k in means}
                means = {k: np.mean([row[key] for row in evaluated]) for k, key in keys.items()}
                means["average"] = group["average"]
            counts = {k: group[k] for k in ("evaluated", "left_out")}
            assert groups["all"] == pytest.approx(means | counts, abs=1e-6)
    assert not read_rows(masked, "evaluations")
    rows = summarize_groups(group_runs([load_run(masked), load_run(plain)]))
    table = build_summary_table(rows, "title")
    worst = [row[table.headings.index("worst client")] for row in table.rows]
    assert [cell == "not with masks" for cell in worst].count(True) == 1
    tested = [row[table.headings.index("mean by data")] for row in table.rows]
    assert sum("(each client once)" in cell for cell in tested) == (not by_data)
    assert build_differences_table(compute_method_differences(rows), "title").rows


def select_round(rows: list[dict[str, Any]], server_round: int) -> list[dict[str, Any]]:
    """Return the rows of a round."""
    return [row for row in rows if row["round"] == server_round]


@pytest.mark.slow
def test_clients_that_are_away_cost_no_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At least three of eight are there in each round, and fewer than five in most."""
    overrides = (*make_client_overrides(8, 2), "data=synth", "rounds=4", "strategy=fedau")
    overrides += ("availability=bernoulli", "availability.p=0.5", "evaluation.every=null")
    masked = run_here(tmp_path / "masked", *overrides, MASKS)
    lines = read_lines(masked)
    assert [line["trained"] + line["unavailable"] for line in lines] == [8] * 4
    assert [line["admitted"] for line in lines] == [line["trained"] for line in lines]
    assert 3 <= min(line["trained"] for line in lines) < 5
    assert not audit_run(masked).mismatches
    sum_as_with_masks(monkeypatch)
    plain = run_here(tmp_path / "plain", *overrides)
    assert (masked / "model.safetensors").read_bytes() == (plain / "model.safetensors").read_bytes()


def test_a_changed_weight_of_a_masked_run_is_found(tmp_path: Path) -> None:
    """The audit replays weights from the rows of clients that have no numbers of their own."""
    run = run_here(tmp_path / "run", *FEW, "strategy=average_all", MASKS)
    change_table(run, "clients", lambda rows: rows[7].update(weight=0.9))
    assert any("weight is 0.9" in str(one) for one in audit_run(run).mismatches)


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ("fedquorum.rules.weighting.AverageAll", ""),
        ("fedquorum.rules.weighting.QFedAvgWeighting", "the losses of single clients"),
    ],
)
def test_a_custom_rule_declares_whether_a_sum_is_enough(rule: str, reason: str) -> None:
    """It is imported at the start of a run."""
    words = ("data=synth", "strategy=custom", f"strategy.path={rule}", MASKS)
    composed, population = compose_overrides(words), Population.from_size(5)
    if not reason:
        assert build.build_strategy(composed, population, None).communication.needs_sums
        return
    with pytest.raises(SettingsError, match=f"with strategy=custom .*{reason}"):
        build.build_strategy(composed, population, None)


@pytest.mark.slow
def test_a_resumed_run_with_masks_is_the_same(tmp_path: Path) -> None:
    """Its records and its model have the same bits, since only keys are drawn anew."""
    words = (*make_client_overrides(5, 5), "data=synth", "rounds=3", "strategy=fedau", MASKS)
    whole = run_here(tmp_path / "whole", *words)
    run = run_here(tmp_path / "run", *words, "engine.stop_after_round=2")
    run_here(run, *merge_resumed_overrides([f"resume={run}", "engine.stop_after_round=null"]))
    assert_same_results(run, whole)
    assert all(line["test"]["all"]["evaluated"] == 5 for line in read_lines(run))
