"""Tests of checks of settings against passwords."""

import pytest
from fedquorum.errors import SettingsError

from conf.compose import compose_overrides


@pytest.mark.parametrize(
    ("overrides", "setting"),
    [
        (("tracker=mlflow", "tracker.uri=https://user:hunter2@example.org"), "tracker.uri"),
        (
            ("tracker=mlflow", "tracker.uri=mysql://u:hunter2%2F@example.org/db"),
            "tracker.uri",
        ),
        (("data=fmnist", "data.root=s3://:hunter2@bucket"), "data.root"),
        (("model=module", "model.path=a.B", "model.args={x: 'ftp://u:hunter2@h'}"), "model.args.x"),
    ],
)
def test_passwords_in_settings_are_refused(overrides: tuple[str, ...], setting: str) -> None:
    """Settings are recorded and sent to clients; the error hides the password."""
    with pytest.raises(SettingsError) as refused:
        compose_overrides(overrides)
    assert str(refused.value).startswith(f"{setting} must have no password")
    assert ":***@" in str(refused.value)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("uri", ["http://localhost:5000", "https://user@example.org/a:b", "a:b@c"])
def test_a_uri_without_a_password_is_allowed(uri: str) -> None:
    """It may have a port, a user's name, or a path."""
    assert compose_overrides(("tracker=mlflow", f"tracker.uri='{uri}'")).settings.tracker.name
