#!/usr/bin/env bash
# pretrain on two hosts whose link carries 100 Mbit/s: within 20 steps it must say that the network holds all ranks up, and
# name no rank.
#
#   tests/cluster/slow_link.sh [--bin FOLDER] [--if-asked]       (fixture.sh explains the options)
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

begin_on_two_hosts slow
# Many parameters and few tokens: the exchange is most of a step, whatever else this machine does.
make_model | sed 's/"hidden_size": 32/"hidden_size": 384/; s/"intermediate_size": 64/"intermediate_size": 768/' >"$folder/model.json"
make_profile_of_two_hosts \
    "pretrain_options=(--model $folder/model.json --steps 200 --batch-tokens 64 --sequence-length 32 --learning-rate 3e-4" \
    '    --on-straggler checkpoint-and-exit --time-limit 120s)'

stage_on_host_1 tokenize || fail "tokenize on two hosts"
limit_links "$TANDEM_HOSTS" 100mbit
# The script would start it again after its exit; what it says then is the same.
stage_on_host_1 pretrain &
training=$!
for ((i = 0; i < 600; ++i)); do
    ! grep -qs '"straggler"' "$folder/run/model/metrics.jsonl" || break
    kill -0 "$training" 2>/dev/null || break
    sleep 0.2
done
kill -TERM "$training" 2>/dev/null || true
wait "$training" || true
python3 - "$folder/run/model/metrics.jsonl" <<'PYTHON' || fail "what the run said of its link"
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
found = [(line["step"], line["straggler"]) for line in lines if "straggler" in line]
assert found and found[0][0] <= 20, found
assert all(text.startswith("the network holds all ranks up") for _, text in found), found
print(f"passed: at step {found[0][0]}: {found[0][1]}")
PYTHON
failed=0
