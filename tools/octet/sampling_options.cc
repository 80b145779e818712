#include "octet/sampling_options.h"

#include "base/error.h"

namespace octet {

void parse_biases(const std::vector<std::string>& words, SamplingOptions& sampling) {
  for (const std::string& word : words) {
    size_t colon = word.find(':'), id_end = 0, value_end = 0;
    try {
      int32_t id = std::stoi(word, &id_end);
      float value = std::stof(word.substr(std::min(colon, word.size()) + 1), &value_end);
      if (id_end == colon && colon + 1 + value_end == word.size()) {
        sampling.logit_bias[id] = value;
        continue;
      }
    } catch (const std::exception&) {  // reported below
    }
    fail(ErrorCode::kInvalidArgument, "--logit-bias: \"{}\" (want TOKEN:VALUE, such as 15:-2.5 or 15:-inf)", word);
  }
}

void add_sampling_options(CLI::App& command, GenerationRequest& request, std::vector<std::string>& logit_bias) {
  SamplingOptions& sampling = request.sampling;
  command.add_option("-t,--temperature", sampling.temperature, "0 is greedy");
  command.add_option("--top-k", sampling.top_k, "sample from the k most likely tokens; 0 is off");
  command.add_option("--top-p", sampling.top_p,
                     "sample from the most likely tokens with this total probability; 0 is greedy");
  command.add_option("--min-p", sampling.min_p, "drop tokens below this fraction of the largest probability");
  command.add_option("--repetition-penalty", sampling.repetition_penalty,
                     "divides the logits of prompt and output tokens");
  command.add_option("--presence-penalty", sampling.presence_penalty, "subtracted from the logits of generated tokens");
  command.add_option("--frequency-penalty", sampling.frequency_penalty, "subtracted for each occurrence in the output");
  command.add_option("--logit-bias", logit_bias, "TOKEN:VALUE added to a token's logit (may be given several times)")
      ->allow_extra_args(false);
  command.add_option("--seed", sampling.seed, "same seed, same completion; completion i of --count uses seed + i");
}

}  // namespace octet
