"""Scale targets and inputs by statistics that all clients agree on.

They are exact sums over the training rows of all clients that train, so neither the order nor the
grouping of the clients changes a bit: one process, and devices that send the sums of their rows,
get the same scales. They are fixed at the start of a run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from fedquorum.records.data_facts import format_quantity
from fedquorum.sanitize import abbreviate

from client_app.data.base import Targets
from client_app.data.moments import Moments, add_moments
from client_app.data.scaling import AgreedScales, NumberScale
from client_app.data.sources.base import LabeledArrays
from client_app.data.split import Rows
from conf.schema.data import DataSettings, agrees_on_numbers, agrees_on_target

ClientMoments = Mapping[str, Moments]
"""The moments of a client's ``target`` and ``numbers``, of those that all clients agree on."""

FAR_DEVIATIONS = 4.0
"""A client whose mean is this many deviations away from the others' probably has other units."""

MIN_COMPARED_CLIENTS = 2
MAX_COMPARED_CLIENTS = 1000
MAX_SENTENCES = 5


def measure_moments(arrays: LabeledArrays, settings: DataSettings, rows: Rows) -> ClientMoments:
    """Return the moments of these training rows."""
    columns = {}
    if agrees_on_target(settings):
        columns["target"] = arrays.y_train[rows][:, None]
    if agrees_on_numbers(settings) and arrays.agreed is not None:
        columns["numbers"] = arrays.agreed.numbers[rows]
    return {name: Moments.measure(numbers) for name, numbers in columns.items()}


def build_scales(
    clients: Sequence[ClientMoments], settings: DataSettings, names: Sequence[str] = ()
) -> AgreedScales:
    """Return the scales of all clients; ``names`` are those of the columns of numbers."""
    keys = clients[0] if clients else {}
    scales = {
        key: NumberScale.from_moments(add_moments(moments[key] for moments in clients))
        for key in keys
    }
    fixed = getattr(settings, "target_scale", None)
    if fixed is not None:
        mean, deviation = np.array(fixed, dtype=np.float64).reshape(2, 1)
        scales["target"] = NumberScale(mean, mean, deviation)
    return AgreedScales(
        scales.get("target"), scales.get("numbers"), tuple(names) if "numbers" in scales else ()
    )


def apply_scales(arrays: LabeledArrays, scales: AgreedScales) -> LabeledArrays:
    """Return the arrays with these scales; targets that are numbers become float32."""
    if arrays.agreed is not None and scales.numbers is not None:
        arrays = arrays.agreed.build_scaled(scales.numbers)
    if arrays.y_train.dtype.kind != "f":
        return arrays
    y_train = _scale_targets(arrays.y_train, scales.target)
    is_shared = arrays.y_test is arrays.y_train
    y_test = y_train if is_shared else _scale_targets(arrays.y_test, scales.target)
    return replace(arrays, y_train=y_train, y_test=y_test)


def _scale_targets(y: Targets, scale: NumberScale | None) -> Targets:
    # float32 has 7 digits, which the mean alone may use up: it is subtracted before.
    scaled = y if scale is None else scale.apply(y[:, None].astype(np.float64))[:, 0]
    return scaled.astype(np.float32)


def describe_far_clients(
    names: Sequence[str], clients: Sequence[ClientMoments], scales: AgreedScales
) -> tuple[str, ...]:
    """Return a sentence for each column in which the mean of a client lies far from the others'.

    Far is more than ``FAR_DEVIATIONS`` times the median of the clients' own deviations, from the
    median of their means: a single client moves neither.

    Parameters
    ----------
    names : sequence of str
        The names of the clients.
    clients : sequence of ClientMoments
    scales : AgreedScales
    """
    sentences = []
    for key, columns in (("target", ("the target",)), ("numbers", scales.names)):
        if len(clients) < MIN_COMPARED_CLIENTS or key not in clients[0]:
            continue
        means = np.stack([moments[key].compute_means() for moments in clients])
        spreads = np.stack([moments[key].compute_deviations() for moments in clients])
        known = np.flatnonzero((~np.isnan(means)).sum(axis=0) >= MIN_COMPARED_CLIENTS)
        middle, spread = (np.nanmedian(one[:, known], axis=0) for one in (means, spreads))
        distance = np.abs(means[:, known] - middle)
        is_far = (distance > FAR_DEVIATIONS * spread) & (spread > 0)
        for i in np.flatnonzero(is_far.any(axis=0)):
            far = [
                f"{names[k]} ({format_quantity(means[k, known[i]])})"
                for k in np.flatnonzero(is_far[:, i]).tolist()
            ]
            sentences.append(
                f"the mean of {columns[int(known[i])]} is far from the others' "
                f"({format_quantity(middle[i])}) at {abbreviate(far)}: other units?"
            )
    more = len(sentences) - MAX_SENTENCES
    return (*sentences[:MAX_SENTENCES], *([f"so are {more} more columns"] if more > 0 else ()))
