#include "serve/kserve.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "base/json.h"
#include "serve/guided.h"
#include "serve/kserve_tensors.h"
#include "serve/reply_job.h"
#include "serve/token_rules.h"

namespace octet::serve {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kVersion = "1";

struct InputSpec {
  const char* name;
  const char* datatype;
  const char* field;  // of completions, which says the same
  bool list = false;  // of any length; else one value
};

constexpr InputSpec kInputs[] = {
    {"text_input", "BYTES", "text_input"},
    {"input_ids", "INT32", "input_ids", true},
    {"input_lengths", "INT32", "input_lengths"},
    {"max_tokens", "INT32", "max_tokens"},
    {"request_output_len", "INT32", "max_tokens"},
    {"min_tokens", "INT32", "min_tokens"},
    {"min_length", "INT32", "min_tokens"},
    {"stop_words", "BYTES", "stop", true},
    {"bad_words", "BYTES", "bad_words", true},
    {"end_id", "INT32", "end_id"},
    {"pad_id", "INT32", "pad_id"},
    {"temperature", "FP32", "temperature"},
    {"top_k", "INT32", "top_k"},
    {"runtime_top_k", "INT32", "top_k"},
    {"top_p", "FP32", "top_p"},
    {"runtime_top_p", "FP32", "top_p"},
    {"min_p", "FP32", "min_p"},
    {"repetition_penalty", "FP32", "repetition_penalty"},
    {"presence_penalty", "FP32", "presence_penalty"},
    {"frequency_penalty", "FP32", "frequency_penalty"},
    {"seed", "UINT64", "seed"},
    {"random_seed", "UINT64", "seed"},
    {"beam_width", "INT32", "n"},
    {"num_return_sequences", "INT32", "n"},
    {"stream", "BOOL", "stream"},
    {"streaming", "BOOL", "stream"},
    {"exclude_input_in_output", "BOOL", "exclude_input_in_output"},
    {"return_log_probs", "BOOL", "return_log_probs"},
    {"return_context_logits", "BOOL", "return_context_logits"},
    {"return_generation_logits", "BOOL", "return_generation_logits"},
    {"sampling_parameters", "BYTES", "sampling_parameters"},
};

constexpr InputSpec kOutputs[] = {{"text_output", "BYTES", ""}, {"output_ids", "INT32", "", true}};

const InputSpec* find_input(std::string_view name) {
  const auto* found = std::ranges::find(kInputs, name, &InputSpec::name);
  return found != std::end(kInputs) ? found : nullptr;
}

void check_model(const std::vector<std::string>& parts, const ApiModel& model) {
  model.check_name(parts.at(0));
  if (parts.size() > 1 && parts[1] != kVersion)
    throw ApiError(fmt::format("the model '{}' has no version '{}' (want {})", parts[0], parts[1], kVersion), "version",
                   404);
}

const std::string& shown_name(const std::vector<std::string>& parts, const ApiModel& model) {
  return model.is_adapter(parts[0]) ? parts[0] : model.names[0];
}

// --- requests

struct RequestedOutput {
  std::string name;
  bool binary = false;
};

struct ReplySpec {
  std::string id;
  std::vector<RequestedOutput> outputs = {};  // none: the reply is an object of /generate
};

// A request of /infer or /generate as members that completions have too.
struct Asked {
  ReplySpec reply;
  Json fields = Json::object();
};

void put(Asked& asked, const std::string& name, const Json& value) {
  const InputSpec* spec = find_input(name);
  const std::string field = spec != nullptr ? spec->field : name;
  if (!asked.fields.emplace(field, Json(value)).second)
    throw ApiError(fmt::format("{} is given twice{}", name, field != name ? ", once as another name of " + field : ""),
                   name);
}

void put_all(Asked& asked, const Json& object, const std::string& where) {
  if (!object.is_object()) throw ApiError(where + " is not an object", where);
  for (const auto& [name, value] : object.items()) put(asked, name, value);
}

char family(std::string_view datatype) {  // of texts, booleans, fractions, whole numbers
  return datatype == "BYTES" ? 's' : datatype == "BOOL" ? 'b' : datatype.starts_with("FP") ? 'f' : 'i';
}

void put_tensor(Asked& asked, Tensor tensor) {
  const std::string where = "inputs." + tensor.name;
  const InputSpec* spec = find_input(tensor.name);
  if (spec == nullptr)
    throw ApiError(fmt::format("{} is not an input of this model (its metadata lists them)", where), where);
  if (family(tensor.datatype) != family(spec->datatype))
    throw ApiError(fmt::format("{} has the datatype {} (want {})", where, tensor.datatype, spec->datatype), where);
  const bool row = tensor.shape.size() == 1 || (tensor.shape.size() == 2 && tensor.shape[0] == 1);
  if (!row || (!spec->list && tensor.values.size() != 1))
    throw ApiError(fmt::format("{} has the shape {} (want [{}], or [1] followed by it)", where,
                               Json(tensor.shape).dump(), spec->list ? "any" : "1"),
                   where);
  put(asked, tensor.name, spec->list ? std::move(tensor.values) : tensor.values[0]);
}

std::vector<RequestedOutput> read_outputs(const Json* outputs, bool binary) {
  if (outputs == nullptr || outputs->empty()) return {{kOutputs[0].name, binary}};
  if (!outputs->is_array()) throw ApiError("outputs is not a list", "outputs");
  std::vector<RequestedOutput> list;
  for (const Json& output : *outputs) {
    Fields fields(output, "outputs.");
    RequestedOutput one{fields.text("name").value_or(""), binary};
    if (std::ranges::find(kOutputs, std::string_view(one.name), &InputSpec::name) == std::end(kOutputs))
      fields.fail("name", "want text_output or output_ids");
    if (std::ranges::find(list, one.name, &RequestedOutput::name) != list.end()) fields.fail("name", "is named twice");
    if (const Json* parameters = fields.find("parameters")) {
      Fields inner(*parameters, "outputs.parameters.");
      one.binary = inner.flag("binary_data").value_or(binary);
      inner.refuse("classification", "classification is not supported");
      inner.refuse("shared_memory_region", "shared memory is not supported");
    }
    list.push_back(std::move(one));
  }
  return list;
}

Asked read_infer(const ApiRequest& request) {
  const auto [json, bytes] = split_body(request.body, find_field(request.fields, "Inference-Header-Content-Length"));
  Fields fields(json);
  Asked asked{.reply = {.id = fields.text("id").value_or("")}};
  bool binary = false;
  if (const Json* parameters = fields.find("parameters")) {
    Fields inner(*parameters, "parameters.");
    binary = inner.flag("binary_data_output").value_or(false);
    put_all(asked, *parameters, "parameters");
    asked.fields.erase("binary_data_output");
  }
  const Json* inputs = fields.find("inputs");
  if (inputs == nullptr) fields.fail("inputs", "want a list of tensors");
  for (Tensor& tensor : read_tensors(*inputs, bytes)) put_tensor(asked, std::move(tensor));
  asked.reply.outputs = read_outputs(fields.find("outputs"), binary);
  return asked;
}

Asked read_generate(const ApiRequest& request) {
  Json json = parse_body(request.body);
  Fields fields(json);
  Asked asked{.reply = {.id = fields.text("id").value_or("")}};
  if (const Json* parameters = fields.find("parameters")) put_all(asked, *parameters, "parameters");
  json.erase("id"), json.erase("parameters");
  put_all(asked, json, "the body");
  return asked;
}

// --- replies

class KserveJob final : public ReplyJob {
 public:
  KserveJob(const ApiModel& model, bool stream, HttpReply reply, ReplySpec spec, std::string echo)
      : ReplyJob(model, stream, std::move(reply)), spec_(std::move(spec)), text_(std::move(echo)) {}

