"""The claims of the three papers, each once: which cell of which chapter decides it.

Published numbers come from ``server_app/report/published.yaml``; where a paper has curves alone,
that is said.
"""

from collections.abc import Iterator

from benchmarks.book.claims import Claim, Place
from server_app.report.published import published_values

CURVES = "curves"
NO_DATA = "Its data is not on the machine that measures; preset and loader are there."

ON_FMNIST = "Fashion-MNIST, logistic regression"
FOR_EMNIST = "MNIST, five shards a client"
EARLY, LAST = "a quarter.*", "end(?! of).*"
ALONE, EVERYBODY = "priority only", "all"
OVER = {ALONE: "FedAvg on the priority clients", EVERYBODY: "FedAvg on all clients"}


def _above(
    figure: str,
    chapter: str,
    data: str,
    variant: str,
    here: str = "",
    *,
    headline: bool = False,
) -> Iterator[Claim]:
    """Yield what every figure of FedALIGN claims of the last round, a claim a baseline."""
    for baseline, words in OVER.items():
        yield Claim(
            f"FedALIGN, {figure}",
            f"{data}: FedALIGN ends above {words}.",
            CURVES,
            chapter,
            Place("differences", f"({variant}) - {baseline}", LAST),
            here=here,
            headline=headline,
        )


def _loss_below(level: str) -> Iterator[Claim]:
    """Yield what Figure 2 claims of the training loss after the last round, a claim a baseline."""
    for baseline, words in OVER.items():
        yield Claim(
            "FedALIGN, Figure 2",
            f"SYNTH(1,1), {level} noise: FedALIGN's training loss ends below that of {words}.",
            CURVES,
            "fedalign-synth",
            Place("objective_differences", f"({SYNTH[level]}) - {baseline}", LAST),
            -1,
            "nats",
        )


def _bound(term: str, words: str, sign: int) -> Claim:
    """Return what Theorem 1 says of a term when the gate becomes wider."""
    return Claim(
        "FedALIGN, Theorem 1",
        f"{words} with epsilon (0.2 against 0.1).",
        "a bound",
        "fedalign-bound",
        Place("steps", BOUND_STEP, term),
        sign,
        "SYNTH, low noise",
    )


def _local_only(chapter: str, data: str, here: str = "") -> Iterator[Claim]:
    """Yield what Figure 3 claims of a data set, and what 003 says of fairness."""
    yield Claim(
        "FedALIGN, Figure 3",
        f"{data}, 50 samples a client: on the other clients' test data the global model is "
        "above their local ones.",
        CURVES,
        chapter,
        Place("over_local", "fedalign - local_only", "classes of the client"),
        here=here,
    )
    yield Claim(
        "FedALIGN, Figure 3",
        f"{data}, 50 samples a client: the same on test data of all classes.",
        CURVES,
        chapter,
        Place("over_local", "fedalign - local_only", "all classes"),
        here=here,
    )
    for baseline, words, sign in (
        (ALONE, "more clients than that of FedAvg on the priority clients", 1),
        (EVERYBODY, "fewer clients than that of FedAvg on all clients", -1),
    ):
        yield Claim(
            "FedALIGN, section 1",
            f"{data}, 50 samples a client: the model of FedALIGN is useful to {words}.",
            "-",
            chapter,
            Place("better_off_differences", f"fedalign - {baseline}", "classes of the client"),
            sign,
            here,
        )


def _fedau(
    cutoff: str,
    other: str,
    process: str,
    sign: int = 1,
    *,
    setting: str = "",
    chapter: str = "fedau-fmnist",
    here: str = ON_FMNIST,
    headline: bool = False,
) -> Claim:
    """Return a comparison of FedAU's Table 2, on CIFAR-10 there and what is ``here``."""
    words = {1: "is above", -1: "is below"}[sign]
    return Claim(
        "FedAU, Table 2",
        f"{process.capitalize()} participation{setting}: FedAU (K = {cutoff}) {words} {other}.",
        _fedau_gap(cutoff, other, process),
        chapter,
        Place("differences", f"fedau, K = {cutoff} - {other}", process),
        sign,
        here,
        headline=headline,
    )


