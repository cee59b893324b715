"""Write the tables of the documents from the declarations: ``python -m docs.tables``.

A table stands between ``<!-- table: NAME -->`` and ``<!-- end of table -->``, and is never edited:
a rule's row comes from its ``RuleDescription``, a list of names from the code. CI writes them anew
and compares.
"""

import argparse
import inspect
import re
import sys
import textwrap
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

import fedquorum
from fedquorum.audit import command_line as audit_command
from fedquorum.composition import RuleSet
from fedquorum.contrib.maxfl import build_appeal_hooks
from fedquorum.description import RuleDescription
from fedquorum.errors import FedQuorumError, ParameterError
from fedquorum.flower.codec import PROTOCOL_VERSION
from fedquorum.flower.strategies import DropInStrategy
from fedquorum.named import (
    ALL_SELECTIONS,
    ALL_WEIGHTINGS,
    NAMED_STRATEGIES,
    StrategyEntry,
    build_rules,
)
from fedquorum.participation import FedAUCorrection
from fedquorum.records.reader import FORMAT_VERSION
from fedquorum.rule import Goal, RunContext
from fedquorum.state_arrays import to_arrays
from fedquorum.types import Population

import fedquorum_app
from client_app.numerics import NUMERICS_VERSION
from conf import Settings
from conf.compose import GROUPS, PARTS, options
from conf.schema.engine import EvaluationSettings, RobustnessSettings
from server_app.clients_table import command_line as data_command
from server_app.report import command_line as report_command
from server_app.study.settings import StudySettings

ROOT = Path(__file__).parent.parent
TABLE_PATTERN = re.compile(r"(<!-- table: ([\w ]+) -->\n)(.*?)(<!-- end of table -->)", re.DOTALL)


def format_table(
    head: Iterable[str], rows: Iterable[Iterable[str]], *, num_right_aligned: int = 0
) -> str:
    """Return a table in Markdown, the last ``num_right_aligned`` columns aligned to the right."""
    names = [*head]
    rule = ["---"] * (len(names) - num_right_aligned) + ["---:"] * num_right_aligned
    escaped = [[re.sub(r"(?<!\\)\|", r"\\|", cell) for cell in row] for row in rows]
    lines = (" | ".join(cells).strip() for cells in [names, rule, *escaped])
    return "".join(f"| {line} |\n".replace("|  |", "| |").replace("|  |", "| |") for line in lines)


def format_code(names: Iterable[str]) -> str:
    """Return names as code, with commas between them."""
    return ", ".join(f"`{name}`" for name in names)


def wrap_paragraph(text: str, indent: str = "") -> str:
    """Return a paragraph in lines of at most 120 characters."""
    return textwrap.fill(text, 120, subsequent_indent=indent, break_on_hyphens=False) + "\n"


def merge_rows(rows: Iterable[tuple[str, tuple[str, ...]]]) -> Iterable[list[str]]:
    """Yield one row for all names that have the same cells, where the first of them stands."""
    names: dict[tuple[str, ...], list[str]] = {}
    for name, cells in rows:
        names.setdefault(cells, []).append(name)
    return ([format_code(same), *cells] for cells, same in names.items())


# --- strategies ----------------------------------------------------------------------------------


def describe_strategy(strategy: StrategyEntry) -> RuleDescription:
    """Return what the documents say of a strategy: its own words, or else those of its rules."""
    selection = strategy.selection.description
    counting = (strategy.participation or strategy.weighting).description
    own_words = strategy.description

    def first(field: str, *descriptions: RuleDescription) -> str:
        return next(filter(None, (getattr(one, field) for one in descriptions)), "")

    def both(field: str) -> str:
        return "; ".join(filter(None, (getattr(one, field) for one in (selection, counting))))

    everybody = (
        "all clients" if strategy.weighting.requires_full_participation else selection.clients
    )
    return RuleDescription(
        clients=own_words.clients or everybody,
        **{name: first(name, own_words, selection, counting) for name in ("source", "secure_sum")},
        **{
            name: first(name, own_words, counting)
            for name in ("use", "weight", "state", "update_bound", "bound_needs")
        },
        **{name: getattr(own_words, name) or both(name) for name in ("trusts", "gain", "limit")},
    )


BASELINE_USES: Mapping[Goal, str] = MappingProxyType(
    dict.fromkeys(Goal, "you need a baseline")
    | {Goal.FAIRNESS: "you compare AAggFF with other fair rules"}
)
"""When to use a strategy that says nothing of it itself."""


