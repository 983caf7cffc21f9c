# convod: `make` builds build/convod and build/convo; `make help` lists the rest.
#
# Every folder's and room's *.c is picked up by wildcard. Files named *_avx2.c, *_avxvnni.c and *_avx512.c get that instruction
# set; all others are built for the baseline, so that one binary runs on every x86-64 processor. A build with other flags goes to its
# own folder: make BUILD=build/asan SAN=address,undefined
BUILD ?= build
SAN ?=
CC ?= cc
AR ?= ar
PYTHON ?= python3
PKG_CONFIG ?= pkg-config
PREFIX ?= /usr/local
DESTDIR ?=
UNITDIR ?= $(PREFIX)/lib/systemd/system
SYSUSERSDIR ?= $(PREFIX)/lib/sysusers.d
# Models that `make check` and `make bench` fetch, and how long each fuzz target runs in a check.
TEST_MODELS ?= qwen-0.5b gemma-270m
FUZZ_SECONDS ?= 20
BENCH_MODELS ?= qwen-0.5b qwen-1.5b

VERSION := 0.1.0
PACKAGES := libwebsockets sqlite3 liblz4 libcjson libpcre2-8 libcrypto libxxhash
CLI_PACKAGES := libwebsockets libcjson libedit

OPT ?= $(if $(SAN),-O1 -g,-O2 -g)
WARN := -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wvla \
	$(if $(SAN),-Wno-error)
override CFLAGS += -std=c11 -D_GNU_SOURCE -DCONVOD_VERSION='"$(VERSION)"' $(OPT) $(WARN) -ffp-contract=off -fno-math-errno \
	-pthread -I. $(if $(SAN),-fsanitize=$(SAN) -fno-sanitize-recover=all -fno-omit-frame-pointer)
override LDFLAGS += -pthread $(if $(SAN),-fsanitize=$(SAN))
DEP_CFLAGS := $(shell $(PKG_CONFIG) --cflags $(PACKAGES) libedit 2>/dev/null)
DEP_LIBS := $(shell $(PKG_CONFIG) --libs $(PACKAGES) 2>/dev/null)
CLI_LIBS := $(shell $(PKG_CONFIG) --libs $(CLI_PACKAGES) 2>/dev/null)

# Below -O2 gcc leaves out the vzeroupper at the ends of these files' functions, and the portable code behind them runs many times
# slower. Checks as calls halve the time that the sanitizers make the compiler take over them; clang, which makes the fuzz targets,
# leaves undefined behaviour to gcc.
AVX2 := -mavx2 -mfma -mf16c \
	$(if $(SAN),-O2 $(if $(findstring clang,$(CC)),-fno-sanitize=undefined,--param asan-instrumentation-with-call-threshold=0))
AVXVNNI := $(AVX2) -mavxvnni
AVX512 := $(AVX2) -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni

LIB_FOLDERS := kernels engine storage session daemon
LIB_SRC := $(filter-out daemon/main.c,$(foreach d,$(LIB_FOLDERS),$(wildcard $d/*.c $d/*/*.c)))
LIB_OBJ := $(LIB_SRC:%.c=$(BUILD)/obj/%.o)
CLI_OBJ := $(patsubst %.c,$(BUILD)/obj/%.o,$(wildcard clients/cli/*.c))
PROGRAMS := $(if $(wildcard daemon/main.c),$(BUILD)/convod) $(if $(CLI_OBJ),$(BUILD)/convo)
# tests/FOLDER/NAME_test.c is one test program; other files beside it are shared by the folder's tests. Tests of the
# client link the client's objects (without its main), all others the library. A folder whose tests want shared files of
# another one lists them in tests/FOLDER/shared.
TESTS := $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/*/*_test.c))
BENCHES := $(patsubst tests/bench/%.c,$(BUILD)/bench/%,$(wildcard tests/bench/*_bench.c))
FUZZERS := $(patsubst tests/fuzz/%.c,$(BUILD)/fuzz/%,$(wildcard tests/fuzz/*_fuzz.c))
# A Python file in a test folder that begins with #! is a test program of its own; others are its modules.
PY_TESTS := $(shell grep -ls '^\#!' $(filter-out tests/bench/%,$(wildcard tests/*/*.py)) /dev/null)
shared = $(patsubst %.c,$(BUILD)/obj/%.o,$(filter-out %_test.c,$(wildcard $(dir tests/$1)*.c)) \
	$(file <$(dir tests/$1)shared))

.PHONY: all chat stop check test lint format bench install uninstall clean help deps model \
	tests objects bench-programs fuzz-programs FORCE
.SECONDARY:
.SECONDEXPANSION:
.DELETE_ON_ERROR:

all: $(PROGRAMS)

# ---- building -------------------------------------------------------------------------------------------------------

