"""What `lactl shell init` prints: the code for bash, zsh and fish that an interactive shell evaluates.

In each the same: a hook of the prompt that starts no process notes the command that failed last, unless it
begins with a blank or the history has not got it; a key asks about that command, and puts what is suggested
into an empty line, which nothing ever runs; the function `ask` asks in words. What was there stays: hooks,
prompt, and a function, alias or program `ask`. To evaluate it again does nothing.

`lactl shell ask` and `lactl shell explain` show their answers on standard error, and print one line,
`SESSION<TAB>SUGGESTION`, neither of which has control characters. The command goes to standard input.
"""

from __future__ import annotations

_BASH = r"""
if [[ $- == *i* && -z ${__lactl_session+x} ]]; then
__lactl_session='' __lactl_next='' __lactl_failed='' __lactl_code=0 __lactl_fresh='' __lactl_number=''
function __lactl_prompt {
  local code=$? number=$HISTCMD
  if [[ $number == "$__lactl_number" || -z $__lactl_number || $code == 130 ]]; then __lactl_fresh=''
  elif ((code)); then __lactl_failed=$((number - 1)) __lactl_code=$code __lactl_fresh=1 __lactl_next=''
  else __lactl_fresh=''
  fi
  __lactl_number=$number
  return "$code"
}
function __lactl_command {
  local this next found
  printf -v this '%5d' "$__lactl_failed"
  printf -v next '\n%5d' "$((__lactl_failed + 1))"
  found=$(HISTTIMEFORMAT='' history "$((HISTCMD - __lactl_failed))")
  found=${found%%"$next"[ \*] *}
  [[ $found == "$this"* ]] && printf '%s' "${found#"$this"? }"
}
function __lactl_take { __lactl_session=${1%%$'\t'*} __lactl_next=${1#*$'\t'}; }
function __lactl_suggest {
  local found
  if [[ -z $__lactl_next ]]; then
    if [[ -z $__lactl_failed ]]; then printf '%s\n' '@NONE@' >&2; return 0; fi
    found=$(__lactl_command | command lactl shell explain @OPTIONS@ --session "$__lactl_session" \
      --status "$__lactl_code" ${__lactl_fresh:+--capture}) && __lactl_take "$found"
  fi
  if [[ -n $__lactl_next && -z $READLINE_LINE ]]; then
    READLINE_LINE=$__lactl_next READLINE_POINT=${#__lactl_next} __lactl_next=''
  fi
}
if ! type ask >/dev/null 2>&1; then
function ask {
  local found
  found=$(command lactl shell ask @OPTIONS@ --session "$__lactl_session" -- "$@") || return
  __lactl_take "$found"
  [[ -z $__lactl_next ]] || printf '@PUTS@\n' "$__lactl_next" >&2
}
fi
if [[ $(declare -p PROMPT_COMMAND 2>/dev/null) == 'declare -a'* ]]; then
PROMPT_COMMAND=(__lactl_prompt "${PROMPT_COMMAND[@]}")
else
PROMPT_COMMAND="__lactl_prompt${PROMPT_COMMAND:+$'\n'$PROMPT_COMMAND}"
fi
bind -m emacs -x '"@KEY@": __lactl_suggest' 2>/dev/null
bind -m vi-insert -x '"@KEY@": __lactl_suggest' 2>/dev/null
fi
"""
_ZSH = r"""
if [[ -o interactive && -z ${__lactl_session+x} ]]; then
typeset -g __lactl_session='' __lactl_next='' __lactl_failed='' __lactl_code=0
typeset -g __lactl_fresh='' __lactl_line=''
function __lactl_preexec { __lactl_line=$1 }
function __lactl_precmd {
  local code=$?
  emulate -L zsh
  __lactl_fresh=''
  if [[ -n $__lactl_line && $__lactl_line != [[:space:]]* && $__lactl_line != ${~HISTORY_IGNORE:-} ]] &&
    (( code && code != 130 )); then
    __lactl_failed=$__lactl_line __lactl_code=$code __lactl_fresh=1 __lactl_next=''
  fi
  __lactl_line=''
}
function __lactl_take { __lactl_session=${1%%$'\t'*} __lactl_next=${1#*$'\t'} }
function __lactl_suggest {
  emulate -L zsh
  local found
  if [[ -z $__lactl_next ]]; then
    zle -I
    if [[ -z $__lactl_failed ]]; then print -ru2 -- '@NONE@'; return 0; fi
    found=$(command lactl shell explain @OPTIONS@ --session "$__lactl_session" --status $__lactl_code \
      ${__lactl_fresh:+--capture} <<<"$__lactl_failed") && __lactl_take "$found"
  fi
  if [[ -n $__lactl_next && -z $BUFFER ]]; then
    BUFFER=$__lactl_next CURSOR=$#__lactl_next __lactl_next=''
  fi
}
if ! whence ask >/dev/null; then
function ask {
  local found
  found=$(command lactl shell ask @OPTIONS@ --session "$__lactl_session" -- "$@") || return
  __lactl_take "$found"
  [[ -z $__lactl_next ]] || printf '@PUTS@\n' "$__lactl_next" >&2
}
fi
autoload -Uz add-zsh-hook
add-zsh-hook preexec __lactl_preexec
add-zsh-hook precmd __lactl_precmd
zle -N __lactl_suggest
bindkey -M emacs '@KEY@' __lactl_suggest
bindkey -M viins '@KEY@' __lactl_suggest
fi
"""
_FISH = r"""
if status is-interactive; and not set -q __lactl_session
set -g __lactl_session ''
set -g __lactl_next ''
set -g __lactl_failed ''
set -g __lactl_code 0
set -g __lactl_fresh
function __lactl_postexec --on-event fish_postexec
    set -l code $status
    set -g __lactl_fresh
    if test $code -ne 0 -a $code -ne 130; and not set -q fish_private_mode
        and string match -qr '^\S' -- "$argv[1]"
        set -g __lactl_failed "$argv[1]"
        set -g __lactl_code $code
        set -g __lactl_fresh --capture
        set -g __lactl_next ''
    end
end
function __lactl_take
    set -l parts (string split -m 1 \t -- $argv[1])
    set -g __lactl_session "$parts[1]"
    set -g __lactl_next "$parts[2]"
end
function __lactl_suggest
    if test -z "$__lactl_next"
        if test -z "$__lactl_failed"
            echo '@NONE@' >&2
        else
            echo >&2
            set -l found (printf %s "$__lactl_failed" | command lactl shell explain @OPTIONS@ \
                --session "$__lactl_session" --status $__lactl_code $__lactl_fresh)
            and __lactl_take "$found"
        end
    end
    set -l line (commandline)
    if test -n "$__lactl_next"; and test -z "$line"
        commandline -r -- $__lactl_next
        set -g __lactl_next ''
    end
    commandline -f repaint
end
if not type -q ask
    function ask
        set -l found (command lactl shell ask @OPTIONS@ --session "$__lactl_session" -- $argv)
        or return
        __lactl_take "$found"
        test -z "$__lactl_next"; or printf '@PUTS@\n' "$__lactl_next" >&2
    end
end
bind @KEY@ __lactl_suggest
bind -M insert @KEY@ __lactl_suggest
end
"""
_CODE = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
_KEYS = {
    "bash": {"alt": r"\e", "ctrl": r"\C-"},
    "zsh": {"alt": "^[", "ctrl": "^"},
    "fish": {"alt": r"\e", "ctrl": r"\c"},
}
"""How each shell writes a key, before its letter."""
SHELLS = tuple(_CODE)


def code(shell: str, *, key: str, options: str) -> str:
    """The code for a shell. `key` is `alt-LETTER` or `ctrl-LETTER`; `options`, quoted for a shell, go to
    `lactl shell ask` and `explain`.
    """
    modifier, _, letter = key.partition("-")
    filled = {
        "@KEY@": _KEYS[shell][modifier] + letter,
        "@OPTIONS@": options,
        "@NONE@": "No command of this shell has failed that its history keeps.",
        "@PUTS@": f"{key} puts it into the line: %s",
    }
    text = _CODE[shell]
    for name, value in filled.items():
        text = text.replace(name, value)
    return text.lstrip("\n")
