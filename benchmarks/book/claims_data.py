"""The claims of the three papers, each declared once with the cell that decides it.

Published numbers come from ``published.yaml`` of ``fedquorum.report``. ``CURVES`` stands for a
paper that has only curves.
"""

from collections.abc import Iterator

from fedquorum.report.published import find_published_results

from benchmarks.book.claims import CellLocator, Claim

CURVES = "curves"
NO_DATA = "Its data is not on the machine that measures; preset and loader are there."

FMNIST_SETUP = "Fashion-MNIST, logistic regression"
EMNIST_STAND_IN = "MNIST, five shards a client"
EARLY, LAST = "a quarter.*", "end(?! of).*"
ALONE, EVERYBODY = "priority only", "all"
BASELINE_TEXTS = {ALONE: "FedAvg on the priority clients", EVERYBODY: "FedAvg on all clients"}


def _build_above_claims(
    figure: str,
    chapter: str,
    data: str,
    variant: str,
    setup: str = "",
) -> Iterator[Claim]:
    """Yield the claims of a FedALIGN figure about the last round, one for each baseline."""
    for baseline, description in BASELINE_TEXTS.items():
        yield Claim(
            f"FedALIGN, {figure}",
            f"{data}: FedALIGN ends above {description}.",
            CURVES,
            chapter,
            CellLocator("differences", f"({variant}) - {baseline}", LAST),
            setup=setup,
        )


def _build_loss_claims(level: str) -> Iterator[Claim]:
    """Yield the claims of Figure 2 about the last training loss, one for each baseline."""
    for baseline, description in BASELINE_TEXTS.items():
        yield Claim(
            "FedALIGN, Figure 2",
            f"SYNTH(1,1), {level} noise: FedALIGN's training loss ends below that of "
            f"{description}.",
            CURVES,
            "fedalign-synth",
            CellLocator("objective_differences", f"({SYNTH_ROWS[level]}) - {baseline}", LAST),
            -1,
            "nats",
            is_in_points=False,
        )


def _build_bound_claim(term: str, text: str, sign: int) -> Claim:
    """Build the claim of Theorem 1 about a term when the gate widens."""
    return Claim(
        "FedALIGN, Theorem 1",
        f"{text} with epsilon (0.2 against 0.1).",
        "a bound",
        "fedalign-bound",
        CellLocator("steps", BOUND_ROW, term),
        sign,
        "SYNTH, low noise",
        is_in_points=False,
    )


def _build_alone_claims(chapter: str, data: str, setup: str = "") -> Iterator[Claim]:
    """Yield the claims of Figure 3 about a data set, and those of 003 about fairness."""
    yield Claim(
        "FedALIGN, Figure 3",
        f"{data}, 50 samples a client: on the other clients' test data the global model is "
        "above those that they train alone.",
        CURVES,
        chapter,
        CellLocator("over_alone", "fedalign - alone", "classes of the client"),
        setup=setup,
    )
    yield Claim(
        "FedALIGN, Figure 3",
        f"{data}, 50 samples a client: the same on test data of all classes.",
        CURVES,
        chapter,
        CellLocator("over_alone", "fedalign - alone", "all classes"),
        setup=setup,
    )
    for baseline, usefulness, sign in (
        (ALONE, "more clients than that of FedAvg on the priority clients", 1),
        (EVERYBODY, "fewer clients than that of FedAvg on all clients", -1),
    ):
        yield Claim(
            "FedALIGN, section 1",
            f"{data}, 50 samples a client: the model of FedALIGN is useful to {usefulness}.",
            "-",
            chapter,
            CellLocator(
                "better_off_differences", f"fedalign - {baseline}", "classes of the client"
            ),
            sign,
            setup,
        )


def _build_fedau_claim(
    cutoff: str,
    other: str,
    process: str,
    sign: int = 1,
    *,
    setting: str = "",
    chapter: str = "fedau-fmnist",
    setup: str = FMNIST_SETUP,
) -> Claim:
    """Build a comparison of FedAU's Table 2, which has CIFAR-10; the book measures ``setup``."""
    relation = {1: "is above", -1: "is below"}[sign]
    published = _find_fedau_accuracies(cutoff, other, process)
    return Claim(
        "FedAU, Table 2",
        f"{process.capitalize()} participation{setting}: FedAU (K = {cutoff}) {relation} {other}.",
        _format_gap(*published),
        chapter,
        CellLocator("differences", f"fedau, K = {cutoff} - {other}", process),
        sign,
        setup,
        _compute_gap(*published),
    )


