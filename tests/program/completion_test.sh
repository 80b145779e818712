#!/usr/bin/env bash
# Bash completion of some partial command lines. Usage: completion_test.sh OCTET
set -uo pipefail
octet=$1
complete() { :; }  # the builtin wants a line editor
compopt() { :; }
source <("$octet" completion bash)
failed=0
completes() {  # completes EXPECTED WORDS...: the last word is the one being typed
  local expected=$1
  shift
  COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
  _octet
  [ "${COMPREPLY[*]}" = "$expected" ] || { echo "after '$*': '${COMPREPLY[*]}', want '$expected'" >&2; failed=1; }
}
completes "train" octet tr
completes "train" octet tokenizer tr
completes "--vocab-size" octet tokenizer train --out tok --vo
completes "optimizer.beta1= optimizer.beta2=" octet train configs/quickstart.yaml optimizer.b
completes "--prompt --prompt-file --prompts-file" octet generate out/run --pro
completes "" octet generate optimizer.b
"$octet" completion zsh | grep "^#compdef octet" >/dev/null || failed=1
"$octet" completion fish | grep "__fish_seen_subcommand_from tokenizer; and __fish_seen_subcommand_from train' -l vocab-size" >/dev/null || failed=1
exit $failed
