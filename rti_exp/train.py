"""`python -m rti_exp.train`: one run, or with -m a sweep.

Exit code: 0 all done, 1 a job failed, 2 bad config, 130 interrupted. This module imports no torch; a job
does (rti_exp.sweep.job), after its config has been checked and unless it is done already.
"""

from __future__ import annotations

import os
import sys
import traceback

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rti_exp.config.conversion import explain, likely
from rti_exp.config.paths import assets_root
from rti_exp.config.secrets import refuse_secret_arguments
from rti_exp.config.settings import SettingsError
from rti_exp.runs import RunUnwritable
from rti_exp.runs.redaction import redact_output
from rti_exp.sweep import launcher
from rti_exp.sweep.overrides import study_name, swept_in

FAILED = 1

OmegaConf.register_new_resolver("rti_exp.assets", lambda: str(assets_root()), replace=True)


def task(cfg: DictConfig) -> None:
    """One job in this process: the whole of a single run, or one job of another launcher's sweep."""
    from rti_exp.sweep import job, launcher

    hydra_config = HydraConfig.get()
    overrides = list(hydra_config.overrides.task)
    if hydra_config.mode is RunMode.MULTIRUN:
        code = job.run_job(cfg, overrides=overrides, default_study=os.environ.get(launcher.STUDY, "sweep"))
        if code:
            raise RuntimeError(f"the job ended with exit code {code}")
        return
    try:
        launcher.outcome.code = job.run_job(cfg, overrides=overrides)
    except (SettingsError, RunUnwritable) as error:
        launcher.outcome.code = _bad_config(str(error))


def main() -> None:
    redact_output()
    launcher.outcome.code, launcher.outcome.study_dir = 0, None
    asked_for_traceback = os.environ.get("HYDRA_FULL_ERROR") == "1"
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra would exit with 1 for a bad config as for a failed job
    try:
        refuse_secret_arguments(sys.argv[1:])
        os.environ[launcher.STUDY] = study_name(swept_in(sys.argv[1:]))
        hydra.main(version_base="1.3", config_path=str(assets_root() / "conf"), config_name="train")(task)()
    except (SettingsError, RunUnwritable) as error:
        sys.exit(_bad_config(str(error)))
    except (HydraException, OmegaConfBaseException) as error:
        if asked_for_traceback:
            traceback.print_exc()
        sys.exit(_bad_config(explain(error)))
    except ValueError as error:  # Hydra's own, of `gate=null`
        if asked_for_traceback:
            traceback.print_exc()
        hints = [likely(*text.partition("=")[::2]) for text in sys.argv[1:]]
        sys.exit(_bad_config(str(error) + next(filter(None, hints), "")))
    except OSError as error:
        sys.exit(_bad_config(f"{error.filename}: cannot be created or written ({error.strerror})"))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except RuntimeError as error:  # another launcher's job, which has printed and recorded its own error
        if asked_for_traceback:
            traceback.print_exc()
        print(error, file=sys.stderr)
        launcher.outcome.code = FAILED
    finally:
        if not asked_for_traceback:
            os.environ.pop("HYDRA_FULL_ERROR", None)
    if launcher.outcome.study_dir is not None:
        from rti_exp.sweep.display import next_commands, show_results

        show_results(launcher.outcome.study_dir)
        print(*next_commands(launcher.outcome.study_dir), sep="\n")
    sys.exit(launcher.outcome.code)


def _bad_config(message: str) -> int:
    print(f"bad config: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    main()
