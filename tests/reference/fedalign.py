"""FedALIGN's decisions recomputed from the records of a run, from the paper's formulas alone.

Shares no code with ``fedquorum``: plain Python, exact fractions for the weights.
"""

import json
import math
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import yaml


@dataclass(frozen=True)
class Recomputed:
    """The mismatches, and the numbers of checked gates and weights."""

    problems: list[str]
    gates: int
    weights: int


def read_run(directory: Path) -> tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]:
    """Return config, rounds and rows of the clients table."""
    config = yaml.safe_load((directory / "config.yaml").read_text())
    rounds = [json.loads(line) for line in (directory / "rounds.jsonl").read_text().splitlines()]
    return config, rounds, pq.read_table(directory / "clients").to_pylist()


def compute_threshold(strategy: dict[str, Any], t: int, total: int) -> float:
    """Return eps_t of the schedule, written out."""
    epsilon = float(strategy["epsilon"])
    u = Fraction(t, max(total - 1, 1))
    match strategy["epsilon_schedule"]:
        case "constant":
            return epsilon
        case "step":
            return epsilon if t < Fraction(str(strategy["epsilon_step_fraction"])) * total else 0.0
        case "linear":
            return epsilon * float(1 - u)
        case "cosine":
            return epsilon * (1 + math.cos(math.pi * u)) / 2
        case "exponential":
            return epsilon * math.exp(-float(strategy["epsilon_rate"]) * u)
        case "sqrt":
            return epsilon / math.sqrt(t + 1)
    raise ValueError(strategy["epsilon_schedule"])


def compute_warmup_rounds(strategy: dict[str, Any], total: int) -> Fraction:
    """Return the number of warm-up rounds before rounding up."""
    if strategy["warmup_rounds"] is not None:
        return Fraction(strategy["warmup_rounds"])
    return Fraction(str(strategy["warmup_fraction"])) * total


def get_priority_weight(config: dict[str, Any], row: dict[str, Any]) -> Fraction:
    """Return lambda_k from the settings, else 1 with priority and 0 without."""
    weights = config["data"]["priority_weights"] or {}
    if row["client"] in weights:
        return Fraction(str(weights[row["client"]]))
    return Fraction(int(row["priority"]))


def _read_evaluations(directory: Path) -> list[dict[str, Any]]:
    """Return the priority clients' evaluations of the model after each round."""
    return [r for r in pq.read_table(directory / "evaluations").to_pylist() if r["priority"]]


def find_mismatches(directory: Path) -> Recomputed:
    """Return every wrong admission, weight, theta and count of a FedALIGN run."""
    config, rounds, rows = read_run(directory)
    strategy, total = config["strategy"], config["rounds"]
    evaluations = _read_evaluations(directory)
    examples = {r["client"]: r["num_examples"] for r in evaluations}
    problems: list[str] = []
    gates = weights = 0
    for record in rounds:
        t = record["round"] - 1
        decisions = sorted((r for r in rows if r["round"] == t + 1), key=lambda r: r["client"])
        warmup = t < compute_warmup_rounds(strategy, total)
        epsilon = 0.0 if warmup else compute_threshold(strategy, t, total)
        recorded = math.inf if record["epsilon"] == "inf" else record["epsilon"]
        if not math.isclose(recorded, epsilon, rel_tol=1e-12):
            problems.append(f"round {t + 1}: epsilon {record['epsilon']} should be {epsilon}")
        if warmup and any(not r["priority"] for r in decisions):
            problems.append(f"round {t + 1}: a non-priority client was selected in the warm-up")
        fractions: dict[int, Fraction] = {}
        for row in decisions:
            label = f"round {t + 1}, client {row['client']}"
            if row["status"] not in ("trained", "rejected"):
                if row["weight"] != 0 or row["loss"] is not None:
                    problems.append(f"{label}: not trained, but counts")
                continue
            weight = get_priority_weight(config, row)
            inside = _is_inside(strategy["criterion"], epsilon, record, row)
            gates += weight < 1
            fractions[row["client"]] = weight + (1 - weight) * int(inside)
            if (fractions[row["client"]] > 0) != (row["status"] == "trained"):
                problems.append(f"{label}: admitted should be {inside}")
        problems += _find_weight_problems(config, decisions, fractions, record, examples)
        trained_priority = [r for r in decisions if r["priority"] and r["client"] in fractions]
        objective_client = strategy.get("objective_client")
        all_priority = [
            r for r in evaluations if r["round"] == t and objective_client in (None, r["client"])
        ]
        evaluated = trained_priority if strategy["objective_clients"] == "sampled" else all_priority
        problems += _find_loss_problems(config, evaluated, record)
        weights += len(decisions)
        problems += _count_problems(decisions, record)
    return Recomputed(problems, gates, weights)


