"""Show Hydra the options that have no YAML file.

Hydra's store builds every schema when a process starts, and copies all for each composition. This
source builds an option when it is chosen.
"""

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

from conf.schema.option_schemas import list_option_names, list_options

SCHEME = "fedquorum"


class OptionSource(ConfigSource):
    """The options of ``conf.schema.option_schemas``, by path."""

    def __init__(self, provider: str, path: str) -> None:
        super().__init__(provider=provider, path=path)
        self._options = list_options()
        self._names = list_option_names()

    @staticmethod
    def scheme() -> str:
        """Return the scheme of this source in Hydra's search path."""
        return SCHEME

    def available(self) -> bool:
        """Return True: the options are part of the code."""
        return True

    def is_group(self, config_path: str) -> bool:
        """Return whether ``config_path`` is a group that has options here."""
        return config_path.strip("/") in self._names

    def is_config(self, config_path: str) -> bool:
        """Return whether ``config_path`` is an option."""
        return _to_key(config_path) in self._options

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        """Return the sorted names of the groups and the options directly below ``config_path``."""
        names: list[str] = []
        parent = config_path.strip("/")
        for name in self._names.get(parent, ()):
            path = f"{parent}/{name}" if parent else name
            self._list_add_result(names, path, name, results_filter)
        return sorted(names)

    def load_config(self, config_path: str) -> ConfigResult:
        """Return a new node of an option.

        Raises
        ------
        ConfigLoadError
            If there is no such option.
        """
        option = self._options.get(_to_key(config_path))
        if option is None:
            raise ConfigLoadError(f"there is no option {config_path}")
        return ConfigResult(
            config=OmegaConf.structured(option.node),
            path=self.full_path(),
            provider=self.provider,
            header={"package": option.package},
        )

    def __deepcopy__(self, memo: object) -> "OptionSource":
        """Return the source itself, which never changes; Hydra copies it for each composition."""
        return self


class OptionSearchPath(SearchPathPlugin):
    """Appends the source to the search path of applications whose settings are in ``conf``."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Append ``fedquorum://`` behind ``pkg://conf``."""
        if any(element.path == "pkg://conf" for element in search_path.get_path()):
            search_path.append(provider=SCHEME, path=f"{SCHEME}://")


def register_option_source() -> None:
    """Add the source to Hydra, which forgets it with its other plugins when a state is set."""
    Plugins.instance().register(OptionSource)
    Plugins.instance().register(OptionSearchPath)


def _to_key(config_path: str) -> str:
    return config_path.strip("/").removesuffix(".yaml")
