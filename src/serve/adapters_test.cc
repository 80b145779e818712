// Adapters over HTTP: names of the model, vLLM's routes, keys, the metric.
#include "serve/adapters.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/testing/test_data.h"
#include "infer/testing/adapters.h"
#include "serve/keys.h"
#include "serve/testing/tiny_server.h"

namespace octet::serve {
namespace {

using nlohmann::json;

ModelConfig base_config() {
  ModelConfig model = model_family("llama");
  model.vocab_size = 61, model.max_positions = 64, model.hidden = 32, model.layers = 2, model.heads = 4;
  model.kv_heads = 2, model.intermediate = 64;
  return model;
}

// A server whose model is fake: which adapter a request has is seen by its name alone.
class Adapters : public testing::Test {
 protected:
  Adapters() {
    for (const char* name : {"first", "second"})
      write_adapter_folder(root() + "/" + name, random_adapter(base_config(), {{"attn.q"}, {"attn.v"}}, 4, 2, name[0]));
    std::filesystem::create_directory_symlink("/", root() + "/outside");
    write_file(folder_.file("keys.jsonl"), with(key_line("admin", admin_), R"(, "admin": true)") +
                                               with(key_line("bound", bound_), R"(, "models": ["first"])") +
                                               with(key_line("user", user_), ""));
    FakeOptions fake{.limits = fake_limits(256, 4, 256)};
    fake.limits.adapters = tables_of(base_config(), 1, 8);
    fake.limits.vocab = TinyModel::kEnd + 1;
    auto runner = std::make_unique<FakeRunner>(fake);
    auto store = std::make_unique<AdapterStore>(runner->limits().adapters, nullptr, base_config());
    engine_ = std::make_unique<EngineLoop>(EngineParts{.runner = std::move(runner),
                                                       .tokenizer = TinyModel::make_characters(),
                                                       .eos_ids = {TinyModel::kEnd},
                                                       .adapters = std::move(store)},
                                           EngineOptions{});
    tokenizer_ = TinyModel::make_characters();
    model_.engine = engine_.get(), model_.tokenizer = tokenizer_.get(), model_.names = {"tiny"};
    model_.trie = make_token_trie(*tokenizer_);
    model_.adapter_root = root();
    ServerOptions options{.keys = folder_.file("keys.jsonl")};
    options.http.port = 0;
    server_ = std::make_unique<Server>(model_, options);
  }

  std::string root() const { return folder_.file("root"); }
  static std::string with(std::string line, const std::string& more) {
    return line.insert(line.rfind('}'), more) + "\n";
  }
  Answer ask(const std::string& path, const json& body, const std::string& key) const {
    return serve::ask(server_->port(), body.is_null() ? "GET" : "POST", path, body.is_null() ? "" : body.dump(),
                      "Authorization: Bearer " + key + "\r\n");
  }
  Answer complete(const std::string& name, const std::string& key) const {
    return ask("/v1/completions", {{"model", name}, {"prompt", "ab"}, {"max_tokens", 3}}, key);
  }
  Answer load(const std::string& name, const std::string& path, const std::string& key, bool in_place = false) const {
    return ask("/v1/load_lora_adapter", {{"lora_name", name}, {"lora_path", path}, {"load_inplace", in_place}}, key);
  }

