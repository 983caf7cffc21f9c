# convod: `make` builds build/convod and build/convo; `make help` lists the rest.
#
# Every folder's *.c is picked up by wildcard. Files named *_avx2.c and *_avx512.c get that instruction set; all others are
# built for the baseline, so that one binary runs on every x86-64 processor. A second build with other flags goes to
# its own folder: make BUILD=build/asan SAN=address,undefined
BUILD ?= build
SAN ?=
CC ?= cc
PREFIX ?= /usr/local
PKG_CONFIG ?= pkg-config

VERSION := 0.1.0
PACKAGES := libwebsockets sqlite3 liblz4 libcjson libpcre2-8 libcrypto libxxhash
CLI_PACKAGES := libwebsockets libcjson libedit

OPT ?= -O2 -g
WARN := -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wvla
override CFLAGS += -std=c11 -D_GNU_SOURCE -DCONVOD_VERSION='"$(VERSION)"' $(OPT) $(WARN) -ffp-contract=off -fno-math-errno \
	-pthread -I. $(if $(SAN),-fsanitize=$(SAN) -fno-omit-frame-pointer)
override LDFLAGS += -pthread $(if $(SAN),-fsanitize=$(SAN))
DEP_CFLAGS := $(shell $(PKG_CONFIG) --cflags $(PACKAGES) libedit cmocka 2>/dev/null)
DEP_LIBS := $(shell $(PKG_CONFIG) --libs $(PACKAGES) 2>/dev/null)
CLI_LIBS := $(shell $(PKG_CONFIG) --libs $(CLI_PACKAGES) 2>/dev/null)

AVX2 := -mavx2 -mfma -mf16c
AVX512 := $(AVX2) -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni

LIB_FOLDERS := kernels engine storage session daemon
LIB_SRC := $(filter-out daemon/main.c,$(foreach d,$(LIB_FOLDERS),$(wildcard $d/*.c)))
LIB_OBJ := $(LIB_SRC:%.c=$(BUILD)/obj/%.o)
CLI_OBJ := $(patsubst %.c,$(BUILD)/obj/%.o,$(wildcard clients/cli/*.c))
# tests/FOLDER/NAME_test.c is one test program; other files beside it are shared by the folder's tests.
TEST_SRC := $(wildcard tests/*/*_test.c)
TESTS := $(TEST_SRC:tests/%.c=$(BUILD)/tests/%)
BENCHES := $(patsubst tests/bench/%.c,$(BUILD)/bench/%,$(wildcard tests/bench/*_bench.c))

.PHONY: all test bench-programs clean
all: $(BUILD)/convod $(if $(CLI_OBJ),$(BUILD)/convo)

$(BUILD)/obj/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(DEP_CFLAGS) $(if $(findstring _avx2.c,$<),$(AVX2)) $(if $(findstring _avx512.c,$<),$(AVX512)) -MMD -MP -c $< -o $@

$(BUILD)/libconvod.a: $(LIB_OBJ)
	@rm -f $@
	$(AR) rcs $@ $^

$(BUILD)/convod: $(BUILD)/obj/daemon/main.o $(BUILD)/libconvod.a
	$(CC) $(LDFLAGS) $^ $(DEP_LIBS) -lm -o $@

$(BUILD)/convo: $(CLI_OBJ)
	$(CC) $(LDFLAGS) $^ $(CLI_LIBS) -lm -o $@

# A test links the folder's shared test files (tests/FOLDER/*.c that are not *_test.c) and the library.
.SECONDEXPANSION:
$(BUILD)/tests/%: $(BUILD)/obj/tests/%.o \
		$$(patsubst %.c,$(BUILD)/obj/%.o,$$(filter-out %_test.c,$$(wildcard $$(dir tests/$$*)*.c))) $(BUILD)/libconvod.a
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) $^ $(DEP_LIBS) -lcmocka -lm -o $@

$(BUILD)/bench/%: $(BUILD)/obj/tests/bench/%.o $(BUILD)/libconvod.a
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) $^ $(DEP_LIBS) -lm -o $@

test: $(TESTS)
	@set -e; for t in $(TESTS); do echo "== $$t"; $$t; done

bench-programs: $(BENCHES)

clean:
	rm -rf $(BUILD)

-include $(LIB_OBJ:.o=.d) $(CLI_OBJ:.o=.d) $(TESTS:$(BUILD)/tests/%=$(BUILD)/obj/tests/%.d)
