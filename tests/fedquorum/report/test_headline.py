"""Tests of the sentences that summarize an experiment."""

import re
from pathlib import Path
from typing import Any

from fedquorum.report.headline import format_headline
from fedquorum.report.seed_groups import group_runs
from fedquorum.report.tables import summarize_groups

from tests.fedquorum.records.made import load_all, make_round_line, make_run
from tests.snapshot import Snapshot


def make_runs(folder: Path, strategy: str, *accuracies: float, **settings: Any) -> None:
    """Make runs with these accuracies, one per seed."""
    for seed, accuracy in enumerate(accuracies, start=1):
        values = {"accuracy": accuracy, "worst10": accuracy / 2}
        test = dict.fromkeys(("all", "priority", "non_priority"), values)
        made = folder / f"{strategy}{seed}{len(list(folder.iterdir()))}"
        make_run(made, [make_round_line(1, test=test)], strategy=strategy, seed=seed, **settings)


def list_sentences(folder: Path) -> list[str]:
    """List the sentences of all paragraphs."""
    paragraphs = format_headline(summarize_groups(group_runs(load_all(folder))))
    return [sentence for sentences in paragraphs for sentence in sentences]


def test_the_best_method_and_how_far_it_is_ahead(tmp_path: Path, snapshot: Snapshot) -> None:
    """On the priority clients if there are any, in the table's units, the closest first."""
    make_runs(tmp_path, "fedavg", 0.6, 0.5)
    make_runs(tmp_path, "fedalign", 0.9, 0.7)
    make_runs(tmp_path, "fedgp", 0.8, 0.7)
    first, second, worst, few = list_sentences(tmp_path)
    assert "highest test accuracy on the priority clients" in first
    assert "FedALIGN: 80.00 ± 14.14 %" in first
    assert re.findall(r"of (\w+) by ([^(]*) points \(in (\d of \d)", second) == [
        ("FedGP", "5.00 ± 7.07", "1 of 2"),
        ("FedAvg", "25.00 ± 7.07", "2 of 2"),
    ]
    assert "40.00 ± 7.07 %" in worst
    assert few.startswith("2 seeds decide")
    snapshot("report/lead.txt", f"{first}\n{second}\n{worst}\n{few}\n")


def test_a_baseline_may_be_the_best(tmp_path: Path) -> None:
    """It is compared with the others like any method; with five seeds there is no warning."""
    make_runs(tmp_path, "fedalign", *(0.1,) * 5)
    make_runs(tmp_path, "fedavg", *(0.2,) * 5)
    first, second, _ = list_sentences(tmp_path)
    assert "FedAvg: 20.00" in first
    assert "FedALIGN by 10.00 ± 0.00 points (in 5 of 5 seeds)" in second


def test_lower_is_better_for_a_loss(tmp_path: Path) -> None:
    """A lead is positive if a method is better."""
    settings = "evaluation:\n  metric: loss\n"
    for strategy, loss in (("fedalign", 0.75), ("fedavg", 1.0)):
        values = {"accuracy": 0.5, "loss": loss}
        test = {"all": values, "priority": values, "non_priority": values | {"loss": 9.0}}
        made = tmp_path / strategy
        make_run(made, [make_round_line(1, test=test)], strategy=strategy, settings=settings)
    first, second, few = list_sentences(tmp_path)
    assert "lowest test loss on the priority clients" in first
    assert first.endswith("FedALIGN: 0.750 nats (1 seed).")
    assert second.endswith("FedAvg by 0.250 (in 1 of 1 seed).")
    assert few.startswith("1 seed decides")


def test_only_comparable_methods_are_compared(tmp_path: Path) -> None:
    """Different availability is no merit of a method."""
    for process, better in (("bernoulli", 0.5), ("markov", 0.9)):
        settings = f"availability:\n  name: {process}\n"
        make_runs(tmp_path, "fedau", better, settings=settings)
        make_runs(tmp_path, "mifa", better - 0.1, settings=settings)
    best = [sentence for sentence in list_sentences(tmp_path) if "highest" in sentence]
    assert [sentence.split(": ")[0] for sentence in best] == ["Bernoulli", "Markov"]
    assert [sentence.split(" of ")[1] for sentence in best] == [
        "FedAU: 50.00 % (1 seed).",
        "FedAU: 90.00 % (1 seed).",
    ]


def test_equal_values_are_no_lead(tmp_path: Path) -> None:
    """For example if FedAU's cutoff has no effect."""
    make_runs(tmp_path, "fedalign", 0.9, 0.7)
    make_runs(tmp_path, "fedgp", 0.9, 0.7)
    _, second, *_ = list_sentences(tmp_path)
    assert second.endswith("FedGP scored the same.")


def test_many_methods_are_counted(tmp_path: Path) -> None:
    """Three methods are named."""
    for index, strategy in enumerate(("fedalign", "fedgp", "fedavg", "afl", "term", "qfedavg")):
        make_runs(tmp_path, strategy, 0.9 - 0.1 * index)
    _, second, *_ = list_sentences(tmp_path)
    assert second.count("(in 1 of 1 seed)") == 3
    assert second.endswith("; and of 2 others by more.")


def test_an_interrupted_run_does_not_win(tmp_path: Path) -> None:
    """It is not compared either: it may lack the others' rounds."""
    make_runs(tmp_path, "fedalign", 0.9, status="interrupted")
    make_runs(tmp_path, "fedavg", 0.5)
    make_runs(tmp_path, "fedgp", 0.4)
    first, second, *_ = list_sentences(tmp_path)
    assert "is that of FedAvg" in first
    assert "FedALIGN" not in second


def test_one_method_is_not_the_best(tmp_path: Path) -> None:
    """A single method has no summary."""
    make_runs(tmp_path, "fedalign", 0.9)
    assert list_sentences(tmp_path) == []
