"""What an experiment comes to, in sentences."""

from pathlib import Path

from server_app.report.groups import group_runs
from server_app.report.lead import lead
from server_app.report.tables import differences, summarize
from tests.fedquorum.records.made import line, load_all, make_run


def said(folder: Path, **by_strategy: tuple[float, ...]) -> list[str]:
    """Return the sentences for runs with these accuracies, a seed each."""
    for strategy, accuracies in by_strategy.items():
        for seed, accuracy in enumerate(accuracies):
            test = {name: {"accuracy": accuracy} for name in ("all", "priority", "non_priority")}
            made = folder / f"{strategy}{seed}"
            make_run(made, [line(1, test=test)], strategy=strategy, seed=seed)
    rows = summarize(group_runs(load_all(folder)))
    return list(lead(rows, differences(rows)))


def test_the_best_method_and_its_differences(tmp_path: Path) -> None:
    """On the priority clients where there are any, in the table's units."""
    first, second, few = said(tmp_path, fedalign=(0.9, 0.7), fedavg=(0.6, 0.5))
    assert first == (
        "FedALIGN has the highest test accuracy on the priority clients: 80.00 ± 14.14 % over 2 "
        "seeds."
    )
    assert second == (
        "Its difference from FedAvg, paired by seed, is 25.00 ± 7.07, above 0 in 2 of 2."
    )
    assert few.startswith("Fewer than 5 seeds decide little")


def test_with_five_seeds_no_warning(tmp_path: Path) -> None:
    """A baseline may be the best: the differences of others from it are in the table."""
    (only,) = said(tmp_path, fedalign=(0.1,) * 5, fedavg=(0.2,) * 5)
    assert only.startswith("FedAvg has the highest")


def test_one_method_is_not_the_best(tmp_path: Path) -> None:
    """Nothing is said."""
    assert said(tmp_path, fedalign=(0.9,)) == []
