#!/usr/bin/env bash
# Everything that only a GPU can show, in chapters of under ten minutes each.
#
#   benchmarks/on_gpu.sh CHAPTER FOLDER
#
#   tests     the tests marked gpu, and what the hooks cost
#   truth     our shares beside the truth, loop by loop (LOOPS=a,b names them; BUDGET=15)
#   advice    what diagnoses promise, beside the same advice applied by hand (SCRIPTS=a,b names
#             them; BUDGET=30: about 100 s each where a process takes 10 s to start)
#   audit     verdicts on 40 loops drawn at random, beside their truth (ONLY=0-19 some of them;
#             BUDGET=20: about 8 minutes)
#   alarms    200 compute-bound loops, none of which may be called input- or copy-bound (ONLY=0-99;
#             BUDGET=12: about 8 minutes)
#   presets   who-is-faster, workers-pinning and prefetchers on mnist (270 s)
#             (PRESETS=a,b names them)
#   ladder    on cifar10-mobilenetv2 (BUDGET=450: 500 s or more, 56 % of it for our two searches; ROUNDS=3)
#   search    --search auto beside the full grid, on three recipes (RECIPES=a,b; GRID="AXIS=V …";
#             BUDGET=280: 500 s each, which gives every one of 34 settings four rounds or five)
#   isolate   trials in one process beside fresh ones (BUDGET=75: 375 s)
#   ranks     two NCCL ranks; DataParallel beside DDP on two recipes (needs two GPUs)
#
# Text goes to stdout and FOLDER/CHAPTER.txt, what programs read to FOLDER. A part that fails does
# not keep the others from running; the exit code says whether one did.
set -uo pipefail
cd "$(dirname "$0")/.."
chapter=${1:?chapter}
folder=${2:?folder for what was measured}
mkdir -p "$folder"
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 PYTHONUNBUFFERED=1
exec > >(tee "$folder/$chapter.txt") 2>&1
failed=0
part() {
    echo "== $*"
    local start=$SECONDS
    "$@" || { failed=1; echo "== failed with exit code $?"; }
    echo "== $((SECONDS - start)) s"
}
preset() { # NAME RECIPE SECONDS: the run's report and plots, in one archive
    part python3 -m loaderdoctor sweep --preset "$1" --recipe "$2" --budget "$3" ${ROUNDS:+--rounds "$ROUNDS"} --output "$folder/runs/$1"
}
case $chapter in
    tests)
        part python3 -m pytest -q -p no:cacheprovider -m gpu tests --durations=10
        part python3 benchmarks/hook_overhead.py --device cuda
        ;;
    truth)
        part python3 benchmarks/truth.py --budget "${BUDGET:-15}" --rounds 1 --json "$folder/truth.json" --reports "$folder" ${LOOPS:+--only "$LOOPS"}
        ;;
    advice)
        part python3 benchmarks/prescription.py ${SCRIPTS//,/ } --budget "${BUDGET:-30}" --json "$folder/advice.json" --runs "$folder/runs"
        ;;
    audit)
        part python3 benchmarks/audit.py audit --jobs 5 --cpus-each 3 --budget "${BUDGET:-20}" --json "$folder/audit.jsonl" ${ONLY:+--only "$ONLY"}
        ;;
    alarms)
        part python3 benchmarks/audit.py false-alarms --jobs 8 --cpus-each 2 --budget "${BUDGET:-12}" --json "$folder/alarms.jsonl" ${ONLY:+--only "$ONLY"}
        ;;
    presets)
        names=${PRESETS:-who-is-faster,workers-pinning,prefetchers}
        for name in ${names//,/ }; do
            [ "$name" = who-is-faster ] && seconds=120 || seconds=60
            preset "$name" mnist "${BUDGET:-$seconds}"
        done
        ;;
    ladder)
        preset ladder cifar10-mobilenetv2 "${BUDGET:-450}"
        ;;
    search)
        part python3 benchmarks/search.py --budget "${BUDGET:-280}" --json "$folder/search.json" ${RECIPES:+--recipes "$RECIPES"} ${GRID:+--grid $GRID}
        ;;
    isolate)
        part python3 benchmarks/isolate.py --budget "${BUDGET:-75}" --json "$folder/isolate.json"
        ;;
    ranks)
        part python3 -m pytest -q -s -p no:cacheprovider -m gpu tests/instrument/session/test_ranks_gpu.py
        part python3 -m pytest -q -s -p no:cacheprovider -m gpu tests/sweep/test_jobs.py
        part python3 -m loaderdoctor sweep --recipe compute --grid ddp=data_parallel,ddp --rounds 3 --budget 90 --output "$folder/runs/ddp" -- --case parallel
        ;;
    *)
        echo "no chapter named $chapter" >&2
        exit 2
        ;;
esac
if [ -d "$folder/runs" ]; then # traces are large; what the results pages are made from is not
    find "$folder/runs" -name '*.json.gz' -delete
    tar -C "$folder" -czf "$folder/$chapter-runs.tar.gz" runs && rm -r "$folder/runs"
fi
exit $failed
