/* config_private.h - what the files of the configuration share: the table of settings, and setting one of them. */
#ifndef CONVOD_CONFIG_PRIVATE_H
#define CONVOD_CONFIG_PRIVATE_H

#include "daemon/daemon.h"

enum setting_type { STRING, INTEGER, BYTES, FRACTION, LIST };

struct setting {
    const char *name;
    enum setting_type type;
    size_t offset, count_offset;
    int64_t min, max; /* INTEGER: both; BYTES: the least but 0 */
    const char *unit, *fallback, *help;
    const char *const *choices;        /* STRING: one of these; NULL: any */
    bool (*fits)(const char *value);   /* STRING, LIST; NULL: any */
    void (*allowed)(char *, size_t n); /* says what `fits` wants */
};

/* The setting of that name, or NULL. */
const struct setting *setting_find(const char *name, size_t len);
/* The name that is nearest to one that is none, when it is near; or NULL. */
const char *setting_near(const char *name, size_t len);
/* Sets one from text. where: "FILE:3" or "command line"; line: of the file, or SETTING_FLAG. What is wrong becomes a
 * fault that names place, setting and what is allowed, and the setting stays as it was. */
void setting_assign(struct daemon_config *c, const struct setting *s, const char *value, const char *where, int line,
                    struct daemon_faults *faults);
/* Notes that a setting was tried, so that nobody misses it. */
void setting_was_given(struct daemon_config *c, const struct setting *s, int line);
/* Whether nobody made it. */
bool setting_is_default(const struct daemon_config *c, const char *name);
/* Where a setting was made, for messages: "FILE:3: ", "command line: " or "". */
const char *setting_place(const struct daemon_config *c, const char *name, char *out, size_t size);

/* Reads a file (config_file.c). 0, also when it is missing and need not exist; else negative, and there are faults. */
int daemon_config_read(struct daemon_config *c, const char *path, bool must_exist, struct daemon_faults *faults);

#define SETTING_DEFAULT 0
#define SETTING_FLAG    (-1)

#endif
