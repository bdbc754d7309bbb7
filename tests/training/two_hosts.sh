#!/bin/bash
# Train in two network namespaces as two hosts, lose one, start it again: the run must finish with exit code 0 on both.
#
#     unshare --map-root-user --net --mount bash tests/training/two_hosts.sh
set -e
python=${PYTHON:-python}
out=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$out"' EXIT
mount -t tmpfs none /run
mkdir /run/netns "$out/job"
ip netns add a
ip netns add b
ip link add va type veth peer name vb
for name in a b; do
    ip link set v$name netns $name
    ip -n $name link set lo up
    ip -n $name link set v$name up
done
ip -n a addr add 10.9.0.1/24 dev va
ip -n b addr add 10.9.0.2/24 dev vb
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 OMP_NUM_THREADS=1

host() { # name, address, whether it keeps the rendezvous
    exec ip netns exec $1 env GLOO_SOCKET_IFNAME=v$1 "$python" -m torch.distributed.run --nnodes 2 --nproc-per-node 1 \
        --max-restarts 3 --rdzv-backend c10d --rdzv-id two-hosts --rdzv-endpoint 10.9.0.1:29400 --rdzv-conf is_host=$3 \
        --local-addr $2 "$(dirname "$0")/kill_workers.py" --work "$out/job" 2>>"$out/log-$1"
}

host a 10.9.0.1 1 &
first=$!
host b 10.9.0.2 0 &
second=$!
for _ in $(seq 600); do
    [ -e "$out/job/epoch" ] && break
    sleep 0.1
done
sleep 0.5
epoch=$(cut -d' ' -f2 "$out/job/epoch")
kill -9 $(ps -o pid= --ppid $second) $second # the launcher of host b and its worker
echo "host b was lost after epoch $epoch"
sleep 1
host b 10.9.0.2 0 &
second=$!
wait $first && wait $second && [ -e "$out/job/result.json" ] && echo "both hosts finished"
