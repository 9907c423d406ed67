"""`python -m rti_exp.roles`: how well a policy plays its roles on held-out failures of the town.

    python -m rti_exp.roles policy.path=FOLDER seed=1    any key of rti_exp.train
    python -m rti_exp.roles corrector=teacher            the teacher's corrections instead of the policy's
    python -m rti_exp.roles verifier=policy_and_rule     both judges in the verifier's confusion matrix

    plays=N        failures of each family (default 40; fewer for a larger model on a CPU)

The first table has the share of steps that the validator judges right, the corrections that pass each check of the
verifier, and the corrector's corrections with their perplexity under the rollout prompt. The second is the confusion
matrix of the verifier's judges on planted leaks and clean corrections. Exit code 0, or 2 for a bad config.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from rti_exp.config.check import check
from rti_exp.config.compose import CONFIG_ERRORS, bad_config, composed
from rti_exp.config.conversion import refuse_options
from rti_exp.config.role_settings import CorrectorSettings
from rti_exp.config.settings import SettingsError
from rti_exp.config.typed_config import Config
from rti_exp.experiment.checks import check_parts
from rti_exp.experiment.policies import PolicyLoader
from rti_exp.experiment.trainer import prepare_process
from rti_exp.runs.redaction import redact_output

if TYPE_CHECKING:
    from rti_exp.pretraining.role_accuracy import Row
    from rti_exp.pretraining.verifier_audit import ConfusionMatrix

PLAYS = 40
"""Held-out failures of each family."""


def main(arguments: Sequence[str] | None = None) -> int:
    redact_output()
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if {"-h", "--help"} & set(arguments):
        print((__doc__ or "").strip())
        return 0
    try:
        refuse_options(arguments)
        plays = _plays([text.partition("=")[2] for text in arguments if text.startswith("plays=")])
        config = check(composed([text for text in arguments if not text.startswith("plays=")]))
        check_parts(config)
        rows, matrices = measure(config, plays)
    except CONFIG_ERRORS as error:
        return bad_config(error)
    console = Console()
    title = f"roles of {config.policy.path}, {plays} held-out failures per family, seed {config.run.seed}"
    console.print(accuracy_table(title, rows))
    if matrices:
        console.print(confusion_table(matrices))
    return 0


def _plays(values: Sequence[str]) -> int:
    if not values:
        return PLAYS
    if not (values[-1].isdecimal() and int(values[-1]) >= 1):
        raise SettingsError(f"plays={values[-1]!r}: must be an integer >= 1")
    return int(values[-1])


def measure(config: Config, plays: int) -> tuple[list[Row], list[ConfusionMatrix]]:
    """The rows of both tables. Corrections are the policy's, or those of the model at `corrector.path`."""
    from rti_exp.pretraining.role_accuracy import RoleAccuracy
    from rti_exp.pretraining.verifier_audit import audit

    seed = config.run.seed
    prepare_process(seed, config.trainer.threads)
    loader = PolicyLoader(config.policy, config.engine, seed)
    policy = loader.policy()
    corrector, options = policy, config.corrector.options
    if isinstance(options, CorrectorSettings) and options.path is not None:
        corrector = loader.model(options.path, "corrector.path", None)
    accuracy = RoleAccuracy(
        engine=policy.engine,
        corrector=corrector.engine,
        renderer=policy.renderer,
        prompts=config.prompts,
        seed=seed,
        per_family=plays,
        max_tokens=config.rollout.max_tokens,
    )
    rows = accuracy.rows()
    matrices = audit(
        config.verifier.options,
        engine=policy.engine,
        renderer=policy.renderer,
        prompts=config.prompts,
        seed=seed,
        per_family=plays,
    )
    return rows, matrices


def accuracy_table(title: str, rows: Sequence[Row]) -> Table:
    table = Table("quantity", "case", title=title)
    table.add_column("value", justify="right")
    table.add_column("cases", justify="right")
    for row in rows:
        digits = 2 if row.quantity == "takes the right step" else 1
        value = f"{row.value:.2f}" if row.quantity == "perplexity, median" else f"{100 * row.value:.{digits}f}%"
        table.add_row(row.quantity, row.case, value, str(row.count))
    return table


def confusion_table(matrices: Sequence[ConfusionMatrix]) -> Table:
    """Rows are judges; columns count their verdicts on planted leaks and on clean corrections."""
    table = Table("judge", title="verifier on planted leaks and clean corrections, same failures")
    for column in ("leak: rejected", "leak: passed", "clean: rejected", "clean: passed", "right"):
        table.add_column(column, justify="right")
    for matrix in matrices:
        counts = (matrix.leaks_rejected, matrix.leaks_passed, matrix.clean_rejected, matrix.clean_passed)
        right = (matrix.leaks_rejected + matrix.clean_passed) / max(1, sum(counts))
        table.add_row(matrix.judge, *map(str, counts), f"{100 * right:.1f}%")
    return table


if __name__ == "__main__":
    sys.exit(main())
