"""Array types with their shapes by word, for folders that exchange tensors."""

from jaxtyping import Float, Int
from torch import Tensor

Ids = Int[Tensor, "batch"]
Queries = Float[Tensor, "batch dim"]
EntityTable = Float[Tensor, "entity dim"]
EntityBias = Float[Tensor, "entity"]
QueryBias = Float[Tensor, "batch"]
Scores = Float[Tensor, "batch entity"]
