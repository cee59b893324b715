"""Differential privacy of the models, by Flower's wrappers around a strategy.

What is protected are the models that leave the server, against whoever has them: that a client
took part with these data rather than others can hardly be told from them. The server itself sees
every update (it adds the noise), and what it writes down, losses, accuracies and amounts of data,
is not protected.

Of each client x_k - x is cut to an L2 norm of at most C, over the whole model, and Gaussian noise
of standard deviation noise_multiplier * C * c is added to every number of the new model, c being
the most that one update can count: server_lr / N for the average over all, server_lr * K / N for
FedAU with cutoff K, server_lr / (N min p_n) with known statistics. Flower's
``num_sampled_clients`` is for rules that weigh all alike; here it is N, and the noise multiplier
is scaled by c N. Rules for which there is no such c are refused; each says why (``unbounded``).

The noise is drawn from the operating system's entropy, never from the run's seed: that seed is
known to every client, and who could draw the noise again could take it away.

References
----------
McMahan et al., "Learning Differentially Private Recurrent Language Models", ICLR 2018 (fixed
clipping); Andrew et al., "Differentially Private Learning with Adaptive Clipping", NeurIPS 2021.
"""

import math
from collections.abc import Iterable
from copy import copy
from logging import WARNING

import numpy as np
from fedquorum import ComposedStrategy
from fedquorum.errors import ProtocolError, SettingsError
from fedquorum.flower.codec import (
    NORM_BIT,
    NamedArrays,
    Status,
    TrainAnswer,
    decode_arrays,
    decode_train_reply,
    encode_train_reply,
)
from fedquorum.flower.validation import update_problem
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    Strategy,
)
from flwr.serverapp.strategy.dp_adaptive_clipping import DifferentialPrivacyAdaptiveBase

from conf.schema.privacy import AdaptiveClippingSettings, FixedClippingSettings, PrivacySettings


def with_privacy(
    strategy: ComposedStrategy, settings: PrivacySettings, model: ArrayRecord
) -> Strategy:
    """Return what drives the strategy: itself, or a wrapper that makes its models private.

    Parameters
    ----------
    strategy : ComposedStrategy
        The strategy, whose reports are still its own.
    settings : PrivacySettings
        Which kind, and how much.
    model : ArrayRecord
        The first model.

    Raises
    ------
    SettingsError
        If the model or the noise cannot be private as the settings say.
    """
    if settings.name == "none":
        return strategy
    whole = [name for name, a in decode_arrays(model).items() if a.dtype.kind != "f"]
    if whole:
        raise SettingsError(
            f"privacy must be none for a model with whole numbers ({whole[0]}), which have no norm "
            f"to clip and no Gaussian noise, got {settings.name}"
        )
    return PrivateStrategy(strategy, settings)


class _Around(Strategy):
    """A strategy around another one, which does all that is not changed here."""

    def __init__(self, strategy: ComposedStrategy) -> None:
        self._strategy = strategy

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the strategy's messages."""
        return self._strategy.configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Let the strategy aggregate."""
        return self._strategy.aggregate_train(server_round, replies)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the strategy's messages."""
        return self._strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Let the strategy aggregate."""
        return self._strategy.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        """Log the parts of the strategy."""
        self._strategy.summary()


class PrivateStrategy(_Around):
    """Gives Flower's wrapper the updates that can be used, one message for each client.

    Flower's wrappers clip whatever comes, message by message: they take a node's several models
    for one update, stop the round for one reply with an error, and raise for shapes that are not
    the model's and for an update of zero. So what they get are usable updates only; the strategy
    gets these, clipped, beside all other replies as they came, and judges those itself. A round
    without a usable update has no noise: the model stays as it is.

    Parameters
    ----------
    strategy : ComposedStrategy
        The strategy.
    settings : PrivacySettings
        Not ``none``.
    """

    def __init__(self, strategy: ComposedStrategy, settings: PrivacySettings) -> None:
        super().__init__(strategy)
        self._merging = _Merging(strategy)
        self.wrapper = _wrapper(self._merging, settings, len(strategy.population.clients))
        self.wrapper.noise_multiplier *= (
            strategy.rules.largest_share(len(strategy.population.clients))
            * self.wrapper.num_sampled_clients
        )
        self._needs_bit = isinstance(self.wrapper, DifferentialPrivacyClientSideAdaptiveClipping)
        self._model: NamedArrays = {}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the strategy's messages, where clients clip with the norm to clip to."""
        self._model = decode_arrays(arrays)
        return self.wrapper.configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Clip, let the strategy aggregate, and add noise."""
        updates: list[Message] = []
        self._merging.others = []
        for reply in replies:
            self._divide(reply, updates, self._merging.others)
        if not updates:
            return self._merging.aggregate_train(server_round, [])
        return self.wrapper.aggregate_train(server_round, updates)

    def summary(self) -> None:
        """Log the wrapper's settings and the parts of the strategy."""
        self.wrapper.summary()

    def _divide(self, reply: Message, updates: list[Message], others: list[Message]) -> None:
        """Append a usable update of each client to ``updates``, and the rest to ``others``."""
        try:
            parts = [] if reply.has_error() else decode_train_reply(reply.content)
        except ProtocolError:
            parts = []
        if any(part.client is None for part in parts):
            log(WARNING, "Ignored: a reply that does not say whose it is, which privacy needs")
            return
        if not parts:
            others.append(reply)
        rest = []
        for part in parts:
            if part.arrays is None or update_problem(part, self._model) is not None:
                rest.append(part)
            elif all(np.array_equal(a, self._model[name]) for name, a in part.arrays.items()):
                rest.append(part)  # nothing to clip: Flower would divide by its norm
            elif self._needs_bit and (part.norm_bit is None or math.isnan(part.norm_bit)):
                reason = f"{NORM_BIT} is missing: its update may not be clipped"
                rest.append(TrainAnswer(part.client, Status.FAILED, reason=reason))
            else:
                updates.append(_with_parts(reply, [part]))
        if rest:
            others.append(_with_parts(reply, rest))


