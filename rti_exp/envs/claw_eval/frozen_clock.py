"""A clock that stands still, for programs that put the time into their answers, so that a replay matches."""

from __future__ import annotations

import datetime
import os

VARIABLE = "RTI_EXP_NOW"


def freeze() -> None:
    """Make `datetime.now`, `utcnow` and `today` return `RTI_EXP_NOW` in modules that are imported later."""
    moment = datetime.datetime.fromisoformat(os.environ[VARIABLE])

    class Frozen(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:  # pyright: ignore
            return moment.astimezone(tz) if tz is not None else moment.replace(tzinfo=None)

        @classmethod
        def utcnow(cls) -> datetime.datetime:  # pyright: ignore
            return moment.astimezone(datetime.UTC).replace(tzinfo=None)

        @classmethod
        def today(cls) -> datetime.datetime:  # pyright: ignore
            return moment.replace(tzinfo=None)

    class FrozenDate(datetime.date):
        @classmethod
        def today(cls) -> datetime.date:  # pyright: ignore
            return moment.date()

    datetime.datetime = Frozen  # pyright: ignore
    datetime.date = FrozenDate  # pyright: ignore
