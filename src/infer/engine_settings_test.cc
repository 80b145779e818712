// The table of the engine's options against the struct that it describes.
#include "infer/engine_settings.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <regex>

#include "base/error.h"
#include "base/file.h"
#include "base/testing/test_data.h"

namespace octet {
namespace {

// Members of EngineOptions in the public header, in its order, but for functions and maps.
std::vector<std::string> members() {
  std::string text = read_file(source_dir() + "/include/octet/engine.h");
  text = text.substr(text.find("struct EngineOptions {"));
  text = text.substr(0, text.find("\n};"));
  const std::regex member(R"(\n  [A-Za-z][\w:]*(<.*>)? (\w+) = [^;]*;)");
  std::vector<std::string> names;
  for (std::sregex_iterator at(text.begin(), text.end(), member), end; at != end; ++at)
    if (!at->str().starts_with("\n  std::function") && !at->str().starts_with("\n  std::map"))
      names.push_back((*at)[2]);
  return names;
}

TEST(EngineSettings, HaveARowForEveryMember) {
  EngineOptions options;
  std::vector<SettingsTable::Row> rows = settings_of(options).rows();
  std::ranges::sort(rows, {}, [](const SettingsTable::Row& row) {
    return std::visit([](const auto* field) { return static_cast<const void*>(field); }, row.target);
  });
  std::vector<std::string> names;
  for (const SettingsTable::Row& row : rows) names.push_back(row.name);
  EXPECT_EQ(names, members()) << "a row of src/infer/engine_settings.cc for each member, and of that member";
}

TEST(EngineSettings, RoundTripAndDefaultsAreSound) {
  EngineOptions options;
  SettingsTable settings = settings_of(options);
  settings.validate();
  settings.set_words({"device=cpu", "tensor=2", "rank_timeout=2.5", "recipe=fp8-current", "context=4k",
                      "policy=never-evict", "prefix_cache=off", "draft=ngram", "accept_simulated=0.5"});
  const std::string yaml = settings.to_yaml();
  EXPECT_EQ(options.policy, SchedulingPolicy::kNeverEvict);
  EngineOptions other;
  SettingsTable again = settings_of(other);
  again.load_yaml_text(yaml, "yaml");
  EXPECT_EQ(again.to_yaml(), yaml);
  EXPECT_EQ(other.rank_timeout, 2.5);
  EXPECT_FALSE(other.prefix_cache);
  EXPECT_EQ(other.policy, SchedulingPolicy::kNeverEvict);
}

TEST(EngineSettings, RangesAreNamed) {
  EngineOptions options{.tensor = 65};
  const auto message = [&] {
    try {
      settings_of(options).validate();
    } catch (const Error& error) {
      return error.message();
    }
    return std::string();
  };
  EXPECT_EQ(message(), "tensor: 65 (want 1 to 64)");
  options = {.context = 1};
  EXPECT_EQ(message(), "context: 1 (want >= 2 or 0)");
  options = {.memory_fraction = NAN};
  EXPECT_EQ(message(), "memory_fraction: nan (want a finite number)");
  options = {.policy = static_cast<SchedulingPolicy>(7)};
  EXPECT_EQ(message(), "policy: 7 (want one of: never-evict, max-utilization)");
}

TEST(EngineSettings, AnEncoderHasItsOwn) {
  EngineOptions options;
  const std::vector<std::string> all = settings_of(options).names();
  for (const char* task : {"generate", "embed"})
    for (const std::string& name : settings_of(options, task).names()) EXPECT_EQ(std::ranges::count(all, name), 1);
  EXPECT_EQ(std::ranges::count(settings_of(options, "embed").names(), "kv_cache"), 0);
  EXPECT_EQ(std::ranges::count(settings_of(options, "generate").names(), "pooling"), 0);
}

}  // namespace
}  // namespace octet
