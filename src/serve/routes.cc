#include "serve/api_request.h"
#include "serve/chat.h"
#include "serve/completions.h"
#include "serve/encoding.h"
#include "serve/info.h"
#include "serve/kserve.h"
#include "serve/messages.h"
#include "serve/responses.h"

namespace octet::serve {
namespace {

std::vector<Route> kserve_routes() {
  std::vector<Route> list = {
      {.method = "GET", .path = "/v2", .answer = show_kserve_server},
      {.method = "GET", .path = "/v2/models/{model}", .answer = show_kserve_model},
      {.method = "GET", .path = "/v2/models/{model}/versions/{version}", .answer = show_kserve_model},
      {.method = "GET", .path = "/v2/models/{model}/config", .answer = show_kserve_config},
      {.method = "GET", .path = "/v2/models/{model}/versions/{version}/config", .answer = show_kserve_config},
      {.path = "/v2/models/{model}/infer", .prepare = prepare_kserve_infer},
      {.path = "/v2/models/{model}/versions/{version}/infer", .prepare = prepare_kserve_infer},
      {.path = "/v2/models/{model}/generate", .prepare = prepare_kserve_generate},
      {.path = "/v2/models/{model}/versions/{version}/generate", .prepare = prepare_kserve_generate},
      {.path = "/v2/models/{model}/generate_stream", .prepare = prepare_kserve_stream},
      {.path = "/v2/models/{model}/versions/{version}/generate_stream", .prepare = prepare_kserve_stream},
  };
  for (Route& route : list) {
    route.json = false;  // bodies may hold binary tensors
    route.error = kserve_error, route.operation = "text_completion";
  }
  return list;
}

std::vector<Route> joined(std::vector<Route> list, const std::vector<Route>& more) {
  list.insert(list.end(), more.begin(), more.end());
  return list;
}

}  // namespace

const std::vector<Route>& routes() {
  static const std::vector<Route> kRoutes = {
      {.method = "GET", .path = "/v1/models", .answer = list_models},
      {.method = "GET", .path = "/v1/models/{model}", .answer = show_model},
      {.method = "GET", .path = "/server_info", .answer = server_info},
      {.path = "/tokenize", .answer = tokenize},
      {.path = "/detokenize", .answer = detokenize},
      {.path = "/v1/completions", .prepare = prepare_completion, .operation = "text_completion"},
      {.path = "/v1/chat/completions", .prepare = prepare_chat},
      {.path = "/v1/chat/completions/render", .answer = render_chat},
      {.path = "/v1/embeddings", .prepare = prepare_embeddings, .encodes = true, .operation = "embeddings"},
      {.path = "/v1/rerank", .prepare = prepare_rerank, .encodes = true, .operation = "rerank"},
      {.path = "/rerank", .prepare = prepare_rerank, .encodes = true, .operation = "rerank"},
      {.path = "/v1/score", .prepare = prepare_score, .encodes = true, .operation = "score"},
      {.path = "/score", .prepare = prepare_score, .encodes = true, .operation = "score"},
      {.path = "/v1/messages", .prepare = prepare_message, .error = message_error_body},
      {.path = "/v1/messages/count_tokens", .answer = count_message_tokens, .error = message_error_body},
      {.path = "/v1/responses", .prepare = prepare_response},
      {.method = "GET", .path = "/v1/responses/{id}", .answer = show_response},
      {.method = "DELETE", .path = "/v1/responses/{id}", .answer = delete_response},
  };
  static const std::vector<Route> kAll = joined(kRoutes, kserve_routes());
  return kAll;
}

std::string error_at(std::string_view path, const ApiError& error) {
  if (path == "/v2" || path.starts_with("/v2/")) return kserve_error(error);
  return path.starts_with("/v1/messages") ? message_error_body(error) : error_body(error);
}

bool fits(const Route& route, std::string_view path, std::vector<std::string>& parts) {
  parts.clear();
  const auto next = [](std::string_view& rest) {
    const size_t end = std::min(rest.find('/', 1), rest.size());
    const std::string_view part = rest.substr(0, end);
    rest.remove_prefix(end);
    return part;
  };
  std::string_view want = route.path;
  while (!want.empty() && !path.empty()) {
    const std::string_view one = next(want), given = next(path);
    if (one.starts_with("/{") && given.size() > 1) {
      parts.emplace_back(given.substr(1));
    } else if (one != given) {
      return false;
    }
  }
  return want.empty() && path.empty();
}

}  // namespace octet::serve
