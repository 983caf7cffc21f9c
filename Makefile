# convod: `make` builds build/convod and build/convo; `make help` lists the rest.
#
# Every folder's and room's *.c is picked up by wildcard. Files named *_avx2.c, *_avxvnni.c and *_avx512.c get that instruction
# set; all others are built for the baseline, so that one binary runs on every x86-64 processor. A build with other flags goes to its
# own folder: make BUILD=build/asan SAN=address,undefined
BUILD ?= build
# One name for one folder, or what was noted of its headers by the other name would be overlooked.
override BUILD := $(patsubst $(CURDIR)/%,%,$(BUILD))
SAN ?=
CC ?= cc
AR ?= ar
PYTHON ?= python3
PKG_CONFIG ?= pkg-config
PREFIX ?= /usr/local
DESTDIR ?=
# Symbols are left out of what is installed; a package build keeps them, and takes them out itself.
INSTALL_PROGRAM ?= install -s -m 755
UNITDIR ?= $(PREFIX)/lib/systemd/system
SYSUSERSDIR ?= $(PREFIX)/lib/sysusers.d
ZSHDIR ?= $(PREFIX)/share/zsh/site-functions
# Models that `make check` and `make bench` fetch, and how long each fuzz target runs in a check.
TEST_MODELS ?= qwen-0.5b gemma-270m
FUZZ_SECONDS ?= 20
BENCH_MODELS ?= qwen-0.5b qwen-1.5b

VERSION := 0.1.0
PACKAGES := libwebsockets sqlite3 liblz4 libcjson libpcre2-8 libcrypto libxxhash
CLI_PACKAGES := libwebsockets libcjson libedit libcrypto md4c

OPT ?= $(if $(SAN),-O1 -g,-O2 -g $(if $(findstring FORTIFY_SOURCE,$(CPPFLAGS)),,-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2))
# Against faults that we did not find: guarded stacks, addresses that differ each time, tables that are read-only once filled.
HARDEN := -fstack-protector-strong -fPIE
HARDEN_LD := -pie -Wl,-z,relro,-z,now
WARN := -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wvla \
	$(if $(SAN),-Wno-error)
override CFLAGS += -std=c11 -D_GNU_SOURCE -DCONVOD_VERSION='"$(VERSION)"' $(OPT) $(WARN) $(HARDEN) -ffp-contract=off -fno-math-errno \
	-pthread -I. $(if $(SAN),-fsanitize=$(SAN) -fno-sanitize-recover=all -fno-omit-frame-pointer)
override LDFLAGS += -pthread $(HARDEN_LD) $(if $(SAN),-fsanitize=$(SAN))
DEP_CFLAGS := $(shell $(PKG_CONFIG) --cflags $(PACKAGES) $(CLI_PACKAGES) 2>/dev/null)
DEP_LIBS := $(shell $(PKG_CONFIG) --libs $(PACKAGES) 2>/dev/null)
CLI_LIBS := $(shell $(PKG_CONFIG) --libs $(CLI_PACKAGES) 2>/dev/null)

# Below -O2 gcc leaves out the vzeroupper at the ends of these files' functions, and the portable code behind them runs many times
# slower. Checks as calls halve the time that the sanitizers make the compiler take over them; clang, which makes the fuzz targets,
# leaves undefined behaviour to gcc. Frames that are looked at after a return are not where gcc 13 and 14 take vectors of 64 bytes to be.
AVX2 := -mavx2 -mfma -mf16c \
	$(if $(SAN),-O2 $(if $(findstring clang,$(CC)),-fno-sanitize=undefined,--param asan-instrumentation-with-call-threshold=0 --param asan-use-after-return=0))
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
# What Python tests use besides the programs.
PY_WANTS := $(BUILD)/tests/service/model $(BUILD)/tests/grammar/check $(BUILD)/venv/.complete $(BUILD)/helpers/.complete $(BUILD)/aider/.complete $(BUILD)/jsonschema/.complete $(BUILD)/servers
.DEFAULT_GOAL := all
include kernels/cuda/cuda.mk
shared = $(patsubst %.c,$(BUILD)/obj/%.o,$(filter-out %_test.c,$(wildcard $(dir tests/$1)*.c)) \
	$(file <$(dir tests/$1)shared))

