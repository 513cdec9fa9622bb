"""Where kinds stood before 0.2, for packages that have one: `Kind` and its constants are in `tritone.kinds`."""

import sys
import warnings

from tritone.pipelines import kind

warnings.warn("tritone.pipelines.kinds goes with 0.3: use tritone.kinds", DeprecationWarning, stacklevel=2)
sys.modules[f"{__name__}.base"] = kind
