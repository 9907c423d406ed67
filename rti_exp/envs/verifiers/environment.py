"""An environment of the package `verifiers` as an `Environment`: its rows are tasks, its rubric the reward."""

from __future__ import annotations

import functools
import json
import signal
import threading
from typing import Annotated, Any

from annotated_types import Ge

from rti_exp.config.fields import Count, FinitePositive
from rti_exp.config.settings import SettingsError
from rti_exp.envs.required_packages import require
from rti_exp.envs.verifiers.episode import VerifiersEpisode
from rti_exp.envs.verifiers.scoring import record_errors
from rti_exp.types import Task

INSTALL = "pip install 'rti-exp[verifiers]', then pip install --no-deps verifiers==0.1.14"
NEEDED = ("verifiers", "datasets", "anthropic", "agents", "prime_sandboxes", "msgpack", "setproctitle", "aiolimiter")


class Verifiers:
    """`verifiers.load_environment(name, **arguments)`, turn by turn.

    Args:
        name: an installed environment, or a module on the Python path with `load_environment`.
        arguments: its keyword arguments.
        heldout_every: if there is no separate evaluation set, one row in `heldout_every` is held out.
        train_tasks: largest number of training rows; null: all.
        heldout_tasks: largest number of held-out rows; null: all.
        max_turns: assistant turns an episode may take; the environment's limit applies too.
        seconds: how long the environment may take for one answer, and its rubric for a reward.

    Raises:
        SettingsError: the extra is not installed, or the environment cannot be loaded or run turn by turn.
        ValueError: an invalid value.
    """

    def __init__(
        self,
        *,
        name: str,
        arguments: dict[str, Any] | None,
        heldout_every: Annotated[int, Ge(2)],
        train_tasks: Count | None,
        heldout_tasks: Count | None,
        max_turns: Count,
        seconds: FinitePositive,
    ) -> None:
        if not name:
            raise ValueError("env.name='': must be the name of a verifiers environment, as load_environment takes it")
        require(NEEDED, purpose="env=verifiers", install=INSTALL)
        self.max_turns = max_turns
        self._seconds = seconds
        self._world = loaded(name, json.dumps(arguments or {}, sort_keys=True))
        self._rows = _rows(self._world, heldout_every)
        self._most = {"train": train_tasks, "heldout": heldout_tasks}

    def tasks(self, split: str) -> list[Task]:
        if split not in self._rows:
            raise ValueError(f'no split {split!r} of a verifiers environment: use "train" or "heldout"')
        return [
            Task(id=f"{place}/{row['example_id']}", family=family(row, self._world), split=split, payload={"row": row})
            for place, row in self._rows[split][: self._most[split]]
        ]

    def start(self, task: Task) -> VerifiersEpisode:
        return VerifiersEpisode(task, world=self._world, seconds=self._seconds)


def family(row: dict[str, Any], world: Any) -> str:
    """The row's task if it names one, else the environment."""
    named = row.get("task")
    return named if isinstance(named, str) and named else (world.env_id or type(world).__name__)


_loading = threading.Lock()


def loaded(name: str, arguments: str) -> Any:
    """The environment, loaded once per process for each name and arguments (as JSON).

    Raises:
        SettingsError: it cannot be loaded, or cannot be run turn by turn.
    """
    with _loading:
        return _load(name, arguments)


@functools.cache
def _load(name: str, arguments: str) -> Any:
    from verifiers.envs.multiturn_env import MultiTurnEnv  # pyright: ignore[reportMissingImports]
    from verifiers.utils.env_utils import load_environment  # pyright: ignore[reportMissingImports]

    if threading.current_thread() is not threading.main_thread():
        raise SettingsError(f"env.name={name!r}: a verifiers environment must be loaded in the main thread")
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        world = load_environment(name, **json.loads(arguments))
    except Exception as error:  # third-party code
        raise SettingsError(f"env.name={name!r}: cannot be loaded ({type(error).__name__}: {error})") from error
    finally:  # it replaces the handlers of Ctrl-C
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if not isinstance(world, MultiTurnEnv):
        raise SettingsError(
            f"env.name={name!r}: is a {type(world).__name__}; a verifiers.MultiTurnEnv (ToolEnv, SingleTurnEnv, ...) "
            "can be run turn by turn"
        )
    if world.requires_group_rollouts:
        raise SettingsError(f"env.name={name!r}: its rubric scores groups; it must score single rollouts")
    record_errors(world.rubric)
    return world


def _rows(world: Any, heldout_every: int) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """Split -> (name of the dataset, row) of each task, as plain JSON."""
    if world.dataset_source is not None and world.eval_dataset_source is not None:
        return {
            "train": [("train", _plain(row)) for row in world.get_dataset()],
            "heldout": [("eval", _plain(row)) for row in world.get_eval_dataset()],
        }
    rows = [("all", _plain(row)) for row in (world.get_dataset() if world.dataset_source else world.get_eval_dataset())]
    return {
        "train": [row for number, row in enumerate(rows, start=1) if number % heldout_every],
        "heldout": rows[heldout_every - 1 :: heldout_every],
    }


def _plain(row: Any) -> dict[str, Any]:
    """
    Raises:
        ValueError: the row has no JSON form.
    """
    try:
        return json.loads(json.dumps(dict(row)))
    except TypeError as error:
        raise ValueError(f"env.name: a row of its dataset has no JSON form ({error})") from error
