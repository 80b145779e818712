// For tests only: a runner driven by hand, with texts in blocks of fixed places.
#pragma once

#include <string>
#include <vector>

#include "base/dtype.h"
#include "infer/runner.h"
#include "io/safetensors.h"

namespace octet::serving_test {

inline constexpr size_t kPrompt = 11;  // tokens of a golden's greedy_ids that are the prompt

// One text: the tokens known so far, how many of them are in the cache, and where.
struct Text {
  std::vector<int32_t> tokens;
  int32_t row = 0;          // of the table of sampled ids
  int32_t first_block = 0;  // block i of the text is first_block + i
  int64_t computed = 0;
};

class Driver {
 public:
  explicit Driver(Runner& runner) : runner_(runner) {}

  // The next `count` tokens of the text; with `sample` the last one's successor is asked for. `on_device`: its last id
  // is what was sampled last, and need not be in `tokens`.
  void add(Text& text, int64_t count, bool sample, bool on_device = false) {
    const RunnerLimits& limits = runner_.limits();
    if (step_.segments.empty()) {
      step_.segments = {0};
      step_.groups.resize(limits.groups.size());
      step_.decode_only = true;
    }
    step_.decode_only = step_.decode_only && count == 1;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t position = text.computed + i;
      const bool fed = on_device && i + 1 == count;
      step_.ids.push_back(fed ? -1 : text.tokens.at(static_cast<size_t>(position)));
      step_.from.push_back(fed ? text.row : -1);
      step_.positions.push_back(static_cast<int32_t>(position));
      for (auto& group : step_.groups)
        group.slots.push_back(static_cast<int32_t>(text.first_block * limits.block_size + position));
    }
    text.computed += count;
    step_.segments.push_back(static_cast<int32_t>(step_.ids.size()));
    step_.kv_lengths.push_back(static_cast<int32_t>(text.computed));
    for (size_t g = 0; g < step_.groups.size(); ++g) {
      for (int32_t i = 0; i < limits.groups[g].blocks_per_sequence; ++i)
        step_.groups[g].table.push_back(i * limits.block_size < text.computed ? text.first_block + i : -1);
    }
    if (!sample) return;
    step_.logit_rows.push_back(static_cast<int32_t>(step_.ids.size()) - 1);
    sample_.params.insert(sample_.params.end(), {0.0f, 1.0f, 0.0f});
    sample_.top_k.push_back(0);
    sample_.seeds.insert(sample_.seeds.end(), {0, text.row, text.computed});
    sample_.store.push_back(text.row);
  }

  // Asks for the successor of token `token` of the step too.
  void add_row(int32_t token) {
    step_.logit_rows.push_back(token);
    sample_.params.insert(sample_.params.end(), {0.0f, 1.0f, 0.0f});
    sample_.top_k.push_back(0);
    sample_.seeds.insert(sample_.seeds.end(), {0, token, 0});
    sample_.store.push_back(-1);
  }

  SampleInput& sampling() { return sample_; }
  const StepInput& step() const { return step_; }

  SampleOutput run() {
    runner_.forward(step_);
    runner_.sample(sample_);
    step_ = {};
    sample_ = {};
    return runner_.wait();
  }

 private:
  Runner& runner_;
  StepInput step_;
  SampleInput sample_;
};

inline std::vector<int32_t> greedy_ids(const std::string& folder) {
  auto expected = open_safetensors(folder + "/expected.safetensors");
  TensorView view = expected->read("greedy_ids");
  std::vector<int32_t> ids(static_cast<size_t>(view.type.shape.elements()));
  for (size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<int32_t>(load_element(view.type.dtype, view.bytes.data(), static_cast<int64_t>(i)));
  return ids;
}

// Decodes to the end of the known text, one token a step.
inline void decode(Runner& runner, Text& text, size_t tokens, bool on_device = false) {
  while (text.tokens.size() < tokens) {
    Driver driver(runner);
    driver.add(text, 1, true, on_device);
    text.tokens.push_back(driver.run().ids[0]);
  }
}

}  // namespace octet::serving_test
