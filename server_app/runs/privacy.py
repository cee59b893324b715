"""Make a run private: build the mechanism from its settings, and account for its releases.

``fedquorum.server.privacy`` implements the mechanism; docs/privacy.md describes the data that is
sent, noised and accounted. Each round is one release with the noise multiplier of the settings,
whichever clients reply. The accountant is Google's dp-accounting. No release is amplified by
sampling, because every client knows the run's seed, which determines the selected clients, and
because availability is not sampled.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from fedquorum.errors import ParameterError, RunError, SettingsError
from fedquorum.flower.codec import NamedArrays
from fedquorum.records.callback import RunCallback
from fedquorum.records.writer import PRIVACY_ENTRY, RunWriter
from fedquorum.rules.parameters import Interval
from fedquorum.sanitize import sanitize
from fedquorum.server.privacy import AdaptiveClippingNorm, GaussianMechanism, check_model

from conf.schema.privacy import (
    CLIENT_MODES,
    AdaptiveClippingSettings,
    ClippingSettings,
    FixedClippingSettings,
    PrivacySettings,
)
from conf.schema.rules import format_parameter_error

ACCOUNTANT_PACKAGE = "dp-accounting"
MAX_DELTA = 1e-5
NEIGHBOR_RELATION = "one client's contributions left out"


def build_mechanism(settings: PrivacySettings, num_clients: int) -> GaussianMechanism | None:
    """Return the mechanism that makes the models private; None without privacy.

    Parameters
    ----------
    settings : PrivacySettings
    num_clients : int
        N. The noise of the clipped count has a standard deviation of N / 20 by default.

    Raises
    ------
    SettingsError
        If a parameter of the mechanism is not allowed.
    """
    try:
        return _build_mechanism(settings, num_clients)
    except ParameterError as error:
        raise SettingsError(format_parameter_error(error, f"privacy.{error.parameter}")) from None


def _build_mechanism(settings: PrivacySettings, num_clients: int) -> GaussianMechanism | None:
    clients_clip = settings.name in CLIENT_MODES
    if isinstance(settings, FixedClippingSettings):
        return GaussianMechanism(
            settings.noise_multiplier, settings.clipping_norm, clients_clip=clients_clip
        )
    if isinstance(settings, AdaptiveClippingSettings):
        default = num_clients / 20 if settings.noise_multiplier > 0 else 0.0
        adaptive_norm = AdaptiveClippingNorm(
            settings.target_quantile,
            settings.clip_norm_lr,
            default if settings.clipped_count_stddev is None else settings.clipped_count_stddev,
        )
        return GaussianMechanism(
            settings.noise_multiplier, settings.initial_clipping_norm, adaptive_norm, clients_clip
        )
    return None


@dataclass(frozen=True)
class PrivacySpent:
    """The privacy cost of a run's releases.

    Parameters
    ----------
    mechanism : str
        The option of ``privacy``.
    noise_multiplier : float
        z, of each release.
    delta : float
        The delta for which ``epsilon`` is computed.
    releases : int
        Number of releases, including those repeated after an interruption.
    """

    mechanism: str
    noise_multiplier: float
    delta: float
    releases: int = 0

    @property
    def epsilon(self) -> float:
        """The smallest epsilon for which the run is (epsilon, delta)-differentially private.

        T releases of a Gaussian mechanism with noise multiplier z equal one release with
        z / sqrt(T), whose epsilon is known exactly: Balle and Wang, "Improving the Gaussian
        Mechanism for Differential Privacy", ICML 2018.
        """
        from dp_accounting.gaussian_mechanism import get_epsilon_gaussian

        if self.releases == 0:
            return 0.0
        composed = self.noise_multiplier / math.sqrt(self.releases)
        return float(get_epsilon_gaussian(composed, self.delta))

    def add_release(self) -> "PrivacySpent":
        """Return the cost after one more release."""
        return replace(self, releases=self.releases + 1)

    def to_dict(self) -> dict[str, Any]:
        """Return the manifest's entry, with an infinite epsilon as the string ``inf``."""
        epsilon = self.epsilon
        return {
            **asdict(self),
            "epsilon": epsilon if math.isfinite(epsilon) else "inf",
            "neighbors": NEIGHBOR_RELATION,
            "sampling_rate": 1.0,  # for the accountant: no amplification by sampling
            "accountant": _get_accountant(),
        }


@cache
def _get_accountant() -> str:
    return f"{ACCOUNTANT_PACKAGE} {version(ACCOUNTANT_PACKAGE)}"


def compute_privacy_spent(
    settings: PrivacySettings, num_clients: int, manifest: Mapping[str, Any], *, rounds: int
) -> PrivacySpent | None:
    """Return a run's privacy cost when it starts or resumes; None if it is not private.

    Parameters
    ----------
    settings : PrivacySettings
    num_clients : int
        N. By default delta is min(1e-5, N ** -1.1).
    manifest : mapping
        The manifest of the resumed run; empty for a new run.
    rounds : int
        Number of rounds in the checkpoint that the run resumes from.

    Raises
    ------
    RunError
        If the run has released models and its manifest does not say how many.
    """
    if not isinstance(settings, ClippingSettings):
        return None
    entry = manifest.get("privacy", {})
    releases: Any = entry.get("releases") if isinstance(entry, Mapping) else entry
    if rounds == 0 and entry == {}:
        releases = 0
    if not Interval(low=rounds, integer=True).contains(releases):
        raise RunError(
            f"resume must be a run whose manifest counts its private releases, at least {rounds} "
            f"after round {rounds}, got {sanitize(releases)}"
        )
    delta = settings.delta
    if delta is None:
        delta = min(MAX_DELTA, num_clients**-1.1)
    return PrivacySpent(settings.name, settings.noise_multiplier, delta, releases)


class PrivacyLedger(RunCallback):
    """Counts a run's private models in its manifest, each before it is sent to a client.

    Parameters
    ----------
    records : RunWriter
    spent : PrivacySpent
        The privacy cost so far.
    """

    def __init__(self, records: RunWriter, spent: PrivacySpent) -> None:
        self._records = records
        self._spent = spent
        self._write()

    @property
    def facts(self) -> dict[str, Any]:
        """The manifest's entry."""
        return self._spent.to_dict()

    def release_model(self) -> None:
        """Count one more released model."""
        self._spent = self._spent.add_release()
        self._write()

    def _write(self) -> None:
        self._records.set_entry(PRIVACY_ENTRY, self.facts)


def check_private_model(settings: PrivacySettings, model: NamedArrays) -> None:
    """Check that a private run's initial model can be noised and that the accountant is installed.

    Raises
    ------
    SettingsError
        If the model cannot be private, or dp-accounting is missing.
    """
    if settings.name == "none":
        return
    try:
        check_model(model)
    except ParameterError as error:
        raise SettingsError(f"privacy must be none ({error.reason}), got {settings.name}") from None
    if find_spec(ACCOUNTANT_PACKAGE.replace("-", "_")) is None:
        raise SettingsError(
            f"privacy must be none where {ACCOUNTANT_PACKAGE} is not installed, which computes "
            f"epsilon (pip install {ACCOUNTANT_PACKAGE}), got {settings.name}"
        )