def _find_fedau_accuracies(cutoff: str, other: str, process: str) -> tuple[float, ...]:
    """Return the published test accuracies of FedAU and another method."""
    settings = {
        "data.name": "cifar10",
        "availability.name": process,
        "strategy.cutoff": float(cutoff),
    }
    return tuple(
        find_published_results("fedau/cifar10", settings | {"strategy.name": name})[0].values[
            "test"
        ]
        for name in ("fedau", other)
    )


def _build_aaggff_claim(
    table: str,
    chapter: str,
    data: str,
    statistic: str,
    setup: str = "",
    *,
    run: str = "",
) -> Claim:
    """Build a comparison of AAggFF with FedAvg by one statistic of the clients' metrics.

    The published numbers are those of the paper's variant; ``run`` names the strategy that the book
    runs instead.
    """
    variant = VARIANTS[table]
    key, heading, sign = METRIC_COLUMNS[statistic]
    published = _find_aaggff_metrics(PUBLISHED_EXPERIMENTS[chapter], variant, key)
    return Claim(
        f"AAggFF, {table}",
        f"{data}: AAggFF-{variant[-1].upper()}'s {statistic} is "
        f"{'above' if sign > 0 else 'below'} FedAvg's.",
        _format_gap(*published),
        chapter,
        CellLocator("differences", f"({run or variant} - )?fedavg", heading),
        sign,
        setup,
        _compute_gap(*published),
    )


def _find_aaggff_metrics(experiment: str, variant: str, key: str) -> tuple[float, ...]:
    """Return the published metric of a variant of AAggFF, and that of FedAvg."""
    return tuple(
        find_published_results(experiment, {"strategy.name": name})[0].values[key]
        for name in (variant, "fedavg")
    )


def _compute_gap(ours: float, theirs: float) -> float:
    """Return a published difference in percentage points."""
    return 100 * (ours - theirs)


def _format_gap(ours: float, theirs: float) -> str:
    return (
        f"{_compute_gap(ours, theirs):+.1f} ({_format_percent(ours)} and {_format_percent(theirs)})"
    )


def _format_percent(value: float) -> str:
    """Format a fraction in percent as the papers print it, with one or two decimals."""
    return f"{100 * value:.2f}".removesuffix("0")


def _build_missing_claim(paper: str, claim: str, reason: str, published: str = CURVES) -> Claim:
    return Claim(paper, claim, published, missing_reason=reason)


METRIC_COLUMNS = {
    "average": ("average", "average(, unweighted)?", 1),
    "worst client": ("worst", "worst", 1),
    "worst tenth": ("worst10", "worst 10 %(, unweighted)?", 1),
    "Gini coefficient": ("gini", "Gini", -1),
}
"""The published key, the heading in the book and the claimed sign of each statistic."""

PUBLISHED_EXPERIMENTS = {
    "aaggff-berka": "aaggff/berka",
    "aaggff-mqp": "aaggff/mqp",
    "aaggff-mnist_writers": "aaggff/celeba",
    "aaggff-shakespeare": "aaggff/reddit",
    "aaggff-spoken_digits": "aaggff/speech",
}
VARIANTS = {"Table 2": "aaggff_s", "Table 3": "aaggff_d"}
"""AAggFF's variant in each of the paper's tables."""

SYNTH_ROWS = {
    level: f"synth_{level}, fedalign \\((?=.*additive)(?=.*loss)(?=.*constant).*\\)"
    for level in ("low", "medium", "high")
}
"""The rows of SYNTH with the papers' settings: additive noise, loss, constant epsilon."""

BOUND_ROW = "fedalign \\((?=.*additive)(?=.*constant)(?=.*epsilon=0.2\\)).* - 0.1"
"""The row of the step from epsilon 0.1 to 0.2, additive noise, constant learning rate."""

BERKA_WORST = _find_aaggff_metrics("aaggff/berka", "aaggff_s", "worst")

