"""The chapters of the book: the runs of each, and the functions that build its tables."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from fedquorum.records.reader import Run

from benchmarks.book.aaggff import (
    build_aaggff_published,
    build_aaggff_tables,
    collect_aaggff_numbers,
)
from benchmarks.book.alone import build_alone_tables, collect_alone_numbers
from benchmarks.book.bound import build_bound_tables, collect_bound_numbers
from benchmarks.book.cutoff import build_cutoff_tables
from benchmarks.book.decisions import build_decision_tables
from benchmarks.book.fedalign import (
    build_fedalign_tables,
    build_one_client_tables,
    build_synth_tables,
    collect_fedalign_numbers,
    collect_one_client_numbers,
)
from benchmarks.book.fedau import build_fedau_published, build_fedau_tables, collect_fedau_numbers
from benchmarks.book.late import CONDITIONS, WORLDS, build_late_tables, collect_late_numbers
from benchmarks.book.late_picture import draw_late_picture
from benchmarks.book.participation_tables import (
    PATTERNS,
    build_fedawe_published,
    build_participation_tables,
    build_rate_tables,
    collect_participation_numbers,
)
from benchmarks.book.personal import build_personal_tables, collect_personal_numbers
from benchmarks.book.pictures import draw_training_chart
from benchmarks.book.priority import build_priority_tables, collect_priority_numbers
from benchmarks.book.results import ResultTable
from benchmarks.book.runs_log import LoggedRun

SEEDS = "seed="
Overrides = tuple[str, ...]
Tables = Mapping[str, ResultTable]


@dataclass(frozen=True)
class SweepChapter:
    """A chapter made of runs.

    Parameters
    ----------
    name : str
        The name of the text, the results and the folder of runs.
    title : str
        The heading.
    sweeps : tuple
        The overrides after ``fedquorum -m`` of each sweep.
    numbers : callable
        Returns the raw numbers of a completed run, for the log.
    tables : callable
        Builds the tables from the logged runs.
    published : callable, optional
        Returns the paper's numbers for the methods and columns of these tables.
    picture : callable, optional
        Draws the picture below the tables as PNG, from runs by their overrides.
    quick : mapping
        Settings that make the first sweep small. The quick book runs only this sweep.
    more_looks : tuple of int
        The numbers of seeds that the chapter gets while one of its claims is undecided.
    """

    name: str
    title: str
    sweeps: tuple[Overrides, ...]
    numbers: Callable[[Run], Mapping[str, Any]]
    tables: Callable[[Sequence[LoggedRun]], Tables]
    published: Callable[[Tables], Tables] | None = None
    picture: Callable[[Mapping[Overrides, Run]], bytes] | None = None
    quick: Mapping[str, str] = field(default_factory=dict)
    more_looks: tuple[int, ...] = ()

    @property
    def looks(self) -> tuple[int, ...]:
        """The numbers of seeds at which the chapter's claims are judged."""
        return (self.num_seeds, *self.more_looks)

    @property
    def num_seeds(self) -> int:
        """The number of seeds of its sweeps."""
        return max(
            len(override.split(","))
            for sweep in self.sweeps
            for override in sweep
            if override.startswith(SEEDS)
        )

    def with_seeds(self, num_seeds: int) -> "SweepChapter":
        """Return the chapter with the seeds 1 to ``num_seeds`` in all its sweeps."""
        if num_seeds == self.num_seeds:
            return self
        seeds = SEEDS + ",".join(map(str, range(1, num_seeds + 1)))
        sweeps = tuple(
            tuple(seeds if override.startswith(SEEDS) else override for override in sweep)
            for sweep in self.sweeps
        )
        more_looks = tuple(look for look in self.more_looks if look > num_seeds)
        return replace(self, sweeps=sweeps, more_looks=more_looks)

    def make_quick(self) -> "SweepChapter":
        """Return the quick book's chapter: one seed, two rounds and the settings of ``quick``."""
        changed = {"seed": "1", "rounds": "2", "evaluation.every": "1", **self.quick}
        unchanged = (item for item in self.sweeps[0] if item.partition("=")[0] not in changed)
        overrides = (*unchanged, *(f"{key}={value}" for key, value in changed.items()))
        return replace(self, sweeps=(overrides,), more_looks=())