def _fedau_gap(cutoff: str, other: str, process: str) -> str:
    where = {"data.name": "cifar10", "availability.name": process, "strategy.cutoff": float(cutoff)}
    ours, theirs = (
        published_values("fedau/cifar10", where | {"strategy.name": name})[0].values["test"]
        for name in ("fedau", other)
    )
    return _gap(ours, theirs)


def _aaggff(
    table: str,
    chapter: str,
    data: str,
    measure: str,
    here: str = "",
    *,
    run: str = "",
    headline: bool = False,
) -> Claim:
    """Return a comparison of AAggFF with FedAvg by one measure over the clients' metrics.

    The published numbers are those of the paper's variant; ``run`` is what runs here in its place.
    """
    variant = VARIANTS[table]
    key, heading, sign = MEASURES[measure]
    ours, theirs = (
        published_values(PUBLISHED[chapter], {"strategy.name": name})[0].values[key]
        for name in (variant, "fedavg")
    )
    return Claim(
        f"AAggFF, {table}",
        f"{data}: AAggFF-{variant[-1].upper()}'s {measure} is "
        f"{'above' if sign > 0 else 'below'} FedAvg's.",
        _gap(ours, theirs),
        chapter,
        Place("differences", f"({run or variant} - )?fedavg", heading),
        sign,
        here,
        headline=headline,
    )


def _gap(ours: float, theirs: float) -> str:
    return f"{100 * (ours - theirs):+.1f} ({_percent(ours)} and {_percent(theirs)})"


def _percent(value: float) -> str:
    """Return a number as it is printed there: with one decimal, or with two."""
    return f"{100 * value:.2f}".removesuffix("0")


def _missing(paper: str, claim: str, why: str, published: str = CURVES) -> Claim:
    return Claim(paper, claim, published, lacking=why)


MEASURES = {
    "average": ("average", "average(, unweighted)?", 1),
    "worst client": ("worst", "worst", 1),
    "worst tenth": ("worst10", "worst 10 %(, unweighted)?", 1),
    "Gini coefficient": ("gini", "Gini", -1),
}
"""By its words: the published measure, the heading in the book, and the claimed sign."""

PUBLISHED = {
    "aaggff-berka": "aaggff/berka",
    "aaggff-mqp": "aaggff/mqp",
    "aaggff-mnist_writers": "aaggff/celeba",
    "aaggff-shakespeare": "aaggff/reddit",
    "aaggff-spoken_digits": "aaggff/speech",
}
VARIANTS = {"Table 2": "aaggff_s", "Table 3": "aaggff_d"}
"""AAggFF's variant, by the paper's table of its results."""

SYNTH = {
    level: f"synth_{level}, fedalign \\((?=.*additive)(?=.*loss)(?=.*constant).*\\)"
    for level in ("low", "medium", "high")
}
"""The rows of SYNTH with additive noise, by the loss, at constant epsilon, the papers' settings."""

BOUND_STEP = "fedalign \\((?=.*additive)(?=.*constant)(?=.*epsilon=0.2\\)).* - 0.1"
"""The row of the step from epsilon 0.1 to 0.2, with additive noise at a constant learning rate."""

