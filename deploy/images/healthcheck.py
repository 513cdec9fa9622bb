"""Exit code 0 if the server is ready: HEALTH_URL answers 200. No certificate is checked: it is this machine."""

import os
import ssl
import sys
import urllib.request

try:
    with urllib.request.urlopen(
        os.environ["HEALTH_URL"], timeout=4, context=ssl._create_unverified_context()
    ) as answer:
        sys.exit(answer.status != 200)
except OSError as error:
    sys.exit(f"not ready: {error}")
