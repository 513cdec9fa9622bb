"""Python runs this first in each process that a run with `--switch-interval` starts; see tests/conftest.py."""

import os
import sys

if interval := os.environ.get("TRITONE_TEST_SWITCH_INTERVAL"):
    sys.setswitchinterval(float(interval))
