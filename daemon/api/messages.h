/* messages.h - making the items of a request out of what an interface calls its messages: what messages.c shares with
 * interfaces that have blocks of their own.
 */
#ifndef CONVOD_DAEMON_MESSAGES_H
#define CONVOD_DAEMON_MESSAGES_H

#include "daemon/api/api.h"

#define CALL_ID_MAX 256

/* A list that is being read into q's items. */
struct message_list {
    struct turn_request *q;
    const char *name; /* of the list, in errors */
    size_t index, capacity;
    bool ids; /* items get ids: those of Responses */
    struct api_error *e;
};

/* All texts of items lie in q's blocks. NULL: out of memory, which message_no_memory() says (-1). */
char *message_room(struct turn_request *q, size_t len); /* and a terminator */
char *message_keep(struct turn_request *q, const char *text);
int message_no_memory(struct api_error *e);

/* An item of kind `compaction` (compact.c). */
int compaction_add(struct message_list *l, const cJSON *item, const char *prefix);

/* The last of q's items, where it is text of the model, becomes what the answer begins with; `name` is that of the
 * list. 0, or -1 and *e. */
int message_continue(struct turn_request *q, const char *name, struct api_error *e);
/* When all has been read: whether an answer that begins with something can be what is asked for. form: what a form is
 * called. 0, or -1 and *e. */
int message_opening_check(const struct turn_request *q, const char *form, struct api_error *e);

/* The functions below: 0, or -1 and *e. Names in errors begin with `prefix`, or are `where`. */

/* The text of a content, a string or text parts, kept. */
int message_text(struct turn_request *q, const cJSON *content, const char *where, char **text, struct api_error *e);
/* A string that must be there. */
int message_need_string(const struct message_list *l, const cJSON *o, const char *prefix, const char *key, size_t max,
                        const char **out);
/* An item. kind is static, text and body are kept already; id_prefix: of its id. */
int message_add(struct message_list *l, const char *kind, const char *id_prefix, enum engine_role role,
                const char *text, const char *body);
/* A call of a tool, and what it gave. id: the call's. */
int message_add_call(struct message_list *l, const char *id, const char *name, const char *arguments,
                     const char *prefix);
int message_add_result(struct message_list *l, const char *id, const cJSON *content, const char *where);

#endif
