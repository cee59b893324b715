"""Tests of caveats: each appears with a reason for it, and only then."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from fedquorum.records.client_names import ClientNames
from numpy.typing import NDArray

from client_app.data import FederatedData
from client_app.data.partitioned import PartitionedData
from client_app.data.seed_draws import SeedDraws
from server_app.study.caveats import (
    LastEvaluation,
    compute_auroc_step,
    compute_late_gain,
    find_comparison_caveats,
    find_data_caveats,
    find_group_caveats,
    find_run_caveats,
    find_tuning_caveats,
    read_last_evaluations,
)
from server_app.study.result import MethodResult, Trial
from tests.builders_study import (
    BASE,
    DIVIDED_ANEW,
    NEW_DATA,
    SAME_TEST_ROWS,
    make_curve,
    make_method_result,
)
from tests.fedquorum.records.made import load_all, make_round_line, make_run, write_table
from tests.snapshot import Snapshot

MANY = tuple(LastEvaluation(client, 50, 50, 0.5) for client in range(30))
RANGES = {"client.lr": (0.001, 1.0, True), "strategy.epsilon": (0.0, 0.5, False)}


@dataclass(frozen=True)
class Labels:
    """Data with only labels: those of each client's training and test split."""

    train: Sequence[Sequence[int]]
    test: Sequence[Sequence[int]]
    target: str = "class"

    @property
    def num_clients(self) -> int:
        """The number of clients with a split."""
        return len(self.train)

    def get_targets(self, client: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return training and test labels."""
        return np.array(self.train[client], int), np.array(self.test[client], int)

    def count_test_units(self, client: int) -> int:
        """Return the number of different labels, as if they were groups."""
        return len(set(self.test[client]))


def find_label_caveats(labels: Labels, metric: str = "accuracy") -> tuple[str, ...]:
    """Find the caveats of these labels."""
    return find_data_caveats(cast("FederatedData", labels), metric)


def replace_client(index: int, one: LastEvaluation) -> list[LastEvaluation]:
    """Return many clients with one of them replaced."""
    return [one if client.client == index else client for client in MANY]


ENOUGH_ROWS = [0, 1] * 30
ONE_CLASS = Labels([ENOUGH_ROWS, [1, 1], ENOUGH_ROWS], [ENOUGH_ROWS, [0, 0], []])
TWO_POSITIVE = Labels([ENOUGH_ROWS] * 2, [ENOUGH_ROWS, [1, 1, *[0] * 40]])


# --- the data ---------------------------------------------------------------------------------


def test_groups_count_and_not_their_rows() -> None:
    """Hundreds of rows of four patients are four observations."""
    enough, four = list(range(50)), [0, 1, 2, 3] * 100
    data = Labels([[0]] * 2, [enough, four])
    moves = {"accuracy": ", and one moves its accuracy by about 25 points", "auroc": ""}
    for metric, move in moves.items():
        (caveat,) = find_group_caveats(cast("PartitionedData", data), "patient", metric)
        assert caveat == (
            "Rows with the same patient are one observation: 1 of 2 clients (1) has test rows "
            f"of fewer than 10 of them; client 1 has 4{move}."
        )
    assert find_group_caveats(cast("PartitionedData", Labels([], [enough])), "x", "accuracy") == ()


def test_clients_with_one_class() -> None:
    """In either split, with client ids; a client without rows has no class."""
    mixed = [0, 1] * 10
    assert find_label_caveats(Labels([mixed] * 3, [mixed] * 3)) == ()
    train, test = find_label_caveats(ONE_CLASS)
    assert "1 of 3 clients (1) has training" in train
    assert "1 of 3 clients (1) has test" in test


def test_numbers_have_no_classes() -> None:
    """Neither do regression targets nor next tokens."""
    assert find_label_caveats(Labels([[1, 1]], [[1, 1]], target="number")) == ()


def test_an_auroc_that_one_row_moves() -> None:
    """Only for AUROC: with two positive rows, a step is a half."""
    many = ENOUGH_ROWS
    assert find_label_caveats(Labels([many] * 2, [many] * 2), "auroc") == ()
    assert find_label_caveats(TWO_POSITIVE) == ()
    (caveat,) = find_label_caveats(TWO_POSITIVE, "auroc")
    assert "AUROC of 1 of 2 clients (1)" in caveat
    assert "client 1 by up to 50." in caveat


def compute_auroc(ranked: Sequence[int]) -> float:
    """Compute the AUROC of labels in the order of their scores, by counting pairs."""
    pairs = [
        (i < j) for i, a in enumerate(ranked) for j, b in enumerate(ranked) if (a, b) == (0, 1)
    ]
    return sum(pairs) / len(pairs)


@pytest.mark.parametrize("labels", [(0, 1), (0, 0, 1), (0, 0, 0, 1, 1), (0, 1, 1, 1)])
def test_the_step_of_an_auroc_is_the_largest_there_is(labels: tuple[int, ...]) -> None:
    """Over all orders of two classes and all moves of one row."""
    steps = [
        abs(compute_auroc(order) - compute_auroc([*left[:to], order[row], *left[to:]]))
        for order in set(permutations(labels))
        for row in range(len(labels))
        for left in [[*order[:row], *order[row + 1 :]]]
        for to in range(len(labels))
    ]
    assert compute_auroc_step(np.array(labels)) == pytest.approx(max(steps))


def test_the_step_of_several_classes_is_a_mean_over_them() -> None:
    """One row of three classes with 2, 3 and 4 rows: (1/2 + 1/6 + 1/5) / 3."""
    labels = np.repeat([0, 1, 2], [2, 3, 4])
    assert compute_auroc_step(labels) == pytest.approx((1 / 2 + 1 / 6 + 1 / 5) / 3)
    assert compute_auroc_step(np.array([1, 1])) == 0.0


# --- the records of a run ---------------------------------------------------------------------


FEW_TEST_ROWS = replace_client(3, LastEvaluation(3, 4, 50, 0.5))
FEW_VALIDATION_ROWS = replace_client(2, LastEvaluation(2, 50, 3, 0.5))
UNDEFINED = replace_client(7, LastEvaluation(7, 50, 50, math.nan))


def test_enough_of_everything_is_no_caveat() -> None:
    """30 clients with 50 rows in each split."""
    assert find_run_caveats(MANY, "accuracy") == ()
    assert find_run_caveats((), "accuracy") == ()


def test_few_test_rows() -> None:
    """A fraction of rows moves by 100 / n points; for other metrics only the rows are named."""
    for metric, step in (("accuracy", "by 25 points."), ("auroc", "client 3 has 4.")):
        (caveat,) = find_run_caveats(FEW_TEST_ROWS, metric)
        assert caveat.startswith("1 of 30 clients (3) has fewer than 10 test rows")
        assert caveat.endswith(step)


def test_only_the_first_ids_are_named() -> None:
    """Eight ids are named."""
    few = [replace(one, test_rows=5) for one in MANY]
    (caveat,) = find_run_caveats(few, "accuracy")
    assert "30 of 30 clients (0, 1, 2, 3, 4, 5, 6, 7, ...)" in caveat


def test_the_worst_tenth_of_few_clients_is_one() -> None:
    """Of 19 clients, a tenth is floor(19 / 10) = 1; of 20, it is 2. The caveat names the client."""
    few = [*MANY[:17], replace(MANY[17], metric=0.2), replace(MANY[18], metric=math.nan)]
    (caveat, _) = find_run_caveats(few, "accuracy", ClientNames({17: "Oslo"}))
    assert "18 evaluated clients" in caveat
    assert caveat.endswith("client Oslo.")
    (caveat, _) = find_run_caveats(few, "rmse")
    assert caveat.endswith("client 0.")
    (caveat,) = find_run_caveats(MANY[:19], "accuracy")
    assert "19 evaluated clients" in caveat
    assert find_run_caveats(MANY[:20], "accuracy") == ()


def test_a_metric_that_is_not_defined() -> None:
    """The caveat names the clients that enter no mean."""
    for metric, name in (("auroc", "AUROC"), ("f1", "F1")):
        (caveat,) = find_run_caveats(UNDEFINED, metric)
        assert f"{name} is not defined for 1 of 30 clients (7)" in caveat


def test_few_validation_rows() -> None:
    """Only if some client has validation rows."""
    (caveat,) = find_run_caveats(FEW_VALIDATION_ROWS, "accuracy")
    assert "1 of 30 clients (2) has fewer than 10 validation rows" in caveat
    none = [replace(one, validation_rows=0) for one in MANY]
    assert find_run_caveats(none, "accuracy") == ()
    assert find_run_caveats(FEW_VALIDATION_ROWS, "accuracy", is_tuned=False) == ()


@pytest.mark.parametrize(
    ("metric", "column"),
    [("auroc", "test_metric"), ("accuracy", "test_accuracy"), ("loss", "test_loss")],
)
def test_the_records_hold_the_last_evaluation_of_each_client(
    tmp_path: Path, metric: str, column: str
) -> None:
    """A client without a test split is absent; null is an undefined metric."""
    folder = make_run(
        tmp_path / "run", [make_round_line(1, global_loss=1.0), make_round_line(2, global_loss=0.9)]
    )
    row = {"priority": True, "test_num_examples": 6, "validation_num_examples": 3}
    write_table(
        folder,
        "evaluations",
        [
            {"round": 1, "client": 0, **row, column: 0.2},
            {"round": 1, "client": 1, **row, column: 0.3},
            {"round": 2, "client": 0, **row, column: 0.8},
            {"round": 2, "client": 1, **row, column: None},
            {"round": 2, "client": 2, "priority": False, "num_examples": 5},
        ],
    )
    (run,) = load_all(folder)
    first, second = read_last_evaluations(run, metric)
    assert first == LastEvaluation(0, 6, 3, 0.8)
    assert (second.client, math.isnan(second.metric)) == (1, True)
    (bare,) = load_all(make_run(tmp_path / "bare", [make_round_line(1, global_loss=1.0)]))
    assert read_last_evaluations(bare, metric) == ()


# --- the tuning -------------------------------------------------------------------------------


FAILED = [Trial((), "completed", 0.7, ()), Trial(("client.lr=9",), "failed", None, ())]


def make_tuned_methods(*words: str, trials: Sequence[Trial] = ()) -> list[MethodResult]:
    """Return one method with these values."""
    return [make_method_result("fedalign", BASE, tuned=words, trials=trials)]


def test_a_value_in_the_middle_of_its_range() -> None:
    """0.01 is far from 0.001 on a logarithmic scale; a setting without a range has no end."""
    assert (
        find_tuning_caveats(make_tuned_methods("client.lr=0.01", "strategy.epsilon=0.2"), RANGES)
        == ()
    )
    assert find_tuning_caveats(make_tuned_methods("client.batch_size=5"), RANGES) == ()


@pytest.mark.parametrize(
    ("override", "start"),
    [
        ("client.lr=0.99", "FedALIGN's client rate 0.99 is at the upper end"),
        ("strategy.epsilon=0.001", "FedALIGN's epsilon 0.001 is at the lower end"),
    ],
)
def test_a_value_at_the_end_of_its_range(override: str, start: str) -> None:
    """The caveat names the end, beyond which a better value may be."""
    (caveat,) = find_tuning_caveats(make_tuned_methods(override), RANGES)
    assert caveat.startswith(start)


def test_trials_that_failed() -> None:
    """They are counted, except those of an excluded method."""
    assert find_tuning_caveats(make_tuned_methods(trials=FAILED[:1]), RANGES) == ()
    (caveat,) = find_tuning_caveats(make_tuned_methods(trials=FAILED), RANGES)
    assert "1 of 2 trials of FedALIGN failed" in caveat
    (out,) = make_tuned_methods(trials=FAILED)
    assert find_tuning_caveats([replace(out, left_out="it failed")], RANGES) == ()


# --- the comparison ---------------------------------------------------------------------------


def find_run_comparison_caveats(
    methods: Sequence[MethodResult],
    *,
    metric: str = "accuracy",
    draws: SeedDraws = NEW_DATA,
    unknown_rows: str = "",
) -> tuple[str, ...]:
    """Find the caveats of these methods' runs with a margin of a hundredth."""
    return find_comparison_caveats(methods, metric, 0.01, draws, unknown_rows)


def test_many_converged_seeds_are_no_caveat() -> None:
    """Ten seeds are enough."""
    assert (
        find_run_comparison_caveats(
            [make_method_result("fedavg", BASE * 2), make_method_result("mifa", BASE * 2)]
        )
        == ()
    )


def test_few_seeds() -> None:
    """Fewer than ten seeds are a caveat."""
    for seeds, text in ((5, "has 5 seeds:"), (1, "has 1 seed:")):
        (caveat,) = find_run_comparison_caveats([make_method_result("fedavg", BASE[:seeds])])
        assert text in caveat


def make_twice_tuned_method(name: str, *again: float, ahead: float = 0.0) -> MethodResult:
    """Make a method whose finalists scored 0.5 on validation with the first seed."""
    trials = tuple(Trial((), "completed", 0.5, (), score) for score in again)
    return replace(make_method_result(name, [score + ahead for score in BASE] * 2), trials=trials)


def test_a_difference_that_the_tuning_may_have_made() -> None:
    """Differences of 0.2 and 0.1 over two seeds give a standard error of 0.079."""
    plain, noisy = (
        make_twice_tuned_method("fedavg", 0.7),
        make_twice_tuned_method("mifa", 0.4, ahead=0.15),
    )
    (caveat,) = find_run_comparison_caveats([plain, noisy])
    assert "standard error of 7.9 points" in caveat
    assert "FedAvg by 15 points" in caveat
    assert (
        find_run_comparison_caveats([plain, make_twice_tuned_method("mifa", 0.4, ahead=0.16)]) == ()
    )
    assert (
        find_run_comparison_caveats([plain, make_twice_tuned_method("mifa", 0.4, ahead=0.009)])
        == ()
    )
    untuned = replace(noisy, trials=())
    assert (
        find_run_comparison_caveats([plain])
        == find_run_comparison_caveats([replace(plain, trials=()), untuned])
        == ()
    )


def make_rising_method(name: str, *, by: float, metric: str = "accuracy") -> MethodResult:
    """Make a method whose score changes by ``by`` between rounds 18 and 20 of 20."""
    made = make_method_result(name, BASE * 2, metric=metric)
    curve = ((10, 0.1), (18, 0.5), (20, 0.5 + by))
    return replace(made, runs=tuple(replace(run, curve=curve) for run in made.runs))


def test_a_score_that_still_improves() -> None:
    """Improvements above the margin count, in the metric's direction."""
    assert find_run_comparison_caveats([make_rising_method("mifa", by=0.009)]) == ()
    (caveat,) = find_run_comparison_caveats(
        [make_rising_method("mifa", by=0.03), make_rising_method("fedavg", by=0.0)]
    )
    assert "improves from round 18 to round 20 with MIFA (by 3 points)" in caveat
    assert "FedAvg" not in caveat
    assert (
        find_run_comparison_caveats(
            [make_rising_method("mifa", by=0.03, metric="loss")], metric="loss"
        )
        == ()
    )
    assert (
        len(
            find_run_comparison_caveats(
                [make_rising_method("mifa", by=-0.03, metric="loss")], metric="loss"
            )
        )
        == 1
    )


def test_a_gain_of_curves_without_a_tenth() -> None:
    """A single evaluation is no trend."""
    made = make_method_result("mifa", BASE)
    short = replace(made, runs=tuple(replace(run, curve=((5, 0.7),)) for run in made.runs))
    assert compute_late_gain(short) == 0.0
    assert compute_late_gain(replace(made, runs=(replace(made.runs[0], curve=()),))) == 0.0
    flat = tuple(replace(run, curve=make_curve(0.7, 0.7)) for run in made.runs)
    assert compute_late_gain(replace(made, runs=flat)) == 0.0


@pytest.mark.parametrize(
    ("draws", "part"),
    [
        (NEW_DATA, ""),
        (DIVIDED_ANEW, "divides the same rows anew"),
        (SAME_TEST_ROWS, ""),
    ],
)
def test_seeds_that_share_their_rows(draws: SeedDraws, part: str) -> None:
    """Generated data shares none, and without a tuning no run tests rows of another kind."""
    trials = [Trial((), "completed", 0.7, ())]
    tuned = [make_method_result("fedavg", BASE * 2, trials=trials)]
    caveats = find_run_comparison_caveats(tuned, draws=draws)
    assert len(caveats) == bool(part)
    assert part in "".join(caveats)
    untuned = [make_method_result("fedavg", BASE * 2)]
    assert find_run_comparison_caveats(untuned, draws=draws) == ()


# --- texts ------------------------------------------------------------------------------------


def test_every_caveat(snapshot: Snapshot) -> None:
    """Each kind appears once, as on the page."""
    caveats = (
        *find_label_caveats(ONE_CLASS),
        *find_label_caveats(TWO_POSITIVE, "auroc"),
        *find_run_caveats(FEW_TEST_ROWS, "accuracy"),
        *find_run_caveats(FEW_TEST_ROWS, "auroc"),
        *find_run_caveats([replace(one, test_rows=5) for one in MANY[:19]], "accuracy"),
        *find_run_caveats(UNDEFINED, "auroc"),
        *find_run_caveats(FEW_VALIDATION_ROWS, "accuracy"),
        *find_tuning_caveats(
            make_tuned_methods("client.lr=0.99", "strategy.epsilon=0.001", trials=FAILED), RANGES
        ),
        *find_run_comparison_caveats([make_method_result("fedavg", BASE)]),
        *find_run_comparison_caveats(
            [
                make_twice_tuned_method("fedavg", 0.7),
                make_twice_tuned_method("mifa", 0.4, ahead=0.15),
            ]
        ),
        *find_run_comparison_caveats(
            [replace(make_rising_method("mifa", by=0.03), trials=tuple(FAILED))],
            draws=DIVIDED_ANEW,
        ),
        *find_run_comparison_caveats(
            [make_method_result("fedavg", BASE * 2)],
            draws=SAME_TEST_ROWS,
            unknown_rows="auroc is no mean over rows",
        ),
    )
    snapshot("study/caveats.txt", "\n\n".join(caveats) + "\n")
