"""What every test rests on."""

from __future__ import annotations

import signal

# A shell that starts a job in the background without job control has it ignore Ctrl-C, and children
# inherit that: tests that interrupt a command would then wait for nothing.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
