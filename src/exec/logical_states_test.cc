#include "exec/logical_states.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/error.h"
#include "kernels/common/code_order.h"
#include "passes/plan_memory.h"

namespace octet {
namespace {

// Rows of q and k between each other, two of each in turn: [2 groups, (q, k), 2 rows] of 3 columns.
constexpr int64_t kRows = 4, kCols = 3;

Placement part(const char* name, int64_t offset) {
  return {.param = name,
          .shape = {kRows, kCols},
          .offset = offset * kCols,
          .dims = {{0, kRows, 2, kCols, 4 * kCols}, {0, kCols, kCols, 1, kCols}}};
}

std::unique_ptr<Executor> executor_of(const std::string& kind) {
  Program program;
  program.add_state(
      {.name = "qk", .type = {DType::kF32, {2 * kRows, kCols}}, .placements = {part("q", 0), part("k", 2)}});
  if (kind == "interpreter") return make_interpreter(std::move(program));
  return make_executor(plan_memory(std::move(program), target_of(resolve_device(kind))));
}

std::vector<float> counted(float first) {
  std::vector<float> values(kRows * kCols);
  std::iota(values.begin(), values.end(), first);
  return values;
}

// Where `part` puts them, written out.
std::vector<float> interleaved() {
  std::vector<float> state;
  for (float first : {100.0f, 200.0f, 106.0f, 206.0f})
    for (float i = 0; i < 6; ++i) state.push_back(first + i);
  return state;
}

class LogicalStates : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    std::string why;
    if (GetParam() == "cuda" && !cuda_available(&why)) GTEST_SKIP() << why;
    executor_ = executor_of(GetParam());
    q_ = find_logical_state(executor_->program(), "q", StateRole::kMaster);
    k_ = find_logical_state(executor_->program(), "k", StateRole::kMaster);
  }
  std::vector<float> state() {
    std::vector<float> values(2 * kRows * kCols);
    executor_->read_state("qk", std::as_writable_bytes(std::span(values)));
    return values;
  }

  std::unique_ptr<Executor> executor_;
  LogicalState q_, k_;
};

TEST(EncodeForOrder, CodesStayWhatTheyAreWhereverTheyLie) {
  const TensorType type{DType::kI4, {128, 128}};
  for (const char* order : {"wgmma_x8", "wgmma_x16", ""})
    for (int code = -8; code < 8; ++code) {
      const auto two = static_cast<std::byte>((code & 0xf) * 0x11);
      std::vector<std::byte> codes(static_cast<size_t>(type.bytes()), two), rows = codes;
      encode_for_order(order, codes);
      if (*order != 0) restore_codes(find_code_order(order), type, codes, rows);
      EXPECT_EQ(rows, std::vector<std::byte>(codes.size(), two)) << order << " " << code;
    }
}

TEST_P(LogicalStates, AreWrittenAndReadWhereTheyLie) {
  const std::vector<float> q = counted(100), k = counted(200);
  write_logical(*executor_, q_, std::as_bytes(std::span(q)));
  write_logical(*executor_, k_, std::as_bytes(std::span(k)));
  EXPECT_EQ(state(), interleaved());
  std::vector<float> back(k.size()), piece(5);
  read_logical(*executor_, k_, std::as_writable_bytes(std::span(back)));
  EXPECT_EQ(back, k);
  read_logical(*executor_, k_, std::as_writable_bytes(std::span(piece)), 4 * sizeof(float));  // over the end of a run
  EXPECT_EQ(piece, std::vector<float>(k.begin() + 4, k.begin() + 9));
  EXPECT_THROW(read_logical(*executor_, k_, std::as_writable_bytes(std::span(piece)), 8 * sizeof(float)), Error);
}

TEST_P(LogicalStates, AreFilledInPieces) {
  for (float first : {100.0f, 200.0f}) {
    const std::vector<float> values = counted(first);
    fill_logical(*executor_, first == 100 ? q_ : k_, sizeof(float), [&](int64_t at, std::span<std::byte> to) {
      std::copy_n(reinterpret_cast<const std::byte*>(values.data()) + at, to.size(), to.data());
    });
  }
  EXPECT_EQ(state(), interleaved());
}

// Rows of two tensors in turn: so many that they are written at once, and rows of a MiB, each filled by itself.
TEST_P(LogicalStates, ManyRunsAndLongOnes) {
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{100, 3}, {2, 1 << 18}}) {
    const auto every_other = [rows = rows, cols = cols](const char* param, int64_t first) {
      return Placement{.param = param,
                       .shape = {rows, cols},
                       .offset = first * cols,
                       .dims = {{0, rows, 1, cols, 2 * cols}, {0, cols, cols, 1, cols}}};
    };
    Program program;
    program.add_state({.name = "qk",
                       .type = {DType::kF32, {2 * rows, cols}},
                       .placements = {every_other("q", 0), every_other("k", 1)}});
    executor_ = GetParam() == "interpreter"
                    ? make_interpreter(std::move(program))
                    : make_executor(plan_memory(std::move(program), target_of(resolve_device(GetParam()))));
    std::vector<float> expected(static_cast<size_t>(2 * rows * cols)), read = expected, values(expected.size() / 2);
    for (int64_t i = 0; i < std::ssize(expected); ++i) {
      const int64_t row = i / cols, value = row % 2 * 1000 + row / 2 * 7 + i % cols % 5;
      expected[static_cast<size_t>(i)] = static_cast<float>(value);
    }
    for (bool filled : {false, true}) {
      for (const char* param : {"q", "k"}) {
        const int64_t first = param[0] == 'k' ? 1 : 0;
        const LogicalState tensor = find_logical_state(executor_->program(), param, StateRole::kMaster);
        for (int64_t r = 0; r < rows; ++r)
          std::copy_n(expected.begin() + (2 * r + first) * cols, cols, values.begin() + r * cols);
        const auto bytes = std::as_bytes(std::span(values));
        if (!filled) write_logical(*executor_, tensor, bytes);
        if (filled)
          fill_logical(*executor_, tensor, sizeof(float), [&](int64_t at, std::span<std::byte> to) {
            std::ranges::copy(bytes.subspan(static_cast<size_t>(at), to.size()), to.begin());
          });
      }
      executor_->read_state("qk", std::as_writable_bytes(std::span(read)));
      EXPECT_EQ(read, expected) << rows << (filled ? " filled" : " written");
      std::ranges::fill(read, 0.0f);
      executor_->write_state("qk", std::as_bytes(std::span(read)));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Executors, LogicalStates, testing::Values("interpreter", "cpu", "cuda"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace octet
