// Guides against shared vectors: JSON-Schema-Test-Suite (draft 7), llama.cpp's grammars, maskbench's schemas.
#include <gtest/gtest.h>
#include <zlib.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/testing/test_data.h"
#include "chat/guide.h"

namespace octet {
namespace {

using Json = nlohmann::ordered_json;

// As Python's json.dumps writes it.
std::string written(const Json& value) {
  if (!value.is_structured()) return value.dump();
  std::string out;
  for (const auto& [name, item] : value.items()) {
    if (!out.empty()) out += ", ";
    out += (value.is_object() ? Json(name).dump() + ": " : "") + written(item);
  }
  return value.is_object() ? "{" + out + "}" : "[" + out + "]";
}

struct Counts {
  int right = 0, refused = 0, accepts_invalid = 0, rejects_valid = 0;
};

Counts run(const std::string& path) {
  Counts counts;
  const gzFile file = gzopen(path.c_str(), "rb");
  std::string text;
  char buffer[65536];
  for (int n = gzread(file, buffer, sizeof buffer); n > 0; n = gzread(file, buffer, sizeof buffer))
    text.append(buffer, size_t(n));
  gzclose(file);
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    const Json one = Json::parse(text.substr(at, end - at));
    at = end == text.npos ? text.size() : end + 1;
    std::shared_ptr<const Guide> guide;
    try {
      guide = one.contains("schema") ? json_schema_guide(one["schema"].dump())
                                     : grammar_guide(one["grammar"].get<std::string>());
    } catch (const Error&) {
      counts.refused++;
      continue;
    }
    bool accepts_invalid = false, rejects_valid = false;
    for (const Json& test : one["tests"]) {
      GuideState state(guide, nullptr);
      bool verdict = false;
      try {
        verdict = state.accept_text(test.contains("text") ? test["text"].get<std::string>() : written(test["data"])) &&
                  state.may_end();
      } catch (const Error&) {
      }
      // llama.cpp's converter knows numbers of 16 digits only, and its data are texts beside a note.
      const bool stricter = one.contains("note") && !test["valid"].get<bool>();
      accepts_invalid |= verdict && !test["valid"].get<bool>() && !stricter;
      rejects_valid |= !verdict && test["valid"].get<bool>();
    }
    counts.accepts_invalid += accepts_invalid;
    counts.rejects_valid += rejects_valid;
    counts.right += !accepts_invalid && !rejects_valid;
  }
  std::printf("%s: right %d, refused %d, refusing a valid instance %d\n", path.c_str(), counts.right, counts.refused,
              counts.rejects_valid);
  return counts;
}

void expect_at_least(const char* name, int right) {
  const std::string path = test_data_path(name);
  if (path.empty()) GTEST_SKIP() << missing_test_data(name);
  const Counts counts = run(path);
  EXPECT_EQ(counts.accepts_invalid, 0);
  EXPECT_GE(counts.right, right);
}

TEST(GuideVectors, JsonSchemaTestSuite) { expect_at_least("serving/guided/json_schema_draft7.jsonl", 199); }
TEST(GuideVectors, LlamaCppGrammars) { expect_at_least("serving/guided/grammar_cases.jsonl", 21); }
TEST(GuideVectors, Maskbench) { expect_at_least("serving/guided/maskbench_540.jsonl.gz", 525); }

}  // namespace
}  // namespace octet
