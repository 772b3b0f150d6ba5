"""Deep Q-learning in the manner of CleanRL and LeanRL: acting on each step, learning from a buffer every other step."""

import random

import torch
import torch.nn.functional as F
from torch import nn

total_timesteps, learning_starts, train_frequency, target_frequency = 60, 12, 2, 10
batch_size, gamma = 16, 0.99
random.seed(1)
torch.manual_seed(1)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class QNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))

    def forward(self, x):
        return self.network(x)


class Environment:
    """A cart that is pushed left or right along a line."""

    def reset(self):
        self.state = [random.uniform(-0.05, 0.05) for _ in range(4)]
        return self.state

    def step(self, action):
        x, v, a, w = self.state
        force = 0.1 if action == 1 else -0.1
        self.state = [x + v, v + force, a + w, w - 0.5 * force + 0.05 * a]
        return self.state, 1.0, abs(self.state[0]) > 2.4


env = Environment()
q_network = QNetwork().to(device)
optimizer = torch.optim.Adam(q_network.parameters(), lr=2.5e-4)
target_network = QNetwork().to(device)
target_network.load_state_dict(q_network.state_dict())
buffer = []
obs = env.reset()
for global_step in range(total_timesteps):
    if random.random() < 0.1:
        action = random.randrange(2)
    else:
        with torch.no_grad():
            q_values = q_network(torch.tensor([obs], device=device))
        action = int(torch.argmax(q_values, dim=1).cpu().numpy()[0])
    next_obs, reward, done = env.step(action)
    buffer.append((obs, action, reward, next_obs, float(done)))
    obs = env.reset() if done else next_obs
    if global_step > learning_starts:
        if global_step % train_frequency == 0:
            batch = list(zip(*random.choices(buffer, k=batch_size), strict=True))
            data = [torch.tensor(column, device=device) for column in batch]
            with torch.no_grad():
                target_max, _ = target_network(data[3]).max(dim=1)
                td_target = data[2] + gamma * target_max * (1 - data[4])
            old_val = q_network(data[0]).gather(1, data[1].unsqueeze(1)).squeeze()
            loss = F.mse_loss(td_target, old_val)
            if global_step % 10 == 0:
                print(f"step {global_step} td loss {loss.item():.6f} q {old_val.mean().item():.6f}")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if global_step % target_frequency == 0:
            target_network.load_state_dict(q_network.state_dict())
print(f"final q {q_network(torch.zeros(1, 4, device=device)).sum().item():.6f}")
