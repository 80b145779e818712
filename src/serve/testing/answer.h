// For tests: a request to a server, and what it answers.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "serve/testing/eventually.h"
#include "serve/testing/peer.h"

namespace octet::serve {

struct Answer {
  int status = 0;
  std::string head, body;
  nlohmann::json json() const { return nlohmann::json::parse(body); }
};

// The body of chunks put together.
inline std::string joined(const std::string& body) {
  std::string text;
  for (size_t at = 0; at < body.size();) {
    const size_t line = body.find("\r\n", at), size = std::stoul(body.substr(at, line - at), nullptr, 16);
    text += body.substr(line + 2, size);
    at = line + 2 + size + 2;
    if (size == 0) break;
  }
  return text;
}

inline Answer ask(int port, const std::string& method, const std::string& path, const std::string& body = {},
                  const std::string& fields = {}) {
  const std::string text = Peer(port)
                               .send(method + " " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" +
                                     fields + "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body)
                               .read();
  Answer answer;
  const size_t end = text.find("\r\n\r\n");
  if (end == std::string::npos) return answer;
  answer.status = std::stoi(text.substr(9, 3));
  answer.head = text.substr(0, end), answer.body = text.substr(end + 4);
  if (answer.head.find("chunked") != std::string::npos) answer.body = joined(answer.body);
  return answer;
}

// Data of the events of a stream; the last one must be [DONE].
inline std::vector<nlohmann::json> events(const Answer& answer) {
  std::vector<nlohmann::json> list;
  std::istringstream lines(answer.body);
  std::string last;
  for (std::string line; std::getline(lines, line);) {
    if (line.empty()) continue;
    EXPECT_TRUE(line.starts_with("data: ")) << line;
    last = line.substr(6);
    if (last != "[DONE]") list.push_back(nlohmann::json::parse(last));
  }
  EXPECT_EQ(last, "[DONE]") << answer.body;
  return list;
}

}  // namespace octet::serve
