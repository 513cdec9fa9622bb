#!/bin/sh
# Prepares a base of Debian or Ubuntu for what runs: packages, the user, folders. Arguments: packages beside those below.
set -eu
export DEBIAN_FRONTEND=noninteractive
apt-get update -q
apt-get install -y -q --no-install-recommends ca-certificates tini "$@"
# Triton's stub is linked with the shared library of this Python, which has a package of its own.
python=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
apt-get install -y -q --no-install-recommends "libpython$python"
apt-get clean
rm -rf /var/lib/apt/lists/* /var/cache/debconf/*-old /var/log/apt /var/log/dpkg.log
groupadd --gid 10001 tritone
useradd --uid 10001 --gid 10001 --home-dir /tmp --no-create-home --shell /usr/sbin/nologin tritone
mkdir -p /models /cache /work
chown 10001:10001 /cache
