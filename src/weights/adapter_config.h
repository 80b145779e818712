// adapter_config.json of PEFT's folders: what an adapter is and which modules it is of. A field whose value would
// change the result and is not run is refused by its name and value, one that this program does not know too, unless it
// is null, false or empty; what matters to training's start alone is passed over.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace octet {

class Regex;

enum class PeftMethod : uint8_t { kLora, kPromptTuning, kPTuning };

// A regular expression of module names, with a bound on its steps. Throws kInvalidArgument naming `what` ("FILE:
// FIELD") and the place where it does not compile.
class NamePattern {
 public:
  NamePattern(const std::string& pattern, const std::string& what);
  bool is_whole(const std::string& name) const;           // the pattern is of the whole name
  std::string_view first(const std::string& name) const;  // the first place that matches; empty: none

 private:
  std::shared_ptr<const Regex> regex_;
};

// target_modules and exclude_modules: a regular expression of whole names, or names that are a module's or its end
// behind a dot.
struct ModuleNames {
  std::vector<std::string> names = {};
  std::string expression = {};
  bool all_linear = false;                  // every linear but the output head
  std::optional<NamePattern> pattern = {};  // of the expression

  void set_expression(const std::string& text, const std::string& what);

  bool empty() const { return names.empty() && expression.empty() && !all_linear; }
  bool matches(const std::string& module) const;  // but for all_linear
};
// Whether `name` is `end`, or ends with it behind a dot.
bool ends_as(const std::string& name, const std::string& end);

struct PeftConfig {
  PeftMethod method = PeftMethod::kLora;
  std::string base;  // base_model_name_or_path

  int64_t rank = 0;  // of LoRA
  double alpha = 0, dropout = 0;
  bool rslora = false, dora = false, tie_weights = false;
  std::string bias = "none";                                // lora_only, all
  std::vector<std::pair<std::string, int64_t>> ranks = {};  // by patterns: the first that fits
  std::vector<std::pair<std::string, double>> alphas = {};
  ModuleNames targets = {}, excluded = {};
  std::vector<std::string> parameters = {};  // target_parameters
  std::vector<int64_t> layers = {};          // layers_to_transform
  std::vector<std::string> layers_pattern = {};
  std::vector<std::string> saved = {};   // modules_to_save
  std::vector<int64_t> token_rows = {};  // trainable_token_indices, in the order of the tensor
  std::string token_module = {};         // whose rows these are; "": the embedding's

  int64_t virtual_tokens = 0, token_dim = 0;  // of prompts; token_dim 0: not given
  std::string encoder = {};                   // of P-tuning: MLP or LSTM
  int64_t encoder_hidden = 0, encoder_layers = 0;
  double encoder_dropout = 0;

  // Whether LoRA is of this module; `linear`: it is one of those that "all-linear" names.
  bool is_target(const std::string& module, bool linear) const;
  int64_t rank_of(const std::string& module) const;
  double scale_of(const std::string& module) const;  // alpha / rank, of rsLoRA alpha / sqrt(rank)
};

// Throws kCorrupt, kInvalidArgument (rank 0) or kUnsupported naming field and value.
PeftConfig parse_adapter_config(const std::string& json_text, const std::string& where);

}  // namespace octet
