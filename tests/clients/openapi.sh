#!/bin/sh
# Requests made up of what /openapi.json says, right ones and wrong ones: sh openapi.sh URL [REQUESTS_PER_ROUTE [SEED]].
#
# No answer may be a 5xx other than 501, which is for what is not built, and each has a status, a type and a form that the
# document has. The server should have `--max-model-len 64` or so: it is asked for thousands of outputs. Needs
# `pip install schemathesis`. The stream of looks at the engine is left out: it does not end.
set -eu
cd "$(dirname "$0")"
exec schemathesis --config-file openapi.toml run "$1/openapi.json" --max-examples "${2:-100}" --seed "${3:-1}" \
  --exclude-path /live/events --header 'X-Request-Timeout: 5' --continue-on-failure
