/* net.h - sockets: one port for HTTP/1.1 and WebSocket, from bytes to complete requests and messages, and back.
 *
 * net_start() listens, net_service() runs the library's loop once, on the network thread. A request whose body is
 * complete goes to api_dispatch(), a message to ws_message(); what they answer comes back through the functions in
 * conn_ops. There is no JSON here, save a refusal's body that the API made.
 */
#ifndef CONVOD_DAEMON_NET_H
#define CONVOD_DAEMON_NET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/api/api.h"
#include "daemon/daemon.h"

struct net;

struct net_opts {
    const struct daemon_config *config;
    const struct daemon_log *log;
    struct api *api;
    struct auth *auth;
};

/* Binds the listener. The API's events are taken by net_service() from now on. */
int net_start(const struct net_opts *opts, struct net **out, char *err, size_t err_size);
int net_port(const struct net *n);
const char *net_address(const struct net *n);
/* Waits for something to happen, and handles it. False: the loop is broken. */
bool net_service(struct net *n);
/* Calls `tick` from within net_service(): 250 ms after it said 0 or something has happened, otherwise after as many
 * milliseconds as it said. */
void net_tick(struct net *n, int (*tick)(void *arg), void *arg);
/* [tick] Drops who takes nothing, or has gone; keeps quiet streams alive. False: nobody needs that soon again. */
bool net_check(struct net *n);
/* Other tokens count from now on; who is no longer among them goes. */
void net_auth(struct net *n, struct auth *auth);
/* The server stops: closes all sockets as soon as their answers are written. */
void net_close(struct net *n);
/* Ends the loop's life and all connections. NULL is fine. */
void net_free(struct net *n);

#endif