.PHONY: all chat stop check late torture soak test lint format grammar-figures bench bench-serve install uninstall clean help deps model \
	tests objects bench-programs fuzz-programs FORCE
.SECONDARY:
.SECONDEXPANSION:
.DELETE_ON_ERROR:

all: $(PROGRAMS)

# ---- building -------------------------------------------------------------------------------------------------------

# What the objects were made with: when it changes, they are made again.
FLAGS := $(CC) $(CFLAGS) $(CPPFLAGS) $(AVX512) $(AVXVNNI) $(DEP_CFLAGS) $(LDFLAGS) $(DEP_LIBS) $(CLI_LIBS)
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
	$(Q)$(CC) $(CFLAGS) $(CPPFLAGS) $(DEP_CFLAGS) $(if $(findstring _avx2.c,$<),$(AVX2)) $(if $(findstring _avxvnni.c,$<),$(AVXVNNI)) $(if $(findstring _avx512.c,$<),$(AVX512)) -MMD -MP -c $< -o $@

$(BUILD)/libconvod.a: $(LIB_OBJ)
	$(Q)rm -f $@
	$(Q)$(AR) rcs $@ $^

$(BUILD)/libconvo.a: $(filter-out %/main.o,$(CLI_OBJ))
	$(Q)rm -f $@
	$(Q)$(AR) rcs $@ $^

$(BUILD)/convod: $(BUILD)/obj/daemon/main.o $(CUDA_OBJ) $(BUILD)/libconvod.a
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS) $^ $(DEP_LIBS) $(CUDA_LIBS) -lm -o $@

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
	@echo 'make test            build and run the unit tests alone; T=daemon/auth only that one, T=daemon those of a folder'
	@echo 'make lint            check form, dependencies between folders, and what static checkers find'
	@echo 'make format          put the sources into that form (clang-format 14)'
	@echo 'make late            the same with threads that come late and a slow disk; T= as above'
	@echo 'make torture         kills, power losses and full disks, for as long as TORTURE_CASES says'
	@echo 'make soak            random clients, kills and restarts, for SOAK_SECONDS (half an hour)'
	@echo 'make bench           measure, side by side with a peer'
	@echo 'make bench-serve     many conversations at once, against a peer: table, JSON and a picture'
	@echo 'make grammar-figures structured output: what is right per keyword, and what masks cost'
	@echo 'make cuda            compile the CUDA kernels for every chip, and list what each takes of it'
	@echo 'make gpu-bundle      pack what measures a GPU, for a machine that has one'
	@echo 'make deb             build a Debian package in $(BUILD)/deb'
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
# Whole models over hundreds of tokens take up to an hour that way where there is no AVX-512. What they are made of is run: the operations
# alone, and small models with their pages in the session's tests.
ASAN_TESTS := $(filter-out $(foreach t,step pages engine,$(BUILD)/tests/engine/$t_test),$(TESTS)) $(wildcard tests/clients/convo_test.py tests/clients/answer_test.py tests/clients/attach_test.py tests/clients/keys_test.py)
TSAN_TESTS := $(filter $(foreach t,kernels/pool_test kernels/kernels_test storage/% session/% daemon/%,$(BUILD)/tests/$t),$(TESTS))
HAVE_FUZZER := $(if $(filter check-run,$(MAKECMDGOALS)),$(shell echo 'int LLVMFuzzerTestOneInput(void) { return 0; }' \
	| clang -x c -fsanitize=fuzzer - -o /dev/null 2>/dev/null && echo yes))

