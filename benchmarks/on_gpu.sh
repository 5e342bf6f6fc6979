#!/usr/bin/env bash
# Everything that only a GPU can show, in chapters of under ten minutes each.
#
#   benchmarks/on_gpu.sh CHAPTER FOLDER
#   benchmarks/on_gpu.sh beside-N FOLDER     (N 1 to 4) all of them, side by side on four GPUs and 64 CPUs
#
#   tests     the tests marked gpu, and what the hooks cost
#   truth     our shares beside the truth, loop by loop (LOOPS=a,b names them; BUDGET=12: about 50 s
#             a loop; loops of 12 and 14 workers need 16 CPUs)
#   light     truth of nine loops that use a fiftieth of the GPU, three at a time (15 CPUs, 150 s)
#   advice    what diagnoses promise, beside the same advice applied by hand (SCRIPTS=a,b names
#             them; BUDGET=30: about 100 s each where a process takes 10 s to start)
#   audit     verdicts on 40 loops drawn at random, beside their truth (ONLY=0-19 some of them;
#             BUDGET=20: about 8 minutes)
#   alarms    200 compute-bound loops, none of which may be called input- or copy-bound (ONLY=0-99;
#             BUDGET=12: about 8 minutes)
#   presets   PRESETS=NAME=SECONDS,…: who-is-faster, workers-pinning and prefetchers (270 s) by default
#   cpu       every preset without a GPU, on two CPUs each (ten CPUs, 460 s)
#   ladder    on cifar10-mobilenetv2 (BUDGET=380: 450 s, 56 % of it for our two searches; ROUNDS=3)
#   search    --search auto beside the full grid, on four recipes (RECIPES=a,b; GRID="AXIS=V …";
#             BUDGET=280: 500 s each, which gives every one of 34 settings four rounds or five)
#   isolate   trials in one process beside fresh ones (BUDGET=75: 375 s)
#   ranks     two NCCL ranks, DDP and FSDP, one of them slow; DataParallel beside DDP on two recipes (two GPUs)
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
preset() { # NAME SECONDS: the run's report and plots, in one archive
    local what=(--preset "$1")
    [ "$1" = loader-only ] && what=(--loader-only --recipe mnist)
    part python3 -m loaderdoctor sweep "${what[@]}" --budget "$2" ${ROUNDS:+--rounds "$ROUNDS"} --output "$folder/runs/$1"
}
mapfile -t cpus < <(python3 -c 'import os; print(*sorted(os.sched_getaffinity(0)), sep="\n")')
taken=0
running=()
beside() { # N GPUS [NAME=VALUE …] CHAPTER: in the background, on N CPUs of its own
    local own; own=$(IFS=,; echo "${cpus[*]:taken:$1}")
    local name="${*: -1}-$taken"
    taken=$((taken + $1))
    echo "== $name: CPUs $own, GPUs ${2:-none}: ${*:3}"
    CUDA_VISIBLE_DEVICES=$2 taskset -c "$own" env "${@:3:$#-3}" bash benchmarks/on_gpu.sh "${*: -1}" "$folder/$name" > /dev/null &
    running+=($!)
}
wait_for_all() {
    for one in "${running[@]}"; do wait "$one" || failed=1; done
    for text in "$folder"/*/*.txt; do echo "== $text"; tail -n 5 "$text" | cut -c1-160; done
}
# Loops that want as many CPUs as they have workers, or all that there are; others that need a GPU for
# themselves; and those that use a fiftieth of one, three at a time.
LOOPS_16=half_overlap,pinned_same_stream,side_stream_overlap,pageable_big_copy,uint8_copy,amp_resnet50,several_copies,pinned_blocking,pageable_nonblocking,grad_accumulation,enough_workers
LOOPS_12=item_every_step,accumulated_copies,side_stream_starved,half_fed,fed_by_a_thread,main_process_photos,launch_bound_tiny,background_gil,storage_main_process,respawn_each_epoch,gpu_resident
LOOPS_LIGHT_1=storage_bound,sync_loader_decode,collate_bound
LOOPS_LIGHT_2=item_starved,one_slow_sample,recreated_iterator
LOOPS_LIGHT_3=work_and_wait,head_of_line,work_between_steps
case $chapter in
    tests)
        part python3 -m pytest -q -p no:cacheprovider -m gpu tests --durations=10
        part python3 benchmarks/hook_overhead.py --device cuda
        ;;
    truth)
        part python3 benchmarks/truth.py --budget "${BUDGET:-12}" --rounds "${ROUNDS:-4}" --seconds "${TRUTH_S:-5}" --json "$folder/truth.json" --reports "$folder/reports" ${LOOPS:+--only "$LOOPS"}
        ;;
    advice)
        names=${SCRIPTS:-}
        part python3 benchmarks/prescription.py ${names//,/ } --budget "${BUDGET:-30}" --json "$folder/advice.json" --runs "$folder/runs"
        ;;
    audit)
        part python3 benchmarks/audit.py audit --jobs 5 --cpus-each 3 --budget "${BUDGET:-20}" --json "$folder/audit.jsonl" ${ONLY:+--only "$ONLY"}
        ;;
    alarms)
        part python3 benchmarks/audit.py false-alarms --jobs 8 --cpus-each 2 --budget "${BUDGET:-12}" --json "$folder/alarms.jsonl" ${ONLY:+--only "$ONLY"}
        ;;
    presets)
        names=${PRESETS:-who-is-faster=120,workers-pinning=60,prefetchers=60}
        for one in ${names//,/ }; do preset "${one%=*}" "${one#*=}"; done
        ;;
    cpu)
        beside 2 "" PRESETS=who-is-faster=370 presets
        beside 2 "" PRESETS=ladder=390 presets
        beside 2 "" PRESETS=workers-pinning=100,prefetchers=80,reuse=60,storage=100 presets
        beside 2 "" PRESETS=preprocessing=190,loader-only=180 presets
        beside 2 "" PRESETS=compute=300 presets
        wait_for_all
        ;;
    ladder)
        preset ladder "${BUDGET:-380}"
        ;;
    search)
        part python3 benchmarks/search.py --budget "${BUDGET:-280}" --json "$folder/search.json" ${RECIPES:+--recipes "$RECIPES"} ${GRID:+--grid $GRID}
        ;;
    isolate)
        part python3 benchmarks/isolate.py --budget "${BUDGET:-75}" --json "$folder/isolate.json"
        ;;
    ranks)
        part python3 benchmarks/ranks.py --budget 15 --json "$folder/ranks.json"
        part python3 -m pytest -q -s -p no:cacheprovider -m gpu tests/instrument/session/test_ranks_gpu.py
        part python3 -m pytest -q -s -p no:cacheprovider -m gpu tests/commands/sweep/test_command_jobs.py
        part python3 -m loaderdoctor sweep --recipe compute --grid ddp=data_parallel,ddp --rounds 3 --budget 90 --output "$folder/runs/ddp" -- --case parallel
        ;;
    light)
        beside 5 "${CUDA_VISIBLE_DEVICES:-}" "LOOPS=$LOOPS_LIGHT_1" truth
        beside 5 "${CUDA_VISIBLE_DEVICES:-}" "LOOPS=$LOOPS_LIGHT_2" truth
        beside 5 "${CUDA_VISIBLE_DEVICES:-}" "LOOPS=$LOOPS_LIGHT_3" truth
        wait_for_all
        ;;
    beside-1)
        beside 16 0 "LOOPS=$LOOPS_16" truth
        beside 12 1 "LOOPS=$LOOPS_12" truth
        beside 15 2 light
        beside 10 3 presets
        beside 10 "" cpu
        wait_for_all
        ;;
    beside-2)
        beside 16 0 ladder
        beside 16 1 RECIPES=cifar10-mobilenetv2 search
        beside 16 2 RECIPES=mnist search
        beside 16 3 isolate
        wait_for_all
        ;;
    beside-3)
        beside 16 0,1 ranks
        beside 16 2 tests
        beside 16 3 audit
        wait_for_all
        ;;
    beside-4)
        beside 16 0 advice
        beside 16 1 alarms
        beside 16 2 RECIPES=tensors search
        beside 16 3 RECIPES=tokens search
        wait_for_all
        ;;
    *)
        echo "no chapter named $chapter" >&2
        exit 2
        ;;
esac
if [ -d "$folder/runs" ]; then # traces are large; what the results pages are made from is not
    find "$folder/runs" \( -name '*.json.gz' -o -name '*.html' -o -name '*.svg' \) -delete
    tar -C "$folder" -czf "$folder/$chapter-runs.tar.gz" runs && rm -r "$folder/runs"
fi
exit $failed
