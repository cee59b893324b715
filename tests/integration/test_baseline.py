"""The folder that could be proposed to Flower as a baseline: its form, and that it runs."""

import json
import logging
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import yaml
from datasets import ClassLabel, Dataset, Features, Image
from flwr.app import Context, RecordDict
from PIL import Image as Pillow

from conf.compose import compose_settings
from server_app.engines.in_process import InProcessGrid
from tests.builders_hf import write_parquet_splits
from tests.cases import sample_cases

ROOT = Path(__file__).parents[2]
BASELINE = ROOT / "examples" / "baseline" / "fedau"
README = (BASELINE / "README.md").read_text()
PROJECT = tomllib.loads((BASELINE / "pyproject.toml").read_text())
CONFIG: dict[str, Any] = PROJECT["tool"]["flwr"]["app"]["config"]
STRATEGIES = ("fedau", "average_participating", "average_all", "known_statistics")

# Of https://github.com/flwrlabs/flower, fdef7af: baselines/dev/test-baseline-structure.sh, and the
# template baselines/dev/baseline with what its README asks for.
REQUIRED = ("client_app.py", "dataset.py", "model.py", "server_app.py", "strategy.py", "utils.py")
HEADINGS = [
    "About this baseline",
    "Experimental Setup",
    "Environment Setup",
    "Running the Experiments",
]
FIELDS = [
    *("Paper", "Authors", "Abstract", "What\u2019s implemented", "Datasets", "Hardware Setup"),
    *("Contributors", "Task", "Model", "Dataset", "Training Hyperparameters"),
]


# --- Flower's rules -----------------------------------------------------------------------------