 private:
  void on_news(size_t, const GenerationEvent& event) override {
    text_ += event.text;
    ids_.insert(ids_.end(), event.ids.begin(), event.ids.end());
    if (!stream_ || text_.empty()) return;
    write(sse(generated()));
    text_.clear();
  }

  Json head() const {
    Json json = Json::object();
    if (!spec_.id.empty()) json["id"] = spec_.id;
    json["model_name"] = model_name(), json["model_version"] = kVersion;
    return json;
  }
  Json generated() const {
    Json json = head();
    json["text_output"] = text_;
    return json;
  }

  std::string whole(const Usage&) override {
    if (spec_.outputs.empty()) return dump(generated());
    Json json = head(), outputs = Json::array();
    std::string bytes;
    for (const RequestedOutput& output : spec_.outputs) {
      Tensor tensor{.name = output.name, .datatype = "BYTES", .shape = {1}, .values = Json::array({text_})};
      if (output.name == "output_ids") tensor = {output.name, "INT32", {static_cast<int64_t>(ids_.size())}, Json(ids_)};
      write_tensor(tensor, output.binary, outputs, bytes);
    }
    json["outputs"] = std::move(outputs);
    const std::string text = dump(json);
    if (binary()) add_field("Inference-Header-Content-Length", std::to_string(text.size()));
    return text + bytes;
  }
  bool binary() const { return std::ranges::any_of(spec_.outputs, &RequestedOutput::binary); }
  const char* content_type() const override { return binary() ? "application/octet-stream" : "application/json"; }
  std::string last_events(const Usage&) override { return {}; }
  std::string error(const ApiError& error) const override { return kserve_error(error); }
  std::string error_events(const ApiError& error) const override { return "data: " + kserve_error(error) + "\n\n"; }

