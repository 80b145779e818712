#include "serve/trusted_proxies.h"

#include <gtest/gtest.h>

#include "base/testing/test_error.h"

namespace octet::serve {
namespace {

TEST(TrustedProxies, TellWhomTheySpeakFor) {
  const TrustedProxies proxies({"10.0.0.0/8", "::1", "unix"});
  const auto client = [&](const std::string& peer, const std::string& forwarded) {
    return proxies.client(peer, {{"x-forwarded-for", forwarded}});
  };
  EXPECT_EQ(client("192.0.2.9:1", "198.51.100.1"), "192.0.2.9:1");  // anyone may write it
  EXPECT_EQ(client("10.1.2.3:1", "198.51.100.1"), "198.51.100.1");
  EXPECT_EQ(client("unix", "6.6.6.6, 198.51.100.1:99 , 10.9.9.9"), "198.51.100.1");
  EXPECT_EQ(client("[::1]:1", "[2001:db8::1]:7"), "[2001:db8::1]");
  EXPECT_EQ(client("10.1.2.3:1", "10.9.9.9"), "10.9.9.9");
  EXPECT_EQ(client("10.1.2.3:1", "198.51.100.1, rubbish"), "10.1.2.3:1");
  EXPECT_EQ(client("10.1.2.3:1", "\"}{"), "10.1.2.3:1");
  EXPECT_EQ(client("11.1.2.3:1", "198.51.100.1"), "11.1.2.3:1");
  EXPECT_EQ(proxies.client("unix", {{"X-Forwarded-For", "198.51.100.1"}, {"X-Forwarded-For", "198.51.100.2"}}),
            "198.51.100.2");
  EXPECT_EQ(proxies.client("unix", {}), "unix");
}

TEST(TrustedProxies, AreAddresses) {
  for (const char* text :
       {"", "proxy", "10.0.0.0/33", "10.0.0.0/", "10.0.0/8", "::1/129", "10.0.0.1/-1", "10.0.0.1/8x"})
    EXPECT_NE(error_of([&] { TrustedProxies({text}); }).find("is not a proxy's address (want one"), std::string::npos)
        << text;
}

}  // namespace
}  // namespace octet::serve
