# make demo    set everything up, start a daemon, prompt it
# make shell   a shell in which lactl talks to a daemon of its own
# make test    set everything up, and pass all tests (lint and types too)
# make check   lint, types, and the tests of what changed since main: two minutes at most
# make coverage   pass the tests that need no container, and print the code that none executes
# make assessment  assess the agent ops with the built-in model, and write docs/assessment.md
# make bench   the figures of docs/figures.md
# make browser the AI SDK's own client in Chromium against the gateway (npm, node; CHROMIUM=program)
# make page    the pictures of docs/cockpit.md anew, and the figures of the page (root, chromium)
# make stats   the figures of the code: files, lines, circles, large classes, tests
# make recording  docs/first-prompt.svg anew, from a real run
# make generate  the files of the repository that are made from the code
# make deb     the Debian package, in dist/ (as root: it is built in a Debian 13 of its own)
# make rpm     the RPM package, likewise
# make lock    pin the current versions of all packages

PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo shell test check coverage lint bench assessment browser page stats recording deb rpm lock generate setup setup-build setup-test clean

demo: setup
	@packaging/checkout/demo.sh

shell: setup
	@packaging/checkout/demo.sh shell

setup:
	@PYTHON=$(PYTHON) packaging/checkout/setup.sh

setup-build:
	@PYTHON=$(PYTHON) packaging/checkout/setup.sh build

setup-test:
	@PYTHON=$(PYTHON) packaging/checkout/setup.sh test

# With PYTEST_ARGS, the tests that they name: make test PYTEST_ARGS="tests/cli -x"
test: setup-test
	$(if $(PYTEST_ARGS),$(BIN)/python -m pytest $(PYTEST_ARGS),packaging/checkout/test.sh $(REPORTS))

check: setup-test
	@packaging/checkout/check.sh

coverage: setup-test
	@packaging/checkout/coverage.sh

lint: setup-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy lightagentd tests
	$(BIN)/mypy tools   # on its own: tools/systemd.py is not the package systemd
	$(BIN)/mypy skills
	$(BIN)/mypy packaging/generate.py packaging/manual

generate: setup
	PYTHONPATH=. $(BIN)/python packaging/generate.py --checkout .

bench: setup
	$(if $(RECORD),RECORD=1) $(BIN)/python -m tests.bench $(if $(WHERE),--where=$(WHERE)) $(BENCH)

assessment: setup
	PYTHONPATH=. $(BIN)/python packaging/checkout/assessment.py $(TIMES)

browser: setup-test
	$(BIN)/python -m pytest -q -s tests/gateway/browser.py

page: setup-test
	$(BIN)/python -m pytest -q -s tests/e2e/cockpit_figures.py

stats: setup-test
	$(BIN)/python -m tests.house

recording: setup
	@packaging/checkout/demo.sh record

deb rpm: setup-build
	packaging/checkout/$@.sh

lock: setup
	packaging/checkout/lock.sh

clean:
	rm -rf .venv .cache dist .hypothesis .mypy_cache .ruff_cache .pytest_cache
