# cuda.mk - part of the Makefile: CUDA code, compiled as C++ on the emulation of tests/cuda_host, and by nvcc where it is.
#
# tests/cuda_host/NAME_test.cc is one test program; the other .cc files there are the emulation, which all of them link.
# Each is built a second time with every access of a kernel checked (races.cc): build/races/tests/cuda_host/NAME_test.
# C++ takes `struct x` and a function x for shadows of each other, and does not know `#pragma unroll`.
CXX_WARN := -Wall -Wextra -Werror -Wno-unknown-pragmas -Wpointer-arith -Wvla $(if $(SAN),-Wno-error)
CXX_FLAGS := -std=c++17 -D_GNU_SOURCE $(OPT) $(CXX_WARN) -ffp-contract=off -fno-math-errno -pthread -I. -Itests/cuda_host/include \
	$(if $(SAN),-fsanitize=$(SAN) -fno-sanitize-recover=all -fno-omit-frame-pointer)
# Accesses call functions that races.cc has, in place of ThreadSanitizer's library, which is not linked.
RACES_FLAGS := -fsanitize=thread -fno-ipa-sra

CUDA_SRC := $(wildcard kernels/cuda/*.cu)
CUDA_HOST_TESTS := $(patsubst %.cc,$(BUILD)/%,$(wildcard tests/cuda_host/*_test.cc))
RACES_TESTS := $(patsubst $(BUILD)/%,$(BUILD)/races/%,$(CUDA_HOST_TESTS))
CUDA_HOST_OBJ := $(patsubst %.cc,$(BUILD)/obj/%.o,$(filter-out %_test.cc %/races.cc %/support.cc %/twins.cc,$(wildcard tests/cuda_host/*.cc)))
# What only the tests link: theirs, and what they share with tests of the CPU backend.
CUDA_HOST_SUPPORT := $(BUILD)/obj/tests/cuda_host/support.o $(BUILD)/obj/tests/cuda_host/twins.o $(BUILD)/obj/tests/kernels/quant.o
TESTS += $(CUDA_HOST_TESTS)
# Libraries that are opened at run time (NVML, cuBLASLt) are looked for in the program itself, where the emulation has them.
SELF := -rdynamic

# The matrix instructions' twins are a thousand multiplications a call.
$(BUILD)/obj/tests/cuda_host/mma.o: CXX_FLAGS += -O3 -fno-sanitize=all

$(BUILD)/obj/%.o: %.cc $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CXX ,$<)
	$(Q)$(CXX) $(CXX_FLAGS) -MMD -MP -c $< -o $@

$(BUILD)/obj/%.o: %.cu $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CXX ,$<)
	$(Q)$(CXX) -x c++ $(CXX_FLAGS) -MMD -MP -c $< -o $@

$(BUILD)/obj/races/%.o: %.cc $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CXX ,$< (every access checked))
	$(Q)$(CXX) $(CXX_FLAGS) $(RACES_FLAGS) -MMD -MP -c $< -o $@

$(BUILD)/obj/races/%.o: %.cu $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CXX ,$< (every access checked))
	$(Q)$(CXX) -x c++ $(CXX_FLAGS) $(RACES_FLAGS) -MMD -MP -c $< -o $@

$(CUDA_HOST_TESTS): $(BUILD)/%: $(BUILD)/obj/%.o $(CUDA_SRC:%.cu=$(BUILD)/obj/%.o) $(CUDA_HOST_SUPPORT) $(CUDA_HOST_OBJ) $(BUILD)/libconvod.a
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CXX) $(LDFLAGS) $(SELF) $^ $(DEP_LIBS) -lcmocka -lm -ldl -o $@

$(RACES_TESTS): $(BUILD)/races/%: $(BUILD)/obj/races/%.o $(CUDA_SRC:%.cu=$(BUILD)/obj/races/%.o) \
		$(BUILD)/obj/tests/cuda_host/races.o $(CUDA_HOST_SUPPORT) $(CUDA_HOST_OBJ) $(BUILD)/libconvod.a
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CXX) $(LDFLAGS) $(SELF) $^ $(DEP_LIBS) -lcmocka -lm -ldl -o $@

# A test with a fault planted into one file: build/mutants/NAME.cu in place of MUTANT_OF, in the program of MUTANT_TEST. See
# tests/cuda_host/mutants_test.py.
$(BUILD)/mutants/%.o: $(BUILD)/mutants/%.cu $(BUILD)/flags
	$(Q)$(CXX) -x c++ $(CXX_FLAGS) $(RACES_FLAGS) -c $< -o $@

$(BUILD)/mutants/%: $(BUILD)/mutants/%.o $(BUILD)/obj/races/tests/cuda_host/$(MUTANT_TEST)_test.o \
		$(filter-out $(MUTANT_OF:%.cu=$(BUILD)/obj/races/%.o),$(CUDA_SRC:%.cu=$(BUILD)/obj/races/%.o)) \
		$(BUILD)/obj/tests/cuda_host/races.o $(CUDA_HOST_SUPPORT) $(CUDA_HOST_OBJ) $(BUILD)/libconvod.a
	$(Q)$(CXX) $(LDFLAGS) $(SELF) $^ $(DEP_LIBS) -lcmocka -lm -ldl -o $@

# Whole models: the engine on the emulation. A C file, as the rest of the engine's tests; TESTS has it already.
$(BUILD)/tests/cuda_host/engine_test: $(BUILD)/obj/tests/cuda_host/engine_test.o $(CUDA_SRC:%.cu=$(BUILD)/obj/%.o) $(CUDA_HOST_OBJ) \
		$(patsubst %,$(BUILD)/obj/tests/engine/%.o,engine_fixture tiny_model tiny_vocab gguf_writer) $(BUILD)/obj/tests/kernels/quant.o \
		$(BUILD)/libconvod.a
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CXX) $(LDFLAGS) $(SELF) $^ $(DEP_LIBS) -lcmocka -lm -ldl -o $@

# The measuring program of tests/gpu on the emulation.
$(BUILD)/gpu/limits-host: $(BUILD)/obj/tests/gpu/limits.o $(CUDA_HOST_OBJ)
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CXX) $(LDFLAGS) $(SELF) $^ -lm -ldl -o $@

# The daemon on the emulation, for its tests; `backend = cuda` is the emulated device.
$(BUILD)/cuda_host/convod: $(BUILD)/obj/daemon/main.o $(CUDA_SRC:%.cu=$(BUILD)/obj/%.o) $(CUDA_HOST_OBJ) $(BUILD)/libconvod.a
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CXX) $(LDFLAGS) $(SELF) $^ $(DEP_LIBS) -lm -ldl -o $@
	$(Q)ln -sfn ../convo $(@D)/convo && ln -sfn ../tests $(@D)/tests # tests look for these beside it

# The session's tests of what becomes of conversations (restored, edited, forked, deleted, repeated, without pages) with the
# emulated device in their programs, which `auto` takes then. Others can be built in the same way.
LIFE_TESTS := $(patsubst %,$(BUILD)/cuda_host/session/%_test,commit conversations hot prune session syncs turn)
$(BUILD)/cuda_host/session/%: $(BUILD)/obj/tests/session/%.o \
		$(patsubst %.c,$(BUILD)/obj/%.o,$(filter-out %_test.c,$(wildcard tests/session/*.c)) $(file <tests/session/shared)) \
		$(CUDA_SRC:%.cu=$(BUILD)/obj/%.o) $(CUDA_HOST_OBJ) $(BUILD)/libconvod.a
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CXX) $(LDFLAGS) $(SELF) $^ $(DEP_LIBS) -lcmocka -lm -ldl -o $@

# The program that checks the backend on a GPU, on the emulation.
$(BUILD)/gpu/check-host: $(BUILD)/obj/tests/gpu/check.o $(BUILD)/obj/tests/kernels/quant.o $(CUDA_SRC:%.cu=$(BUILD)/obj/%.o) \
		$(CUDA_HOST_OBJ) $(BUILD)/libconvod.a
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CXX) $(LDFLAGS) $(SELF) $^ -lm -ldl -o $@

# And the one that runs whole models there.
MODELS_OBJ := $(patsubst %,$(BUILD)/obj/tests/%.o,gpu/models engine/tiny_model engine/tiny_vocab engine/gguf_writer kernels/quant)
$(BUILD)/gpu/models-host: $(MODELS_OBJ) $(CUDA_SRC:%.cu=$(BUILD)/obj/%.o) $(CUDA_HOST_OBJ) $(BUILD)/libconvod.a
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CXX) $(LDFLAGS) $(SELF) $^ $(DEP_LIBS) -lm -ldl -o $@

races-tests: $(RACES_TESTS)
.PHONY: races-tests

# ---- nvcc ------------------------------------------------------------------------------------------------------------

# From PATH or the usual place; CUDA=0 does without.
CUDA ?= 1
ifneq ($(CUDA),0)
NVCC ?= $(firstword $(shell command -v nvcc 2>/dev/null) $(wildcard /usr/local/cuda/bin/nvcc))
endif
, := ,
CUDA_LEAST := 12
# Code for these chips, and PTX from which a driver makes code for later ones.
CUDA_CHIPS := 80 89 90
CUDA_NEWEST := $(lastword $(CUDA_CHIPS))
NVCC_FLAGS := -std=c++17 -O3 -fmad=false -I. -Werror all-warnings -Xcompiler -Wall,-Wextra,-Werror,-Wno-unknown-pragmas
# Every .cu file: the kernels, and those of the measuring program.
NVCC_SRC := $(CUDA_SRC) tests/gpu/limits.cu

# The compiler's report (-v) lies beside what it is about; what it said is shown only where it failed.
nvcc_run = $(NVCC) $(NVCC_FLAGS) $1 >$@.log 2>&1 || { cat $@.log >&2; rm -f $@; exit 1; }

$(BUILD)/cuda/ptx/%.ptx: %.cu $(BUILD)/cuda/nvcc
	@mkdir -p $(@D)
	$(call say,NVCC,$< (PTX))
	$(Q)$(call nvcc_run,-arch=compute_$(CUDA_NEWEST) -ptx -MMD -MP -MF $@.d -o $@ $<)

# Which compiler and flags: another one compiles anew.
$(BUILD)/cuda/nvcc: FORCE
	@mkdir -p $(@D)
	@[ -n '$(NVCC)' ] || { echo 'There is no nvcc in PATH or /usr/local/cuda/bin (or CUDA=0 was said).' >&2; exit 1; }
	@release=$$($(NVCC) --version | sed -n 's/.*release \([0-9]*\.[0-9]*\).*/\1/p'); [ "$${release%%.*}" -ge $(CUDA_LEAST) ] 2>/dev/null || \
		{ echo "$(NVCC) is of CUDA $${release:-(it does not say)}; $(CUDA_LEAST) is the least. NVCC=FILE names another one, CUDA=0 does without." >&2; exit 1; }
	@{ $(NVCC) --version; echo '$(NVCC_FLAGS) $(CUDA_CODE)'; } | cmp -s - $@ || { $(NVCC) --version; echo '$(NVCC_FLAGS) $(CUDA_CODE)'; } >$@

# What CUDA adds to the daemon: nothing without nvcc, or under a sanitizer. The runtime is linked in and opens the driver when
# the program runs, so that it starts where there is none. What CUDA 13 makes of a kernel's launch wants guards of the C++
# library's archive; Debian's gcc does not find that beside a toolkit that brings a g++ of another version, and any will do.
ifneq ($(and $(NVCC),$(if $(SAN),,1)),)
CUDA_OBJ := $(CUDA_SRC:%.cu=$(BUILD)/cuda/obj/%.o)
CUDA_LIBS := -L$(dir $(NVCC))../lib64 -L$(dir $(NVCC))../lib -lcudart_static -lrt -ldl \
	$(firstword $(wildcard $(shell $(CC) -print-file-name=libstdc++.a) /usr/lib/gcc/*/*/libstdc++.a))
endif
CUDA_CODE := $(foreach c,$(CUDA_CHIPS),-gencode arch=compute_$c$(,)code=sm_$c) \
	-gencode arch=compute_$(CUDA_NEWEST)$(,)code=compute_$(CUDA_NEWEST)

$(BUILD)/cuda/obj/%.o: %.cu $(BUILD)/cuda/nvcc
	@mkdir -p $(@D)
	$(call say,NVCC,$<)
	$(Q)$(call nvcc_run,$(CUDA_CODE) -Xptxas -v -Xcompiler -fPIE -c -MMD -MP -MF $@.d -o $@ $<)

CUDA_PTX := $(NVCC_SRC:%.cu=$(BUILD)/cuda/ptx/%.ptx)

# (-ldl would be looked for among the device's libraries too, where 12.4 takes the C library's empty archive for a broken one.)
$(BUILD)/cuda/limits: tests/gpu/limits.cu $(BUILD)/cuda/nvcc
	@mkdir -p $(@D)
	$(call say,NVCC,$@)
	$(Q)$(call nvcc_run,$(CUDA_CODE) -Xptxas -v -MMD -MP -MF $@.d -o $@ $< -Xlinker -ldl)

# The same program for a GPU: the kernels of both backends, and nothing that a bare machine lacks.
$(BUILD)/cuda/check: $(BUILD)/obj/tests/gpu/check.o $(BUILD)/obj/tests/kernels/quant.o $(CUDA_OBJ) $(BUILD)/libconvod.a
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS) $^ $(CUDA_LIBS) -lm -o $@