def test_files_have_the_names_that_flower_checks() -> None:
    """The package is named like the folder and has each module; licence and project lie beside."""
    package = BASELINE / BASELINE.name
    assert [name for name in (*REQUIRED, "__init__.py") if not (package / name).is_file()] == []
    assert (BASELINE / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    assert (BASELINE / ".gitignore").is_file()


def test_the_project_is_the_template_s() -> None:
    """Named like the folder, with its components, and the title as its description."""
    project, tool = PROJECT["project"], PROJECT["tool"]
    assert (project["name"], project["license"]) == ("fedau", "Apache-2.0")
    assert tool["flwr"]["app"]["components"] == {
        "serverapp": "fedau.server_app:app",
        "clientapp": "fedau.client_app:app",
    }
    assert tool["hatch"]["metadata"]["allow-direct-references"] is True
    assert {"black", "isort", "docformatter", "pylint", "mypy", "ruff", "pytest"} <= {
        requirement.partition("==")[0] for requirement in project["optional-dependencies"]["dev"]
    }
    (title,) = re.findall(r"^# (.+)$", README, re.MULTILINE)[:1]
    assert project["description"] == title


def test_the_library_comes_from_its_repository() -> None:
    """A bare name would be whatever somebody registers under it."""
    (library,) = [one for one in PROJECT["project"]["dependencies"] if one.startswith("fedquorum")]
    assert re.fullmatch(r"fedquorum @ git\+https://\S+#subdirectory=strategies", library)
    assert library in README
    assert "**not submitted**" in (BASELINE.parent / "README.md").read_text()


def test_the_readme_follows_the_template() -> None:
    """Metadata, all headings and fields in their order, and nothing left of the instructions."""
    front = yaml.safe_load(README.split("---")[1])
    assert front.keys() == {"title", "url", "labels", "dataset"}
    assert 4 <= len(front["labels"]) <= 10
    assert front["dataset"] == ["CIFAR-10", "SVHN", "Fashion-MNIST"]
    assert re.findall(r"^## (.+)$", README, re.MULTILINE) == HEADINGS
    assert re.findall(r"^\*\*(.+?):\*\*", README, re.MULTILINE) == FIELDS
    assert not [word for word in (":warning:", "[!IMPORTANT]", "TODO") if word in README]


def test_hyperparameters_of_the_readme_are_the_defaults() -> None:
    """What the README's table says is what the configuration has."""
    rows = dict(re.findall(r"^\| ([a-z (A-Z)]+) \| (\S+)(?: \|| \()", README, re.MULTILINE))
    for name, key in {
        "total clients": "num-clients",
        "number of rounds": "num-server-rounds",
        "local steps": "local-steps",
        "batch size": "batch-size",
        "client learning rate": "lr",
        "server learning rate": "server-lr",
        "alpha (Dirichlet)": "alpha",
        "mean availability": "mean-availability",
        "seed": "seed",
    }.items():
        assert float(rows[name]) == CONFIG[key], name


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_rates_are_those_of_the_app_s_preset(strategy: str) -> None:
    """Each strategy has what the authors found for it on CIFAR-10."""
    path = BASELINE / "conf" / f"{strategy}.toml"
    given = CONFIG | (tomllib.loads(path.read_text()) if path.exists() else {})
    settings: Any = compose_settings("fedau/cifar10", f"strategy={strategy}").settings
    assert given["strategy"] == strategy
    assert (given["lr"], given["server-lr"]) == (settings.client.lr, settings.strategy.server_lr)
    for key, value in {
        "num-clients": settings.data.num_clients,
        "num-server-rounds": settings.rounds,
        "local-steps": settings.client.local_steps,
        "batch-size": settings.client.batch_size,
        "alpha": settings.data.alpha,
    }.items():
        assert given[key] == value, key


# --- the app ------------------------------------------------------------------------------------


@pytest.fixture
def fedau(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """Return what imports the baseline's modules."""
    monkeypatch.syspath_prepend(str(BASELINE))
    monkeypatch.setattr("flwr_datasets.federated_dataset.event", lambda *_: None)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.chdir(tmp_path)
    yield lambda name: import_module(f"fedau.{name}")
    for name in [name for name in sys.modules if name.partition(".")[0] == "fedau"]:
        del sys.modules[name]


def clothes(n: int) -> Dataset:
    """Return gray images of 28 x 28 whose brightest row tells the class."""
    rng = np.random.default_rng(n)
    labels = np.arange(n) % 10
    images = rng.integers(60, size=(n, 28, 28)).astype(np.uint8)
    images[np.arange(n)[:, None], 2 * labels[:, None] + [3, 4]] = 250
    features = Features({"image": Image(), "label": ClassLabel(num_classes=10)})
    rows = {"image": [Pillow.fromarray(image) for image in images], "label": labels}
    return Dataset.from_dict(rows, features=features)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Write a data set like Fashion-MNIST; returns the configuration of a small run on it."""
    folder = write_parquet_splits(
        tmp_path_factory.mktemp("data"), train=clothes(300), test=clothes(100)
    )
    small = {"num-clients": 4, "num-server-rounds": 8, "evaluate-every": 4, "lr": 0.03}
    of_data = {"dataset": "fashion_mnist", "data-dir": str(folder), "alpha": 10.0}
    return CONFIG | small | of_data | {"mean-availability": 0.6}


def run(fedau: Any, config: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Run the app in this process; returns its results, by round."""
    grid = InProcessGrid(fedau("client_app").app, config, config["num-clients"])
    context = Context(run_id=0, node_id=0, node_config={}, state=RecordDict(), run_config=config)
    fedau("server_app").app(grid, context)
    (path,) = Path("results").glob("*.json")
    found: dict[str, dict[str, float]] = json.loads(path.read_text())
    return found


@pytest.mark.parametrize("strategy", sample_cases(STRATEGIES, 2))
def test_the_baseline_learns(
    strategy: str, fedau: Any, config: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Better than guessing one class in ten, though clients are absent in rounds."""
    caplog.set_level(logging.INFO, logger="flwr")
    results = run(fedau, config | {"strategy": strategy})
    assert results.keys() == {"0", "4", "8"}
    assert results["8"]["test_acc"] > 0.3
    assert "unavailable" in caplog.text


@pytest.mark.parametrize(("kind", "seed"), [("markov", 1), ("cyclic", 2)])
def test_availability_follows_the_classes(kind: str, seed: int, fedau: Any) -> None:
    """A client with the class that contributes most is there more often; no one less than 2 %."""
    labels = [np.full(20, label) for label in range(10)]
    rates = [fedau("utils").availability_of(kind, one, 0.1, seed).rate for one in labels]
    assert min(rates) == 0.02
    assert max(rates) > 0.1
    with pytest.raises(ValueError, match=r"bernoulli.*got 'often'"):
        fedau("utils").availability_of("often", labels[0], 0.1, seed)


def test_every_row_belongs_to_one_client(fedau: Any, config: dict[str, Any]) -> None:
    """Shares follow the classes, nobody is without a row, and the seed decides."""
    partitioner = fedau("dataset").ClassSharePartitioner
    rows = Dataset.from_dict({"label": np.arange(300) % 10, "row": range(300)})

    def split_rows(seed: int, alpha: float) -> list[list[int]]:
        made = partitioner(40, "label", alpha, seed)
        made.dataset = rows
        return [made.load_partition(k)["row"][:] for k in range(40)]

    parts = split_rows(1, 0.1)
    assert sorted(row for part in parts for row in part) == [*range(300)]
    assert all(parts)
    assert split_rows(1, 0.1) == parts != split_rows(2, 0.1)
    classes = [len({row % 10 for row in part}) for part in split_rows(1, 1000.0)]
    assert np.mean([len({row % 10 for row in part}) for part in parts]) < np.mean(classes)
