// Mistral.
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>

#include "model/families/shared.h"

namespace octet {

Family mistral_family() {
  const auto fields = [](ConfigFields& f, ModelConfig& c) {
    llama_fields(f, c, {.max_positions = 131072, .kv_heads = 8});
    std::vector<int64_t> windows = f.reading() ? std::vector<int64_t>{4096} : c.layer_windows();
    if (std::adjacent_find(windows.begin(), windows.end(), std::not_equal_to()) != windows.end())
      f.refuse("model.window", fmt::format("{}", fmt::join(c.window, ",")), "one; qwen2 and qwen3 alternate");
    f.nullable({"sliding_window"}, windows[0]);
    if (f.reading()) c.window = windows;
  };
  return {"mistral", "MistralForCausalLM", llama_facts(), fields, llama_tensors()};
}

}  // namespace octet
