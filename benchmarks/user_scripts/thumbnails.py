# Classify thumbnails. The transform resizes full photos in every epoch.
import glob
import os

import torch
from PIL import Image
from torch.utils.data import Dataset, DataLoader
from torchvision import transforms as T

class Thumbnails(Dataset):
	def __init__(self, root, transform=None):
		self.files = sorted(glob.glob(os.path.join(root, "*", "*.jpg")))
		self.classes = sorted({os.path.basename(os.path.dirname(f)) for f in self.files})
		self.transform = transform

	def __len__(self):
		return len(self.files)

	def __getitem__(self, i):
		img = Image.open(self.files[i]).convert("RGB")
		if self.transform:
			img = self.transform(img)
		return img, self.classes.index(os.path.basename(os.path.dirname(self.files[i])))

def run(root="data/photos"):
	tf = T.Compose([T.Resize((64, 64)), T.ToTensor(), T.Normalize([0.5] * 3, [0.5] * 3)])
	dl = DataLoader(	# one process
		Thumbnails(root, tf),
		batch_size = 8,		# small
		shuffle = True,
	)
	net = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3, stride=2), torch.nn.ReLU(),
		torch.nn.Conv2d(16, 32, 3, stride=2), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.LazyLinear(3))
	net(torch.zeros(1, 3, 64, 64))
	opt = torch.optim.SGD(net.parameters(), lr=1e-2)
	for ep in range(500):
		for img, lab in dl:
			opt.zero_grad()
			torch.nn.functional.cross_entropy(net(img), lab).backward()
			opt.step()

run()
