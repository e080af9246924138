#!/bin/sh
# The first process of the emulated machine: mounts file systems, runs the plan, powers off. It sends the results through the serial
# port that `data` names on the kernel's command line, the folder of each scenario as a block of base64.
export PATH=/bin HOME=/root TERM=dumb NO_COLOR=1

send() { # the folder of one scenario
    {
        echo "begin $1"
        tar -C /out -c "$1" | gzip -1 | base64
        echo "end $1"
    } >"/dev/$data"
}

# Finds the allocwall process in the tree that a wrapper started: with namespaces, allocwall is a child of the wrapper.
innermost() {
    p=$1
    # By file, not by process name: the name changes when a subject starts itself again.
    while [ "$(readlink "/proc/$p/exe" | grep -c '/allocwall$')" != 1 ]; do
        p=$(cut -d ' ' -f 1 "/proc/$p/task/$p/children" 2>/dev/null)
        [ -n "$p" ] || return 1
    done
    echo "$p"
}

# observe FOLDER WINDOW INSIDE TOOL DURING SUBJECT...: diagnoses one subject. INSIDE and TOOL are wrapper commands around the subject
# and the diagnosis. DURING runs in the middle of the window.
observe() {
    out=$1 window=$2 inside=$3 tool=$4 during=$5
    shift 5
    $inside /bin/allocwall subject "$@" --seconds 60 >"$out/truth" 2>"$out/subject" </dev/null &
    subject=$!
    tries=0
    until grep -q '"ready":true' "$out/truth"; do
        tries=$((tries + 1))
        if [ $tries -gt 200 ] || ! kill -0 $subject 2>/dev/null; then
            echo "the subject never became ready" >>"$out/subject"
            kill $subject 2>/dev/null
            return
        fi
        sleep 0.1
    done
    pid=$(innermost $subject) || return
    # Wait so that the first line of truth after "ready" is before the window.
    sleep 1.2
    if [ -n "$during" ]; then
        # The recording's file appears when the window starts.
        (until [ -e "$out/recording" ]; do sleep 0.1; done; sleep $((window / 2)); eval "$during") 2>"$out/during" &
    fi
    $tool /bin/allocwall diagnose -p "$pid" -d "${window}s" --rate 99 --no-calibrate --json -o "$out/recording" >"$out/report" 2>"$out/talk" </dev/null
    echo $? >"$out/status"
    # Wait for lines of truth after the end of the window.
    sleep 2.2
    kill "$pid"
    wait $subject
}

# Makes a root file system that exists in only one mount namespace.
jail() {
    mount -t tmpfs none /jail
    cp -a /bin /lib /lib64 /etc /jail
    mkdir -p /jail/proc /jail/sys /jail/tmp
    mount -t proc none /jail/proc
    mount -t sysfs none /jail/sys
    exec chroot /jail "$@"
}

# plain FOLDER ARGUMENTS...: runs the tool once.
plain() {
    out=$1
    shift
    /bin/allocwall "$@" >"$out/report" 2>"$out/talk" </dev/null
    echo $? >"$out/status"
}

case ${1:-} in
observe | plain | jail)
    "$@"
    exit
    ;;
esac

mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
mount -t tracefs none /sys/kernel/tracing
mount -t tmpfs none /sys/fs/cgroup
stty -F "/dev/$data" raw -echo 2>/dev/null
ip link set lo up
. /plan
poweroff -f
