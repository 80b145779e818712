// The KV cache: rows scattered into slots, and causal attention of new queries over block-table pages.
// Query i of n of sequence s sits at position kv_lengths[s] - n + i; token p lies in slot
// block_table[s, p / block_size] * block_size + p % block_size. Rows beyond the last segment end give 0.
#include "kernels/cpu/reference.h"
#include "kernels/cpu/attention/score_bias.h"
#include "precision/recipe.h"

namespace octet::cpu::reference {

void scatter_rows(const Node& node, RefInputs in, RefResults out) {
  const double scale = present(in, 3) ? (*in[3])[0] : 1;
  out[0].values = in[0]->values;
  for (int64_t t = 0; t < in[2]->size(); ++t) {
    const int64_t slot = integer(in[2], t), slots = in[0]->rows();
    if (slot == -1) continue;
    check(slot >= 0 && slot < slots, ErrorCode::kInvalidArgument, "scatter_rows \"{}\": slot {} of a cache of {}",
          node.name, slot, slots);
    for (int64_t i = 0; i < in[0]->cols(); ++i) out[0].row(slot)[i] = in[1]->row(t)[i] * scale;
  }
}

// float32 arithmetic, as quantize has it, so that codes and scales are equal bit for bit on every device.
void scatter_codes(const Node& node, RefInputs in, RefResults out) {
  out[0].values = in[0]->values, out[1].values = in[3]->values;
  const int64_t groups = out[1].cols(), width = out[0].cols() / groups;
  for (int64_t t = 0; t < in[2]->size(); ++t) {
    const int64_t slot = integer(in[2], t), slots = in[0]->rows();
    if (slot == -1) continue;
    check(slot >= 0 && slot < slots, ErrorCode::kInvalidArgument, "scatter_codes \"{}\": slot {} of a cache of {}",
          node.name, slot, slots);
    for (int64_t g = 0; g < groups; ++g) {
      const double* x = in[1]->row(t) + g * width;
      double amax = 0;
      for (int64_t i = 0; i < width; ++i) {
        if (!(std::fabs(x[i]) <= amax) && !std::isnan(amax)) amax = std::fabs(x[i]);
      }
      const float scale = scale_from_amax(static_cast<float>(amax), DType::kI8, 0, false);
      for (int64_t i = 0; i < width; ++i) {
        out[0].row(slot)[g * width + i] = static_cast<double>(static_cast<float>(x[i]) * scale);
      }
      out[1].row(slot)[g] = static_cast<double>(1.0f / scale);
    }
  }
}

void copy_blocks(const Node& node, RefInputs in, RefResults out) {
  const int64_t block_size = node.attr<int64_t>("block_size"), blocks = in[0]->rows() / block_size;
  out[0].values = in[0]->values;
  for (int64_t p = 0; p < in[1]->size(); p += 2) {
    const int64_t from = integer(in[1], p), to = integer(in[1], p + 1);
    if (from < 0 || to < 0) continue;
    check(from < blocks && to < blocks, ErrorCode::kInvalidArgument, "copy_blocks \"{}\": {} to {} of {} blocks",
          node.name, from, to, blocks);
    std::copy_n(in[0]->row(from * block_size), block_size * in[0]->cols(), out[0].row(to * block_size));
  }
}

void paged_attention(const Node& node, RefInputs in, RefResults out) {
  const int64_t heads = node.attr<int64_t>("heads"), kv_heads = node.attr<int64_t>("kv_heads");
  const int64_t dim = node.attr<int64_t>("head_dim"), block_size = node.attr<int64_t>("block_size");
  const int64_t window = node.attr<int64_t>("window");
  const auto scale_inv = [&](size_t i, int64_t slot, int64_t kv_head) {  // one of all, or of the slot and head
    if (!present(in, i)) return 1.0;
    return in[i]->size() == 1 ? (*in[i])[0] : in[i]->row(slot)[kv_head];
  };
  const int64_t slots = in[1]->rows(), blocks = in[5]->cols(), tokens = in[0]->rows();
  for (int64_t s = 0; s < in[5]->rows(); ++s) {
    const int64_t begin = integer(in[3], s), end = integer(in[3], s + 1), length = integer(in[4], s);
    if (begin == end) continue;
    check(begin >= 0 && begin <= end && end <= tokens && length >= end - begin && length <= blocks * block_size,
          ErrorCode::kInvalidArgument,
          "paged_attention \"{}\": sequence {} has queries [{}, {}) of {} and {} keys in {} blocks of {}", node.name, s,
          begin, end, tokens, length, blocks, block_size);
    std::vector<int64_t> slot_of(static_cast<size_t>(length));
    for (int64_t p = 0; p < length; ++p) {
      const int64_t block = integer(in[5]->row(s)[p / block_size]), slot = block * block_size + p % block_size;
      const bool visible = window == 0 || p > length - (end - begin) - window;  // blocks out of the window may be freed
      check(!visible || (slot >= 0 && slot < slots), ErrorCode::kInvalidArgument,
            "paged_attention \"{}\": sequence {} position {} is in block {}: slot {} of {}", node.name, s, p, block,
            slot, slots);
      slot_of[static_cast<size_t>(p)] = slot;
    }
    for (int64_t t = begin; t < end; ++t) {
      const int64_t position = length - (end - begin) + (t - begin);
      const int64_t first = window > 0 ? std::max<int64_t>(0, position - window + 1) : 0;
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t kv_head = h / (heads / kv_heads), offset = kv_head * dim;
        const double bias = score_bias(node, h), *q = in[0]->row(t) + h * dim;
        std::vector<double> scores;
        double largest = -INFINITY, sum = 0;
        for (int64_t p = first; p <= position; ++p) {
          const int64_t slot = slot_of[static_cast<size_t>(p)];
          const double scale = node.attr<double>("scale") * scale_inv(6, slot, kv_head);
          double score = 0;
          for (int64_t d = 0; d < dim; ++d) score += q[d] * in[1]->row(slot)[offset + d];
          scores.push_back(score * scale + bias * static_cast<double>(p - position));
          if (!(scores.back() <= largest)) largest = scores.back();
        }
        for (double score : scores) sum += std::exp(score - largest);
        for (int64_t p = first; p <= position; ++p) {
          const int64_t slot = slot_of[static_cast<size_t>(p)];
          const double weight = std::exp(scores[static_cast<size_t>(p - first)] - largest) / sum;
          const double v_scale = scale_inv(7, slot, kv_head), *v = in[2]->row(slot) + offset;
          for (int64_t d = 0; d < dim; ++d) out[0].row(t)[h * dim + d] += weight * v[d] * v_scale;
        }
      }
    }
  }
}

}  // namespace octet::cpu::reference
