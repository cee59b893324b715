"""Declarations: fields with defaults and ranges, tables by key, and structured errors."""

import pickle
from dataclasses import dataclass

import pytest
from fedquorum.errors import FedQuorumError, ParameterError, suggest_name, to_one_line
from fedquorum.rules.description import RuleDescription
from fedquorum.rules.parameters import POSITIVE, POSITIVE_INT
from fedquorum.rules.rule import (
    Rule,
    RunContext,
    check_parameters,
    get_parameters,
    index_by_key,
    injected_value,
    parameter,
)


@dataclass(frozen=True)
class Scale(Rule):
    """A rule with a bit of everything."""

    description = RuleDescription("scale")

    factor: float = parameter(1.0, POSITIVE)
    limit: int | None = parameter(None, POSITIVE_INT)
    rounds: int = injected_value(POSITIVE_INT, default=5)
    text: str = "free"


def test_parameters_are_the_fields_declared_as_such() -> None:
    """A value that the run or another part supplies has a range, but is no parameter."""
    assert [item.name for item in get_parameters(Scale)] == ["factor", "limit"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"factor": 0.0}, "factor must be a number > 0, got 0.0"),
        ({"factor": None}, "factor must be a number > 0, got None"),
        ({"limit": 0}, "limit must be a whole number >= 1, got 0"),
        ({"rounds": 0}, "rounds must be a whole number >= 1, got 0"),
    ],
)
def test_every_field_with_a_range_is_checked(changed: dict[str, object], message: str) -> None:
    """In the constructor; None is allowed if it is the default."""
    with pytest.raises(ParameterError) as caught:
        Scale(**changed)  # type: ignore[arg-type]
    assert str(caught.value) == message
    assert Scale(limit=None).limit is None


def test_other_dataclasses_are_checked_like_rules() -> None:
    """Other dataclasses declare their fields in the same way, and call the check."""

    @dataclass(frozen=True)
    class Part:
        size: int = parameter(0, POSITIVE_INT)

    with pytest.raises(ParameterError, match="size must be a whole number >= 1, got 0"):
        check_parameters(Part())


def test_a_rule_is_built_from_its_options() -> None:
    """By default it ignores the run's context."""
    assert Scale.from_options({"factor": 2.0}, RunContext()) == Scale(2.0)


def test_a_table_has_each_key_once() -> None:
    """A rule without a key, or with a duplicate key, is a programming error."""

    class Nameless(Rule):
        """A rule without a key."""

    class Another(Rule):
        """A rule with a key that is taken."""

        description = RuleDescription("scale")

    assert index_by_key([Scale]) == {"scale": Scale}
    with pytest.raises(AssertionError, match="Nameless needs a key"):
        index_by_key([Nameless])
    with pytest.raises(AssertionError, match="Another needs a unique key, got 'scale'"):
        index_by_key([Scale, Another])


# --- errors -------------------------------------------------------------------------------------


def test_a_parameter_error_retains_its_parts() -> None:
    """Settings show it by their own names; it survives pickling."""
    error = ParameterError("server_lr", "a number > 0", 0.0, "the model must move")
    assert str(error) == "server_lr must be a number > 0 (the model must move), got 0.0"
    assert error.format_for("strategy.server_lr").startswith("strategy.server_lr must be a number")
    again = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert (again.parameter, again.allowed, again.got, again.reason) == (
        "server_lr",
        "a number > 0",
        0.0,
        "the model must move",
    )
    assert isinstance(error, FedQuorumError)
    assert isinstance(error, ValueError)


def test_the_nearest_name_is_suggested() -> None:
    """No name is suggested if none is close."""
    assert suggest_name("fedua", ["fedau", "fedavg"]) == "did you mean fedau?"
    assert suggest_name("xyz", ["fedau", "fedavg"]) == ""
    assert suggest_name("", ["fedau"]) == ""


def test_a_name_in_several_folders_is_suggested_in_all() -> None:
    """Without the folder all matches are listed, even if another name is more similar."""
    known = ["fedalign/synth", "fedavg/synth", "q/synth", "synths"]
    assert suggest_name("synth", known[1:2]) == "did you mean fedavg/synth?"
    assert suggest_name("synth", known) == "did you mean fedalign/synth, fedavg/synth or q/synth?"


def test_messages_of_libraries_become_one_line() -> None:
    """All white space becomes single blanks."""
    assert to_one_line(ValueError("a\n  b\tc")) == "a b c"
