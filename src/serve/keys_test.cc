#include "serve/keys.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/testing/test_error.h"

namespace octet::serve {
namespace {

class Keys : public testing::Test {
 protected:
  std::vector<ApiKey> read(const std::string& text) const {
    write_file(path_, text);
    return read_keys(path_);
  }
  std::string error(const std::string& text) const {
    return error_of([&] { read(text); });
  }
  void TearDown() override { remove_path(path_); }
  const std::string path_ = testing::TempDir() + "/octet_keys_" + std::to_string(::getpid());
};

TEST_F(Keys, AreFoundByTheirHash) {
  const std::string a = make_key(), b = make_key();
  EXPECT_EQ(a.size(), 49u);
  EXPECT_NE(a, b);
  const auto keys = read("# keys\n\n" + key_line("a", a) + "\n" + key_line("b", b) + "\n");
  ASSERT_EQ(keys.size(), 2u);
  EXPECT_EQ(find_key(keys, "Bearer " + b), 1);
  EXPECT_EQ(find_key(keys, a), 0);
  EXPECT_EQ(find_key(keys, a + "x"), -1);
  EXPECT_EQ(find_key(keys, ""), -1);
  EXPECT_EQ(find_key(keys, keys[0].hash), -1);
}

TEST_F(Keys, HashIsSha256) {
  EXPECT_NE(key_line("n", "abc").find("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
            std::string::npos);
}

TEST_F(Keys, MistakesAreNamedWithTheirLine) {
  const std::string hash(64, 'a');
  const auto line = [&](const std::string& more) {
    return R"({"name": "x", "sha256": ")" + hash + "\"" + more + "}\n";
  };
  const KeyLimits limits = read(line(R"(, "texts": 3, "priority": -1)"))[0].limits;
  EXPECT_EQ(limits.texts, 3);
  EXPECT_EQ(limits.priority, -1);
  const ApiKey key = read(line(R"(, "admin": true, "models": ["a", "b"])"))[0];
  EXPECT_TRUE(key.admin);
  EXPECT_EQ(key.models, (std::vector<std::string>{"a", "b"}));
  EXPECT_NE(error(line(R"(, "models": [])")).find("models is empty"), std::string::npos);
  EXPECT_NE(error("").find("contains no key"), std::string::npos);
  EXPECT_NE(error("\n{").find("line 2"), std::string::npos);
  EXPECT_NE(error(line(R"(, "text": 3)")).find("unknown field text"), std::string::npos);
  EXPECT_NE(error(line(R"(, "texts": -3)")).find("texts is -3"), std::string::npos);
  EXPECT_NE(error(line("") + line("")).find("line 2: an earlier line has the same name"), std::string::npos);
  EXPECT_NE(error(R"({"name": "x", "sha256": "abc"})").find("64 lower-case hex digits"), std::string::npos);
}

}  // namespace
}  // namespace octet::serve
