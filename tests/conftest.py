import os

# the GPU's kernels run in Triton's interpreter; the variable is read when triton is imported, which torch may do at any time
os.environ["TRITON_INTERPRET"] = "1"

import torch

# tests run in several processes; threads inside each of them would only get in each other's way
torch.set_num_threads(1)
