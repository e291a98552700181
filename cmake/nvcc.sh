# nvcc.sh TABLE COMMAND...: runs nvcc; what ptxas says goes to TABLE, and to the screen only if nvcc fails.
table="$1"
shift
"$@" >"$table" 2>&1 || { cat "$table" >&2; exit 1; }
