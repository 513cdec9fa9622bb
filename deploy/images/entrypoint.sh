#!/bin/sh
# Serves $MODELS, a folder or an address such as s3://bucket/folder. Arguments are those of `tritone serve`.
exec tritone serve "$MODELS" --host "$LISTEN" "$@"
