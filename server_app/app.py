"""The Flower ServerApp."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from conf import compose
from server_app.in_process import InProcessGrid
from server_app.loop import run

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run one job: the run config's ``experiment`` and ``overrides``, into ``output-dir``."""
    config = context.run_config
    composed = compose(str(config["experiment"]), str(config["overrides"]))
    engine = "in-process" if isinstance(grid, InProcessGrid) else "flower"
    run(grid, composed, str(config["output-dir"]), engine=engine)
