"""Partition into shards of one class each."""

import warnings

import numpy as np
from fedquorum.errors import SettingsError
from fedquorum.rng import derive_seed, make_generator

from client_app.data.base import Labels
from client_app.data.partition.base import ClientSplit, Rows, group_rows_by_class


def partition_by_shards(
    train_labels: Labels,
    test_labels: Labels,
    *,
    num_clients: int,
    shards_per_client: int,
    shard_size: int,
    samples_per_shard: int | None = None,
    seed: int,
) -> list[ClientSplit]:
    """Give every client ``shards_per_client`` random shards of one class each.

    ``flwr_datasets.partitioner.ShardPartitioner`` assigns the shards. It cuts the data sorted by
    label into blocks; rows beyond a multiple of ``shard_size`` in a class are left out first, so
    that no block has two classes. Each shard gets an equal part of floor(test rows * rows in shards
    / rows) test rows of its class: a client's test split has the classes of its training split, in
    the same proportions up to one row a shard. A client retains the first ``samples_per_shard``
    training rows of each shard (None for all), and all of its test rows.

    Raises
    ------
    SettingsError
        If there are too few shards for the clients, or a shard would have no test row.
    """
    rng = make_generator(seed, "shards")
    train_rows = group_rows_by_class(train_labels, rng)
    test_rows = group_rows_by_class(test_labels, rng)
    usable = {c: rows[: len(rows) // shard_size * shard_size] for c, rows in train_rows.items()}
    available = sum(len(rows) for rows in usable.values()) // shard_size
    needed = num_clients * shards_per_client
    if needed > available:
        raise SettingsError(
            f"data.num_clients * data.shards_per_client must be at most {available}, the number "
            f"of single-class shards of data.shard_size {shard_size} in the data, got "
            f"{num_clients} * {shards_per_client} = {needed}"
        )
    test_parts: dict[int, list[Rows]] = {}
    for c, rows in usable.items():
        shards, class_test_rows = (
            len(rows) // shard_size,
            test_rows.get(c, np.empty(0, dtype=np.int64)),
        )
        fair_share = len(class_test_rows) * len(rows) // len(train_rows[c])
        if fair_share < shards:
            raise SettingsError(
                f"data.shard_size must leave each of the {shards} shards of class {c} at least one "
                f"of its {fair_share} test rows, got {shard_size}"
            )
        if shards:
            test_parts[c] = np.array_split(class_test_rows[:fair_share], shards)
    order = np.concatenate([usable[c] for c in sorted(usable)])
    shard_of_row = np.concatenate([np.arange(len(usable[c])) // shard_size for c in sorted(usable)])
    # Imported on demand: these take seconds to load.
    from datasets import Dataset
    from flwr_datasets.partitioner import ShardPartitioner

    partitioner = ShardPartitioner(
        num_partitions=num_clients,
        partition_by="label",
        num_shards_per_partition=shards_per_client,
        shard_size=shard_size,
        shuffle=False,
        seed=derive_seed(seed, "shard-partitioner"),
    )
    partitioner.dataset = Dataset.from_dict(
        {"label": train_labels[order], "row": order, "shard": shard_of_row}
    )
    with warnings.catch_warnings():
        # datasets 4 sorts with an argument that pyarrow 25 deprecates; the user cannot change that.
        warnings.filterwarnings(
            "ignore", message="Specifying null_placement", category=FutureWarning
        )
        client_tables = [
            partitioner.load_partition(client).to_dict() for client in range(num_clients)
        ]
    return [
        _build_client_split(table, test_parts, shard_size, samples_per_shard)
        for table in client_tables
    ]


def _build_client_split(
    table: dict[str, list[int]],
    test_parts: dict[int, list[Rows]],
    shard_size: int,
    samples_per_shard: int | None,
) -> ClientSplit:
    shards = sorted(set(zip(table["label"], table["shard"], strict=True)))
    test = np.concatenate([test_parts[c][shard] for c, shard in shards])
    # (shards_per_client, shard_size): the rows of a shard are consecutive
    train = np.array(table["row"], dtype=np.int64).reshape(-1, shard_size)
    return ClientSplit(train[:, :samples_per_shard].reshape(-1), test)
