# The two commands: `make quickstart` (builds Octet and runs its main job) and `make test` (the CPU suite, label L0).
# Others: build, serve, wheel, deb, cuda, check, tidy, format, bench, docs, long (label L3), sanitizers (asan, tsan), sanitize-gpu, fuzz, clean.
JOBS ?= $(shell nproc)
PROGRAM_BUILD ?= build/program$(if $(CUDA),_cuda)
TEST_BUILD ?= build/test
TEXT ?=
SETTINGS ?=
TIDY_SECONDS ?=
MARCH ?= x86-64-v3

.PHONY: quickstart build serve wheel deb test test-build cuda check tidy format bench docs long sanitizers asan tsan sanitize-gpu fuzz clean

quickstart: started := $(shell date +%s)
quickstart: build
	@STARTED=$(started) bash scripts/quickstart.sh $(PROGRAM_BUILD)/tools/octet "$(TEXT)" $(SETTINGS)

build:
	@bash scripts/setup.sh program
	@$(if $(CUDA),bash scripts/setup.sh cuda)
	@bash scripts/build.sh $(PROGRAM_BUILD) $(JOBS) -DOCTET_TESTS=OFF $(if $(CUDA),-DOCTET_CUDA=ON)

# Another name of `build`, whose program has `octet serve`.
serve: build

# The Python package: dist/octet_llm-*.whl, tested in an environment of its own. PYTHON names another interpreter.
wheel:
	@bash scripts/setup.sh python
	@$(if $(CUDA),bash scripts/setup.sh cuda)
	@$(if $(CUDA),OCTET_CUDA=ON) JOBS=$(JOBS) bash scripts/wheel.sh

# Debian packages of the program and of the library, for every x86-64-v3 CPU (MARCH= names another level): dist/*.deb.
deb:
	@bash scripts/setup.sh deb
	@$(if $(CUDA),bash scripts/setup.sh cuda)
	@bash scripts/build.sh build/deb$(if $(CUDA),_cuda) $(JOBS) -DOCTET_TESTS=OFF -DOCTET_LIBRARY=ON -DCMAKE_INSTALL_PREFIX=/usr -DOCTET_MARCH=$(MARCH) $(if $(CUDA),-DOCTET_CUDA=ON)
	@bash scripts/deb.sh build/deb$(if $(CUDA),_cuda) dist

test-build:
	@bash scripts/setup.sh test
	@bash scripts/build.sh $(TEST_BUILD) $(JOBS) -DOCTET_TESTS=ON

test: test-build
	ctest --test-dir $(TEST_BUILD) -L L0 -j $(JOBS) --output-on-failure --no-tests=error

# Compiles everything with the CUDA kernels; the tests of label L1 run where there is a GPU and are skipped elsewhere.
cuda:
	@bash scripts/setup.sh test
	@bash scripts/setup.sh cuda
	@bash scripts/build.sh build/cuda $(JOBS) -DOCTET_CUDA=ON -DOCTET_TESTS=ON -DOCTET_BENCHMARKS=ON

check:
	@bash scripts/setup.sh check
	@python3 scripts/check.py all

# Rooms that compile in batches; clang-tidy over all files, or for TIDY_SECONDS in an order given by the commit's hash.
tidy:
	@bash scripts/setup.sh tidy
	@cmake -S . -B $(TEST_BUILD) -G Ninja -DOCTET_TESTS=ON >/dev/null
	@ninja -C $(TEST_BUILD) octet_build_commit >/dev/null
	@python3 scripts/batches.py $(TEST_BUILD) $(JOBS)
	@python3 scripts/tidy.py $(TEST_BUILD) $(JOBS) $(TIDY_SECONDS)

format:
	@git ls-files '*.cc' '*.h' '*.cu' '*.cuh' | xargs clang-format -i

bench:
	@bash scripts/setup.sh test
	@bash scripts/build.sh build/bench $(JOBS) -DOCTET_TESTS=OFF -DOCTET_BENCHMARKS=ON

docs: test-build
	@python3 scripts/results.py
	OCTET_UPDATE_GOLDENS=1 ctest --test-dir $(TEST_BUILD) -R "^Documents" --output-on-failure

long: test-build
	ctest --test-dir $(TEST_BUILD) -L L3 --output-on-failure

# The whole label L0 under both, the server and the chat room too.
sanitizers: asan tsan

asan:
	@bash scripts/setup.sh test
	@bash scripts/build.sh build/asan $(JOBS) -DOCTET_TESTS=ON -DCMAKE_BUILD_TYPE=RelWithDebInfo "-DOCTET_SANITIZE=address;undefined"
	ctest --test-dir build/asan -L L0 -j $(JOBS) --output-on-failure --no-tests=error

tsan:
	@bash scripts/setup.sh test
	@bash scripts/build.sh build/tsan $(JOBS) -DOCTET_TESTS=ON -DCMAKE_BUILD_TYPE=RelWithDebInfo -DOCTET_SANITIZE=thread
	ctest --test-dir build/tsan -L L0 -j $(JOBS) --output-on-failure --no-tests=error

# On a GPU: compute-sanitizer over every kernel's tests.
sanitize-gpu: cuda
	@bash scripts/sanitize_gpu.sh build/cuda/src/kernels/cuda/octet_kernels_cuda_test

fuzz:
	@bash scripts/fuzz.sh 60

clean:
	rm -rf build
