#!/bin/sh
# Two turns of a conversation with curl: the second sends its own message alone.
# usage: responses.sh [BASE_URL]      (http://127.0.0.1:8642/v1)
set -eu
base=${1:-http://127.0.0.1:8642/v1}

post() { # path, body
    curl -fsS "$base$1" -H 'Content-Type: application/json' -d "$2"
}
field() { # name: of the first object on standard input
    sed -n "s/.*\"$1\": *\"\([^\"]*\)\".*/\1/p" | head -n 1
}

conversation=$(post /conversations '{"title": "An example"}' | field id)
post /responses "{\"conversation\": \"$conversation\", \"input\": \"My kite is called Merlin.\", \"max_output_tokens\": 32}" >/dev/null
post /responses "{\"conversation\": \"$conversation\", \"input\": \"What is my kite called?\", \"max_output_tokens\": 32}"
echo
curl -fsS "$base/conversations/$conversation/items?order=asc"
echo
