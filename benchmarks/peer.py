"""PyTorch's side of scripts/bench: the same models, weights and data as our programs, the same questions, one JSON answer.

    python peer.py train --model lenet --layout channels_last --weights build/bench/lenet.safetensors --steps 200
    python peer.py optimizer --steps 20
    python peer.py overhead

Prints {"ms": median of a step, "rss_mb": peak resident memory, ...}. The safetensors file is written by bench_train_step and
holds our weights (images N H W C, filters K R S C), and the images and labels of 20 batches.
"""

import argparse
import json
import statistics
import struct
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


class LeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5, padding=2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(400, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)
        self.flat_shape = (5, 5, 16)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(torch.flatten(x, 1)))
        return self.fc3(F.relu(self.fc2(x)))


class MnistCnn(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.fc1 = nn.Linear(9216, 128)
        self.fc2 = nn.Linear(128, 10)
        self.dropout = dropout
        self.flat_shape = (12, 12, 64)

    def forward(self, x):
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        x = F.max_pool2d(x, 2)
        if self.dropout:
            x = F.dropout(x, 0.25, self.training)
        x = F.relu(self.fc1(torch.flatten(x, 1)))
        if self.dropout:
            x = F.dropout(x, 0.5, self.training)
        return self.fc2(x)


def read_safetensors(path):
    """Name -> array. The format is a length, a JSON header and the bytes, so this needs no package."""
    types = {"F32": np.float32, "I64": np.int64, "U8": np.uint8}
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        data = file.read()
    header.pop("__metadata__", None)
    return {
        name: np.frombuffer(data[slice(*entry["data_offsets"])], types[entry["dtype"]]).reshape(entry["shape"]).copy()
        for name, entry in header.items()
    }


def load_weights(model, arrays):
    """From K R S C filters, and from rows that run over H W C where a linear layer follows the flattened image."""
    state = {}
    for name, parameter in model.state_dict().items():
        array = torch.from_numpy(arrays[name])
        if array.ndim == 4:
            array = array.permute(0, 3, 1, 2)
        if name == "fc1.weight":
            height, width, channels = model.flat_shape
            array = array.reshape(-1, height, width, channels).permute(0, 3, 1, 2)
        state[name] = array.reshape(parameter.shape).contiguous()
    model.load_state_dict(state)


def peak_rss_mb():
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / 1e6
    return None


def make_step(model, layout, images, labels):
    if layout == "channels_last":
        model = model.to(memory_format=torch.channels_last)
        images = images.contiguous(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    batches = list(zip(images.split(64), labels.split(64)))

    def step(index):
        x, y = batches[index % len(batches)]
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()  # both sides read the loss of each step

    return step


def train(args):
    arrays = read_safetensors(args.weights)
    images = torch.from_numpy(arrays["data.images"]).permute(0, 3, 1, 2).contiguous()
    labels = torch.from_numpy(arrays["data.labels"])

    def fresh(dropout):
        model = LeNet() if args.model == "lenet" else MnistCnn(dropout)
        load_weights(model, arrays)
        return make_step(model, args.layout, images, labels)

    step = fresh(dropout=False)
    losses = [step(i) for i in range(20)]
    step = fresh(dropout=True)
    for i in range(args.warmup):
        step(i)
    times = []
    for i in range(args.steps):
        start = time.perf_counter()
        step(i)
        times.append(1e3 * (time.perf_counter() - start))
    return {"ms": statistics.median(times), "losses": losses}


def optimizer(args):
    """SGD with momentum over the parameters of a ResNet-18, 11 million."""
    from itertools import chain

    widths = [64, 128, 256, 512]
    shapes = [(64, 3, 7, 7), (1000, 512), (1000,)]
    for stage, width in enumerate(widths):
        before = widths[max(stage - 1, 0)]
        shapes += [(width, before, 3, 3)] + [(width, width, 3, 3)] * 3
        shapes += list(chain.from_iterable([((width,), (width,))] * 4))
        if stage:
            shapes += [(width, before, 1, 1)]
    parameters = [torch.randn(shape, requires_grad=True) for shape in shapes]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    sgd = torch.optim.SGD(parameters, lr=1e-3, momentum=0.9)
    times = []
    for i in range(args.warmup + args.steps):
        start = time.perf_counter()
        sgd.step()
        times.append(1e3 * (time.perf_counter() - start))
    return {"ms": statistics.median(times[args.warmup :]), "parameters": sum(p.numel() for p in parameters)}


def overhead(args):
    """A chain of 1,000 multiplications of one element: nothing but overhead."""
    length, forward, backward = 1000, [], []
    x = torch.ones(1, requires_grad=True)
    factor = torch.full((1,), 1.0)
    for _ in range(args.warmup + args.steps):
        x.grad = None
        start = time.perf_counter()
        y = x
        for _ in range(length):
            y = y * factor
        middle = time.perf_counter()
        y.backward()
        end = time.perf_counter()
        forward.append(1e9 * (middle - start) / length)
        backward.append(1e9 * (end - middle) / length)
    forward_ns, backward_ns = (statistics.median(times[args.warmup :]) for times in (forward, backward))
    return {"ms": 1e-6 * (forward_ns + backward_ns), "forward_ns": forward_ns, "backward_ns": backward_ns}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=["train", "optimizer", "overhead"])
    parser.add_argument("--model", choices=["lenet", "cnn"], default="lenet")
    parser.add_argument("--layout", choices=["nchw", "channels_last"], default="nchw")
    parser.add_argument("--weights")
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    result = {"train": train, "optimizer": optimizer, "overhead": overhead}[args.task](args)
    print(json.dumps({"name": args.task, "rss_mb": peak_rss_mb(), **result}))


if __name__ == "__main__":
    main()
