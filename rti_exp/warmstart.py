"""`python -m rti_exp.warmstart`: train an embedded policy and its teacher into transformers folders.

With `policy=...` it fine-tunes that language model on the same corpus instead. `policy` and its keys are those of
rti_exp.train; the other keys are in conf/warmstart.yaml and conf/finetune.yaml.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import hydra
from omegaconf import DictConfig, OmegaConf

from rti_exp.config.compose import CONFIG_ERRORS, bad_config
from rti_exp.config.conversion import typed
from rti_exp.config.paths import assets_root
from rti_exp.config.secrets import refuse_secret_arguments
from rti_exp.pretraining import fine_tuning
from rti_exp.pretraining.embedded_models import train_embedded_models
from rti_exp.pretraining.recipe import WarmstartSettings
from rti_exp.processes.signals import signals_as_interrupt
from rti_exp.runs.redaction import redact_output


def main() -> None:
    redact_output()
    OmegaConf.register_new_resolver("rti_exp.assets", lambda: str(assets_root()), replace=True)
    former = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"  # otherwise Hydra exits with 1 for a bad config
    configs: list[dict[str, Any]] = []

    def collect(cfg: DictConfig) -> None:  # only this: Hydra prints an extra line for an error inside
        plain = OmegaConf.to_container(cfg, resolve=True)
        assert isinstance(plain, dict)
        configs.append({str(key): value for key, value in plain.items()})

    try:
        refuse_secret_arguments(sys.argv[1:])
        with signals_as_interrupt():
            if fine_tuning.names_a_policy(sys.argv[1:]):
                fine_tuning.run(sys.argv[1:])
                return
            hydra.main(version_base="1.3", config_path=str(assets_root() / "conf"), config_name="warmstart")(collect)()
            for settings in [typed(WarmstartSettings, config, "") for config in configs]:
                folders = train_embedded_models(settings)
                print(f"measure them with: python -m rti_exp.roles policy.path={folders[0]}")
    except CONFIG_ERRORS as error:
        sys.exit(bad_config(error))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    finally:
        if former is None:
            os.environ.pop("HYDRA_FULL_ERROR", None)


if __name__ == "__main__":
    main()
