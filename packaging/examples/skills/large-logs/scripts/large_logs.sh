#!/bin/sh
# Prints the finding first, then the evidence. Folders that this user may not enter are counted.
set -u
folder=/var/log
for word in "$@"; do
  case $word in
    --path=*) folder=${word#--path=} ;;
  esac
done
if [ ! -d "$folder" ]; then
  echo "There is no folder $folder." >&2
  exit 1
fi
files=$(find "$folder" -xdev -type f -printf '%s\t%p\n' 2>/dev/null | sort -rn | head -n 10)
closed=$(find "$folder" -xdev -type d ! -executable 2>/dev/null | wc -l)
if [ -z "$files" ]; then
  echo "There are no files below $folder that can be seen."
else
  echo "The largest file below $folder is $(echo "$files" | head -n 1 | cut -f 2)."
  echo
  echo "$files" | awk -F '\t' '{ printf "- %.1f MiB %s\n", $1 / 1048576, $2 }'
fi
[ "$closed" = 0 ] || echo "
$closed folders could not be looked into."
