"""Every worker collects all tests, so what few of them need is imported inside these."""

SLOW = (
    "torchvision",
    "torch._dynamo",
    "scipy.stats",
    "flwr_datasets",
    "playwright",
    "transformers",
)


def test_collecting_imports_nothing_that_takes_seconds(
    imported_by_collecting: frozenset[str],
) -> None:
    assert not imported_by_collecting & {*SLOW}
