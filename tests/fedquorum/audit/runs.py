"""Define the short runs that the audit replays: every strategy, and composed strategies."""

from collections.abc import Mapping

from fedquorum.registry import NAMED_STRATEGIES

CONFIGURATIONS = {
    "fedalign": ("strategy.epsilon=0.4",),
    "accuracy": ("strategy.criterion=accuracy", "strategy.epsilon_schedule=linear"),
    "open": ("strategy.epsilon=inf", "strategy.fraction=0.5", "evaluation.every=2"),
    "sampled": (
        "strategy.fraction=0.5",
        "strategy.objective_clients=sampled",
        "strategy.epsilon=1",
    ),
    "one_client": ("strategy.objective_client=1", "data.priority=[1,4]", "strategy.epsilon=0.5"),
    "draws": ("strategy.priority_samples=6", "strategy.fraction=0.7", "strategy.epsilon=1"),
    "weighted": ("data.priority_weights={5: 0.5, 3: 0.1}", "strategy.epsilon=0.5"),
    "fedavg": ("strategy=fedavg", "strategy.priority_samples=3"),
    "personal": (
        *("strategy=fedavg", "evaluation.finetune_epochs=[0,2]", "evaluation.alone_epochs=3"),
        *("data.validation_fraction=0.2", "evaluation.every=2"),
    ),
    "fedavg_priority": ("strategy=fedavg_priority", "evaluation.clients=priority"),
    "fedau": (
        "strategy=fedau",
        "strategy.cutoff=2",
        "strategy.fraction=0.75",
        "availability=markov",
        "availability.p=0.5",
    ),
    "empirical": (
        *("strategy=empirical", "strategy.max_weight=3", "strategy.fraction=0.5"),
        *("availability=bernoulli", "availability.p=0.8", "availability.rest=1"),
    ),
    "average_all": ("strategy=average_all", "availability=bernoulli", "availability.p=0.5"),
    "average_participating": ("strategy=average_participating",),
    "known_statistics": (
        "strategy=known_statistics",
        "availability=cyclic",
        "availability.p=0.5",
    ),
    "fedawe": ("strategy=fedawe", "availability=bernoulli", "availability.p=0.5"),
    "fedvarp": ("strategy=fedvarp", "availability=bernoulli", "availability.p=0.5"),
    "mifa": ("strategy=mifa", "availability=bernoulli", "availability.p=0.5"),
    "aaggff_s": ("strategy=aaggff_s", "availability=bernoulli", "availability.p=0.7"),
    "authors' code": (
        "strategy=aaggff_s",
        "strategy.variant=authors_code",
        "client.lr_schedule=step",
        "client.lr_decay=0.5",
        "server_optimizer.lr_schedule=inverse_client",
    ),
    "aaggff_d": (
        "strategy=aaggff_d",
        "strategy.fraction=0.5",
        "strategy.baseline_response=running",
    ),
    "qfedavg": ("strategy=qfedavg",),
    "lipschitz": ("strategy=qfedavg", "strategy.lipschitz=10", "evaluation.metric=auroc"),
    "term": ("strategy=term", "strategy.tilt=-2"),
    "propfair": ("strategy=propfair", "strategy.bound=1.0"),
    "afl": ("strategy=afl", "strategy.fraction=0.5"),
    "fedmgda": ("strategy=fedmgda", "strategy.max_deviation=0.2"),
    "fedgp": ("strategy=fedgp", "strategy.beta=0.7", "strategy.fraction=0.7"),
    "maxfl": ("strategy=maxfl", "strategy.requirement=[0.5,2,1,nan,0.2,3,1,inf]"),
    "plain": ("strategy=fedavg",),
    "validated": (
        *("strategy=fedavg", "data.validation_fraction=0.25", "evaluation.metric=auroc"),
        "data.samples_per_client=60",
    ),
    "unseen": ("strategy=fedavg", "data.holdout_client_fraction=0.25"),
    "slow": (
        "strategy=fedavg",
        "response_time=lognormal",
        "engine.quorum=0.5",
        "engine.grace_seconds=1",
    ),
    "capped": ("strategy=fedavg", "robustness.max_weight=0.05", "robustness.clip_norm=0.5"),
}
"""The overrides of the named strategies' runs, and of options that change decisions."""
CONFIGURATIONS |= {
    key: (f"strategy={key}",)
    for key in NAMED_STRATEGIES.keys() - {"fedalign"}
    if not any(f"strategy={key}" in overrides for overrides in CONFIGURATIONS.values())
}

