"""`python -m rti_exp.roles`: how well a policy plays its roles on held-out failures of the town.

Takes the same keys as rti_exp.train (`policy.path=...`, `seed=1`), and `plays=N`, the failures of each family
(default 40; fewer for a larger model on a CPU); prints a table: how often the validator
judges a step right, which corrections each check of the verifier lets pass, what the corrector writes and how
perplexing that is under the rollout prompt; for `corrector=teacher` the teacher's corrections. Then a confusion
matrix of the verifier's judges on planted leaks and clean corrections; `verifier=policy_and_rule` has both judges.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from rti_exp.config.check import Config, CorrectorSettings, check
from rti_exp.config.compose import CONFIG_ERRORS, bad_config, composed
from rti_exp.config.conversion import refuse_options
from rti_exp.config.group_settings import verifier_settings
from rti_exp.config.settings import SettingsError
from rti_exp.experiment.checks import check_parts
from rti_exp.experiment.policies import PolicyLoader
from rti_exp.experiment.trainer import prepare_process

if TYPE_CHECKING:
    from rti_exp.pretraining.verifier_audit import Matrix

PLAYS = 40
"""Failed held-out episodes per family."""


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if {"-h", "--help"} & set(arguments):
        print((__doc__ or "").strip())
        return 0
    try:
        refuse_options(arguments)
        plays, overrides = _plays(arguments)
        config = check(composed(overrides))
        check_parts(config)
        Console().print(*measure(config, plays=plays), sep="\n")
    except CONFIG_ERRORS as error:
        return bad_config(error)
    return 0


def _plays(arguments: Sequence[str]) -> tuple[int, list[str]]:
    """The number of failures, and the other arguments.

    Raises:
        SettingsError: it is no integer >= 1.
    """
    given = [text.partition("=")[2] for text in arguments if text.startswith("plays=")]
    if given and not (given[-1].isdecimal() and int(given[-1]) >= 1):
        raise SettingsError(f"plays={given[-1]!r}: must be an integer >= 1")
    return int(given[-1]) if given else PLAYS, [text for text in arguments if not text.startswith("plays=")]


def measure(config: Config, *, plays: int = PLAYS) -> list[Table]:
    """Both tables; the corrector's rows are the policy's own, or those of `corrector.path`."""
    from rti_exp.pretraining.prior import Prior
    from rti_exp.pretraining.role_accuracy import Probe
    from rti_exp.pretraining.verifier_audit import audit

    prepare_process(config.run.seed, config.trainer.threads)
    loader = PolicyLoader(config.policy, config.engine, config.run.seed)
    policy = loader.policy()
    writer, options = policy, config.corrector.options
    if isinstance(options, CorrectorSettings) and options.path is not None:
        writer = loader.model(options.path, "corrector.path", None)
    probe = Probe(
        engine=policy.engine,
        corrector=writer.engine,
        renderer=policy.renderer,
        prompts=config.prompts,
        prior=Prior(),
        seed=config.run.seed,
        plays=plays,
        max_tokens=config.rollout.max_tokens,
    )
    table = Table(title=f"roles of {config.policy.path}, {plays} held-out failures per family, seed {config.run.seed}")
    table.add_column("what")
    table.add_column("case")
    table.add_column("value", justify="right")
    table.add_column("cases", justify="right")
    for row in probe.rows():
        digits = 2 if row.what == "takes the right step" else 1
        value = f"{row.value:.2f}" if row.what == "perplexity, median" else f"{100 * row.value:.{digits}f}%"
        table.add_row(row.what, row.case, value, str(row.count))
    settings, role = verifier_settings(config.verifier.options)
    found = audit(
        settings,
        engine=policy.engine,
        renderer=policy.renderer,
        prompts=config.prompts,
        role=role,
        seed=config.run.seed,
        plays=plays,
    )
    return [table, *([confusion(found)] if found else [])]


def confusion(found: Sequence[Matrix]) -> Table:
    """Rows are judges, columns what they said of planted leaks and of clean corrections."""
    table = Table(title="verifier on planted leaks and clean corrections, same failures")
    table.add_column("judge")
    for column in ("leak: rejected", "leak: passed", "clean: rejected", "clean: passed", "right"):
        table.add_column(column, justify="right")
    for one in found:
        counts = (one.leaks_rejected, one.leaks_passed, one.clean_rejected, one.clean_passed)
        right = (one.leaks_rejected + one.clean_passed) / max(1, sum(counts))
        table.add_row(one.judge, *map(str, counts), f"{100 * right:.1f}%")
    return table


if __name__ == "__main__":
    sys.exit(main())
