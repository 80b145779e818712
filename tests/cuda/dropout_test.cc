// Training with dropout, by the masks of the IR and by cuDNN's: they advance inside replayed graphs, repeat with seed
// and step, and training learns under either.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <set>

#include "base/error.h"
#include "train/batches.h"
#include "train/language_model.h"
#include "train/stepper.h"
#include "weights/weights.h"

namespace octet {
namespace {

constexpr int kSequences = 2, kLength = 64, kVocab = 64;

struct Options {
  bool library_masks = false, eager = false;
  uint64_t seed = 3;
  double lr = 0;  // 0: weights stay, so losses differ by masks alone
  int steps = 5;
};

std::vector<double> losses_of(const Options& options) {
  ModelConfig model = named_model("gpt2-nano");
  model.vocab_size = kVocab, model.max_positions = kLength;
  model.hidden = 128, model.heads = 4, model.layers = 2;
  model.dropout = 0.2;
  StepperOptions stepper_options{.optimizer = {.clip = 1.0},
                                 .compile = {.target = cuda_target(), .recipe = parse_recipe("bf16")},
                                 .library_masks = options.library_masks,
                                 .cuda = {.eager = options.eager}};
  Stepper stepper(LanguageModel(model, kSequences, kLength), stepper_options);
  initialize_weights(stepper.executor(), 5);
  BatchPacker packer(kSequences, kLength, false);
  for (int s = 0; s < kSequences; ++s) {
    std::vector<int32_t> tokens;
    for (int i = 0; i <= kLength; ++i) tokens.push_back((11 * s + i * (s + 1)) % kVocab);
    packer.add(tokens, {0});
  }
  const std::vector<Batch> batches = {packer.finish()};
  std::vector<double> losses;
  for (int step = 1; step <= options.steps; ++step) {
    losses.push_back(
        stepper.step({.micro_batches = batches, .lr = options.lr, .step = step, .seed = options.seed}).loss);
  }
  return losses;
}

class CudaDropout : public testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    if (!cuda_available(&why)) GTEST_SKIP() << why;
  }
};

TEST_F(CudaDropout, MasksAdvanceInReplayedGraphsAndRepeatWithTheSeed) {
  for (const bool library : {false, true}) {
    SCOPED_TRACE(library ? "library" : "portable");
    const std::vector<double> losses = losses_of({.library_masks = library});
    EXPECT_EQ(std::set<double>(losses.begin(), losses.end()).size(), losses.size()) << "two steps drew one mask";
    EXPECT_EQ(losses, losses_of({.library_masks = library})) << "the same seed";
    EXPECT_EQ(losses, losses_of({.library_masks = library, .eager = true})) << "replayed and eager";
    EXPECT_NE(losses, losses_of({.library_masks = library, .seed = 4}));
    EXPECT_NE(losses, losses_of({.library_masks = !library})) << "the same masks";
  }
}

TEST_F(CudaDropout, TrainingLearnsUnderEitherMasks) {
  const std::vector<double> library = losses_of({.library_masks = true, .lr = 3e-3, .steps = 60}),
                            portable = losses_of({.lr = 3e-3, .steps = 60});
  for (const std::vector<double>* losses : {&library, &portable}) {
    EXPECT_NEAR(losses->front(), std::log(kVocab), 0.2);
    EXPECT_LT(losses->back(), 0.5 * losses->front());
  }
  const double sum = std::accumulate(library.begin(), library.end(), 0.0),
               portable_sum = std::accumulate(portable.begin(), portable.end(), 0.0);
  EXPECT_NEAR(sum, portable_sum, 0.1 * portable_sum);
  RecordProperty("library", fmt::format("{:.4f}", sum));
  RecordProperty("portable", fmt::format("{:.4f}", portable_sum));
}

}  // namespace
}  // namespace octet
