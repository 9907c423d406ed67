"""Budgets of a run: tokens and accepted corrections. Both counters are part of a checkpoint."""

from __future__ import annotations

from rti_exp.config.job_settings import BudgetSettings
from rti_exp.training.iteration import Iteration


class Budget:
    """Counts what the iterations of all ranks spent.

    Attributes:
        tokens_spent: Tokens generated and scored so far, roles and teachers included.
        accepted: Corrections accepted so far.
    """

    def __init__(self, settings: BudgetSettings) -> None:
        self.settings = settings
        self.tokens_spent = 0
        self.accepted = 0

    def charge(self, iteration: Iteration) -> None:
        self.tokens_spent += sum(iteration.tokens.values())
        self.accepted += iteration.accepted

    @property
    def exhausted(self) -> bool:
        """Whether training ends: the token budget is spent."""
        return self.tokens_spent >= self.settings.tokens

    @property
    def allows_interventions(self) -> bool:
        """Whether interventions continue: the budget of accepted corrections is not spent."""
        return self.accepted < self.settings.accepted