def build_strategy_table() -> str:
    """Return which clients take part in each strategy, and how much an update counts."""
    rows = [
        [f"`{key}`", told.clients, told.weight, told.source]
        for key, told in (
            (key, describe_strategy(named)) for key, named in NAMED_STRATEGIES.items()
        )
    ]
    rows += [
        [
            "`composed`",
            "a selection of your choice",
            (
                "a weighting, with or without a correction for absence; any `server_optimizer=` "
                "([docs/composition.md](composition.md))"
            ),
            "",
        ],
        [
            "`custom`",
            "all clients or a sample",
            "your weighting, by its import path or file ([docs/own-rule.md](own-rule.md))",
            "",
        ],
    ]
    return format_table(
        ("`strategy=`", "clients that take part", "how much an update counts", "source"), rows
    )


def build_use_table() -> str:
    """Return when to use each strategy, with its class in the library if it has one."""
    classes = {
        cls.entry.key: f"`{name}`"
        for name, cls in ((name, getattr(fedquorum, name)) for name in fedquorum.__all__)
        if inspect.isclass(cls) and issubclass(cls, DropInStrategy)
    }
    keys: dict[str, list[str]] = {}
    for key, named in NAMED_STRATEGIES.items():
        keys.setdefault(describe_strategy(named).use or BASELINE_USES[named.goal], []).append(key)
    order = [*Goal]
    rows = [
        [format_code(same), ", ".join(classes[key] for key in same if key in classes), use]
        for use, same in sorted(
            keys.items(), key=lambda row: order.index(NAMED_STRATEGIES[row[1][0]].goal)
        )
    ]
    rows.append(["`composed`, `custom`", "", "you combine parts, or bring a rule of your own"])
    return format_table(("`strategy=`", "class", "use it when"), rows)


def build_trust_table() -> str:
    """Return what the server believes with each strategy, and what a lie gains."""
    told = ((key, describe_strategy(named)) for key, named in NAMED_STRATEGIES.items())
    rows = [*merge_rows((key, (one.trusts, one.gain or "nothing", one.limit)) for key, one in told)]
    rows += [
        [
            "`composed`",
            (
                "what its parts believe: "
                f"`power_of_choice` {ALL_SELECTIONS['power_of_choice'].description.trusts}, the others as "
                "the strategies that have them"
            ),
            (
                f"the gains of its parts; `power_of_choice`: "
                f"{ALL_SELECTIONS['power_of_choice'].description.gain}"
            ),
            "the bounds of its parts",
        ],
        [
            "`custom`",
            "the answers that your rule reads",
            "depends on your rule",
            "the checks of replies; document the rest with the rule",
        ],
    ]
    return format_table(("strategy", "the server believes", "gain from a lie", "bound"), rows)


def build_default_rules(key: str, population: Population) -> RuleSet:
    """Return a strategy's rules with all defaults, in a run that knows all that a rule may need."""
    clients = population.clients
    facts = RunContext(
        num_rounds=10,
        clients=clients,
        rates=dict.fromkeys(clients, 0.5),
        hooks=build_appeal_hooks(dict.fromkeys(clients, 1.0)),
    )
    return build_rules({"name": key}, {"name": "sgd"}, facts)


def build_update_bound_table() -> str:
    """Return the most that an update counts with each strategy, or why that has no bound."""

    def bound(key: str, named: StrategyEntry) -> tuple[str, str]:
        told, reason = (
            describe_strategy(named),
            build_default_rules(key, Population.from_size(2, [0])).dp_unsupported_reason,
        )
        # A memory or a gate takes away the bound that the weighting has.
        bounded = told.update_bound and (told.bound_needs or not reason)
        return (told.update_bound, told.bound_needs) if bounded else ("none", reason)

    rows = [*merge_rows((key, bound(key, named)) for key, named in NAMED_STRATEGIES.items())]
    rows += [
        [
            "`composed`",
            "that of its weighting and participation part",
            (
                "with selection `everyone`, `server_optimizer=sgd` and parts that have a bound, such "
                "as `average_all` with `fedau`; otherwise none"
            ),
        ],
        [
            "`custom`",
            "server_lr x `compute_max_share` of the rule",
            (
                "only if the rule declares that bound and needs neither losses nor amounts of data; "
                "by default none"
            ),
        ],
    ]
    return format_table(("strategy", "c", ""), rows)


def build_secure_sum_table() -> str:
    """Return what would remain of each strategy if the server saw sums alone."""
    rows = [
        *merge_rows(
            (key, (describe_strategy(named).secure_sum,)) for key, named in NAMED_STRATEGIES.items()
        )
    ]
    rows += [
        ["`composed`", "as its most demanding part allows, by the rows above"],
        ["`custom`", "possible if the weights depend on neither losses nor updates"],
    ]
    return format_table(("strategy", "under secure aggregation"), rows)


