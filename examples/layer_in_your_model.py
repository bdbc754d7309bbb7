"""Use the layer in your own PyTorch model and print its attention."""

import torch

from rgat import RelationalGraph
from rgat.nn import RGATConv

edge_index = torch.tensor([[0, 1, 2, 3, 3], [1, 0, 1, 1, 0]])  # sources, targets
edge_type = torch.tensor([0, 0, 1, 1, 2])
graph = RelationalGraph(edge_index, edge_type, num_nodes=4, num_relations=3).with_self_loops().prepare()


class Model(torch.nn.Module):
    """Stack two attention layers; the first has one head per softmax scope."""

    def __init__(self):
        super().__init__()
        self.first = RGATConv(8, 16, graph.num_relations, heads=2, scope=["within", "across"], score="multiplicative")
        self.second = RGATConv(32, 2, graph.num_relations)

    def forward(self, x, graph):
        """Return the class logits of every node."""
        return self.second(self.first(x, graph).relu(), graph)


torch.manual_seed(0)
x = torch.randn(4, 8)
model = Model()
loss = torch.nn.functional.cross_entropy(model(x, graph), torch.tensor([0, 1, 0, 1]))
loss.backward()
print(f"loss {loss:.3f}")

_, (edges, attention) = model.first(x, graph, return_attention_weights=True)
for source, target, weights in zip(*edges.tolist(), attention.tolist(), strict=True):
    print(f"{source} -> {target}: within {weights[0]:.2f}, across {weights[1]:.2f}")
