"""What tests of code that uses procsched may want: a clock that only moves when it is told to."""

from procsched.testing.clock import FakeClock as FakeClock
