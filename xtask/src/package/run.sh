#!/bin/sh
# Runs the GPU tests of Quire. Needs a driver and the CUDA libraries, nothing else.
#
#   sh run.sh [PART [ARGUMENT...]]    programs whose name holds PART; the arguments go to them, in place of the
#                                     choice of tests that need a GPU
#
# QUIRE_TEST_SECONDS   how long one program may take (900)
# QUIRE_TEST_LOGS      where the logs go (logs, beside this file)
# QUIRE_TEST_SMOLLM2, QUIRE_TEST_QWEN_CODER   models, for the tests that compare with references
# QUIRE_TEST_ANYWAY=1  runs them although no driver is found
# QUIRE_CUDA_LIBRARIES folders of CUDA libraries, where the loader does not find them itself
#
# Ends with 0 where all passed, 1 where something failed, 2 where there is nothing to run, or no driver
# to run it with.
here=$(cd "$(dirname "$0")" && pwd) || exit 2
part=${1:-}
[ $# -gt 0 ] && shift
seconds=${QUIRE_TEST_SECONDS:-900}
logs=${QUIRE_TEST_LOGS:-$here/logs}
mkdir -p "$logs" 2>/dev/null && [ -w "$logs" ] || logs=$(mktemp -d) || exit 2
# The programs are unpacked one by one, in the folder for temporary files (TMPDIR).
unpacked=$(mktemp -d) || exit 2
trap 'rm -rf "$unpacked"' EXIT
trap 'exit 130' INT TERM

# Without a GPU the tests fail instead of being left out.
export QUIRE_TEST_CUDA=1
export QUIRE_TEST_GOLDEN="$here/golden"
for folder in /usr/local/cuda/lib64 /usr/local/cuda/lib; do
    [ -d "$folder" ] && LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder
done
export LD_LIBRARY_PATH

# A driver shows itself by a device file or by its library, where nvidia-smi may be missing.
has_driver() {
    for file in /dev/nvidia[0-9]* /dev/nvidiactl /dev/dxg; do
        [ -e "$file" ] && return 0
    done
    old_ifs=$IFS IFS=:
    set -- $QUIRE_CUDA_LIBRARIES $LD_LIBRARY_PATH /usr/lib64 /usr/lib /usr/lib/x86_64-linux-gnu /usr/lib/wsl/lib \
        /run/opengl-driver/lib /usr/local/nvidia/lib64
    IFS=$old_ifs
    for folder in "$@"; do
        [ -e "$folder/libcuda.so.1" ] && return 0
    done
    PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null | grep -q 'libcuda\.so\.1'
}

cat "$here/about.txt"
if [ "${QUIRE_TEST_ANYWAY:-0}" != 1 ] && ! has_driver; then
    echo "this machine has no NVIDIA driver: there is neither /dev/nvidia0 nor libcuda.so.1, so nothing is run" \
        "(QUIRE_TEST_ANYWAY=1 runs the tests all the same)"
    exit 2
fi
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null

limited() {
    if command -v timeout >/dev/null 2>&1; then timeout -k 5 "$seconds" "$@"; else "$@"; fi
}

# The number before a word of libtest's last line.
count() {
    sed -n "s/^test result:.* \([0-9][0-9]*\) $1;.*/\1/p" "$2" | tail -n 1
}

passed=0 failed=0 ignored=0 programs=0 broken=0 chosen=
printf '%-40s %7s %7s %8s %8s  %s\n' program passed failed ignored seconds ended
while read -r name filter; do
    case $name in *"$part"*) ;; *) continue ;; esac
    program=$unpacked/$name
    log=$logs/$name.log
    programs=$((programs + 1)) chosen="$chosen $name"
    gzip -dc "$here/tests/$name.gz" >"$program" && chmod +x "$program"
    started=$(date +%s)
    # One test at a time: they share the GPU's memory.
    (
        cd "$here" || exit 2
        [ $# -gt 0 ] || set -- $filter
        limited "$program" "$@" --test-threads=1 --nocapture
    ) >"$log" 2>&1 </dev/null
    code=$?
    taken=$(($(date +%s) - started))
    rm -f "$program"
    p=$(count passed "$log") f=$(count failed "$log") i=$(count ignored "$log")
    ended=ok
    if [ "$code" -eq 124 ] || { [ "$code" -eq 137 ] && [ "$taken" -ge "$seconds" ]; }; then
        ended="no end after $seconds s"
    elif [ "$code" -ne 0 ]; then
        ended="ended with $code"
    elif [ $((${p:-0} + ${i:-0})) -eq 0 ]; then
        ended="no test ran"
    fi
    [ "$ended" = ok ] || broken=$((broken + 1))
    printf '%-40s %7s %7s %8s %8s  %s\n' "$name" "${p:--}" "${f:--}" "${i:--}" "$taken" "$ended"
    passed=$((passed + ${p:-0})) failed=$((failed + ${f:-0})) ignored=$((ignored + ${i:-0}))
done <"$here/programs.txt"

if [ "$programs" -eq 0 ]; then
    echo "no test program has a name with \`$part\`; there are:"
    cut -d ' ' -f 1 "$here/programs.txt"
    exit 2
fi
echo "$programs programs: $passed passed, $failed failed, $ignored ignored, $broken programs not ok; logs in $logs"
[ "$broken" -eq 0 ] && exit 0
for name in $chosen; do
    log=$logs/$name.log
    grep -q '^test result: ok' "$log" && continue
    echo "--- $name"
    # With the output of tests between, a test's name and its end may be on different lines: libtest lists the
    # failures once more at its end.
    grep -E '\.\.\. FAILED$|^    [A-Za-z0-9_:]+$|panicked at' "$log" | sort -u
    tail -n 20 "$log"
done
exit 1