PARTS: Mapping[str, tuple[str, str, str, str]] = {
    "gate x aaggff_d": ("epsilon_gate", "aaggff_d", "none", "adam"),
    "gate x aaggff_d, running": ("epsilon_gate", "aaggff_d", "none", "sgd"),
    "gate x aaggff_d x fedau": ("epsilon_gate", "aaggff_d", "fedau", "yogi"),
    "priority x aaggff_d x rates": ("priority_only", "aaggff_d", "known_statistics", "adagrad"),
    "priority x aaggff_d": ("priority_only", "aaggff_d", "none", "sgd"),
    "everyone x aaggff_d x fedau": ("everyone", "aaggff_d", "fedau", "sgd"),
    "gate x data x rates": ("epsilon_gate", "data_fraction", "known_statistics", "momentum"),
    "gate x data x empirical": ("epsilon_gate", "data_fraction", "empirical", "sgd"),
    "gate x afl x fedau": ("epsilon_gate", "afl", "fedau", "sgd"),
    "gate x average_all x fedau": ("epsilon_gate", "average_all", "fedau", "sgd"),
    "gate x term": ("epsilon_gate", "term", "none", "sgd"),
    "gate x propfair": ("epsilon_gate", "propfair", "none", "adam"),
    "priority x qfedavg": ("priority_only", "qfedavg", "none", "sgd"),
    "gate x maxfl": ("epsilon_gate", "maxfl", "none", "sgd"),
    "priority x fedmgda": ("priority_only", "fedmgda", "none", "sgd"),
    "evaluated x participating": ("power_of_choice", "average_participating", "none", "sgd"),
    "reported x fedgp": ("power_of_choice", "fedgp", "none", "sgd"),
    "gate x participating": ("epsilon_gate", "average_participating", "none", "sgd"),
    "everyone x fedawe": ("everyone", "fedawe", "none", "sgd"),
    "warm-up x average_all x fedau": ("after_warmup", "average_all", "fedau", "sgd"),
    "everyone x aaggff_s": ("everyone", "aaggff_s", "none", "adagrad"),
}
"""Selection, weighting, participation and server optimizer of the composed strategies' runs."""


CHOICE: Mapping[str, tuple[str, ...]] = {
    "evaluated": ("data.priority=all", "strategy.selection.candidates=7", "evaluation.every=2"),
    "reported": ("strategy.selection.loss_source=reported",),
}
"""The overrides of runs that select by losses: among all clients, and without priority."""


def get_composition_overrides(name: str) -> tuple[str, ...]:
    """Return the overrides of a composed strategy's run; gates have two warm-up rounds of five."""
    selection, weighting, participation, optimizer = PARTS[name]
    gate = ("strategy.selection.epsilon=1", "strategy.selection.warmup_rounds=2")
    return (
        "strategy=composed",
        f"strategy/selection={selection}",
        f"strategy/weighting={weighting}",
        f"strategy/participation={participation}",
        f"server_optimizer={optimizer}",
        "strategy.server_lr=0.05",
        *(gate if selection == "epsilon_gate" else ()),
        *(("strategy.weighting.requirement=1",) if weighting == "maxfl" else ()),
        *(("strategy.weighting.baseline_response=running",) if name.endswith("running") else ()),
        *CHOICE.get(name.partition(" ")[0], ()),
        *(
            ()
            if weighting == "aaggff_s"
            else ("strategy.fraction=0.75", "availability=bernoulli", "availability.p=0.7")
        ),
    )


REFUSED = {
    name: (*overrides, "strategy.server_lr=1e+300")
    for name, overrides in {
        "refused fedau": CONFIGURATIONS["fedau"],
        "refused aaggff_d": CONFIGURATIONS["aaggff_d"],
        "refused qfedavg": CONFIGURATIONS["qfedavg"],
    }.items()
}
"""The overrides of runs in which every step would leave the finite numbers."""

OVERRIDES = {
    **CONFIGURATIONS,
    **{name: get_composition_overrides(name) for name in PARTS},
    **REFUSED,
}
