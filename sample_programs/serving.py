"""A model that answers requests from a queue, in a thread of its own."""

import queue
import threading

import torch
from torch import nn

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 8), nn.Softmax(dim=-1))
model = model.to(device).eval()
requests: queue.Queue = queue.Queue()
answers: dict[int, list[float]] = {}


@torch.inference_mode()
def serve():
    while True:
        request = requests.get()
        if request is None:
            return
        number, values = request
        scores = model(values.to(device, non_blocking=True))
        answers[number] = scores.cpu().tolist()


worker = threading.Thread(target=serve)
worker.start()
for number in range(16):
    requests.put((number, torch.randn(4, 16)))
requests.put(None)
worker.join()
print([round(answers[number][0][0], 6) for number in sorted(answers)])
