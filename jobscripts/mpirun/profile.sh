# shellcheck shell=bash
# Reads a profile: the settings of a site and a run, which all job scripts share. To be sourced, after launch.sh.
#
#   read_profile FILE      sets the settings below, checks them, and goes to the folder that holds jobscripts/
#
# A profile is bash: it assigns settings, and exports what the programs are to find in their environment on every host.
# A name that is neither is an error, so that a slip of the pen does not train for two days. profiles/ has examples.
#
# shellcheck disable=SC2034  # the settings are used by the scripts that source this

default_settings() {
    # Paths; relative ones start at the folder that holds jobscripts/. On several hosts all must see the same files.
    bin=build/cpu/bin     # the executables
    # What the chain makes: tokenizer.json, train.h5, val.h5, model/, chat/, evaluation.json, samples.json, answers.json, exports
    run=
    data=                 # where the tokenizer and the tokens are: set by the scripts
    corpus=()             # text files, folders or patterns
    conversations=()      # .jsonl files to finetune on; empty: the model is not finetuned
    tokenizer=            # one to use as it is; without it one is trained and kept in the run folder

    # Options of the stages, beside the paths, --threads and, under Slurm, --time-limit
    train_tokenizer_options=() # tokenize train: --vocab-size and --pattern at least
    encode_options=()          # tokenize encode
    preflight_options=(--quick) # preflight, beside those of pretrain: it tries the run out
    pretrain_options=()        # pretrain: --config, or --model and the lengths
    finetune_options=()        # finetune: --chat-template where the model has none
    loss_options=()            # evaluate loss
    generate_options=()        # evaluate generate; empty: nothing is written
    chat_options=()            # evaluate generate --chat, of the finetuned model; empty: nothing is asked
    exports=()                 # what convert makes of the model in the run folder: model.gguf, a folder's name, ...
    export_options=()          # checkpoint-convert export

    # Where it runs
    nodes=1
    ranks_per_node=1
    threads=1 # of a rank
    hostfile= # for mpirun/*.sh on several hosts; under Slurm the hosts come from the job

    # MPI
    interfaces=       # network interfaces or subnets (a.b.c.d/n), by comma; empty: all
    mpirun_options=() # further options of mpirun
    # A call between ranks of pretrain or evaluate that takes so many seconds means a lost rank: the watchdog names it
    # and ends the job. It must be longer than the longest wait for others, such as that for a slow disk.
    watchdog=300
    # Seconds after which mpirun takes a silent host for lost: idle time, and then so many probes. With Open MPI's own
    # settings that is eight minutes. In sum longer than the watchdog, which says where the ranks are.
    keepalive_time=330
    keepalive_interval=10
    keepalive_probes=3
    # Seconds that mpirun gets to end once the ranks of its own host are gone (launch.sh has the reason).
    seconds_to_end=60

    # What a no-go of preflight does: stop (nothing is trained until it is mended), warn (go on) or off (not looked at).
    preflight_policy=stop

    # After so many restarts in a row from the same checkpoint the run is given up.
    max_restarts=3

    # Slurm
    # Where nodes are lost, a job goes on with those that are left, down to so many: on fewer ranks, so no --shard that
    # counts them all. Empty: it waits until there are as many as nodes again.
    least_nodes=
    partition=            # empty: the site's default
    account=
    tokenize_time=04:00:00 # time limits of the jobs, as Slurm writes them
    pretrain_time=24:00:00
    finetune_time=04:00:00
    evaluate_time=01:00:00
    convert_time=01:00:00
    # So many seconds before the job's time limit pretrain stops by itself, saves and is queued again: enough for a step,
    # an evaluation and a checkpoint.
    stop_margin=300
    sbatch_options=() # further options of sbatch
}

profile_error() {
    echo "profile $profile: $*" >&2
    exit 2
}

demand_number() {
    local name
    for name in "$@"; do
        [[ ${!name} =~ ^[1-9][0-9]*$ ]] || profile_error "$name is '${!name}'; it must be a whole number above zero"
    done
}

