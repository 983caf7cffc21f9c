/* error.c - why a request is refused, as the API says it. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "daemon/run/run.h"

void api_error_set(struct api_error *e, int status, const char *code, const char *param, const char *format, ...)
{
    e->status = status;
    e->type = status == 401   ? "authentication_error"
              : status == 403 ? "permission_error"
              : status == 429 ? "rate_limit_error"
              : status >= 500 ? "server_error"
                              : "invalid_request_error";
    e->code = code;
    snprintf(e->param, sizeof(e->param), "%s", param ? param : "");
    va_list args;
    va_start(args, format);
    vsnprintf(e->message, sizeof(e->message), format, args);
    va_end(args);
    /* A cut or foreign byte sequence must not make the error itself invalid. */
    for (char *p = e->message; *p; p++) {
        if ((unsigned char)*p < 0x20 || (unsigned char)*p >= 0x7f) {
            *p = '?';
        }
    }
    for (char *p = e->param; *p; p++) {
        if ((unsigned char)*p < 0x20 || (unsigned char)*p >= 0x7f) {
            *p = '?';
        }
    }
}

void api_error_deleting(const char *id, struct api_error *e)
{
    api_error_set(e, 409, "deleting", NULL,
                  "'%s' is deleted, but something of it could not be erased from the disk yet. This is tried again by "
                  "itself.",
                  id);
}

void api_error_session(enum session_failure failure, const char *message, struct api_error *e)
{
    static const struct {
        enum session_failure failure;
        int status;
        const char *code, *param, *fallback;
    } table[] = {
        {SESSION_PREVIOUS_NOT_FOUND, 400, "previous_response_not_found", "previous_response_id",
         "The previous response was not found."},
        {SESSION_CONVERSATION_NOT_FOUND, 404, "conversation_not_found", "conversation",
         "The conversation was not found."},
        {SESSION_CONVERSATION_LOCKED, 400, "conversation_locked", "conversation",
         "A turn is running on this conversation."},
        {SESSION_CONTEXT_LENGTH, 400, "context_length_exceeded", "input",
         "The conversation is longer than the model's context."},
        {SESSION_INVALID, 400, "invalid_request_error", "input", "The request cannot be run."},
        {SESSION_BUSY, 429, "rate_limit_exceeded", NULL, "Too many turns are waiting."},
        {SESSION_NO_MEMORY, 503, "insufficient_memory", NULL, "There is not enough KV memory for this turn."},
        {SESSION_GONE, 404, "response_not_found", NULL, "The response was deleted."},
        {SESSION_KEY_REUSED, 400, "idempotency_key_reused", NULL,
         "This idempotency key came with another request before."},
        {SESSION_KEY_LIMIT, 429, "rate_limit_exceeded", NULL, "Too many idempotency keys are in use."},
        {SESSION_LEDGER, 500, "server_error", NULL, "The turn could not be written; nothing of it was kept."},
        {SESSION_DISK_FULL, 507, "disk_full", NULL, "The disk is full: free some space on the server."},
        {SESSION_QUOTA, 403, "quota_exceeded", NULL,
         "You have as much as you may have: delete some conversations first."},
        {SESSION_MODEL, 500, "server_error", NULL, "The model's numbers are not finite."},
        {SESSION_SHUTDOWN, 503, "server_shutdown", NULL, "The server is stopping."},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(*table); i++) {
        if (table[i].failure == failure) {
            api_error_set(e, table[i].status, table[i].code, table[i].param, "%s",
                          message && *message ? message : table[i].fallback);
            return;
        }
    }
    api_error_set(e, 500, "server_error", NULL, "%s", message && *message ? message : "The turn failed.");
}

void api_error_turn(enum session_failure failure, const char *message, const struct turn_request *q,
                    struct api_error *e)
{
    api_error_session(failure, message, e);
    const char *param = NULL;
    if (strcmp(e->param, "input") == 0) {
        param = q->input;
    } else if (failure == SESSION_PREVIOUS_NOT_FOUND || failure == SESSION_CONVERSATION_LOCKED) {
        param = q->continues                                         ? "convod.continue"
                : q->previous                                        ? "previous_response_id"
                : q->parent && failure == SESSION_PREVIOUS_NOT_FOUND ? "convod.parent"
                                                                     : NULL;
    }
    if (param) {
        snprintf(e->param, sizeof(e->param), "%s", param);
    }
}
