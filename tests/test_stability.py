"""What users may rely on: docs/stability.md and docs/records.md list what the code has."""

import argparse
import inspect
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

import fedquorum
import numpy as np
import pytest
from fedquorum.audit import command_line as auditing
from fedquorum.errors import FedQuorumError
from fedquorum.flower.codec import PROTOCOL
from fedquorum.flower.drop_in import DropIn
from fedquorum.records import checkpoint, round_record, tables, writer
from fedquorum.records.directory import RECORDS
from fedquorum.records.fairness import spread
from fedquorum.records.identity import RunIdentity

import fedquorum_app
from conf import Settings, SettingsError
from conf.compose import GROUPS, PARTS, compose, options
from conf.schema.engine import EvaluationSettings, RobustnessSettings
from server_app import job
from server_app.clients_table import command_line as showing
from server_app.report import command_line as reporting
from server_app.study.settings import StudySettings

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "stability.md").read_text()
RECORDS_PAGE = (ROOT / "docs" / "records.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

Table = dict[str, list[str]]


def section(page: str, heading: str) -> str:
    """Return the text below a heading."""
    text = page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    assert text, heading
    return text


def quoted(text: str) -> list[str]:
    """Return what is set as code in a text."""
    return re.findall(r"`([^`]+)`", text)


def table(text: str) -> Table:
    """Return the code in the second cell of each row by that in the first, where there is any."""
    rows = re.findall(r"^\| (`.*?) \| (.*?) \|", text, re.MULTILINE)
    return {name: quoted(second) for first, second in rows for name in quoted(first)}


def test_a_table_is_read_as_it_stands() -> None:
    """Several names in the first cell; a heading and a row without code are none."""
    text = "| a | b |\n| --- | --- |\n| `x`, `y` | `1`, two, `3` | `z` |\n| plain | `4` |\n"
    assert table(text) == {"x": ["1", "3"], "y": ["1", "3"]}


# --- Python ------------------------------------------------------------------------------------

MODULES = table(section(PAGE, "The library"))


@pytest.mark.parametrize("module", MODULES)
def test_the_librarys_names(module: str) -> None:
    """All that a module exports, each once, and all of it is there."""
    exported = import_module(module)
    assert sorted(MODULES[module]) == sorted(exported.__all__)
    assert all(hasattr(exported, name) for name in MODULES[module])


def test_the_errors_are_the_tree() -> None:
    """Every error of the tree's module is public."""
    errors = import_module("fedquorum.errors")
    tree = {name for name, one in vars(errors).items() if inspect.isclass(one)}
    assert {name for name in tree if issubclass(getattr(errors, name), FedQuorumError)} == {
        *MODULES["fedquorum.errors"]
    }


def test_the_keywords_of_every_strategy() -> None:
    """Those that all drop-in strategies have, in their order; the rules' follow."""
    text = section(PAGE, "The library").partition("takes these keywords: ")[2]
    documented = quoted(text.partition(". The\nkeywords")[0])
    strategies = [getattr(fedquorum, name) for name in fedquorum.__all__]
    signatures = [
        [*inspect.signature(one).parameters]
        for one in strategies
        if inspect.isclass(one) and issubclass(one, DropIn)
    ]
    shared = [name for name in signatures[0] if all(name in others for others in signatures)]
    assert documented == shared
    assert all(names[: len(shared)] == shared for names in signatures)


FACE = table(section(PAGE, "From Python"))
MADE_BY_FUNCTIONS = {"read", "trusted"}


def test_the_apps_names() -> None:
    """Functions with their parameters, classes with what they show."""
    assert sorted(FACE) == sorted(fedquorum_app.__all__)


@pytest.mark.parametrize("name", FACE)
def test_what_the_apps_names_have(name: str) -> None:
    """The parameters of functions, in their order, and the public attributes of results."""
    thing: Any = getattr(fedquorum_app, name)
    parameters = [*inspect.signature(thing).parameters]
    if not inspect.isclass(thing) or name == "SweepError":
        assert FACE[name] == parameters
    elif name != "InProcessGrid":
        shown = {*vars(thing), *parameters}
        public = {one for one in shown if not one.startswith("_")} - MADE_BY_FUNCTIONS
        assert sorted(FACE[name]) == sorted(public)


# --- commands and settings ---------------------------------------------------------------------

COMMANDS = table(section(PAGE, "Commands"))
PARSERS: Mapping[str, Callable[[], argparse.ArgumentParser]] = {
    "fedquorum-audit": auditing._parser,
    "fedquorum-data": showing._parser,
    "fedquorum-report": reporting._parser,
}


def test_all_commands_are_listed() -> None:
    """Those that the app installs; the library's is one of them."""
    assert sorted(COMMANDS) == sorted(PROJECT["project"]["scripts"])


@pytest.mark.parametrize("command", PARSERS)
def test_the_flags_of_a_command(command: str) -> None:
    """Each of them, short ones too, and its arguments without a flag."""
    actions = PARSERS[command]()._actions
    flags = [flag for action in actions for flag in action.option_strings]
    assert sorted(word for word in COMMANDS[command] if word.startswith("-")) == sorted(flags)
    words = [word for word in COMMANDS[command] if not word.startswith("-")]
    [argument] = [action for action in actions if not action.option_strings]
    assert argument.metavar == words[-1]


def test_the_words_of_a_study() -> None:
    """Those that say what is asked, and the folder."""
    words = [w for w in COMMANDS["fedquorum-study"] if not w.startswith(("-", "fedquorum"))]
    assert words == [*(item.name for item in fields(StudySettings)), "output"]


def test_the_exit_statuses() -> None:
    """As the page has them."""
    text = " ".join(section(PAGE, "Commands").split())
    assert f"{job.EXIT_ERROR} after a mistake" in text
    assert f"{job.EXIT_INTERRUPTED} after an interruption" in text
    assert auditing.EXIT_ERROR == showing.EXIT_ERROR == reporting.EXIT_ERROR == job.EXIT_ERROR


def test_the_run_config() -> None:
    """The keys that ``flwr run`` takes."""
    keys = PROJECT["tool"]["flwr"]["app"]["config"]
    sentence = section(PAGE, "Commands").partition("`flwr run` takes ")[2].partition(" in its")[0]
    assert quoted(sentence) == [*keys]


SETTINGS = table(section(PAGE, "Settings"))


def test_the_groups_of_settings() -> None:
    """All groups and all other settings of the top."""
    assert {*SETTINGS} == {*GROUPS, *PARTS, "client"}
    top = [item.name for item in fields(Settings)]
    below = section(PAGE, "Settings").partition("Beside the groups")[2].partition(". The keys")[0]
    inside = [quoted(part) for part in re.findall(r"\((.*?)\)", below)]
    assert inside == [
        [item.name for item in fields(part)] for part in (EvaluationSettings, RobustnessSettings)
    ]
    others = quoted(re.sub(r"\(.*?\)", "", below))
    assert sorted([*others, *(group for group in SETTINGS if "/" not in group)]) == sorted(top)


@pytest.mark.parametrize("group", SETTINGS)
def test_the_options_of_a_group(group: str) -> None:
    """Each of them."""
    assert SETTINGS[group] == options(group)


def test_the_presets() -> None:
    """Those that docs/running.md lists."""
    text = (ROOT / "docs" / "running.md").read_text()
    part = text.partition("the presets:\n")[2].partition("\n\nA mistake")[0]
    listed = []
    for line in re.split(r"\n(?=- )", "\n" + part)[1:]:
        folder, *names = quoted(line)
        path = folder.removeprefix("experiment=")
        if path.endswith("/NAME"):
            listed += [path.replace("NAME", name) for name in names]
        else:
            listed += [name.removeprefix("experiment=") for name in (path, *names)]
    assert sorted(listed) == options("experiment")


def test_a_renamed_option_is_refused_with_the_new_word() -> None:
    """As the page says; no other word of 0.1.0 is known."""
    with pytest.raises(SettingsError, match=r"\(it is called custom now\)$"):
        compose("", "strategy=own")


# --- records and numbers -----------------------------------------------------------------------


def manifest_keys() -> Iterable[str]:
    """Return the keys of a manifest: of every run, of one that ended, and with privacy."""
    identity = RunIdentity("", (), "", 0, "", "", 0, "", None, {})
    return {*writer._first_manifest(identity), "summary", "privacy"}


def round_fields(text: str) -> list[str]:
    """Return the fields of a round, without those of its ``test``."""
    return [*table(text.partition("The statuses exclude")[0])]


RECORDED: Mapping[str, Iterable[str]] = {
    "clients/": tables.CLIENTS_SCHEMA.names,
    "evaluations/": tables.EVALUATIONS_SCHEMA.names,
    "population.parquet": tables.POPULATION_SCHEMA.names,
    "manifest.json": manifest_keys(),
    "rounds.jsonl": [item.name for item in fields(round_record.RoundRecord)],
}


@pytest.mark.parametrize("file", RECORDED)
def test_the_fields_of_the_records(file: str) -> None:
    """Each has its row in docs/records.md, and each row is one of a field."""
    text = section(RECORDS_PAGE, f"`{file}`")
    documented = round_fields(text) if file == "rounds.jsonl" else [*table(text)]
    assert sorted(documented) == sorted(RECORDED[file])


def test_the_spread_over_clients() -> None:
    """What ``test`` says beside weighted means."""
    text = section(RECORDS_PAGE, "`rounds.jsonl`").partition("in `global_loss` too:")[2]
    assert {*spread(np.array([0.5, 0.7]), higher_is_better=True)} < {*table(text)}


def test_the_files_of_a_run() -> None:
    """Each that a run may write is in the first table of docs/records.md."""
    documented = {name.rstrip("/") for name in table(RECORDS_PAGE.partition("\n## ")[0])}
    assert {*RECORDS, writer.MEAN_MODEL, checkpoint.FOLDER} == documented - {"wandb"}


def test_the_numbers() -> None:
    """The protocol's, the arithmetic's and that of checkpoints."""
    from client_app.arithmetic import VERSION

    rows = re.findall(r"^\| ([^|]+) \| (\d+) \|", section(PAGE, "Numbers"), re.MULTILINE)
    assert [int(number) for _, number in rows] == [PROTOCOL, VERSION, checkpoint.FORMAT]


def resolved(name: str) -> Any:
    """Return the module, class or function of a dotted name."""
    module, _, last = name.rpartition(".")
    try:
        return import_module(name)
    except ModuleNotFoundError:
        return getattr(import_module(module), last)


def test_what_took_the_place_of_an_old_name_is_there() -> None:
    """Every dotted name in the second column of the tables about 0.1.0."""
    text = section(PAGE, "From 0.1.0 to 0.2.0")
    names = {name for one in table(text).values() for name in one if name.startswith("fedquorum.")}
    assert len(names) > 20
    for name in names:
        assert resolved(name) is not None
