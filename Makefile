# Everything one runs here. Each target sets up by itself what it needs, in .venv; nothing outside
# this folder changes, except that `make controlplane` keeps its programs in the user's cache.

PYTHON ?= python3
# Another one for another Python: make test VENV=.venv-3.13 PYTHON=python3.13
VENV ?= .venv
BIN := $(VENV)/bin
RUNTIME := $(VENV)/.runtime
INSTALLED := $(VENV)/.installed
UV := 0.13.9
CYCLONEDX := 7.5.0

# Further options of pytest, as in PYTEST="-k ledger".
PYTEST ?=
# Processes that run tests: three for each core, since most tests wait for a process or a socket.
WORKERS ?= $(shell expr 3 '*' $$(getconf _NPROCESSORS_ONLN))
# Processes that run tests with a real control plane, each with planes of its own: most tests wait.
PLANES ?= 2
# Of Kubernetes, for the tests with a real control plane: make controlplane e2e VERSION=1.30.14
VERSION ?= 1.37.0
# Of Kubernetes, for make e2e-all: the oldest that is supported first.
RELEASES ?= 1.30.14 1.34.4 $(VERSION)
# The folder of a release.
RELEASE ?= build/release
# Of stories, for the long proof; none: those that every change has to pass.
SEEDS ?=
CONTROLPLANE := tests/e2e/controlplane/build.sh
# With a lock file each; both together run with requirements.lock.
IMAGES := extender device-plugin
TOOL := tests/e2e/tools/build.sh
# Tests of the heart: core, wire and the ledger, and the verbs above them.
HEART := tests/unit/core tests/unit/wire tests/unit/ledger tests/unit/extender

# Where it is set, each of the hundreds of processes that tests start compiles the package anew, and
# each that runs tests rewrites them all.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo venv test pages faults e2e e2e-all bench proof lint types format branches check controlplane helm promtool firstfit limit coscheduling kueue nvidia-container-runtime actionlint krew kubectl lock sbom images release clean
# A target that fails leaves no file that looks finished.
.DELETE_ON_ERROR:

help: ## say what there is
	@sed -n 's/^\([a-z0-9-]*\):[^#]*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 18

demo: $(RUNTIME) ## try it: pods share GPUs on a cluster that lives in this machine's memory
	@$(BIN)/gpushare demo

venv: $(RUNTIME) ## make .venv with what the extender, the demo and the simulator need

test: $(INSTALLED) ## the unit, contract and integration tests
	@# In a new clone: compiled once, and not by each process for itself.
	@[ -d tests/unit/__pycache__ ] || $(BIN)/python -m pytest --collect-only -qq >/dev/null || :
	@PATH="$$PATH:$$($(CONTROLPLANE) --built $(VERSION))" \
	  $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -p tests.support.parts --durations=5 $(PYTEST)

pages: $(INSTALLED) ## do what README, docs/start.md and the tour say, as printed (1 min)
	@PATH="$$PATH:$$($(CONTROLPLANE) --built $(VERSION))" $(BIN)/python -m pytest -n 2 tests/pages $(PYTEST)

faults: $(INSTALLED) ## short stories with faults, mutants that they must find, short fuzzing (1 min)
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -p tests.support.parts --durations=5 \
	  tests/simulation tests/badinput $(PYTEST)

e2e: $(INSTALLED) ## the tests with a real kube-apiserver, kube-scheduler, kubelet, etcd and kubectl
	@export KUBERNETES_VERSION=$(VERSION); built=$$($(CONTROLPLANE) --built $(VERSION)) || exit; \
	programs=$${KUBEBUILDER_ASSETS:-$$built}; \
	if [ ! -x "$$programs/kube-apiserver" ]; then \
	  echo "e2e: skipped, there is no kube-apiserver; \`make controlplane VERSION=$(VERSION)\`" \
	    "builds one with Go, or KUBEBUILDER_ASSETS names a folder that has one"; exit 0; \
	fi; \
	export PATH="$$programs:$$built:$$PATH" TEST_APISERVER=kube-apiserver; \
	$(BIN)/python -m pytest -n $(PLANES) --dist loadfile --no-loadscope-reorder \
	  tests/e2e tests/contract/apiserver tests/contract/scheduling tests/contract/workloads \
	  tests/contract/test_kubectl.py tests/integration/test_trace_slice.py \
	  --ignore tests/contract/apiserver/test_localcluster_only.py \
	  -p tests.support.parts -p tests.e2e.notes -p tests.e2e.versions --versions docs/versions.md \
	  -p tests.e2e.given_table --given docs/research/device-plugin.md \
	  -ra --durations=20 -o timeout=600 $(PYTEST)