HAVE_DEBHELPER := $(if $(filter check-run,$(MAKECMDGOALS)),$(shell command -v dpkg-buildpackage >/dev/null && command -v dh))

.PHONY: check-run
check-run: all tests races-tests $(LIFE_TESTS) $(BUILD)/gpu/limits-host $(BUILD)/gpu/check-host $(BUILD)/gpu/models-host $(BUILD)/cuda_host/convod $(PY_WANTS)
	@$(MAKE) $(QUIET) $(ASAN) all tests
	@$(if $(TSAN_TESTS),$(MAKE) $(QUIET) $(TSAN) $(TSAN_TESTS:$(BUILD)/%=$(BUILD)/tsan/%))
	@$(if $(and $(HAVE_FUZZER),$(FUZZERS)),$(MAKE) $(QUIET) $(FUZZ) fuzz-programs)
	@$(if $(HAVE_DEBHELPER),$(MAKE) $(QUIET) deb-build)
	@BUILD='$(BUILD)' tests/run -t 1200 lint: tests/ci/lint unit: $(TESTS) races: $(RACES_TESTS) life: $(LIFE_TESTS) python: $(PY_TESTS) \
		asan: $(ASAN_TESTS:$(BUILD)/%=$(BUILD)/asan/%) tsan: $(TSAN_TESTS:$(BUILD)/%=$(BUILD)/tsan/%) \
		$(if $(HAVE_FUZZER),fuzz=$(FUZZ_SECONDS): $(FUZZERS:$(BUILD)/%=$(BUILD)/fuzzing/%),skip: 'fuzzing: clang with its fuzzer is not here')

# T names tests as the folders do: daemon/auth is tests/daemon/auth_test.c, clients/convo tests/clients/convo_test.py.
T ?=
CHOSEN := $(if $T,$(filter $(foreach t,$T,$(BUILD)/tests/$t_test $(BUILD)/tests/$t/% tests/$t_test.py tests/$t/%),$(TESTS) $(PY_TESTS)),$(TESTS))
test: $(filter $(TESTS),$(CHOSEN)) $(if $(filter %.py,$(CHOSEN)),all $(PY_WANTS)) \
		$(if $(filter tests/gpu/%,$(CHOSEN)),$(BUILD)/gpu/limits-host $(BUILD)/gpu/check-host $(BUILD)/gpu/models-host) $(if $(filter tests/cuda_host/%.py,$(CHOSEN)),$(BUILD)/cuda_host/convod)
	@$(if $(CHOSEN),,echo 'No test is called $T; there are, among others, daemon/auth and clients/convo.' >&2; exit 1)
	@BUILD='$(BUILD)' tests/run $(if $(filter $(TESTS),$(CHOSEN)),unit: $(filter $(TESTS),$(CHOSEN))) \
		$(if $(filter %.py,$(CHOSEN)),python: $(filter %.py,$(CHOSEN)))

# The same tests on a machine whose threads come late and whose disk is slow: in each of LATE by another one and at other moments.
LATE ?= 1 2 3
late: $(BUILD)/late.so $(filter $(TESTS),$(CHOSEN)) $(if $(filter %.py,$(CHOSEN)),all $(PY_WANTS))
	@for n in $(LATE); do echo "LATE=$$n" && LATE=$$n LD_PRELOAD='$(abspath $<)' $(MAKE) $(QUIET) test T='$T' || exit; done

$(BUILD)/late.so: tests/ci/late.c $(BUILD)/flags
	$(call say,LINK,$@)
	$(Q)$(CC) $(CFLAGS) $(CPPFLAGS) -fPIC -shared $< -o $@

# Crashes at so many moments of a recorded run, and as many turns under kills, full disks and cut connections; `make check` tries a few
# seconds' worth of each.
TORTURE_CASES ?= 2000
torture: all $(BUILD)/tests/torture/power_test $(BUILD)/tests/service/model
	@TORTURE_CASES='$(TORTURE_CASES)' BUILD='$(BUILD)' $(PYTHON) tests/torture/chaos_test.py --all

