# shellcheck shell=bash
# The stages of the chain, by the settings of a profile: tokenize_stage, pretrain_stage, finetune_stage, evaluate_stage,
# convert_stage. To be sourced, after launch.sh and profile.sh. A stage gives the exit code of the program that ended it,
# and what it has made already is not made again. Under Slurm and outside they are the same.
#
# shellcheck disable=SC2154  # the settings come from read_profile

tokenizer_file() { echo "${tokenizer:-$data/tokenizer.json}"; }

tokenize_stage() {
    local text=(--input "${corpus[@]}") dictionary
    dictionary=$(tokenizer_file)
    ((${#corpus[@]} > 0)) || profile_error "corpus, the text to tokenize, is not set"
    # The ranks of tokenize wait for one another as long as it takes, so it goes without a watchdog.
    export TANDEM_WATCHDOG=0
    if [[ ! -s $dictionary ]]; then
        [[ -z $tokenizer ]] || profile_error "tokenizer '$tokenizer' does not exist"
        launch "$ranks" "$bin/tokenize" train "${text[@]}" "${train_tokenizer_options[@]}" --threads "$threads" \
            --output "$dictionary" || return
    fi
    [[ ! -s $data/train.h5 || ! -s $data/val.h5 ]] || return 0
    launch "$ranks" "$bin/tokenize" encode --tokenizer "$dictionary" "${text[@]}" "${encode_options[@]}" \
        --threads "$threads" --output "$data/train.h5" --val-output "$data/val.h5"
}

# Is every node fit for pretrain? Leaves its table in preflight.txt. Gives 4 for a no-go, by the profile's policy.
preflight_stage() {
    local code=0
    [[ $preflight_policy != off ]] || return 0
    export TANDEM_WATCHDOG=${watchdog}s
    launch "$ranks" "$bin/preflight" "${pretrain_options[@]}" "${preflight_options[@]}" --data "$data/train.h5" \
        --val "$data/val.h5" --threads "$threads" --output "$run/model" >"$run/preflight.partial" || code=$?
    ((code == 0 || code == 4)) || return "$code"
    mv "$run/preflight.partial" "$run/preflight.txt"
    cat "$run/preflight.txt"
    if ((code == 4)) && [[ $preflight_policy == warn ]]; then
        echo "preflight says no-go; going on all the same, as preflight_policy=warn asks" >&2
        return 0
    fi
    return "$code"
}

# pretrain_stage SECONDS      after which it saves and gives 75, to be run again; empty: no limit
pretrain_stage() {
    local limit=()
    [[ -z $1 ]] || limit=(--time-limit "${1}s")
    export TANDEM_WATCHDOG=${watchdog}s
    launch_stoppable "$ranks" "$bin/pretrain" "${pretrain_options[@]}" --data "$data/train.h5" --val "$data/val.h5" \
        --threads "$threads" --output "$run/model" "${limit[@]}"
}

# What the stage under way trains, a folder of the run: its steps tell whether a restart brought anything.
training=model

# finetune_stage SECONDS      as pretrain_stage; nothing to do without conversations
finetune_stage() {
    local limit=()
    ((${#conversations[@]} > 0)) || return 0
    [[ -z $1 ]] || limit=(--time-limit "${1}s")
    export TANDEM_WATCHDOG=${watchdog}s
    launch_stoppable "$ranks" "$bin/finetune" --checkpoint "$run/model" --data "${conversations[@]}" "${finetune_options[@]}" \
        --threads "$threads" --output "$run/chat" "${limit[@]}"
}

evaluate_stage() {
    export TANDEM_WATCHDOG=${watchdog}s
    launch "$ranks" "$bin/evaluate" loss --checkpoint "$run/model" --data "$data/val.h5" "${loss_options[@]}" \
        --threads "$threads" --json >"$run/evaluation.partial" || return
    mv "$run/evaluation.partial" "$run/evaluation.json"
    cat "$run/evaluation.json"
    generate_samples && answer_questions
}

generate_samples() {
    ((${#generate_options[@]} > 0)) || return 0
    launch 1 "$bin/evaluate" generate --checkpoint "$run/model" "${generate_options[@]}" --threads "$threads" --json \
        >"$run/samples.partial" || return
    mv "$run/samples.partial" "$run/samples.json"
    cat "$run/samples.json"
}

answer_questions() {
    ((${#conversations[@]} > 0 && ${#chat_options[@]} > 0)) || return 0
    launch "$ranks" "$bin/evaluate" generate --checkpoint "$run/chat" --chat "${chat_options[@]}" --threads "$threads" --json \
        >"$run/answers.partial" || return
    mv "$run/answers.partial" "$run/answers.json"
    cat "$run/answers.json"
}

convert_stage() {
    local target newest training=model # the finetuned model, where there is one
    export TANDEM_WATCHDOG=${watchdog}s
    ((${#conversations[@]} == 0)) || training=chat
    newest=$run/$training/checkpoints/$(printf 'step-%08d' "$(newest_step)")/checkpoint.h5
    for target in "${exports[@]}"; do
        if [[ -e $run/$target ]]; then # it has its name once it is complete
            [[ $run/$target -ot $newest ]] || continue
            rm -r "${run:?}/$target"
        fi
        launch "$ranks" "$bin/checkpoint-convert" export --checkpoint "$run/$training" "${export_options[@]}" \
            --threads "$threads" --output "$run/$target" || return
    done
}

# The newest complete step of what is trained, 0 where there is none.
newest_step() {
    local folder step newest=0
    for folder in "$run/$training"/checkpoints/step-*; do
        step=${folder##*/step-}
        [[ $step =~ ^[0-9]+$ && -f $folder/checkpoint.h5 ]] || continue # not .partial
        ((10#$step <= newest)) || newest=$((10#$step))
    done
    echo "$newest"
}

# may_start JOB     to be asked before each start of a stage: false, with the reason on stderr, once JOB was restarted
# more than max_restarts times in a row without a newer checkpoint. It counts at the start, because a restart may follow
# an end that no script saw. Another JOB begins anew.
may_start() {
    local file=$run/restarts step job=- at=0 restarts=0
    step=$(newest_step)
    [[ ! -f $file ]] || read -r job at restarts <"$file"
    if [[ $job != "$1" || $at -ne $step ]]; then
        restarts=0
    else
        restarts=$((restarts + 1))
    fi
    if ((restarts > max_restarts)); then
        echo "given up: restarted $max_restarts times in a row at step $step without a newer checkpoint;" \
            "see what ended it above, then start the stage again" >&2
        return 1
    fi
    printf '%s %s %s\n' "$1" "$step" "$restarts" >"$file.partial" && mv "$file.partial" "$file"
}
