"""The Flower ServerApp."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.exit import add_exit_handler

from conf import compose
from server_app.in_process import SimulationGrid
from server_app.loop import run

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run one job: the run config's ``experiment`` and ``overrides``, into ``output-dir``."""
    config = context.run_config
    composed = compose(str(config["experiment"]), str(config["overrides"]))
    output_dir = str(config["output-dir"])
    if isinstance(grid, SimulationGrid):
        run(grid, composed, output_dir, engine=grid.engine)
    else:
        # flwr stop ends the process from its main thread; this code runs in another one.
        run(grid, composed, output_dir, engine="flower", at_exit=add_exit_handler)
