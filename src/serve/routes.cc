#include <algorithm>
#include <charconv>

#include "serve/adapters.h"
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

// A part of a path: "%2F" is a slash of it.
std::string decoded(std::string_view text) {
  std::string bytes;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned byte = 0;
    const char* digits = text.data() + i + 1;
    const bool coded =
        text[i] == '%' && i + 2 < text.size() && std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2;
    bytes += coded ? static_cast<char>(byte) : text[i];
    i += coded ? 2 : 0;
  }
  return bytes;
}

}  // namespace

const std::vector<Route>& routes() {
  static const std::vector<Route> kRoutes = {
      {.method = "GET", .path = "/v1/models", .answer = list_models},
      {.method = "GET", .path = "/v1/models/{model}", .answer = show_model},
      {.path = "/v1/load_lora_adapter", .answer = load_lora_adapter},
      {.path = "/v1/unload_lora_adapter", .answer = unload_lora_adapter},
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

bool fits(const Route& route, std::string_view path, const std::vector<std::string>& models,
          std::vector<std::string>& parts) {
  parts.clear();
  const auto end_of = [](std::string_view rest, size_t from) { return std::min(rest.find('/', from), rest.size()); };
  for (std::string_view want = route.path; !want.empty() || !path.empty();) {
    if (want.empty() || path.empty()) return false;
    const std::string_view one = want.substr(0, end_of(want, 1));
    want.remove_prefix(one.size());
    size_t end = end_of(path, 1);
    if (one.starts_with("/{") && end > 1) {
      for (size_t at = end; one == "/{model}" && at < path.size();) {
        at = end_of(path, at + 1);
        if (std::ranges::find(models, decoded(path.substr(1, at - 1))) != models.end()) end = at;
      }
      parts.push_back(decoded(path.substr(1, end - 1)));
    } else if (one != path.substr(0, end)) {
      return false;
    }
    path.remove_prefix(end);
  }
  return true;
}

}  // namespace octet::serve
