"""BFCL multi-turn (Berkeley function calling leaderboard, version 4): 800 conversations over eight simulated APIs.

The package `bfcl-eval` provides tasks, APIs and checker. Its runner executes the model's text with `eval` and keeps
API instances in module globals. Here calls are dispatched by name, and each episode has separate instances.
"""

from rti_exp.envs.bfcl.environment import Bfcl

__all__ = ["Bfcl"]
