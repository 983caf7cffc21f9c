/* upkeep.c - what an operator asks of what is stored. Any thread; none of it needs a model. */
#include <string.h>

#include "session/session_internal.h"

int session_backup(struct session *s, const char *to, bool with_kv, char *err, size_t err_size)
{
    return storage_backup(s->storage, to, with_kv, err, err_size);
}

void session_backup_stop(struct session *s)
{
    storage_backup_stop(s->storage);
}

int session_backup_of(const char *data_dir, const char *to, bool with_kv,
                      void (*log)(void *arg, int priority, const char *text), void *log_arg, char *err, size_t err_size)
{
    struct storage *st;
    int rc = storage_open(&(struct storage_opts){.dir = data_dir, .log = log, .log_arg = log_arg, .existing = true},
                          &st, err, err_size);
    if (rc)
        return rc;
    rc = storage_backup(st, to, with_kv, err, err_size);
    storage_close(st);
    return rc;
}

int session_verify(const char *data_dir, bool repair, void (*report)(void *arg, const char *text), void *arg,
                   void (*log)(void *arg, int priority, const char *text), void *log_arg, struct session_checked *out,
                   char *err, size_t err_size)
{
    struct storage_checked n;
    const struct storage_opts opts = {.dir = data_dir, .log = log, .log_arg = log_arg};
    int rc = storage_verify(&opts, repair, report, arg, &n, err, err_size);
    *out = (struct session_checked){n.conversations, n.turns, n.segments, n.not_stored, n.wrong};
    return rc;
}
