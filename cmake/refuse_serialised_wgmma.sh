#!/bin/sh
# Runs a compiler and fails where ptxas says that it serialised wgmma instructions (C7512 to C7518).
output=$("$@" 2>&1)
status=$?
[ -z "$output" ] || printf '%s\n' "$output" >&2
case $output in
  *C7512* | *C7513* | *C7514* | *C7515* | *C7516* | *C7517* | *C7518*)
    echo "error: wgmma was serialised; see the warning above" >&2
    exit 1
    ;;
esac
exit $status
