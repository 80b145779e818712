// Requests as the packages openai 3.54, anthropic 2.12 and tritonclient 2.73 send them, byte for byte
// (testdata/clients.bin: a length, a line end, so many bytes, a line end, for each).
#include <gtest/gtest.h>

#include "base/file.h"
#include "base/testing/test_data.h"
#include "serve/testing/tiny_server.h"

namespace octet::serve {
namespace {

std::vector<std::string> recorded() {
  const std::string all = read_file(source_dir() + "/src/serve/testdata/clients.bin");
  std::vector<std::string> requests;
  for (size_t at = 0; at < all.size();) {
    const size_t line = all.find('\n', at), size = std::stoul(all.substr(at, line - at));
    requests.push_back(all.substr(line + 1, size));
    at = line + 1 + size + 1;
  }
  return requests;
}

TEST(RecordedClients, EachRequestIsServed) {
  const TinyServer tiny({}, {.limits = fake_limits(1024, 4, 1024)});
  const std::vector<std::string> requests = recorded();
  EXPECT_EQ(requests.size(), 13u);
  for (const std::string& request : requests) {
    // Their connections are kept: what is asked behind them closes this one.
    const std::string reply =
        Peer(tiny.server->port())
            .send(request + "GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            .read();
    EXPECT_TRUE(reply.starts_with("HTTP/1.1 200 OK\r\n")) << request << "\n" << reply;
    if (request.find("\"stream\":true") == std::string::npos) continue;
    const bool ended = reply.find("data: [DONE]") != std::string::npos ||
                       reply.find("event: message_stop") != std::string::npos ||
                       reply.find("event: response.incomplete") != std::string::npos ||
                       reply.find("event: response.completed") != std::string::npos;
    EXPECT_TRUE(ended) << request << "\n" << reply;
  }
}

}  // namespace
}  // namespace octet::serve