  const ReplySpec spec_;
  std::string text_;  // not yet sent
  std::vector<int32_t> ids_;
};

// The prompt's ids; its text too where the output begins with it.
std::vector<int32_t> read_prompt(Fields& fields, const ApiModel& model, std::string& echo) {
  const std::optional<std::string> text = fields.text("text_input");
  std::vector<int32_t> ids;
  for (int64_t id : fields.integers("input_ids", 0, model.engine->vocab_size() - 1, 1'000'000))
    ids.push_back(static_cast<int32_t>(id));
  if (text.has_value() == (fields.find("input_ids") != nullptr))
    fields.fail("text_input", "want either text_input or input_ids");
  const int64_t kept = read_kept(fields, model);
  if (text) ids = encode_prompt(fields, *text, /*begin=*/true, model, kept);
  if (kept > 0 && std::ssize(ids) > kept) ids.erase(ids.begin(), ids.end() - kept);
  if (ids.empty()) throw ApiError("the prompt is empty (want at least one token)", "text_input");
  const auto size = static_cast<int64_t>(ids.size());
  if (fields.integer("input_lengths", 0, std::numeric_limits<int32_t>::max()).value_or(size) != size)
    fields.fail("input_lengths", fmt::format("the prompt has {} tokens", size));
  if (!fields.flag("exclude_input_in_output").value_or(true))
    echo = text ? *text : model.tokenizer->decode(ids, /*skip_special=*/true);
  return ids;
}

// What completions do not know of these requests; the rest becomes what they know.
void read_own(Fields& fields, const ApiModel& model, bool stream, GenerationRequest& request) {
  request.max_tokens = read_max_tokens(fields, 1).value_or(16);
  if (request.n != 1) fields.fail("n", "more than one completion and beam search are not supported");
  if (fields.find("stream"); !stream) fields.refuse("stream", "this route does not stream: use generate_stream");
  std::erase(request.stop, "");
  if (const auto end = fields.integer("end_id", -1, model.engine->vocab_size() - 1); end && *end >= 0)
    request.stop_ids.push_back(static_cast<int32_t>(*end));
  // Triton's: microseconds, and the lower the sooner; 0 says nothing.
  constexpr int64_t kMax = 1'000'000;
  request.timeout_seconds =
      static_cast<double>(fields.integer("timeout", 0, std::numeric_limits<int64_t>::max()).value_or(0)) / 1e6;
  request.priority = -static_cast<int32_t>(fields.integer("priority", 0, kMax).value_or(0));
  for (const char* key : {"return_log_probs", "return_context_logits", "return_generation_logits"})
    fields.refuse(key, "not supported");
  fields.refuse("sequence_id", "sequences of requests are not supported");
  for (const char* key : {"pad_id", "sequence_start", "sequence_end", "length_penalty", "early_stopping"})
    fields.ignore(key);
}

Prepared prepare(Asked asked, const ApiModel& model, const std::string& key, bool stream, HttpReply reply) {
  if (const auto given = asked.fields.find("sampling_parameters"); given != asked.fields.end()) {
    if (!given->is_string()) throw ApiError("sampling_parameters is not a string of JSON", "sampling_parameters");
    const Json parameters = parse_body(given->get<std::string>());
    asked.fields.erase(given);
    put_all(asked, parameters, "sampling_parameters");
  }
  Fields fields(asked.fields);
  GenerationRequest request;
  const TextGuide guide = read_generation(fields, model, key, request);
  read_own(fields, model, stream, request);
  set_guide(guide, model, request);
  std::string echo;
  request.prompt_ids = read_prompt(fields, model, echo);
  Prepared prepared{.prompt_tokens = static_cast<int64_t>(request.prompt_ids.size()), .unknown = fields.unknown()};
  auto job = std::make_shared<KserveJob>(model, stream, std::move(reply), std::move(asked.reply), std::move(echo));
  job->priority = request.priority;
  job->prompts.push_back(std::move(request));
  restrict_tokens(asked.fields, model, job->prompts);
  prepared.job = std::move(job);
  return prepared;
}

Json specs(std::span<const InputSpec> list, bool config) {
  Json json = Json::array();
  for (const InputSpec& spec : list) {
    const Json shape = Json::array({spec.list ? -1 : 1});
    const std::string type = spec.datatype;
    if (!config) {
      json.push_back({{"name", spec.name}, {"datatype", type}, {"shape", shape}});
    } else {
      json.push_back(
          {{"name", spec.name}, {"data_type", "TYPE_" + (type == "BYTES" ? "STRING" : type)}, {"dims", shape}});
      if (*spec.field != 0) json.back()["optional"] = true;  // an input
    }
  }
  return json;
}

}  // namespace