# Clients that do anything at any time, while the daemon is killed and restarted; `make check` does it for 20 seconds.
SOAK_SECONDS ?= 1800
soak: all $(BUILD)/tests/service/model
	@BUILD='$(BUILD)' SOAK_SECONDS='$(SOAK_SECONDS)' $(PYTHON) tests/torture/soak_test.py

lint:
	@BUILD='$(BUILD)' tests/ci/lint

format:
	clang-format-14 -i $(foreach d,$(LIB_FOLDERS) clients/cli tests/*,$(wildcard $d/*.[ch] $d/*/*.[ch] $d/*.c[cu] $d/*/*.c[cu]))

# The clients of other makers that tests and measurements use, each in a throw-away environment.
$(BUILD)/venv/.complete: tests/requirements.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install -q --disable-pip-version-check -r $<
	@touch $@

# Those that want other versions of the same packages: named exactly, since finding them takes minutes.
$(BUILD)/helpers/.complete: tests/helpers.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install -q --disable-pip-version-check -r $<
	@touch $@

# aider, with what of its 111 packages it uses there: of those that the others have not. It wants a Python before 3.13.
$(BUILD)/aider/.complete: tests/aider.txt $(BUILD)/venv/.complete
	@mkdir -p $(@D)
	if $(PYTHON) -c 'import sys; sys.exit(sys.version_info >= (3, 13))'; then \
		$(BUILD)/venv/bin/pip install -q --disable-pip-version-check --no-deps --upgrade --target $(@D) -r $<; fi
	@touch $@

# The official JSON Schema test files, which the source of a package ships (what builds it is among the requirements).
$(BUILD)/jsonschema/.complete: $(BUILD)/venv/.complete
	@mkdir -p $(@D)
	$(BUILD)/venv/bin/pip download -q --disable-pip-version-check --no-deps --no-build-isolation --no-binary jsonschema -d $(@D) \
		$$(grep '^jsonschema' tests/requirements.txt)
	tar -xzf $(@D)/jsonschema-*.tar.gz --strip-components=1 -C $(@D)
	@touch $@

$(BUILD)/servers: tests/service/servers
	@tests/service/servers $@

$(BUILD)/peer/.complete: tests/bench/peer
	@tests/bench/peer $(@D)
	@touch $@

bench:
	@clients/setup/packages bench
	@clients/setup/fetch-model $(BENCH_MODELS) >/dev/null
	@$(MAKE) $(QUIET) bench-run

# Many conversations at once, beside the peer's server where it can be installed.
bench-serve:
	@clients/setup/packages bench
	@clients/setup/fetch-model >/dev/null
	@$(MAKE) $(QUIET) all $(BUILD)/bench/send_bench $(BUILD)/tests/service/model
	@$(MAKE) $(QUIET) $(BUILD)/peer/.complete || echo 'Measuring without the peer.'
	@BUILD='$(BUILD)' $(PYTHON) tests/bench/serve.py --json $(BUILD)/bench-serve.json --svg $(BUILD)/bench-serve.svg

.PHONY: bench-run
bench-run: all bench-programs $(BUILD)/peer/.complete
	@set -e; for b in $(filter-out %/engine_bench %/pick_bench %/grammar_bench %/form_bench %/perplexity_bench,$(BENCHES)); do echo "== $$b"; $$b; done
	@BUILD='$(BUILD)' $(PYTHON) tests/bench/bench.py --json $(BUILD)/bench.json --markdown $(BUILD)/bench.md

# The package is built from a copy of what makes it, as dpkg wants it: debian/ at the top, its changelog from VERSION.
DEB := $(BUILD)/deb/convod-$(VERSION)
DEB_DATE := $(shell git log -1 --format=%cD 2>/dev/null || date -R)

