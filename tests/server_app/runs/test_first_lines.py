"""Test what a run says before its first round."""

from conf.compose import compose_settings
from server_app.runs.first_lines import format_defaults

TABLE = "data=csv data.path=x data.target=y"


def test_defaults_that_nobody_gave_are_named() -> None:
    """A preset has values that the user chose; without one, the most important are said."""
    assert format_defaults(compose_settings("fedalign/fmnist")) == ""
    assert format_defaults(compose_settings("", TABLE)) == (
        "Not given, so by default (experiment=custom): strategy=fedalign, "
        "model=logistic_regression, rounds=100, client.lr=0.1, client.batch_size=32, "
        "client.local_epochs=5"
    )
    given = "strategy=fedavg model=mlp rounds=3 client.lr=1 client.batch_size=8"
    assert format_defaults(compose_settings("custom", f"{TABLE} {given}")) == (
        "Not given, so by default (experiment=custom): client.local_epochs=5"
    )
    assert format_defaults(compose_settings("custom", f"{given} client.local_epochs=1")) == ""
