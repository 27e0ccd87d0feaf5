#!/usr/bin/env bash
# Run one of the README's two commands as printed there: run or test.
# They stand in fenced blocks behind the comments <!-- command: NAME -->.
set -euo pipefail
cd "$(dirname "$0")/.."
name="${1:?which command: run or test}"
command="$(awk -v mark="<!-- command: $name -->" '
  $0 == mark { found = 1; next }
  found && /^```/ { if (inside) exit; inside = 1; next }
  found && inside { print }
' README.md)"
[ -n "$command" ] || { echo "README.md has no command '$name'" >&2; exit 1; }
printf '+ %s\n' "$command"
bash -c "$command"
