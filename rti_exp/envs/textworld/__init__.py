"""Text games of TextWorldExpress: fast, with short prompts, each game from a seed."""

from rti_exp.envs.textworld.environment import TextWorldExpress

__all__ = ["TextWorldExpress"]
