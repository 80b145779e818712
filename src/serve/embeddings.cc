// /v1/embeddings, as OpenAI's clients ask for it.
#include <fmt/ranges.h>
#include <openssl/evp.h>

#include "io/sequence_template.h"
#include "serve/encoding.h"
#include "serve/encoding_job.h"

namespace octet::serve {
namespace {

// Little-endian float32.
std::string base64(const std::vector<float>& values) {
  static_assert(std::endian::native == std::endian::little);
  const int bytes = static_cast<int>(values.size() * sizeof(float));
  std::string text(static_cast<size_t>((bytes + 2) / 3 * 4 + 1), '\0');
  const int length = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                                     reinterpret_cast<const unsigned char*>(values.data()), bytes);
  text.resize(static_cast<size_t>(length));
  return text;
}

class Embeddings final : public EncodingJob {
 public:
  Embeddings(const ApiModel& model, bool as_base64, HttpReply reply)
      : EncodingJob(model, "embd-", std::move(reply)), base64_(as_base64) {}

 private:
  // Numbers are written as the shortest text of a float32; the JSON library would write those of a double.
  std::string whole(const Usage& usage) override {
    std::string data;
    for (size_t i = 0; i < values_.size(); ++i) {
      const std::string value =
          base64_ ? '"' + base64(values_[i]) + '"' : fmt::format("[{}]", fmt::join(values_[i], ","));
      data += fmt::format("{}{{\"object\":\"embedding\",\"index\":{},\"embedding\":{}}}", i > 0 ? "," : "", i, value);
    }
    const std::string rest =
        dump({{"model", model_.names[0]}, {"id", reply_id}, {"created", created_}, {"usage", usage_of(usage)}});
    return fmt::format("{{\"object\":\"list\",\"data\":[{}],{}", data, rest.substr(1));
  }

  const bool base64_;
};

// In front of texts: the prompt of the folder that prompt_name names, else its default one.
std::string read_prompt(Fields& fields, const EncoderFacts& facts) {
  const std::optional<std::string> name = fields.text("prompt_name");
  const auto found = facts.prompts.find(name.value_or(facts.default_prompt));
  if (name && found == facts.prompts.end()) {
    std::vector<std::string> known;
    for (const auto& [one, text] : facts.prompts) known.push_back(one);
    fields.fail("prompt_name", fmt::format("the model has no prompt '{}' (it has: {})", *name, fmt::join(known, ", ")));
  }
  return found != facts.prompts.end() ? found->second : "";
}

}  // namespace

Prepared prepare_embeddings(const ApiRequest& request, const ApiModel& model, HttpReply reply) {
  const EncoderFacts& facts = *model.engine->encoder();
  if (facts.classifies)
    throw ApiError(
        fmt::format("'{}' is a classifier and has no embeddings: use /v1/score or /v1/rerank", model.names[0]));
  Fields fields(request.json);
  const InputReader reader(fields, model);
  const std::string format = fields.text("encoding_format").value_or("float");
  if (format != "float" && format != "base64") fields.fail("encoding_format", "want float or base64");
  const int64_t dimensions = fields.integer("dimensions", 1, facts.width).value_or(0);
  const std::string before = read_prompt(fields, facts);
  const int64_t left_out = facts.include_prompt ? 0 : prompt_tokens(*model.tokenizer, before);
  const nlohmann::ordered_json* input = fields.find("input");
  std::vector<GenerationRequest> prompts;
  const auto add = [&](const nlohmann::ordered_json& one) {
    if (!one.is_string() && !one.is_array()) fields.fail("input", "want a string, token ids, or a list of either");
    prompts.push_back(one.is_string()
                          ? reader.text(one.get<std::string>().empty() ? "" : before + one.get<std::string>())
                          : reader.ids(one));
    prompts.back().dimensions = dimensions;
    if (one.is_string()) prompts.back().left_out = left_out;
    prompts.back().normalize = fields.flag("normalize");
  };
  if (input == nullptr || (input->is_array() && input->empty()))
    fields.fail("input", "want a string, token ids, or a list of either");
  const bool several = input->is_array() && !input->front().is_number();
  if (several && input->size() > kMaxInputs) fields.fail("input", fmt::format("want at most {} inputs", kMaxInputs));
  if (several) {
    for (const nlohmann::ordered_json& one : *input) add(one);
  } else {
    add(*input);
  }
  return prepared_job(std::make_shared<Embeddings>(model, format == "base64", std::move(reply)), std::move(prompts),
                      fields);
}

}  // namespace octet::serve