# What the objects were made with: when it changes, they are made again.
FLAGS := $(CC) $(CFLAGS) $(AVX512) $(AVXVNNI) $(DEP_CFLAGS) $(LDFLAGS) $(DEP_LIBS) $(CLI_LIBS)
$(BUILD)/flags: FORCE
	@mkdir -p $(@D)
	@$(PKG_CONFIG) --exists $(PACKAGES) $(CLI_PACKAGES) || { echo "Libraries are missing: run 'make deps' first." >&2; exit 1; }
	@printf '%s\n' '$(subst ','\'',$(FLAGS))' | cmp -s - $@ || printf '%s\n' '$(subst ','\'',$(FLAGS))' >$@

# `make V=1` shows whole commands.
Q := $(if $(V),,@)
say = $(if $(V),@:,@echo '  $1 $2')

$(BUILD)/obj/%.o: %.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CC  ,$<)
	$(Q)$(CC) $(CFLAGS) $(DEP_CFLAGS) $(if $(findstring _avx2.c,$<),$(AVX2)) $(if $(findstring _avxvnni.c,$<),$(AVXVNNI)) $(if $(findstring _avx512.c,$<),$(AVX512)) -MMD -MP -c $< -o $@

$(BUILD)/libconvod.a: $(LIB_OBJ)
	$(Q)rm -f $@
	$(Q)$(AR) rcs $@ $^

$(BUILD)/libconvo.a: $(filter-out %/main.o,$(CLI_OBJ))
	$(Q)rm -f $@
	$(Q)$(AR) rcs $@ $^

$(BUILD)/convod: $(BUILD)/obj/daemon/main.o $(BUILD)/libconvod.a
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS) $^ $(DEP_LIBS) -lm -o $@

$(BUILD)/convo: $(CLI_OBJ)
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS) $^ $(CLI_LIBS) -lm -o $@

$(BUILD)/tests/clients/%: $(BUILD)/obj/tests/clients/%.o $$(call shared,clients/$$*) $(BUILD)/libconvo.a
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS) $^ $(CLI_LIBS) -lcmocka -lm -o $@

$(BUILD)/tests/%: $(BUILD)/obj/tests/%.o $$(call shared,$$*) $(BUILD)/libconvod.a
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS) $^ $(DEP_LIBS) -lcmocka -lm -o $@

$(BUILD)/bench/%: $(BUILD)/obj/tests/bench/%.o $(BUILD)/libconvod.a
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS) $^ $(DEP_LIBS) -lm -o $@

# Built by clang with SAN=fuzzer-no-link,...: the fuzzer's own main comes in when the program is linked.
$(BUILD)/fuzz/%: $(BUILD)/obj/tests/fuzz/%.o $(BUILD)/libconvod.a
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS) -fsanitize=fuzzer $^ $(DEP_LIBS) -lm -o $@

tests: $(TESTS)
objects: $(LIB_OBJ) $(CLI_OBJ) $(patsubst %.c,$(BUILD)/obj/%.o,$(wildcard daemon/main.c tests/*/*.c))
bench-programs: $(BENCHES)
fuzz-programs: $(FUZZERS)

-include $(shell find $(BUILD)/obj -name '*.d' 2>/dev/null)

# ---- what a person asks for -----------------------------------------------------------------------------------------

# As many jobs as there are processors, unless the person said how many.
QUIET = --no-print-directory $(if $(findstring -j,$(MAKEFLAGS)),,-j$(shell nproc))

help:
	@echo 'make chat            install what is missing, build, fetch a model once, start the daemon, and chat'
	@echo 'make chat MODEL=FILE the same with your own GGUF file'
	@echo 'make stop            stop the daemon that make chat started'
	@echo 'make                 build build/convod and build/convo'
	@echo 'make check           install what the tests want, build, and run every test'
	@echo 'make test            build and run the unit tests alone'
	@echo 'make lint            check form, dependencies between folders, and what static checkers find'
	@echo 'make format          put the sources into that form (clang-format 14)'
	@echo 'make bench           measure, side by side with a peer'
	@echo 'make install         install under PREFIX (now $(PREFIX)), below DESTDIR if set; make uninstall undoes it'
	@echo 'make deps            install the Debian packages that building wants'
	@echo 'make model           fetch the default model, and print where it is'
	@echo 'make clean           remove build/'

deps:
	@clients/setup/packages build

model:
	@clients/setup/packages chat
	@clients/setup/fetch-model

chat:
	@clients/setup/packages chat
	@$(MAKE) $(QUIET) all
	@BUILD='$(BUILD)' MODEL='$(MODEL)' clients/setup/chat

stop:
	@clients/setup/chat stop

# `make check` first installs what is missing (the libraries' flags are read when make starts, so the rest is another make).
check:
	@clients/setup/packages check
	@$(if $(TEST_MODELS),clients/setup/fetch-model $(TEST_MODELS) >/dev/null || echo 'Tests that want a model are skipped.')
	@$(MAKE) $(QUIET) check-run

ASAN := BUILD=$(BUILD)/asan SAN=address,undefined
TSAN := BUILD=$(BUILD)/tsan SAN=thread
FUZZ := BUILD=$(BUILD)/fuzzing CC=clang SAN=fuzzer-no-link,address,undefined
ASAN_TESTS := $(TESTS) $(wildcard tests/clients/convo_test.py)
TSAN_TESTS := $(filter $(foreach t,kernels/pool_test kernels/kernels_test storage/% session/% daemon/%,$(BUILD)/tests/$t),$(TESTS))
HAVE_FUZZER := $(if $(filter check-run,$(MAKECMDGOALS)),$(shell echo 'int LLVMFuzzerTestOneInput(void) { return 0; }' \
	| clang -x c -fsanitize=fuzzer - -o /dev/null 2>/dev/null && echo yes))

.PHONY: check-run
check-run: all tests $(BUILD)/tests/service/model $(if $(wildcard tests/requirements.txt),$(BUILD)/venv/.complete)
	@$(MAKE) $(QUIET) $(ASAN) all tests
	@$(if $(TSAN_TESTS),$(MAKE) $(QUIET) $(TSAN) $(TSAN_TESTS:$(BUILD)/%=$(BUILD)/tsan/%))
	@$(if $(and $(HAVE_FUZZER),$(FUZZERS)),$(MAKE) $(QUIET) $(FUZZ) fuzz-programs)
	@BUILD='$(BUILD)' tests/run lint: tests/ci/lint unit: $(TESTS) python: $(PY_TESTS) \
		asan: $(ASAN_TESTS:$(BUILD)/%=$(BUILD)/asan/%) tsan: $(TSAN_TESTS:$(BUILD)/%=$(BUILD)/tsan/%) \
		$(if $(HAVE_FUZZER),fuzz=$(FUZZ_SECONDS): $(FUZZERS:$(BUILD)/%=$(BUILD)/fuzzing/%),skip: 'fuzzing: clang with its fuzzer is not here')

test: $(TESTS)
	@BUILD='$(BUILD)' tests/run unit: $(TESTS)

lint:
	@BUILD='$(BUILD)' tests/ci/lint

format:
	clang-format-14 -i $(foreach d,$(LIB_FOLDERS) clients/cli tests/*,$(wildcard $d/*.[ch] $d/*/*.[ch]))

