#!/bin/sh
# Renders the plain manifests again: each file of values/ into plain/, or into the folder that is given. Needs helm.
set -eu
folder=$(cd "$(dirname "$0")" && pwd)
target=${1:-$folder/plain}
mkdir -p "$target"
for values in "$folder"/values/*.yaml; do
	"${HELM:-helm}" template tritone "$folder/chart" --namespace tritone --values "$values" \
		>"$target/$(basename "$values")"
done
