"""The schedules that procsched gives: pure values that yield due times.

Importing this package is cheap: what cron needs (`datetime`, `zoneinfo`, `cronsim`) is imported with the
first `CronSchedule`.
"""

from __future__ import annotations

from procsched.schedules.cron import CronSchedule
from procsched.schedules.interval import FixedDelay, FixedRate
from procsched.schedules.once import After, OneTime

__all__ = ["After", "CronSchedule", "FixedDelay", "FixedRate", "OneTime"]