CLAIMS: tuple[Claim, ...] = (
    Claim(
        "FedALIGN, Figure 1",
        "Fashion-MNIST: after the warm-up FedALIGN climbs faster than FedAvg on the priority "
        "clients.",
        CURVES,
        "fedalign-fmnist",
        Place("differences", "(fedalign \\(.*)?constant\\)? - priority only", EARLY),
    ),
    Claim(
        "FedALIGN, Figure 1",
        "Fashion-MNIST: FedAvg on all falls when the other clients enter after the warm-up.",
        CURVES,
        "fedalign-fmnist",
        Place("changes", "fedavg", EARLY),
        -1,
        headline=True,
    ),
    *_above(
        "Figure 1",
        "fedalign-fmnist",
        "Fashion-MNIST, epsilon 0.2 and then 0",
        "fedalign",
        headline=True,
    ),
    *_above(
        "Figure 1",
        "fedalign-fmnist",
        "Fashion-MNIST, epsilon 0.2 throughout (004)",
        "(fedalign \\(.*)?constant\\)?",
    ),
    *_above("Figure 1", "fedalign-cifar10", "A part of CIFAR-10", "fedalign"),
    *_above("Figure 1", "fedalign-mnist", "EMNIST", "mnist, fedalign", here=FOR_EMNIST),
    _missing("FedALIGN, Figure 1", "The same on EMNIST itself and all of CIFAR-10.", NO_DATA),
    *_above(
        "Figure 2",
        "fedalign-synth",
        "SYNTH(1,1), low noise",
        SYNTH["low"] + "|low, constant",
        headline=True,
    ),
    *_above("Figure 2", "fedalign-synth", "SYNTH(1,1), medium noise", SYNTH["medium"]),
    *_above("Figure 2", "fedalign-synth", "SYNTH(1,1), high noise", SYNTH["high"]),
    *(claim for level in SYNTH for claim in _loss_below(level)),
    *_local_only("fedalign-local_only", "Fashion-MNIST"),
    *_local_only("fedalign-local_only_mnist", "EMNIST", FOR_EMNIST),
    *_local_only("fedalign-local_only_cifar10", "CIFAR-10", "a part of it"),
    *_above("Figure 4", "fedalign-fmnist_fedprox", "Fashion-MNIST, FedProx", "fedalign"),
    *_above("Figure 4", "fedalign-mnist_fedprox", "EMNIST, FedProx", "fedalign", FOR_EMNIST),
    *_above("Figure 5", "fedalign-fmnist_partial", "Fashion-MNIST, 0.3 of the clients", "fedalign"),
    *_above(
        "Figure 5", "fedalign-mnist_partial", "EMNIST, 0.5 of the clients", "fedalign", FOR_EMNIST
    ),
    *_above(
        "Figure 5",
        "fedalign-cifar10_partial",
        "CIFAR-10, 0.3 of the clients",
        "fedalign",
        "a part of it",
    ),
    *_above(
        "Figure 6",
        "fedalign-priority_count",
        "Fashion-MNIST, 6 priority clients, E = 5",
        "fedalign \\(data.num_priority=6, client.local_epochs=5\\)",
    ),
    *(
        claim
        for count, epochs in ((9, 3), (18, 5))
        for claim in _above(
            "Figure 6",
            "fedalign-mnist_priority_count",
            f"EMNIST, {count} priority clients, E = {epochs}",
            f"fedalign \\(data.num_priority={count}, client.local_epochs={epochs}\\)",
            FOR_EMNIST,
        )
    ),
    Claim(
        "FedALIGN, section 5",
        "Fashion-MNIST: a gate on client 0's objective ends above one on that of all priority "
        "clients, for client 0.",
        "future work",
        "fedalign-one_client",
        Place("gains", "fedalign .*client=0\\) - fedalign .*client=null\\)", "client 0.*"),
    ),
    _bound("theta_T", "theta_T falls", -1),
    _bound("rho_T", "rho_T grows", 1),
    *(
        _fedau("50", other, process, headline=process == "bernoulli")
        for process in ("bernoulli", "markov", "cyclic")
        for other in ("average_participating", "average_all")
    ),
    *(_fedau("50", "known_statistics", process) for process in ("bernoulli", "markov", "cyclic")),
    _fedau("50", "fedvarp", "bernoulli", -1),
    _fedau("50", "mifa", "cyclic", headline=True),
    *(
        _fedau(
            "50",
            other,
            "bernoulli",
            sign,
            setting=", a part of CIFAR-10",
            chapter="fedau-cifar10",
            here="",
        )
        for other, sign in (
            ("average_participating", 1),
            ("average_all", 1),
            ("known_statistics", 1),
            ("fedvarp", -1),
        )
    ),
    Claim(
        "FedAU, Theorem 3",
        "The weight error is least at a K in between: that of K = 100 is below that of no cutoff "
        "after 1,000 rounds.",
        "a bound",
        "fedau-cutoff",
        Place("over_none", "100 - inf", "T = 1,000"),
        -1,
        "Bernoulli participation",
    ),
    _missing("FedAU, Table 2", "The same on SVHN, CIFAR-100 and CINIC-10.", NO_DATA, "a table"),
    _missing(
        "FedAU, Table 2",
        "The same on CIFAR-10, 50,000 images and 10,000 rounds.",
        "Its images are not all on the machine that measures, and at the pace of the chapter, "
        "15,000 images and 100 rounds, 10,000 rounds of a run take 4 to 5 hours of a core.",
        "a table",
    ),
    Claim(
        "FedAU, Figure 2",
        "Bernoulli participation: K = 50 is above K = 1.",
        CURVES,
        "fedau-fmnist_cutoff",
        Place("differences", "fedau, K = 50 - fedau, K = 1", "bernoulli"),
        here=ON_FMNIST,
    ),
    Claim(
        "FedAU, supplement",
        "p_min = 0.002: FedAU (K = 50) is above average_participating.",
        CURVES,
        "fedau-fmnist_p_min",
        Place(
            "differences",
            "fedau, K = 50, p_min = 0.002 - average_participating, p_min = 0.002",
            "bernoulli",
        ),
        here=ON_FMNIST,
    ),
    _fedau(
        "50",
        "average_participating",
        "bernoulli",
        setting=", the authors' settings",
        chapter="fedau-fmnist_authors",
        here="Fashion-MNIST, the paper's network",
    ),
    _aaggff("Table 2", "aaggff-berka", "Berka", "average"),
    _aaggff("Table 2", "aaggff-berka", "Berka", "worst client", headline=True),
    _aaggff("Table 2", "aaggff-berka", "Berka", "Gini coefficient"),
    _aaggff("Table 2", "aaggff-mqp", "MQP", "worst client", "a small text network"),
    _aaggff("Table 2", "aaggff-mqp", "MQP", "Gini coefficient", "a small text network"),
    _aaggff(
        "Table 3",
        "aaggff-mnist_writers",
        "CelebA",
        "worst tenth",
        "MNIST by writer",
        headline=True,
    ),
    _aaggff("Table 3", "aaggff-mnist_writers", "CelebA", "Gini coefficient", "MNIST by writer"),
    _aaggff("Table 3", "aaggff-shakespeare", "Reddit", "worst tenth", "Shakespeare by role"),
    _aaggff(
        "Table 3",
        "aaggff-spoken_digits",
        "Speech Commands",
        "worst tenth",
        "spoken digits, AAggFF-S",
        run="aaggff_s",  # all six speakers take part in every round
    ),
    _missing("AAggFF, Table 2", "The same on ISIC 2019.", NO_DATA, "a table"),
    _missing(
        "AAggFF, Table 3", "CelebA, Reddit and Speech Commands themselves.", NO_DATA, "a table"
    ),
    Claim(
        "AAggFF, Table 2",
        "Berka, the rule of the authors' code: AAggFF-S's worst client is above FedAvg's.",
        _gap(
            *(
                published_values("aaggff/berka", {"strategy.name": name})[0].values["worst"]
                for name in ("aaggff_s", "fedavg")
            )
        ),
        "aaggff-berka",
        Place("differences", "aaggff_s, authors' code - fedavg", "worst"),
    ),
    *(
        Claim(
            "AAggFF, plug-and-play",
            f"Heart disease: the worst client of {name} is better with AAggFF-S.",
            "a table",
            "aaggff-plug_and_play",
            Place("differences", f"aaggff_s{suffix} - fedavg{suffix}", "worst"),
        )
        for name in ("FedAvg", "FedProx", "FedAdam", "FedYogi", "FedAdagrad")
        for suffix in ("" if name == "FedAvg" else f", {name}",)
    ),
)
