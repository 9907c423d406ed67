"""The embedded world: a small town with tools, a phone company, a bank and a shop."""

from rti_exp.envs.town.world import Town

__all__ = ["Town"]
