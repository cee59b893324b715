"""Write the tables of the documents from the declarations: ``python -m docs.tables``.

A table stands between ``<!-- table: NAME -->`` and ``<!-- end of table -->``. Never edit one: a
rule's row comes from its ``RuleDescription``, a list of names from the code. CI writes the tables
again and compares.
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
from fedquorum.audit import cli as audit_command
from fedquorum.contrib.maxfl import build_appeal_hooks
from fedquorum.errors import FedQuorumError, ParameterError
from fedquorum.flower.codec import PROTOCOL_VERSION
from fedquorum.flower.strategies import DropInStrategy
from fedquorum.records.reader import FORMAT_VERSION
from fedquorum.registry import (
    ALL_SELECTIONS,
    ALL_WEIGHTINGS,
    NAMED_STRATEGIES,
    StrategyEntry,
    build_rules,
)
from fedquorum.report import cli as report_command
from fedquorum.rules.composition import RuleSet
from fedquorum.rules.description import Goal, RuleDescription
from fedquorum.rules.participation import FedAUCorrection, correct_weighting
from fedquorum.rules.rule import RunContext
from fedquorum.rules.state_arrays import to_arrays
from fedquorum.rules.types import Population

import fedquorum_app
from client_app.training.numerics import NUMERICS_VERSION
from conf import Settings
from conf.compose import GROUPS, PARTS, options
from conf.schema.engine import EvaluationSettings, RobustnessSettings
from server_app.cli import data as data_command
from server_app.cli import predict as predict_command
from server_app.study.settings import StudySettings

ROOT = Path(__file__).parent.parent
TABLE_PATTERN = re.compile(r"(<!-- table: ([\w ]+) -->\n)(.*?)(<!-- end of table -->)", re.DOTALL)


def format_table(
    head: Iterable[str], rows: Iterable[Iterable[str]], *, num_right_aligned: int = 0
) -> str:
    """Return a Markdown table; the last ``num_right_aligned`` columns are aligned to the right."""
    names = [*head]
    separators = ["---"] * (len(names) - num_right_aligned) + ["---:"] * num_right_aligned
    escaped_rows = [[re.sub(r"(?<!\\)\|", r"\\|", cell) for cell in row] for row in rows]
    lines = (" | ".join(cells).strip() for cells in [names, separators, *escaped_rows])
    return "".join(f"| {line} |\n".replace("|  |", "| |").replace("|  |", "| |") for line in lines)


def format_code(names: Iterable[str]) -> str:
    """Return names as Markdown code, separated by commas."""
    return ", ".join(f"`{name}`" for name in names)


def wrap_paragraph(text: str, indent: str = "") -> str:
    """Wrap a paragraph into lines of at most 120 characters."""
    return textwrap.fill(text, 120, subsequent_indent=indent, break_on_hyphens=False) + "\n"


def merge_rows(rows: Iterable[tuple[str, tuple[str, ...]]]) -> Iterable[list[str]]:
    """Yield one row for all names with the same cells, at the place of the first name."""
    names_by_cells: dict[tuple[str, ...], list[str]] = {}
    for name, cells in rows:
        names_by_cells.setdefault(cells, []).append(name)
    return ([format_code(names), *cells] for cells, names in names_by_cells.items())


# --- strategies ----------------------------------------------------------------------------------


def describe_strategy(strategy: StrategyEntry) -> RuleDescription:
    """Return a strategy's description, completed from the descriptions of its rules."""
    selection = strategy.selection.description
    counting = (strategy.participation or strategy.weighting).description
    own = strategy.description

    def get_first(field: str, *descriptions: RuleDescription) -> str:
        return next(filter(None, (getattr(item, field) for item in descriptions)), "")

    def join_both(field: str) -> str:
        return "; ".join(filter(None, (getattr(item, field) for item in (selection, counting))))

    return RuleDescription(
        clients=get_first("clients", own, counting, selection),
        source=get_first("source", own, selection, counting),
        **{
            name: get_first(name, own, counting)
            for name in ("use", "weight", "state", "update_bound", "bound_needs")
        },
        **{name: getattr(own, name) or join_both(name) for name in ("trusts", "gain", "limit")},
    )


def describe_strategies() -> list[tuple[str, RuleDescription]]:
    """Return the key and the description of every named strategy."""
    return [(key, describe_strategy(entry)) for key, entry in NAMED_STRATEGIES.items()]


