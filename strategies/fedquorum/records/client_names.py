"""Show clients by their names, and find the clients that a user names.

The records have the names once, in ``population.parquet``; their other files have ids.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Integral

from ..errors import ParameterError, suggest_name
from ..sanitize import abbreviate, sanitize

MAX_NAMED_CLIENTS = 1000
"""With more clients, a run has only their ids."""

MAX_CLIENT_NAME_LENGTH = 100
MAX_LABEL_LENGTH = 24
"""The longest name in a chart, in characters."""

_WHOLE_NUMBER = re.compile(r"[+-]?\d+", re.ASCII)
_QUOTED = re.compile(r"""(["'])(.*)\1""", re.DOTALL)


def can_record_names(num_clients: int, *, recorded: bool) -> bool:
    """Say whether records name this number of clients; ``recorded`` is ``data.names``."""
    return recorded and num_clients <= MAX_NAMED_CLIENTS


@dataclass(frozen=True)
class ClientNames:
    """The names of clients. They come from others: each is one line of printable characters.

    Parameters
    ----------
    names : mapping of int to str
        By client id; clients without a name are missing.
    """

    names: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def clean(cls, names: Mapping[int, str]) -> "ClientNames":
        """Return names as ``clean_name`` returns each; a name without a sign is none."""
        clean = ((client, clean_name(name)) for client, name in names.items())
        return cls({client: name for client, name in clean if name})

    @classmethod
    def from_list(cls, names: Sequence[str] | None, *, recorded: bool = True) -> "ClientNames":
        """Return the names of the clients 0, 1, ...; none for None.

        Parameters
        ----------
        names : sequence of str, optional
        recorded : bool
            ``data.names``. If it is false, or there are more than 1,000 clients, there are no
            names.
        """
        if names is None or not can_record_names(len(names), recorded=recorded):
            return cls()
        return cls.clean(dict(enumerate(names)))

    @cached_property
    def _ids(self) -> Mapping[str, list[int]]:
        """The clients of each name: several devices may have the same."""
        ids: dict[str, list[int]] = {}
        for client, name in self.names.items():
            ids.setdefault(name, []).append(client)
        return ids

    def format(self, client: int) -> str:
        """Return a client's name, and its id without a name or where the name could be another's.

        A name that looks like an id, or that several clients have, is followed by the id.
        """
        name = self.names.get(client, str(client))
        if name == str(client):
            return name
        is_clear = len(self._ids[name]) == 1 and not _WHOLE_NUMBER.fullmatch(name)
        return name if is_clear else f"{name} (id {client})"

    def format_label(self, client: int) -> str:
        """Return ``format``, with a long name cut for a chart and followed by the id."""
        text = self.format(client)
        if len(text) <= MAX_LABEL_LENGTH:
            return text
        return f"{sanitize(self.names[client], MAX_LABEL_LENGTH)} (id {client})"

    def find(self, given: object, num_clients: int, setting: str, form: str = "{}") -> int:
        """Return the client that a user gives: a number is an id, a text is a name.

        Parameters
        ----------
        given : object
        num_clients : int
            The ids are below it.
        setting : str
            The name of what is set, for messages.
        form : str
            How the user types it in a shell, with {} for an id or a quoted name; an option is
            before a blank.

        Raises
        ------
        ParameterError
            If there is no such client, or the value can mean two clients.
        """
        if isinstance(given, str):
            return self._find_name(given, num_clients, setting, form)
        if isinstance(given, Integral) and not isinstance(given, bool):
            given = int(given)  # a number of NumPy's, as a frame's column has it
        is_id = isinstance(given, int) and not isinstance(given, bool)
        if isinstance(given, int) and is_id and 0 <= given < num_clients:
            others = [client for client in self._ids.get(str(given), []) if client != given]
            if others and given in self.names:
                raise ParameterError(
                    setting,
                    "one client",
                    given,
                    f'{given} is the id of "{self.names[given]}" and the name of the client with '
                    f"id {others[0]}: type {_quote(form, self.names[given])} or "
                    f"{_quote(form, str(given))}",
                )
            return given
        reason = ""
        if str(given) in self._ids:
            reason = f"a name that is a number needs quotes: type {_quote(form, str(given))}"
        elif not is_id:
            reason = "a name that YAML reads as another value, such as true or 1E1, needs quotes"
        raise ParameterError(setting, _describe_clients(num_clients), given, reason)

    def _find_name(self, given: str, num_clients: int, setting: str, form: str) -> int:
        found = self._ids.get(clean_name(given), [])
        if len(found) == 1:
            return found[0]
        if found:
            reason = f"the clients with ids {abbreviate(found)} have this name: type an id"
        elif given.isdigit() and int(given) < num_clients:
            reason = f"no client has this name; its id has no quotes: {form.format(given)}"
        elif not self.names:
            reason = "the names of the clients are not known"
        else:
            names = [*self._ids]
            reason = suggest_name(given, names) or f"the names are {abbreviate(names, 5)}"
        raise ParameterError(setting, _describe_clients(num_clients), given, reason)


NO_NAMES = ClientNames()


def clean_name(name: str) -> str:
    """Return a name on one line, with printable characters, at most 100 and three dots."""
    return sanitize(name, MAX_CLIENT_NAME_LENGTH)


def parse_client(text: str) -> int | str:
    r"""Return what a user types for a client: an id if it is a number, else a name.

    Quotes around a name are removed, so ``"7"`` is the client called 7, and ``\"`` in it is ``"``.
    """
    if _WHOLE_NUMBER.fullmatch(text):
        return int(text)
    quoted = _QUOTED.fullmatch(text)
    return quoted[2].replace('\\"', '"') if quoted else text


def _describe_clients(num_clients: int) -> str:
    return f"an id from 0 to {num_clients - 1} or the name of a client"


def _quote(form: str, name: str) -> str:
    """Return what to type for a name: in quotes, and its word in quotes for the shell."""
    escaped = name.replace('"', '\\"')
    option, space, word = form.rpartition(" ")
    return option + space + shlex.quote(word.format(f'"{escaped}"'))
