#!/usr/bin/env bash
# mpirun/pretrain.sh on two hosts whose link is cut while they train: no connection is closed, so nothing fails by itself.
# The watchdog must say what the ranks were waiting for, the script must end, and once the link is healed the same command
# must finish the run.
#
#   tests/cluster/cut_link.sh [--bin FOLDER] [--if-asked]       (fixture.sh explains the options)
#
# Takes half a minute. Leaves nothing behind; the logs are printed when it fails.
#
# shellcheck source-path=SCRIPTDIR
set -euo pipefail
tree=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")
source "$tree/tests/cluster/fixture.sh"
read_options "$@"
need_root_and_slurm
source "$tree/tests/cluster/network_hosts.sh"

begin_on_two_hosts cut
make_profile_of_two_hosts \
    "pretrain_options=(--model $folder/model.json --steps 600 --batch-tokens 2048 --sequence-length 32 --learning-rate 3e-3" \
    '    --checkpoint-every 20 --keep 0)' \
    watchdog=8 keepalive_time=10 keepalive_interval=2 seconds_to_end=5

stage_on_host_1 tokenize || fail "tokenize on two hosts"
stage_on_host_1 pretrain &
training=$!
await_checkpoint run 60
cut_link "$TANDEM_HOSTS" 2
cut_at=$SECONDS
while kill -0 "$training" 2>/dev/null; do
    ((SECONDS < cut_at + 60)) || { kill "$training"; fail "pretrain.sh does not end after the cut"; }
    sleep 0.2
done
code=0
wait "$training" || code=$?
((code == 1 || code > 128)) || fail "pretrain.sh ended with exit code $code after the cut"
grep -q 'watchdog: rank 0 of 2 on h1: .* has been waiting' "$folder/pretrain.log" ||
    fail "the watchdog did not say what rank 0 was waiting for"
[[ $(newest_checkpoint run) -lt 600 ]] || fail "the run was done before the link was cut"
echo "passed: a cut link ends the run, after $((SECONDS - cut_at)) s, with exit code $code and a word from the watchdog"

heal_link "$TANDEM_HOSTS" 2
stage_on_host_1 pretrain || fail "pretrain.sh after the link was healed: exit code $?"
grep -q "resumed from" "$folder/pretrain.log" || fail "the run was begun anew"
expect_every_step_once "$folder/run" 600
echo "passed: once the link is healed, the same command finishes the run"
failed=0
