import torch

# tests run in several processes; threads inside each of them would only get in each other's way
torch.set_num_threads(1)