@dataclass(frozen=True)
class DirectChapter:
    """A chapter measured without runs.

    Parameters
    ----------
    name, title : str
        The same as for ``SweepChapter``.
    measure : callable
        Returns the full tables.
    quick : callable
        Returns small tables in a short time.
    seeds : str
        In words, empty if there are none.
    """

    name: str
    title: str
    measure: Callable[[], Tables]
    quick: Callable[[], Tables]
    seeds: str = ""

    def make_quick(self) -> "DirectChapter":
        """Return the chapter of the quick book."""
        return replace(self, measure=self.quick, seeds="")


Chapter = SweepChapter | DirectChapter


def _build_fedalign(name: str, title: str, *sweeps: str, **quick: str) -> SweepChapter:
    """Build a chapter of FedALIGN; FedAvg on all clients has rows with and without warm-up."""
    small = {"data.num_clients": "12", "client.local_epochs": "1", "strategy": "fedalign,fedavg"}
    given = [tuple(sweep.split()) for sweep in sweeps]
    expanded = tuple(item for sweep in given for item in (sweep, *_drop_warmup(sweep)))
    picture = draw_training_chart if name == "fedalign-fmnist" else None
    functions = (collect_fedalign_numbers, build_fedalign_tables)
    return SweepChapter(name, title, expanded, *functions, picture=picture, quick=small | quick)


def _build_synth(name: str, title: str, *sweeps: str, **quick: str) -> SweepChapter:
    """Build a chapter of FedALIGN that also has the training loss, as the paper's Figure 2."""
    return replace(_build_fedalign(name, title, *sweeps, **quick), tables=build_synth_tables)


def _build_alone(
    name: str, title: str, setting: str, seeds: str, *, epochs: int, **quick: str
) -> SweepChapter:
    """Build a chapter that compares FedALIGN and its baselines with clients that train alone.

    These train for as many epochs as in all rounds together, at the end of runs of one round.
    """
    small = {"evaluation.alone_epochs": "2", **quick}
    chapter = _build_fedalign(name, title, f"{setting} {FEDALIGN_AND_BASELINES} {seeds}", **small)
    alone = (
        *(word for word in setting.split() if not word.startswith("rounds=")),
        *("rounds=1", "strategy=fedavg", f"evaluation.alone_epochs={epochs}", seeds),
    )
    return replace(
        chapter,
        sweeps=(*chapter.sweeps, alone),
        numbers=collect_alone_numbers,
        tables=build_alone_tables,
    )


FEDAVG_ON_ALL = "strategy=fedavg"


def _drop_warmup(sweep: Overrides) -> Iterator[Overrides]:
    """Yield a sweep of FedAvg on all clients without warm-up, if ``sweep`` has FedAvg."""
    keys = [override.partition("=")[0] for override in sweep]
    if "strategy" in keys:
        index = keys.index("strategy")
        names = sweep[index].removeprefix("strategy=").split(",")
        if FEDAVG_ON_ALL in [f"strategy={name}" for name in names]:
            plain = (FEDAVG_ON_ALL, "strategy.warmup_fraction=0")
            yield (*sweep[:index], *plain, *sweep[index + 1 :])


def _build_fedau(name: str, title: str, *sweeps: str, **quick: str) -> SweepChapter:
    experiment = name.replace("-", "/", 1)
    return SweepChapter(
        name,
        title,
        tuple(tuple(sweep.split()) for sweep in sweeps),
        collect_fedau_numbers,
        build_fedau_tables,
        partial(build_fedau_published, experiment),
        quick={
            "availability": "bernoulli",
            "strategy": "fedau,average_all",
            "data.num_clients": "40",
            "model": "logistic_regression",
            **quick,
        },
    )


def _build_fedawe(
    name: str,
    title: str,
    overrides: str,
    published: Callable[[Tables], Tables] | None = None,
    **quick: str,
) -> SweepChapter:
    """Build a chapter of FedAWE's Table 2."""
    small = {"availability": "sine", "strategy": "fedawe,fedau", "data.num_clients": "20"}
    sweep = tuple(overrides.split())
    return SweepChapter(
        name,
        title,
        (sweep,),
        collect_participation_numbers,
        build_participation_tables,
        published,
        quick=small | quick,
    )


def _build_aaggff(name: str, title: str, *sweeps: str, **quick: str) -> SweepChapter:
    experiment = name.replace("-", "/", 1)
    return SweepChapter(
        name,
        title,
        tuple(tuple(sweep.split()) for sweep in sweeps),
        collect_aaggff_numbers,
        build_aaggff_tables,
        partial(build_aaggff_published, experiment),
        quick={"strategy": "aaggff_s", **quick},
    )


