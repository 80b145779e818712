// Members of a request's JSON, read by name and type: what does not fit is an error that names the field.
#pragma once

#include <cstdint>
#include <exception>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace octet::serve {

// What a client did wrong, or the server cannot do; becomes a reply of this status.
class ApiError : public std::exception {
 public:
  // Of a long message, which may hold what the client has sent, the middle is left out.
  explicit ApiError(std::string message, std::string field = {}, int status = 400, std::string code = {});
  const char* what() const noexcept override { return message_.c_str(); }
  const std::string& field() const { return field_; }
  const std::string& code() const { return code_; }
  int status() const { return status_; }
  // The reply's X-Request-Id, where the server has set it.
  const std::string& request_id() const { return request_id_; }
  void set_request_id(std::string id) { request_id_ = std::move(id); }

 private:
  std::string message_, field_, code_, request_id_;
  int status_;
};
// {"error": {"message", "type", "param", "code"}}, as OpenAI's clients read it.
std::string error_body(const ApiError& error);

// Parses a body; ApiError for what is no JSON object, is nested deeper than 64 levels or names a key twice.
nlohmann::ordered_json parse_body(std::string_view body);

class Fields {
 public:
  // `path`: of the object in its request, "stream_options."; empty: the request itself.
  explicit Fields(const nlohmann::ordered_json& object, std::string path = {});

  // The member; nullptr: it is not there or null. Naming a member is what makes it a known one.
  const nlohmann::ordered_json* find(const char* key);
  std::optional<std::string> text(const char* key);
  std::optional<bool> flag(const char* key);
  std::optional<int64_t> integer(const char* key, int64_t min, int64_t max);
  std::optional<double> number(const char* key, double min, double max);
  // A string or an array of at most `most` strings.
  std::vector<std::string> texts(const char* key, size_t most);
  std::vector<int64_t> integers(const char* key, int64_t min, int64_t max, size_t most);
  // A member that is not served: an error when it is there, and not null, false or `harmless`.
  void refuse(const char* key, const char* why, const char* harmless = "");
  // A member that is known and changes nothing.
  void ignore(const char* key) { find(key); }

  [[noreturn]] void fail(const char* key, const std::string& message) const;
  // The member's name in the request, "stream_options.include_usage".
  std::string name_of(const char* key) const { return path_ + key; }
  // Members that nobody has named.
  std::vector<std::string> unknown() const;

 private:
  const nlohmann::ordered_json& object_;
  const std::string path_;
  std::set<std::string, std::less<>> known_;
};

}  // namespace octet::serve
