// For tests: the server over the engine on the fake runner.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "infer/testing/engine_test.h"
#include "serve/server.h"
#include "serve/testing/answer.h"

namespace octet::serve {

struct TinyServer {
  explicit TinyServer(const ServerOptions& options = {}, FakeOptions fake = {.limits = fake_limits()})
      : engine(test_engine(std::move(fake))), tokenizer(test_tokenizer()) {
    model.engine = engine.get(), model.tokenizer = tokenizer.get(), model.names = {"tiny"};
    model.max_texts = 16;
    ServerOptions any_port = options;
    any_port.http.port = 0;
    server = std::make_unique<Server>(model, any_port);
  }
  Answer ask(const std::string& method, const std::string& path, const std::string& body = {},
             const std::string& fields = {}) const {
    return serve::ask(server->port(), method, path, body, fields);
  }
  Answer complete(const nlohmann::json& body, const std::string& fields = {}) const {
    return ask("POST", "/v1/completions", body.dump(), fields);
  }

  std::unique_ptr<EngineLoop> engine;
  std::unique_ptr<Tokenizer> tokenizer;
  ApiModel model;
  std::unique_ptr<Server> server;
};

}  // namespace octet::serve
