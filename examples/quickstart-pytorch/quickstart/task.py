"""What is learnt: a linear classifier of scikit-learn's hand-written digits."""

from functools import lru_cache

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    """Softmax regression: 64 pixels to 10 classes."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(64, 10, bias=False)

    def forward(self, x):
        """Return the logits of a batch of images."""
        return self.fc(x)


@lru_cache
def load_images():
    """Return all images and labels: those to learn from, and those to test on."""
    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(images / 16, labels, test_size=0.2, random_state=0)
    x_train, x_test, y_train, y_test = map(torch.as_tensor, parts)
    train_set = TensorDataset(x_train.float(), y_train)
    return train_set, TensorDataset(x_test.float(), y_test)


def load_data(partition_id, num_partitions, batch_size):
    """Return a node's own data: every num_partitions-th image, a fifth to validate."""
    images, labels = load_images()[0][partition_id::num_partitions]
    size = len(labels) * 4 // 5
    train_set = TensorDataset(images[:size], labels[:size])
    val_set = TensorDataset(images[size:], labels[size:])
    train_loader = DataLoader(train_set, batch_size=batch_size, shuffle=True)
    return train_loader, DataLoader(val_set, batch_size=batch_size)


def test(net, loader):
    """Return the mean loss and the accuracy of the model."""
    net.eval()
    loss, correct = 0.0, 0
    with torch.no_grad():
        for images, labels in loader:
            outputs = net(images)
            loss += nn.functional.cross_entropy(outputs, labels, reduction="sum").item()
            correct += (outputs.argmax(dim=1) == labels).sum().item()
    return loss / len(loader.dataset), correct / len(loader.dataset)
