"""Lines of a log as JSON, for programs that collect them."""

import json
import logging
from datetime import UTC, datetime


class JsonLines(logging.Formatter):
    """Formats each record as an object on a line of its own.

    {"time": "2026-11-28T09:30:00.123+00:00", "level": "WARNING", "logger": "tritone.gateway", "message": "..."}

    A message of a logger whose name ends in `access` is such an object already.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record, with the trace of its exception, if it has one."""
        message = record.getMessage()
        if record.name.endswith(".access"):
            return message
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).astimezone().isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": message,
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)
