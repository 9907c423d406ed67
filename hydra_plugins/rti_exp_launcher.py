"""Hydra finds plugins in this namespace package only; the launcher itself is `rti_exp.sweep.launcher`."""

from hydra.core.config_store import ConfigStore

from rti_exp.sweep import launcher


class ProcessLauncher(launcher.ProcessLauncher):
    """`hydra/launcher=processes`."""


ConfigStore.instance().store(group="hydra/launcher", name="processes", node=launcher.LauncherConfig, provider="rti_exp")
