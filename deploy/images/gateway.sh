#!/bin/sh
# The gateway in front of $TRITON. Arguments are those of `tritone gateway`.
exec tritone gateway --triton "$TRITON" --host "$LISTEN" "$@"