def _build_variants(
    overrides: str, rules: str, lipschitz: str, *, code: bool = True
) -> tuple[str, ...]:
    """Return the sweeps of rules, of q-FedAvg with h, and of AAggFF-S as in the authors' code.

    ``lipschitz`` is the authors' L of q-FedAvg: their server rate 1 over the clients' rate.
    """
    with_h = f"{overrides} strategy=qfedavg strategy.lipschitz={lipschitz}"
    as_published = f"{overrides} strategy=aaggff_s strategy.variant=authors_code"
    return (f"{overrides} strategy={rules}", with_h, *((as_published,) if code else ()))


CIFAR10 = "data=npz data.path=${oc.env:FEDQUORUM_DATA,data}/cifar10_15k3k.npz"
# Priority clients are available in every round, the others by Markov chains, in a tenth or half.
INTERMITTENT = "rounds=60 seed=1,2,3,4,5 availability=markov availability.p=[{}]"
PRIORITY_AVAILABLE = (
    "experiment=fedalign/fmnist data.priority=[0,1] "
    + INTERMITTENT.format(",".join(["1"] * 2 + ["0.1", "0.5"] * 29)),
    "experiment=fedalign/synth_high data.priority=[0,1,2,3,4,5,6,7,8,9] "
    + INTERMITTENT.format(",".join(["1"] * 10 + ["0.1", "0.5"] * 5)),
)
# The best rates of each method in the chapter answers-rates.
TUNED_RATES = (
    "strategy=average_participating,fedau,empirical client.lr=0.3 strategy.server_lr=1",
    "strategy=average_all client.lr=0.3 strategy.server_lr=3",
    "strategy=fedvarp client.lr=0.03 strategy.server_lr=3",
    "strategy=mifa client.lr=0.1 strategy.server_lr=3",
    "strategy=known_statistics client.lr=0.1 strategy.server_lr=1",
    "strategy=fedawe client.lr=0.03 strategy.server_lr=1",
)
# Silos take part in every round; of many devices a part is drawn.
PERSONAL_SETTINGS = (
    (
        (
            "experiment=fedau/fmnist model=logistic_regression availability=always rounds=300 "
            "evaluation.every=300 client.lr=0.1 strategy.server_lr=1 strategy.fraction=0.1"
        ),
        "fedavg,aaggff_d,qfedavg",
    ),
    (
        (
            "experiment=aaggff/mnist_writers model=logistic_regression rounds=300 "
            "evaluation.every=300 strategy.fraction=0.1"
        ),
        "fedavg,aaggff_d,qfedavg",
    ),
    ("experiment=aaggff/berka evaluation.every=100", "fedavg,aaggff_s,qfedavg"),
    ("experiment=aaggff/heart evaluation.every=200", "fedavg,aaggff_s,qfedavg"),
)
MIN_AVAILABILITY = "availability.minimum=0.1"  # without it known rates are undefined
FEDALIGN_AND_BASELINES = "strategy=fedalign,fedavg_priority,fedavg"
PARTICIPATION_BASELINES = "average_participating,average_all,known_statistics,fedvarp,mifa"
FEDAU_SMALL = "experiment=fedau/fmnist model=logistic_regression rounds=1000 evaluation.every=20"
FEDAU_AUTHORS = (
    "experiment=fedau/fmnist_authors rounds=1000 evaluation.every=20 seed=1,2,3 "
    "availability=bernoulli"
)
FEDAU_CIFAR10 = (
    f"experiment=fedau/cifar10 {CIFAR10} rounds=100 evaluation.every=2 seed=1,2,3 "
    "availability=bernoulli"
)
ALL_PROCESSES = "seed=1,2,3 availability=bernoulli,markov,cyclic"
FIVE_SEEDS = "seed=1,2,3,4,5"
# The number of rounds is one that no run reaches in this time.
LATE_RUN = (
    "experiment=fedau/fmnist model=logistic_regression availability=always rounds=100000 "
    "response_time=lognormal engine.simulated_seconds=3000 evaluation.every=null "
    f"evaluation.every_seconds=20 {FIVE_SEEDS}"
)
TEN_SEEDS = f"{FIVE_SEEDS},6,7,8,9,10"
SYNTH = (
    "experiment=fedalign/synth_low,fedalign/synth_medium,fedalign/synth_high "
    f"data.noise=additive,flip seed={','.join(map(str, range(1, 21)))}"
)
# The stand-in for EMNIST has a third of the samples and half of the rounds, to save time.
MNIST = "rounds=100 data.samples_per_shard=60"
ONE_CLIENT = f"experiment=fedalign/fmnist data.priority=[0,1] rounds=100 {FIVE_SEEDS}"
BOUND_SWEEP = (
    "experiment=fedalign/synth_low data.noise=additive,flip client.lr_schedule=constant,theorem "
    f"client.theorem_lr.mu=0.01 client.theorem_lr.L=2.5 {FIVE_SEEDS}"
)
BOUND_ALONE = (
    "experiment=fedalign/synth_low data.noise=additive,flip rounds=1 strategy=fedavg "
    f"evaluation.alone_epochs=200 {FIVE_SEEDS}"
)
EPSILONS = "0,0.05,0.1,0.2,0.4,0.8,inf"
FIFTY_SEEDS = f"seed={','.join(map(str, range(1, 51)))}"
FAIR_METHODS = "qfedavg,term,propfair,fedmgda"
FULL_PARTICIPATION = f"aaggff_s,fedavg,afl,{FAIR_METHODS}"
# AFL needs all clients in every round.
SAMPLED_PARTICIPATION = f"aaggff_d,fedavg,{FAIR_METHODS}"
PLUG_AND_PLAY = f"experiment=aaggff/heart strategy=aaggff_s,fedavg {TEN_SEEDS}"
ADAPTIVE = "server_optimizer.tau=0.0001 strategy.server_lr=0.01"
# A client's availability rate follows from its classes and is the same under all patterns. At 0.12
# a client is available in 7 rounds of 20 under the interleaved sine.
PARTICIPATION_METHODS = (
    "average_participating,average_all,fedau,empirical,fedvarp,mifa,known_statistics"
)
VARYING_AVAILABILITY = (
    "experiment=fedau/fmnist model=logistic_regression data.num_clients=100 "
    "availability.p=class_rates availability.minimum=0.12"
)

