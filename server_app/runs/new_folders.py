"""Give every run and sweep that Hydra starts a separate folder.

Hydra names a folder by the second, and takes one that exists. Runs that a script starts in the same
second would therefore share it.
"""

from pathlib import Path
from typing import Any

from fedquorum.records.run_dir import create_new_directory
from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, read_write

from conf.compose import quote

TIME_SIGN = "${now:"


class NewFolders(Callback):
    """Creates the folder of a run if its name has the time; a sweep does so after its checks.

    A folder that the user names without the time stays as it is: a run resumes there, or a sweep
    continues.
    """

    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        """Create the folder of a single run."""
        replace_folder(config, "run")


def replace_folder(config: DictConfig, kind: str) -> None:
    """Replace ``hydra.<kind>.dir``, of a run or a sweep, by a new folder if it has the time."""
    given = OmegaConf.to_container(config.hydra[kind], resolve=False)
    assert isinstance(given, dict)
    if TIME_SIGN not in str(given["dir"]):
        return
    HydraConfig.instance().set_config(config)  # the name may need it
    try:
        folder = str(create_new_directory(Path(str(config.hydra[kind].dir))))
    except OSError:
        return  # the run or the sweep fails there too, and says so
    with read_write(config.hydra):
        config.hydra[kind].dir = folder
        # Hydra composes the settings of each job of a sweep anew, from the overrides.
        config.hydra.overrides.hydra.append(f"hydra.{kind}.dir={quote(folder)}")