read_profile() {
    profile=$1
    [[ -f $profile ]] || { echo "the profile '$profile' does not exist; jobscripts/profiles/ has examples" >&2; exit 2; }
    profile=$(realpath "$profile")
    cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit

    default_settings
    local known exported name
    profile_exports=()
    known=" $(compgen -v | tr '\n' ' ') "
    exported=" $(compgen -e | tr '\n' ' ') "
    # shellcheck source=/dev/null
    source "$profile"
    while read -r name; do
        [[ $exported == *" $name "* ]] || profile_exports+=("$name")
    done < <(compgen -e)
    while read -r name; do
        [[ $known == *" $name "* || " ${profile_exports[*]} " == *" $name "* ]] ||
            profile_error "'$name' is no setting (mpirun/profile.sh lists them); to hand it to the programs, export it"
    done < <(compgen -v | grep -vxE '_|name|known|exported|PIPESTATUS|BASH_.*|FUNCNAME|LINENO')

    demand_number nodes ranks_per_node threads watchdog keepalive_time keepalive_interval keepalive_probes seconds_to_end stop_margin
    least_nodes=${least_nodes:-$nodes}
    demand_number least_nodes
    ((least_nodes <= nodes)) || profile_error "least_nodes is $least_nodes, and nodes is $nodes"
    [[ $preflight_policy =~ ^(stop|warn|off)$ ]] ||
        profile_error "preflight_policy is '$preflight_policy'; it can be stop, warn or off"
    [[ $max_restarts =~ ^[0-9]+$ ]] || profile_error "max_restarts is '$max_restarts'; it must be a whole number"
    [[ -n $run ]] || profile_error "run, the folder for what the chain makes, is not set"
    [[ -x $bin/pretrain ]] || profile_error "bin is '$bin', which has no executable pretrain; build first, or set bin"
    take_submission
    ((keepalive_time + keepalive_interval * keepalive_probes > watchdog)) ||
        profile_error "keepalive_time + keepalive_interval * keepalive_probes must be longer than watchdog ($watchdog s)," \
            "or a cut link ends the run before the watchdog has named the lost rank"
    use_profile
}

# What submit.sh asks for beside the profile: a recipe instead of the profile's, and a seed, whose run lies in a folder of
# its own, beside the tokens that all seeds share.
take_submission() {
    data=$run
    if [[ -n ${TANDEM_RECIPE:-} ]]; then pretrain_options=(--config "$TANDEM_RECIPE"); fi
    [[ -n ${TANDEM_SEED:-} ]] || return 0
    run=$run/seed-$TANDEM_SEED
    pretrain_options+=(--seed "$TANDEM_SEED")
    finetune_options+=(--seed "$TANDEM_SEED")
}

# Nodes that runs are not to be put on, a line each: of the lines of bad-nodes the first words. People strike lines out, by
# a # in front too.
bad_nodes() { [[ ! -f $data/bad-nodes ]] || awk '!/^[[:space:]]*(#|$)/ { print $1 }' "$data/bad-nodes" | sort -u; }

# What launch needs to know of it.
use_profile() {
    ranks=$((nodes * ranks_per_node))
    mkdir -p "$run"
    launch_options=(
        --mca oob_tcp_keepalive_time "$keepalive_time"
        --mca oob_tcp_keepalive_intvl "$keepalive_interval"
        --mca oob_tcp_keepalive_probes "$keepalive_probes")
    if [[ -n $interfaces ]]; then
        launch_options+=(--mca btl_tcp_if_include "$interfaces" --mca oob_tcp_if_include "$interfaces")
    fi
    if [[ -n $hostfile && -z ${SLURM_JOB_ID:-} ]]; then
        launch_options+=(--hostfile "$hostfile" --map-by "ppr:$ranks_per_node:node")
    fi
    # mpirun hands only names that it is told to processes on other hosts.
    local name
    for name in TANDEM_WATCHDOG "${profile_exports[@]}"; do
        launch_options+=(-x "$name")
    done
    launch_options+=("${mpirun_options[@]}")
}
