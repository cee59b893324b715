"""The papers' numbers, for reference lines beside what was measured. As fractions of 1.

``where`` are the settings that a run must have for a number to be of the same thing. Published
numbers of Fashion-MNIST, SYNTH and the stand-ins for data that is not free do not exist.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

FEDAU_SOURCE = "Wang and Ji, ICLR 2024: test accuracy, 5 seeds"
AAGGFF_SOURCE = "Hahn, Kim and Lee, ICML 2024: over clients, 3 seeds"


@dataclass(frozen=True)
class Published:
    """What a paper reports of one method in one experiment.

    Parameters
    ----------
    experiment : str
        The preset.
    where : mapping
        Settings by dotted key and the values they must have.
    values : mapping
        Numbers by the names of ``final_measures``, as fractions of 1.
    source : str
        Paper and table, and what is different there.
    """

    experiment: str
    where: Mapping[str, Any]
    values: Mapping[str, float]
    source: str

    def is_of(self, experiment: str, settings: Mapping[str, Any]) -> bool:
        """Return whether a run with these settings is what the number is of."""
        return experiment == self.experiment and all(
            settings.get(key) == value for key, value in self.where.items()
        )


def published_values(experiment: str, settings: Mapping[str, Any]) -> tuple[Published, ...]:
    """Return what is published of a run with these settings."""
    return tuple(one for one in _all() if one.is_of(experiment, settings))


# Test accuracy in percent under Bernoulli, Markov and cyclic participation.
_PROCESSES = ("bernoulli", "markov", "cyclic")
_FEDAU: Mapping[str, Mapping[str, tuple[float, float, float]]] = {
    "svhn": {
        "fedau inf": (89.3, 89.3, 88.7),
        "fedau 50": (89.6, 89.5, 88.8),
        "average_participating": (87.2, 87.1, 85.5),
        "average_all": (87.0, 86.8, 87.4),
        "fedvarp": (88.9, 88.6, 83.9),
        "mifa": (88.7, 88.4, 77.4),
        "known_statistics": (88.4, 88.6, 88.7),
    },
    "cifar10": {
        "fedau inf": (77.1, 77.1, 76.3),
        "fedau 50": (77.3, 77.2, 76.6),
        "average_participating": (74.1, 74.2, 73.3),
        "average_all": (72.7, 72.5, 73.8),
        "fedvarp": (77.9, 77.8, 75.3),
        "mifa": (77.5, 77.2, 70.6),
        "known_statistics": (77.0, 76.9, 76.1),
    },
    "cifar100": {
        "fedau inf": (52.3, 51.8, 50.6),
        "fedau 50": (52.1, 51.7, 51.0),
        "average_participating": (48.8, 48.6, 48.3),
        "average_all": (47.9, 47.7, 48.8),
        "fedvarp": (49.2, 48.8, 45.9),
        "mifa": (48.4, 48.1, 41.1),
        "known_statistics": (50.6, 50.3, 50.8),
    },
    "cinic10": {
        "fedau inf": (61.5, 61.2, 60.0),
        "fedau 50": (62.7, 62.3, 60.9),
        "average_participating": (56.6, 56.9, 55.0),
        "average_all": (56.2, 55.7, 57.6),
        "fedvarp": (62.0, 62.1, 58.5),
        "mifa": (61.5, 61.2, 50.2),
        "known_statistics": (60.5, 60.7, 59.8),
    },
}

# Percent: average, worst, best, Gini over clients.
_SILO: Mapping[str, Mapping[str, tuple[float, float, float, float]]] = {
    "berka": {
        "fedavg": (80.09, 48.06, 99.03, 10.87),
        "afl": (79.70, 49.02, 98.55, 10.58),
        "qfedavg": (79.98, 49.44, 98.07, 10.62),
        "term": (80.11, 48.96, 99.03, 10.86),
        "fedmgda": (79.24, 46.38, 99.03, 11.64),
        "propfair": (79.61, 49.44, 98.07, 10.47),
        "aaggff_s": (80.93, 52.08, 99.03, 10.16),
    },
    "mqp": {
        "fedavg": (56.06, 41.03, 76.31, 8.63),
        "afl": (56.01, 41.28, 75.54, 8.56),
        "qfedavg": (56.89, 40.22, 79.38, 8.68),
        "term": (56.47, 40.73, 76.80, 8.67),
        "fedmgda": (53.02, 34.91, 69.65, 10.33),
        "propfair": (56.60, 41.71, 79.09, 8.74),
        "aaggff_s": (56.63, 41.79, 75.56, 8.38),
    },
    "isic": {
        "fedavg": (87.42, 69.92, 92.57, 4.84),
        "afl": (87.39, 68.17, 93.33, 4.80),
        "qfedavg": (41.59, 20.38, 58.08, 22.25),
        "term": (87.89, 77.32, 96.00, 3.77),
        "fedmgda": (42.36, 21.44, 59.21, 22.25),
        "propfair": (83.88, 58.36, 91.35, 7.91),
        "aaggff_s": (89.76, 85.17, 98.22, 2.52),
    },
}
_NOTES = {
    "berka": " (their table has transactions after the loan, which make it easier)",
    "mqp": " (with DistilBERT)",
    "isic": " (top-5 accuracy)",
    "speech": " (top-5 accuracy)",
}

# Percent: average, worst 10 %, best 10 %, Gini over clients.
_DEVICE: Mapping[str, Mapping[str, tuple[float, float, float, float]]] = {
    "celeba": {
        "fedavg": (90.79, 55.76, 100.0, 7.86),
        "qfedavg": (90.88, 55.73, 100.0, 7.82),
        "term": (90.71, 55.66, 100.0, 7.90),
        "fedmgda": (88.33, 48.60, 100.0, 9.75),
        "propfair": (87.25, 48.11, 100.0, 10.39),
        "aaggff_d": (91.27, 56.71, 100.0, 7.54),
    },
    "reddit": {
        "fedavg": (10.76, 2.50, 20.86, 25.66),
        "qfedavg": (12.76, 3.38, 21.81, 23.34),
        "term": (12.02, 2.85, 20.74, 24.15),
        "fedmgda": (10.58, 2.35, 19.09, 25.20),
        "propfair": (11.26, 1.95, 21.33, 25.97),
        "aaggff_d": (12.95, 4.75, 22.81, 22.59),
    },
    "speech": {
        "fedavg": (75.51, 7.93, 100.0, 24.58),
        "qfedavg": (73.34, 11.19, 100.0, 23.16),
        "term": (70.90, 5.98, 100.0, 26.37),
        "fedmgda": (72.45, 9.65, 100.0, 23.68),
        "propfair": (73.64, 7.30, 100.0, 24.97),
        "aaggff_d": (76.68, 14.54, 100.0, 21.42),
    },
}


@cache
def _all() -> tuple[Published, ...]:
    return (*_fedau(), *_aaggff())


def _fedau() -> Iterator[Published]:
    for data, fedau in _FEDAU.items():
        for method, accuracies in fedau.items():
            strategy, _, cutoff = method.partition(" ")
            where: dict[str, Any] = {"data.name": data, "strategy.name": strategy}
            if cutoff:
                where["strategy.cutoff"] = math.inf if cutoff == "inf" else float(cutoff)
            for process, accuracy in zip(_PROCESSES, accuracies, strict=True):
                yield Published(
                    f"fedau/{data}",
                    {**where, "availability.name": process},
                    {"test": accuracy / 100},
                    FEDAU_SOURCE,
                )


def _aaggff() -> Iterator[Published]:
    for tables, low, high in ((_SILO, "worst", "best"), (_DEVICE, "worst10", "best10")):
        for data, table in tables.items():
            for strategy, row in table.items():
                names = ("average", low, high, "gini")
                yield Published(
                    f"aaggff/{data}",
                    {"strategy.name": strategy},
                    {name: value / 100 for name, value in zip(names, row, strict=True)},
                    AAGGFF_SOURCE + _NOTES.get(data, ""),
                )