CLAIMS: tuple[Claim, ...] = (
    Claim(
        "FedALIGN, Figure 1",
        "Fashion-MNIST: after the warm-up FedALIGN climbs faster than FedAvg on the priority "
        "clients.",
        CURVES,
        "fedalign-fmnist",
        CellLocator("differences", "(fedalign \\(.*)?constant\\)? - priority only", EARLY),
    ),
    Claim(
        "FedALIGN, Figure 1",
        "Fashion-MNIST: FedAvg on all falls when the other clients enter after the warm-up.",
        CURVES,
        "fedalign-fmnist",
        CellLocator("changes", "fedavg", EARLY),
        -1,
    ),
    *_build_above_claims(
        "Figure 1",
        "fedalign-fmnist",
        "Fashion-MNIST, epsilon 0.2 and then 0",
        "fedalign",
    ),
    *_build_above_claims(
        "Figure 1",
        "fedalign-fmnist",
        "Fashion-MNIST, epsilon 0.2 throughout (004)",
        "(fedalign \\(.*)?constant\\)?",
    ),
    *_build_above_claims("Figure 1", "fedalign-cifar10", "A part of CIFAR-10", "fedalign"),
    *_build_above_claims(
        "Figure 1", "fedalign-mnist", "EMNIST", "mnist, fedalign", setup=EMNIST_STAND_IN
    ),
    _build_missing_claim(
        "FedALIGN, Figure 1", "The same on EMNIST itself and all of CIFAR-10.", NO_DATA
    ),
    *_build_above_claims(
        "Figure 2",
        "fedalign-synth",
        "SYNTH(1,1), low noise",
        SYNTH_ROWS["low"] + "|low, constant",
    ),
    *_build_above_claims(
        "Figure 2", "fedalign-synth", "SYNTH(1,1), medium noise", SYNTH_ROWS["medium"]
    ),
    *_build_above_claims(
        "Figure 2", "fedalign-synth", "SYNTH(1,1), high noise", SYNTH_ROWS["high"]
    ),
    *(claim for level in SYNTH_ROWS for claim in _build_loss_claims(level)),
    *_build_alone_claims("fedalign-alone", "Fashion-MNIST"),
    *_build_alone_claims("fedalign-alone_mnist", "EMNIST", EMNIST_STAND_IN),
    *_build_alone_claims("fedalign-alone_cifar10", "CIFAR-10", "a part of it"),
    *_build_above_claims(
        "Figure 4", "fedalign-fmnist_fedprox", "Fashion-MNIST, FedProx", "fedalign"
    ),
    *_build_above_claims(
        "Figure 4", "fedalign-mnist_fedprox", "EMNIST, FedProx", "fedalign", EMNIST_STAND_IN
    ),
    *_build_above_claims(
        "Figure 5", "fedalign-fmnist_partial", "Fashion-MNIST, 0.3 of the clients", "fedalign"
    ),
    *_build_above_claims(
        "Figure 5",
        "fedalign-mnist_partial",
        "EMNIST, 0.5 of the clients",
        "fedalign",
        EMNIST_STAND_IN,
    ),
    *_build_above_claims(
        "Figure 5",
        "fedalign-cifar10_partial",
        "CIFAR-10, 0.3 of the clients",
        "fedalign",
        "a part of it",
    ),
    *_build_above_claims(
        "Figure 6",
        "fedalign-priority_count",
        "Fashion-MNIST, 6 priority clients, E = 5",
        "fedalign \\(data.num_priority=6, client.local_epochs=5\\)",
    ),
    *(
        claim
        for count, epochs in ((9, 3), (18, 5))
        for claim in _build_above_claims(
            "Figure 6",
            "fedalign-mnist_priority_count",
            f"EMNIST, {count} priority clients, E = {epochs}",
            f"fedalign \\(data.num_priority={count}, client.local_epochs={epochs}\\)",
            EMNIST_STAND_IN,
        )
    ),
    Claim(
        "FedALIGN, section 5",
        "Fashion-MNIST: a gate on client 0's objective ends above one on that of all priority "
        "clients, for client 0.",
        "future work",
        "fedalign-one_client",
        CellLocator("gains", "fedalign .*client=0\\) - fedalign .*client=null\\)", "client 0.*"),
    ),
    _build_bound_claim("theta_T", "theta_T falls", -1),
    _build_bound_claim("rho_T", "rho_T grows", 1),
    *(
        _build_fedau_claim("50", other, process)
        for process in ("bernoulli", "markov", "cyclic")
        for other in ("average_participating", "average_all")
    ),
    *(
        _build_fedau_claim("50", "known_statistics", process)
        for process in ("bernoulli", "markov", "cyclic")
    ),
    _build_fedau_claim("50", "fedvarp", "bernoulli", -1),
    _build_fedau_claim("50", "mifa", "cyclic"),
    *(
        _build_fedau_claim(
            "50",
            other,
            "bernoulli",
            sign,
            setting=", CIFAR-10",
            chapter="fedau-cifar10",
            setup="a part of it, 100 rounds",
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
        CellLocator("over_none", "100 - inf", "T = 1,000"),
        -1,
        "Bernoulli participation",
        is_in_points=False,
    ),
    _build_missing_claim(
        "FedAU, Table 2", "The same on SVHN, CIFAR-100 and CINIC-10.", NO_DATA, "a table"
    ),
    _build_missing_claim(
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
        CellLocator("differences", "fedau, K = 50 - fedau, K = 1", "bernoulli"),
        setup=FMNIST_SETUP,
    ),
    Claim(
        "FedAU, supplement",
        "p_min = 0.002: FedAU (K = 50) is above average_participating.",
        CURVES,
        "fedau-fmnist_p_min",
        CellLocator(
            "differences",
            "fedau, K = 50, p_min = 0.002 - average_participating, p_min = 0.002",
            "bernoulli",
        ),
        setup=FMNIST_SETUP,
    ),
    _build_fedau_claim(
        "50",
        "average_participating",
        "bernoulli",
        setting=", the authors' settings",
        chapter="fedau-fmnist_authors",
        setup="Fashion-MNIST, the paper's network",
    ),
    _build_aaggff_claim("Table 2", "aaggff-berka", "Berka", "average"),
    _build_aaggff_claim("Table 2", "aaggff-berka", "Berka", "worst client"),
    _build_aaggff_claim("Table 2", "aaggff-berka", "Berka", "Gini coefficient"),
    _build_aaggff_claim("Table 2", "aaggff-mqp", "MQP", "worst client", "a small text network"),
    _build_aaggff_claim("Table 2", "aaggff-mqp", "MQP", "Gini coefficient", "a small text network"),
    _build_aaggff_claim(
        "Table 3",
        "aaggff-mnist_writers",
        "CelebA",
        "worst tenth",
        "MNIST by writer",
    ),
    _build_aaggff_claim(
        "Table 3", "aaggff-mnist_writers", "CelebA", "Gini coefficient", "MNIST by writer"
    ),
    _build_aaggff_claim(
        "Table 3", "aaggff-shakespeare", "Reddit", "worst tenth", "Shakespeare by role"
    ),
    _build_aaggff_claim(
        "Table 3",
        "aaggff-spoken_digits",
        "Speech Commands",
        "worst tenth",
        "spoken digits, AAggFF-S",
        run="aaggff_s",  # all six speakers take part in every round
    ),
    _build_missing_claim("AAggFF, Table 2", "The same on ISIC 2019.", NO_DATA, "a table"),
    _build_missing_claim(
        "AAggFF, Table 3", "CelebA, Reddit and Speech Commands themselves.", NO_DATA, "a table"
    ),
    Claim(
        "AAggFF, Table 2",
        "Berka, the rule of the authors' code: AAggFF-S's worst client is above FedAvg's.",
        _format_gap(*BERKA_WORST),
        "aaggff-berka",
        CellLocator("differences", "aaggff_s, authors' code - fedavg", "worst"),
        published_difference=_compute_gap(*BERKA_WORST),
    ),
    *(
        Claim(
            "AAggFF, plug-and-play",
            f"Heart disease: the worst client of {name} is better with AAggFF-S.",
            "a table",
            "aaggff-plug_and_play",
            CellLocator("differences", f"aaggff_s{suffix} - fedavg{suffix}", "worst"),
        )
        for name in ("FedAvg", "FedProx", "FedAdam", "FedYogi", "FedAdagrad")
        for suffix in ("" if name == "FedAvg" else f", {name}",)
    ),
)
