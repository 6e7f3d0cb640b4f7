# Defines launch RANKS COMMAND...: runs a command under mpirun on this machine, with what that needs. To be sourced.

# As root (containers) mpirun wants to be told twice that this is meant.
if ((EUID == 0)); then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi

launch() {
    local ranks=$1
    shift
    local cores options=(-n "$ranks" --bind-to none)
    cores=$(nproc)
    # More ranks than cores: they must yield to one another, or each waits a thousand times longer.
    ((ranks <= cores)) || options+=(--oversubscribe)
    OMPI_MCA_mpi_yield_when_idle=1 mpirun "${options[@]}" "$@"
}
