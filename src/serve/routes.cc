#include "serve/api_request.h"
#include "serve/chat.h"
#include "serve/completions.h"
#include "serve/info.h"
#include "serve/messages.h"
#include "serve/responses.h"

namespace octet::serve {

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
      {.path = "/v1/messages", .prepare = prepare_message, .error = message_error_body},
      {.path = "/v1/messages/count_tokens", .answer = count_message_tokens, .error = message_error_body},
      {.path = "/v1/responses", .prepare = prepare_response},
      {.method = "GET", .path = "/v1/responses/{id}", .answer = show_response},
      {.method = "DELETE", .path = "/v1/responses/{id}", .answer = delete_response},
  };
  return kRoutes;
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
