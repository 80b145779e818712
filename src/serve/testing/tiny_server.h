// For tests: a server of a tiny model.
#pragma once

#include <memory>
#include <string>

#include "infer/testing/engine_test.h"
#include "serve/server.h"
#include "serve/testing/answer.h"
#include "serve/testing/tiny_model.h"

namespace octet::serve {

struct TinyServer : TinyModel {
  explicit TinyServer(ServerOptions options = {}, FakeOptions fake = {.limits = fake_limits(256, 4, 256)},
                      const EngineOptions& engine_options = {})
      : TinyModel(std::move(fake), kTemplate, engine_options) {
    model.max_texts = 16;
    options.http.port = 0;
    server = std::make_unique<Server>(model, options);
  }
  Answer ask(const std::string& method, const std::string& path, const std::string& body = {},
             const std::string& fields = {}) const {
    return serve::ask(server->port(), method, path, body, fields);
  }
  Answer complete(const nlohmann::json& body, const std::string& fields = {}) const {
    return ask("POST", "/v1/completions", body.dump(), fields);
  }

  std::unique_ptr<Server> server;
};

}  // namespace octet::serve
