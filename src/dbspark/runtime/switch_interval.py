"""How soon a tick gets the interpreter's lock (GIL) back from the user's threads.

A tick gives the GIL up whenever it calls a kernel that runs without it, some twenty times. If another thread computes
in Python, each time that thread keeps the GIL for `sys.getswitchinterval()`, 5 ms by default: a tick of 1 ms would
last for 15. So the interval is short while ticks run, and has its former value between them.

The interval is one for the process. Ticks of several pipelines may overlap: the first one shortens it, the last one
restores it, unless other code has set it meanwhile.
"""

from __future__ import annotations

import sys
import threading
from typing import Final

SWITCH_INTERVAL_S: Final = 5e-5
"""Seconds, while a tick runs. A switch between threads takes some 5 us, so a tenth of the time is lost to switching at
worst; a tick of 100 rows beside a busy thread takes 2.2 ms instead of 15 (two cores)."""


class SwitchInterval:
    """A context in which waiting threads are given the GIL after `SWITCH_INTERVAL_S`. It may be entered many times."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entered = 0
        self._before = self._set = 0.0

    def __enter__(self) -> None:
        with self._lock:
            self._entered += 1
            if self._entered == 1:
                self._before = sys.getswitchinterval()
                sys.setswitchinterval(min(SWITCH_INTERVAL_S, self._before))
                self._set = sys.getswitchinterval()  # rounded to microseconds

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._entered -= 1
            if self._entered == 0 and sys.getswitchinterval() == self._set:
                sys.setswitchinterval(self._before)


SHORT_TURNS: Final = SwitchInterval()
"""The instance of this process."""
