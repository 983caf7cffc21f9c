/* protocol_fuzz.c - what a peer can send, up to a parsed turn: create bodies of both APIs, request paths, queries,
 * lengths, hosts and configuration text. The first byte says which.
 *
 * The library links the session, of which nothing here is called.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/api/api.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void body(const char *text, size_t len, int which)
{
    struct api_error e = {0};
    cJSON *o = json_parse_request(text, len, &e);
    if (!o) {
        if (!e.status || !e.message[0]) {
            abort(); /* refused without a reason */
        }
        return;
    }
    struct turn_request *q = which == 2 ? chat_parse(o, &e) : responses_parse(o, which == 1, &e);
    if (!q && !e.status) {
        abort();
    }
    if (q) {
        for (size_t i = 0; i < q->n_items; i++) {
            if (strlen(q->items[i].text) != q->items[i].len || !utf8_valid(q->items[i].text, q->items[i].len)) {
                abort();
            }
        }
        if (q->max_output_tokens < 0 || (q->previous && q->conversation) || (q->generate && q->n_items == 0)) {
            abort();
        }
    }
    cJSON *shown = api_error_json(&e);
    char *printed = cJSON_PrintUnformatted(shown);
    if (printed && !utf8_valid(printed, strlen(printed))) {
        abort();
    }
    free(printed);
    cJSON_Delete(shown);
    turn_request_free(q);
}

static void line(const char *text, size_t len)
{
    char *copy = strndup(text, len);
    if (!copy) {
        return;
    }
    const struct route *route = NULL;
    char param[ROUTE_PARAM_MAX], address[64];
    int port;
    for (int method = METHOD_GET; method <= METHOD_OTHER; method++) {
        if (route_find(api_routes, api_n_routes, (enum route_method)method, copy, &route, param) == 0 &&
            strlen(param) >= sizeof(param)) {
            abort();
        }
    }
    struct route_query q;
    route_query_init(&q);
    route_query_add(&q, text, len);
    text_digits(text, len);
    id_valid("resp_", copy);
    stream_id_valid(copy);
    struct daemon_config empty = {0};
    auth_host_allowed(&empty, copy);
    auth_origin_allowed(&empty, copy, "localhost");
    auth_listen_parse(copy, address, sizeof(address), &port);
    uint64_t bytes;
    daemon_bytes_parse(copy, &bytes);
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) {
        return 0;
    }
    const char *text = (const char *)data + 1;
    size--;
    switch (data[0] % 5) {
    case 0:
    case 1:
    case 2:
        body(text, size, data[0] % 5);
        break;
    case 3:
        line(text, size);
        break;
    default: {
        struct daemon_config c = {0};
        struct daemon_faults faults = {0};
        daemon_config_parse(&c, text, size, "fuzz", &faults);
        daemon_faults_free(&faults);
        daemon_config_free(&c);
    }
    }
    return 0;
}
