"""`python -m rti_exp.evaluate`: pass@k of a checkpoint, a policy or a remote model, without interventions.

    python -m rti_exp.evaluate run=runs/single/1ff1e526cb9e      the run's settings and its newest weights
    python -m rti_exp.evaluate run=single/1ff1e526cb9e           or run=1ff1e5: a key under runs_root, or its start
    python -m rti_exp.evaluate policy=tiny eval.tasks=84         a policy; any key of rti_exp.train
    python -m rti_exp.evaluate policy=hf policy.path=hub:Qwen/Qwen3-0.6B env=...
    python -m rti_exp.evaluate policy=... checkpoint=runs/single/1ff1e526cb9e/checkpoints/iteration-000060.pt
    python -m rti_exp.evaluate policy=remote policy.remote.base_url=https://api.openai.com/v1 \\
        policy.remote.model=gpt-4.1 policy.remote.api_key=OPENAI_API_KEY eval.temperature=0
    python -m rti_exp.evaluate run=... eval.samples=16 seed=1

    out=FOLDER     where the rollouts go (default: evaluations/NAME-KEY). The same command resumes an interrupted
                   evaluation; more eval.tasks or eval.samples add to the folder; fresh=true starts over
    shard=0/4      only every fourth task, starting with the first; four such processes may share one folder

Exit code 0, 1 if too many rollouts are infrastructure failures, 2 for a bad config, 130 if interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from rti_exp.config.compose import CONFIG_ERRORS, bad_config
from rti_exp.config.remote_settings import RemotePolicySettings
from rti_exp.config.typed_config import Config
from rti_exp.evaluation.evaluator import EvaluationFailed, evaluate
from rti_exp.evaluation.pass_rates import estimates
from rti_exp.evaluation.request import read_request
from rti_exp.runs.redaction import redact_output


def main(arguments: Sequence[str] | None = None) -> int:
    redact_output()
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if not arguments or {"-h", "--help"} & set(arguments):
        print((__doc__ or "").strip())
        return 0
    from rti_exp.engines.base import EngineUnusable

    try:
        request = read_request(arguments)
        result, folder = evaluate(request)
    except CONFIG_ERRORS as error:
        return bad_config(error)
    except (EvaluationFailed, EngineUnusable) as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the same command resumes the evaluation", file=sys.stderr)
        return 130
    Console(soft_wrap=True).print(table(result, request.config.evaluation.samples))
    for note in notes(request.config):
        print(note)
    print(f"rollouts and numbers: {folder}")
    return 0


def table(result: Mapping[str, Any], samples: int) -> Table:
    """pass@1, pass@k and pass^k by family and over all tasks, with 95% intervals over tasks."""
    ks = sorted({1, samples})
    failures = result["infrastructure_failures"]
    lost = f", {failures} lost to the infrastructure" if failures else ""
    rollouts = f"{result['rollouts']} of {result['wanted']} rollouts{lost}"
    columns = [*(f"pass@{k}" for k in ks), *(f"pass^{k}" for k in ks if k > 1)]
    title = f"held-out tasks after iteration {result['iteration']}: {rollouts}"
    shown = Table("family", "tasks", *columns, title=title, title_justify="left")
    families: dict[str, list[Mapping[str, Any]]] = {}
    for task in result["tasks"]:
        families.setdefault(task["family"], []).append(task)
    for family, tasks in {**families, "all": result["tasks"]}.items():
        rates = estimates(tasks, ks)
        shown.add_row(family, str(len(tasks)), *(_interval(rates[column]) for column in columns))
    return shown


def notes(config: Config) -> list[str]:
    """Notes that a reader of the table needs."""
    greedy = config.evaluation.temperature == 0 and config.evaluation.samples > 1
    if not greedy or isinstance(config.policy, RemotePolicySettings):
        return []
    return [
        "eval.temperature=0: all samples of a task are identical unless the environment draws at random; pass@k and "
        "pass^k then say no more than pass@1"
    ]


def _interval(rate: Mapping[str, float | int | None]) -> str:
    if rate["value"] is None:
        return "-"
    return f"{rate['value']:.3f} [{rate['low']:.3f},{rate['high']:.3f}]"


if __name__ == "__main__":
    sys.exit(main())