std::string show_kserve_server(const ApiRequest&, const ApiModel& model) {
  return dump({{"name", "octet"},
               {"version", model.version},
               {"extensions", {"model_configuration", "binary_tensor_data", "parameters", "generate"}}});
}

std::string show_kserve_model(const ApiRequest& request, const ApiModel& model) {
  check_model(request.parts, model);
  return dump({{"name", shown_name(request.parts, model)},
               {"versions", Json::array({kVersion})},
               {"platform", "octet"},
               {"inputs", specs(kInputs, /*config=*/false)},
               {"outputs", specs(kOutputs, /*config=*/false)}});
}

std::string show_kserve_config(const ApiRequest& request, const ApiModel& model) {
  check_model(request.parts, model);
  return dump({{"name", shown_name(request.parts, model)},
               {"backend", "octet"},
               {"version_policy", {{"latest", {{"num_versions", 1}}}}},
               {"max_batch_size", 0},
               {"input", specs(kInputs, /*config=*/true)},
               {"output", specs(kOutputs, /*config=*/true)},
               {"model_transaction_policy", {{"decoupled", false}}}});
}

Prepared prepare_kserve_infer(const ApiRequest& request, const ApiModel& model, HttpReply reply) {
  check_model(request.parts, model);
  return prepare(read_infer(request), model, request.key, /*stream=*/false, std::move(reply));
}

Prepared prepare_kserve_generate(const ApiRequest& request, const ApiModel& model, HttpReply reply) {
  check_model(request.parts, model);
  return prepare(read_generate(request), model, request.key, /*stream=*/false, std::move(reply));
}

Prepared prepare_kserve_stream(const ApiRequest& request, const ApiModel& model, HttpReply reply) {
  check_model(request.parts, model);
  return prepare(read_generate(request), model, request.key, /*stream=*/true, std::move(reply));
}

bool asks_model_ready(std::string_view path, const ApiModel& model) {
  for (const char* asks : {"/v2/models/{model}/ready", "/v2/models/{model}/versions/{version}/ready"}) {
    std::vector<std::string> parts;
    if (!fits({.path = asks}, path, model.names, parts)) continue;
    check_model(parts, model);
    return true;
  }
  return false;
}

std::string kserve_error(const ApiError& error) { return dump({{"error", error.what()}}); }

}  // namespace octet::serve
