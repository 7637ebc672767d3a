#!/usr/bin/env bash
# Start a run, and start it again from its newest whole checkpoint when ranks or hosts fail:
#
#   bash scripts/supervise.sh RESTARTS [--hostfile HOSTS] [deepspeed's options] \
#       scripts/train.py RECIPE --run-dir RUN [--option VALUE]...
#
# Hosts that do not answer are left out, and more where the batch does not divide over the others;
# RUN.hosts has those of the last start. A run that is done, was stopped on request, was given bad
# input or stopped itself is not started again. `bigvit status RUN` decides: an exit code of
# `deepspeed`, 0 too, proves nothing. A signal stops the run after a checkpoint.
set -euo pipefail
usage() { sed -n '2,11s/^# \{0,1\}//p' "$0" >&2; exit 2; }
[[ ${1:-} =~ ^[0-9]+$ ]] || usage
restarts=$1
shift
hostfile='' options=()
while [ $# -gt 0 ] && [[ $1 != *.py ]]; do
    case $1 in
        --hostfile | -H) hostfile=${2:-} && shift ;;
        --hostfile=*) hostfile=${1#*=} ;;
        *) options+=("$1") ;;
    esac
    shift
done
[ $# -ge 4 ] && [ "$3" = --run-dir ] || usage
script=$1 run=$4
shift
# given twice, it would be refused
[[ " $* " == *" --resume"[\ =]* ]] || set -- "$@" --resume auto
mkdir -p "$(dirname "$run")"
say() { echo "supervise: $*" >&2; }
status() { bigvit status "$run" 2> /dev/null | tail -n 1 || true; }

stopped=''
trap 'stopped=1; kill -TERM "$job" 2> /dev/null || true' TERM INT USR1
for ((start = 0; start <= restarts; start++)); do
    [ "$start" = 0 ] || sleep "${PAUSE:-5}" # what was left running ends
    hosts=()
    if [ -n "$hostfile" ]; then
        code=0
        bigvit hosts --hostfile "$hostfile" "$@" > "$run.hosts" || code=$?
        [ "$code" != 2 ] || exit 2
        [ "$code" = 0 ] || { say "no host can be used"; continue; }
        say "on $(tr '\n' ' ' < "$run.hosts")"
        hosts=(--hostfile "$run.hosts" --force_multi) # one host may not be this one
    fi
    before=$(status)
    bigvit launch "${hosts[@]}" "${options[@]}" "$script" "$@" &
    job=$! code=0
    wait "$job" || code=$?
    while kill -0 "$job" 2> /dev/null; do # a signal has ended `wait`, and not the run
        code=0
        wait "$job" || code=$?
    done
    after=$(status)
    read -r state update said _ <<< "${after:-absent 0 $code}"
    [ "$before" != "$after" ] || state=absent said=$code
    say "$state, update $update, exit code $said"
    case $state/$said in
        done/*) exit 0 ;;
        requeue/*) [[ -z $stopped && $after == *"its launcher ended"* ]] || exit 85 ;;
        */2 | */3) exit "$said" ;;
    esac
    [ -z "$stopped" ] || exit 1
done
say "given up after $restarts restarts; bigvit status $run"
exit 1
