"""Environments of the package `verifiers`, its classic API: `load_environment`, `MultiTurnEnv`, `Rubric`."""

from rti_exp.envs.verifiers.environment import Verifiers

__all__ = ["Verifiers"]
