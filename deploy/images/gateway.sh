#!/bin/sh
# The gateway in front of $TRITON. Arguments are those of `tritone gateway`.
exec tritone gateway --url "$TRITON" --host "$LISTEN" "$@"
