"""τ²-bench as an environment: retail, airline, telecom (the user has tools too) and its small mock domain."""

from rti_exp.envs.tau2.environment import Tau2

__all__ = ["Tau2"]