def compute_state_bytes(key: str, clients: int) -> int:
    """Return the bytes of a rule's state for so many clients."""
    population = Population.from_size(clients, [0])
    state = build_default_rules(key, population).weighting.init(population)
    return sum(array.nbytes for array in to_arrays(state, "state").values())


def build_state_table() -> str:
    """Return the bytes of a client that each strategy keeps between rounds."""

    def kept(key: str, named: StrategyEntry) -> str:
        return (
            describe_strategy(named).state
            or f"{(compute_state_bytes(key, 64) - compute_state_bytes(key, 32)) // 32}"
        )

    rows = [*merge_rows((key, (kept(key, named),)) for key, named in NAMED_STRATEGIES.items())]
    return format_table(("state of", "bytes a client"), rows, num_right_aligned=1)


# --- compositions --------------------------------------------------------------------------------


def build_denominator_table() -> str:
    """Return factor and divisor of each weighting, without and with a correction for absence."""
    rows = []
    for name, kind in ALL_WEIGHTINGS.items():
        weighting = kind()
        if not weighting.aggregates:
            continue
        over = "the fixed population"
        whom = over if weighting.has_fixed_denominator else "the clients admitted in the round"
        cells = [f"`{name}`", weighting.numerator, weighting.denominator.format(whom=whom)]
        try:
            corrected = FedAUCorrection.wrap(weighting, {}, RunContext())
            cells.append(corrected.denominator.format(whom=over))
        except ParameterError as error:
            cells.append(f"refused: {error.reason}")
        rows.append(cells)
    corrections = "fedau, empirical, known_statistics"
    head = (
        "weighting",
        "factor",
        "divisor, participation=none",
        f"divisor, participation={corrections}",
    )
    return format_table(head, rows)


def build_fixed_population_table() -> str:
    """Return the clients that a fixed divisor sums over, by the selection."""
    kinds = ((name, kind) for name, kind in ALL_SELECTIONS.items() if not kind.trains_local_models)
    rows = [[f"`{name}`", kind.population_text] for name, kind in kinds]
    return format_table(("selection", "fixed population"), rows)


# --- what is public ------------------------------------------------------------------------------

PUBLIC_MODULES = (
    *("", "selection", "weighting", "participation", "server_optimizer", "rule", "parameters"),
    *(
        "search",
        "types",
        "hooks",
        "contrib",
        "rng",
        "errors",
        "client.availability",
        "records.reader",
    ),
)


def build_library_table() -> str:
    """Return the public names of the library's modules."""

    def names(module: str) -> list[str]:
        found = import_module(module)
        if hasattr(found, "__all__"):
            return sorted(found.__all__)
        classes = (one for one in vars(found).values() if inspect.isclass(one))
        return sorted(one.__name__ for one in classes if issubclass(one, FedQuorumError))

    modules = [f"fedquorum.{name}".removesuffix(".") for name in PUBLIC_MODULES]
    return format_table(
        ("module", "public names"), [[f"`{one}`", format_code(names(one))] for one in modules]
    )


def format_keywords() -> str:
    """Return the keywords that all drop-in strategies have, in their order."""
    classes = (getattr(fedquorum, name) for name in fedquorum.__all__)
    signatures = [
        [*inspect.signature(one).parameters]
        for one in classes
        if inspect.isclass(one) and issubclass(one, DropInStrategy)
    ]
    shared = [name for name in signatures[0] if all(name in others for others in signatures)]
    return wrap_paragraph(format_code(shared))


FACTORY_ATTRIBUTES = {"read", "trusted"}


def build_python_table() -> str:
    """Return the functions and classes of ``fedquorum_app``, and what is public of each."""
    rows = []
    for name in fedquorum_app.__all__:
        thing: Any = getattr(fedquorum_app, name)
        if name == "InProcessGrid":
            rows.append(
                [
                    f"`{name}`",
                    "Flower's `Grid`, made from a ClientApp, its run config and a number of nodes",
                ]
            )
            continue
        shown = [*inspect.signature(thing).parameters]
        if inspect.isclass(thing) and not issubclass(thing, Exception):
            public = {one for one in (*vars(thing), *shown) if not one.startswith("_")}
            shown = sorted(public - FACTORY_ATTRIBUTES)
        rows.append([f"`{name}`", format_code(shown)])
    return format_table(("name", "public"), rows)


PARSERS: Mapping[str, Callable[[], argparse.ArgumentParser]] = MappingProxyType(
    {
        "`fedquorum audit`; `fedquorum-audit`, of the library": audit_command._build_parser,
        "`fedquorum data`": data_command._build_parser,
        "`fedquorum report`": report_command._build_parser,
    }
)