deb:
	@clients/setup/packages deb
	@$(MAKE) $(QUIET) deb-build
	@lintian $(if $(filter 0,$(shell id -u)),--allow-root) --fail-on error,warning $(BUILD)/deb/*.changes

.PHONY: deb deb-build
deb-build:
	@rm -rf $(BUILD)/deb
	@mkdir -p $(DEB)/tests
	@cp -R Makefile README.md $(LIB_FOLDERS) clients docs systemd $(DEB)
	@cp -R systemd/debian $(DEB)/debian
	@printf 'convod (%s) unstable; urgency=medium\n\n  * This version; its history is in the source repository.\n\n -- %s  %s\n' \
		'$(VERSION)' "$$(sed -n 's/^Maintainer: //p' systemd/debian/control)" '$(DEB_DATE)' >$(DEB)/debian/changelog
	$(call say,DEB ,$(BUILD)/deb)
	@cd $(DEB) && env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL -u CFLAGS -u LDFLAGS -u BUILD CUDA=0 dpkg-buildpackage -us -uc -b -j$(shell nproc) >../build.log 2>&1 || \
		{ tail -n 40 ../build.log; exit 1; }
	@echo $(BUILD)/deb/*.deb

# Where each installed file comes from and goes to; systemd looks for units in /usr/lib, /etc and /usr/local/lib, and paths
# in the unit are those of this installation.
INSTALLED := $(foreach n,1 5,$(foreach m,$(wildcard docs/*.$n),$m:$(PREFIX)/share/man/man$n/$(notdir $m))) \
	systemd/convod.conf.example:$(PREFIX)/share/doc/convod/convod.conf.example \
	systemd/convod.rules.yml:$(PREFIX)/share/doc/convod/convod.rules.yml \
	systemd/convod.sysusers:$(SYSUSERSDIR)/convod.conf \
	$(foreach d,README.md $(wildcard docs/*.md docs/*/*.md),$d:$(PREFIX)/share/doc/convod/$d) \
	$(foreach p,$(wildcard systemd/proxy/*),$p:$(PREFIX)/share/doc/convod/examples/$(notdir $p)) \
	$(foreach p,convod convo,clients/completion/$p.bash:$(PREFIX)/share/bash-completion/completions/$p \
		clients/completion/$p.zsh:$(ZSHDIR)/_$p)
to_install = $(word 2,$(subst :, ,$1))

install: all
	install -d '$(DESTDIR)$(PREFIX)/bin' '$(DESTDIR)$(UNITDIR)'
	$(INSTALL_PROGRAM) $(PROGRAMS) '$(DESTDIR)$(PREFIX)/bin/'
	set -e; for i in $(INSTALLED); do install -D -m 644 "$${i%%:*}" '$(DESTDIR)'"$${i#*:}"; done
	sed 's|/usr/local/bin/|$(PREFIX)/bin/|g' systemd/convod.service >'$(DESTDIR)$(UNITDIR)/convod.service'
	chmod 644 '$(DESTDIR)$(UNITDIR)/convod.service'

uninstall:
	rm -f $(foreach p,convod convo,'$(DESTDIR)$(PREFIX)/bin/$p') '$(DESTDIR)$(UNITDIR)/convod.service' \
		$(foreach i,$(INSTALLED),'$(DESTDIR)$(call to_install,$i)')
	rm -rf '$(DESTDIR)$(PREFIX)/share/doc/convod'

# Structured output: what is right per keyword, what compiling and masks cost with a real vocabulary, and what of decoding.
grammar-figures: $(BUILD)/bench/grammar_bench $(BUILD)/bench/form_bench $(BUILD)/tests/grammar/check $(BUILD)/venv/.complete $(BUILD)/jsonschema/.complete
	@BUILD='$(BUILD)' $(BUILD)/venv/bin/python tests/grammar/figures.py "$$(clients/setup/fetch-model qwen-0.5b)"

clean:
	rm -rf $(BUILD)