# The clients of other makers that tests and measurements use, each in a throw-away environment.
$(BUILD)/venv/.complete: tests/requirements.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install -q --disable-pip-version-check -r $<
	@touch $@

$(BUILD)/peer/.complete:
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install -q --disable-pip-version-check xllamacpp numpy
	@touch $@

bench:
	@clients/setup/packages check
	@clients/setup/fetch-model $(BENCH_MODELS) >/dev/null
	@$(MAKE) $(QUIET) bench-run

.PHONY: bench-run
bench-run: all bench-programs $(BUILD)/peer/.complete
	@set -e; for b in $(filter-out %/engine_bench,$(BENCHES)); do echo "== $$b"; $$b; done
	$(if $(wildcard tests/bench/bench.py),BUILD='$(BUILD)' $(BUILD)/peer/bin/python tests/bench/bench.py --json $(BUILD)/bench.json)

# systemd looks for units in /usr/lib and /etc and /usr/local/lib; paths in the unit are those of this installation.
install: all
	install -d '$(DESTDIR)$(PREFIX)/bin' '$(DESTDIR)$(PREFIX)/share/man/man1' '$(DESTDIR)$(PREFIX)/share/doc/convod'
	install -m 755 $(PROGRAMS) '$(DESTDIR)$(PREFIX)/bin/'
	install -m 644 $(wildcard docs/*.1) '$(DESTDIR)$(PREFIX)/share/man/man1/'
	$(foreach n,5 8,$(if $(wildcard docs/*.$n),install -D -m 644 -t '$(DESTDIR)$(PREFIX)/share/man/man$n' $(wildcard docs/*.$n)))
	$(if $(wildcard systemd/*.conf.example),install -m 644 $(wildcard systemd/*.conf.example) '$(DESTDIR)$(PREFIX)/share/doc/convod/')
	install -D -m 644 systemd/convod.sysusers '$(DESTDIR)$(SYSUSERSDIR)/convod.conf'
	$(if $(wildcard systemd/*.service),install -d '$(DESTDIR)$(UNITDIR)')
	$(foreach u,$(wildcard systemd/*.service),sed 's|/usr/local/bin/|$(PREFIX)/bin/|g; s|@PREFIX@|$(PREFIX)|g' $u >'$(DESTDIR)$(UNITDIR)/$(notdir $u)' && chmod 644 '$(DESTDIR)$(UNITDIR)/$(notdir $u)')

uninstall:
	rm -f $(foreach p,convod convo,'$(DESTDIR)$(PREFIX)/bin/$p') '$(DESTDIR)$(SYSUSERSDIR)/convod.conf' \
		$(foreach u,$(wildcard systemd/*.service),'$(DESTDIR)$(UNITDIR)/$(notdir $u)') \
		$(foreach n,1 5 8,$(foreach m,$(wildcard docs/*.$n),'$(DESTDIR)$(PREFIX)/share/man/man$n/$(notdir $m)'))
	rm -rf '$(DESTDIR)$(PREFIX)/share/doc/convod'

clean:
	rm -rf $(BUILD)
