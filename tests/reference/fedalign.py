"""FedALIGN's decisions recomputed from the records of a run, from the paper's formulas alone.

Shares no code with ``strategies``: plain Python, exact fractions for the weights.
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
    """What does not fit, and how much was looked at."""

    problems: list[str]
    gates: int
    weights: int


def read_run(directory: Path) -> tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]:
    """Return config, rounds and rows of the clients table."""
    config = yaml.safe_load((directory / "config.yaml").read_text())
    rounds = [json.loads(line) for line in (directory / "rounds.jsonl").read_text().splitlines()]
    return config, rounds, pq.read_table(directory / "clients").to_pylist()


def threshold(strategy: dict[str, Any], t: int, total: int) -> float:
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


def warmup_rounds(strategy: dict[str, Any], total: int) -> Fraction:
    """Return the number of warm-up rounds, not rounded up yet."""
    if strategy["warmup_rounds"] is not None:
        return Fraction(strategy["warmup_rounds"])
    return Fraction(str(strategy["warmup_fraction"])) * total


def recompute(directory: Path) -> Recomputed:
    """Return every admission, weight, theta and count of a FedALIGN run that does not fit."""
    config, rounds, rows = read_run(directory)
    strategy, total = config["strategy"], config["rounds"]
    problems: list[str] = []
    gates = weights = 0
    for record in rounds:
        t = record["round"] - 1
        here = sorted((r for r in rows if r["round"] == t + 1), key=lambda r: r["client"])
        warmup = t < warmup_rounds(strategy, total)
        epsilon = 0.0 if warmup else threshold(strategy, t, total)
        recorded = math.inf if record["epsilon"] == "inf" else record["epsilon"]
        if not math.isclose(recorded, epsilon, rel_tol=1e-12):
            problems.append(f"round {t + 1}: epsilon {record['epsilon']} should be {epsilon}")
        if warmup and any(not r["priority"] for r in here):
            problems.append(f"round {t + 1}: a non-priority client was asked during warm-up")
        admitted: dict[int, int] = {}
        for row in here:
            if row["status"] not in ("trained", "rejected"):
                if row["weight"] != 0 or row["loss"] is not None:
                    problems.append(
                        f"round {t + 1}, client {row['client']}: not trained, but counts"
                    )
                continue
            inside = row["priority"] or _inside(strategy["criterion"], epsilon, record, row)
            gates += not row["priority"]
            if inside:
                admitted[row["client"]] = row["num_examples"]
            if inside != (row["status"] == "trained"):
                problems.append(
                    f"round {t + 1}, client {row['client']}: admitted should be {inside}"
                )
        problems += _weight_problems(t + 1, here, admitted, record)
        weights += len(here)
        problems += _count_problems(here, record)
    return Recomputed(problems, gates, weights)


def _inside(criterion: str, epsilon: float, record: dict[str, Any], row: dict[str, Any]) -> bool:
    """|F_k - F| <= eps, both halves, closed at eps = 0."""
    if epsilon == 0:
        return False
    if criterion == "loss":
        low, high = record["global_loss"] - epsilon, record["global_loss"] + epsilon
        return bool(low <= row["loss"] <= high)
    low, high = record["global_accuracy"] - epsilon, record["global_accuracy"] + epsilon
    return bool(low <= row["accuracy"] <= high)


def _weight_problems(
    number: int, here: list[dict[str, Any]], admitted: dict[int, int], record: dict[str, Any]
) -> list[str]:
    """w = (sum_P p_k w_k + sum_admitted p_k w_k) / (1 + A), p_k = D_k / sum_P D_i."""
    priority_data = sum(
        r["num_examples"] for r in here if r["priority"] and r["client"] in admitted
    )
    if priority_data == 0:
        return [f"round {number}: weights without priority data"] if admitted else []
    p = {k: Fraction(d, priority_data) for k, d in admitted.items()}
    mass = sum(
        (p[r["client"]] for r in here if not r["priority"] and r["client"] in p), Fraction(0)
    )
    problems = []
    for row in here:
        expected = p.get(row["client"], Fraction(0)) / (1 + mass)
        if abs(row["weight"] - float(expected)) > 1e-12:
            problems.append(f"round {number}, client {row['client']}: weight {row['weight']}")
    if abs(record["theta"] - float(1 / (1 + mass))) > 1e-12:
        problems.append(f"round {number}: theta {record['theta']}")
    loss = sum(
        float(p[r["client"]]) * r["loss"] for r in here if r["priority"] and r["client"] in p
    )
    if not math.isclose(loss, record["global_loss"], rel_tol=1e-6):
        problems.append(f"round {number}: global loss {record['global_loss']} should be {loss}")
    return problems


def _count_problems(here: list[dict[str, Any]], record: dict[str, Any]) -> list[str]:
    counts = {"asked": len(here), "admitted": sum(r["weight"] > 0 for r in here)}
    for status in ("trained", "silent", "unavailable", "rejected", "failed"):
        counts[status] = sum(r["status"] == status for r in here)
    return [
        f"round {record['round']}: {name} is {record[name]}, the table has {count}"
        for name, count in counts.items()
        if record[name] != count
    ]
