"""Say in words how a run interpreted its data: the entry ``data`` of its manifest.

The entry may come from another machine. Whatever is not of the form that
``client_app.data.summary`` writes is left out, and texts are sanitized.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ..sanitize import sanitize

MAX_TEXT_LENGTH = 2_000
"""The longest text of one fact."""

MAX_LINE = 300
"""The longest line about data in a terminal."""

MAX_LINE_NAMES = 8
"""The maximum number of names in a line."""

MIN_WHOLE, MAX_WHOLE = 1e5, 1e15
"""The whole parts of numbers between these are shown with all digits."""

LARGE_CLASS = 0.8
"""From this share of the rows on, accuracy says little beyond the share."""


def list_data_facts(
    data: Mapping[str, Any], *, client_names: Sequence[str] = (), limit: int = MAX_LINE_NAMES
) -> list[tuple[str, str]]:
    """Return what is known about the data, as pairs of a name and a text.

    Parameters
    ----------
    data : mapping
        The manifest's entry ``data``.
    client_names : sequence of str
        The names of the clients, by id.
    limit : int
        The maximum number of names in a text.
    """
    facts = (
        ("Clients", _format_clients(data.get("clients"), client_names, limit)),
        ("Rows", _format_count(data.get("rows"))),
        ("Target", str(data.get("target") or "")),
        ("Inputs", str(data.get("inputs") or "")),
        *_list_further_facts(data, limit),
        ("Always guessing the largest class", _format_constant_accuracy(data)),
        *(("Warning", warning) for warning in _get_texts(data.get("warnings"))),
    )
    return [(name, sanitize(text, MAX_TEXT_LENGTH)) for name, text in facts if text]


def list_data_lines(name: str, data: Mapping[str, Any], client_names: Sequence[str]) -> list[str]:
    """Return the facts as lines for a terminal, each of a few names; ``name`` is the data set's."""
    rows = _format_count(data.get("rows"))
    clients = _format_clients(data.get("clients"), client_names, MAX_LINE_NAMES)
    first = f"Data {name}: {clients}{rows and f', {rows} rows'}; target {data.get('target')}"
    further = (pair for pair in _list_further_facts(data, MAX_LINE_NAMES) if pair[1])
    warnings = (f"Warning: {warning}" for warning in _get_texts(data.get("warnings")))
    lines = [
        f"{first}; inputs {data.get('inputs')}",
        *(f"{fact}: {text}" for fact, text in further),
        *warnings,
    ]
    return [sanitize(line, MAX_LINE) for line in lines]


def _list_further_facts(data: Mapping[str, Any], limit: int) -> Iterator[tuple[str, str]]:
    """Yield the facts that stand on lines of their own."""
    yield "Division", str(data.get("division") or "")
    yield "Classes", _join(data, "classes", limit, _format_share)
    dropped = _join(data, "dropped_clients", limit, lambda name, rows: f"{name} ({rows})")
    yield (
        "Left out by data.min_samples",
        dropped and f"{_count(data, 'dropped_clients')} with too few rows: {dropped}",
    )
    columns = _join(data, "dropped_columns", limit, lambda name, why: f"{name} ({why})")
    yield (
        "Columns left out",
        columns and f"{columns}. data.columns takes the columns that it names.",
    )
    yield "Missing, share of rows", _join(data, "missing", limit, _format_share, largest=True)
    yield (
        "Taken as missing by data.invalid_cells",
        _join(data, "invalid", limit, _format_cells, largest=True),
    )
    yield (
        "Rare categories taken as other",
        _join(data, "other_categories", limit, lambda name, count: f"{name} ({count})"),
    )
    yield "Scale of the target", _format_target_scale(data)
    yield (
        "Files passed over",
        _join(data, "files_passed_over", limit, lambda kind, files: f"{files} {kind}"),
    )


def _format_target_scale(data: Mapping[str, Any]) -> str:
    scales = data.get("scales")
    given: Any = scales.get("target") if isinstance(scales, Mapping) else None
    target = given if isinstance(given, Mapping) else {}
    found: list[Any] = [target.get(key) for key in ("mean", "deviation")] if target else []
    if not found or not all(map(_is_number, found)):
        return ""
    mean, deviation = map(float, found)
    return (
        f"mean {format_quantity(mean)}, standard deviation {format_quantity(deviation)}; the loss "
        "is in squared standard deviations, and metrics are in the target's own unit"
    )


def format_quantity(value: float) -> str:
    """Return a number with six digits, or with all digits of its whole part."""
    return f"{value:,.0f}" if MIN_WHOLE <= abs(value) < MAX_WHOLE else f"{value:,.6g}"


def _format_constant_accuracy(data: Mapping[str, Any]) -> str:
    accuracy = get_constant_accuracy(data, "all")
    return "" if math.isnan(accuracy) else f"{accuracy:.1%} test accuracy"


def get_constant_accuracy(data: Mapping[str, Any], group: str) -> float:
    """Return the test accuracy of always guessing the largest class, for a group of clients.

    NaN if it is unknown.
    """
    accuracies = data.get("constant_accuracy")
    given: Any = accuracies.get(group) if isinstance(accuracies, Mapping) else None
    return float(given) if _is_number(given) else math.nan


def suggest_metric(data: Mapping[str, Any], metric: str) -> str:
    """Return a sentence that names a better metric if one class has most rows, else ""."""
    classes = data.get("classes")
    if metric != "accuracy" or not isinstance(classes, Mapping) or not classes:
        return ""
    shares = {str(name): share for name, share in classes.items() if _is_number(share)}
    largest = max(shares, key=lambda name: shares[name], default="")
    if not shares or shares[largest] < LARGE_CLASS:
        return ""
    better = "auroc" if len(classes) == len(("one", "other")) else "f1"
    return sanitize(
        f"{shares[largest]:.1%} of the rows are of class {largest}, so always guessing it has "
        f"about this accuracy; evaluation.metric={better} shows what a model adds",
        MAX_LINE,
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _get_texts(value: Any) -> list[str]:
    return [str(text) for text in value] if isinstance(value, list | tuple) else []


def _format_count(value: Any) -> str:
    return f"{int(value):,}" if _is_number(value) else ""


def _format_clients(count: Any, names: Sequence[str], limit: int) -> str:
    if not _is_number(count):
        return ""
    listed = f" ({join_names(names, limit)})" if names else ""
    return f"{int(count):,} client{'' if count == 1 else 's'}{listed}"


def _count(data: Mapping[str, Any], key: str) -> str:
    return _format_clients(len(data[key]), (), 0)


def _format_cells(name: str, cells: Any) -> str:
    return f"{name} ({cells} cell{'' if cells == 1 else 's'})"


def _format_share(name: str, share: Any) -> str:
    return f"{name} {share:.1%}" if _is_number(share) else name


def _join(
    data: Mapping[str, Any],
    key: str,
    limit: int,
    format_one: Callable[[str, Any], str],
    *,
    largest: bool = False,
) -> str:
    """Join the pairs of a mapping, "" if there is none; with ``largest`` by descending numbers."""
    found = data.get(key)
    if not isinstance(found, Mapping):
        return ""
    pairs = list(found.items())
    if largest and all(_is_number(number) for _, number in pairs):
        pairs.sort(key=lambda pair: -pair[1])
    return join_names([format_one(str(name), value) for name, value in pairs], limit)


def join_names(names: Sequence[str], limit: int) -> str:
    """Join names with commas, at most ``limit`` of them, and say how many more there are."""
    more = f", and {len(names) - limit:,} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
