#include "base/settings.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"
#include "base/testing/test_data.h"

namespace octet {
namespace {

struct Config {
  bool shuffle = true;
  int64_t steps = 100;
  double rate = 3e-4;
  std::string recipe = "bf16";
  std::string name;
  std::vector<std::string> files;
};

class Settings : public ::testing::Test {
 protected:
  Settings() {
    table.add("train.shuffle", &config.shuffle, {.meaning = "shuffle the documents"});
    table.add("train.steps", &config.steps, {.meaning = "optimiser steps", .min = 1, .max = 1e9});
    table.add("optimizer.rate", &config.rate, {.meaning = "peak learning rate", .min = 0});
    table.add("precision.recipe", &config.recipe, {.meaning = "recipe", .choices = {"bf16", "fp8-current"}});
    table.add("name", &config.name, {.meaning = "a | b"});
    table.add("data.files", &config.files, {.meaning = "token files"});
  }
  // The message of the error that `call` throws.
  template <typename Call>
  std::string message(const Call& call) {
    try {
      call();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      return error.message();
    }
    ADD_FAILURE() << "no error";
    return "";
  }
  Config config;
  SettingsTable table;
};

#define EXPECT_CONTAINS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST_F(Settings, IntegerForms) {
  const std::pair<const char*, int64_t> forms[] = {
      {"7", 7},        {"2_000", 2000},   {"64k", 64000},   {"64K", 64000}, {"64Ki", 65536},
      {"1M", 1000000}, {"1.5M", 1500000}, {"1e6", 1000000}, {" 12 ", 12},   {"+3", 3}};
  for (auto [text, value] : forms) {
    table.set("train.steps", text, "test");
    EXPECT_EQ(config.steps, value) << text;
  }
  for (const char* bad : {"", "k", "1.5", "abc", "1kk", "9999999999999999999", "9223372036854775807k", "0x10", "1e30",
                          "nan", "--3", "12 3"})
    EXPECT_THROW(table.set("train.steps", bad, "test"), Error) << bad;
  EXPECT_EQ(config.steps, 3) << "a refused value must not change the field";
}

TEST_F(Settings, OtherTypes) {
  for (const char* yes : {"true", "YES", "on", "1"}) {
    config.shuffle = false;
    table.set("train.shuffle", yes, "test");
    EXPECT_TRUE(config.shuffle);
  }
  for (const char* no : {"false", "no", "Off", "0"}) {
    table.set("train.shuffle", no, "test");
    EXPECT_FALSE(config.shuffle);
  }
  EXPECT_THROW(table.set("train.shuffle", "maybe", "test"), Error);
  table.set("optimizer.rate", "1e-3", "test");
  EXPECT_EQ(config.rate, 1e-3);
  for (const char* bad : {"inf", "nan", "1e999", "", "1.0x"})
    EXPECT_THROW(table.set("optimizer.rate", bad, "test"), Error) << bad;
  table.set("data.files", "a.bin, b.bin", "test");
  EXPECT_EQ(config.files, (std::vector<std::string>{"a.bin", "b.bin"}));
  EXPECT_THROW(table.set("data.files", "a,,b", "test"), Error);
  table.set("data.files", "", "test");
  EXPECT_TRUE(config.files.empty());
}

TEST_F(Settings, ErrorsNameTheValueTheRangeAndTheNearestName) {
  std::string text = message([&] { table.set("train.step", "5", "command line"); });
  EXPECT_CONTAINS(text, "command line");
  EXPECT_CONTAINS(text, "did you mean 'train.steps'?");
  text = message([&] { table.set("train.steps", "0", "run.yaml:3"); });
  EXPECT_CONTAINS(text, "run.yaml:3");
  EXPECT_CONTAINS(text, "1..1000000000");
  for (const char* beyond : {"9223372036854775808", "-9223372036854775809", "9e18k"}) {
    text = message([&] { table.set("train.steps", beyond, "x"); });
    EXPECT_CONTAINS(text, beyond);
    EXPECT_CONTAINS(text, "want an integer from 1 to 1000000000");
  }
  text = message([&] { table.set("precision.recipe", "fp8-curent", "x"); });
  EXPECT_CONTAINS(text, "did you mean 'fp8-current'?");
  EXPECT_CONTAINS(message([&] { table.set_words({"train.steps"}); }), "name=value");
  EXPECT_CONTAINS(message([&] { table.load_yaml_text("train:\n  stesp: 4\n", "run.yaml"); }), "run.yaml:2");
}

TEST_F(Settings, YamlRoundTrip) {
  table.set_words({"train.steps=5k", "name=null", "train.shuffle=off", "optimizer.rate=0.1", "data.files=x: y,#z,~"});
  std::string yaml = table.to_yaml();
  Config before = config;
  config = Config{};
  table.load_yaml_text(yaml, "yaml");
  EXPECT_EQ(config.steps, 5000);
  EXPECT_EQ(config.name, "null");
  EXPECT_EQ(config.rate, 0.1);
  EXPECT_FALSE(config.shuffle);
  EXPECT_EQ(config.files, before.files);
  EXPECT_EQ(table.to_yaml(), yaml);
}

TEST_F(Settings, YamlForms) {
  table.load_yaml_text("train.steps: 8\noptimizer: {rate: 2.5e-1}\ndata:\n  files: [a, 'b,c']\nname:\n", "t");
  EXPECT_EQ(config.steps, 8);
  EXPECT_EQ(config.rate, 0.25);
  EXPECT_EQ(config.files, (std::vector<std::string>{"a", "b,c"}));
  EXPECT_EQ(config.name, "");
  table.load_yaml_text("", "t");
  table.load_yaml_text("# only a comment\n", "t");
}

TEST_F(Settings, BadYamlIsRefused) {
  for (const char* bad : {"train: [1, 2", "- a\n- b", "train.steps: [1, 2]", "train.steps: 1\ntrain.steps: 2",
                          "train: {steps: 1}\ntrain.steps: 2", "a: &x {b: *x}", "train.steps:", "? [a]\n: 1",
                          "data: {files: [[a]]}", "\x01\x02", "train: 5", "name: {a: 1}"})
    EXPECT_THROW(table.load_yaml_text(bad, "bad.yaml"), Error) << bad;
  EXPECT_THROW(table.load_yaml_text(std::string(10000, '['), "deep.yaml"), Error);
  EXPECT_THROW(table.load_yaml_text(std::string(10000, '{'), "deep.yaml"), Error);
  TempFolder folder;
  try {
    table.load_yaml_file(folder.file("absent.yaml"));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNotFound);
  }
  std::ofstream(folder.file("run.yaml")) << "train:\n  steps: 9\n";
  table.load_yaml_file(folder.file("run.yaml"));
  EXPECT_EQ(config.steps, 9);
}

TEST_F(Settings, PrintedForms) {
  EXPECT_EQ(table.changed_line(), "");
  table.set_words({"train.steps=5", "name=x"});
  EXPECT_EQ(table.changed_line(), "train.steps=5 name=x");
  EXPECT_EQ(table.get("optimizer.rate"), "0.0003");
  EXPECT_CONTAINS(table.help(), "optimiser steps (integer, default 100, 1..1000000000)");
  EXPECT_CONTAINS(table.markdown(), "| `precision.recipe` | text | `bf16` | one of: bf16, fp8-current | recipe |");
  EXPECT_CONTAINS(table.markdown(), "a \\| b");
  EXPECT_EQ(table.names().size(), 6u);
  EXPECT_THROW(table.get("nope"), Error);
  EXPECT_THROW(table.add("train", &config.name, {}), Error);
}

}  // namespace
}  // namespace octet
