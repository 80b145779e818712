// The work of tensor-core prefill: tiles of queries of all prefilled sequences, listed on the device by a kernel of its
// own, since lengths are known there only. Without the list every block of the largest possible grid would look through
// all sequences for its tile.
#pragma once

#include "kernels/cuda/inference/inference.h"

namespace octet::cuda::prefill {

inline constexpr int kTileQueries = 128;

// Queries first_query .. first_query + kTileQueries - 1 of a sequence, as many as there are.
struct QueryTile {
  int sequence, first_query;
  int begin, queries, length;  // of the sequence: as PagedSequence
};

struct PrefillWork {
  int tiles;  // in the list
  int taken;  // the tile scheduler's atomic counter: items taken beyond the first of each block
  QueryTile tile[1];
};

inline int max_prefill_tiles(const PagedProblem& p) {
  const int full = (p.tokens + kTileQueries - 1) / kTileQueries;
  return full + (p.sequences < p.tokens / (kDecodeQueries + 1) ? p.sequences : p.tokens / (kDecodeQueries + 1));
}

}  // namespace octet::cuda::prefill
