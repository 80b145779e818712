// Runs cut into stages, as threads, against the run of one rank: the same bits where nothing is summed otherwise.
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "base/log.h"
#include "system/tiny.h"
#include "train/trainer.h"

namespace octet {
namespace {

struct Way {
  const char* name;
  int64_t pipeline = 1, chunks = 1, data = 1, tensor = 1;
  bool sequence = false;
  const char* shard = "none";
  int64_t context = 1;
};

struct Trained {
  std::vector<double> losses;  // of steps, then of the last evaluation
  std::map<std::string, std::string> files;
  std::string folder;
};

class Pipeline : public testing::Test {
 protected:
  Pipeline() { set_log_level(LogLevel::kWarning); }

  // Eight micro-batches a step; no clipping.
  RunConfig config_of(const Way& way, const std::string& family, const std::string& recipe) {
    RunConfig config = tiny_config(folder_, recipe, family);
    config.layers = 4;
    config.global_batch = 8 * config.micro_batch;
    config.steps = 4, config.eval_interval = 2;
    config.threads = 1;
    config.optimizer.clip = 0;
    config.out = folder_.file(way.name + family + recipe);
    config.pipeline = way.pipeline, config.chunks = way.chunks, config.data_ranks = way.data;
    config.tensor = way.tensor, config.sequence = way.sequence, config.shard = way.shard;
    config.context = way.context;
    return config;
  }

  Trained trained(const RunConfig& config) {
    Trained made;
    const TrainResult result =
        train(config, {.on_step = [&](const RunState&, const StepResult& r) { made.losses.push_back(r.loss); }});
    made.losses.push_back(result.last_metric);
    made.files = checkpoint_bytes(result.checkpoint);
    made.folder = result.checkpoint;
    return made;
  }
  Trained trained(const Way& way, const std::string& family, const std::string& recipe) {
    return trained(config_of(way, family, recipe));
  }

  std::string refusal(const RunConfig& config) {
    try {
      train(config);
    } catch (const Error& error) {
      return error.message();
    }
    return "";
  }

