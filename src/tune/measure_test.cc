#include "tune/measure.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/file.h"
#include "base/testing/test_data.h"
#include "base/testing/test_error.h"

namespace octet {
namespace {

// Stands for `octet train FILE`: by its micro-batch a run is fast, slow, fails, hangs or makes no steps.
constexpr const char* kProgram = R"(#!/bin/sh
out=$(sed -n 's/^out: //p' "$2" | tr -d '"')
size=$(sed -n 's/^ *micro_batch: //p' "$2" | tr -d '"')
mkdir -p "$out"; echo "$size" >> "$(dirname "$2")/calls"
steps() { for i in 1 2 3 4 5; do echo "{\"kind\": \"step\", \"step\": $i, \"seconds\": $1}" >> "$out/log.jsonl"; done; }
case $size in
  1) steps 0.5; sleep 1000 ;;
  2) steps 0.25 ;;
  4) echo "octet: out of memory: 12 bytes of 8"; exit 1 ;;
  8) sleep 1000 ;;
  16) kill -9 $$ ;;
esac
)";

class Measure : public testing::Test {
 protected:
  Measure() {
    write_file(program_, kProgram);
    std::filesystem::permissions(program_, std::filesystem::perms::owner_all);
    config_.train_data = "data", config_.global_batch = 16;
    for (const int64_t size : {1, 2, 4, 8, 16})
      best_.push_back(
          {.layout = {.micro_batch = size}, .plan = {.time = {.products = 0.1 * static_cast<double>(size)}}});
    options_ = {.program = program_, .folder = folder_.file("work"), .candidates = 5, .steps = 5, .limit_seconds = 1};
  }
  std::string calls() const { return read_file(options_.folder + "/calls"); }

  TempFolder folder_;
  std::string program_ = folder_.file("program");
  RunConfig config_;
  std::vector<PlannedLayout> best_;
  MeasureOptions options_;
};

TEST_F(Measure, AFaultCostsItsCandidateAlone) {
  const std::vector<Measurement> all = measure_layouts(config_, best_, options_);
  ASSERT_EQ(all.size(), 5u);
  EXPECT_EQ(all[0].layout.micro_batch, 2);
  EXPECT_EQ(all[0].measured, 0.25);
  EXPECT_EQ(all[0].planned, 0.2);
  EXPECT_EQ(all[1].layout.micro_batch, 1);
  EXPECT_EQ(all[1].measured, 0.5) << "its process did not end by itself";
  EXPECT_NE(all[2].reason.find("out of memory: 12 bytes of 8"), std::string::npos) << all[2].reason;
  EXPECT_NE(all[3].reason.find("0 of 5 steps in 1 s"), std::string::npos) << all[3].reason;
  EXPECT_NE(all[4].reason.find("ended by signal 9"), std::string::npos) << all[4].reason;
  const std::string text = to_text(all);
  EXPECT_NE(text.find("0.25 s measured, 0.2 planned (-20.0 %)"), std::string::npos) << text;
}

TEST_F(Measure, GoesOnWhereItEnded) {
  int answered = 0;
  options_.report = [&](const std::string&) { ++answered; };
  options_.stop = [&] { return answered == 2; };
  EXPECT_EQ(measure_layouts(config_, best_, options_).size(), 2u);
  EXPECT_EQ(calls(), "1\n2\n");
  options_.stop = {};
  const std::vector<Measurement> all = measure_layouts(config_, best_, options_);
  EXPECT_EQ(calls(), "1\n2\n4\n8\n16\n");
  EXPECT_EQ(all.size(), 5u);
  EXPECT_TRUE(all[0].kept);
  EXPECT_EQ(all[0].measured, 0.25);
  config_.sequence_length = 512;  // another run
  options_.candidates = 1;
  EXPECT_FALSE(measure_layouts(config_, best_, options_)[0].kept);
}

TEST_F(Measure, RefusesWhatCannotBeRun) {
  config_.train_data.clear();
  EXPECT_NE(error_of([&] { measure_layouts(config_, best_, options_); }).find("needs data.train"), std::string::npos);
  config_.train_data = "data", options_.steps = 2;
  EXPECT_NE(error_of([&] { measure_layouts(config_, best_, options_); }).find("want more than 2"), std::string::npos);
  options_.steps = 5, options_.program = folder_.file("nothing");
  EXPECT_NE(error_of([&] { measure_layouts(config_, best_, options_); }).find("cannot be run"), std::string::npos);
}

}  // namespace
}  // namespace octet
