"""Names of the array types that many signatures share.

Letters of shapes: b batch, t position, r row of the window that a step decides, v vocabulary.
"""

import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from jax_lm.config import Ints

Shape = Ints

Tokens = Int[Array, "b t"]
Mask = Bool[Array, "b t"]
TokenValues = Float[Array, "b t"]
Logits = Float[Array, "b t v"]

# Vectors of d numbers, with any axes before them, such as hidden states.
Vectors = Float[Array, "*b d"]

Scalar = Float[Array, ""]
ScalarInt = Int[Array, ""]
ScalarBool = Bool[Array, ""]

RowIds = Int[Array, "b r"]
RowMask = Bool[Array, "b r"]
RowScores = Float[Array, "b r"]
RowLogits = Float[Array, "b r v"]
# Candidates of each row, c of them: their logits or other values, and their token ids.
RowValues = Float[Array, "b r c"]
RowValueIds = Int[Array, "b r c"]
# Integers of c columns, those of a block or of a completion.
ColumnInts = Int[Array, "b c"]
# Token id and score of each row.
RowChoice = tuple[RowIds, RowScores]

BatchCounts = Int[Array, "b"]
BatchValues = Float[Array, "b"]
BatchFlags = Bool[Array, "b"]
# A random key per row.
BatchKeys = Key[Array, "b"]
# Which positions s each position may attend to.
PairMask = Bool[Array, "b t s"]

# NumPy arrays, in the memory of the host.
HostTokens = Int[np.ndarray, "b t"]
HostMask = Bool[np.ndarray, "b t"]
HostValues = Float[np.ndarray, "b t"]
# The same of one sequence.
SequenceTokens = Int[np.ndarray, "t"]
SequenceMask = Bool[np.ndarray, "t"]
HostLogits = Float[np.ndarray, "v"]
# Ids of the tokens that end a text.
StopIds = Ints
