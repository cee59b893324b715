"""Show each client's status in the last round that selected it."""

from typing import Any

import pandas as pd

from ..records.reader import (
    POPULATION_FILE,
    Run,
    read_client_names,
    read_dataset,
    read_population,
)
from ..rules.decisions import STATUSES, LateReply
from ..sanitize import sanitize
from ..server.under_way import UNDER_WAY_REASON
from .tables import TextTable

NOT_SELECTED = "not selected yet"
MAX_CLIENTS_SHOWN = 500
HEADINGS = (
    *("client", "priority", "status", "in round", "reason", "reply took", "last trained"),
    *("late in rounds", "last late reply", "node", "node key"),
)
_DISPLAY_ORDER = (
    *("failed", "rejected", "late", "busy", "unavailable"),
    *(NOT_SELECTED, "declined", "trained"),
)
"""Statuses by priority, for the clients to show if there are too many."""


class ClientStatusTable:
    """The clients of a run, ascending by id.

    Parameters
    ----------
    run : Run

    Attributes
    ----------
    table : DataFrame
        ``priority``, the last ``status``, its ``round``, ``reason`` and ``reply_seconds``, the last
        round ``trained`` and the number of ``late`` rounds; the index is the client id.

    Raises
    ------
    RunError
        If a table of the run is damaged.
    """

    def __init__(self, run: Run) -> None:
        rows = _read_rows(run)
        self._names = read_client_names(run.directory)
        self.table = rows.drop_duplicates("client", keep="last").set_index("client")
        by_client = {name: rows[rows["status"] == name].groupby("client") for name in STATUSES}
        self.table["trained"] = by_client["trained"]["round"].max()
        self.table["late"] = by_client["late"].size()
        self._hosts: dict[int, tuple[str, str]] = {}
        if (run.directory / POPULATION_FILE).is_file():
            self._add_population(read_population(run.directory).to_pandas())
        self.table = self.table.sort_index()
        self._has_others = not self.table["priority"].astype(bool).all()
        self._late = {reply.client: reply for one in run.rounds for reply in one.late_replies}

    def _add_population(self, population: Any) -> None:
        """Add clients that were never selected, except held-out ones, and all nodes."""
        hosts = population[population["node"].notna()] if "node" in population else population[:0]
        for host in hosts.itertuples():
            self._hosts[host.client] = (sanitize(host.node), sanitize(host.node_key or ""))
        if "held_out" in population:
            population = population[population["held_out"] != 1]
        population = population[~population["client"].isin(self.table.index)]
        new = population[["client", "priority"]].set_index("client").assign(status=NOT_SELECTED)
        self.table = pd.concat([frame for frame in (self.table, new) if len(frame)] or [new])
        self.table = self.table.reindex(columns=[*_COLUMNS[1:], "trained", "late"])

    def count(self, *statuses: str) -> int:
        """Count the clients with one of these statuses."""
        return int(self.table["status"].isin(statuses).sum())

    @property
    def num_connected(self) -> int:
        """The number of selected clients that were not unavailable the last time."""
        return len(self.table) - self.count("unavailable", NOT_SELECTED)

    def to_text_table(self, title: str) -> TextTable:
        """Format the clients as text; of many, only those with the most urgent statuses."""
        order = {status: rank for rank, status in enumerate(_DISPLAY_ORDER)}
        clients = self.table
        if len(clients) > MAX_CLIENTS_SHOWN:
            rank = clients["status"].map(order).fillna(-1)
            clients = clients.loc[rank.sort_values(kind="stable").index[:MAX_CLIENTS_SHOWN]]
        rows = [self._format_row(client, row) for client, row in clients.iterrows()]
        # hide columns that are empty in all rows
        shown = [i for i in range(len(HEADINGS)) if i == 0 or any(row[i] for row in rows)]
        return TextTable(
            f"{title}: {self._format_summary(len(rows))}",
            tuple(HEADINGS[i] for i in shown),
            tuple(tuple(row[i] for i in shown) for row in rows),
        )

    def _format_summary(self, num_shown: int) -> str:
        counts = (
            (self.count("unavailable"), "unavailable"),
            (self.count(NOT_SELECTED), NOT_SELECTED),
        )
        missing = "".join(f", {count:,} {status}" for count, status in counts if count)
        total = len(self.table)
        summary = f"{self.num_connected:,} of {total:,} clients connected{missing}"
        if num_shown < total:
            summary += f"; {num_shown} are shown, failed, rejected, late and busy ones first"
        return summary

    def _format_row(self, client: int, row: Any) -> tuple[str, ...]:
        reply = self._late.get(client)
        return (
            self._names.format(client),
            "yes" if row["priority"] and self._has_others else "",
            _format_status(row),
            _format_count(row["round"]) or "-",
            "" if pd.isna(row["reason"]) else sanitize(row["reason"]),
            "" if pd.isna(row["reply_seconds"]) else f"{row['reply_seconds']:.3g} s",
            _format_count(row["trained"]) or "-",
            _format_count(row["late"]),
            "" if reply is None else _format_lateness(reply),
            *self._hosts.get(client, ("", "")),
        )


_COLUMNS = ("client", "priority", "status", "round", "reason", "reply_seconds")


def _read_rows(run: Run) -> Any:
    """Return the rows of ``clients/``, in the order of the rounds."""
    if not (run.directory / "clients").is_dir():
        return pd.DataFrame(columns=[*_COLUMNS])
    rows = read_dataset(run.directory / "clients", _COLUMNS).to_pandas()
    return rows.reindex(columns=[*_COLUMNS])


def _format_status(row: Any) -> str:
    """Return a client's last status; where late updates count, since when it is under way."""
    if row["reason"] == UNDER_WAY_REASON:
        started = int(row["round"])
        return f"under way since round {started}, from model {started - 1}"
    return sanitize(row["status"])


def _format_count(number: float) -> str:
    return "" if pd.isna(number) else f"{int(number):,}"


def _format_lateness(reply: LateReply) -> str:
    return sanitize(f"to round {reply.round} after {reply.reply_seconds:.3g} s")
