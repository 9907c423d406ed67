"""Claw-Eval: an assistant's work over mock services (mail, calendar, CRM, ...), from a checkout of the benchmark."""

from rti_exp.envs.claw_eval.environment import ClawEval

__all__ = ["ClawEval"]
