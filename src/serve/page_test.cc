// The route of the page, and what lets nothing of it come from elsewhere. What it does is for
// tests/program/serve_page_test.py.
#include "serve/page.h"

#include <gtest/gtest.h>

#include <regex>

#include "base/file.h"
#include "base/testing/test_error.h"
#include "infer/testing/engine_test.h"
#include "serve/server.h"
#include "serve/testing/answer.h"

namespace octet::serve {
namespace {

TEST(Page, IsServedWithoutAKeyUnderAStrictPolicy) {
  const std::string keys = testing::TempDir() + "/octet_page_keys_" + std::to_string(::getpid());
  write_file(keys, key_line("a", make_key()) + "\n");
  const auto engine = test_engine({.limits = fake_limits()});
  const auto tokenizer = test_tokenizer();
  ApiModel model;
  model.engine = engine.get(), model.tokenizer = tokenizer.get(), model.names = {"tiny"};
  const Server server(model, {.http = {.port = 0}, .keys = keys});
  const Answer answer = ask(server.port(), "GET", "/");
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.body, page_text());
  EXPECT_EQ(ask(server.port(), "POST", "/").status, 405);
  EXPECT_EQ(ask(server.port(), "GET", "/server_info").status, 401);
  for (const char* field :
       {"Content-Type: text/html; charset=utf-8", "X-Content-Type-Options: nosniff", "Referrer-Policy: no-referrer",
        "default-src 'none'; script-src 'sha256-", "connect-src 'self'", "frame-ancestors 'none'"})
    EXPECT_NE(answer.head.find(field), std::string::npos) << field << " is not in " << answer.head;
  EXPECT_EQ(answer.head.find("unsafe"), std::string::npos);
  remove_path(keys);
}

TEST(Page, NamesNoAddressAndWritesNoMarkup) {
  const std::string page(page_text());
  EXPECT_GT(page.size(), 5000u);
  for (const char* banned : {"://", "@import", "url(", "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write",
                             "eval(", "sessionStorage", "cookie", "<iframe", " onclick=", " style="})
    EXPECT_EQ(page.find(banned), std::string::npos) << banned;
  // Everything that names something to load names the empty icon alone.
  const std::regex loads(R"re((src|href|action)="([^"]*)")re");
  for (std::sregex_iterator it(page.begin(), page.end(), loads), end; it != end; ++it) EXPECT_EQ((*it)[2], "data:,");
  const std::regex asked(R"re((?:fetch|ask)\('([^']*)')re");
  for (std::sregex_iterator it(page.begin(), page.end(), asked), end; it != end; ++it)
    EXPECT_TRUE((*it)[1].str().starts_with("/")) << (*it)[1];
}

}  // namespace
}  // namespace octet::serve