def build_command_table() -> str:
    """Return the words of each command."""
    rows = [
        [
            "`fedquorum`",
            format_code(
                ("GROUP=OPTION", "KEY=VALUE", "-m", "--multirun", "-h", "--help", "--hydra-help")
            ),
        ],
    ]
    for name, parser in PARSERS.items():
        actions = [action for action in parser()._actions if action.dest != "help"]
        words = [str(action.metavar) for action in actions if not action.option_strings]
        flags = [flag for action in actions for flag in action.option_strings]
        rows.append([name, format_code([*words, *flags, "-h", "--help"])])
    asked = format_code([*(item.name for item in fields(StudySettings)), "output"])
    rows.append(["`fedquorum study`", f"the words of `fedquorum`, and {asked}; `-h`, `--help`"])
    return format_table(("command", "words"), rows)


def format_run_config_keys() -> str:
    """Return the keys that ``flwr run`` takes."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return wrap_paragraph(format_code(project["tool"]["flwr"]["app"]["config"]))


def build_option_table() -> str:
    """Return the options of each group of settings."""
    names = ("strategy", *PARTS, *(name for name in GROUPS if name != "strategy"))
    return format_table(
        ("group", "options"), [[f"`{name}`", format_code(options(name))] for name in names]
    )


def format_other_settings() -> str:
    """Return the settings beside the groups."""
    parts = {"evaluation": EvaluationSettings, "robustness": RobustnessSettings}
    lines = []
    for item in fields(Settings):
        if item.name in {*GROUPS, "client"}:
            continue
        below = parts.get(item.name)
        words = format_code(part.name for part in fields(below)) if below else ""
        lines.append(wrap_paragraph(f"- `{item.name}`" + (f": {words}" if words else ""), "  "))
    return "".join(lines)


def build_preset_table() -> str:
    """Return the presets, by their folder."""
    folders: dict[str, list[str]] = {}
    for name in options("experiment"):
        folder, _, last = name.rpartition("/")
        folders.setdefault(folder, []).append(last)
    rows = [
        [f"`experiment={folder}/NAME`", format_code(names)]
        for folder, names in folders.items()
        if folder
    ]
    rows += [[f"`experiment={name}`", "presets nothing"] for name in folders.get("", ())]
    return format_table(("preset", "`NAME`"), rows)


def build_version_table() -> str:
    """Return the numbers that say which versions understand each other."""
    rows = [
        [
            "the protocol of messages",
            str(PROTOCOL_VERSION),
            "`PROTOCOL_VERSION` in `fedquorum.flower.codec`",
            "an older node or server could misread a message",
        ],
        [
            "the arithmetic",
            str(NUMERICS_VERSION),
            "`NUMERICS_VERSION` in `client_app.numerics`, `arithmetic.version` in `manifest.json`",
            "the same settings give other bits",
        ],
        [
            "the format of the records",
            str(FORMAT_VERSION),
            "`FORMAT` in `fedquorum.records.reader`, `format` in `manifest.json`",
            "a reader must know which records it has",
        ],
    ]
    return format_table(("number", "now", "in the code", "raised if"), rows)


TABLE_BUILDERS: Mapping[str, Callable[[], str]] = MappingProxyType(
    {
        "uses": build_use_table,
        "methods": build_strategy_table,
        "trust": build_trust_table,
        "privacy": build_update_bound_table,
        "secure sums": build_secure_sum_table,
        "states": build_state_table,
        "divisors": build_denominator_table,
        "populations": build_fixed_population_table,
        "library": build_library_table,
        "keywords": format_keywords,
        "python": build_python_table,
        "commands": build_command_table,
        "run config": format_run_config_keys,
        "groups": build_option_table,
        "other settings": format_other_settings,
        "presets": build_preset_table,
        "numbers": build_version_table,
    }
)
"""Every table, by the name that its page gives it."""

PAGES = (
    "README.md",
    "SECURITY.md",
    *(f"docs/{page}.md" for page in ("composition", "methods", "running", "scale", "stability")),
)
"""The pages that have tables."""


def render_tables(text: str) -> str:
    """Return the text of a page with its tables written anew.

    Raises
    ------
    KeyError
        If there is no table of that name.
    """
    return TABLE_PATTERN.sub(
        lambda found: f"{found[1]}\n{TABLE_BUILDERS[found[2]]()}\n{found[4]}", text
    )


def update_pages() -> None:
    """Write the tables of all pages, and print the pages that change."""
    for page in PAGES:
        path = ROOT / page
        before = path.read_text()
        after = render_tables(before)
        if after != before:
            path.write_text(after)
            print(page)


if __name__ == "__main__":
    sys.exit(update_pages())