e2e-all: ## the same with each of RELEASES, which are built where they are not there
	@for release in $(RELEASES); do \
	  $(CONTROLPLANE) $$release >/dev/null || exit; \
	  $(MAKE) --no-print-directory e2e VERSION=$$release || exit; done

# Not those that simulate for an hour; docs/research names them.
bench: $(INSTALLED) ## the figures we claim, measured on this machine (minutes)
	@for file in $$(ls tests/bench/*.py | grep -vE '_server|placement_'); do \
	  module=tests.bench.$$(basename "$$file" .py); \
	  grep -q "python -m $$module" "$$file" || continue; \
	  echo "== $$module"; $(BIN)/python -m "$$module" || exit; done

proof: $(INSTALLED) ## everything going wrong, in virtual time and for real (SEEDS=FROM:TO: stories alone)
	@$(BIN)/python -m tests.simulation.proof $(if $(SEEDS),--seeds $(SEEDS))
	@[ -n "$(SEEDS)" ] || for part in failovers "threads --seconds 600" real_processes \
	  "soak --seconds 3600"; do \
	  echo "== $$part"; $(BIN)/python -m tests.simulation.$$part || exit; done
	@[ -n "$(SEEDS)" ] || { echo "== bad input"; $(BIN)/python -m tests.badinput.proof --inputs 1000000; }

lint: $(INSTALLED) ## ruff: rules and format; plain words in docstrings, comments and names
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .
	@$(BIN)/python -m tests.support.plain_words gpushare localcluster tests

types: $(INSTALLED) ## mypy, strict, on the packages and the tests
	@$(BIN)/mypy

format: $(INSTALLED) ## let ruff put the code in shape
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

branches: $(INSTALLED) ## are the branches of core, wire and the ledger covered by their unit tests?
	@$(BIN)/python -m pytest -q -n auto --cov --cov-branch --cov-report= $(HEART)
	@$(BIN)/python -m tests.support.branches

check: lint types test pages faults branches ## all that must be green before a commit

controlplane: ## build Kubernetes' own programs from their Go modules (VERSION), print their folder
	@$(CONTROLPLANE) $(VERSION)

helm: ## build helm from its Go module, print its folder
	@$(TOOL) helm

promtool: ## build Prometheus and its promtool from their Go module, print their folder
	@$(TOOL) promtool

firstfit: ## build the allocator of kube-scheduler, to compare ours with it; print its folder
	@$(TOOL) firstfit

limit: ## build the least extender there can be, to compare the CPU of ours; print its folder
	@$(TOOL) limit

coscheduling: ## build kube-scheduler with the coscheduling plug-in, print its folder
	@$(TOOL) coscheduling

kueue: ## build Kueue from its Go module, print its folder
	@$(TOOL) kueue

nvidia-container-runtime: ## build NVIDIA's container runtime from its Go module, print its folder
	@$(TOOL) nvidia-container-runtime

actionlint: ## build actionlint from its Go module, print its folder
	@$(TOOL) actionlint

krew: ## build kubectl's plug-in manager from its Go module, print its folder
	@$(TOOL) krew

kubectl: ## print the path of a real kubectl: the one on PATH, else of `make controlplane`
	@command -v kubectl || echo "$$($(CONTROLPLANE) $(VERSION))/kubectl"

lock: ## pin the newest versions that setup.cfg allows, with their hashes
	@tools=$$(mktemp -d) && trap 'rm -rf "$$tools"' EXIT \
	  && $(PYTHON) -m venv "$$tools" && "$$tools/bin/pip" install --quiet uv==$(UV) \
	  && UV_CUSTOM_COMPILE_COMMAND="make lock" "$$tools/bin/uv" pip compile setup.cfg --quiet \
	    --extra device-plugin \
	    --upgrade --universal --python-version 3.11 --generate-hashes -o requirements.lock \
	  && for image in $(IMAGES); do UV_CUSTOM_COMPILE_COMMAND="make lock" "$$tools/bin/uv" pip compile \
	    --group $$image --constraints requirements.lock --quiet --no-annotate \
	    --universal --python-version 3.11 --generate-hashes -o requirements-$$image.lock || exit; done \
	  && UV_CUSTOM_COMPILE_COMMAND="make lock" "$$tools/bin/uv" pip compile requirements-build.in \
	    --quiet --upgrade --universal --python-version 3.11 --generate-hashes --allow-unsafe \
	    -o requirements-build.lock

# Its tool has an environment of its own: a package it needs makes each start of Python that imports
# kubernetes and jsonschema 1.5 s slower.
sbom: $(INSTALLED) ## write and check build/gpushare.cdx.json: what the image runs with (CycloneDX)
	@mkdir -p build
	@tools=$$(mktemp -d) && trap 'rm -rf "$$tools"' EXIT \
	  && $(PYTHON) -m venv "$$tools" && "$$tools/bin/pip" install --quiet cyclonedx-bom==$(CYCLONEDX) \
	  && "$$tools/bin/cyclonedx-py" requirements requirements.lock --sv 1.6 --of JSON --validate \
	    --output-reproducible -o build/gpushare.cdx.json
	@$(BIN)/python -m tests.support.sbom build/gpushare.cdx.json requirements.lock

# Without buildah or root it says so in one line.
images: ## build the images without Docker, as OCI archives in build/images
	@.ci/images build/images

# IMAGE: the image in the manifests; URL: where the files will be downloaded, for krew.
release: $(INSTALLED) ## make everything of a release in RELEASE: docs/releasing.md
	@PYTHON=$$(realpath -s $(BIN)/python) .ci/release $(RELEASE)

clean: ## remove .venv and whatever else was made here
	@rm -rf .venv .venv-* build dist *.egg-info localcluster/build localcluster/*.egg-info \
	  .coverage .pytest_cache .mypy_cache .ruff_cache .hypothesis

# Made anew when the dependencies change, or when its Python is gone. What the image runs with
# (requirements.lock) comes first, and is all that the demo needs; pip checks the hashes. Modules are
# compiled when they are imported: most of the Kubernetes client never is.
$(RUNTIME): setup.cfg pyproject.toml requirements.lock localcluster/setup.cfg \
  localcluster/pyproject.toml
	@command -v $(PYTHON) >/dev/null 2>&1 || { \
	  echo "gpushare: $(PYTHON) is not there. Install Python 3.11 or newer, or say where it is:" \
	    "make PYTHON=/path/to/python3 ..."; exit 1; } >&2
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "gpushare: $(PYTHON) is $$($(PYTHON) --version 2>&1), but 3.11 or newer is needed:" \
	    "make PYTHON=/path/to/python3.11 ..."; exit 1; } >&2
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "gpushare: $(PYTHON) cannot make virtual environments. On Debian and Ubuntu:" \
	    "apt install python3-venv"; exit 1; } >&2
	@echo "gpushare: installing into $(VENV) (once, half a minute or so) ..." >&2
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	  || rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile \
	  --require-hashes --requirement requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps \
	  --editable . --editable ./localcluster
	@touch $@

# Tests run with the same versions, and with tools of their own.
$(INSTALLED): $(RUNTIME)
	@echo "gpushare: installing what tests need into $(VENV) (once, a minute or so) ..." >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@
