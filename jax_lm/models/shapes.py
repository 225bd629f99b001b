"""Names of the array types that many signatures share.

Letters of shapes: b batch, t position, r row of the window that a step decides, v vocabulary.
"""

from jaxtyping import Array, Bool, Float, Int

Tokens = Int[Array, "b t"]
Mask = Bool[Array, "b t"]

RowIds = Int[Array, "b r"]
RowMask = Bool[Array, "b r"]
RowScores = Float[Array, "b r"]
RowLogits = Float[Array, "b r v"]
