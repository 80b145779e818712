// Checks that dense and paged attention share.
#pragma once

#include "ir/ops/layouts.h"

namespace octet::ops {

struct HeadDims {
  int64_t heads, kv_heads, head_dim;
};
HeadDims head_dims(const Node& node);  // checks them, scale and alibi
void require_heads(const Graph& graph, const Node& node, size_t i, int64_t tokens, int64_t width);
void require_ints(const Graph& graph, const Node& node, size_t i, int rank, const char* what);
void require_segments(const Graph& graph, const Node& node, size_t i);
// The layout of q, after checking it and operands [first_key, last_key].
Layout heads_layout(const Graph& graph, const Node& node, size_t first_key, size_t last_key);

}  // namespace octet::ops
