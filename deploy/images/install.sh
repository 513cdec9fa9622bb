#!/bin/sh
# Makes the environment /opt/tritone: Tritone and, in the same resolution, packages of the user's.
#
# Arguments: what to install, "tritone[EXTRAS]", "client" or "gateway"; the name of a requirements file in /requirements, or "";
# further packages. WITHOUT: a package to take out again. ONNXRUNTIME: what takes the place of onnxruntime, same version.
set -eu
what=$1
requirements=$2
shift 2

# Settings of the machine that builds, where they are given as secrets: never part of an image.
if [ -f /run/secrets/pip-conf ]; then export PIP_CONFIG_FILE=/run/secrets/pip-conf; fi
if [ -f /run/secrets/ca-bundle ]; then export PIP_CERT=/run/secrets/ca-bundle; fi
export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_CONSTRAINT=/source/constraints.txt PIP_BUILD_CONSTRAINT=/source/constraints.txt

python3 -m venv /opt/tritone
pip=/opt/tritone/bin/pip
$pip wheel --no-deps --wheel-dir /wheels /source
wheel=$(echo /wheels/tritone-*.whl)
extras=${what#tritone}
if [ "$extras" = "[]" ]; then extras=""; fi

set -- --only-binary :all: "$@"
if [ -n "$requirements" ]; then set -- "$@" --requirement "/requirements/$requirements"; fi
if [ "$what" = gateway ]; then set -- --requirement /source/images/gateway.txt "$@"; fi
if [ "$what" = client ] || [ "$what" = gateway ]; then
    # Neither has a use for the engine, onnxruntime and compilers, which are most of what Tritone depends on.
    $pip install --progress-bar off --requirement /source/images/client.txt "$@"
    $pip install --progress-bar off --no-deps "$wheel"
    rm -r /opt/tritone/lib/python3.*/site-packages/tritone/bundles  # models to serve or to run in process
else
    $pip install --progress-bar off "$wheel$extras" "$@"
    $pip check
fi
if [ -n "${ONNXRUNTIME:-}" ] && [ "$ONNXRUNTIME" != onnxruntime ]; then
    version=$(/opt/tritone/bin/python -c 'from importlib.metadata import version; print(version("onnxruntime"))')
    $pip uninstall --quiet --yes onnxruntime
    $pip install --progress-bar off --no-deps --only-binary :all: "$ONNXRUNTIME==$version"
fi
if [ -n "${WITHOUT:-}" ]; then $pip uninstall --quiet --yes "$WITHOUT"; fi
$pip freeze --exclude tritone >/opt/tritone/versions.txt
$pip uninstall --quiet --yes pip setuptools

# What nobody runs: tests of packages, 30 MB, and what the engine's wheel has for other versions of Python, 40 MB.
packages=$(/opt/tritone/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
python=$(/opt/tritone/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')
for package in gevent matplotlib numba numpy zope; do
    if [ -d "$packages/$package" ]; then find "$packages/$package" -type d -name tests -prune -exec rm -r {} +; fi
done
# Symbols for debuggers, 40 MB in these four.
find "$packages/ml_dtypes" "$packages/kiwisolver" "$packages"/rapidjson*.so "$packages"/_brotli*.so -name '*.so' -exec strip --strip-debug {} + 2>/dev/null || true
stubs=$packages/pytriton/tritonserver/python_backend_stubs
if [ -d "$stubs" ]; then
    find "$stubs" -mindepth 1 -maxdepth 1 ! -name "$python" -exec rm -r {} +
    if [ "$python" != 3.13 ]; then rm "$packages"/nvidia_pytriton.libs/libpython3-*.13.so.*; fi
fi
# The file system is read-only later: byte code is written now, and not at each start.
python3 -m compileall -q /opt/tritone/lib || true
