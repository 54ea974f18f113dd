"""Handwritten digits by softmax regression, trained by synchronous SGD: one parameter server, several workers.

Plain Python 3 without packages, so that it runs wherever there is Python. What it shows: how tasks of a job find each
other (addresses and ports from the environment), how a log with metrics looks, and where a model goes.

The server holds the weights. In each step every worker sends the gradient of its part of the batch; the server adds
them in the order of the workers' numbers, so that the sums, and with them the model, are the same in every run (and,
by `fsum`, with every version of Python).
"""

import argparse
import array
import gzip
import json
import math
import os
import random
import socket
import struct
import time

PIXELS, CLASSES = 64, 10
SIZE = CLASSES * (PIXELS + 1)  # one weight for each pixel and a bias, for each class
PATIENCE = 60.0  # seconds to wait for a peer

DATASET = os.environ.get("TRAINYARD_DATASET_DIR", "/dataset")
MODEL = os.environ.get("TRAINYARD_MODEL_DIR", "/model")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=32, help="rows a step, over all workers")
    parser.add_argument("--lr", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=7)
    return parser.parse_args()


# --- Messages: a length, then that many doubles ---


def send(connection, numbers):
    payload = array.array("d", numbers).tobytes()
    connection.sendall(struct.pack("!I", len(payload)) + payload)


def receive(connection):
    (length,) = struct.unpack("!I", receive_bytes(connection, 4))
    return array.array("d", receive_bytes(connection, length))


def receive_bytes(connection, count):
    parts = []
    while count > 0:
        part = connection.recv(count)
        if not part:
            raise ConnectionError("the peer has closed the connection")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def connect(host, port):
    """Tasks start together, but not in the same instant: tries until the server listens."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return socket.create_connection((host, port), timeout=PATIENCE)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


# --- The parameter server ---


def serve(options, workers, port):
    listener = socket.create_server(("", port))
    listener.settimeout(PATIENCE)
    connections = {}
    while len(connections) < workers:
        connection, _ = listener.accept()
        connection.settimeout(PATIENCE)
        connections[int(receive(connection)[0])] = connection
    print(f"{workers} workers have come", flush=True)
    weights = [0.0] * SIZE
    while True:
        gradients = [receive_from(index, connections[index]) for index in range(workers)]
        if len(gradients[0]) == 0:
            break  # the workers are done
        rows = sum(gradient[-1] for gradient in gradients)
        for at in range(SIZE):
            weights[at] -= options.lr * math.fsum(gradient[at] for gradient in gradients) / rows
        for index in range(workers):
            send(connections[index], weights)
    print("done", flush=True)


def receive_from(index, connection):
    try:
        return receive(connection)
    except OSError as error:
        raise SystemExit(f"worker {index} is lost: {error}")


# --- Workers ---


def load(seed):
    with gzip.open(os.path.join(DATASET, "digits.csv.gz"), "rt") as file:
        rows = [[float(number) for number in line.split(",")] for line in file]
    rows = [([pixel / 16 for pixel in row[:PIXELS]] + [1.0], int(row[PIXELS])) for row in rows]
    random.Random(seed).shuffle(rows)
    split = len(rows) * 4 // 5
    return rows[:split], rows[split:]


def probabilities(weights, pixels):
    width = PIXELS + 1
    scores = [math.fsum(map(float.__mul__, weights[c * width : (c + 1) * width], pixels)) for c in range(CLASSES)]
    highest = max(scores)
    powers = [math.exp(score - highest) for score in scores]
    total = math.fsum(powers)
    return [power / total for power in powers]


def gradient(weights, rows):
    """The sum of the gradients of all rows, and how many rows there were."""
    width = PIXELS + 1
    total = [0.0] * SIZE
    for pixels, digit in rows:
        guess = probabilities(weights, pixels)
        guess[digit] -= 1.0
        for c in range(CLASSES):
            error, base = guess[c], c * width
            for at in range(width):
                total[base + at] += error * pixels[at]
    return total + [float(len(rows))]


def evaluate(weights, rows):
    loss, right = 0.0, 0
    for pixels, digit in rows:
        guess = probabilities(weights, pixels)
        loss -= math.log(max(guess[digit], 1e-12))
        right += guess[digit] == max(guess)
    return loss / len(rows), right / len(rows)


def work(options, index, workers, host, port):
    train, test = load(options.seed)
    server = connect(host, port)
    send(server, [float(index)])
    print(f"worker {index} of {workers}: {len(train)} rows to learn from, {len(test)} to be judged by", flush=True)
    weights = [0.0] * SIZE
    order = random.Random(options.seed + 1)  # the same in every worker
    for epoch in range(1, options.epochs + 1):
        order.shuffle(train)
        for start in range(0, len(train), options.batch):
            mine = train[start : start + options.batch][index::workers]
            send(server, gradient(weights, mine))
            weights = list(receive(server))
        if index == 0:
            loss, accuracy = evaluate(weights, test)
            print(f"epoch={epoch}/{options.epochs} loss={loss:.4f} accuracy={accuracy:.4f}", flush=True)
    send(server, [])
    if index == 0:
        save(options, weights, *evaluate(weights, test))


def save(options, weights, loss, accuracy):
    """Written aside and renamed: a model is there whole or not at all."""
    width = PIXELS + 1
    model = {
        "kind": "softmax regression",
        "classes": CLASSES,
        "seed": options.seed,
        "epochs": options.epochs,
        "test_loss": loss,
        "test_accuracy": accuracy,
        "weights": [weights[c * width : (c + 1) * width] for c in range(CLASSES)],
    }
    path = os.path.join(MODEL, "model.json")
    with open(path + ".tmp", "w") as file:
        json.dump(model, file)
    os.rename(path + ".tmp", path)
    print(f"final loss={loss:.4f} accuracy={accuracy:.4f}", flush=True)


def main():
    options = arguments()
    role, index = os.environ["TRAINYARD_ROLE"], int(os.environ["TRAINYARD_TASK_INDEX"])
    workers = int(os.environ["TRAINYARD_WORKER_COUNT"])
    host = os.environ["TRAINYARD_PS_HOSTS"].split(",")[0]
    port = int(os.environ["TRAINYARD_PS_PORTS_GRAD"].split(",")[0])
    if role == "ps":
        serve(options, workers, port)
    else:
        work(options, index, workers, host, port)


if __name__ == "__main__":
    main()