def _is_inside(criterion: str, epsilon: float, record: dict[str, Any], row: dict[str, Any]) -> bool:
    """Return |F_k - F| <= eps, both halves, closed at eps = 0."""
    if epsilon == 0:
        return False
    if criterion == "loss":
        low, high = record["global_loss"] - epsilon, record["global_loss"] + epsilon
        return bool(low <= row["loss"] <= high)
    low, high = record["global_accuracy"] - epsilon, record["global_accuracy"] + epsilon
    return bool(low <= row["accuracy"] <= high)


def _find_weight_problems(
    config: dict[str, Any],
    decisions: list[dict[str, Any]],
    fractions: dict[int, Fraction],
    record: dict[str, Any],
    examples: dict[int, int],
) -> list[str]:
    """Check (lambda_k + (1 - lambda_k) admitted_k) p_k, normalized; p_k = D_k / sum lambda_i D_i.

    For priority clients sampled with replacement n_k / |S| replaces p_k, and the sum is over all
    priority clients.
    """
    number = record["round"]
    trained = [r for r in decisions if r["client"] in fractions]
    base = sum((get_priority_weight(config, r) * r["num_examples"] for r in trained), Fraction(0))
    if base == 0:
        return [f"round {number}: weights without priority data"] if any(fractions.values()) else []
    p = {r["client"]: r["num_examples"] / base for r in trained}
    draws = {r["client"]: r["num_draws"] for r in trained if r["num_draws"] is not None}
    if draws:
        data = sum(examples.values())
        p = {
            r["client"]: Fraction(draws[r["client"]], sum(draws.values()))
            if r["priority"]
            else Fraction(r["num_examples"], data)
            for r in trained
        }
    mass = sum((fractions[k] * p[k] for k in p), Fraction(0)) - 1
    problems = []
    for row in decisions:
        k = row["client"]
        expected = fractions[k] * p[k] / (1 + mass) if k in p else Fraction(0)
        if abs(row["weight"] - float(expected)) > 1e-12:
            problems.append(f"round {number}, client {k}: weight {row['weight']}")
    if abs(record["theta"] - float(1 / (1 + mass))) > 1e-12:
        problems.append(f"round {number}: theta {record['theta']}")
    return problems


def _find_loss_problems(
    config: dict[str, Any], evaluated: list[dict[str, Any]], record: dict[str, Any]
) -> list[str]:
    """Check F = sum lambda_k D_k F_k / sum lambda_i D_i over the clients that evaluated it."""
    data = [get_priority_weight(config, r) * r["num_examples"] for r in evaluated]
    loss = sum(float(d / sum(data)) * r["loss"] for d, r in zip(data, evaluated, strict=True))
    if math.isclose(loss, record["global_loss"], rel_tol=1e-6):
        return []
    return [f"round {record['round']}: global loss {record['global_loss']} should be {loss}"]


def _count_problems(decisions: list[dict[str, Any]], record: dict[str, Any]) -> list[str]:
    counts = {"selected": len(decisions), "admitted": sum(r["weight"] > 0 for r in decisions)}
    for status in ("trained", "declined", "unavailable", "rejected", "failed"):
        counts[status] = sum(r["status"] == status for r in decisions)
    return [
        f"round {record['round']}: {name} is {record[name]}, the table has {count}"
        for name, count in counts.items()
        if record[name] != count
    ]
