"""Test the provenance that a run of the app records."""

import fedquorum

from server_app import provenance
from tests.integration.conftest import ROOT


def test_the_source_is_the_checkout() -> None:
    """It is the root folder, which contains all folders with code."""
    assert provenance.SOURCE_ROOT == ROOT
    assert all((provenance.SOURCE_ROOT / name).exists() for name in provenance.CODE_PATHS)


def test_the_facts_include_all_relevant_versions() -> None:
    """The library's version is that of the imported copy."""
    facts = provenance.collect_code_facts()
    assert list(facts) == ["python", "fedquorum", *provenance.PACKAGES, "source"]
    assert facts["fedquorum"] == fedquorum.__version__
    assert facts["flwr"]
