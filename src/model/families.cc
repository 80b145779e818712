#include "model/families.h"

#include <fmt/ranges.h>

#include "base/error.h"

namespace octet {
namespace {

const std::vector<Family>& families() {
  static const std::vector<Family> rows = {gpt2_family(),  gpt_bigcode_family(), gptj_family(),    gpt_neox_family(),
                                           opt_family(),   bloom_family(),       falcon_family(),  mpt_family(),
                                           phi_family(),   llama_family(),       mistral_family(), qwen2_family(),
                                           qwen3_family(), gemma_family(),       glm_family()};
  return rows;
}

}  // namespace

const Family& family_of(const std::string& name, const std::string& field) {
  for (const Family& family : families())
    if (name == family.name) return family;
  fail(ErrorCode::kUnsupported, "{} \"{}\" is not one of {}{}", field, name, fmt::join(architectures(), ", "),
       if_near(name, architectures(), " (nearest: {})"));
}

std::vector<std::string> architectures() {
  std::vector<std::string> names;
  for (const Family& family : families()) names.push_back(family.name);
  return names;
}

ModelConfig model_family(const std::string& architecture) {
  const Family& family = family_of(architecture);
  ModelConfig config = family.facts;
  config.architecture = family.name;
  return config;
}

}  // namespace octet
