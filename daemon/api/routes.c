/* routes.c - the table of routes: an endpoint is a row here, a function in the file of its interface, and a test. */
#include <string.h>

#include "daemon/api/api.h"

const struct route api_routes[] = {
    {METHOD_GET, "/health", service_health, true, false, NULL},
    {METHOD_GET, "/ready", service_ready, true, false, NULL},
    {METHOD_GET, "/metrics", service_metrics, false, false, NULL},
    {METHOD_GET, "/v1/models", service_models, false, true, NULL},
    {METHOD_GET, "/v1/models/{id}", service_model, false, true, NULL},
    {METHOD_GET, "/v1/convod/status", service_status, false, true, NULL},
    {METHOD_POST, "/v1/convod/tickets", service_ticket, false, false, NULL},
    {METHOD_POST, "/tokenize", service_tokenize, false, true, NULL},
    {METHOD_POST, "/detokenize", service_detokenize, false, true, NULL},
    {METHOD_POST, "/v1/responses", client_create, false, true, responses_parse_post},
    {METHOD_POST, "/v1/responses/input_tokens", client_create, false, true, responses_parse_count},
    {METHOD_POST, "/v1/responses/compact", client_create, false, true, responses_parse_compact},
    {METHOD_GET, "/v1/responses/{id}", responses_get, false, true, NULL},
    {METHOD_DELETE, "/v1/responses/{id}", responses_delete, false, true, NULL},
    {METHOD_POST, "/v1/responses/{id}/cancel", responses_cancel, false, true, NULL},
    {METHOD_GET, "/v1/responses/{id}/input_items", responses_input_items, false, true, NULL},
    {METHOD_POST, "/v1/chat/completions", client_create, false, true, chat_parse},
    {METHOD_POST, "/v1/completions", client_create, false, true, completions_parse},
    {METHOD_POST, "/v1/messages", client_create, false, true, anthropic_parse},
    {METHOD_POST, "/v1/messages/count_tokens", client_create, false, true, anthropic_parse_count},
    {METHOD_POST, "/v1/conversations", conversations_create, false, true, conversations_parse_create},
    {METHOD_GET, "/v1/conversations", conversations_list, false, true, NULL},
    {METHOD_GET, "/v1/conversations/{id}", conversations_get, false, true, NULL},
    {METHOD_POST, "/v1/conversations/{id}", conversations_update, false, true, NULL},
    {METHOD_DELETE, "/v1/conversations/{id}", conversations_delete, false, true, NULL},
    {METHOD_GET, "/v1/conversations/{id}/items", conversations_items, false, true, NULL},
    {METHOD_POST, "/v1/conversations/{id}/items", conversations_add_items, false, true, conversations_parse_items},
    {METHOD_GET, "/v1/conversations/{id}/items/{id}", conversations_item, false, true, NULL},
    {METHOD_DELETE, "/v1/conversations/{id}/items/{id}", conversations_delete_item, false, true, NULL},
    {METHOD_GET, "/v1/conversations/{id}/responses", conversations_responses, false, true, NULL},
    {METHOD_POST, "/v1/conversations/{id}/fork", conversations_fork, false, true, NULL},
    {METHOD_POST, "/v1/conversations/{id}/evict", conversations_evict, false, true, NULL},
};
const size_t api_n_routes = sizeof(api_routes) / sizeof(*api_routes);

const char *api_absent(const char *path)
{
    static const struct {
        const char *path, *what; /* and what is below it */
    } absent[] = {
        {"/v1/embeddings", "Embeddings are"},
        {"/v1/images", "Images are"},
        {"/v1/audio", "Audio is"},
        {"/v1/videos", "Videos are"},
        {"/v1/realtime", "Audio is"},
        {"/v1/moderations", "Moderation is"},
        {"/v1/files", "Files are"},
        {"/v1/vector_stores", "Vector stores are"},
        {"/v1/batches", "Batches are"},
        {"/v1/messages/batches", "Batches are"},
        {"/v1/fine_tuning", "Fine-tuning is"},
        {"/v1/assistants", "Assistants are"},
    };
    for (size_t i = 0; i < sizeof(absent) / sizeof(*absent); i++) {
        size_t n = strlen(absent[i].path);
        if (strncmp(path, absent[i].path, n) == 0 && (!path[n] || path[n] == '/')) {
            return absent[i].what;
        }
    }
    return NULL;
}
