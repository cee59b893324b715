"""Run cases of same_bits.py in one checkout, selected by PYTHONPATH.

    python -P benchmarks/same_bits_side.py JOB

``JOB`` is a JSON file: the checkout's folder, its names (same_bits.toml) and the cases, in the
checkout's names. Without cases the script prints the names that have cases.
"""

import inspect
import json
import sys
import tomllib
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

ENDING = "ending.json"
"""The file next to a case's output that has the error of the case."""
NUM_NODES = 5
NUM_ROUNDS = 5
NUM_CORES = 2
ARGUMENTS: Mapping[str, Any] = {
    "priority": [0, 1],
    "num_rounds": NUM_ROUNDS,
    "requirement": 0.5,
    "probabilities": [0.9, 0.8, 0.7, 0.9, 0.8],
    "cutoff": 3,
}
"""Arguments of drop-in strategies; a constructor gets those that it takes."""


class Side:
    """A checkout and its names."""

    def __init__(self, folder: Path, sections: Mapping[str, Any]) -> None:
        self._folder = folder
        self._sections = sections

    def load(self, symbol: str) -> Any:
        """Import ``module:name``, given in the names of the first commit."""
        module, name = self._sections["symbols"].get(symbol, symbol).split(":")
        loaded = import_module(module)
        if not Path(str(loaded.__file__)).resolve().is_relative_to(self._folder.resolve()):
            raise ImportError(f"{module} must be in {self._folder}, got {loaded.__file__}")
        return getattr(loaded, name)

    def describe(self) -> dict[str, list[str]]:
        """Return all names that have a case, by group."""
        options = self.load("conf.compose:options")
        drop_in = self.load("fedquorum.flower.drop_in:DropIn")
        library = import_module("fedquorum")
        public = {name: getattr(library, name) for name in library.__all__}
        return {
            "strategy": list(self.load("fedquorum.named:NAMED")),
            "server_optimizer": list(self.load("fedquorum.server_optimizer:SERVER_OPTIMIZERS")),
            "availability": options("availability"),
            "drop_in": [
                name
                for name, value in public.items()
                if inspect.isclass(value) and issubclass(value, drop_in) and value is not drop_in
            ],
        }

    def run(self, overrides: list[str], output: Path) -> None:
        """Run one job."""
        self.load("fedquorum_app:run")("custom", *overrides, output=output, verbose=False)

    def resume(self, overrides: list[str], output: Path) -> None:
        """Run one job that stops early, and resume it; a completed run would refuse."""
        *overrides, stop, resume = overrides
        with suppress(KeyboardInterrupt, self.load("fedquorum.errors:FedQuorumError")):
            self.run([*overrides, stop], output)
        self.run([*overrides, f"{resume}{output}"], output)

    def run_command(self, arguments: list[str], _: Path) -> None:
        """Run a command of pyproject.toml in this process."""
        project = tomllib.loads((self._folder / "pyproject.toml").read_text(encoding="utf-8"))
        module, name = project["project"]["scripts"][arguments[0]].split(":")
        sys.argv = list(arguments)
        try:
            status = getattr(import_module(module), name)()
        except SystemExit as end:
            status = end.code
        if status:
            raise RuntimeError(f"exit status {status}")

    def run_drop_in(self, arguments: list[str], output: Path) -> None:
        """Run a strategy of the library with a plain Flower ClientApp."""
        [name] = arguments
        self._start(name, _make_stock_app(), {}, NUM_NODES, output)

    def run_native(self, arguments: list[str], output: Path) -> None:
        """Run a strategy of the library with this project's ClientApp."""
        name, *overrides = arguments
        config = {"experiment": "custom", "overrides": " ".join(overrides)}
        app = self.load("client_app.app:app")
        self._start(name, app, config, 2, output, protocol="fedquorum")

    def _start(
        self,
        name: str,
        app: Any,
        config: dict[str, Any],
        nodes: int,
        output: Path,
        **arguments: Any,
    ) -> None:
        import numpy as np
        from flwr.app import Array, ArrayRecord

        strategy = getattr(import_module("fedquorum"), name)
        parameters = inspect.signature(strategy).parameters
        given = {**ARGUMENTS, "records": str(output), **arguments}
        names = self._sections["arguments"]
        translated = {names.get(key, key): value for key, value in given.items()}
        instance = strategy(**{key: v for key, v in translated.items() if key in parameters})
        arrays = {
            "linear.weight": Array(np.full((10, 60), 0.01, dtype=np.float32)),
            "linear.bias": Array(np.zeros(10, dtype=np.float32)),
        }
        grid = self.load("fedquorum_app:InProcessGrid")(app, config, nodes)
        instance.start(grid, ArrayRecord(arrays), num_rounds=NUM_ROUNDS)


def _make_stock_app() -> Any:
    """Make a plain Flower ClientApp whose "training" draws random numbers."""
    import numpy as np
    from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        server_round = message.content["config"]["server-round"]
        rng = np.random.default_rng([server_round, context.node_id])
        if rng.random() < 0.2:  # noqa: PLR2004
            raise RuntimeError("this node fails in this round")
        updated = {
            name: Array(array.numpy() + rng.normal(0, 0.1, array.shape).astype(np.float32))
            for name, array in message.content["arrays"].items()
        }
        metrics = {"num-examples": 10 + context.node_id, "loss": float(rng.random())}
        content = {"arrays": ArrayRecord(updated), "metrics": MetricRecord(metrics)}
        return Message(RecordDict(content), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        size = float(np.abs(message.content["arrays"]["linear.bias"].numpy()).sum())
        metrics = {"num-examples": 5 + context.node_id, "loss": size, "accuracy": 1 / (1 + size)}
        return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

    return app


def run_case(run: Callable[[list[str], Path], None], arguments: list[str], output: Path) -> None:
    """Run a case, and write its error, if any, next to its output."""
    error = None
    try:
        run(arguments, output)
    except Exception as problem:  # of any kind, because the other side may not raise it
        traceback.print_exc()
        error = traceback.format_exception_only(problem)[-1].strip().splitlines()[-1]
    output.parent.joinpath(ENDING).write_text(json.dumps({"error": error}), encoding="utf-8")


def main() -> None:
    """Run the job of the command line."""
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    side = Side(Path(job["folder"]), job["sections"])
    if not job["cases"]:
        print(json.dumps(side.describe()))
        return
    if job["ray"]:  # one cluster for all runs; a run uses the cluster of its process
        import ray

        ray.init("local", num_cpus=NUM_CORES, include_dashboard=False, logging_level="warning")
    for case in job["cases"]:
        run_case(getattr(side, case["kind"]), case["arguments"], Path(case["output"]))


if __name__ == "__main__":
    main()
