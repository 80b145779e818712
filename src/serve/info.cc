#include "serve/info.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/json.h"
#include "infer/engine_settings.h"
#include "serve/chat_core.h"

namespace octet::serve {
namespace {

using Json = nlohmann::ordered_json;

Json model_json(const std::string& name, const ApiModel& model) {
  return {{"id", name},
          {"object", "model"},
          {"created", model.created},
          {"owned_by", "octet"},
          {"root", model.names[0]},
          {"parent", nullptr},
          {"max_model_len", model.engine->context()}};
}

Json adapter_json(const AdapterFacts& adapter, const ApiModel& model) {
  Json json = model_json(adapter.name, model);
  json["root"] = adapter.folder, json["parent"] = model.names[0];
  return json;
}

}  // namespace

std::string list_models(const ApiRequest& request, const ApiModel& model) {
  Json list = Json::array();
  const auto add = [&](const std::string& name, Json json) {
    if (request.may_use(name)) list.push_back(std::move(json));
  };
  for (const std::string& name : model.names) add(name, model_json(name, model));
  for (const AdapterFacts& adapter : model.engine->adapters()) add(adapter.name, adapter_json(adapter, model));
  return dump({{"object", "list"}, {"data", list}});
}

std::string show_model(const ApiRequest& request, const ApiModel& model) {
  const std::string& name = request.parts.at(0);
  model.check_name(name);
  for (const AdapterFacts& adapter : model.engine->adapters())
    if (adapter.name == name) return dump(adapter_json(adapter, model));
  return dump(model_json(name, model));
}

std::string server_info(const ApiRequest&, const ApiModel& model) {
  const EngineStats stats = model.engine->stats();
  Json json = {{"version", model.version}, {"model", model.names}, {"chat", model.chat != nullptr}};
  EngineOptions engine = model.engine->options();
  const SettingsTable settings = settings_of(engine);
  for (const SettingsTable::Row& row : settings.rows())
    json[row.name] = std::holds_alternative<uint8_t*>(row.target)  // an enum
                         ? Json(settings.get(row.name))
                         : std::visit([](const auto* field) -> Json { return *field; }, row.target);
  json.update({{"task", model.engine->encoder() != nullptr ? "embed" : "generate"},
               {"context", model.engine->context()},
               {"vocab_size", model.engine->vocab_size()},
               {"kv_blocks", stats.kv_blocks},
               {"kv_bytes", stats.kv_bytes}});
  return dump(json);
}

std::string render_chat(const ApiRequest& request, const ApiModel& model) {
  Fields fields(request.json);
  model.check_name(fields);
  const ChatPrompt prompt = render(read_chat_input(fields, model), model, kMaxTokens);
  return dump({{"prompt", prompt.text}, {"token_ids", prompt.ids}});
}

std::string tokenize(const ApiRequest& request, const ApiModel& model) {
  Fields fields(request.json);
  model.check_name(fields);
  std::vector<int32_t> ids;
  if (fields.find("messages") != nullptr) {
    ids = render(read_chat_input(fields, model), model, kMaxTokens).ids;
  } else {
    const std::optional<std::string> prompt = fields.text("prompt");
    if (!prompt) fields.fail("prompt", "want a string, or messages");
    const bool special = fields.flag("add_special_tokens").value_or(true);
    ids = encode_prompt(fields, *prompt, special, model, 0, kMaxTokens);
  }
  if (std::ssize(ids) > kMaxTokens) fields.fail("prompt", fmt::format("want at most {} tokens", kMaxTokens));
  Json json = {{"count", ids.size()}, {"max_model_len", model.engine->context()}, {"tokens", ids}};
  if (fields.flag("return_token_strs").value_or(false)) {
    json["token_strs"] = Json::array();
    for (int32_t id : ids) json["token_strs"].push_back(token_text(*model.tokenizer, id));
  }
  return dump(json);
}

std::string detokenize(const ApiRequest& request, const ApiModel& model) {
  Fields fields(request.json);
  model.check_name(fields);
  std::vector<int32_t> ids;
  for (int64_t id : fields.integers("tokens", 0, model.tokenizer->vocab_size() - 1, kMaxTokens))
    ids.push_back(static_cast<int32_t>(id));
  if (fields.find("tokens") == nullptr) fields.fail("tokens", "want token ids");
  return dump({{"prompt", model.tokenizer->decode(ids)}});
}

}  // namespace octet::serve
