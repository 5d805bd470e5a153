"""The system's C library, for what Python has no function for."""

import ctypes

LIBC = ctypes.CDLL(None)
_ACTION_BYTES = 256  # more than a `struct sigaction` has


def action_at(signal_number: int) -> ctypes.Array:
    """What this process does at a signal, as a `struct sigaction`.

    Python knows only of handlers that it has set itself. The system also knows of compiled code's.
    """
    action = ctypes.create_string_buffer(_ACTION_BYTES)
    LIBC.sigaction(signal_number, None, action)
    return action