  TempFolder folder_;
};

const Way kOne = {.name = "one"};

TEST_F(Pipeline, OfAnUntiedModelIsTheRunOfOneRankBitForBit) {
  for (const char* recipe : {"fp32", "bf16", "fp8-delayed", "fp8-current"}) {
    const Trained one = trained(kOne, "llama", recipe);
    for (const Way& way : {Way{.name = "two", .pipeline = 2}, Way{.name = "four", .pipeline = 4},
                           Way{.name = "interleaved", .pipeline = 2, .chunks = 2}}) {
      const Trained stages = trained(way, "llama", recipe);
      EXPECT_EQ(stages.losses, one.losses) << way.name << ", " << recipe;
      EXPECT_TRUE(stages.files == one.files) << way.name << ", " << recipe;
    }
  }
}

TEST_F(Pipeline, RecomputedIsTheSame) {
  RunConfig config = config_of(kOne, "llama", "bf16");
  const Trained one = trained(config);
  for (const char* recompute : {"selective", "full"}) {
    config = config_of({.name = recompute, .pipeline = 2, .chunks = 2}, "llama", "bf16");
    config.recompute = recompute;
    EXPECT_TRUE(trained(config).files == one.files) << recompute;
  }
}

// Of a table that both ends have the gradients of micro-batches are added in another order.
TEST_F(Pipeline, OfATiedModelDiffersByRounding) {
  for (const char* recipe : {"fp32", "fp8-delayed"}) {
    const double tolerance = std::string(recipe) == "fp32" ? 2e-5 : 2e-2;
    const Trained one = trained(kOne, "gpt2", recipe);
    for (const Way& way :
         {Way{.name = "two", .pipeline = 2}, Way{.name = "interleaved", .pipeline = 2, .chunks = 2},
          Way{.name = "on a mesh", .pipeline = 2, .chunks = 2, .data = 2, .tensor = 2, .shard = "gradients"},
          Way{.name = "on a mesh of contexts", .pipeline = 2, .data = 2, .shard = "gradients", .context = 2}}) {
      const Trained stages = trained(way, "gpt2", recipe);
      ASSERT_EQ(stages.losses.size(), one.losses.size());
      for (size_t i = 0; i < one.losses.size(); ++i)
        EXPECT_NEAR(stages.losses[i], one.losses[i], tolerance) << way.name << ", " << recipe << ", step " << i + 1;
    }
  }
}

// What is cut over tensor ranks is summed at the border of stages, and there rounded once more; nothing else differs.
TEST_F(Pipeline, OnAMeshIsTheMeshAlone) {
  const Way meshes[] = {{.name = "data", .data = 2, .shard = "optimizer"},
                        {.name = "tensor", .tensor = 2},
                        {.name = "sequence", .tensor = 2, .sequence = true},
                        {.name = "all", .data = 2, .tensor = 2, .sequence = true, .shard = "gradients"},
                        {.name = "context", .context = 2},
                        {.name = "context optimizer", .shard = "optimizer", .context = 2},
                        {.name = "context gradients", .shard = "gradients", .context = 2},
                        {.name = "context and data", .data = 2, .shard = "parameters", .context = 2},
                        {.name = "context and tensor", .tensor = 2, .sequence = true, .context = 2}};
  for (const Way& mesh : meshes) {
    for (const char* recipe : {"fp32", "fp8-delayed"}) {
      const bool exact = mesh.tensor == 1;
      if (!exact && recipe != std::string("fp32")) continue;
      Way stages = mesh;
      const std::string name = std::string(mesh.name) + " in stages";
      stages.name = name.c_str(), stages.pipeline = 2;
      const Trained alone = trained(mesh, "llama", recipe), cut = trained(stages, "llama", recipe);
      if (exact) {
        EXPECT_EQ(cut.losses, alone.losses) << mesh.name << ", " << recipe;
        EXPECT_TRUE(cut.files == alone.files) << mesh.name << ", " << recipe;
      }
      ASSERT_EQ(cut.losses.size(), alone.losses.size());
      for (size_t i = 0; i < alone.losses.size(); ++i) EXPECT_NEAR(cut.losses[i], alone.losses[i], 2e-5) << mesh.name;
    }
  }
}

TEST_F(Pipeline, ClippingSeesTheNormOfAllStages) {
  for (const char* family : {"llama", "gpt2"}) {
    std::vector<double> norms[2];
    for (int stages : {1, 2}) {
      RunConfig config =
          config_of({.name = stages == 1 ? "one clipped" : "clipped", .pipeline = stages}, family, "fp32");
      config.optimizer.clip = 0.1;
      train(config,
            {.on_step = [&](const RunState&, const StepResult& r) { norms[stages - 1].push_back(r.grad_norm); }});
    }
    ASSERT_EQ(norms[0].size(), 4U);
    for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(norms[1][i], norms[0][i], 1e-4 * norms[0][i]) << family;
    EXPECT_GT(norms[0][0], 0.1);
  }
}

TEST_F(Pipeline, ResumesOnAnyMesh) {
  RunConfig config = config_of({.name = "chain", .pipeline = 2}, "llama", "fp8-delayed");
  const Trained whole = trained(config_of(kOne, "llama", "fp8-delayed"));
  config.steps = 2;
  trained(config);
  config.steps = 3, config.pipeline = 1;
  trained(config);
  config.steps = 4, config.pipeline = 2, config.chunks = 2;
  EXPECT_TRUE(trained(config).files == whole.files);
}

TEST_F(Pipeline, RefusesWhatHasNoStages) {
  RunConfig config = config_of({.name = "refused", .pipeline = 5}, "llama", "fp32");
  EXPECT_NE(refusal(config).find("the model has 4 layers: want at most 4 stages"), std::string::npos)
      << refusal(config);
  config.pipeline = 2, config.chunks = 3;
  EXPECT_NE(refusal(config).find("parallel.chunks from 1 to 2"), std::string::npos) << refusal(config);
  config.chunks = 2, config.global_batch = 3 * config.micro_batch;
  EXPECT_NE(refusal(config).find("want a multiple of 2"), std::string::npos) << refusal(config);
  config.pipeline = 1;
  EXPECT_NE(refusal(config).find("parallel.pipeline from 2 on"), std::string::npos) << refusal(config);
  config = config_of({.name = "auto", .pipeline = 2}, "llama", "auto");
  EXPECT_NE(refusal(config).find("choose a recipe"), std::string::npos) << refusal(config);
}

// A stage that the memory does not hold is named, with its bytes and what was tried.
TEST_F(Pipeline, AStageThatDoesNotFitIsNamed) {
  RunConfig config = config_of({.name = "large", .pipeline = 2}, "llama", "bf16");
  config.hidden = 65536, config.head_dim = 64, config.intermediate = 4194304;  // tens of TiB
  try {
    train(config, {.free_disk = int64_t{1} << 62});
    FAIL() << "a machine of this size?";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory) << error.message();
    for (const char* part : {"stage ", " of 2: ", " bytes", "more stages and tensor ranks; none of them makes it fit"})
      EXPECT_NE(error.message().find(part), std::string::npos) << part << " in " << error.message();
  }
}

// An error of one stage within a step ends the others, and earlier checkpoints stay sound.
TEST_F(Pipeline, AnErrorOfAStageEndsTheRun) {
  RunConfig config = config_of({.name = "failing", .pipeline = 2}, "llama", "fp32");
  config.checkpoint_interval = 1;
  EXPECT_THROW(train(config, {.on_step =
                                  [](const RunState& run, const StepResult&) {
                                    if (run.step == 2) throw std::runtime_error("stopped");
                                  }}),
               std::runtime_error);
  const TrainResult resumed = train(config);
  EXPECT_EQ(resumed.run.step, 4);
  EXPECT_TRUE(checkpoint_bytes(resumed.checkpoint) == trained(kOne, "llama", "fp32").files);
}

}  // namespace
}  // namespace octet
