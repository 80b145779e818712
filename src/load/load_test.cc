// Workloads, traces, static batching and the figures of a drive.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "base/error.h"
#include "infer/testing/engine_test.h"
#include "load/driver.h"
#include "load/summary.h"
#include "load/workload.h"

namespace octet {
namespace {

std::string write_trace(const std::string& name, const std::string& text) {
  std::string path = testing::TempDir() + name;
  std::ofstream(path) << text;
  return path;
}

TEST(Workload, ReadsAnAzureTraceByArrival) {
  const std::string path = write_trace("azure.csv",
                                       "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
                                       "2023-11-16 18:15:50.5,396,109\r\n"
                                       "2023-11-16 18:15:46.0,374,44\r\n");
  const Workload trace = read_trace(path);
  ASSERT_EQ(trace.requests.size(), 2u);
  EXPECT_EQ(trace.requests[0].prompt_tokens, 374);
  EXPECT_EQ(trace.requests[0].arrival, 0);
  EXPECT_EQ(trace.requests[1].output_tokens, 109);
  EXPECT_NEAR(trace.requests[1].arrival, 4.5, 1e-6);
  EXPECT_EQ(read_trace(path, 1).requests.size(), 1u);
}

TEST(Workload, PrefixBlocksOfAMooncakeTraceAreEqualWhereTheirIdsAre) {
  const Workload trace = read_trace(
      write_trace("mooncake.jsonl",
                  "{\"timestamp\": 0, \"input_length\": 1100, \"output_length\": 3, \"hash_ids\": [7, 8, 9]}\n"
                  "{\"timestamp\": 2500, \"input_length\": 1030, \"output_length\": 4, \"hash_ids\": [7, 8, 10]}\n"));
  ASSERT_EQ(trace.requests.size(), 2u);
  EXPECT_EQ(trace.requests[1].arrival, 2.5);
  const std::vector<int32_t> a = prompt_of(trace, 0, 5000, 1), b = prompt_of(trace, 1, 5000, 1);
  ASSERT_EQ(a.size(), 1100u);
  ASSERT_EQ(b.size(), 1030u);
  EXPECT_TRUE(std::equal(a.begin(), a.begin() + 2 * kPrefixBlock, b.begin()));
  EXPECT_NE(a[2 * kPrefixBlock], b[2 * kPrefixBlock]);
  for (int32_t id : a) EXPECT_TRUE(id >= 0 && id < 5000);
  EXPECT_NE(prompt_of(trace, 0, 5000, 2), a);
}

TEST(Driver, AdaptersAreOfRequestsInTurnOrByZipfsLaw) {
  DriveOptions options;
  options.adapters = {"a", "b", "c", "d"};
  EXPECT_EQ(adapters_of(options, 6), (std::vector<size_t>{0, 1, 2, 3, 0, 1}));
  options.adapter_zipf = 1;
  constexpr size_t kRequests = 20000;
  const std::vector<size_t> drawn = adapters_of(options, kRequests);
  EXPECT_EQ(drawn, adapters_of(options, kRequests));
  for (size_t k = 0; k < 4; ++k) {
    const double share = static_cast<double>(std::ranges::count(drawn, k)) / static_cast<double>(kRequests);
    EXPECT_NEAR(share, 12.0 / 25 / static_cast<double>(k + 1), 0.015) << k;  // 1 + 1/2 + 1/3 + 1/4 = 25/12
  }
  options.seed = 2;
  EXPECT_NE(drawn, adapters_of(options, kRequests));
}

TEST(Workload, BadTracesAreRefusedByLine) {
  for (const char* text : {"", "TIMESTAMP,ContextTokens,GeneratedTokens\n", "2023-11-16 18:15:46.0,abc,44\n",
                           "yesterday,3,4\n", "2023-11-16 18:15:46.0,3\n", "2023-11-16 18:15:46.0,3,0\n",
                           "{\"timestamp\": 0, \"input_length\": 3}\n", "{\"timestamp\": \n"}) {
    try {
      read_trace(write_trace("bad.csv", text));
      ADD_FAILURE() << "accepted: " << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCorrupt) << error.message();
      EXPECT_NE(error.message().find("bad.csv"), std::string::npos) << error.message();
    }
  }
}

TEST(Workload, PoissonArrivalsHaveTheirRate) {
  Workload workload = fixed_workload(20'000, 10, 20);
  set_poisson_arrivals(workload, 50, 3);
  EXPECT_NEAR(workload.requests.back().arrival, 400, 12);  // four standard deviations
  EXPECT_EQ(workload.prompt_tokens(), 200'000);
  scale_arrivals(workload, 2);
  EXPECT_NEAR(workload.requests.back().arrival, 200, 6);
  EXPECT_EQ(drop_longer_than(workload, 29), 20'000);
}

TEST(Workload, LengthsSpreadEvenlyAroundTheirMean) {
  Workload workload = fixed_workload(4000, 100, 10);
  spread_lengths(workload, 0.5, 7);
  int64_t least = 1000, most = 0;
  for (const LoadRequest& request : workload.requests) {
    least = std::min(least, request.prompt_tokens), most = std::max(most, request.prompt_tokens);
    EXPECT_TRUE(request.output_tokens >= 5 && request.output_tokens <= 15) << request.output_tokens;
  }
  EXPECT_EQ(least, 50);
  EXPECT_EQ(most, 150);
  EXPECT_NEAR(static_cast<double>(workload.prompt_tokens()) / 4000, 100, 2);  // four standard deviations
  Workload tiny = fixed_workload(100, 1, 1);
  spread_lengths(tiny, 1, 7);
  for (const LoadRequest& request : tiny.requests) EXPECT_GE(std::min(request.prompt_tokens, request.output_tokens), 1);
}

TEST(Summary, PercentilesInterpolate) {
  const Spread spread = spread_of({4, 1, 3, 2, 5});
  EXPECT_EQ(spread.mean, 3);
  EXPECT_EQ(spread.p50, 3);
  EXPECT_NEAR(spread.p90, 4.6, 1e-12);
  EXPECT_EQ(spread.max, 5);
  EXPECT_EQ(spread_of({}).p99, 0);
}

// Seven requests of growing lengths on an engine of three sequences.
DriveResult drive_seven(Batching batching, int64_t kv_tokens = 0, int64_t concurrency = 0) {
  DriveOptions options;
  options.batching = batching;
  options.kv_tokens = kv_tokens;
  options.concurrency = concurrency;
  Workload workload{.name = "seven", .requests = {}};
  for (int64_t i = 0; i < 7; ++i) workload.requests.push_back({.prompt_tokens = 2 + i, .output_tokens = 3 + 2 * i});
  auto engine = test_engine({.limits = fake_limits()}, {.max_sequences = 3, .policy = SchedulingPolicy::kNeverEvict});
  DriveResult result = drive(*engine, workload, options);
  for (size_t i = 0; i < result.records.size(); ++i) {
    const RequestRecord& record = result.records[i];
    EXPECT_EQ(record.finished, FinishReason::kLength) << record.error;
    EXPECT_EQ(record.prompt_tokens, workload.requests[i].prompt_tokens);
    EXPECT_EQ(record.output_tokens, workload.requests[i].output_tokens);
    EXPECT_EQ(static_cast<int64_t>(record.gaps.size()), record.output_tokens - 1);
  }
  return result;
}

// The first request of every batch, from the times of submission: a batch begins when every earlier request has ended.
std::vector<size_t> batches_of(const DriveResult& result) {
  std::vector<size_t> begins;
  double ended = 0;
  for (size_t i = 0; i < result.records.size(); ++i) {
    if (i == 0 || result.records[i].submitted >= ended) begins.push_back(i);
    ended = std::max(ended, result.records[i].last_token);
  }
  return begins;
}

TEST(Drive, StaticBatchingSubmitsABatchWhenTheOneBeforeHasEnded) {
  using Begins = std::vector<size_t>;
  EXPECT_EQ(batches_of(drive_seven(Batching::kInFlight)), Begins{0}) << "in-flight batching waits for no batch";
  const DriveResult packed = drive_seven(Batching::kStatic);
  EXPECT_EQ(batches_of(packed), (Begins{0, 3, 6}));
  EXPECT_EQ(packed.padded_tokens, 0);
  EXPECT_EQ(batches_of(drive_seven(Batching::kStatic, 0, 2)), (Begins{0, 2, 4, 6}));
  // Requests of 5, 8, 11, 14, 17, 20 and 23 tokens, prompt and output.
  EXPECT_EQ(batches_of(drive_seven(Batching::kStatic, 25)), (Begins{0, 3, 4, 5, 6}));
}

TEST(Drive, PaddedStaticBatchingPadsToTheLongestOfTheBatch) {
  const DriveResult padded = drive_seven(Batching::kPaddedStatic);
  EXPECT_EQ(batches_of(padded), (std::vector<size_t>{0, 3, 6}));
  EXPECT_EQ(padded.padded_tokens, 2 * ((2 + 1) + (4 + 2)));  // prompts and outputs of two batches of three
  const int64_t computed = padded.after.prompt_tokens + padded.after.generated_tokens;
  EXPECT_EQ(computed, 35 + 63 + padded.padded_tokens);
  EXPECT_GT(summarize(padded, {}, 0).padding, 0.15);
  // Padded, two of the first three fill 2 x (3 + 5) of 20 tokens; later ones run alone.
  EXPECT_EQ(batches_of(drive_seven(Batching::kPaddedStatic, 20)), (std::vector<size_t>{0, 2, 3, 4, 5, 6}));
}

DriveResult two_requests() {
  DriveResult result;
  result.seconds = 2;
  result.joules = 30;
  RequestRecord fast{.submitted = 0, .first_token = 0.1, .last_token = 0.3, .prompt_tokens = 10, .output_tokens = 3};
  fast.gaps = {0.1f, 0.1f};
  fast.finished = FinishReason::kLength;
  RequestRecord slow = fast;
  slow.first_token = 1, slow.last_token = 2, slow.gaps = {0.5f, 0.5f};
  RequestRecord failed{.submitted = 0};
  failed.finished = FinishReason::kError;
  failed.error = "the <device> failed";
  result.records = {fast, slow, failed};
  result.after.steps = 4, result.after.seconds = 2, result.after.host_seconds = 0.1;
  return result;
}

TEST(Estimate, ReadsWeightsOnceAStepAndMultipliesEveryToken) {
  const EnginePlan plan{.matrix_elements = 500, .weight_bytes = 1000, .kv_tokens = 600};
  const DeviceRates rates{.bytes_per_second = 10000, .flops_per_second = 100000};  // 0.1 s to read, 0.01 s a token
  const LoadEstimate alone = estimate_load(plan, rates, fixed_workload(2, 5, 50), 1);
  EXPECT_EQ(alone.texts, 1);
  EXPECT_DOUBLE_EQ(alone.step_seconds, 0.1);
  EXPECT_DOUBLE_EQ(alone.seconds, 100 * 0.1 + 10 * 0.01);
  const LoadEstimate together = estimate_load(plan, rates, fixed_workload(40, 5, 50), 256);
  EXPECT_EQ(together.texts, 10) << "the cache has room for so many";
  EXPECT_DOUBLE_EQ(together.seconds, 200 * 0.1 + 200 * 0.01);
  const LoadEstimate products = estimate_load({.matrix_elements = 500, .weight_bytes = 1000, .kv_tokens = 6000}, rates,
                                              fixed_workload(40, 5, 50), 256);
  EXPECT_EQ(products.texts, 40);
  EXPECT_DOUBLE_EQ(products.step_seconds, 40 * 0.01);
  Workload late = fixed_workload(2, 5, 50);
  late.requests.back().arrival = 60;
  EXPECT_DOUBLE_EQ(estimate_load(plan, rates, late, 1).seconds, 60);
  EXPECT_DOUBLE_EQ(estimate_load(plan, rates, {}, 1).seconds, 0);
}

TEST(Summary, RatesGoodputEnergyAndCost) {
  const LoadSummary summary = summarize(two_requests(), {.first_token = 0.5, .inter_token = 0.2}, 3.6);
  EXPECT_EQ(summary.finished, 2);
  EXPECT_EQ(summary.failed, 1);
  EXPECT_EQ(summary.output_rate, 3);
  EXPECT_EQ(summary.goodput, 0.5);
  EXPECT_NEAR(summary.good_share, 1.0 / 3, 1e-12);
  EXPECT_NEAR(summary.per_token.p50, (0.1 + 0.5) / 2, 1e-12);
  EXPECT_EQ(summarize(two_requests(), {.end_to_end = 0.2}, 0).goodput, 0);
  EXPECT_EQ(summary.joules_per_token, 5);
  EXPECT_NEAR(summary.cost_per_million_tokens, 1e6 * 3.6 / 3600 / 3, 1e-9);
  EXPECT_EQ(summary.step_seconds, 0.5);
  EXPECT_NEAR(summary.host_seconds_per_step, 0.025, 1e-12);
  EXPECT_NE(to_text(summary).find("1 requests failed, the first: the <device> failed"), std::string::npos);
}

TEST(Summary, TellsWhatWasDrafted) {
  DriveResult result = two_requests();
  EXPECT_EQ(to_text(summarize(result, {}, 0)).find("drafted"), std::string::npos);
  result.before.drafts = 10, result.before.drafted_tokens = 40, result.before.accepted_at[0] = 10;
  result.after.drafts = 30, result.after.drafted_tokens = 100, result.after.accepted_tokens = 24;
  result.after.accepted_at = {26, 8};
  const LoadSummary summary = summarize(result, {}, 0);
  EXPECT_NE(to_text(summary).find("20 times 3.00 tokens drafted, 40.0 % accepted; by place 0.80 0.40\n"),
            std::string::npos)
      << to_text(summary);
  EXPECT_NE(to_json(summary, {}).find("accepted_by_place"), std::string::npos);
}

TEST(Summary, ThePageEscapesWhatItShows) {
  const DriveResult result = two_requests();
  const std::string page = to_page(summarize(result, {}, 0), result, {{"model", "a<b"}});
  EXPECT_NE(page.find("a&lt;b"), std::string::npos);
  EXPECT_NE(page.find("the &lt;device&gt;") + page.find("the &lt;device>"), std::string::npos);
  EXPECT_NE(page.find("const DATA = {"), std::string::npos);
}

}  // namespace
}  // namespace octet