BASELINE_USES: Mapping[Goal, str] = MappingProxyType(
    dict.fromkeys(Goal, "you need a baseline")
    | {Goal.FAIRNESS: "you compare AAggFF with other fair rules"}
)
"""The use of a strategy whose description has none."""


def build_strategy_table() -> str:
    """Return the table of each strategy's clients and weights."""
    rows = [
        [f"`{key}`", description.clients, description.weight, description.source]
        for key, description in describe_strategies()
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
    """Return the table of each strategy's use, with its class in the library if it has one."""
    classes = {
        cls.entry.key: f"`{name}`"
        for name, cls in ((name, getattr(fedquorum, name)) for name in fedquorum.__all__)
        if inspect.isclass(cls) and issubclass(cls, DropInStrategy)
    }
    keys_by_use: dict[str, list[str]] = {}
    for key, description in describe_strategies():
        use = description.use or BASELINE_USES[NAMED_STRATEGIES[key].goal]
        keys_by_use.setdefault(use, []).append(key)
    goals = [*Goal]
    rows = [
        [format_code(keys), ", ".join(classes[key] for key in keys if key in classes), use]
        for use, keys in sorted(
            keys_by_use.items(), key=lambda row: goals.index(NAMED_STRATEGIES[row[1][0]].goal)
        )
    ]
    late = "slow clients hold other data ([wait, discard or count](docs/quorum.md))"
    rows.append(
        ["`fedau engine.late_replies=count`", '`FedAU(quorum=2, late_replies="count")`', late]
    )
    rows.append(["`composed`, `custom`", "", "you combine parts, or write your own rule"])
    return format_table(("`strategy=`", "class", "use it when"), rows)


def build_trust_table() -> str:
    """Return the table of the reports that each strategy trusts, and the gain from false ones."""
    rows = [
        *merge_rows(
            (key, (item.trusts, item.gain or "nothing", item.limit))
            for key, item in describe_strategies()
        )
    ]
    power_of_choice = ALL_SELECTIONS["power_of_choice"].description
    rows += [
        [
            "`composed`",
            (
                f"the reports that its parts trust: `power_of_choice` {power_of_choice.trusts}, the "
                "others as the strategies with these parts"
            ),
            f"the gains of its parts; `power_of_choice`: {power_of_choice.gain}",
            "the bounds of its parts",
        ],
        [
            "`custom`",
            "the reports that your rule reads",
            "depends on your rule",
            "the checks of replies; document the rest with the rule",
        ],
    ]
    return format_table(
        ("strategy", "the server trusts", "gain from a false report", "bound"), rows
    )


def build_default_rules(key: str, population: Population) -> RuleSet:
    """Build a strategy's rules with all defaults, in a run that supplies every requirement."""
    clients = population.clients
    context = RunContext(
        num_rounds=10,
        clients=clients,
        rates=dict.fromkeys(clients, 0.5),
        hooks=build_appeal_hooks(dict.fromkeys(clients, 1.0)),
    )
    return build_rules({"name": key}, {"name": "sgd"}, context)


def build_update_bound_table() -> str:
    """Return the table of the largest weight of an update, or why a strategy has no bound."""

    def get_bound(key: str, description: RuleDescription) -> tuple[str, str]:
        rules = build_default_rules(key, Population.from_size(2, [0]))
        reason = rules.dp_unsupported_reason
        # An update memory or a gate removes the bound of the weighting.
        if description.update_bound and (description.bound_needs or not reason):
            return description.update_bound, description.bound_needs
        return "none", reason

    rows = [*merge_rows((key, get_bound(key, item)) for key, item in describe_strategies())]
    rows += [
        [
            "`composed`",
            "the bound of its weighting and participation part",
            (
                "with selection `everyone`, `server_optimizer=sgd` and parts with a bound, such "
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
    """Return the table of the strategies for which the server needs no more than the sum."""
    population = Population.from_size(2, [0])

    def get_answer(key: str) -> str:
        reason = build_default_rules(key, population).sum_unsupported_reason
        return f"no: {reason}" if reason else "yes"

    rows = [*merge_rows((key, (get_answer(key),)) for key in NAMED_STRATEGIES)]
    rows += [
        ["`composed`", "if all its parts allow it, by the rows above"],
        [
            "`custom`",
            (
                "if the rule's traits have an empty `sum_unsupported_reason`: its weights are "
                "known before training"
            ),
        ],
    ]
    return format_table(("strategy", "`secure_aggregation=masks`"), rows)


def compute_state_bytes(key: str, num_clients: int) -> int:
    """Return the bytes of a rule's state for a number of clients."""
    population = Population.from_size(num_clients, [0])
    state = build_default_rules(key, population).weighting.init(population)
    return sum(array.nbytes for array in to_arrays(state, "state").values())


def build_state_table() -> str:
    """Return the table of the bytes that each strategy stores of a client between rounds."""

    def get_state(key: str, description: RuleDescription) -> str:
        if description.state:
            return description.state
        return f"{(compute_state_bytes(key, 64) - compute_state_bytes(key, 32)) // 32}"

    rows = [*merge_rows((key, (get_state(key, item),)) for key, item in describe_strategies())]
    return format_table(("state of", "bytes per client"), rows, num_right_aligned=1)


# --- compositions --------------------------------------------------------------------------------


def build_denominator_table() -> str:
    """Return the table of each weighting's numerator and denominators."""
    fixed, admitted = "the fixed population", "the clients admitted in the round"
    rows = []
    for name, kind in ALL_WEIGHTINGS.items():
        weighting = kind()
        traits = weighting.traits
        clients = fixed if traits.has_fixed_denominator else admitted
        cells = [f"`{name}`", traits.numerator, traits.denominator.format(whom=clients)]
        try:
            corrected = correct_weighting(FedAUCorrection, weighting, {}, RunContext())
            cells.append(corrected.traits.denominator.format(whom=fixed))
        except ParameterError as error:
            cells.append(f"refused: {error.reason}")
        rows.append(cells)
    corrections = "fedau, empirical, known_statistics"
    head = (
        "weighting",
        "numerator",
        "denominator, participation=none",
        f"denominator, participation={corrections}",
    )
    return format_table(head, rows)


def build_fixed_population_table() -> str:
    """Return the table of the clients in a fixed denominator, by selection."""
    populations = {name: kind.description.population for name, kind in ALL_SELECTIONS.items()}
    rows = [[f"`{name}`", population] for name, population in populations.items() if population]
    return format_table(("selection", "fixed population"), rows)


# --- what is public ------------------------------------------------------------------------------

PUBLIC_MODULES = (
    "",
    *(
        f"rules.{name}"
        for name in (
            *("selection", "weighting", "participation", "server_optimizer"),
            *("description", "rule", "description", "parameters", "types", "hooks"),
        )
    ),
    *("contrib", "rng", "errors", "client.availability", "flower.mods", "records.reader"),
)


def build_library_table() -> str:
    """Return the table of the public names in the library's modules."""

    def list_names(module_name: str) -> list[str]:
        module = import_module(module_name)
        if hasattr(module, "__all__"):
            return sorted(module.__all__)
        classes = (value for value in vars(module).values() if inspect.isclass(value))
        return sorted(cls.__name__ for cls in classes if issubclass(cls, FedQuorumError))

    modules = [f"fedquorum.{name}".removesuffix(".") for name in PUBLIC_MODULES]
    return format_table(
        ("module", "public names"),
        [[f"`{name}`", format_code(list_names(name))] for name in modules],
    )


def format_keywords() -> str:
    """Return the keywords of all drop-in strategies, in the order of their signature."""
    classes = (getattr(fedquorum, name) for name in fedquorum.__all__)
    signatures = [
        [*inspect.signature(cls).parameters]
        for cls in classes
        if inspect.isclass(cls) and issubclass(cls, DropInStrategy)
    ]
    shared = [name for name in signatures[0] if all(name in others for others in signatures)]
    return wrap_paragraph(format_code(shared))


FACTORY_ATTRIBUTES = {"read", "trusted"}


def build_python_table() -> str:
    """Return the table of the functions and classes of ``fedquorum_app``."""
    rows = []
    for name in fedquorum_app.__all__:
        value: Any = getattr(fedquorum_app, name)
        if name == "InProcessGrid":
            rows.append(
                [
                    f"`{name}`",
                    "Flower's `Grid`, made from a ClientApp, its run config and a number of nodes",
                ]
            )
            continue
        public_names = [*inspect.signature(value).parameters]
        if inspect.isclass(value) and not issubclass(value, Exception):
            members = {item for item in (*vars(value), *public_names) if not item.startswith("_")}
            public_names = sorted(members - FACTORY_ATTRIBUTES)
        rows.append([f"`{name}`", format_code(public_names)])
    return format_table(("name", "parameters or attributes"), rows)


PARSERS: Mapping[str, Callable[[], argparse.ArgumentParser]] = MappingProxyType(
    {
        "`fedquorum audit`; `fedquorum-audit`, of the library": audit_command._build_parser,
        "`fedquorum data`": data_command._build_parser,
        "`fedquorum predict`": predict_command._build_parser,
        "`fedquorum report`; `fedquorum-report`, of the library": (report_command._build_parser),
    }
)


def build_command_table() -> str:
    """Return the table of each command's arguments."""
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
        positional = [str(action.metavar) for action in actions if not action.option_strings]
        flags = [flag for action in actions for flag in action.option_strings]
        rows.append([name, format_code([*positional, *flags, "-h", "--help"])])
    study_options = format_code([*(item.name for item in fields(StudySettings)), "output"])
    rows.append(
        ["`fedquorum study`", f"overrides of `fedquorum`, and {study_options}; `-h`, `--help`"]
    )
    return format_table(("command", "arguments"), rows)


def format_run_config_keys() -> str:
    """Return the keys of the run config for ``flwr run``."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return wrap_paragraph(format_code(project["tool"]["flwr"]["app"]["config"]))


def build_option_table() -> str:
    """Return the table of the options of each group of settings."""
    names = ("strategy", *PARTS, *(name for name in GROUPS if name != "strategy"))
    return format_table(
        ("group", "options"), [[f"`{name}`", format_code(options(name))] for name in names]
    )


def format_other_settings() -> str:
    """Return the list of the settings outside the groups."""
    parts = {"evaluation": EvaluationSettings, "robustness": RobustnessSettings}
    lines = []
    for item in fields(Settings):
        if item.name in {*GROUPS, "client"}:
            continue
        below = parts.get(item.name)
        names = format_code(part.name for part in fields(below)) if below else ""
        lines.append(wrap_paragraph(f"- `{item.name}`" + (f": {names}" if names else ""), "  "))
    return "".join(lines)


def build_preset_table() -> str:
    """Return the table of the presets, by folder."""
    folders: dict[str, list[str]] = {}
    for name in options("experiment"):
        folder, _, last = name.rpartition("/")
        folders.setdefault(folder, []).append(last)
    rows = [
        [f"`experiment={folder}/NAME`", format_code(names)]
        for folder, names in folders.items()
        if folder
    ]
    rows += [[f"`experiment={name}`", "no preset values"] for name in folders.get("", ())]
    return format_table(("preset", "`NAME`"), rows)


def build_version_table() -> str:
    """Return the table of the version numbers that decide compatibility."""
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
            "`NUMERICS_VERSION` in `client_app.training.numerics`, `arithmetic.version` in `manifest.json`",
            "the same settings give other bits",
        ],
        [
            "the format of the records",
            str(FORMAT_VERSION),
            "`FORMAT_VERSION` in `fedquorum.records.reader`, `format` in `manifest.json`",
            "a reader must distinguish the records",
        ],
    ]
    return format_table(("number", "now", "in the code", "increases if"), rows)


TABLE_BUILDERS: Mapping[str, Callable[[], str]] = MappingProxyType(
    {
        "uses": build_use_table,
        "methods": build_strategy_table,
        "trust": build_trust_table,
        "privacy": build_update_bound_table,
        "secure sums": build_secure_sum_table,
        "states": build_state_table,
        "denominators": build_denominator_table,
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
"""Every table, by its name on the page."""

PAGES = (
    "README.md",
    "SECURITY.md",
    *(f"docs/{page}.md" for page in ("composition", "methods", "running", "scale", "stability")),
)
"""The pages with tables."""


def render_tables(text: str) -> str:
    """Return the text of a page with new tables.

    Raises
    ------
    KeyError
        If there is no table of that name.
    """
    return TABLE_PATTERN.sub(
        lambda match: f"{match[1]}\n{TABLE_BUILDERS[match[2]]()}\n{match[4]}", text
    )


def update_pages() -> None:
    """Write the tables of all pages, and print the names of changed pages."""
    for page in PAGES:
        path = ROOT / page
        before = path.read_text()
        after = render_tables(before)
        if after != before:
            path.write_text(after)
            print(page)


if __name__ == "__main__":
    sys.exit(update_pages())