# Whole models want the engine's libraries, which lie beside it in the bundle, and so do those that these want in turn (RPATH:
# RUNPATH is for the program's own alone).
$(BUILD)/cuda/models: $(MODELS_OBJ) $(CUDA_OBJ) $(BUILD)/libconvod.a
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS) -Wl,-rpath,'$$ORIGIN/lib' -Wl,--disable-new-dtags -Wl,--as-needed $^ $(DEP_LIBS) $(CUDA_LIBS) -lm -o $@

# Compiles everything for every chip, and writes what each kernel takes of it, as the compiler's reports have it.
cuda: $(BUILD)/cuda/limits $(BUILD)/cuda/check $(BUILD)/cuda/models $(CUDA_PTX)
	@$(PYTHON) tests/gpu/report --out $(BUILD)/cuda/kernels.md --build $(BUILD)/cuda $(CUDA_CHIPS)

# What a bare machine with a GPU needs to run tests/gpu/limits and tests/gpu/check: the programs, and the sources of the first
# should it have to be built there.
BUNDLE_FILES := tests/gpu/check tests/gpu/limits tests/gpu/machine.py tests/gpu/limits.cu $(wildcard tests/gpu/*.h) kernels/cuda/device.h kernels/cuda/lt.h
gpu-bundle: $(BUILD)/cuda/limits $(BUILD)/cuda/check $(BUILD)/cuda/models
	@rm -rf $(BUILD)/cuda/bundle && mkdir -p $(BUILD)/cuda/bundle/convod-gpu/bin/lib
	@cp --parents $(BUNDLE_FILES) $(BUILD)/cuda/bundle/convod-gpu/
	@cp $(BUILD)/cuda/limits $(BUILD)/cuda/check $(BUILD)/cuda/models $(BUILD)/cuda/bundle/convod-gpu/bin/
	@ldd $(BUILD)/cuda/models | awk '$$3 ~ "^/" && $$1 !~ "^(libc|libm|libdl|librt|libpthread)\\.so" { print $$3 }' | xargs cp -L -t $(BUILD)/cuda/bundle/convod-gpu/bin/lib
	@tar -C $(BUILD)/cuda/bundle -czf $(BUILD)/convod-gpu.tar.gz convod-gpu
	@bytes=$$(stat -c %s $(BUILD)/convod-gpu.tar.gz); [ $$bytes -lt 50000000 ] || { echo "The bundle has $$bytes bytes, more than 50 MB" >&2; exit 1; }
	@echo '$(BUILD)/convod-gpu.tar.gz: unpack it on the machine with the GPU and run convod-gpu/tests/gpu/limits and convod-gpu/tests/gpu/check'

.PHONY: cuda gpu-bundle
-include $(wildcard $(BUILD)/cuda/*.d $(BUILD)/cuda/*/*.d $(BUILD)/cuda/*/*/*/*.d)
