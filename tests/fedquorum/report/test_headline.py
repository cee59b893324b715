"""Tests of the sentences that summarize an experiment."""

import re
from pathlib import Path
from typing import Any

from fedquorum.report.headline import format_headline
from fedquorum.report.seed_groups import group_runs
from fedquorum.report.tables import summarize_groups

from tests.fedquorum.records.made import load_all, make_round_line, make_run
from tests.snapshot import Snapshot


def make_groups(accuracy: float) -> dict[str, dict[str, float]]:
    """Return a round's summary of a split; the worst tenth has half of the accuracy."""
    values = {"accuracy": accuracy, "worst10": accuracy / 2}
    return dict.fromkeys(("all", "priority", "non_priority"), values)


def make_runs(
    folder: Path,
    strategy: str,
    *accuracies: float,
    first_seed: int = 1,
    validation: float | None = None,
    **settings: Any,
) -> None:
    """Make runs with these test accuracies, one per seed, and one validation accuracy."""
    splits = {} if validation is None else {"validation": make_groups(validation)}
    for seed, accuracy in enumerate(accuracies, start=first_seed):
        made = folder / f"{strategy}{seed}{len(list(folder.iterdir()))}"
        line = make_round_line(1, test=make_groups(accuracy), **splits)
        make_run(made, [line], strategy=strategy, seed=seed, **settings)


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
    make_runs(tmp_path, "fedavg", 0.8, 0.6)
    first, second, worst, _ = list_sentences(tmp_path)
    assert "is a tie of FedALIGN and FedGP, the same in every seed: 80.00 ± 14.14 %" in first
    assert second == (
        "Paired by seed, FedALIGN is ahead of FedAvg by 10.00 ± 0.00 points (in 2 of 2 seeds)."
    )
    assert worst.endswith("FedALIGN and FedGP tie: 40.00 ± 7.07 %.")


def test_equal_means_are_a_tie(tmp_path: Path) -> None:
    """Each method is ahead in one seed; their deviations differ, so the sentence has none."""
    make_runs(tmp_path, "fedalign", 0.9, 0.7)
    make_runs(tmp_path, "fedgp", 0.7, 0.9)
    make_runs(tmp_path, "fedavg", 0.8, 0.8)
    first, worst, _ = list_sentences(tmp_path)
    assert "is a tie of FedALIGN, FedAvg and FedGP: 80.00 % (" in first
    assert worst.endswith("FedALIGN, FedAvg and FedGP tie: 40.00 %.")


def test_means_are_over_the_seeds_that_all_methods_have(tmp_path: Path) -> None:
    """A method with its best seed alone does not lead a method that beats it in that seed."""
    make_runs(tmp_path, "fedavg", 0.8)
    make_runs(tmp_path, "term", 0.9, 0.1, 0.1)
    first, second, *_ = list_sentences(tmp_path)
    assert first.endswith(
        "is that of TERM: 90.00 % (1 seed that both methods have; TERM has 3 seeds; FedAvg has 1 "
        "seed)."
    )
    assert second.endswith("ahead of FedAvg by 10.00 points (in 1 of 1 seed).")


def test_methods_without_a_common_seed_are_not_compared(tmp_path: Path) -> None:
    """The paragraph says how many seeds each method has, and names no best method."""
    make_runs(tmp_path, "fedavg", 0.8)
    make_runs(tmp_path, "term", 0.9, 0.1, first_seed=2)
    (sentence, few) = list_sentences(tmp_path)
    assert sentence == (
        "The methods have no seed in common, so they are not compared: TERM has 2 seeds; FedAvg "
        "has 1 seed."
    )
    assert few.startswith("1 seed decides")


def test_validation_splits_decide_if_there_are_any(tmp_path: Path) -> None:
    """A method that test splits would choose is not the best; its test accuracy is named."""
    make_runs(tmp_path, "fedavg", 0.8, validation=0.7)
    make_runs(tmp_path, "term", 0.9, validation=0.6)
    first, second, worst, _ = list_sentences(tmp_path)
    assert first == (
        "The highest validation accuracy on the priority clients is that of FedAvg: 70.00 %; test "
        "accuracy 80.00 % (1 seed)."
    )
    assert second.endswith("of TERM by 10.00 points (in 1 of 1 seed; test 90.00 %).")
    assert worst.endswith("it is best: validation 35.00 %, test 40.00 %.")


def test_validation_splits_of_some_methods_do_not_decide(tmp_path: Path) -> None:
    """Numbers of one kind are compared."""
    make_runs(tmp_path, "fedavg", 0.8, validation=0.99)
    make_runs(tmp_path, "term", 0.9)
    first, *_ = list_sentences(tmp_path)
    assert first.startswith("The highest test accuracy")
    assert "is that of TERM" in first


def test_trials_with_close_values_have_different_names(tmp_path: Path) -> None:
    """Three digits would give both trials one name."""
    for rate, accuracy in ((0.0500123, 0.8), (0.0500456, 0.7), (0.3, 0.6)):
        settings = f"client:\n  lr: {rate}\n"
        make_runs(tmp_path, "fedavg", accuracy, settings=settings)
    first, second, *_ = list_sentences(tmp_path)
    assert "FedAvg, client rate 0.05001: 80.00 %" in first
    assert "of FedAvg, client rate 0.05005 by" in second
    assert "of FedAvg, client rate 0.3 by" in second


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
