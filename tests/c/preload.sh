#!/bin/sh
# The runtime of a sanitizer (address,undefined or thread), to be preloaded into an uninstrumented Python.
case $1 in
address*) ${CC:-gcc} -print-file-name=libasan.so ;;
thread) ;; # TSan runs the C programs only, and they carry their runtime
*) echo "preload.sh: no sanitizer '$1': address,undefined or thread" >&2; exit 1 ;;
esac