class _Merging(_Around):
    """Between wrapper and strategy: puts the clipped updates beside the replies they came with."""

    def __init__(self, strategy: ComposedStrategy) -> None:
        super().__init__(strategy)
        self.others: list[Message] = []

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        by_node: dict[int, list[Message]] = {}
        for reply in [*replies, *self.others]:
            by_node.setdefault(reply.metadata.src_node_id, []).append(reply)
        merged = [
            of_node[0] if len(of_node) == 1 else _merged(of_node) for of_node in by_node.values()
        ]
        return self._strategy.aggregate_train(server_round, merged)


def _with_parts(reply: Message, parts: list[TrainAnswer]) -> Message:
    """Return the reply with these clients' parts alone."""
    shortened = copy(reply)
    shortened.content = encode_train_reply(parts)
    return shortened


def _merged(replies: list[Message]) -> Message:
    return _with_parts(
        replies[0], [p for reply in replies for p in decode_train_reply(reply.content)]
    )


class _AndrewEtAl(DifferentialPrivacyAdaptiveBase):
    """Moves the clipping norm as Andrew et al. do, which Flower 1.41 does not.

    Flower counts the updates that were cut and shrinks the norm where they are many, so it runs
    away from the quantile; and it moves the norm before it adds the noise, which then is too
    little where the norm shrank. Here the share is of those NOT cut, and the noise is of the norm
    that the updates were cut to.
    """

    _share_below = math.nan

    def _geometric_update(self, clipped_fraction: float) -> None:
        self._share_below = 1.0 - clipped_fraction

    def _add_noise_to_aggregated_arrays(self, aggregated: ArrayRecord) -> ArrayRecord:
        noisy = super()._add_noise_to_aggregated_arrays(aggregated)
        super()._geometric_update(self._share_below)
        return noisy


class ServerSideAdaptiveClipping(_AndrewEtAl, DifferentialPrivacyServerSideAdaptiveClipping):
    """Flower's wrapper, with the clipping norm of Andrew et al."""


class ClientSideAdaptiveClipping(_AndrewEtAl, DifferentialPrivacyClientSideAdaptiveClipping):
    """Flower's wrapper, with the clipping norm of Andrew et al."""


Wrapper = (
    DifferentialPrivacyServerSideFixedClipping
    | DifferentialPrivacyClientSideFixedClipping
    | ServerSideAdaptiveClipping
    | ClientSideAdaptiveClipping
)


def _wrapper(strategy: Strategy, settings: PrivacySettings, num_clients: int) -> Wrapper:
    """Return Flower's wrapper of the settings, for rules that weigh 1 / num_clients."""
    at_server = settings.name.endswith("server")
    if isinstance(settings, FixedClippingSettings):
        fixed = (
            DifferentialPrivacyServerSideFixedClipping
            if at_server
            else DifferentialPrivacyClientSideFixedClipping
        )
        return fixed(strategy, settings.noise_multiplier, settings.clipping_norm, num_clients)
    if not isinstance(settings, AdaptiveClippingSettings):
        raise TypeError(f"no wrapper for {type(settings).__name__}")
    stddev = settings.clipped_count_stddev or num_clients / 20
    if settings.noise_multiplier >= 2 * stddev:
        raise SettingsError(
            f"privacy.noise_multiplier must be less than {2 * stddev:g}, twice "
            "privacy.clipped_count_stddev, for the count of updates to be as private as the "
            f"model, got {settings.noise_multiplier:g}"
        )
    adaptive = ServerSideAdaptiveClipping if at_server else ClientSideAdaptiveClipping
    return adaptive(
        strategy,
        settings.noise_multiplier,
        num_clients,
        settings.initial_clipping_norm,
        settings.target_quantile,
        settings.clip_norm_lr,
        settings.clipped_count_stddev,
    )
