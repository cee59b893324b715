"""Select the records of a message by their kind."""

from typing import TypeVar

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

RecordT = TypeVar("RecordT", ArrayRecord, MetricRecord, ConfigRecord)


def select_records(content: RecordDict, kind: type[RecordT]) -> dict[str, RecordT]:
    """Return the records of one kind, by name, in their order.

    Flower's views, such as ``content.array_records``, form a reference cycle with the message,
    which would keep its arrays in memory until Python collects cycles.
    """
    return {name: record for name, record in content.items() if isinstance(record, kind)}
