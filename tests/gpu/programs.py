"""What the jobs of `prove` run, and what is run outside beside it. Each prints one line of JSON."""

import json
import os
import subprocess
import sys
import time


def seen():
    """The cards that this process sees."""
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True)
    import torch

    own = os.environ.get("CUDA_VISIBLE_DEVICES") or os.environ.get("NVIDIA_VISIBLE_DEVICES", "")
    nodes = sorted(name for name in os.listdir("/dev") if name.startswith("nvidia") and name[6:].isdigit())
    order = os.environ.get("CUDA_DEVICE_ORDER")
    return {"smi": listed.stdout.strip(), "torch": torch.cuda.device_count(), "nodes": nodes, "order": order, "own": own}


def products(directory):
    """Seconds that products of two matrices take, 20 times ten of them, whenever a line comes by `go`; told by `said`."""
    import torch

    side, batch = 8192, 10
    a, b = (torch.randn(side, side, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    into = torch.empty(side, side, device="cuda", dtype=torch.bfloat16)

    def once():
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(batch):
            torch.mm(a, b, out=into)
        torch.cuda.synchronize()
        return (time.perf_counter() - begun) / batch

    once()
    pipes = [f"{directory}/go", f"{directory}/said"]
    for pipe in pipes:
        os.mkfifo(pipe)
    with open(pipes[0]) as go, open(pipes[1], "w") as said:
        print(json.dumps({"card": f"GPU-{torch.cuda.get_device_properties(0).uuid}"}), file=said, flush=True)
        for _ in go:
            print(json.dumps({"times": [once() for _ in range(20)]}), file=said, flush=True)
    for pipe in pipes:
        os.remove(pipe)
    return {"ended": "well"}


def all_reduce():
    """Bus bandwidth of an all-reduce of 256 MiB, GB/s, the best of 50. Rank and address come by the usual variables."""
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(int(os.environ.get("DEVICE", 0)))
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    ranks = dist.get_world_size()
    data = torch.ones(64 << 20, device="cuda")
    times = []
    for _ in range(60):
        data.fill_(1)
        torch.cuda.synchronize()
        dist.barrier()
        begun = time.perf_counter()
        dist.all_reduce(data)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begun)
    is_right = bool((data == float(ranks)).all())
    dist.destroy_process_group()
    gbps = lambda seconds: data.nbytes * 2 * (ranks - 1) / ranks / seconds / 1e9
    return {"gbps": gbps(min(times[10:])), "median": gbps(sorted(times[10:])[25]), "right": is_right}


def all_reduce_here():
    """The same by as many processes of this task as it has cards."""
    import torch

    ranks = torch.cuda.device_count()
    shared = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517"}
    each = [dict(os.environ, RANK=str(rank), DEVICE=str(rank), **shared) for rank in range(ranks)]
    children = [
        subprocess.Popen([sys.executable, __file__, "all_reduce"], env=env, stdout=subprocess.PIPE, text=True) for env in each
    ]
    said = [child.communicate()[0] for child in children]
    assert all(child.returncode == 0 for child in children), said
    return json.loads(said[0].splitlines()[-1])


def steps(path):
    """Trains for ever; each step is written down."""
    import torch

    weights = torch.zeros(1024, 1024, device="cuda")
    step = 0
    while True:
        weights = weights @ weights + 1
        torch.cuda.synchronize()
        step += 1
        with open(path + ".new", "w") as out:
            out.write(str(step))
        os.rename(path + ".new", path)


def keep(path, gib):
    """Keeps so much memory of the first card, and does nothing with it, for ever."""
    import torch

    kept = torch.zeros(int(gib) << 30, device="cuda", dtype=torch.uint8)
    torch.cuda.synchronize()
    with open(path, "w") as out:
        out.write(str(kept.nbytes))
    while True:
        time.sleep(60)


def hold(path):
    """Holds memory of each card until its standard input ends."""
    import torch

    held = [torch.zeros(256 << 20, device=f"cuda:{card}") for card in range(torch.cuda.device_count())]
    with open(path, "w") as out:
        out.write(str(len(held)))
    sys.stdin.read()


def driver():
    """What CUDA's driver says in an image, without any package: the cards, and whether one keeps what is written to it."""
    import ctypes

    listed = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True).stdout
    named = sorted(line.split()[0] for line in listed.splitlines() if "libcuda.so" in line or "libnvidia-ml.so" in line)
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return {"absent": str(error), "named": named}
    smi = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True)

    def call(name, *arguments):
        code = getattr(cuda, name)(*arguments)
        assert code == 0, f"{name} fails with {code}"

    count, uuids = ctypes.c_int(), []
    call("cuInit", 0)
    call("cuDeviceGetCount", ctypes.byref(count))
    for card in range(count.value):
        raw = (ctypes.c_ubyte * 16)()
        call("cuDeviceGetUuid", raw, card)
        digits = bytes(raw).hex()
        parts = [digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]]
        uuids.append("GPU-" + "-".join(parts))
    context, place = ctypes.c_void_p(), ctypes.c_uint64()
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)
    size = 64 << 20
    sent, back = os.urandom(1 << 20) * (size >> 20), ctypes.create_string_buffer(size)
    call("cuMemAlloc_v2", ctypes.byref(place), ctypes.c_size_t(size))
    call("cuMemcpyHtoD_v2", place, sent, ctypes.c_size_t(size))
    call("cuMemcpyDtoH_v2", back, place, ctypes.c_size_t(size))
    call("cuMemFree_v2", place)
    with open("/proc/self/maps") as maps:
        loaded = sorted({line.split()[5] for line in maps if "libcuda.so" in line})
    return {
        "smi": smi.stdout.strip() or smi.stderr.strip(),
        "uuids": uuids,
        "kept": back.raw == sent,
        "named": named,
        "loaded": loaded,
        "glibc": os.confstr("CS_GNU_LIBC_VERSION"),
        "release": open("/etc/os-release").readline().strip(),
    }


def product_here():
    """One product of matrices, compared with that of the processor, and how fast it is, the median of 20."""
    import torch

    side = 8192
    a, b = (torch.randn(side, side, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    times = []
    for _ in range(25):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        c = torch.mm(a, b)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begun)
    own = a[:16].cpu().float() @ b.cpu().float()
    difference = (c[:16].cpu().float() - own).abs().max().item() / own.abs().max().item()
    with open("/proc/self/maps") as maps:
        loaded = sorted({line.split()[5] for line in maps if "libcuda.so" in line})
    return {
        "count": torch.cuda.device_count(),
        "card": f"GPU-{torch.cuda.get_device_properties(0).uuid}",
        "right": difference < 0.01,
        "tflops": 2 * side**3 / sorted(times[5:])[10] / 1e12,
        "torch": torch.__version__,
        "loaded": loaded,
        "glibc": os.confstr("CS_GNU_LIBC_VERSION"),
        "release": open("/etc/os-release").readline().strip(),
    }


def refused(*minors):
    """What opening the cards of these numbers comes to."""
    found = {}
    for minor in minors:
        try:
            os.close(os.open(f"/dev/other{minor}", os.O_RDWR))
            found[minor] = "opened"
        except OSError as error:
            found[minor] = error.strerror
    return found


if __name__ == "__main__":
    result = globals()[sys.argv[1]](*sys.argv[2:])
    print(json.dumps(result), flush=True)