# Chapters that get 20 seeds in less than ten hours of one core, or 30 where a run takes less than
# 10 s. Text has no more: 20 seeds with DistilBERT take as long as those of ten others.
MORE_LOOKS: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(("fedalign-fmnist", "fedalign-fmnist_partial"), (20,)),
    **dict.fromkeys(
        (
            *("fedalign-alone", "fedalign-alone_mnist", "fedalign-alone_cifar10"),
            *("fedalign-fmnist_fedprox", "fedalign-priority_count", "fedalign-one_client"),
            *("fedalign-cifar10", "fedalign-cifar10_partial", "fedalign-bound"),
            *("fedalign-mnist", "fedalign-mnist_fedprox", "fedalign-mnist_partial"),
            *("fedalign-mnist_priority_count", "fedau-fmnist", "fedau-fmnist_p_min"),
            "fedau-cifar10",
        ),
        (10, 20),
    ),
    "aaggff-plug_and_play": (20, 30),
}

_DECLARED: tuple[Chapter, ...] = (
    _build_fedalign(
        "fedalign-fmnist",
        "FedALIGN on Fashion-MNIST (paper: Figure 1)",
        f"experiment=fedalign/fmnist {FEDALIGN_AND_BASELINES} {TEN_SEEDS}",
        f"experiment=fedalign/fmnist strategy.epsilon_schedule=constant {TEN_SEEDS}",
    ),
    _build_synth(
        "fedalign-synth",
        "FedALIGN on SYNTH(1,1) (paper: Figure 2)",
        f"{SYNTH} strategy=fedalign strategy.criterion=loss,accuracy "
        "strategy.epsilon_schedule=constant,step",
        f"{SYNTH} strategy=fedavg_priority,fedavg",
        **{
            "data.num_clients": "6",
            "data.num_priority": "2",
            "data.noise": "additive",
            "strategy": "fedalign",
            "strategy.criterion": "loss",
            "strategy.epsilon_schedule": "constant",
        },
    ),
    _build_synth(
        "fedalign-synth_other",
        "FedALIGN on other SYNTH(alpha, beta) (paper: supplement, section 4)",
        f"experiment=fedalign/synth_low {FEDALIGN_AND_BASELINES} {TEN_SEEDS} data.alpha=0,0.5 "
        "data.beta=0,0.5",
        f"experiment=fedalign/synth_low {FEDALIGN_AND_BASELINES} {TEN_SEEDS} data.sizes=equal",
        f"experiment=fedalign/synth_low {FEDALIGN_AND_BASELINES} {TEN_SEEDS} "
        "data.irrelevant_skew=5",
        **{"data.num_priority": "2", "data.alpha": "0", "data.beta": "0", "strategy": "fedalign"},
    ),
    _build_fedalign(
        "fedalign-draws",
        "FedALIGN with priority clients drawn with replacement (paper: Theorem A.9)",
        f"experiment=fedalign/fmnist_partial {FEDALIGN_AND_BASELINES} {FIVE_SEEDS} "
        "strategy.priority_samples=5",
        **{"data.num_priority": "4", "strategy": "fedalign"},
    ),
    _build_alone(
        "fedalign-alone",
        "Alone or together (paper: supplement, Figure 3)",
        "experiment=fedalign/alone",
        FIVE_SEEDS,
        epochs=1000,
    ),
    _build_alone(
        "fedalign-alone_mnist",
        "Alone or together on MNIST for EMNIST (paper: supplement, Figure 3; a stand-in)",
        "experiment=fedalign/mnist data.samples_per_shard=10 rounds=100",
        FIVE_SEEDS,
        epochs=500,
        **{"data.samples_per_shard": "10"},
    ),
    _build_alone(
        "fedalign-alone_cifar10",
        "Alone or together on a part of CIFAR-10 (paper: supplement, Figure 3, on all of it)",
        f"experiment=fedalign/cifar10 {CIFAR10} data.shard_size=125 data.samples_per_shard=25 "
        "rounds=20",
        "seed=1,2,3",
        epochs=100,
        **{"data.num_clients": "4", "data.shard_size": "32", "data.samples_per_shard": "8"},
    ),
    _build_fedalign(
        "fedalign-fmnist_fedprox",
        "FedALIGN with FedProx on Fashion-MNIST (paper: Figure 4)",
        f"experiment=fedalign/fmnist_fedprox {FEDALIGN_AND_BASELINES} {FIVE_SEEDS}",
        strategy="fedalign",
    ),
    _build_fedalign(
        "fedalign-fmnist_partial",
        "FedALIGN with partial participation on Fashion-MNIST (paper: Figure 5)",
        f"experiment=fedalign/fmnist_partial {FEDALIGN_AND_BASELINES} {TEN_SEEDS}",
        **{"data.num_priority": "4", "strategy": "fedalign"},
    ),
    _build_fedalign(
        "fedalign-priority_count",
        "FedALIGN with more priority clients (paper: Figure 6)",
        *(
            f"experiment=fedalign/priority_count {FEDALIGN_AND_BASELINES} {FIVE_SEEDS} "
            f"data.num_priority={count} client.local_epochs={epochs}"
            for count, epochs in ((6, 5), (9, 3), (18, 5))
        ),
        **{"data.num_priority": "2,4", "strategy": "fedalign"},
    ),
    _build_fedalign(
        "fedalign-eps_decay",
        "How epsilon is reduced",
        f"experiment=fedalign/eps_decay {FIVE_SEEDS} "
        "strategy.epsilon_schedule=constant,linear,cosine,exponential,sqrt",
        f"experiment=fedalign/eps_decay {FIVE_SEEDS} strategy=fedavg_priority,fedavg",
        **{"strategy": "fedalign", "strategy.epsilon_schedule": "linear"},
    ),
    replace(
        _build_fedalign(
            "fedalign-one_client",
            "A gate on one priority client's objective (paper: future work, 004, section 5)",
            f"{ONE_CLIENT} strategy=fedalign strategy.epsilon_schedule=constant "
            "strategy.objective_client=null,0",
            f"{ONE_CLIENT} strategy=fedavg_priority,fedavg",
            **{"strategy": "fedalign", "strategy.objective_client": "0"},
        ),
        numbers=collect_one_client_numbers,
        tables=build_one_client_tables,
    ),
    _build_fedalign(
        "fedalign-cifar10",
        "FedALIGN on a part of CIFAR-10 (paper: Figure 1, on all of it)",
        f"experiment=fedalign/cifar10 {CIFAR10} data.shard_size=125 "
        f"{FEDALIGN_AND_BASELINES} rounds=20 seed=1,2,3",
        **{"data.num_clients": "4", "data.shard_size": "32", "strategy": "fedalign"},
    ),
    _build_fedalign(
        "fedalign-cifar10_partial",
        "FedALIGN with partial participation on a part of CIFAR-10 (paper: Figure 5, on all of it)",
        f"experiment=fedalign/cifar10_partial {CIFAR10} data.shard_size=125 "
        f"{FEDALIGN_AND_BASELINES} rounds=20 seed=1,2,3",
        **{
            "data.num_clients": "4",
            "data.num_priority": "2",
            "data.shard_size": "32",
            "strategy": "fedalign",
        },
    ),
    _build_fedalign(
        "fedalign-mnist",
        "FedALIGN on MNIST for EMNIST (paper: Figure 1; a stand-in)",
        f"experiment=fedalign/mnist {MNIST} {FEDALIGN_AND_BASELINES} {FIVE_SEEDS}",
        f"experiment=fedalign/mnist_writers rounds=100 {FEDALIGN_AND_BASELINES} {FIVE_SEEDS}",
        strategy="fedalign",
    ),
    _build_fedalign(
        "fedalign-mnist_fedprox",
        "FedALIGN with FedProx on MNIST for EMNIST (paper: Figure 4; a stand-in)",
        f"experiment=fedalign/mnist_fedprox {MNIST} {FEDALIGN_AND_BASELINES} {FIVE_SEEDS}",
        strategy="fedalign",
    ),
    _build_fedalign(
        "fedalign-mnist_partial",
        "FedALIGN with partial participation on MNIST for EMNIST (paper: Figure 5; a stand-in)",
        f"experiment=fedalign/mnist_partial {MNIST} {FEDALIGN_AND_BASELINES} {FIVE_SEEDS}",
        strategy="fedalign",
    ),
    _build_fedalign(
        "fedalign-mnist_priority_count",
        "FedALIGN with more priority clients on MNIST for EMNIST (paper: Figure 6; a stand-in)",
        *(
            f"experiment=fedalign/mnist {MNIST} {FEDALIGN_AND_BASELINES} seed=1,2,3 "
            f"data.num_priority={count} client.local_epochs={epochs}"
            for count, epochs in ((9, 3), (18, 5))
        ),
        **{"data.num_priority": "4", "strategy": "fedalign"},
    ),
    SweepChapter(
        "fedalign-bound",
        "The terms of FedALIGN's bound over epsilon (paper: Theorem 1)",
        (
            (*BOUND_SWEEP.split(), "strategy=fedalign", f"strategy.epsilon={EPSILONS}"),
            tuple(BOUND_ALONE.split()),
        ),
        collect_bound_numbers,
        build_bound_tables,
        quick={
            "data.num_clients": "6",
            "data.num_priority": "2",
            "data.noise": "additive",
            "client.lr_schedule": "theorem",
            "strategy.epsilon": "0.1,0.2",
            "evaluation.alone_epochs": "2",
        },
    ),
    _build_fedau(
        "fedau-fmnist",
        "FedAU on Fashion-MNIST (paper: Table 2 has other data)",
        f"{FEDAU_SMALL} {ALL_PROCESSES} strategy=fedau,{PARTICIPATION_BASELINES}",
        f"{FEDAU_SMALL} {ALL_PROCESSES} strategy.cutoff=50",
        f"{FEDAU_SMALL} {ALL_PROCESSES} strategy={PARTICIPATION_BASELINES} client.lr=0.1 "
        "strategy.server_lr=1",
    ),
    _build_fedau(
        "fedau-fmnist_cutoff",
        "FedAU's accuracy over K (paper: Figure 2, on other data)",
        f"{FEDAU_SMALL} seed=1,2,3 availability=bernoulli,markov,cyclic "
        "strategy.cutoff=1,2,5,10,20,50,100,1000,inf",
        **{"strategy": "fedau", "strategy.cutoff": "1,inf"},
    ),
    _build_fedau(
        "fedau-fmnist_p_min",
        "FedAU's accuracy over the least probability (paper: supplement)",
        f"{FEDAU_SMALL} {ALL_PROCESSES} availability.minimum=0.002,0.02,0.2 "
        "strategy=fedau,average_participating,average_all,known_statistics",
        f"{FEDAU_SMALL} {ALL_PROCESSES} availability.minimum=0.002,0.02,0.2 strategy.cutoff=50",
        **{"availability.minimum": "0.02"},
    ),
    _build_fedau(
        "fedau-fmnist_authors",
        "FedAU on Fashion-MNIST with its authors' settings (paper: Table 2 has other data)",
        f"{FEDAU_AUTHORS} strategy=fedau,{PARTICIPATION_BASELINES}",
        f"{FEDAU_AUTHORS} strategy.cutoff=50",
    ),
    _build_fedau(
        "fedau-cifar10",
        "FedAU on a part of CIFAR-10 (paper: Table 2, on all of it)",
        f"{FEDAU_CIFAR10} strategy.cutoff=50",
        f"{FEDAU_CIFAR10} strategy=fedau,{PARTICIPATION_BASELINES}",
        strategy="fedau",
    ),
    DirectChapter(
        "fedau-cutoff",
        "FedAU's cutoff (paper: Theorem 3)",
        partial(build_cutoff_tables, (1, 2, 3), (1000, 10000)),
        partial(build_cutoff_tables, (1,), (100,), (1, 10)),
        "seeds 1, 2, 3",
    ),
    SweepChapter(
        "answers-rates",
        "Learning rates of the methods compared next (not in a paper)",
        tuple(
            (
                *VARYING_AVAILABILITY.split(),
                *["availability=bernoulli", "rounds=300", "evaluation.every=30", "seed=100"],
                f"strategy={names}",
                "client.lr=0.03,0.1,0.3",
                "strategy.server_lr=1,3",
            )
            for names in (PARTICIPATION_METHODS, "fedawe")
        ),
        collect_participation_numbers,
        build_rate_tables,
        quick={"data.num_clients": "20", "client.lr": "0.1"},
    ),
    SweepChapter(
        "answers-participation",
        "Which method under which participation? (not in a paper)",
        tuple(
            (
                *VARYING_AVAILABILITY.split(),
                f"availability={','.join(PATTERNS)}",
                *["rounds=300", "evaluation.every=10", "seed=1,2,3,4,5"],
                *sweep.split(),
            )
            for sweep in TUNED_RATES
        ),
        collect_participation_numbers,
        build_participation_tables,
        quick={"data.num_clients": "20", "strategy": "fedau,average_participating"},
    ),
    _build_fedawe(
        "fedawe-fmnist",
        "FedAWE on Fashion-MNIST (paper: Table 2 has other data)",
        "experiment=fedawe/fmnist model=mlp rounds=200 seed=1,2,3 evaluation.every=5 "
        f"{MIN_AVAILABILITY} availability=bernoulli,staircase,sine,interleaved "
        "strategy=fedawe,average_participating,average_all,fedau,known_statistics,mifa,fedvarp",
    ),
    _build_fedawe(
        "fedawe-cifar10",
        "FedAWE on a part of CIFAR-10 (paper: Table 2, on all of it)",
        f"experiment=fedawe/cifar10 {CIFAR10} rounds=60 seed=1 evaluation.every=3 "
        f"{MIN_AVAILABILITY} availability=bernoulli,sine "
        "strategy=fedawe,average_participating,fedau,known_statistics",
        build_fedawe_published,
        **{"model": "logistic_regression", "client.augmentation": "none"},
    ),
    SweepChapter(
        "answers-priority",
        "Whose help should a priority group take? (not in a paper)",
        tuple(
            (*setting.split(), *sweep.split())
            for setting in PRIORITY_AVAILABLE
            for sweep in (
                "strategy=fedalign,fedgp,fedau,fedavg_priority",
                "strategy=fedavg strategy.warmup_fraction=0",
                "strategy=composed strategy/participation=fedau",
            )
        ),
        collect_priority_numbers,
        build_priority_tables,
        quick={
            "data.num_clients": "4",
            "availability.p": "[1,1,0.1,0.5]",
            "client.local_epochs": "1",
        },
    ),
    SweepChapter(
        "answers-personal",
        "A better rule, or a personal model? (not in a paper)",
        tuple(
            (
                *setting.split(),
                *["data.validation_fraction=0.2", f"{FIVE_SEEDS}", f"strategy={methods}"],
                "evaluation.finetune_epochs=[0,1,3,10]",
                "evaluation.alone_epochs=[5,20,80]",
            )
            for setting, methods in PERSONAL_SETTINGS
        ),
        collect_personal_numbers,
        build_personal_tables,
        quick={
            "strategy": "fedavg,qfedavg",
            "data.num_clients": "20",
            "evaluation.finetune_epochs": "1",
            "evaluation.alone_epochs": "1",
        },
    ),
    SweepChapter(
        "answers-late",
        "Wait for slow clients, discard what they send, or count it? (not in a paper)",
        tuple(
            (*LATE_RUN.split(), *world, *condition)
            for world in WORLDS.values()
            for condition in CONDITIONS.values()
        ),
        collect_late_numbers,
        build_late_tables,
        picture=draw_late_picture,
        quick={
            "data.num_clients": "40",
            "rounds": "20",
            "engine.simulated_seconds": "60",
            "evaluation.every": "null",
            "evaluation.every_seconds": "5",
        },
    ),
    _build_aaggff(
        "aaggff-berka",
        "AAggFF-S on Berka (paper: Table 2)",
        *_build_variants(f"experiment=aaggff/berka {FIFTY_SEEDS}", FULL_PARTICIPATION, "1"),
        strategy="aaggff_s,fedavg",
    ),
    _build_aaggff(
        "aaggff-heart",
        "AAggFF-S on heart disease (the data of the authors' plug-and-play study)",
        *_build_variants(f"experiment=aaggff/heart {FIFTY_SEEDS}", FULL_PARTICIPATION, "100"),
    ),
    _build_aaggff(
        "aaggff-plug_and_play",
        "AAggFF-S plugged into five methods (authors' code: plug-and-play)",
        f"{PLUG_AND_PLAY}",
        f"{PLUG_AND_PLAY} client.proximal_mu=0.001",
        f"{PLUG_AND_PLAY} server_optimizer=adam,yogi server_optimizer.beta2=0.999 {ADAPTIVE}",
        f"{PLUG_AND_PLAY} server_optimizer=adagrad {ADAPTIVE}",
    ),
    _build_aaggff(
        "aaggff-mqp",
        "AAggFF-S on medical question pairs (paper: Table 2, with DistilBERT)",
        *_build_variants("experiment=aaggff/mqp seed=1,2,3", FULL_PARTICIPATION, "10"),
        **{"data.length": "10", "client.local_steps": "1"},
    ),
    _build_aaggff(
        "aaggff-spoken_digits",
        "AAggFF-S on spoken digits by speaker (paper: Table 3, Speech Commands; a stand-in)",
        *_build_variants("experiment=aaggff/spoken_digits seed=1,2,3", FULL_PARTICIPATION, "10"),
        **{"model": "logistic_regression", "client.local_steps": "1"},
    ),
    _build_aaggff(
        "aaggff-mnist_writers",
        "AAggFF-D on MNIST by writer (paper: Table 3, CelebA; a stand-in)",
        *_build_variants(
            "experiment=aaggff/mnist_writers seed=1 evaluation.every=1000",
            SAMPLED_PARTICIPATION,
            "10",
            code=False,
        ),
        f"experiment=aaggff/mnist_writers strategy={SAMPLED_PARTICIPATION} seed=1 "
        "evaluation.every=1000 rounds=300 client.lr_decay_every=30 "
        "strategy.fraction=0.0927643784786642",
        **{
            "strategy": "aaggff_d",
            "strategy.fraction": "0.5",
            "model": "logistic_regression",
            "data.min_samples": "120",
        },
    ),
    _build_aaggff(
        "aaggff-shakespeare",
        "AAggFF-D on Shakespeare by role (paper: Table 3, Reddit; a stand-in)",
        *_build_variants(
            "experiment=aaggff/shakespeare seed=1 evaluation.every=1000",
            SAMPLED_PARTICIPATION,
            "0.1333333333333333",
            code=False,
        ),
        **{
            "strategy": "aaggff_d",
            "strategy.fraction": "0.5",
            "data.min_samples": "300",
            "model.hidden": "32",
            "client.local_steps": "1",
        },
    ),
    DirectChapter(
        "decisions",
        "How long a decision takes (AAggFF and the others)",
        partial(build_decision_tables, 10, 1_000_000),
        partial(build_decision_tables, 1, 100),
    ),
)

CHAPTERS: tuple[Chapter, ...] = tuple(
    replace(chapter, more_looks=MORE_LOOKS[chapter.name])
    if isinstance(chapter, SweepChapter) and chapter.name in MORE_LOOKS
    else chapter
    for chapter in _DECLARED
)
