"""What a run of the app says of the code that produced it."""

import fedquorum

from server_app import provenance
from tests.integration.conftest import ROOT


def test_the_source_is_the_checkout() -> None:
    """Its root, with all the folders that shape a result, and not one of them."""
    assert provenance.SOURCE_ROOT == ROOT
    assert all((provenance.SOURCE_ROOT / name).exists() for name in provenance.CODE_PATHS)


def test_the_versions_are_of_what_shapes_a_result() -> None:
    """The library's is that of the copy that runs, first in the list."""
    found = provenance.collect_code_facts()
    assert list(found) == ["python", "fedquorum", *provenance.PACKAGES, "source"]
    assert found["fedquorum"] == fedquorum.__version__
    assert found["flwr"]
