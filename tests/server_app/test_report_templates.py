"""The templates of pages, which a bundle has as a module."""

from server_app.report.generate_templates import GENERATED, TEMPLATES, generate_module
from server_app.report.page import get_templates


def test_the_module_is_up_to_date() -> None:
    """It is what ``python -m server_app.report.generate_templates`` writes."""
    assert GENERATED.read_text(encoding="utf-8") == generate_module()


def test_every_template_is_as_its_file() -> None:
    """Backslashes and quotes among it."""
    loader = get_templates().loader
    assert loader is not None
    for path in TEMPLATES.iterdir():
        source, _, _ = loader.get_source(get_templates(), path.name)
        assert source == path.read_text(encoding="utf-8")
