"""Run cases of same_bits.py in one checkout, which the PYTHONPATH names.

    python -P benchmarks/same_bits_side.py JOB

``JOB`` is a JSON file: the checkout's folder, its words (same_bits.toml) and the cases, in the
checkout's words. Without cases it prints what the cases are made of.
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
"""The file beside a case's output that says how the case ended."""
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
"""What a drop-in strategy gets of what its constructor takes."""


class Side:
    """A checkout and its words."""

    def __init__(self, folder: Path, words: Mapping[str, Any]) -> None:
        self._folder = folder
        self._words = words

    def load(self, symbol: str) -> Any:
        """Import ``module:name``, given in the words of the first commit."""
        module, name = self._words["symbols"].get(symbol, symbol).split(":")
        found = import_module(module)
        if not Path(str(found.__file__)).resolve().is_relative_to(self._folder.resolve()):
            raise ImportError(f"{module} must be of {self._folder}, got {found.__file__}")
        return getattr(found, name)

    def describe(self) -> dict[str, list[str]]:
        """Return the names of all that there is a case for each of."""
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
                for name, found in public.items()
                if inspect.isclass(found) and issubclass(found, drop_in) and found is not drop_in
            ],
        }

    def run(self, words: list[str], output: Path) -> None:
        """Run one job."""
        self.load("fedquorum_app:run")("custom", *words, output=output, verbose=False)

    def resume(self, words: list[str], output: Path) -> None:
        """Run one job that stops early, and resume it, which a completed run would refuse."""
        *words, stop, resume = words
        with suppress(KeyboardInterrupt, self.load("fedquorum.errors:FedQuorumError")):
            self.run([*words, stop], output)
        self.run([*words, f"{resume}{output}"], output)

    def command(self, words: list[str], _: Path) -> None:
        """Run a command of pyproject.toml in this process."""
        project = tomllib.loads((self._folder / "pyproject.toml").read_text(encoding="utf-8"))
        module, name = project["project"]["scripts"][words[0]].split(":")
        sys.argv = list(words)
        try:
            status = getattr(import_module(module), name)()
        except SystemExit as end:
            status = end.code
        if status:
            raise RuntimeError(f"exit status {status}")

    def drop_in(self, words: list[str], output: Path) -> None:
        """Run a strategy of the library with a ClientApp that knows nothing of it."""
        [name] = words
        self._start(name, _make_stock_app(), {}, NUM_NODES, output)

    def run_native(self, words: list[str], output: Path) -> None:
        """Run a strategy of the library with this project's ClientApp."""
        name, *overrides = words
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
        takes = inspect.signature(strategy).parameters
        given = {**ARGUMENTS, "records": str(output), **arguments}
        named = {self._words["arguments"].get(key, key): value for key, value in given.items()}
        made = strategy(**{key: value for key, value in named.items() if key in takes})
        arrays = {
            "linear.weight": Array(np.full((10, 60), 0.01, dtype=np.float32)),
            "linear.bias": Array(np.zeros(10, dtype=np.float32)),
        }
        grid = self.load("fedquorum_app:InProcessGrid")(app, config, nodes)
        made.start(grid, ArrayRecord(arrays), num_rounds=NUM_ROUNDS)


def _make_stock_app() -> Any:
    """Return a ClientApp in Flower's form, whose "training" draws numbers."""
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
        moved = {
            name: Array(array.numpy() + rng.normal(0, 0.1, array.shape).astype(np.float32))
            for name, array in message.content["arrays"].items()
        }
        metrics = {"num-examples": 10 + context.node_id, "loss": float(rng.random())}
        content = {"arrays": ArrayRecord(moved), "metrics": MetricRecord(metrics)}
        return Message(RecordDict(content), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        size = float(np.abs(message.content["arrays"]["linear.bias"].numpy()).sum())
        metrics = {"num-examples": 5 + context.node_id, "loss": size, "accuracy": 1 / (1 + size)}
        return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

    return app


def run_case(act: Callable[[list[str], Path], None], words: list[str], output: Path) -> None:
    """Run a case; write how it ended beside its output."""
    error = None
    try:
        act(words, output)
    except Exception as problem:  # whatever it is, the other side may differ
        traceback.print_exc()
        error = traceback.format_exception_only(problem)[-1].strip().splitlines()[-1]
    output.parent.joinpath(ENDING).write_text(json.dumps({"error": error}), encoding="utf-8")


def main() -> None:
    """Do the job in the file that the command line names."""
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    side = Side(Path(job["folder"]), job["words"])
    if not job["cases"]:
        print(json.dumps(side.describe()))
        return
    if job["ray"]:  # one cluster for all runs: a run uses the one that its process is in
        import ray

        ray.init("local", num_cpus=NUM_CORES, include_dashboard=False, logging_level="warning")
    for case in job["cases"]:
        run_case(getattr(side, case["kind"]), case["words"], Path(case["output"]))


if __name__ == "__main__":
    main()
