"""Tests of the page templates, which a bundle contains as a module."""

from fedquorum.report.generate_templates import GENERATED, TEMPLATES, generate_module
from fedquorum.report.page import get_templates


def test_the_module_is_up_to_date() -> None:
    """``python -m fedquorum.report.generate_templates`` would write the same."""
    assert GENERATED.read_text(encoding="utf-8") == generate_module()


def test_every_template_equals_its_file() -> None:
    """Including backslashes and quotes."""
    loader = get_templates().loader
    assert loader is not None
    for path in TEMPLATES.iterdir():
        source, _, _ = loader.get_source(get_templates(), path.name)
        assert source == path.read_text(encoding="utf-8")