  TempFolder folder_;
  const std::string admin_ = make_key(), bound_ = make_key(), user_ = make_key();
  std::unique_ptr<EngineLoop> engine_;
  std::unique_ptr<Tokenizer> tokenizer_;
  ApiModel model_;
  std::unique_ptr<Server> server_;
};

TEST_F(Adapters, AreLoadedNamedListedAndUnloaded) {
  EXPECT_EQ(complete("first", user_).status, 404);
  const Answer loaded = load("first", "first", admin_);
  EXPECT_EQ(loaded.status, 200) << loaded.body;
  EXPECT_NE(loaded.body.find("Success: LoRA adapter 'first' added successfully."), std::string::npos) << loaded.body;
  EXPECT_EQ(load("second", root() + "/second", admin_).status, 200) << "a whole path below the root";
  const Answer text = complete("first", user_);
  EXPECT_EQ(text.status, 200) << text.body;
  EXPECT_EQ(json::parse(text.body).at("model"), "first");
  EXPECT_EQ(json::parse(complete("tiny", user_).body).at("model"), "tiny");
  const json models = json::parse(ask("/v1/models", nullptr, user_).body).at("data");
  ASSERT_EQ(models.size(), 3u);
  EXPECT_EQ(models[1].at("id"), "first");
  EXPECT_EQ(models[1].at("parent"), "tiny");
  EXPECT_TRUE(models[1].at("root").get<std::string>().ends_with("root/first"));
  EXPECT_EQ(json::parse(ask("/v1/models/second", nullptr, user_).body).at("parent"), "tiny");
  EXPECT_EQ(load("first", "second", admin_).status, 400) << "the name is taken";
  EXPECT_EQ(load("first", "second", admin_, true).status, 200);
  EXPECT_EQ(load("first", "nowhere", admin_, true).status, 400);
  EXPECT_EQ(complete("first", user_).status, 200) << "a folder that is not there leaves the old one";
  EXPECT_EQ(load("tiny", "first", admin_).status, 400) << "the model's own name";
  EXPECT_EQ(ask("/v1/unload_lora_adapter", {{"lora_name", "first"}}, admin_).status, 200);
  EXPECT_EQ(ask("/v1/unload_lora_adapter", {{"lora_name", "first"}}, admin_).status, 404);
  const Answer gone = complete("first", user_);
  EXPECT_EQ(gone.status, 404);
  EXPECT_NE(gone.body.find("want tiny, second"), std::string::npos) << gone.body;
}

TEST_F(Adapters, OnlyAdminsLoadAndOnlyBelowTheRoot) {
  for (const std::string& key : {bound_, user_}) EXPECT_EQ(load("first", "first", key).status, 403);
  EXPECT_EQ(ask("/v1/unload_lora_adapter", {{"lora_name", "first"}}, user_).status, 403);
  for (const char* path : {"..", "../root", "/etc", "outside/etc", ".", "", "first/../.."})
    EXPECT_EQ(load("x", path, admin_).status, 400) << path;
  for (const char* name : {"", "a b", "a,b", "a\"b", "a\nb"})
    EXPECT_EQ(load(name, "first", admin_).status, 400) << name;
  EXPECT_TRUE(engine_->adapters().empty());
  model_.adapter_root.clear();
  EXPECT_EQ(load("first", "first", admin_).status, 404) << "without --adapter-root";
}

TEST_F(Adapters, AKeyMayBeBoundToSome) {
  ASSERT_EQ(load("first", "first", admin_).status, 200);
  ASSERT_EQ(load("second", "second", admin_).status, 200);
  EXPECT_EQ(complete("first", bound_).status, 200);
  for (const char* name : {"second", "tiny"}) {
    const Answer refused = complete(name, bound_);
    EXPECT_EQ(refused.status, 403) << name;
    EXPECT_NE(refused.body.find("model_not_allowed"), std::string::npos) << refused.body;
  }
  EXPECT_EQ(ask("/v1/completions", {{"prompt", "ab"}}, bound_).status, 403) << "no name is the model's own";
  const json models = json::parse(ask("/v1/models", nullptr, bound_).body).at("data");
  ASSERT_EQ(models.size(), 1u);
  EXPECT_EQ(models[0].at("id"), "first");
}

TEST_F(Adapters, TheMetricNamesWhatRuns) {
  const std::string text = ask("/metrics", nullptr, user_).body;
  EXPECT_NE(text.find(R"(octet_lora_requests_info{max_lora="1",running_lora_adapters="",waiting_lora_adapters=""} )"),
            std::string::npos)
      << text;
  const TinyServer plain;
  EXPECT_EQ(plain.ask("GET", "/metrics").body.find("lora_requests_info"), std::string::npos);
  EXPECT_EQ(plain.ask("POST", "/v1/load_lora_adapter", R"({"lora_name": "a", "lora_path": "b"})").status, 404);
}

}  // namespace
}  // namespace octet::serve
