"""What benchmarks share."""

from __future__ import annotations

import resource
import sys
from pathlib import Path


def peak_mb() -> float:
    """The most memory this process has held. Linux hands `ru_maxrss` down to children, so its own account is asked first."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << (20 if sys.platform == "darwin" else 10))
