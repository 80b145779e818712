// A request of a client as the wire forms see it, and what they make of it.
#pragma once

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "serve/fields.h"
#include "serve/front.h"
#include "serve/http.h"

namespace octet::serve {

struct ApiModel;

struct ApiRequest {
  std::string id;  // the reply's X-Request-Id
  std::string path;
  std::vector<std::string> parts;  // what stands for the parts in braces of the route's path
  HttpFields fields;
  std::string body;
  std::string key;                       // name of the API key; empty: none is asked for
  bool admin = false;                    // of that key,
  std::vector<std::string> models = {};  // and the models that it may name; empty: all
  bool may_use(const std::string& name) const {
    return models.empty() || std::ranges::find(models, name) != models.end();
  }
  std::shared_ptr<RequestRecord> record;  // may be none
  // The body's object, its members in the client's order, in which templates print them; null where the route reads
  // none, or another form than JSON.
  nlohmann::ordered_json json;
};

// A request that is ready for the front, and what it costs.
struct Prepared {
  std::shared_ptr<Job> job;
  int64_t prompt_tokens = 0;
  std::vector<std::string> unknown;  // fields that were ignored
};

// A path and what answers it, in a reader's thread: `answer` at once by a JSON text, or `prepare` by a job of the
// engine that answers `reply`. Both throw ApiError.
struct Route {
  const char* method = "POST";
  const char* path = nullptr;  // "{name}" stands for one part
  std::string (*answer)(const ApiRequest& request, const ApiModel& model) = nullptr;
  Prepared (*prepare)(const ApiRequest& request, const ApiModel& model, HttpReply reply) = nullptr;
  bool encodes = false;            // jobs are for an engine of whole texts, else for one that generates
  const char* operation = "chat";  // of jobs: gen_ai.operation.name of their traces
  bool json = true;                // a POST's body is a JSON object
  std::string (*error)(const ApiError&) = error_body;  // how the wire form writes errors
};

// The routes of all wire forms.
const std::vector<Route>& routes();
// What a request to this path is told where no route took it, in the path's wire form.
std::string error_at(std::string_view path, const ApiError& error);
// Whether the path is the route's; fills what its parts in braces are. {model} may be one of `models` with slashes, as
// they are or as %2F.
bool fits(const Route& route, std::string_view path, const std::vector<std::string>& models,
          std::vector<std::string>& parts);

}  // namespace octet::serve
