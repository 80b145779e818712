// The KV cache: rows scattered into slots, and causal attention of new queries over block-table pages.
// Query i of n of sequence s sits at position kv_lengths[s] - n + i; token p lies in slot
// block_table[s, p / block_size] * block_size + p % block_size. Rows beyond the last segment end give 0.
#include "kernels/cpu/reference.h"
#include "kernels/cpu/attention/score_bias.h"

namespace octet::cpu::reference {

void scatter_rows(const Node& node, RefInputs in, RefResults out) {
  const int64_t slots = in[0]->type.shape.rows(), width = in[0]->type.shape.cols();
  out[0].values = in[0]->values;
  for (size_t t = 0; t < in[2]->values.size(); ++t) {
    const int64_t slot = integer(in[2]->values[t]);
    if (slot == -1) continue;
    check(slot >= 0 && slot < slots, ErrorCode::kInvalidArgument, "scatter_rows \"{}\": slot {} of a cache of {}",
          node.name, slot, slots);
    const double* row = in[1]->values.data() + static_cast<int64_t>(t) * width;
    const double scale = present(in, 3) ? in[3]->values[0] : 1;
    for (int64_t i = 0; i < width; ++i) out[0].values[static_cast<size_t>(slot * width + i)] = row[i] * scale;
  }
}

void copy_blocks(const Node& node, RefInputs in, RefResults out) {
  const int64_t elements = node.attr<int64_t>("block_size") * in[0]->type.shape.cols();
  const int64_t blocks = in[0]->type.shape.elements() / elements;
  out[0].values = in[0]->values;
  for (size_t p = 0; p < in[1]->values.size(); p += 2) {
    const int64_t from = integer(in[1]->values[p]), to = integer(in[1]->values[p + 1]);
    if (from < 0 || to < 0) continue;
    check(from < blocks && to < blocks, ErrorCode::kInvalidArgument, "copy_blocks \"{}\": {} to {} of {} blocks",
          node.name, from, to, blocks);
    std::copy_n(in[0]->values.begin() + from * elements, elements, out[0].values.begin() + to * elements);
  }
}

void paged_attention(const Node& node, RefInputs in, RefResults out) {
  const int64_t heads = node.attr<int64_t>("heads"), kv_heads = node.attr<int64_t>("kv_heads");
  const int64_t dim = node.attr<int64_t>("head_dim"), block_size = node.attr<int64_t>("block_size");
  const int64_t window = node.attr<int64_t>("window");
  const double k_scale = present(in, 6) ? in[6]->values[0] : 1, v_scale = present(in, 7) ? in[7]->values[0] : 1;
  const double scale = node.attr<double>("scale") * k_scale;
  const int64_t slots = in[1]->type.shape.rows(), blocks = in[5]->type.shape.cols();
  const int64_t tokens = in[0]->type.shape.rows(), sequences = in[5]->type.shape.rows();
  std::vector<double> scores;
  std::vector<int64_t> rows;
  for (int64_t s = 0; s < sequences; ++s) {
    const int64_t begin = integer(in[3]->values[static_cast<size_t>(s)]);
    const int64_t end = integer(in[3]->values[static_cast<size_t>(s + 1)]);
    const int64_t length = integer(in[4]->values[static_cast<size_t>(s)]);
    if (begin == end) continue;
    check(begin >= 0 && begin <= end && end <= tokens && length >= end - begin && length <= blocks * block_size,
          ErrorCode::kInvalidArgument,
          "paged_attention \"{}\": sequence {} has queries [{}, {}) of {} and {} keys in {} blocks of {}", node.name, s,
          begin, end, tokens, length, blocks, block_size);
    rows.resize(static_cast<size_t>(length));
    scores.resize(static_cast<size_t>(length));
    for (int64_t p = 0; p < length; ++p) {
      const int64_t block = integer(in[5]->values[static_cast<size_t>(s * blocks + p / block_size)]);
      const int64_t slot = block * block_size + p % block_size;
      const bool visible = window == 0 || p > length - (end - begin) - window;  // blocks out of the window may be freed
      check(!visible || (slot >= 0 && slot < slots), ErrorCode::kInvalidArgument,
            "paged_attention \"{}\": sequence {} position {} is in block {}: slot {} of {}", node.name, s, p, block,
            slot, slots);
      rows[static_cast<size_t>(p)] = slot;
    }
    for (int64_t t = begin; t < end; ++t) {
      const int64_t position = length - (end - begin) + (t - begin);
      const int64_t first = window > 0 ? std::max<int64_t>(0, position - window + 1) : 0;
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t kv_head = h / (heads / kv_heads);
        const double bias = score_bias(node, h);
        const double* q = in[0]->values.data() + (t * heads + h) * dim;
        double* row = out[0].values.data() + (t * heads + h) * dim;
        double largest = -INFINITY, sum = 0;
        for (int64_t p = first; p <= position; ++p) {
          const double* k = in[1]->values.data() + (rows[static_cast<size_t>(p)] * kv_heads + kv_head) * dim;
          double score = 0;
          for (int64_t d = 0; d < dim; ++d) score += q[d] * k[d];
          score = score * scale + bias * static_cast<double>(p - position);
          scores[static_cast<size_t>(p)] = score;
          if (!(score <= largest)) largest = score;
        }
        for (int64_t p = first; p <= position; ++p) sum += std::exp(scores[static_cast<size_t>(p)] - largest);
        for (int64_t p = first; p <= position; ++p) {
          const double weight = std::exp(scores[static_cast<size_t>(p)] - largest) / sum;
          const double* v = in[2]->values.data() + (rows[static_cast<size_t>(p)] * kv_heads + kv_head) * dim;
          for (int64_t d = 0; d < dim; ++d) row[d] += weight * v[d] * v_scale;
        }
      }
    }
  }
}

}  // namespace octet::cpu::reference
